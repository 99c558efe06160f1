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

#if VEC == 4
typedef float4 Wide;
#elif VEC == 2
typedef float2 Wide;
#else
typedef float Wide;
#endif

union Pack {
    Wide wide;
    float at[VEC];
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

// What a thread moves of each tile: WORK vectors below each other in x, and as many below each other in y.
constexpr int ACROSS = TILE_COLS / VEC, APART = THREADS / ACROSS;   // in x: vectors of a row, rows between a thread's
constexpr int DOWN = TILE_ROWS / VEC, APART_IN_Y = THREADS / DOWN;  // in y

__device__ __forceinline__ void load(Pack (&packs)[WORK], const float *x, const Tile &tile, int rows, int cols) {
    const int row = tile.row + threadIdx.x / ACROSS, column = tile.column + threadIdx.x % ACROSS * VEC;
    const float *from = x + (long long)row * cols + column;
#pragma unroll
    for (int i = 0; i < WORK; ++i) {
        if (column < cols && row + i * APART < rows) {
            const Wide *address = reinterpret_cast<const Wide *>(from + (long long)(i * APART) * cols);
            packs[i].wide = STREAM ? __ldcs(address) : *address;
        }
    }
}

__device__ __forceinline__ void share(const Pack (&packs)[WORK]) {
#pragma unroll
    for (int i = 0; i < WORK; ++i) {
#pragma unroll
        for (int j = 0; j < VEC; ++j) {
            shared_at(threadIdx.x / ACROSS + i * APART, threadIdx.x % ACROSS * VEC + j) = packs[i].at[j];
        }
    }
}

__device__ __forceinline__ void store(float *y, const Tile &tile, int rows, int cols) {
    const int row = tile.row + threadIdx.x % DOWN * VEC, column = tile.column + threadIdx.x / DOWN;
    float *to = y + (long long)column * rows + row;
#pragma unroll
    for (int i = 0; i < WORK; ++i) {
        Pack pack;
#pragma unroll
        for (int j = 0; j < VEC; ++j) {
            pack.at[j] = shared_at(threadIdx.x % DOWN * VEC + j, threadIdx.x / DOWN + i * APART_IN_Y);
        }
        if (row < rows && column + i * APART_IN_Y < cols) {
            Wide *address = reinterpret_cast<Wide *>(to + (long long)(i * APART_IN_Y) * rows);
            if (STREAM) {
                __stcs(address, pack.wide);
            } else {
                *address = pack.wide;
            }
        }
    }
}

// For matrices whose rows start where no vector may: element by element.
__device__ __forceinline__ void load_elements(const float *x, const Tile &tile, int rows, int cols) {
    for (int place = threadIdx.x; place < TILE_ROWS * TILE_COLS; place += THREADS) {
        const int row = tile.row + place / TILE_COLS, column = tile.column + place % TILE_COLS;
        if (row < rows && column < cols) {
            shared_at(place / TILE_COLS, place % TILE_COLS) = x[(long long)row * cols + column];
        }
    }
}

__device__ __forceinline__ void store_elements(float *y, const Tile &tile, int rows, int cols) {
    for (int place = threadIdx.x; place < TILE_ROWS * TILE_COLS; place += THREADS) {
        const int row = tile.row + place % TILE_ROWS, column = tile.column + place / TILE_ROWS;
        if (row < rows && column < cols) {
            y[(long long)column * rows + row] = shared_at(place % TILE_ROWS, place / TILE_ROWS);
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) transpose(
    const float *__restrict__ x, float *__restrict__ y, int rows, int cols) {
    const unsigned tile_rows = (rows + TILE_ROWS - 1) / TILE_ROWS, tile_columns = (cols + TILE_COLS - 1) / TILE_COLS;
    const unsigned tiles = tile_rows * tile_columns;
    if (rows % VEC != 0 || cols % VEC != 0 || ((size_t)x | (size_t)y) % sizeof(Pack) != 0) {
#pragma unroll 1
        for (unsigned step = 0, index = blockIdx.x; step < STEPS && index < tiles; ++step, index += gridDim.x) {
            const Tile tile(index, tile_rows, tile_columns);
            __syncthreads();  // the tile before has been read
            load_elements(x, tile, rows, cols);
            __syncthreads();
            store_elements(y, tile, rows, cols);
        }
        return;
    }
    Pack packs[WORK];
    load(packs, x, Tile(blockIdx.x, tile_rows, tile_columns), rows, cols);
#pragma unroll 1
    for (unsigned step = 0, index = blockIdx.x; step < STEPS && index < tiles; ++step, index += gridDim.x) {
        share(packs);
        __syncthreads();
        const unsigned next = index + gridDim.x;
        const bool more = step + 1 < STEPS && next < tiles;
        if (more) load(packs, x, Tile(next, tile_rows, tile_columns), rows, cols);
        store(y, Tile(index, tile_rows, tile_columns), rows, cols);
        if (more) __syncthreads();
    }
}
