// C[m, n] = A[m, k] * B[k, n] in float16 or bfloat16, summed in float32, for any m, n, k >= 1. A and B are row- or
// column-major (A_LAYOUT, B_LAYOUT), C is row-major. Rows of a length that is no multiple of VEC are loaded by element.
//
// A block of threads owns a BM x BN tile of C and walks along k in steps of BK: asynchronous copies fill STAGES buffers
// while tensor cores multiply. A team owns WM x WN of the tile; its sums are in registers.
//
//   MMA        mma: a team is a warp, operands pass through registers (ldmatrix, mma.sync.m16n8k16);
//              wgmma: a team is a warpgroup, operands are read from shared memory (wgmma.m64nWNk16, sm_90a; elsewhere
//              its four warps do the same by mma.sync)
//   IN_FLIGHT  1: the products of a step may still run when those of the next are issued, which takes one stage from
//              the copies; 0: they are waited for (wgmma only)
//   VEC        elements per copy from global to shared memory
//   LAYOUT     of shared memory, against bank conflicts. swizzled: 16-byte chunks of a line change places;
//              padded: lines are 16 bytes longer
//   UNROLL     steps of 16 along k unrolled together (mma only: those of wgmma always are)
//   GROUP      blocks go down GROUP tile rows before they go on to the next tile column, for the sake of L2
//   SPLIT_K    blocks that share a tile of C, each with its part of k; the last one to finish adds up. Where C is so
//              large that their sums do not fit the workspace (`room` floats) one of them does it all
//   STORE      direct: from registers to C; shared: through shared memory, for whole lines

#ifdef MMA_WGMMA
constexpr int TEAM = 128;
constexpr int FRAGMENT_ROWS = 64;  // of a team: every warp has 16 of them
#else
constexpr int TEAM = 32;
constexpr int FRAGMENT_ROWS = 16;
#endif
#if defined(MMA_WGMMA) && defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define WARPGROUPS_MULTIPLY 1
#else
#define WARPGROUPS_MULTIPLY 0
#endif

constexpr int TEAMS_N = BN / WN;
constexpr int THREADS = BM / WM * TEAMS_N * TEAM;
constexpr int FRAGMENTS = WM / FRAGMENT_ROWS;  // along m
constexpr int SUMS = WN / 2;                   // a thread's in each: four of every 16 x 8
constexpr int AHEAD = STAGES - 1 - (WARPGROUPS_MULTIPLY ? IN_FLIGHT : 0);  // steps that copies are ahead of products
#if !WARPGROUPS_MULTIPLY
constexpr int UNROLL_K = UNROLL;  // nvcc does not expand macros in #pragma unroll
#endif

typedef unsigned short Element;  // the bits of a float16 or bfloat16

extern __shared__ float4 shared_storage[];

#ifdef __CUDACC__
// One hardware instruction each.

__device__ __forceinline__ unsigned shared_address(const void *pointer) {
    return (unsigned)__cvta_generic_to_shared(pointer);
}

// BYTES bytes to shared memory: those at `from`, or zeros, and then nothing is read.
template <int BYTES>
__device__ __forceinline__ void copy_async(void *to, const void *from, bool inside) {
    const int source_bytes = inside ? BYTES : 0;
    if constexpr (BYTES == 16) {
        asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from),
                     "r"(source_bytes)
                     : "memory");
    } else {
        asm volatile("cp.async.ca.shared.global.L2::128B [%0], [%1], %2, %3;" ::"r"(shared_address(to)), "l"(from),
                     "n"(BYTES), "r"(source_bytes)
                     : "memory");
    }
}

__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }

template <int PENDING>
__device__ __forceinline__ void wait_for_copies() {
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

__device__ __forceinline__ void store_chunk(void *to, const uint4 &chunk) { *reinterpret_cast<uint4 *>(to) = chunk; }

// Two floats, rounded; `low` comes first in memory.
__device__ __forceinline__ unsigned rounded_pair(float low, float high) {
    unsigned pair;
#ifdef DTYPE_FLOAT16
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
#else
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
#endif
    return pair;
}

__device__ __forceinline__ void ldmatrix_x4(unsigned (&r)[4], const void *row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(row))
                 : "memory");
}

__device__ __forceinline__ void ldmatrix_x4_trans(unsigned (&r)[4], const void *row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(row))
                 : "memory");
}

#ifdef DTYPE_FLOAT16
#define TYPE "f16"
#define mma_of_type mma_f16
#else
#define TYPE "bf16"
#define mma_of_type mma_bf16
#endif

// d += a * b
__device__ __forceinline__ void mma_of_type(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." TYPE "." TYPE
                 ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

#if WARPGROUPS_MULTIPLY

// What has been written to shared memory becomes visible to wgmma.
__device__ __forceinline__ void fence_async_proxy() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

template <int PENDING>
__device__ __forceinline__ void wgmma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}

// Keeps the compiler from moving what defines or uses a sum across this point.
__device__ __forceinline__ void pin(float &sum) { asm volatile("" : "+f"(sum)::"memory"); }

#define D4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define D16(i) D4(i), D4(i + 4), D4(i + 8), D4(i + 12)
#define D32(i) D16(i), D16(i + 16)
#define NAMES_0 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
#define NAMES_16 "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define NAMES_32 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,"
#define NAMES_48 "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define NAMES_64 ",%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,"
#define NAMES_80 "%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95"
#define NAMES_96 ",%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111,"
#define NAMES_112 "%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127"

#if WN == 64
#define WGMMA_N "n64"
#define SUM_NAMES NAMES_0 NAMES_16
#define SUM_OPERANDS D32(0)
#define DESCRIPTORS "%32, %33"
#elif WN == 128
#define WGMMA_N "n128"
#define SUM_NAMES NAMES_0 NAMES_16 NAMES_32 NAMES_48
#define SUM_OPERANDS D32(0), D32(32)
#define DESCRIPTORS "%64, %65"
#elif WN == 192
#define WGMMA_N "n192"
#define SUM_NAMES NAMES_0 NAMES_16 NAMES_32 NAMES_48 NAMES_64 NAMES_80
#define SUM_OPERANDS D32(0), D32(32), D32(64)
#define DESCRIPTORS "%96, %97"
#else
#define WGMMA_N "n256"
#define SUM_NAMES NAMES_0 NAMES_16 NAMES_32 NAMES_48 NAMES_64 NAMES_80 NAMES_96 NAMES_112
#define SUM_OPERANDS D32(0), D32(32), D32(64), D32(96)
#define DESCRIPTORS "%128, %129"
#endif

// Whether lines in shared memory run along m or n, and not along k.
#ifdef A_LAYOUT_COLUMN
#define A_ALONG_M "1"
#else
#define A_ALONG_M "0"
#endif
#ifdef B_LAYOUT_COLUMN
#define B_ALONG_N "0"
#else
#define B_ALONG_N "1"
#endif

// d += a * b for 64 x 16 and 16 x WN elements in shared memory; begins, and is waited for later.
__device__ __forceinline__ void wgmma(float (&d)[SUMS], unsigned long long a, unsigned long long b) {
    asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, 1, 0;\nwgmma.mma_async.sync.aligned.m64" WGMMA_N "k16.f32." TYPE
                 "." TYPE " {" SUM_NAMES "}, " DESCRIPTORS ", add, 1, 1, " A_ALONG_M ", " B_ALONG_N ";\n}"
                 : SUM_OPERANDS
                 : "l"(a), "l"(b));
}

#endif
#endif

#ifdef DTYPE_FLOAT16
#define MULTIPLY_FRAGMENTS mma_f16
#else
#define MULTIPLY_FRAGMENTS mma_bf16
#endif

// A tile in shared memory: lines of elements that are neighbours in global memory too. Swizzled lines are cut into
// panels of up to 64 elements (the widest swizzle of wgmma, 128 bytes), which lie one after another.
template <int TILE_LINES, int TILE_WIDTH>
struct Tile {
    static constexpr int LINES = TILE_LINES;
    static constexpr int WIDTH = TILE_WIDTH;
#ifdef LAYOUT_SWIZZLED
    static constexpr int PANEL = WIDTH % 64 == 0 ? 64 : (WIDTH % 32 == 0 ? 32 : 16);
    static constexpr int CHUNKS = PANEL / 8;  // of 16 bytes
    static constexpr int PANEL_BYTES = 2 * LINES * PANEL;
    static constexpr int BYTES = 2 * LINES * WIDTH;
    static constexpr int LINE_BYTES = 2 * PANEL;
    static constexpr int PERIOD = 8;  // lines after which chunks are in the same order

    // Where a chunk would be if it had kept its place. `column` is a multiple of 8.
    static __device__ __forceinline__ int unswizzled(int line, int column) {
        return column / PANEL * PANEL_BYTES + 2 * (line * PANEL + column % PANEL);
    }

    // In every 1024 (512, 256) bytes the address of a chunk is exclusive-ored with the bits above: no two of eight
    // lines have the same column in the same banks.
    static __device__ __forceinline__ int offset(int line, int column) {
        const int chunk = column % PANEL / 8 ^ line / (8 / CHUNKS) % CHUNKS;
        return column / PANEL * PANEL_BYTES + 2 * (line * PANEL + chunk * 8 + column % 8);
    }
#else
    static constexpr int LINE_BYTES = 2 * WIDTH + 16;
    static constexpr int PERIOD = 1;
    static constexpr int BYTES = LINES * LINE_BYTES;

    static __device__ __forceinline__ int offset(int line, int column) { return line * LINE_BYTES + 2 * column; }
#endif
};

#ifdef A_LAYOUT_COLUMN
typedef Tile<BK, BM> ATile;
#else
typedef Tile<BM, BK> ATile;
#endif
#ifdef B_LAYOUT_COLUMN
typedef Tile<BN, BK> BTile;
#else
typedef Tile<BK, BN> BTile;
#endif
constexpr int STAGE_BYTES = ATile::BYTES + BTile::BYTES;

// An operand in global memory: `lines` lines of `width` elements.
struct Matrix {
    const Element *data;
    int lines, width;
    bool aligned;  // every line begins at a multiple of VEC elements, and so ends at one

    __device__ Matrix(const Element *data, int lines, int width)
        : data(data), lines(lines), width(width), aligned(width % VEC == 0 && (size_t)data % (2 * VEC) == 0) {}

    __device__ __forceinline__ bool contains(int line, int column) const { return line < lines && column < width; }

    __device__ __forceinline__ const Element *at(int line, int column) const {
        return data + (size_t)line * width + column;
    }

    __device__ __forceinline__ unsigned element(int line, int column) const {
        return contains(line, column) ? *at(line, column) : 0;
    }

    __device__ __forceinline__ unsigned pair(int line, int column) const {
        return element(line, column) | element(line, column + 1) << 16;
    }
};

// Begins to copy the part of a matrix at (line, column) into a tile; zeros outside the matrix.
template <typename To>
__device__ __forceinline__ void copy_tile(char *tile, const Matrix &from, int line, int column) {
    if (from.aligned) {
        constexpr int PER_LINE = To::WIDTH / VEC;
        constexpr int COPIES = To::LINES * PER_LINE;
        constexpr bool SAME_COLUMN = THREADS % PER_LINE == 0;     // for all copies of a thread
        constexpr int LINES = SAME_COLUMN ? THREADS / PER_LINE : 1;  // from one of them to the next
        const int y = threadIdx.x / PER_LINE, x = threadIdx.x % PER_LINE * VEC;
        const Element *source = from.at(line + y, column + x);
        char *to = tile + To::offset(y, x);
        const int lines = column + x < from.width ? from.lines - line - y : 0;  // that are inside
#pragma unroll
        for (int i = 0; i < (COPIES + THREADS - 1) / THREADS; ++i) {
            const int copy = threadIdx.x + i * THREADS;
            if (COPIES % THREADS != 0 && copy >= COPIES) break;
            if constexpr (SAME_COLUMN) {
                constexpr bool SAME_PLACE = LINES % To::PERIOD == 0;  // in their lines
                copy_async<2 * VEC>(SAME_PLACE ? to + i * LINES * To::LINE_BYTES : tile + To::offset(y + i * LINES, x),
                                    source + (size_t)(i * LINES) * from.width, i * LINES < lines);
            } else {
                const int other_y = copy / PER_LINE, other_x = copy % PER_LINE * VEC;
                copy_async<2 * VEC>(tile + To::offset(other_y, other_x), from.at(line + other_y, column + other_x),
                                    from.contains(line + other_y, column + other_x));
            }
        }
    } else {
        constexpr int PER_LINE = To::WIDTH / 8;
#pragma unroll 1
        for (int chunk = threadIdx.x; chunk < To::LINES * PER_LINE; chunk += THREADS) {
            const int y = chunk / PER_LINE, x = chunk % PER_LINE * 8;
            uint4 values;
            values.x = from.pair(line + y, column + x);
            values.y = from.pair(line + y, column + x + 2);
            values.z = from.pair(line + y, column + x + 4);
            values.w = from.pair(line + y, column + x + 6);
            store_chunk(tile + To::offset(y, x), values);
        }
    }
}

// A thread's place among those that share a tile of C.
struct Place {
    int row, column;  // of its team's part of the tile

    __device__ Place() {
        const int team = __shfl_sync(0xffffffffu, (int)threadIdx.x / TEAM, 0);  // known to be the same in a warp
        row = team / TEAMS_N * WM;
        column = team % TEAMS_N * WN;
    }

    // Fragment i of the thread's warp begins at this row of the tile.
    __device__ __forceinline__ int fragment_row(int i) const {
        return row + i * FRAGMENT_ROWS + threadIdx.x % TEAM / 32 * 16;
    }
};

#if WARPGROUPS_MULTIPLY

// What wgmma is told about the elements at (line, column) of a tile: the swizzle, how far apart groups of eight lines
// are, and how far apart panels are if an operand is more than one of them wide.
template <typename From>
__device__ __forceinline__ unsigned long long descriptor(const char *tile, int line, int column) {
    constexpr unsigned long long SWIZZLE = From::PANEL == 64 ? 1 : (From::PANEL == 32 ? 2 : 3);
    constexpr unsigned long long EIGHT_LINES = 16 * From::PANEL;
    constexpr unsigned long long NEXT_PANEL = From::PANEL_BYTES;
    constexpr unsigned long long LAYOUT = SWIZZLE << 62 | EIGHT_LINES / 16 << 32 | NEXT_PANEL / 16 << 16;
    return LAYOUT | (shared_address(tile) + From::unswizzled(line, column)) / 16;
}

__device__ __forceinline__ void pin_all(float (&sum)[FRAGMENTS][SUMS]) {
#pragma unroll
    for (int i = 0; i < FRAGMENTS * SUMS; ++i) pin(sum[i / SUMS][i % SUMS]);
}

// Begins to add the products of a step.
__device__ __forceinline__ void multiply(const char *a_tile, const char *b_tile, const Place &place,
                                         float (&sum)[FRAGMENTS][SUMS]) {
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < BK; step += 16) {
#ifdef B_LAYOUT_COLUMN
        const unsigned long long b = descriptor<BTile>(b_tile, place.column, step);
#else
        const unsigned long long b = descriptor<BTile>(b_tile, step, place.column);
#endif
#pragma unroll
        for (int i = 0; i < FRAGMENTS; ++i) {
#ifdef A_LAYOUT_COLUMN
            wgmma(sum[i], descriptor<ATile>(a_tile, step, place.row + i * 64), b);
#else
            wgmma(sum[i], descriptor<ATile>(a_tile, place.row + i * 64, step), b);
#endif
        }
    }
    wgmma_commit();
}

#else

// 16 x 16 elements of A at (row, step).
__device__ __forceinline__ void load_a(unsigned (&a)[4], const char *tile, int row, int step) {
    const int lane = threadIdx.x % 32;
#ifdef A_LAYOUT_COLUMN
    ldmatrix_x4_trans(a, tile + ATile::offset(step + lane % 8 + lane / 16 * 8, row + lane / 8 % 2 * 8));
#else
    ldmatrix_x4(a, tile + ATile::offset(row + lane % 16, step + lane / 16 * 8));
#endif
}

// 16 x 16 elements of B at (step, column): two operands of 16 x 8.
__device__ __forceinline__ void load_b(unsigned (&b)[4], const char *tile, int step, int column) {
    const int lane = threadIdx.x % 32;
#ifdef B_LAYOUT_COLUMN
    ldmatrix_x4(b, tile + BTile::offset(column + lane % 8 + lane / 16 * 8, step + lane / 8 % 2 * 8));
#else
    ldmatrix_x4_trans(b, tile + BTile::offset(step + lane % 16, column + lane / 16 * 8));
#endif
}

__device__ __forceinline__ void multiply(const char *a_tile, const char *b_tile, const Place &place,
                                         float (&sum)[FRAGMENTS][SUMS]) {
#pragma unroll UNROLL_K
    for (int step = 0; step < BK; step += 16) {
        unsigned a[FRAGMENTS][4];
#pragma unroll
        for (int i = 0; i < FRAGMENTS; ++i) load_a(a[i], a_tile, place.fragment_row(i), step);
#pragma unroll
        for (int j = 0; j < WN / 16; ++j) {
            unsigned b[4];
            load_b(b, b_tile, step, place.column + j * 16);
            const unsigned halves[2][2] = {{b[0], b[1]}, {b[2], b[3]}};
#pragma unroll
            for (int i = 0; i < FRAGMENTS; ++i) {
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    float(&d)[4] = reinterpret_cast<float(&)[4]>(sum[i][j * 8 + half * 4]);
                    MULTIPLY_FRAGMENTS(d, a[i], halves[half]);
                }
            }
        }
    }
}

#endif

// Walks along k, `tiles` steps from `first` on; none, if that is negative.
__device__ __forceinline__ void accumulate(char *stages, const Matrix &a, const Matrix &b, int row, int column,
                                           int first, int tiles, const Place &place, float (&sum)[FRAGMENTS][SUMS]) {
    const auto copy = [&](int stage, int tile) {
        char *to = stages + stage * STAGE_BYTES;
        const int step = (first + tile) * BK;
#ifdef A_LAYOUT_COLUMN
        copy_tile<ATile>(to, a, step, row);
#else
        copy_tile<ATile>(to, a, row, step);
#endif
#ifdef B_LAYOUT_COLUMN
        copy_tile<BTile>(to + ATile::BYTES, b, column, step);
#else
        copy_tile<BTile>(to + ATile::BYTES, b, step, column);
#endif
    };
    if (tiles <= 0) return;
#pragma unroll 1
    for (int tile = 0; tile < AHEAD; ++tile) {
        if (tile < tiles) copy(tile, tile);
        commit_copies();
    }
#if WARPGROUPS_MULTIPLY
    pin_all(sum);  // from here to the last wait they are wgmma's alone: else the compiler waits after each
#endif
    int reading = 0, writing = AHEAD;
#pragma unroll 1
    for (int tile = 0; tile < tiles; ++tile) {
        wait_for_copies<AHEAD - 1>();
#if WARPGROUPS_MULTIPLY
        fence_async_proxy();
#endif
        // The tile has arrived for all threads, and all have finished with the stage that is written next.
        __syncthreads();
        const char *from = stages + reading * STAGE_BYTES;
#if WARPGROUPS_MULTIPLY
        multiply(from, from + ATile::BYTES, place, sum);
#endif
        if (tile + AHEAD < tiles) copy(writing, tile + AHEAD);
        commit_copies();
#if WARPGROUPS_MULTIPLY
        wgmma_wait<IN_FLIGHT>();
#else
        multiply(from, from + ATile::BYTES, place, sum);
#endif
        reading = reading + 1 == STAGES ? 0 : reading + 1;
        writing = writing + 1 == STAGES ? 0 : writing + 1;
    }
#if WARPGROUPS_MULTIPLY
    wgmma_wait<0>();
    pin_all(sum);
#endif
    wait_for_copies<0>();
}

#if SPLIT_K > 1

// Leaves a block's sums in memory; true for the last block of a tile, whose sums are then those of all.
__device__ __forceinline__ bool combine(float *partial, int *finished, int tile, int split,
                                        float (&sum)[FRAGMENTS][SUMS]) {
    int *before = reinterpret_cast<int *>(shared_storage);
    float *tile_sums = partial + (size_t)tile * SPLIT_K * BM * BN + threadIdx.x;
#pragma unroll
    for (int i = 0; i < FRAGMENTS * SUMS; ++i) {
        tile_sums[(size_t)split * BM * BN + i * THREADS] = sum[i / SUMS][i % SUMS];
    }
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) *before = atomicAdd(finished + tile, 1);
    __syncthreads();
    if (*before != SPLIT_K - 1) return false;
    __threadfence();
    for (int other = 0; other < SPLIT_K; ++other) {
        if (other == split) continue;
#pragma unroll
        for (int i = 0; i < FRAGMENTS * SUMS; ++i) {
            sum[i / SUMS][i % SUMS] += __ldcg(tile_sums + (size_t)other * BM * BN + i * THREADS);
        }
    }
    if (threadIdx.x == 0) finished[tile] = 0;  // as it was
    return true;
}

#endif

#ifdef STORE_SHARED

constexpr int C_STRIDE = BN + 8;  // rows of the tile in shared memory begin in different banks

__device__ __forceinline__ void store_row(Element *C, int m, int n, bool aligned, int row, int column,
                                          const Element *from) {
    if (row >= m) return;
    Element *to = C + (size_t)row * n + column;
    if (aligned && column < n) {
        *reinterpret_cast<uint4 *>(to) = *reinterpret_cast<const uint4 *>(from);
    } else {
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            if (column + i < n) to[i] = from[i];
        }
    }
}

__device__ __forceinline__ void store(char *stages, Element *C, int m, int n, int row, int column, const Place &place,
                                      const float (&sum)[FRAGMENTS][SUMS]) {
    const int lane = threadIdx.x % 32;
    Element *tile = reinterpret_cast<Element *>(stages);
    __syncthreads();  // all have finished with the stages
#pragma unroll
    for (int i = 0; i < FRAGMENTS; ++i) {
#pragma unroll
        for (int j = 0; j < SUMS / 2; ++j) {
            const int y = place.fragment_row(i) + lane / 4 + j % 2 * 8;
            const int x = place.column + j / 2 * 8 + lane % 4 * 2;
            *reinterpret_cast<unsigned *>(tile + y * C_STRIDE + x) = rounded_pair(sum[i][2 * j], sum[i][2 * j + 1]);
        }
    }
    __syncthreads();
    const bool aligned = n % 8 == 0 && (size_t)C % 16 == 0;
#pragma unroll 4
    for (unsigned chunk = threadIdx.x; chunk < BM * BN / 8; chunk += THREADS) {
        const int y = chunk / (BN / 8), x = chunk % (BN / 8) * 8;
        store_row(C, m, n, aligned, row + y, column + x, tile + y * C_STRIDE + x);
    }
}

#else

__device__ __forceinline__ void store(char *, Element *C, int m, int n, int row, int column, const Place &place,
                                      const float (&sum)[FRAGMENTS][SUMS]) {
    const int lane = threadIdx.x % 32;
    const bool aligned = n % 2 == 0 && (size_t)C % 4 == 0;
#pragma unroll
    for (int i = 0; i < FRAGMENTS; ++i) {
#pragma unroll
        for (int j = 0; j < SUMS / 2; ++j) {
            const int y = row + place.fragment_row(i) + lane / 4 + j % 2 * 8;
            const int x = column + place.column + j / 2 * 8 + lane % 4 * 2;
            const unsigned pair = rounded_pair(sum[i][2 * j], sum[i][2 * j + 1]);
            Element *to = C + (size_t)y * n + x;
            if (y < m && aligned && x < n) {
                *reinterpret_cast<unsigned *>(to) = pair;
            } else if (y < m) {
                if (x < n) to[0] = (Element)pair;
                if (x + 1 < n) to[1] = (Element)(pair >> 16);
            }
        }
    }
}

#endif

extern "C" __global__ void __launch_bounds__(THREADS)
    matmul_half(const Element *A, const Element *B, Element *C, float *partial, int *finished, int m, int n,
                int k, int room) {
#ifdef A_LAYOUT_COLUMN
    const Matrix a(A, k, m);
#else
    const Matrix a(A, m, k);
#endif
#ifdef B_LAYOUT_COLUMN
    const Matrix b(B, n, k);
#else
    const Matrix b(B, k, n);
#endif
    // Swizzles of wgmma are patterns of the address: stages begin where they do.
    char *stages = reinterpret_cast<char *>(shared_storage);
#ifdef MMA_WGMMA
    stages += (1024 - shared_address(stages) % 1024) % 1024;
#endif

    const int tile = blockIdx.x / SPLIT_K, split = blockIdx.x % SPLIT_K;
    const int tile_rows = (m + BM - 1) / BM, tile_columns = (n + BN - 1) / BN;
    const int group = tile / (GROUP * tile_columns), in_group = tile % (GROUP * tile_columns);
    const int group_rows = min(GROUP, tile_rows - group * GROUP);
    const int row = (group * GROUP + in_group % group_rows) * BM, column = in_group / group_rows * BN;

    const bool shared_out = SPLIT_K > 1 && (size_t)tile_rows * tile_columns * SPLIT_K * BM * BN <= room;
    if (split > 0 && !shared_out) return;
    const int all = (k + BK - 1) / BK, share = shared_out ? (all + SPLIT_K - 1) / SPLIT_K : all;
    const int first = split * share, tiles = min(share, all - first);  // none, or less, are left for some
    const Place place;
    float sum[FRAGMENTS][SUMS] = {};
    accumulate(stages, a, b, row, column, first, tiles, place, sum);
#if SPLIT_K > 1
    if (shared_out && !combine(partial, finished, tile, split, sum)) return;
#endif
    store(stages, C, m, n, row, column, place, sum);
}
