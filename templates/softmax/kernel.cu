// y[rows, cols] = softmax of x over the last axis, float32, row-major, for any rows, cols >= 1.
//
// ROWS rows share a block of threads; ROW_THREADS threads work on one row, each on every ROW_THREADS-th vector of it.
//
//   VEC     floats per load and store (where the rows are aligned for it)
//   ONLINE  1: maximum and sum in one pass over the row; 0: one pass each
//   CACHE   where a thread keeps its first WORK vectors between the passes: 1 shared memory, 2 registers;
//           0: nowhere, every pass reads global memory. Vectors past the first WORK are always read again
//   UNROLL  of the loop over vectors that are read again
//   REDUCE  how the threads of a row combine: warp shuffles, or a tree in shared memory
//   EXP     libm: expf; fast: __expf

constexpr int THREADS = ROW_THREADS * ROWS;
constexpr int KEPT = CACHE == 0 ? 0 : WORK;          // vectors that a thread keeps
constexpr int KEPT_FLOATS = CACHE == 1 ? WORK * VEC * THREADS : 0;  // in shared memory
constexpr int UNROLL_ROW = UNROLL;                   // nvcc does not expand macros in #pragma unroll
constexpr float LOWEST = -3.402823466e+38f;

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

struct Maximum {
    static __device__ __forceinline__ float of(float a, float b) { return fmaxf(a, b); }
};

struct Sum {
    static __device__ __forceinline__ float of(float a, float b) { return a + b; }
};

__device__ __forceinline__ float exponential(float x) {
#ifdef EXP_FAST
    return __expf(x);
#else
    return expf(x);
#endif
}

// Combines one value per thread over the threads of a row; every thread of the block calls it and gets the result.
template <typename Operation>
__device__ __forceinline__ float reduce(float value) {
    float *partial = reinterpret_cast<float *>(shared_storage) + KEPT_FLOATS;
#ifdef REDUCE_SHUFFLE
    constexpr int WIDTH = ROW_THREADS < 32 ? ROW_THREADS : 32;
#pragma unroll
    for (int distance = WIDTH / 2; distance > 0; distance /= 2) {
        value = Operation::of(value, __shfl_xor_sync(0xffffffffu, value, distance, WIDTH));
    }
    if (ROW_THREADS > 32) {
        constexpr int WARPS = ROW_THREADS > 32 ? ROW_THREADS / 32 : 1;  // of a row
        __syncthreads();  // the reduction before this one has been read
        if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = value;
        __syncthreads();
        const float *first = partial + threadIdx.x / ROW_THREADS * WARPS;
        value = first[0];
#pragma unroll
        for (int warp = 1; warp < WARPS; ++warp) value = Operation::of(value, first[warp]);
    }
    return value;
#else
    const int lane = threadIdx.x % ROW_THREADS;
    __syncthreads();  // the reduction before this one has been read
    partial[threadIdx.x] = value;
    __syncthreads();
#pragma unroll
    for (int active = ROW_THREADS / 2; active > 0; active /= 2) {
        if (lane < active) partial[threadIdx.x] = Operation::of(partial[threadIdx.x], partial[threadIdx.x + active]);
        __syncthreads();
    }
    return partial[threadIdx.x - lane];
#endif
}

// A thread's view of its row: vectors lane, lane + ROW_THREADS, … below `vectors`.
struct Row {
    const float *from;
    float *to;
    int columns;
    int vectors;  // 0 for a row past the last one: such threads only take part in reductions
    bool aligned;

    __device__ Row(const float *x, float *y, int rows, int cols) {
        const int row = blockIdx.x * ROWS + threadIdx.x / ROW_THREADS;
        const size_t offset = row < rows ? (size_t)row * cols : 0;
        from = x + offset;
        to = y + offset;
        columns = cols;
        vectors = row < rows ? (cols + VEC - 1) / VEC : 0;
        aligned = cols % VEC == 0 && ((size_t)x | (size_t)y) % sizeof(Wide) == 0;
    }

    // Elements past the end of the row are -inf: their exponential is 0.
    __device__ __forceinline__ Pack load(int vector) const {
        Pack pack;
        if (aligned) {
            pack.wide = *reinterpret_cast<const Wide *>(from + (size_t)vector * VEC);
        } else {
#pragma unroll
            for (int i = 0; i < VEC; ++i) {
                const int column = vector * VEC + i;
                pack.at[i] = column < columns ? from[column] : __int_as_float(0xff800000);
            }
        }
        return pack;
    }

    __device__ __forceinline__ void store(int vector, const Pack &pack) const {
        if (aligned) {
            *reinterpret_cast<Wide *>(to + (size_t)vector * VEC) = pack.wide;
        } else {
#pragma unroll
            for (int i = 0; i < VEC; ++i) {
                const int column = vector * VEC + i;
                if (column < columns) to[column] = pack.at[i];
            }
        }
    }
};

// The vectors that a thread keeps between the passes.
struct Keep {
#if CACHE == 2
    Pack packs[WORK];
    __device__ __forceinline__ Pack &at(int i) { return packs[i]; }
#else
    __device__ __forceinline__ Pack &at(int i) {
        return reinterpret_cast<Pack *>(shared_storage)[i * THREADS + threadIdx.x];
    }
#endif
};

__device__ __forceinline__ float largest(const Pack &pack) {
    float result = pack.at[0];
#pragma unroll
    for (int i = 1; i < VEC; ++i) result = fmaxf(result, pack.at[i]);
    return result;
}

__device__ __forceinline__ float total(const Pack &pack) {
    float result = pack.at[0];
#pragma unroll
    for (int i = 1; i < VEC; ++i) result += pack.at[i];
    return result;
}

__device__ __forceinline__ Pack exponentials(const Pack &pack, float maximum) {
    Pack result;
#pragma unroll
    for (int i = 0; i < VEC; ++i) result.at[i] = exponential(pack.at[i] - maximum);
    return result;
}

__device__ __forceinline__ Pack scaled(const Pack &pack, float factor) {
    Pack result;
#pragma unroll
    for (int i = 0; i < VEC; ++i) result.at[i] = pack.at[i] * factor;
    return result;
}

// Maximum so far, and the sum of exponentials relative to it.
__device__ __forceinline__ void update(float &maximum, float &sum, const Pack &pack) {
    const float larger = fmaxf(maximum, largest(pack));
    sum = sum * exponential(maximum - larger) + total(exponentials(pack, larger));
    maximum = larger;
}

// Loops over the vectors that a thread keeps, and over those that it reads again in every pass.
#define KEPT_VECTORS(i, vector) \
    _Pragma("unroll") for (int i = 0, vector = lane; i < KEPT; ++i, vector += ROW_THREADS) if (vector < row.vectors)
#define REST_VECTORS(vector) for (int vector = lane + KEPT * ROW_THREADS; vector < row.vectors; vector += ROW_THREADS)

extern "C" __global__ void __launch_bounds__(THREADS) softmax(const float *x, float *y, int rows, int cols) {
    const Row row(x, y, rows, cols);
    const int lane = threadIdx.x % ROW_THREADS;
    Keep keep;
    float maximum = LOWEST;
    float sum = 0.0f;

#if ONLINE
    KEPT_VECTORS(i, vector) {
        const Pack pack = row.load(vector);
        keep.at(i) = pack;
        update(maximum, sum, pack);
    }
#pragma unroll UNROLL_ROW
    REST_VECTORS(vector) update(maximum, sum, row.load(vector));
    const float own = maximum;
    maximum = reduce<Maximum>(own);
    sum = reduce<Sum>(sum * exponential(own - maximum));
    const float factor = 1.0f / sum;
    KEPT_VECTORS(i, vector) row.store(vector, scaled(exponentials(keep.at(i), maximum), factor));
#else
    KEPT_VECTORS(i, vector) {
        const Pack pack = row.load(vector);
        keep.at(i) = pack;
        maximum = fmaxf(maximum, largest(pack));
    }
#pragma unroll UNROLL_ROW
    REST_VECTORS(vector) maximum = fmaxf(maximum, largest(row.load(vector)));
    maximum = reduce<Maximum>(maximum);
    KEPT_VECTORS(i, vector) {
        const Pack pack = exponentials(keep.at(i), maximum);
        keep.at(i) = pack;
        sum += total(pack);
    }
#pragma unroll UNROLL_ROW
    REST_VECTORS(vector) sum += total(exponentials(row.load(vector), maximum));
    sum = reduce<Sum>(sum);
    const float factor = 1.0f / sum;
    KEPT_VECTORS(i, vector) row.store(vector, scaled(keep.at(i), factor));
#endif
#pragma unroll UNROLL_ROW
    REST_VECTORS(vector) row.store(vector, scaled(exponentials(row.load(vector), maximum), factor));
}
