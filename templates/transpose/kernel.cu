// y[cols, rows] = x[rows, cols] transposed, float32, row-major, for any rows, cols >= 1.
//
// A block moves tiles of TILE_ROWS x TILE_COLS elements of x: along the rows of x into registers, from there into shared
// memory, and from there along the rows of y. The next tile is read while one is written.
//
//   VEC      elements per load and store (where the rows are aligned for it)
//   WORK     vectors of a tile that a thread moves: all are loaded before the first is used
//   STEPS    tiles that a block moves, one after another, as many tiles apart as there are blocks
//   GROUP    tile rows that are walked through together, column by column; 1: tiles follow each other along rows
//   LAYOUT   of the tile in shared memory: plain; padded: with an unused column; swizzled: columns permuted by the row
//   STREAM   1: x and y pass through the caches as data that is not used again

constexpr int THREADS = TILE_ROWS * TILE_COLS / (VEC * WORK);

extern __shared__ float4 shared_storage[];

template <int WIDTH>
struct WideOf;
template <>
struct WideOf<4> {
    typedef float4 type;
};
template <>
struct WideOf<2> {
    typedef float2 type;
};
template <>
struct WideOf<1> {
    typedef float type;
};

template <int WIDTH>
union Pack {
    typename WideOf<WIDTH>::type wide;
    float at[WIDTH];
};

// Where element (row, column) of a tile lies in shared memory.
__device__ __forceinline__ float &shared_at(int row, int column) {
    float *tile = reinterpret_cast<float *>(shared_storage);
#if defined(LAYOUT_PADDED)
    return tile[row * (TILE_COLS + 1) + column];
#elif defined(LAYOUT_SWIZZLED)
    return tile[row * TILE_COLS + (column ^ (row % (TILE_COLS < 32 ? TILE_COLS : 32)))];
#else
    return tile[row * TILE_COLS + column];
#endif
}

struct Tile {
    int row, column;  // of its first element in x

    // 32 bits are enough for any matrix that a GPU has room for: a tile has at least 128 bytes.
    __device__ __forceinline__ Tile(unsigned index, unsigned tile_rows, unsigned tile_columns) {
        const unsigned size = GROUP * tile_columns;
        const unsigned first = index / size * GROUP;  // of the group's tile rows
        const unsigned height = tile_rows - first < GROUP ? tile_rows - first : GROUP;
        const unsigned within = index % size;
        row = (first + within % height) * TILE_ROWS;
        column = within / height * TILE_COLS;
    }
};

// What a thread holds of a tile: vectors of x, every THREADS-th of the tile.
template <int WIDTH>
struct Held {
    static constexpr int COUNT = TILE_ROWS * TILE_COLS / (WIDTH * THREADS);
    static constexpr int ACROSS = TILE_COLS / WIDTH;
    Pack<WIDTH> packs[COUNT];

    __device__ __forceinline__ void load(const float *__restrict__ x, const Tile &tile, int rows, int cols) {
#pragma unroll
        for (int i = 0; i < COUNT; ++i) {
            const int place = threadIdx.x + i * THREADS;
            const int row = tile.row + place / ACROSS, column = tile.column + place % ACROSS * WIDTH;
            if (row < rows && column < cols) {
                const auto *address = &reinterpret_cast<const Pack<WIDTH> *>(x + (long long)row * cols + column)->wide;
                packs[i].wide = STREAM ? __ldcs(address) : *address;
            }
        }
    }

    __device__ __forceinline__ void share() const {
#pragma unroll
        for (int i = 0; i < COUNT; ++i) {
            const int place = threadIdx.x + i * THREADS;
#pragma unroll
            for (int j = 0; j < WIDTH; ++j) shared_at(place / ACROSS, place % ACROSS * WIDTH + j) = packs[i].at[j];
        }
    }
};

// Writes the tile in shared memory; WIDTH elements of a column of it are neighbours in y.
template <int WIDTH>
__device__ __forceinline__ void write(float *__restrict__ y, const Tile &tile, int rows, int cols) {
    constexpr int DOWN = TILE_ROWS / WIDTH;
#pragma unroll
    for (int i = 0; i < TILE_ROWS * TILE_COLS / (WIDTH * THREADS); ++i) {
        const int place = threadIdx.x + i * THREADS;
        const int row = tile.row + place % DOWN * WIDTH, column = tile.column + place / DOWN;
        if (row < rows && column < cols) {
            Pack<WIDTH> pack;
#pragma unroll
            for (int j = 0; j < WIDTH; ++j) pack.at[j] = shared_at(place % DOWN * WIDTH + j, place / DOWN);
            auto *address = &reinterpret_cast<Pack<WIDTH> *>(y + (long long)column * rows + row)->wide;
            if (STREAM) {
                __stcs(address, pack.wide);
            } else {
                *address = pack.wide;
            }
        }
    }
}

template <int READ_WIDTH, int WRITE_WIDTH>
__device__ __forceinline__ void move(const float *__restrict__ x, float *__restrict__ y, int rows, int cols) {
    const unsigned tile_rows = (rows + TILE_ROWS - 1) / TILE_ROWS, tile_columns = (cols + TILE_COLS - 1) / TILE_COLS;
    const unsigned tiles = tile_rows * tile_columns;
    Held<READ_WIDTH> held;
    held.load(x, Tile(blockIdx.x, tile_rows, tile_columns), rows, cols);
    for (unsigned index = blockIdx.x; index < tiles; index += gridDim.x) {
        held.share();
        __syncthreads();
        const unsigned next = index + gridDim.x;
        if (next < tiles) held.load(x, Tile(next, tile_rows, tile_columns), rows, cols);
        write<WRITE_WIDTH>(y, Tile(index, tile_rows, tile_columns), rows, cols);
        if (next < tiles) __syncthreads();
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) transpose(
    const float *__restrict__ x, float *__restrict__ y, int rows, int cols) {
    const bool read_wide = cols % VEC == 0 && (size_t)x % sizeof(Pack<VEC>) == 0;
    const bool write_wide = rows % VEC == 0 && (size_t)y % sizeof(Pack<VEC>) == 0;
    if (read_wide && write_wide) {
        move<VEC, VEC>(x, y, rows, cols);
    } else if (read_wide) {
        move<VEC, 1>(x, y, rows, cols);
    } else if (write_wide) {
        move<1, VEC>(x, y, rows, cols);
    } else {
        move<1, 1>(x, y, rows, cols);
    }
}
