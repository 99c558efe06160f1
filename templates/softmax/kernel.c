// y[rows, cols] = softmax of x over the last axis, float32, row-major, for any rows, cols >= 1; one thread.
//
// The parameters are those of kernel.cu, each in the role that a processor has for it:
//
//   ROW_THREADS  a row is worked through in chunks of ROW_THREADS * VEC elements
//   ROWS         rows that go through a pass together before the next pass begins
//   VEC          vector width: 1 is scalar, 2 is 4 floats, 4 is 8 floats
//   UNROLL       independent vectors in flight: accumulators of the maxima and sums
//   ONLINE       1: maximum and sum in one pass over the row, chunk by chunk; 0: one pass each
//   CACHE        where the exponentials of a row's first WORK chunks wait for their sum: 1 a scratch buffer, 2 y itself;
//                0: nowhere, they are computed again. Those of later chunks are always computed again
//   REDUCE       how the lanes of a chunk's accumulator combine: in halves in registers (shuffle), or one after the
//                other through memory (shared)
//   EXP          libm: expf; fast: a polynomial that runs in vectors

#include <math.h>
#include <stddef.h>
#include <string.h>

#if VEC == 1
#define LANES 1
typedef float vector;
typedef int mask;
#define SELECT(condition, yes, no) ((condition) ? (yes) : (no))
#else
#define LANES (2 * VEC)
typedef float vector __attribute__((vector_size(4 * LANES)));
typedef int mask __attribute__((vector_size(4 * LANES)));
#define SELECT(condition, yes, no) ((vector)(((mask)(yes) & (condition)) | ((mask)(no) & ~(condition))))
#endif

#define CHUNK (ROW_THREADS * VEC)
#define STEP (UNROLL * LANES)
#define LOWEST -3.402823466e+38f
#if CACHE == 0
#define KEPT 0
#else
#define KEPT WORK  // chunks of a row whose exponentials are kept
#endif

#define PRAGMA(text) _Pragma(#text)
#define UNROLLED(n) PRAGMA(GCC unroll n)

static inline vector larger(vector a, vector b) { return SELECT(a > b, a, b); }

// exp of every lane, for x <= 0.
static inline vector exponential(vector x) {
#ifdef EXP_FAST
    // Cephes' expf: with x = n ln 2 + r, a polynomial in r times 2^n. Below -87.33 the result would not be normal.
    const float to_integer = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
    x = SELECT(x < -87.33f, (vector){0.0f} - 87.33f, x);
    const vector shifted = x * 1.44269504088896341f + to_integer;
    const vector n = shifted - to_integer;
    const vector r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
    vector p = r * 1.9875691500e-4f + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * (r * r) + r + 1.0f;
    mask bits;
    memcpy(&bits, &shifted, sizeof bits);
    bits = (bits - 0x4b400000 + 127) << 23;  // 2^n
    vector power;
    memcpy(&power, &bits, sizeof power);
    return p * power;
#else
    float lanes[LANES];
    memcpy(lanes, &x, sizeof lanes);
    for (int i = 0; i < LANES; ++i) lanes[i] = expf(lanes[i]);
    memcpy(&x, lanes, sizeof lanes);
    return x;
#endif
}

// Up to LANES elements; the lanes past them hold the lowest float, whose exponential is (all but) zero.
static inline vector load(const float *from, int count) {
    vector result = (vector){0.0f} + LOWEST;
    memcpy(&result, from, count < LANES ? sizeof(float) * (size_t)count : sizeof result);
    return result;
}

static inline void store(float *to, vector value, int count) {
    memcpy(to, &value, count < LANES ? sizeof(float) * (size_t)count : sizeof value);
}

static inline float reduce(vector value, int maximum) {
    float lanes[LANES];
    memcpy(lanes, &value, sizeof lanes);
#ifdef REDUCE_SHUFFLE
    UNROLLED(3)
    for (int half = LANES / 2; half > 0; half /= 2) {
        for (int i = 0; i < half; ++i) {
            lanes[i] = maximum ? fmaxf(lanes[i], lanes[i + half]) : lanes[i] + lanes[i + half];
        }
    }
#else
    for (int i = 1; i < LANES; ++i) lanes[0] = maximum ? fmaxf(lanes[0], lanes[i]) : lanes[0] + lanes[i];
#endif
    return lanes[0];
}

// The largest of n elements.
static inline float find_maximum(const float *x, int n) {
    vector best[UNROLL];
    for (int u = 0; u < UNROLL; ++u) best[u] = (vector){0.0f} + LOWEST;
    int i = 0;
    for (; i + STEP <= n; i += STEP) {
        UNROLLED(8)
        for (int u = 0; u < UNROLL; ++u) best[u] = larger(load(x + i + u * LANES, LANES), best[u]);
    }
    for (; i < n; i += LANES) best[0] = larger(load(x + i, n - i), best[0]);
    for (int u = 1; u < UNROLL; ++u) best[0] = larger(best[0], best[u]);
    return reduce(best[0], 1);
}

// The sum of exp(x - maximum) over n elements; the exponentials go to `keep` unless it is null.
static inline float sum_exponentials(const float *x, int n, float maximum, float *keep) {
    vector sum[UNROLL] = {};
    int i = 0;
    for (; i + STEP <= n; i += STEP) {
        UNROLLED(8)
        for (int u = 0; u < UNROLL; ++u) {
            const vector value = exponential(load(x + i + u * LANES, LANES) - maximum);
            if (keep) store(keep + i + u * LANES, value, LANES);
            sum[u] += value;
        }
    }
    for (; i < n; i += LANES) {
        const vector value = exponential(load(x + i, n - i) - maximum);
        if (keep) store(keep + i, value, n - i);
        sum[0] += value;
    }
    for (int u = 1; u < UNROLL; ++u) sum[0] += sum[u];
    return reduce(sum[0], 0);
}

// y = factor * kept exponentials
static inline void scale(float *y, const float *kept, int n, float factor) {
    for (int i = 0; i < n; i += LANES) store(y + i, load(kept + i, n - i) * factor, n - i);
}

// y = factor * exp(x - maximum)
static inline void scale_exponentials(float *y, const float *x, int n, float maximum, float factor) {
    int i = 0;
    for (; i + STEP <= n; i += STEP) {
        UNROLLED(8)
        for (int u = 0; u < UNROLL; ++u) {
            store(y + i + u * LANES, exponential(load(x + i + u * LANES, LANES) - maximum) * factor, LANES);
        }
    }
    for (; i < n; i += LANES) store(y + i, exponential(load(x + i, n - i) - maximum) * factor, n - i);
}

struct row {
    const float *x;
    float *y;
    float *kept;  // exponentials of the first KEPT chunks
    float maximum;
    float sum;                                // of exponentials relative to the maximum
    float relative_to[KEPT > 0 ? KEPT : 1];  // the maximum that a kept chunk's exponentials are relative to
};

#define CHUNKS(index, first, count)                                                                        \
    for (int index = 0, first = 0, count; count = cols - first < CHUNK ? cols - first : CHUNK, first < cols; \
         ++index, first += CHUNK)

#if !ONLINE
static void find_row_maximum(struct row *row, int cols) {
    row->maximum = LOWEST;
    CHUNKS(index, first, count) {
        (void)index;
        row->maximum = fmaxf(row->maximum, find_maximum(row->x + first, count));
    }
}
#endif

static void sum_row(struct row *row, int cols) {
    row->sum = 0.0f;
    CHUNKS(index, first, count) {
#if ONLINE
        const float maximum = fmaxf(row->maximum, find_maximum(row->x + first, count));
        row->sum *= expf(row->maximum - maximum);
        row->maximum = maximum;
#endif
        if (index < KEPT) {
            row->relative_to[index] = row->maximum;
            row->sum += sum_exponentials(row->x + first, count, row->maximum, row->kept + first);
        } else {
            row->sum += sum_exponentials(row->x + first, count, row->maximum, NULL);
        }
    }
}

static void write_row(const struct row *row, int cols) {
    CHUNKS(index, first, count) {
        if (index < KEPT) {
            const float factor = expf(row->relative_to[index] - row->maximum) / row->sum;
            scale(row->y + first, row->kept + first, count, factor);
        } else {
            scale_exponentials(row->y + first, row->x + first, count, row->maximum, 1.0f / row->sum);
        }
    }
}

void softmax(const float *restrict x, float *restrict y, int rows, int cols) {
#if CACHE == 1
    static _Thread_local float scratch[ROWS][KEPT * CHUNK] __attribute__((aligned(64)));
#endif
    struct row block[ROWS];
    for (int first = 0; first < rows; first += ROWS) {
        const int count = rows - first < ROWS ? rows - first : ROWS;
        for (int i = 0; i < count; ++i) {
            const size_t offset = (size_t)(first + i) * cols;
#if CACHE == 1
            float *kept = scratch[i];
#else
            float *kept = y + offset;
#endif
            block[i] = (struct row){.x = x + offset, .y = y + offset, .kept = kept, .maximum = LOWEST};
        }
#if !ONLINE
        for (int i = 0; i < count; ++i) find_row_maximum(&block[i], cols);
#endif
        for (int i = 0; i < count; ++i) sum_row(&block[i], cols);
        for (int i = 0; i < count; ++i) write_row(&block[i], cols);
    }
}
