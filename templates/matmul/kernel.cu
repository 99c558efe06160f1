// C[m, n] = A[m, k] * B[k, n] in float32, row-major, for any m, n, k >= 1.
//
// A block of threads owns a BM x BN tile of C and walks along k in steps of BK. A thread owns TM x TN sums in
// registers. The tile of A is stored transposed, so that the TM operands of a step lie side by side.
//
//   VEC        floats per load and store, global and shared (where the rows are aligned for it)
//   UNROLL     steps of k unrolled together
//   STAGES     1: one buffer; 2: the next tile travels through registers while this one is multiplied;
//              3 and more: that many buffers, filled by asynchronous copies
//   PAD        floats added to every row of a tile in shared memory, against bank conflicts
//   READ_ONLY  1: loads take the read-only path (asynchronous copies prefetch 128 bytes into L2)

constexpr int THREADS_M = BM / TM;
constexpr int THREADS_N = BN / TN;
constexpr int THREADS = THREADS_M * THREADS_N;

// A warp covers LANES_M x LANES_N threads, as square as it gets: 4 x 8 reads 4 + 8 distinct vectors per step.
constexpr int LANES_M = THREADS_N < 8 ? 32 / THREADS_N : (THREADS_M < 4 ? THREADS_M : 4);
constexpr int LANES_N = 32 / LANES_M;
constexpr int WARPS_N = THREADS_N / LANES_N;

constexpr int A_STRIDE = BM + PAD;
constexpr int B_STRIDE = BN + PAD;
constexpr int A_FLOATS = BK * A_STRIDE;
#if STAGES > 1
constexpr int STAGE_FLOATS = BK * (A_STRIDE + B_STRIDE);
#endif
constexpr int A_LOADS = BM * BK / (VEC * THREADS);
constexpr int B_LOADS = BK * BN / (VEC * THREADS);
constexpr int UNROLL_K = UNROLL;  // nvcc does not expand macros in #pragma unroll

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

#if READ_ONLY
#define READ(pointer) __ldg(pointer)
#define L2_PREFETCH ".L2::128B"
#else
#define READ(pointer) (*(pointer))
#define L2_PREFETCH ""
#endif

extern __shared__ float4 shared_storage[];

struct Matrix {
    const float *data;
    int rows, columns;
    bool aligned;  // every row begins at a multiple of VEC floats

    __device__ Matrix(const float *data, int rows, int columns)
        : data(data), rows(rows), columns(columns),
          aligned(columns % VEC == 0 && (size_t)data % sizeof(Wide) == 0) {}

    __device__ __forceinline__ bool contains(int row, int column) const { return row < rows && column < columns; }

    __device__ __forceinline__ const float *at(int row, int column) const {
        return data + (size_t)row * columns + column;
    }
};

// VEC floats of a row; zeros outside the matrix. `column` is a multiple of VEC.
__device__ __forceinline__ Pack load(const Matrix &from, int row, int column) {
    Pack pack;
    if (from.aligned && from.contains(row, column)) {
        pack.wide = READ(reinterpret_cast<const Wide *>(from.at(row, column)));
    } else {
#pragma unroll
        for (int i = 0; i < VEC; ++i) {
            pack.at[i] = from.contains(row, column + i) ? READ(from.at(row, column + i)) : 0.0f;
        }
    }
    return pack;
}

__device__ __forceinline__ Pack load_shared(const float *from) {
    Pack pack;
    pack.wide = *reinterpret_cast<const Wide *>(from);
    return pack;
}

#if STAGES > 2

template <int FLOATS>
__device__ __forceinline__ void copy_async(float *to, const float *from, bool inside) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    const unsigned address = (unsigned)__cvta_generic_to_shared(to);
    const int source_bytes = inside ? 4 * FLOATS : 0;  // the rest is filled with zeros
    asm volatile("cp.async.ca.shared.global" L2_PREFETCH " [%0], [%1], %2, %3;\n" ::"r"(address), "l"(from),
                 "n"(4 * FLOATS), "r"(source_bytes));
#else
    for (int i = 0; i < FLOATS; ++i) to[i] = inside ? from[i] : 0.0f;
#endif
}

__device__ __forceinline__ void commit_copies() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    asm volatile("cp.async.commit_group;\n" ::);
#endif
}

__device__ __forceinline__ void wait_for_oldest_stage() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_group %0;\n" ::"n"(STAGES - 2));
#endif
}

// Transposing copies of A go float by float; those of B are VEC wide where its rows are aligned.
__device__ __forceinline__ void copy_tiles(float *stage, const Matrix &a, const Matrix &b, int row, int column,
                                           int step) {
    float *a_tile = stage;
    float *b_tile = stage + A_FLOATS;
#pragma unroll
    for (int i = 0; i < VEC * A_LOADS; ++i) {
        const int element = threadIdx.x + i * THREADS;
        const int y = element / BK, x = element % BK;
        copy_async<1>(a_tile + x * A_STRIDE + y, a.at(row + y, step + x), a.contains(row + y, step + x));
    }
#pragma unroll
    for (int i = 0; i < B_LOADS; ++i) {
        const int vector = threadIdx.x + i * THREADS;
        const int y = vector / (BN / VEC), x = vector % (BN / VEC) * VEC;
        float *to = b_tile + y * B_STRIDE + x;
        if (b.aligned) {
            copy_async<VEC>(to, b.at(step + y, column + x), b.contains(step + y, column + x));
        } else {
#pragma unroll
            for (int j = 0; j < VEC; ++j) {
                copy_async<1>(to + j, b.at(step + y, column + x + j), b.contains(step + y, column + x + j));
            }
        }
    }
}

#else

// A thread's share of the next tiles, on its way from global to shared memory.
struct Share {
    Pack a[A_LOADS];
    Pack b[B_LOADS];

    __device__ __forceinline__ void load_tiles(const Matrix &from_a, const Matrix &from_b, int row, int column,
                                               int step) {
#pragma unroll
        for (int i = 0; i < A_LOADS; ++i) {
            const int vector = threadIdx.x + i * THREADS;
            a[i] = load(from_a, row + vector / (BK / VEC), step + vector % (BK / VEC) * VEC);
        }
#pragma unroll
        for (int i = 0; i < B_LOADS; ++i) {
            const int vector = threadIdx.x + i * THREADS;
            b[i] = load(from_b, step + vector / (BN / VEC), column + vector % (BN / VEC) * VEC);
        }
    }

    __device__ __forceinline__ void store_tiles(float *stage) const {
#pragma unroll
        for (int i = 0; i < A_LOADS; ++i) {
            const int vector = threadIdx.x + i * THREADS;
            const int y = vector / (BK / VEC), x = vector % (BK / VEC) * VEC;
#pragma unroll
            for (int j = 0; j < VEC; ++j) stage[(x + j) * A_STRIDE + y] = a[i].at[j];
        }
#pragma unroll
        for (int i = 0; i < B_LOADS; ++i) {
            const int vector = threadIdx.x + i * THREADS;
            const int y = vector / (BN / VEC), x = vector % (BN / VEC) * VEC;
            *reinterpret_cast<Wide *>(stage + A_FLOATS + y * B_STRIDE + x) = b[i].wide;
        }
    }
};

#endif

// Chunk i of a thread's rows begins at row(i): chunks of neighbouring threads lie side by side.
__device__ __forceinline__ int chunk_row(int chunk, int thread_m) { return (chunk * THREADS_M + thread_m) * VEC; }
__device__ __forceinline__ int chunk_column(int chunk, int thread_n) { return (chunk * THREADS_N + thread_n) * VEC; }

__device__ __forceinline__ void multiply(const float *stage, int thread_m, int thread_n, float (&sum)[TM][TN]) {
#pragma unroll UNROLL_K
    for (int step = 0; step < BK; ++step) {
        Pack a[TM / VEC];
        Pack b[TN / VEC];
#pragma unroll
        for (int i = 0; i < TM / VEC; ++i) a[i] = load_shared(stage + step * A_STRIDE + chunk_row(i, thread_m));
#pragma unroll
        for (int j = 0; j < TN / VEC; ++j) {
            b[j] = load_shared(stage + A_FLOATS + step * B_STRIDE + chunk_column(j, thread_n));
        }
#pragma unroll
        for (int i = 0; i < TM; ++i) {
#pragma unroll
            for (int j = 0; j < TN; ++j) sum[i][j] += a[i / VEC].at[i % VEC] * b[j / VEC].at[j % VEC];
        }
    }
}

__device__ __forceinline__ void store(float *C, int m, int n, int row, int column, const float (&sum)[TN],
                                      int thread_n) {
    if (row >= m) return;
    const bool aligned = n % VEC == 0 && (size_t)C % sizeof(Wide) == 0;
#pragma unroll
    for (int j = 0; j < TN / VEC; ++j) {
        const int first = column + chunk_column(j, thread_n);
        float *to = C + (size_t)row * n + first;
        Pack pack;
#pragma unroll
        for (int i = 0; i < VEC; ++i) pack.at[i] = sum[j * VEC + i];
        if (aligned && first < n) {
            *reinterpret_cast<Wide *>(to) = pack.wide;
        } else {
#pragma unroll
            for (int i = 0; i < VEC; ++i) {
                if (first + i < n) to[i] = pack.at[i];
            }
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
    matmul(const float *A, const float *B, float *C, int m, int n, int k) {
    float *stages = reinterpret_cast<float *>(shared_storage);
    const Matrix a(A, m, k);
    const Matrix b(B, k, n);
    const int row = blockIdx.y * BM, column = blockIdx.x * BN;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int thread_m = warp / WARPS_N * LANES_M + lane / LANES_N;
    const int thread_n = warp % WARPS_N * LANES_N + lane % LANES_N;
    const int tiles = (k + BK - 1) / BK;
    float sum[TM][TN] = {};

#if STAGES > 2
    for (int tile = 0; tile < STAGES - 1; ++tile) {
        if (tile < tiles) copy_tiles(stages + tile * STAGE_FLOATS, a, b, row, column, tile * BK);
        commit_copies();
    }
    int reading = 0, writing = STAGES - 1;
    for (int tile = 0; tile < tiles; ++tile) {
        wait_for_oldest_stage();
        __syncthreads();  // the tile has arrived for all threads, and all have finished with the stage before it
        const int next = tile + STAGES - 1;
        if (next < tiles) copy_tiles(stages + writing * STAGE_FLOATS, a, b, row, column, next * BK);
        commit_copies();
        multiply(stages + reading * STAGE_FLOATS, thread_m, thread_n, sum);
        reading = reading + 1 == STAGES ? 0 : reading + 1;
        writing = writing + 1 == STAGES ? 0 : writing + 1;
    }
#elif STAGES == 2
    Share share;
    share.load_tiles(a, b, row, column, 0);
    share.store_tiles(stages);
    __syncthreads();
    for (int tile = 0; tile < tiles; ++tile) {
        if (tile + 1 < tiles) share.load_tiles(a, b, row, column, (tile + 1) * BK);
        multiply(stages + tile % 2 * STAGE_FLOATS, thread_m, thread_n, sum);
        if (tile + 1 < tiles) share.store_tiles(stages + (tile + 1) % 2 * STAGE_FLOATS);
        __syncthreads();
    }
#else
    for (int tile = 0; tile < tiles; ++tile) {
        Share share;
        share.load_tiles(a, b, row, column, tile * BK);
        share.store_tiles(stages);
        __syncthreads();
        multiply(stages, thread_m, thread_n, sum);
        __syncthreads();
    }
#endif

#pragma unroll
    for (int i = 0; i < TM; ++i) {
        store(C, m, n, row + chunk_row(i / VEC, thread_m) + i % VEC, column, sum[i], thread_n);
    }
}
