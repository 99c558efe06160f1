// y[k, i, j] = centre * x[k, i, j] + side * (sum of its six neighbours), float32, row-major, for any depth, height,
// width >= 1; x is zero outside.
//
// A block has BLOCK_X x BLOCK_Y x BLOCK_Z threads. A thread computes VEC columns by ROWS rows, and marches with them
// through PLANES planes, of which it keeps three in registers.
//
//   VEC        floats per load and store (where the rows are aligned for it)
//   ROWS       rows per thread
//   PLANES     planes per thread
//   UNROLL     of the loop over them
//   SIDES      where a thread's neighbours in a plane come from. global: loaded again; shuffle: those to the left and
//              right from the threads beside it, loaded at the ends of a warp only, others loaded again; shared: the
//              block's part of the plane and what is around it is in shared memory
//   READ_ONLY  1: loads through the read-only path
//   STORE      plain; streaming: marked as not used again

constexpr int THREADS = BLOCK_X * BLOCK_Y * BLOCK_Z;
constexpr int TILE_X = BLOCK_X * VEC;
constexpr int TILE_Y = BLOCK_Y * ROWS;
constexpr int TILE_Z = BLOCK_Z * PLANES;
constexpr int UNROLL_PLANES = UNROLL;  // nvcc does not expand macros in #pragma unroll

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

struct Patch {  // a thread's part of a plane
    Pack rows[ROWS];
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

// The columns and rows of a thread, some of which may lie outside.
struct Column {
    const float *from;
    float *to;
    int depth, height, width;
    int row, column;  // the first of its own
    bool whole;       // vectors may be used

    __device__ __forceinline__ size_t offset(int plane, int i, int j) const {
        return ((size_t)plane * height + i) * width + j;
    }

    __device__ __forceinline__ bool inside(int plane, int i) const {
        return plane >= 0 && plane < depth && i >= 0 && i < height;
    }

    __device__ __forceinline__ float element(int plane, int i, int j) const {
        return inside(plane, i) && j >= 0 && j < width ? load(from + offset(plane, i, j)) : 0.0f;
    }

    __device__ __forceinline__ Pack pack(int plane, int i) const {
        Pack result;
        if (whole && inside(plane, i)) {
            result.wide = load(reinterpret_cast<const Wide *>(from + offset(plane, i, column)));
        } else {
#pragma unroll
            for (int v = 0; v < VEC; ++v) result.at[v] = whole ? 0.0f : element(plane, i, column + v);
        }
        return result;
    }

    __device__ __forceinline__ Patch patch(int plane) const {
        Patch result;
#pragma unroll
        for (int r = 0; r < ROWS; ++r) result.rows[r] = pack(plane, row + r);
        return result;
    }

    __device__ __forceinline__ void put(int plane, int i, const Pack &pack) const {
        if (!inside(plane, i)) return;
        float *const place = to + offset(plane, i, column);
        if (whole) {
            store(reinterpret_cast<Wide *>(place), pack.wide);
        } else {
#pragma unroll
            for (int v = 0; v < VEC; ++v) {
                if (column + v < width) store(place + v, pack.at[v]);
            }
        }
    }
};

// What lies around one row of a patch.
struct Around {
    Pack before, after;  // in the rows before and after it
    float left, right;
};

#ifdef SIDES_SHARED
// A row begins VEC floats into its row of shared memory, so that vectors are aligned there. Two planes in turn.
constexpr int PITCH = TILE_X + 2 * VEC;
constexpr int PLANE_FLOATS = PITCH * (TILE_Y + 2);

struct Tile {
    float *rows;

    __device__ explicit Tile(int turn) {
        rows = reinterpret_cast<float *>(shared_storage) + (threadIdx.z * 2 + turn) * PLANE_FLOATS + VEC;
    }

    __device__ __forceinline__ float *row(int i) const { return rows + (i + 1) * PITCH; }  // from -1 to TILE_Y

    __device__ __forceinline__ Wide &own(int i) const {
        return *reinterpret_cast<Wide *>(row(i) + threadIdx.x * VEC);
    }

    __device__ __forceinline__ void fill(const Column &column, const Patch &here, int plane) const {
        const int first = threadIdx.y * ROWS;
#pragma unroll
        for (int r = 0; r < ROWS; ++r) {
            const int i = column.row + r;
            own(first + r) = here.rows[r].wide;
            if (threadIdx.x == 0) row(first + r)[-1] = column.element(plane, i, column.column - 1);
            if (threadIdx.x == BLOCK_X - 1) row(first + r)[TILE_X] = column.element(plane, i, column.column + VEC);
        }
        if (threadIdx.y == 0) own(-1) = column.pack(plane, column.row - 1).wide;
        if (threadIdx.y == BLOCK_Y - 1) own(TILE_Y) = column.pack(plane, column.row + ROWS).wide;
        __syncthreads();
    }

    __device__ __forceinline__ Around around(int r) const {
        const int i = (int)threadIdx.y * ROWS + r;
        const float *const here = row(i) + threadIdx.x * VEC;
        Around result;
        result.before.wide = own(i - 1);
        result.after.wide = own(i + 1);
        result.left = here[-1];
        result.right = here[VEC];
        return result;
    }
};
#else
__device__ __forceinline__ Around around(const Column &column, const Patch &here, int plane, int r) {
    const int i = column.row + r;
    Around result;
    result.before = r > 0 ? here.rows[r > 0 ? r - 1 : 0] : column.pack(plane, i - 1);
    result.after = r < ROWS - 1 ? here.rows[r < ROWS - 1 ? r + 1 : r] : column.pack(plane, i + 1);
#ifdef SIDES_SHUFFLE
    constexpr int WIDTH = BLOCK_X < 32 ? BLOCK_X : 32;
    result.left = __shfl_up_sync(0xffffffffu, here.rows[r].at[VEC - 1], 1, WIDTH);
    result.right = __shfl_down_sync(0xffffffffu, here.rows[r].at[0], 1, WIDTH);
    if (threadIdx.x % WIDTH == 0) result.left = column.element(plane, i, column.column - 1);
    if (threadIdx.x % WIDTH == WIDTH - 1) result.right = column.element(plane, i, column.column + VEC);
#else
    result.left = column.element(plane, i, column.column - 1);
    result.right = column.element(plane, i, column.column + VEC);
#endif
    return result;
}
#endif

__device__ __forceinline__ Pack stencil(const Pack &below, const Pack &here, const Pack &above, const Around &around,
                                        float centre, float side) {
    Pack result;
#pragma unroll
    for (int i = 0; i < VEC; ++i) {
        const float left = i > 0 ? here.at[i > 0 ? i - 1 : 0] : around.left;
        const float right = i < VEC - 1 ? here.at[i < VEC - 1 ? i + 1 : i] : around.right;
        const float sum = (below.at[i] + above.at[i]) + (around.before.at[i] + around.after.at[i]) + (left + right);
        result.at[i] = centre * here.at[i] + side * sum;
    }
    return result;
}

extern "C" __global__ void __launch_bounds__(THREADS)
    stencil3d(const float *x, float *y, int depth, int height, int width, float centre, float side) {
    const int tiles_x = (width + TILE_X - 1) / TILE_X, tiles_y = (height + TILE_Y - 1) / TILE_Y;
    const int tile = blockIdx.x;
    Column column = {x, y, depth, height, width, 0, 0, false};
    column.column = (tile % tiles_x * BLOCK_X + (int)threadIdx.x) * VEC;
    column.row = tile / tiles_x % tiles_y * TILE_Y + (int)threadIdx.y * ROWS;
    column.whole = width % VEC == 0 && ((size_t)x | (size_t)y) % sizeof(Wide) == 0 && column.column < width;
    const int first = tile / tiles_x / tiles_y * TILE_Z + (int)threadIdx.z * PLANES;

    Patch below = column.patch(first - 1), here = column.patch(first);
#pragma unroll UNROLL_PLANES
    for (int k = 0; k < PLANES; ++k) {
        const int plane = first + k;
        const Patch above = column.patch(plane + 1);
#ifdef SIDES_SHARED
        const Tile shared(k % 2);
        shared.fill(column, here, plane);
#endif
#pragma unroll
        for (int r = 0; r < ROWS; ++r) {
#ifdef SIDES_SHARED
            const Around beside = shared.around(r);
#else
            const Around beside = around(column, here, plane, r);
#endif
            const Pack result = stencil(below.rows[r], here.rows[r], above.rows[r], beside, centre, side);
            column.put(plane, column.row + r, result);
        }
        below = here;
        here = above;
    }
}
