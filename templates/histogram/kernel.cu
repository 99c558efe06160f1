// counts[b] = how many of keys[n] are b, for 0 <= b < bins <= 4096, int32, for any n, bins >= 1. Other keys are not
// counted.
//
// Up to BLOCKS blocks of BLOCK threads go through the keys in turns. Their counts meet in `totals`; the last block to
// finish moves them to the output and leaves zeros.
//
//   VEC      keys per load; those before the first aligned address, and after the last, are loaded singly
//   WORK     vectors that a thread loads before it counts the first of them
//   UNROLL   of the loop over such groups of loads
//   PRIVATE  where keys are counted. none: in `totals`; otherwise in COPIES sets of counters per block, as many as fit
//            96 KiB of shared memory; warp: a set is shared by every COPIES-th warp; lane: by every COPIES-th lane of
//            all warps, and the counters of one bin lie side by side, in banks of their own
//   LOAD     plain; read_only: through the read-only path; streaming: marked as not used again
//   MERGE    1: equal keys that follow each other in a thread are counted in a register first

constexpr int UNROLL_LOOP = UNROLL;  // nvcc does not expand macros in #pragma unroll
constexpr int GROUP = BLOCK * WORK;  // vectors that a block loads before it counts
constexpr int MOST_COUNTERS = 24576;  // of a block

#if VEC == 4
typedef int4 Wide;
#elif VEC == 2
typedef int2 Wide;
#else
typedef int Wide;
#endif

union Pack {
    Wide wide;
    int at[VEC];
};

extern __shared__ float4 shared_storage[];

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

// The counters that a thread uses, and the run of equal keys that it has not entered there yet. One more counter than
// there are bins is for other keys: counting these takes less time than asking whether to.
struct Counters {
    int *first;     // of bin 0
    int distance;   // to the next bin
    unsigned bins;  // whose counter is the one for other keys
    int run_key = -1, run = 0;

    __device__ Counters(int *totals, int bins, int copies) : first(totals), distance(1), bins(bins) {
#if defined(PRIVATE_WARP)
        first = reinterpret_cast<int *>(shared_storage) + (int)threadIdx.x / 32 % copies * (bins + 1);
#elif defined(PRIVATE_LANE)
        first = reinterpret_cast<int *>(shared_storage) + (int)threadIdx.x % 32 % copies;
        distance = copies;
#else
        (void)copies;
#endif
    }

    __device__ __forceinline__ void enter(int key, int count) {
        atomicAdd(first + (int)min((unsigned)key, bins) * distance, count);
    }

    __device__ __forceinline__ void count(int key) {
#if MERGE
        if (key != run_key) {
            enter(run_key, run);
            run_key = key;
            run = 0;
        }
        ++run;
#else
        enter(key, 1);
#endif
    }

    __device__ __forceinline__ void count(const Pack &pack) {
#pragma unroll
        for (int i = 0; i < VEC; ++i) count(pack.at[i]);
    }

    __device__ __forceinline__ void finish() { enter(run_key, run); }
};

__device__ __forceinline__ void count_all(Counters &counters, const int *keys, int n, int blocks) {
    const int misaligned = (size_t)keys / sizeof(int) % VEC;
    const int head = min((VEC - misaligned) % VEC, n);  // single keys at the beginning
    const int vectors = (n - head) / VEC;
    const int tail = n - head - vectors * VEC;  // and at the end
    if (blockIdx.x == 0 && (int)threadIdx.x < head) counters.count(keys[threadIdx.x]);
    if (blockIdx.x == 0 && (int)threadIdx.x < tail) counters.count(keys[n - 1 - (int)threadIdx.x]);
    const Wide *const from = reinterpret_cast<const Wide *>(keys + head);
    const int stride = blocks * GROUP;
    int at = (int)blockIdx.x * GROUP + (int)threadIdx.x;
#pragma unroll UNROLL_LOOP
    for (; at < vectors - (WORK - 1) * BLOCK; at += stride) {
        Pack packs[WORK];
#pragma unroll
        for (int i = 0; i < WORK; ++i) packs[i].wide = load(from + at + i * BLOCK);
#pragma unroll
        for (int i = 0; i < WORK; ++i) counters.count(packs[i]);
    }
#pragma unroll
    for (int i = 0; i < WORK; ++i) {
        if (at < vectors - i * BLOCK) {
            Pack pack;
            pack.wide = load(from + at + i * BLOCK);
            counters.count(pack);
        }
    }
    counters.finish();
}

#ifndef PRIVATE_NONE
__device__ __forceinline__ void clear(int counters) {
    int *const shared = reinterpret_cast<int *>(shared_storage);
    for (int i = threadIdx.x; i < counters; i += BLOCK) shared[i] = 0;
    __syncthreads();
}

// Adds the block's counts to the totals. Threads begin with different copies, so that they read different banks.
__device__ __forceinline__ void add_up(int *totals, int bins, int copies) {
    const int *const shared = reinterpret_cast<const int *>(shared_storage);
    __syncthreads();  // all keys are counted
    for (int bin = threadIdx.x; bin < bins; bin += BLOCK) {
        int sum = 0;
        int copy = (int)threadIdx.x % copies;
        for (int i = 0; i < copies; ++i) {
#ifdef PRIVATE_WARP
            sum += shared[copy * (bins + 1) + bin];
#else
            sum += shared[bin * copies + copy];
#endif
            copy = copy + 1 == copies ? 0 : copy + 1;
        }
        if (sum != 0) atomicAdd(totals + bin, sum);
    }
}
#endif

// Whether all other blocks have finished; the same for every thread of the block.
__device__ __forceinline__ bool is_last(int *ticket, int blocks) {
    int *const last = reinterpret_cast<int *>(shared_storage);
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) *last = atomicAdd(ticket, 1) == blocks - 1;
    __syncthreads();
    return *last;
}

extern "C" __global__ void __launch_bounds__(BLOCK) histogram(const int *keys, int *counts, int *totals, int *ticket,
                                                              int n, int bins) {
    const int blocks = min(BLOCKS, (n + GROUP * VEC - 1) / (GROUP * VEC));  // none without a vector per thread
    const int copies = min(COPIES, MOST_COUNTERS / (bins + 1));
#ifndef PRIVATE_NONE
    clear((bins + 1) * copies);
#endif
    Counters counters(totals, bins, copies);
    count_all(counters, keys, n, blocks);
#ifndef PRIVATE_NONE
    add_up(totals, bins, copies);
#endif
    if (!is_last(ticket, blocks)) return;
    __threadfence();
    for (int bin = threadIdx.x; bin < bins; bin += BLOCK) counts[bin] = atomicExch(totals + bin, 0);
    if (threadIdx.x == 0) totals[bins] = *ticket = 0;
}
