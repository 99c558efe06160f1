// y[k, i, j] = centre * x[k, i, j] + side * (sum of its six neighbours), float32, row-major, for any depth, height,
// width >= 1; x is zero outside.
//
// A block has BLOCK_X x BLOCK_Y x BLOCK_Z threads. A thread computes VEC columns by ROWS rows, and marches with them
// through PLANES planes, of which it keeps three in registers.
//
//   VEC        floats per load and store (where the rows are aligned for it)
//   ROWS       rows per thread
//   PLANES     planes per thread
//   UNROLL     planes that a thread loads before it computes the first of them
//   SIDES      where a thread's neighbours in a plane come from. global: loaded again; shuffle: those to the left and
//              right from the threads beside it, loaded at the ends of a warp only, others loaded again; shared: the
//              block's part of the plane and what is around it is in shared memory
//   READ_ONLY  1: loads through the read-only path
//   STORE      plain; streaming: marked as not used again

constexpr int THREADS = BLOCK_X * BLOCK_Y * BLOCK_Z;
#if defined(SIDES_SHARED)
constexpr int WIDTH = BLOCK_X;  // threads in a row that get each other's elements
#elif defined(SIDES_SHUFFLE)
constexpr int WIDTH = BLOCK_X < 32 ? BLOCK_X : 32;
#endif
constexpr int TILE_X = BLOCK_X * VEC;
constexpr int TILE_Y = BLOCK_Y * ROWS;
constexpr int TILE_Z = BLOCK_Z * PLANES;

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

// A thread's part of a plane, and what lies beside it, as far as the thread loads that itself.
struct Patch {
    Pack rows[ROWS];
    Pack before, after;  // the rows before and after
    float left[ROWS], right[ROWS];
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

// The columns and rows of a thread, some of which may lie outside. WHOLE: vectors are aligned and lie inside or outside
// as one.
template <bool WHOLE>
struct Column {
    const float *from;
    float *to;
    int depth, height, width;
    int row, column;  // the first of its own

    __device__ __forceinline__ size_t offset(int plane, int i, int j) const {
        return ((size_t)plane * height + i) * width + j;
    }

    __device__ __forceinline__ bool inside(int plane, int i) const {
        return plane >= 0 && plane < depth && i >= 0 && i < height;
    }

    __device__ __forceinline__ float element(int plane, int i, int j) const {
        float value = 0.0f;
        if (inside(plane, i) && j >= 0 && j < width) value = load(from + offset(plane, i, j));
        return value;
    }

    __device__ __forceinline__ Pack pack(int plane, int i) const {
        Pack result;
#pragma unroll
        for (int v = 0; v < VEC; ++v) result.at[v] = WHOLE ? 0.0f : element(plane, i, column + v);
        if (WHOLE && inside(plane, i) && column < width) {
            result.wide = load(reinterpret_cast<const Wide *>(from + offset(plane, i, column)));
        }
        return result;
    }

    // Without `around`: its own elements only.
    __device__ __forceinline__ Patch patch(int plane, bool around) const {
        Patch result;
#pragma unroll
        for (int r = 0; r < ROWS; ++r) result.rows[r] = pack(plane, row + r);
        const int beside = around ? plane : -1;  // a plane of zeros
#ifdef SIDES_SHARED
        result.before = pack(threadIdx.y == 0 ? beside : -1, row - 1);
        result.after = pack(threadIdx.y == BLOCK_Y - 1 ? beside : -1, row + ROWS);
#else
        result.before = pack(beside, row - 1);
        result.after = pack(beside, row + ROWS);
#endif
#pragma unroll
        for (int r = 0; r < ROWS; ++r) {
#ifdef SIDES_GLOBAL
            result.left[r] = element(beside, row + r, column - 1);
            result.right[r] = element(beside, row + r, column + VEC);
#else
            // One load serves both ends.
            const bool first = threadIdx.x % WIDTH == 0, last = threadIdx.x % WIDTH == WIDTH - 1;
            const int at = first ? column - 1 : last ? column + VEC : -1;
            result.left[r] = result.right[r] = element(beside, row + r, at);
#endif
        }
        return result;
    }

    __device__ __forceinline__ void put(int plane, int i, const Pack &pack) const {
        float *const place = to + offset(plane, i, column);
        if (WHOLE) {
            if (inside(plane, i) && column < width) store(reinterpret_cast<Wide *>(place), pack.wide);
        } else {
#pragma unroll
            for (int v = 0; v < VEC; ++v) {
                if (inside(plane, i) && column + v < width) store(place + v, pack.at[v]);
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

    __device__ __forceinline__ void fill(const Patch &here) const {
        const int first = threadIdx.y * ROWS;
#pragma unroll
        for (int r = 0; r < ROWS; ++r) {
            own(first + r) = here.rows[r].wide;
            if (threadIdx.x == 0) row(first + r)[-1] = here.left[r];
            if (threadIdx.x == BLOCK_X - 1) row(first + r)[TILE_X] = here.right[r];
        }
        if (threadIdx.y == 0) own(-1) = here.before.wide;
        if (threadIdx.y == BLOCK_Y - 1) own(TILE_Y) = here.after.wide;
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
__device__ __forceinline__ Around around(const Patch &here, int r) {
    Around result = {r > 0 ? here.rows[r > 0 ? r - 1 : 0] : here.before,
                     r < ROWS - 1 ? here.rows[r < ROWS - 1 ? r + 1 : r] : here.after, here.left[r], here.right[r]};
#ifdef SIDES_SHUFFLE
    const float left = __shfl_up_sync(0xffffffffu, here.rows[r].at[VEC - 1], 1, WIDTH);
    const float right = __shfl_down_sync(0xffffffffu, here.rows[r].at[0], 1, WIDTH);
    if (threadIdx.x % WIDTH != 0) result.left = left;
    if (threadIdx.x % WIDTH != WIDTH - 1) result.right = right;
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

template <bool WHOLE>
__device__ __forceinline__ void march(const Column<WHOLE> &column, int first, float centre, float side) {
    Patch below = column.patch(first - 1, false), here = column.patch(first, true);
#pragma unroll 1
    for (int group = 0; group < PLANES; group += UNROLL) {
        Patch above[UNROLL];
#pragma unroll
        for (int k = 0; k < UNROLL; ++k) {
            const int plane = group + k + 1;
            above[k] = column.patch(first + plane, plane < PLANES);
        }
#pragma unroll
        for (int k = 0; k < UNROLL; ++k) {
#ifdef SIDES_SHARED
            const Tile shared((group + k) % 2);
            shared.fill(here);
#endif
#pragma unroll
            for (int r = 0; r < ROWS; ++r) {
#ifdef SIDES_SHARED
                const Around beside = shared.around(r);
#else
                const Around beside = around(here, r);
#endif
                const Pack result = stencil(below.rows[r], here.rows[r], above[k].rows[r], beside, centre, side);
                column.put(first + group + k, column.row + r, result);
            }
            below = here;
            here = above[k];
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
    stencil3d(const float *x, float *y, int depth, int height, int width, float centre, float side) {
    const int tiles_x = (width + TILE_X - 1) / TILE_X, tiles_y = (height + TILE_Y - 1) / TILE_Y;
    const int tile = blockIdx.x;
    const int column = (tile % tiles_x * BLOCK_X + (int)threadIdx.x) * VEC;
    const int row = tile / tiles_x % tiles_y * TILE_Y + (int)threadIdx.y * ROWS;
    const int first = tile / tiles_x / tiles_y * TILE_Z + (int)threadIdx.z * PLANES;
    if (width % VEC == 0 && ((size_t)x | (size_t)y) % sizeof(Wide) == 0) {
        march(Column<true>{x, y, depth, height, width, row, column}, first, centre, side);
    } else {
        march(Column<false>{x, y, depth, height, width, row, column}, first, centre, side);
    }
}
