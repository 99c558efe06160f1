// O = softmax(Q K^T / sqrt(head_dim)) V for every head of every batch, bfloat16, forward, in the manner of
// FlashAttention-2: scores and probabilities stay on the chip, the softmax is online, and all sums are float32. Tensors
// are [batch, heads, length, head_dim], row-major, head_dim 64 or 128, for any lengths >= 1.
//
// With causal = "yes" the last query is aligned with the last key: query i sees the keys j <= i + kv_len - q_len. A row
// that sees no key is zero. Tiles that no row of a block sees are never read.
//
// A block owns BQ queries of one head, a warp BQ / WARPS of them; it walks along the keys, BK at a time.
//
//   MMA            mma: mma.sync m16n8k16; wgmma: wgmma m64nNk16 where the target has it (sm_90a), else as mma
//   BQ, BK         queries of a block, keys of a step
//   WARPS          warps of a block
//   STAGES         tiles of K or V that shared memory holds, filled by asynchronous copies in the order of their use
//   OVERLAP        1: the next scores are computed together with this step's product with V, so that the softmax of the
//                  next runs while tensor cores are busy; 0: one after another
//   Q_IN           where the queries wait: shared (memory) or registers
//   P_IN           where the probabilities become an operand: registers, or through shared memory
//   EXP            exp2: ex2.approx with the scale folded into one multiply-add; expf: expf of the scaled difference
//   LAZY           1: sums are rescaled only when a maximum has grown by a factor of more than 2^8; 0: in every step
//   VEC            elements per asynchronous copy
//   UNROLL         of the loop over steps
//   GROUP          heads whose blocks are neighbours: 1 leaves the blocks of one head together
//   LONGEST_FIRST  1: blocks of the last queries, which see the most keys if causal, come first

#include <cuda_bf16.h>

#ifdef HEAD_DIM_128
constexpr int DIM = 128;
constexpr float SCALE = 0.08838834764831845f;
#else
constexpr int DIM = 64;
constexpr float SCALE = 0.125f;
#endif
#ifdef CAUSAL_YES
constexpr bool IS_CAUSAL = true;
#else
constexpr bool IS_CAUSAL = false;
#endif
#if defined(MMA_WGMMA) && (defined(__CUDA_ARCH_FEAT_SM90_ALL) || !defined(__CUDACC__))
#define USE_WGMMA 1
#else
#define USE_WGMMA 0
#endif

typedef __nv_bfloat16 Element;

constexpr int THREADS = 32 * WARPS;
constexpr int ROW_TILES = BQ / (16 * WARPS);  // of 16 rows, per warp
constexpr int KEY_TILES = BK / 8;
constexpr int DIM_TILES = DIM / 8;
constexpr int UNROLL_STEPS = UNROLL;  // nvcc does not expand macros in #pragma unroll
constexpr float LOWEST = -3.402823466e+38f;
constexpr float LOG2_E = 1.4426950408889634f;
constexpr float PATIENCE = 8.0f;  // by how many powers of two a maximum may be outgrown if LAZY
#ifdef Q_IN_SHARED
constexpr int Q_BYTES = BQ * DIM * 2;
#else
constexpr int Q_BYTES = 0;
#endif

extern __shared__ float4 shared_storage[];

// What C++ has no words for.
#ifdef __CUDACC__

__device__ __forceinline__ void ldmatrix_x4(unsigned (&r)[4], const void *row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"((unsigned)__cvta_generic_to_shared(row))
                 : "memory");
}

__device__ __forceinline__ void ldmatrix_x4_trans(unsigned (&r)[4], const void *row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"((unsigned)__cvta_generic_to_shared(row))
                 : "memory");
}

__device__ __forceinline__ void mma_bf16(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// BYTES from global to shared memory, whenever it suits; zeros if not `inside`.
template <int BYTES>
__device__ __forceinline__ void copy_async(void *to, const void *from, bool inside) {
    const unsigned address = (unsigned)__cvta_generic_to_shared(to);
    const int source_bytes = inside ? BYTES : 0;
    if (BYTES == 16) {
        asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(address), "l"(from),
                     "r"(source_bytes)
                     : "memory");
    } else {
        asm volatile("cp.async.ca.shared.global.L2::128B [%0], [%1], %2, %3;" ::"r"(address), "l"(from),
                     "n"(BYTES < 16 ? BYTES : 8), "r"(source_bytes)
                     : "memory");
    }
}

__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }

template <int PENDING>
__device__ __forceinline__ void wait_for_copies() {
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

__device__ __forceinline__ float exp2_approximate(float x) {
    float result;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
    return result;
}

#if USE_WGMMA

// Orders what this thread has written to shared memory before later reads by tensor cores.
__device__ __forceinline__ void fence_shared_for_wgmma() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
__device__ __forceinline__ void wgmma_arrive() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

template <int PENDING>
__device__ __forceinline__ void wgmma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}

// Keeps the compiler from moving uses of registers that wgmma works on across this point.
__device__ __forceinline__ void pin(float &value) { asm volatile("" : "+f"(value)::"memory"); }
__device__ __forceinline__ void pin(unsigned &value) { asm volatile("" : "+r"(value)::"memory"); }

// Keeps ptxas from moving what a value that is never negative comes from past the next wait, where tensor cores would
// idle meanwhile: a store that never happens keeps its place.
__device__ __forceinline__ void compute_here(float value) {
    asm volatile("{\n.reg .pred p;\nsetp.lt.f32 p, %0, 0f00000000;\n@p st.shared.f32 [%1], %0;\n}\n" ::"f"(value),
                 "r"((unsigned)__cvta_generic_to_shared(shared_storage))
                 : "memory");
}

// Of an operand in shared memory with rows of 128 bytes, swizzled in units of 16; distances in bytes.
__device__ __forceinline__ unsigned long long wgmma_operand(const void *first, int leading, int stride) {
    const unsigned long long address = (unsigned)__cvta_generic_to_shared(first);
    return (address & 0x3ffff) >> 4 | (unsigned long long)(leading >> 4) << 16 |
           (unsigned long long)(stride >> 4) << 32 | 1ull << 62;
}

// d (+)= a * b: a warpgroup's 64 rows times N columns over a depth of 16. `a` is an operand in shared memory or 4
// registers of a thread; b's rows lie along the depth, or across it if TRANSPOSED. `add` 0: d is overwritten.
template <int N, int TRANSPOSED>
struct Wgmma;

#define R4(i) "+f"(d[i][0]), "+f"(d[i][1]), "+f"(d[i][2]), "+f"(d[i][3])
#define R16(i) R4(i), R4(i + 1), R4(i + 2), R4(i + 3)
#define R32(i) R16(i), R16(i + 4)
#define R64(i) R32(i), R32(i + 8)
#define N16 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define N32 N16 ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define N64                                                                                                  \
    N32 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, "  \
        "%51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"

// A to G: the numbers of the operands behind the sums.
#define WGMMA(N, SUMS, NAMES, A, B, C, D, E, F, G)                                                            \
    template <int TRANSPOSED>                                                                                 \
    struct Wgmma<N, TRANSPOSED> {                                                                             \
        static __device__ __forceinline__ void run(float (&d)[N / 8][4], unsigned long long a,                \
                                                   unsigned long long b, int add) {                           \
            asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " C ", 0;\n"                                       \
                         "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.bf16.bf16 {" NAMES "}, " A ", " B    \
                         ", p, 1, 1, 0, " D ";\n}\n"                                                          \
                         : SUMS                                                                               \
                         : "l"(a), "l"(b), "r"(add), "n"(TRANSPOSED)                                          \
                         : "memory");                                                                         \
        }                                                                                                     \
        static __device__ __forceinline__ void run(float (&d)[N / 8][4], const unsigned (&a)[4],              \
                                                   unsigned long long b, int add) {                           \
            asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " F ", 0;\n"                                       \
                         "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.bf16.bf16 {" NAMES "}, {" A ", " B   \
                         ", " C ", " D "}, " E ", p, 1, 1, " G ";\n}\n"                                       \
                         : SUMS                                                                               \
                         : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add), "n"(TRANSPOSED)      \
                         : "memory");                                                                         \
        }                                                                                                     \
    };

WGMMA(32, R16(0), N16, "%16", "%17", "%18", "%19", "%20", "%21", "%22")
WGMMA(64, R32(0), N32, "%32", "%33", "%34", "%35", "%36", "%37", "%38")
WGMMA(128, R64(0), N64, "%64", "%65", "%66", "%67", "%68", "%69", "%70")

#endif
#endif

// Where element (row, column) of a tile of ROWS x COLUMNS lies: in blocks of 64 columns (32 if there are no more), rows
// of a block side by side, their 16-byte units permuted such that 8 rows at one column lie in different banks.
template <int ROWS, int COLUMNS>
__device__ __forceinline__ int place(int row, int column) {
    constexpr int WIDTH = COLUMNS < 64 ? COLUMNS : 64;
    constexpr int UNITS = WIDTH / 8;
    const int unit = column / 8 % UNITS ^ row / (8 / UNITS) % UNITS;
    return column / WIDTH * (ROWS * WIDTH) + row * WIDTH + unit * 8 + column % 8;
}

// The place that lies `row`, a multiple of 8, and `column`, a multiple of 8 or 16, beyond `from`, which lies in the
// first 8 or 16 columns. What is only known when a thread runs is in `from` alone.
template <int ROWS, int COLUMNS>
__device__ __forceinline__ int beyond(int from, int row, int column) {
    constexpr int WIDTH = COLUMNS < 64 ? COLUMNS : 64;
    return (from ^ column % WIDTH) + column / WIDTH * (ROWS * WIDTH) + row * WIDTH;
}

// One head's rows of a tensor, and whether they can be read VEC elements at a time.
struct Rows {
    const Element *data;
    int count;
    bool aligned;

    __device__ __forceinline__ Rows(const Element *tensor, size_t head, int count)
        : data(tensor + head * count * DIM), count(count), aligned((size_t)tensor % (2 * VEC) == 0) {}
};

// Starts copying rows first … first + ROWS; zeros past the last one. A thread has one column of every AT_ONCE-th row.
template <int ROWS>
__device__ __forceinline__ void copy_rows(Element *tile, const Rows &from, int first) {
    constexpr int PER_ROW = DIM / VEC;
    constexpr int AT_ONCE = THREADS / PER_ROW;
    const int own = threadIdx.x / PER_ROW, column = threadIdx.x % PER_ROW * VEC;
    const int left = from.count - first - own;
    const Element *source = from.data + (size_t)first * DIM + threadIdx.x * VEC;
    if (from.aligned) {
#pragma unroll
        for (int start = 0; start < ROWS; start += AT_ONCE) {
            if (ROWS % AT_ONCE != 0 && start + own >= ROWS) break;
            const int at = AT_ONCE % 8 == 0 ? place<ROWS, DIM>(own, column) + start * 64
                                            : place<ROWS, DIM>(start + own, column);
            copy_async<2 * VEC>(tile + at, source + start * DIM, start < left);
        }
    } else {
#pragma unroll 1
        for (int start = 0; start + own < ROWS; start += AT_ONCE) {
#pragma unroll 1
            for (int i = 0; i < VEC; ++i) {
                tile[place<ROWS, DIM>(start + own, column + i)] =
                    start < left ? source[start * DIM + i] : __float2bfloat16(0.0f);
            }
        }
    }
}

__device__ __forceinline__ unsigned packed(float low, float high) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return *reinterpret_cast<const unsigned *>(&pair);
}

// Of the block: which head of which batch, and which queries.
struct Place {
    int head, first_query;

    __device__ __forceinline__ Place(int all_heads, int q_len) {
        const int tiles = (q_len + BQ - 1) / BQ;
        const int group = blockIdx.x / (GROUP * tiles);
        const int within = blockIdx.x - group * (GROUP * tiles);
        const int size = all_heads - group * GROUP < GROUP ? all_heads - group * GROUP : GROUP;
        const int tile = within / size;
        head = group * GROUP + within % size;
        first_query = (LONGEST_FIRST ? tiles - 1 - tile : tile) * BQ;
    }
};

// The position of a thread's elements in a tile of sums: rows row and row + 8, columns column and column + 1.
__device__ __forceinline__ int lane_row() { return threadIdx.x % 32 / 4; }
__device__ __forceinline__ int lane_column() { return threadIdx.x % 4 * 2; }

// The first of the 16 rows of the block that a warp's tile has. Four warps share 64 rows of a wgmma.
__device__ __forceinline__ int tile_row(int tile) {
    const int warp = threadIdx.x / 32;
#if USE_WGMMA
    return (warp / 4 * ROW_TILES + tile) * 64 + warp % 4 * 16;
#else
    return (warp * ROW_TILES + tile) * 16;
#endif
}

typedef float Scores[ROW_TILES][KEY_TILES][4];
typedef float Sums[ROW_TILES][DIM_TILES][4];
typedef float PerRow[ROW_TILES][2];
typedef unsigned Probabilities[ROW_TILES][BK / 16][4];  // as the left operand of a product

// The queries of a warp as a left operand.
struct Queries {
#ifdef Q_IN_SHARED
    const Element *tile;

    __device__ __forceinline__ Queries(Element *tile, const Rows &from, int first) : tile(tile) {
        copy_rows<BQ>(tile, from, first);
    }

    __device__ __forceinline__ void load(unsigned (&a)[4], int row_tile, int step) const {
        const int lane = threadIdx.x % 32;
        const int own = place<BQ, DIM>(tile_row(0) + lane % 16, lane / 16 * 8);
        ldmatrix_x4(a, tile + beyond<BQ, DIM>(own, row_tile * 16, step * 16));
    }
#else
    unsigned fragments[ROW_TILES][DIM / 16][4];

    __device__ __forceinline__ Queries(Element *, const Rows &from, int first) {
#pragma unroll
        for (int t = 0; t < ROW_TILES; ++t) {
#pragma unroll
            for (int i = 0; i < DIM / 4; ++i) {
                const int row = first + tile_row(t) + lane_row() + i % 2 * 8;
                const int column = i / 4 * 16 + i / 2 % 2 * 8 + lane_column();
                fragments[t][i / 4][i % 4] = row < from.count ? pair(from, row, column) : 0;
            }
        }
    }

    __device__ __forceinline__ static unsigned pair(const Rows &from, int row, int column) {
        const Element *at = from.data + (size_t)row * DIM + column;
        if (from.aligned) return *reinterpret_cast<const unsigned *>(at);
        return packed(__bfloat162float(at[0]), __bfloat162float(at[1]));
    }

    __device__ __forceinline__ void load(unsigned (&a)[4], int row_tile, int step) const {
#pragma unroll
        for (int i = 0; i < 4; ++i) a[i] = fragments[row_tile][step][i];
    }
#endif
};

#if USE_WGMMA

template <int TILES>
__device__ __forceinline__ void pin(float (&sums)[ROW_TILES][TILES][4]) {
#pragma unroll
    for (int i = 0; i < ROW_TILES * TILES * 4; ++i) pin(sums[i / (4 * TILES)][i / 4 % TILES][i % 4]);
}

__device__ __forceinline__ void pin(Probabilities &p) {
#pragma unroll
    for (int i = 0; i < ROW_TILES * BK / 4; ++i) pin(p[i / (BK / 4)][i / 4 % (BK / 16)][i % 4]);
}

// Starts s = queries * keys^T.
__device__ __forceinline__ void start_scores(Scores &s, const Queries &queries, const Element *keys) {
    pin(s);
    wgmma_arrive();
#pragma unroll
    for (int step = 0; step < DIM / 16; ++step) {
        const unsigned long long b = wgmma_operand(keys + step / 4 * (BK * 64) + step % 4 * 16, 16, 1024);
#pragma unroll
        for (int t = 0; t < ROW_TILES; ++t) {
#ifdef Q_IN_SHARED
            const int row = (threadIdx.x / 128 * ROW_TILES + t) * 64;
            const Element *first = queries.tile + step / 4 * (BQ * 64) + row * 64 + step % 4 * 16;
            Wgmma<BK, 0>::run(s[t], wgmma_operand(first, 16, 1024), b, step > 0);
#else
            Wgmma<BK, 0>::run(s[t], queries.fragments[t][step], b, step > 0);
#endif
        }
    }
    wgmma_commit();
}

// Starts o += p * values.
__device__ __forceinline__ void start_product(Sums &o, Probabilities &p, const Element *values) {
    pin(o);
    pin(p);
    wgmma_arrive();
#pragma unroll
    for (int step = 0; step < BK / 16; ++step) {
        const unsigned long long b = wgmma_operand(values + step * (16 * 64), BK * 128, 1024);
#pragma unroll
        for (int t = 0; t < ROW_TILES; ++t) Wgmma<DIM, 1>::run(o[t], p[t][step], b, 1);
    }
    wgmma_commit();
}

template <int PENDING>
__device__ __forceinline__ void finish_scores(Scores &s) {
    wgmma_wait<PENDING>();
    pin(s);
}

__device__ __forceinline__ void finish_product(Sums &o, Probabilities &p) {
    wgmma_wait<0>();
    pin(o);
    pin(p);
}

__device__ __forceinline__ void finish_before_wait(const PerRow &sum) {
    float total = 0.0f;
#pragma unroll
    for (int i = 0; i < 2 * ROW_TILES; ++i) total += sum[i / 2][i % 2];
    compute_here(total);
}

#else

__device__ __forceinline__ void start_scores(Scores &s, const Queries &queries, const Element *keys) {
    const int lane = threadIdx.x % 32;
    const int own = place<BK, DIM>(lane / 16 * 8 + lane % 8, lane / 8 % 2 * 8);
#pragma unroll
    for (int i = 0; i < ROW_TILES * BK / 2; ++i) s[i / (BK / 2)][i / 4 % KEY_TILES][i % 4] = 0.0f;
#pragma unroll
    for (int step = 0; step < DIM / 16; ++step) {
        unsigned a[ROW_TILES][4];
#pragma unroll
        for (int t = 0; t < ROW_TILES; ++t) queries.load(a[t], t, step);
#pragma unroll
        for (int j = 0; j < BK / 16; ++j) {
            unsigned b[4];
            ldmatrix_x4(b, keys + beyond<BK, DIM>(own, j * 16, step * 16));
            const unsigned low[2] = {b[0], b[1]}, high[2] = {b[2], b[3]};
#pragma unroll
            for (int t = 0; t < ROW_TILES; ++t) {
                mma_bf16(s[t][2 * j], a[t], low);
                mma_bf16(s[t][2 * j + 1], a[t], high);
            }
        }
    }
}

__device__ __forceinline__ void start_product(Sums &o, Probabilities &p, const Element *values) {
    const int lane = threadIdx.x % 32;
    const int own = place<BK, DIM>(lane % 16, lane / 16 * 8);
#ifdef P_IN_SHARED
    char *shared = reinterpret_cast<char *>(shared_storage);
    Element *tile = reinterpret_cast<Element *>(shared + Q_BYTES) + STAGES * BK * DIM;
    const int to = place<BQ, BK>(tile_row(0) + lane_row(), lane_column());
    const int from = place<BQ, BK>(tile_row(0) + lane % 16, lane / 16 * 8);
    __syncwarp();  // the warp has read what it stored before
#pragma unroll
    for (int i = 0; i < ROW_TILES * BK / 4; ++i) {
        const int t = i / (BK / 4), step = i / 4 % (BK / 16);
        const int at = beyond<BQ, BK>(to, t * 16 + i % 2 * 8, step * 16 + i / 2 % 2 * 8);
        *reinterpret_cast<unsigned *>(tile + at) = p[t][step][i % 4];
    }
    __syncwarp();
#endif
#pragma unroll
    for (int step = 0; step < BK / 16; ++step) {
#ifdef P_IN_SHARED
        unsigned a[ROW_TILES][4];
#pragma unroll
        for (int t = 0; t < ROW_TILES; ++t) {
            ldmatrix_x4(a[t], tile + beyond<BQ, BK>(from, t * 16, step * 16));
        }
#endif
#pragma unroll
        for (int j = 0; j < DIM / 16; ++j) {
            unsigned b[4];
            ldmatrix_x4_trans(b, values + beyond<BK, DIM>(own, step * 16, j * 16));
            const unsigned low[2] = {b[0], b[1]}, high[2] = {b[2], b[3]};
#pragma unroll
            for (int t = 0; t < ROW_TILES; ++t) {
#ifdef P_IN_SHARED
                mma_bf16(o[t][2 * j], a[t], low);
                mma_bf16(o[t][2 * j + 1], a[t], high);
#else
                mma_bf16(o[t][2 * j], p[t][step], low);
                mma_bf16(o[t][2 * j + 1], p[t][step], high);
#endif
            }
        }
    }
}

template <int PENDING>
__device__ __forceinline__ void finish_scores(Scores &) {}

__device__ __forceinline__ void finish_product(Sums &, Probabilities &) {}

__device__ __forceinline__ void finish_before_wait(const PerRow &) {}

#endif

// exp((score - maximum) / sqrt(DIM)); 0 for a score of -inf.
__device__ __forceinline__ float exponential(float score, float maximum) {
#ifdef EXP_EXP2
    return exp2_approximate(fmaf(score, SCALE * LOG2_E, -maximum * (SCALE * LOG2_E)));
#else
    return expf(SCALE * (score - maximum));
#endif
}

__device__ __forceinline__ float of_four_lanes_largest(float value) {
    value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, 1));
    return fmaxf(value, __shfl_xor_sync(0xffffffffu, value, 2));
}

__device__ __forceinline__ float of_four_lanes_sum(float value) {
    value += __shfl_xor_sync(0xffffffffu, value, 1);
    return value + __shfl_xor_sync(0xffffffffu, value, 2);
}

// Scores of keys that a query does not see become -inf. Most tiles have none, for all rows of the block.
__device__ __forceinline__ void mask(Scores &s, int first_key, int first_query, int q_len, int kv_len) {
    const int ahead = kv_len - q_len;
    const int seen_by_all = IS_CAUSAL && first_query + ahead + 1 < kv_len ? first_query + ahead + 1 : kv_len;
    if (first_key + BK <= seen_by_all) return;
#pragma unroll
    for (int t = 0; t < ROW_TILES; ++t) {
        const int row = first_query + tile_row(t) + lane_row();
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int end = IS_CAUSAL && row + 8 * half + ahead + 1 < kv_len ? row + 8 * half + ahead + 1 : kv_len;
            const int left = end - first_key - lane_column();
#pragma unroll
            for (int i = 0; i < BK / 4; ++i) {
                if (i / 2 * 8 + i % 2 >= left) s[t][i / 2][2 * half + i % 2] = __int_as_float(0xff800000);
            }
        }
    }
}

// Scores become probabilities relative to a maximum so far; `factor` is what turns sums so far into such.
__device__ __forceinline__ void update(Scores &s, PerRow &maximum, PerRow &sum, PerRow &factor) {
#pragma unroll
    for (int t = 0; t < ROW_TILES; ++t) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            float largest = maximum[t][half];
#pragma unroll
            for (int j = 0; j < KEY_TILES; ++j) {
                largest = fmaxf(largest, fmaxf(s[t][j][2 * half], s[t][j][2 * half + 1]));
            }
            largest = of_four_lanes_largest(largest);
            if (LAZY && (largest - maximum[t][half]) * (SCALE * LOG2_E) <= PATIENCE) largest = maximum[t][half];
            factor[t][half] = exponential(maximum[t][half], largest);
            maximum[t][half] = largest;
            float even = 0.0f, odd = 0.0f;
#pragma unroll
            for (int j = 0; j < KEY_TILES; ++j) {
                even += s[t][j][2 * half] = exponential(s[t][j][2 * half], largest);
                odd += s[t][j][2 * half + 1] = exponential(s[t][j][2 * half + 1], largest);
            }
            sum[t][half] = sum[t][half] * factor[t][half] + (even + odd);
        }
    }
}

__device__ __forceinline__ void rescale(Sums &o, const PerRow &factor) {
#if LAZY
    bool changed = false;
#pragma unroll
    for (int t = 0; t < ROW_TILES; ++t) changed = changed || factor[t][0] != 1.0f || factor[t][1] != 1.0f;
    if (!__any_sync(0xffffffffu, changed)) return;
#endif
#pragma unroll
    for (int i = 0; i < ROW_TILES * DIM / 2; ++i) {
        o[i / (DIM / 2)][i / 4 % DIM_TILES][i % 4] *= factor[i / (DIM / 2)][i / 2 % 2];
    }
}

__device__ __forceinline__ void pack(Probabilities &p, const Scores &s) {
#pragma unroll
    for (int t = 0; t < ROW_TILES; ++t) {
#pragma unroll
        for (int i = 0; i < BK / 4; ++i) {
            const float *pair = &s[t][i / 2][i % 2 * 2];
            p[t][i / 4][i % 4] = packed(pair[0], pair[1]);
        }
    }
}

__device__ __forceinline__ void store(Element *to, int first, int q_len, const Sums &o, const PerRow &sum) {
    const bool aligned = (size_t)to % 4 == 0;
#pragma unroll
    for (int t = 0; t < ROW_TILES; ++t) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const float total = of_four_lanes_sum(sum[t][half]);
            const float factor = total > 0.0f ? 1.0f / total : 0.0f;
            const int row = first + tile_row(t) + lane_row() + 8 * half;
            if (row >= q_len) continue;
            Element *at = to + (size_t)row * DIM + lane_column();
#pragma unroll
            for (int j = 0; j < DIM_TILES; ++j) {
                const float low = o[t][j][2 * half] * factor, high = o[t][j][2 * half + 1] * factor;
                if (aligned) {
                    *reinterpret_cast<unsigned *>(at + 8 * j) = packed(low, high);
                } else {
                    at[8 * j] = __float2bfloat16(low);
                    at[8 * j + 1] = __float2bfloat16(high);
                }
            }
        }
    }
}

// Tiles of K and V on their way through STAGES places in shared memory, numbered in the order of their use:
// K0 V0 K1 V1 … or, with OVERLAP, K0 (K1 V0) (K2 V1) … (none Vlast).
struct Stream {
    Element *places;
    Rows keys, values;
    int steps;

    __device__ __forceinline__ Element *at(int number) const { return places + number % STAGES * (BK * DIM); }

    // Starts copying; one group even if there is nothing to copy.
    __device__ __forceinline__ void fetch(int number) const {
        const bool is_key = OVERLAP ? number == 0 || number % 2 == 1 : number % 2 == 0;
        const int step = OVERLAP ? (is_key ? (number + 1) / 2 : number / 2 - 1) : number / 2;
        if (step < steps) copy_rows<BK>(at(number), is_key ? keys : values, step * BK);
        commit_copies();
    }

    // All but the last PENDING copies have arrived for all threads, and all have finished with what came before.
    template <int PENDING>
    __device__ __forceinline__ static void wait() {
        wait_for_copies<PENDING>();
#if USE_WGMMA
        fence_shared_for_wgmma();
#endif
        __syncthreads();
    }
};

extern "C" __global__ void __launch_bounds__(THREADS)
    attention(const Element *Q, const Element *K, const Element *V, Element *O, int all_heads, int q_len, int kv_len) {
    char *shared = reinterpret_cast<char *>(shared_storage);
#ifdef MMA_WGMMA
    shared += (1024 - (size_t)shared % 1024) % 1024;  // swizzled operands begin where the pattern does
#endif
    const Place place_of_block(all_heads, q_len);
    const int first = place_of_block.first_query, head = place_of_block.head;

    // Steps: as many as the last query of the block needs, and one for rows that see nothing.
    const int last = (first + BQ < q_len ? first + BQ : q_len) - 1;
    const int seen = IS_CAUSAL && last + kv_len - q_len + 1 < kv_len ? last + kv_len - q_len + 1 : kv_len;
    const int steps = seen > BK ? (seen + BK - 1) / BK : 1;

    const Stream stream = {reinterpret_cast<Element *>(shared + Q_BYTES), Rows(K, head, kv_len), Rows(V, head, kv_len),
                           steps};
    const Queries queries(reinterpret_cast<Element *>(shared), Rows(Q, head, q_len), first);
#pragma unroll
    for (int number = 0; number < STAGES - 1; ++number) stream.fetch(number);

    Scores s = {};
    Sums o = {};
    Probabilities p = {};
    PerRow maximum, sum, factor;
#pragma unroll
    for (int i = 0; i < 2 * ROW_TILES; ++i) {
        maximum[i / 2][i % 2] = LOWEST;
        sum[i / 2][i % 2] = 0.0f;
    }

#if OVERLAP
    Stream::wait<STAGES - 2>();
    start_scores(s, queries, stream.at(0));
    finish_scores<0>(s);
    mask(s, 0, first, q_len, kv_len);
    update(s, maximum, sum, factor);
    pack(p, s);
#pragma unroll UNROLL_STEPS
    for (int step = 1; step < steps; ++step) {
        Stream::wait<STAGES - 4>();
        stream.fetch(2 * step + STAGES - 3);
        stream.fetch(2 * step + STAGES - 2);
        start_scores(s, queries, stream.at(2 * step - 1));
        start_product(o, p, stream.at(2 * step));
        finish_scores<1>(s);
        mask(s, step * BK, first, q_len, kv_len);
        update(s, maximum, sum, factor);
        finish_before_wait(sum);
        finish_product(o, p);
        rescale(o, factor);
        pack(p, s);
    }
    Stream::wait<0>();
    start_product(o, p, stream.at(2 * steps));
    finish_product(o, p);
#else
#pragma unroll UNROLL_STEPS
    for (int step = 0; step < steps; ++step) {
        Stream::wait<STAGES - 2>();
        stream.fetch(2 * step + STAGES - 1);
        start_scores(s, queries, stream.at(2 * step));
        finish_scores<0>(s);
        mask(s, step * BK, first, q_len, kv_len);
        update(s, maximum, sum, factor);
        rescale(o, factor);
        pack(p, s);
        Stream::wait<STAGES - 2>();
        stream.fetch(2 * step + STAGES);
        start_product(o, p, stream.at(2 * step + 1));
        finish_product(o, p);
    }
    wait_for_copies<0>();
#endif
    store(O + (size_t)head * q_len * DIM, first, q_len, o, sum);
}
