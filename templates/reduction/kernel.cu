// y[rows] = sum or maximum of x[rows, cols] over the last axis, float32, row-major, for any rows, cols >= 1.
// A maximum is that of fmaxf: NaN is passed over where there is anything else.
//
// ROWS rows share a block of threads; ROW_THREADS threads work on one row. With SPLIT > 1 it is the other way round: up
// to SPLIT blocks share a row.
//
//   VEC      floats per load; what comes before the first aligned address of a row, and after the last, is loaded
//            singly
//   WORK     vectors that a thread loads before it adds the first of them
//   UNROLL   of the loop over such groups of loads
//   LOAD     plain; read_only: through the read-only path; streaming: marked as not used again
//   ORDER    of the vectors of a row that blocks share. strided: in turns; blocked: a contiguous part for each
//   REDUCE   how the threads of a row combine: warp shuffles, or a tree in shared memory
//   COMBINE  how the blocks of a row combine. last_block: each leaves its partial result, and the last one to finish
//            adds them up, always in the same order; atomics: each adds to one number, in the order they finish in

constexpr int THREADS = ROW_THREADS * ROWS;
constexpr int UNROLL_LOOP = UNROLL;  // nvcc does not expand macros in #pragma unroll
constexpr int GROUP = ROW_THREADS * WORK;  // vectors that the threads of a row load before they add

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

#ifdef OPERATION_MAX
__device__ __forceinline__ float neutral() { return __int_as_float(0xff800000); }  // minus infinity
__device__ __forceinline__ float combine(float a, float b) { return fmaxf(a, b); }
#else
__device__ __forceinline__ float neutral() { return 0.0f; }
__device__ __forceinline__ float combine(float a, float b) { return a + b; }
#endif

template <typename T>
__device__ __forceinline__ T load(const T *from) {
#if defined(LOAD_READ_ONLY)
    return __ldg(from);
#elif defined(LOAD_STREAMING)
    return __ldcs(from);
#else
    return *from;
#endif
}

// Combines one value per thread over the threads of a row; every thread of the block calls it and gets the result.
__device__ __forceinline__ float reduce(float value) {
    float *partial = reinterpret_cast<float *>(shared_storage);
    __syncthreads();  // the reduction before this one has been read
#ifdef REDUCE_SHUFFLE
    constexpr int WIDTH = ROW_THREADS < 32 ? ROW_THREADS : 32;
#pragma unroll
    for (int distance = WIDTH / 2; distance > 0; distance /= 2) {
        value = combine(value, __shfl_xor_sync(0xffffffffu, value, distance, WIDTH));
    }
    if (ROW_THREADS > 32) {
        constexpr int WARPS = ROW_THREADS > 32 ? ROW_THREADS / 32 : 1;  // of a row
        if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = value;
        __syncthreads();
        const float *first = partial + threadIdx.x / ROW_THREADS * WARPS;
        value = first[0];
#pragma unroll
        for (int warp = 1; warp < WARPS; ++warp) value = combine(value, first[warp]);
    }
    return value;
#else
    const int lane = threadIdx.x % ROW_THREADS;
    partial[threadIdx.x] = value;
    __syncthreads();
#pragma unroll
    for (int active = ROW_THREADS / 2; active > 0; active /= 2) {
        if (lane < active) partial[threadIdx.x] = combine(partial[threadIdx.x], partial[threadIdx.x + active]);
        __syncthreads();
    }
    return partial[threadIdx.x - lane];
#endif
}

__device__ __forceinline__ void add(Pack &total, const Pack &pack) {
#pragma unroll
    for (int i = 0; i < VEC; ++i) total.at[i] = combine(total.at[i], pack.at[i]);
}

// Adds vectors first + lane, first + lane + ROW_THREADS, … of each group of GROUP, and of every group `stride`
// vectors further, below `end`.
__device__ __forceinline__ void add_vectors(Pack &total, const Wide *vectors, int first, int end, int stride) {
    int at = first + (int)threadIdx.x % ROW_THREADS;
#pragma unroll UNROLL_LOOP
    for (; at < end - (WORK - 1) * ROW_THREADS; at += stride) {
        Pack packs[WORK];
#pragma unroll
        for (int i = 0; i < WORK; ++i) packs[i].wide = load(vectors + at + i * ROW_THREADS);
#pragma unroll
        for (int i = 0; i < WORK; ++i) add(total, packs[i]);
    }
#pragma unroll
    for (int i = 0; i < WORK; ++i) {
        if (at < end - i * ROW_THREADS) {
            Pack pack;
            pack.wide = load(vectors + at + i * ROW_THREADS);
            add(total, pack);
        }
    }
}

// What a thread makes of its share of a row, of which it is in part `part` of `parts`.
__device__ __forceinline__ float own_share(const float *row, int cols, int part, int parts) {
    const int lane = threadIdx.x % ROW_THREADS;
    const int misaligned = (size_t)row / sizeof(float) % VEC;
    const int head = min((VEC - misaligned) % VEC, cols);  // single elements at the beginning
    const int vectors = (cols - head) / VEC;
    const int tail = cols - head - vectors * VEC;  // and at the end
    Pack total;
#pragma unroll
    for (int i = 0; i < VEC; ++i) total.at[i] = neutral();
    if (part == 0 && lane < head) total.at[0] = row[lane];
    if (part == 0 && lane < tail) total.at[0] = combine(total.at[0], row[cols - 1 - lane]);
#ifdef ORDER_BLOCKED
    const int length = ((vectors + parts - 1) / parts + 31) / 32 * 32;  // of a part
    const int first = min((long long)part * length, (long long)vectors), end = first + min(length, vectors - first);
    const int stride = GROUP;
#else
    const int first = part * GROUP, end = vectors, stride = parts * GROUP;
#endif
    add_vectors(total, reinterpret_cast<const Wide *>(row + head), first, end, stride);
    float result = total.at[0];
#pragma unroll
    for (int i = 1; i < VEC; ++i) result = combine(result, total.at[i]);
    return result;
}

#if !defined(COMBINE_NONE)
// One thread of each block of a row calls this when its partial result is in memory; true for the last of `parts`.
__device__ __forceinline__ bool is_last(int *ticket, int parts) {
    __threadfence();
    return atomicAdd(ticket, 1) == parts - 1;
}
#endif

#ifdef COMBINE_ATOMICS
// A total begins as the bits of zero: for maxima that is less than the code of any float, and codes are in order.
#ifdef OPERATION_MAX
__device__ __forceinline__ void add_to(float *total, float value) {
    const unsigned bits = __float_as_uint(value);
    atomicMax(reinterpret_cast<unsigned *>(total), bits >> 31 ? ~bits : bits | 0x80000000u);
}

__device__ __forceinline__ float taken_from(float *total) {
    const unsigned code = atomicExch(reinterpret_cast<unsigned *>(total), 0u);
    return __uint_as_float(code >> 31 ? code & 0x7fffffffu : ~code);
}
#else
__device__ __forceinline__ void add_to(float *total, float value) { atomicAdd(total, value); }

__device__ __forceinline__ float taken_from(float *total) { return atomicExch(total, 0.0f); }
#endif

__device__ __forceinline__ void finish(float value, float *y, float *partials, int *tickets, int row, int, int parts) {
    if (threadIdx.x != 0) return;
    add_to(partials + row, value);
    if (!is_last(tickets + row, parts)) return;
    __threadfence();
    y[row] = taken_from(partials + row);
    tickets[row] = 0;
}
#elif defined(COMBINE_LAST_BLOCK)
__device__ __forceinline__ void finish(float value, float *y, float *partials, int *tickets, int row, int part,
                                       int parts) {
    float *const mine = partials + (size_t)row * parts;
    int *const last = reinterpret_cast<int *>(shared_storage);
    __syncthreads();  // the reduction has been read
    if (threadIdx.x == 0) {
        mine[part] = value;
        *last = is_last(tickets + row, parts);
    }
    __syncthreads();
    if (!*last) return;
    __threadfence();
    float total = neutral();
#pragma unroll 4
    for (int i = threadIdx.x; i < parts; i += THREADS) {
        total = combine(total, *static_cast<volatile const float *>(mine + i));
    }
    total = reduce(total);
    if (threadIdx.x == 0) {
        y[row] = total;
        tickets[row] = 0;
    }
}
#endif

extern "C" __global__ void __launch_bounds__(THREADS) reduction(const float *x, float *y, float *partials, int *tickets,
                                                                int rows, int cols) {
#ifdef COMBINE_NONE
    const int row = blockIdx.x * ROWS + threadIdx.x / ROW_THREADS;
    float value = neutral();
    if (row < rows) value = own_share(x + (size_t)row * cols, cols, 0, 1);
    value = reduce(value);
    if (row < rows && threadIdx.x % ROW_THREADS == 0) y[row] = value;
    (void)partials, (void)tickets;
#else
    (void)rows;
    const int parts = min(SPLIT, (cols + GROUP * VEC - 1) / (GROUP * VEC));  // none without a vector per thread
    const int row = blockIdx.x / parts, part = blockIdx.x % parts;
    finish(reduce(own_share(x + (size_t)row * cols, cols, part, parts)), y, partials, tickets, row, part, parts);
#endif
}
