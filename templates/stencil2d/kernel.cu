// y[i, j] = centre * x[i, j] + side * (sum of its four neighbours), float32, row-major, for any height, width >= 1;
// x is zero outside.
//
// A block of BLOCK_X x BLOCK_Y threads computes a tile of BLOCK_X * VEC columns and BLOCK_Y * ROWS rows. A thread goes
// down ROWS rows of VEC columns and keeps three of them in registers.
//
//   VEC        floats per load and store (where the rows are aligned for it)
//   ROWS       rows per thread
//   UNROLL     rows that a thread loads before it computes the first of them
//   SIDES      where the elements to the left and to the right of a thread's own come from. global: loaded again;
//              shuffle: from the threads beside it, loaded at the ends of a warp only; shared: the tile and what is
//              around it is in shared memory, and rows come from there, too
//   READ_ONLY  1: loads through the read-only path
//   STORE      plain; streaming: marked as not used again

constexpr int TILE_X = BLOCK_X * VEC;
constexpr int TILE_Y = BLOCK_Y * ROWS;

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

extern __shared__ float4 shared_storage[];

template <typename T>
__device__ __forceinline__ T load(const T *from) {
#if READ_ONLY
    return __ldg(from);
#else
    return *from;
#endif
}

template <typename T>
__device__ __forceinline__ void store(T *to, T value) {
#ifdef STORE_STREAMING
    __stcs(to, value);
#else
    *to = value;
#endif
}

// The columns of a thread: VEC from `column` on, some of which may lie outside. WHOLE: vectors are aligned and lie
// inside or outside as one.
template <bool WHOLE>
struct Columns {
    const float *from;
    float *to;
    int height, width, column;

    __device__ __forceinline__ bool has_row(int row) const { return row >= 0 && row < height; }

    __device__ __forceinline__ float element(int row, int at) const {
        float value = 0.0f;
        if (has_row(row) && at >= 0 && at < width) value = load(from + (size_t)row * width + at);
        return value;
    }

    __device__ __forceinline__ Pack row(int row) const {
        Pack pack;
#pragma unroll
        for (int i = 0; i < VEC; ++i) pack.at[i] = WHOLE ? 0.0f : element(row, column + i);
        if (WHOLE && has_row(row) && column < width) {
            pack.wide = load(reinterpret_cast<const Wide *>(from + (size_t)row * width + column));
        }
        return pack;
    }

    __device__ __forceinline__ void put(int row, const Pack &pack) const {
        float *const place = to + (size_t)row * width + column;
        if (WHOLE) {
            if (row < height && column < width) store(reinterpret_cast<Wide *>(place), pack.wide);
        } else {
#pragma unroll
            for (int i = 0; i < VEC; ++i) {
                if (row < height && column + i < width) store(place + i, pack.at[i]);
            }
        }
    }
};

__device__ __forceinline__ Pack stencil(const Pack &above, const Pack &here, const Pack &below, float left, float right,
                                        float centre, float side) {
    Pack result;
#pragma unroll
    for (int i = 0; i < VEC; ++i) {
        const float before = i > 0 ? here.at[i > 0 ? i - 1 : 0] : left;
        const float after = i < VEC - 1 ? here.at[i < VEC - 1 ? i + 1 : i] : right;
        result.at[i] = centre * here.at[i] + side * ((above.at[i] + below.at[i]) + (before + after));
    }
    return result;
}

#ifdef SIDES_SHARED
// A row of the tile begins VEC floats into its row of shared memory, so that vectors are aligned there.
constexpr int PITCH = TILE_X + 2 * VEC;

__device__ __forceinline__ float *shared_row(int row) {  // of the tile, from -1 to TILE_Y
    return reinterpret_cast<float *>(shared_storage) + (row + 1) * PITCH + VEC;
}

__device__ __forceinline__ Pack shared_pack(int row) {
    Pack pack;
    pack.wide = *reinterpret_cast<const Wide *>(shared_row(row) + threadIdx.x * VEC);
    return pack;
}

template <bool WHOLE>
__device__ __forceinline__ void fill_tile(const Columns<WHOLE> &columns, int first_row) {
#pragma unroll
    for (int i = 0; i < (TILE_Y + 2 + BLOCK_Y - 1) / BLOCK_Y; ++i) {
        const int row = (int)threadIdx.y + i * BLOCK_Y - 1;
        if (row > TILE_Y) break;
        float *const to = shared_row(row);
        *reinterpret_cast<Wide *>(to + threadIdx.x * VEC) = columns.row(first_row + row).wide;
        if (threadIdx.x == 0) to[-1] = columns.element(first_row + row, columns.column - 1);
        if (threadIdx.x == BLOCK_X - 1) to[TILE_X] = columns.element(first_row + row, columns.column + VEC);
    }
    __syncthreads();
}
#endif

// What lies beside a thread's elements in a row, as far as it was loaded.
struct Sides {
    float left, right;
};

template <bool WHOLE>
__device__ __forceinline__ Sides load_sides(const Columns<WHOLE> &columns, int row) {
#if defined(SIDES_GLOBAL)
    return {columns.element(row, columns.column - 1), columns.element(row, columns.column + VEC)};
#elif defined(SIDES_SHUFFLE)
    // One load serves both ends of a warp.
    constexpr int WIDTH = BLOCK_X < 32 ? BLOCK_X : 32;
    const bool first = threadIdx.x % WIDTH == 0, last = threadIdx.x % WIDTH == WIDTH - 1;
    const float end = columns.element(row, first ? columns.column - 1 : last ? columns.column + VEC : -1);
    return {end, end};
#else
    const float *const here = shared_row(row) + threadIdx.x * VEC;
    return {here[-1], here[VEC]};
#endif
}

__device__ __forceinline__ Sides exchanged(const Sides &loaded, const Pack &here) {
#ifdef SIDES_SHUFFLE
    constexpr int WIDTH = BLOCK_X < 32 ? BLOCK_X : 32;
    const float left = __shfl_up_sync(0xffffffffu, here.at[VEC - 1], 1, WIDTH);
    const float right = __shfl_down_sync(0xffffffffu, here.at[0], 1, WIDTH);
    const bool first = threadIdx.x % WIDTH == 0, last = threadIdx.x % WIDTH == WIDTH - 1;
    return {first ? loaded.left : left, last ? loaded.right : right};
#else
    (void)here;
    return loaded;
#endif
}

template <bool WHOLE>
__device__ __forceinline__ Pack pack_of(const Columns<WHOLE> &columns, int row) {
#ifdef SIDES_SHARED
    (void)columns;
    return shared_pack(row);
#else
    return columns.row(row);
#endif
}

template <bool WHOLE>
__device__ __forceinline__ void march(const Columns<WHOLE> &columns, int tile_row, float centre, float side) {
#ifdef SIDES_SHARED
    fill_tile(columns, tile_row);
    const int first = threadIdx.y * ROWS;  // rows are counted in the tile
    const int skipped = tile_row;
#else
    const int first = tile_row + (int)threadIdx.y * ROWS;
    const int skipped = 0;
#endif
    Pack above = pack_of(columns, first - 1), here = pack_of(columns, first);
#pragma unroll 1
    for (int group = 0; group < ROWS; group += UNROLL) {
        Pack below[UNROLL];
        Sides sides[UNROLL];
#pragma unroll
        for (int i = 0; i < UNROLL; ++i) below[i] = pack_of(columns, first + group + i + 1);
#pragma unroll
        for (int i = 0; i < UNROLL; ++i) sides[i] = load_sides(columns, first + group + i);
#pragma unroll
        for (int i = 0; i < UNROLL; ++i) {
            const Sides beside = exchanged(sides[i], here);
            const Pack result = stencil(above, here, below[i], beside.left, beside.right, centre, side);
            columns.put(skipped + first + group + i, result);
            above = here;
            here = below[i];
        }
    }
}

extern "C" __global__ void __launch_bounds__(BLOCK_X *BLOCK_Y)
    stencil2d(const float *x, float *y, int height, int width, float centre, float side) {
    const int across = (width + TILE_X - 1) / TILE_X;  // tiles
    const int column = ((int)blockIdx.x % across * BLOCK_X + (int)threadIdx.x) * VEC;
    const int tile_row = (int)blockIdx.x / across * TILE_Y;
    if (width % VEC == 0 && ((size_t)x | (size_t)y) % sizeof(Wide) == 0) {
        march(Columns<true>{x, y, height, width, column}, tile_row, centre, side);
    } else {
        march(Columns<false>{x, y, height, width, column}, tile_row, centre, side);
    }
}
