// C[m, n] = A[m, k] * B[k, n] in float32 for any m, n, k >= 1; one thread. C is row-major; A and B are what A_LAYOUT and
// B_LAYOUT say.
//
// The parameters are those of kernel.cu, each in the role that a processor has for it:
//
//   BM, BN, BK  cache blocks. A cache holds more than shared memory does: along k it is 8 * BK steps
//   TM, TN      micro-tile: TM rows by TN / VEC vectors of sums in registers
//   VEC         vector width: 1 is scalar, 2 is 4 floats, 4 is 8 floats (and BN counts vectors of that width)
//   UNROLL      steps of k unrolled together
//   STAGES      software prefetch: 8 * (STAGES - 1) steps of k ahead; 1 is none
//   FRAGMENTS   2: the vectors of B are loaded a step ahead; 1: when needed
//   TRANSPOSE   1: A is copied into packed panels, the TM operands of a step side by side; 0: A is read where it lies
//   PAD         cache lines left free between packed panels, against set conflicts
//   ORDER       of the micro-tiles of a block: down its columns of panels, or along its rows
//   SPLIT_K     passes over C, each with its part of k
//   RASTER      rows of blocks that are visited together, column by column, and share a packed block of B

#include <stddef.h>

#if VEC == 1
#define LANES 1
typedef float vector;
#else
#define LANES (2 * VEC)
typedef float vector __attribute__((vector_size(4 * LANES)));
#endif

#define LINE_FLOATS 16
#define ROWS TM                   // of a micro-tile
#define VECTORS (TN / VEC)        // across a micro-tile
#define COLUMNS (VECTORS * LANES) // of a micro-tile
#define BLOCK_M BM
#define BLOCK_N (BN / VEC * LANES)
#define BLOCK_K (8 * BK)
#define A_PANEL (BLOCK_K * ROWS + LINE_FLOATS * PAD)
#define B_PANEL (BLOCK_K * COLUMNS + LINE_FLOATS * PAD)
#define AHEAD (8 * (STAGES - 1))

#define PRAGMA(text) _Pragma(#text)
#define UNROLLED(n) PRAGMA(GCC unroll n)

static inline int smaller(int a, int b) { return a < b ? a : b; }

// An operand: floats from one line (row of A, column of B) to the next, and from one step of k to the next.
typedef struct {
    const float *data;
    size_t line, step;
} operand;

static inline operand moved(operand from, int lines, int steps) {
    from.data += lines * from.line + steps * from.step;
    return from;
}

// One vector more than the panels hold: it is loaded ahead, and not used.
static _Thread_local float b_panels[BLOCK_N / COLUMNS * B_PANEL + COLUMNS] __attribute__((aligned(64)));
#if TRANSPOSE
static _Thread_local float a_panels[BLOCK_M / ROWS * A_PANEL] __attribute__((aligned(64)));
#endif

// B[depth, width] into panels of COLUMNS columns; columns past its edge are zero.
static void pack_b(operand b, int depth, int width) {
    for (int first = 0; first < width; first += COLUMNS) {
        float *panel = b_panels + (size_t)(first / COLUMNS) * B_PANEL;
        const int valid = smaller(COLUMNS, width - first);
#ifdef B_LAYOUT_COLUMN
        for (int j = 0; j < COLUMNS; ++j) {
            const float *from = b.data + (first + smaller(j, valid - 1)) * b.line;
            for (int step = 0; step < depth; ++step) panel[step * COLUMNS + j] = j < valid ? from[step] : 0.0f;
        }
#else
        for (int step = 0; step < depth; ++step) {
            const float *from = b.data + step * b.step + first;
            float *to = panel + step * COLUMNS;
            if (valid == COLUMNS) {
                for (int j = 0; j < COLUMNS; ++j) to[j] = from[j];
            } else {
                for (int j = 0; j < COLUMNS; ++j) to[j] = j < valid ? from[j] : 0.0f;
            }
        }
#endif
    }
}

#if TRANSPOSE
// A[height, depth] into panels of ROWS rows; rows past its edge repeat the last one, and are never stored.
static void pack_a(operand a, int height, int depth) {
    for (int first = 0; first < height; first += ROWS) {
        float *panel = a_panels + (size_t)(first / ROWS) * A_PANEL;
        for (int i = 0; i < ROWS; ++i) {
            const float *from = a.data + smaller(first + i, height - 1) * a.line;
            for (int step = 0; step < depth; ++step) panel[step * ROWS + i] = from[step * a.step];
        }
    }
}
#endif

// C[height, width] = or += the micro-tile's sums; C is at most ROWS x COLUMNS here.
static inline void store(float *C, int n, int height, int width, vector sum[ROWS][VECTORS], int accumulate) {
    for (int i = 0; i < height; ++i) {
        const float *from = (const float *)sum[i];
        float *to = C + (size_t)i * n;
        for (int j = 0; j < width; ++j) to[j] = accumulate ? to[j] + from[j] : from[j];
    }
}

// The sums of one micro-tile over `depth` steps of k. `a` is a packed panel, or A itself.
static inline void multiply(operand a, const float *panel, int depth, int height, int width, float *C, int n,
                            int accumulate) {
    vector sum[ROWS][VECTORS] = {};
    vector b[VECTORS];
#if !TRANSPOSE
    const float *rows[ROWS];
    for (int i = 0; i < ROWS; ++i) rows[i] = a.data + smaller(i, height - 1) * a.line;
#endif
    for (int j = 0; j < VECTORS; ++j) b[j] = ((const vector *)panel)[j];
    UNROLLED(UNROLL)
    for (int step = 0; step < depth; ++step) {
        const vector *following = (const vector *)(panel + (step + 1) * COLUMNS);
#if FRAGMENTS == 1
        UNROLLED(16)
        for (int j = 0; j < VECTORS; ++j) b[j] = following[j - VECTORS];
#else
        vector next[VECTORS];
        UNROLLED(16)
        for (int j = 0; j < VECTORS; ++j) next[j] = following[j];
#endif
#if STAGES > 1
        __builtin_prefetch(panel + (step + AHEAD) * COLUMNS);
#endif
        UNROLLED(16)
        for (int i = 0; i < ROWS; ++i) {
#if TRANSPOSE
            const float factor = a.data[step * ROWS + i];
#elif defined(A_LAYOUT_COLUMN)
            const float factor = rows[i][step * a.step];
#else
            const float factor = rows[i][step];
#endif
            UNROLLED(16)
            for (int j = 0; j < VECTORS; ++j) sum[i][j] += factor * b[j];
        }
#if FRAGMENTS == 2
        UNROLLED(16)
        for (int j = 0; j < VECTORS; ++j) b[j] = next[j];
#endif
    }
    if (height == ROWS && width == COLUMNS) {
        store(C, n, ROWS, COLUMNS, sum, accumulate);
    } else {
        store(C, n, height, width, sum, accumulate);
    }
}

// C[height, width] = or += A[height, depth] * the packed panels of B.
static void multiply_block(operand a, float *C, int n, int height, int width, int depth, int accumulate) {
#if TRANSPOSE
    pack_a(a, height, depth);
#endif
#ifdef ORDER_ROWS
    for (int row = 0; row < height; row += ROWS) {
        for (int column = 0; column < width; column += COLUMNS) {
#else
    for (int column = 0; column < width; column += COLUMNS) {
        for (int row = 0; row < height; row += ROWS) {
#endif
#if TRANSPOSE
            const operand of_tile = {a_panels + (size_t)(row / ROWS) * A_PANEL, 1, ROWS};
#else
            const operand of_tile = moved(a, row, 0);
#endif
            const float *panel = b_panels + (size_t)(column / COLUMNS) * B_PANEL;
            multiply(of_tile, panel, depth, smaller(ROWS, height - row), smaller(COLUMNS, width - column),
                     C + (size_t)row * n + column, n, accumulate);
        }
    }
}

// C[height, n] = or += A[height, steps] * B[steps, n].
static void multiply_group(operand a, operand b, float *C, int height, int n, int steps, int accumulate) {
    for (int column = 0; column < n; column += BLOCK_N) {
        const int width = smaller(BLOCK_N, n - column);
        for (int step = 0; step < steps; step += BLOCK_K) {
            const int depth = smaller(BLOCK_K, steps - step);
            pack_b(moved(b, column, step), depth, width);
            for (int row = 0; row < height; row += BLOCK_M) {
                multiply_block(moved(a, row, step), C + (size_t)row * n + column, n, smaller(BLOCK_M, height - row),
                               width, depth, accumulate || step > 0);
            }
        }
    }
}

void matmul(const float *restrict A, const float *restrict B, float *restrict C, float *restrict sums,
            int *restrict tickets, int m, int n, int k) {
    (void)sums, (void)tickets;  // one thread has nobody to share with
#ifdef A_LAYOUT_COLUMN
    const operand a = {A, 1, (size_t)m};
#else
    const operand a = {A, (size_t)k, 1};
#endif
#ifdef B_LAYOUT_COLUMN
    const operand b = {B, (size_t)k, 1};
#else
    const operand b = {B, 1, (size_t)n};
#endif
    const int part = (k + SPLIT_K - 1) / SPLIT_K;
    for (int first = 0; first < k; first += part) {
        for (int row = 0; row < m; row += RASTER * BLOCK_M) {
            multiply_group(moved(a, row, first), moved(b, 0, first), C + (size_t)row * n, smaller(RASTER * BLOCK_M, m - row),
                           n, smaller(part, k - first), first > 0);
        }
    }
}
