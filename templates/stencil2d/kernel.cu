// y[i, j] = centre * x[i, j] + side * (sum of its four neighbours), float32, row-major, for any height, width >= 1;
// x is zero outside.
//
// A block of BLOCK_X x BLOCK_Y threads computes a tile of BLOCK_X * VEC columns and BLOCK_Y * ROWS rows. A thread goes
// down ROWS rows of VEC columns and keeps three of them in registers.
//
//   VEC        floats per load and store (where the rows are aligned for it)
//   ROWS       rows per thread
//   UNROLL     of the loop over them
//   SIDES      where the elements to the left and to the right of a thread's own come from. global: loaded again;
//              shuffle: from the threads beside it, loaded at the ends of a warp only; shared: the tile and what is
//              around it is in shared memory, and rows come from there, too
//   READ_ONLY  1: loads through the read-only path
//   STORE      plain; streaming: marked as not used again

constexpr int TILE_X = BLOCK_X * VEC;
constexpr int TILE_Y = BLOCK_Y * ROWS;
constexpr int UNROLL_ROWS = UNROLL;  // nvcc does not expand macros in #pragma unroll

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

// The columns of a thread: VEC from `column` on, some of which may lie outside.
struct Columns {
    const float *from;
    float *to;
    int height, width, column;
    bool whole;  // vectors may be used

    __device__ Columns(const float *x, float *y, int height, int width, int column)
        : from(x), to(y), height(height), width(width), column(column) {
        whole = width % VEC == 0 && ((size_t)x | (size_t)y) % sizeof(Wide) == 0 && column < width;
    }

    __device__ __forceinline__ float element(int row, int at) const {
        const bool inside = row >= 0 && row < height && at >= 0 && at < width;
        return inside ? load(from + (size_t)row * width + at) : 0.0f;
    }

    __device__ __forceinline__ Pack row(int row) const {
        Pack pack;
        if (whole && row >= 0 && row < height) {
            pack.wide = load(reinterpret_cast<const Wide *>(from + (size_t)row * width + column));
        } else {
#pragma unroll
            for (int i = 0; i < VEC; ++i) pack.at[i] = whole ? 0.0f : element(row, column + i);
        }
        return pack;
    }

    __device__ __forceinline__ void put(int row, const Pack &pack) const {
        if (row >= height) return;
        float *const place = to + (size_t)row * width + column;
        if (whole) {
            store(reinterpret_cast<Wide *>(place), pack.wide);
        } else {
#pragma unroll
            for (int i = 0; i < VEC; ++i) {
                if (column + i < width) store(place + i, pack.at[i]);
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

__device__ __forceinline__ void fill_tile(const Columns &columns, int first_row) {
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

extern "C" __global__ void __launch_bounds__(BLOCK_X *BLOCK_Y)
    stencil2d(const float *x, float *y, int height, int width, float centre, float side) {
    const int across = (width + TILE_X - 1) / TILE_X;  // tiles
    const int column = ((int)blockIdx.x % across * BLOCK_X + (int)threadIdx.x) * VEC;
    const int tile_row = (int)blockIdx.x / across * TILE_Y;
    const Columns columns(x, y, height, width, column);
    const int first = tile_row + (int)threadIdx.y * ROWS;
#ifdef SIDES_SHARED
    fill_tile(columns, tile_row);
    const int shared_first = (int)threadIdx.y * ROWS;
    Pack above = shared_pack(shared_first - 1), here = shared_pack(shared_first);
#else
    Pack above = columns.row(first - 1), here = columns.row(first);
#endif
#pragma unroll UNROLL_ROWS
    for (int i = 0; i < ROWS; ++i) {
        const int row = first + i;
#if defined(SIDES_SHARED)
        const Pack below = shared_pack(shared_first + i + 1);
        const float left = shared_row(shared_first + i)[(int)threadIdx.x * VEC - 1];
        const float right = shared_row(shared_first + i)[(int)threadIdx.x * VEC + VEC];
#elif defined(SIDES_SHUFFLE)
        constexpr int WIDTH = BLOCK_X < 32 ? BLOCK_X : 32;
        const Pack below = columns.row(row + 1);
        float left = __shfl_up_sync(0xffffffffu, here.at[VEC - 1], 1, WIDTH);
        float right = __shfl_down_sync(0xffffffffu, here.at[0], 1, WIDTH);
        if (threadIdx.x % WIDTH == 0) left = columns.element(row, column - 1);
        if (threadIdx.x % WIDTH == WIDTH - 1) right = columns.element(row, column + VEC);
#else
        const Pack below = columns.row(row + 1);
        const float left = columns.element(row, column - 1), right = columns.element(row, column + VEC);
#endif
        columns.put(row, stencil(above, here, below, left, right, centre, side));
        above = here;
        here = below;
    }
}
