// C[m, n] = A[m, k] * B[k, n] in float32, row-major, for any m, n, k >= 1; one thread.
//
// The parameters are those of kernel.cu, each in the role that a processor has for it:
//
//   BM, BN, BK  cache blocks. A cache holds more than shared memory does: along k it is 8 * BK steps
//   TM, TN      micro-tile: TM rows by TN / VEC vectors of sums in registers
//   VEC         vector width: 1 is scalar, 2 is 4 floats, 4 is 8 floats (and BN counts vectors of that width)
//   UNROLL      steps of k unrolled together
//   STAGES      software prefetch: 8 * (STAGES - 1) steps of k ahead; 1 is none
//   PAD         cache lines left free between packed panels, against set conflicts
//   READ_ONLY   1: A is copied into packed panels as well; 0: A is read where it lies

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

static _Thread_local float b_panels[BLOCK_N / COLUMNS * B_PANEL] __attribute__((aligned(64)));
#if READ_ONLY
static _Thread_local float a_panels[BLOCK_M / ROWS * A_PANEL] __attribute__((aligned(64)));
#endif

// B[depth, width] into panels of COLUMNS columns; columns past its edge are zero.
static void pack_b(const float *B, int n, int depth, int width) {
    for (int first = 0; first < width; first += COLUMNS) {
        float *panel = b_panels + (size_t)(first / COLUMNS) * B_PANEL;
        const int valid = smaller(COLUMNS, width - first);
        for (int step = 0; step < depth; ++step) {
            const float *from = B + (size_t)step * n + first;
            float *to = panel + step * COLUMNS;
            if (valid == COLUMNS) {
                for (int j = 0; j < COLUMNS; ++j) to[j] = from[j];
            } else {
                for (int j = 0; j < COLUMNS; ++j) to[j] = j < valid ? from[j] : 0.0f;
            }
        }
    }
}

#if READ_ONLY
// A[height, depth] into panels of ROWS rows; rows past its edge repeat the last one, and are never stored.
static void pack_a(const float *A, int k, int height, int depth) {
    for (int first = 0; first < height; first += ROWS) {
        float *panel = a_panels + (size_t)(first / ROWS) * A_PANEL;
        for (int i = 0; i < ROWS; ++i) {
            const float *from = A + (size_t)smaller(first + i, height - 1) * k;
            for (int step = 0; step < depth; ++step) panel[step * ROWS + i] = from[step];
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

// The sums of one micro-tile over `depth` steps of k. `a` is a packed panel, or A itself with k columns.
static inline void multiply(const float *a, int k, const float *panel, int depth, int height, int width, float *C,
                            int n, int accumulate) {
    vector sum[ROWS][VECTORS] = {};
#if READ_ONLY
    (void)k;  // a packed panel has its own stride
#else
    const float *rows[ROWS];
    for (int i = 0; i < ROWS; ++i) rows[i] = a + (size_t)smaller(i, height - 1) * k;
#endif
    UNROLLED(UNROLL)
    for (int step = 0; step < depth; ++step) {
        const vector *b = (const vector *)(panel + step * COLUMNS);
#if STAGES > 1
        __builtin_prefetch(panel + (step + AHEAD) * COLUMNS);
#endif
        UNROLLED(8)
        for (int i = 0; i < ROWS; ++i) {
#if READ_ONLY
            const float operand = a[step * ROWS + i];
#else
            const float operand = rows[i][step];
#endif
            UNROLLED(16)
            for (int j = 0; j < VECTORS; ++j) sum[i][j] += operand * b[j];
        }
    }
    if (height == ROWS && width == COLUMNS) {
        store(C, n, ROWS, COLUMNS, sum, accumulate);
    } else {
        store(C, n, height, width, sum, accumulate);
    }
}

// C[height, width] = or += A[height, depth] * the packed panels of B.
static void multiply_block(const float *A, int k, float *C, int n, int height, int width, int depth, int accumulate) {
#if READ_ONLY
    pack_a(A, k, height, depth);
#endif
    for (int column = 0; column < width; column += COLUMNS) {
        const float *panel = b_panels + (size_t)(column / COLUMNS) * B_PANEL;
        for (int row = 0; row < height; row += ROWS) {
#if READ_ONLY
            const float *a = a_panels + (size_t)(row / ROWS) * A_PANEL;
#else
            const float *a = A + (size_t)row * k;
#endif
            multiply(a, k, panel, depth, smaller(ROWS, height - row), smaller(COLUMNS, width - column),
                     C + (size_t)row * n + column, n, accumulate);
        }
    }
}

void matmul(const float *restrict A, const float *restrict B, float *restrict C, int m, int n, int k) {
    for (int column = 0; column < n; column += BLOCK_N) {
        const int width = smaller(BLOCK_N, n - column);
        for (int step = 0; step < k; step += BLOCK_K) {
            const int depth = smaller(BLOCK_K, k - step);
            pack_b(B + (size_t)step * n + column, n, depth, width);
            for (int row = 0; row < m; row += BLOCK_M) {
                multiply_block(A + (size_t)row * k + step, k, C + (size_t)row * n + column, n,
                               smaller(BLOCK_M, m - row), width, depth, step > 0);
            }
        }
    }
}
