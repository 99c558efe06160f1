// y[rows, cols] = softmax of x over the last axis, row-major, for any rows, cols >= 1; one thread. float32 or bfloat16
// in memory, float32 in between.
//
// The parameters are those of kernel.cu, each in the role that a processor has for it:
//
//   ROW_THREADS  a row is worked through in chunks of ROW_THREADS * VEC elements
//   ROWS         rows that go through a pass together before the next pass begins: a group
//   STEPS        the order of the groups: each is followed by the one that lies 1 / STEPS of all groups further on
//   VEC          vector width: 1 is scalar, 2 is 4 floats, 4 is 8 floats, 8 is 16 floats
//   UNROLL       independent vectors in flight: accumulators of the maxima and sums
//   ONLINE       1: maximum and sum in one pass over the row, chunk by chunk; 0: one pass each
//   CACHE        where the exponentials of a row's first WORK chunks wait for their sum: 1 a scratch buffer, 2 y itself
//                (in its type); 0: nowhere, they are computed again. Those of later chunks are always computed again
//   PREFETCH     how many groups ahead the first WORK chunks of a row are asked for
//   REDUCE       how the lanes of a chunk's accumulator combine: in halves in registers (shuffle), or one after the
//                other through memory (shared)
//   EXP          libm: expf; fast: a polynomial that runs in vectors
//   STREAM       1: y is written past the caches (where it is aligned for it)

// Vectors wider than the machine's are passed only between functions of this file.
#pragma GCC diagnostic ignored "-Wpsabi"

#include <math.h>
#include <stddef.h>
#include <string.h>
#if STREAM && defined(__SSE2__)
#include <emmintrin.h>
#endif

#ifdef DTYPE_BFLOAT16
typedef unsigned short element;  // the bits of a bfloat16
#else
typedef float element;
#endif

#if VEC == 1
#define LANES 1
typedef float vector;
typedef int mask;
typedef unsigned bits;
typedef unsigned short narrow;
#define SELECT(condition, yes, no) ((condition) ? (yes) : (no))
#define CONVERTED(value, type) ((type)(value))
#else
#define LANES (2 * VEC)
typedef float vector __attribute__((vector_size(4 * LANES)));
typedef int mask __attribute__((vector_size(4 * LANES)));
typedef unsigned bits __attribute__((vector_size(4 * LANES)));
typedef unsigned short narrow __attribute__((vector_size(2 * LANES)));
#define SELECT(condition, yes, no) ((vector)(((mask)(yes) & (condition)) | ((mask)(no) & ~(condition))))
#define CONVERTED(value, type) __builtin_convertvector(value, type)
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

// Up to LANES floats; the lanes past them hold the lowest float, whose exponential is (all but) zero.
static inline vector load_floats(const float *from, int count) {
    vector result = (vector){0.0f} + LOWEST;
    memcpy(&result, from, count < LANES ? sizeof(float) * (size_t)count : sizeof result);
    return result;
}

static inline void store_floats(float *to, vector value, int count) {
    memcpy(to, &value, count < LANES ? sizeof(float) * (size_t)count : sizeof value);
}

#ifdef DTYPE_BFLOAT16
static inline vector load(const element *from, int count) {
    narrow stored = (narrow){0} + 0xff7f;  // the lowest
    memcpy(&stored, from, count < LANES ? sizeof(element) * (size_t)count : sizeof stored);
    const bits wide = CONVERTED(stored, bits) << 16;
    vector result;
    memcpy(&result, &wide, sizeof result);
    return result;
}

// To nearest, ties to even; NaN stays NaN.
static inline narrow rounded(vector value) {
    bits wide;
    memcpy(&wide, &value, sizeof wide);
    const bits result = (wide + 0x7fff + (wide >> 16 & 1)) >> 16;
    const bits nan = (bits)(value != value);
#if VEC == 1
    return nan ? 0x7fc0 : (narrow)result;
#else
    return CONVERTED((result & ~nan) | (nan & 0x7fc0), narrow);
#endif
}

static inline void store(element *to, vector value, int count) {
    const narrow stored = rounded(value);
    memcpy(to, &stored, count < LANES ? sizeof(element) * (size_t)count : sizeof stored);
}
#else
static inline vector load(const element *from, int count) { return load_floats(from, count); }
static inline void store(element *to, vector value, int count) { store_floats(to, value, count); }
#endif

// A result, which is not read again.
static inline void write_out(element *to, vector value, int count) {
#if STREAM && defined(__SSE2__)
    element stored[LANES] __attribute__((aligned(16)));
    const size_t pieces = sizeof(stored) / (sizeof(__m128i));
    if (pieces > 0 && count >= LANES && (size_t)to % sizeof(__m128i) == 0) {
        store(stored, value, LANES);
        for (size_t i = 0; i < pieces; ++i) _mm_stream_si128((__m128i *)to + i, ((const __m128i *)stored)[i]);
        return;
    }
#endif
    store(to, value, count);
}

// Exponentials that wait for their sum.
#if CACHE == 1
typedef float waiting;
#define LOAD_WAITING load_floats
#define STORE_WAITING store_floats
#else
typedef element waiting;
#define LOAD_WAITING load
#define STORE_WAITING store
#endif

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
static inline float find_maximum(const element *x, int n) {
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
static inline float sum_exponentials(const element *x, int n, float maximum, waiting *keep) {
    vector sum[UNROLL] = {};
    int i = 0;
    for (; i + STEP <= n; i += STEP) {
        UNROLLED(8)
        for (int u = 0; u < UNROLL; ++u) {
            const vector value = exponential(load(x + i + u * LANES, LANES) - maximum);
            if (keep) STORE_WAITING(keep + i + u * LANES, value, LANES);
            sum[u] += value;
        }
    }
    for (; i < n; i += LANES) {
        const vector value = exponential(load(x + i, n - i) - maximum);
        if (keep) STORE_WAITING(keep + i, value, n - i);
        sum[0] += value;
    }
    for (int u = 1; u < UNROLL; ++u) sum[0] += sum[u];
    return reduce(sum[0], 0);
}

// y = factor * kept exponentials
static inline void scale(element *y, const waiting *kept, int n, float factor) {
    for (int i = 0; i < n; i += LANES) write_out(y + i, LOAD_WAITING(kept + i, n - i) * factor, n - i);
}

// y = factor * exp(x - maximum)
static inline void scale_exponentials(element *y, const element *x, int n, float maximum, float factor) {
    int i = 0;
    for (; i + STEP <= n; i += STEP) {
        UNROLLED(8)
        for (int u = 0; u < UNROLL; ++u) {
            write_out(y + i + u * LANES, exponential(load(x + i + u * LANES, LANES) - maximum) * factor, LANES);
        }
    }
    for (; i < n; i += LANES) write_out(y + i, exponential(load(x + i, n - i) - maximum) * factor, n - i);
}

struct row {
    const element *x;
    element *y;
    waiting *kept;  // exponentials of the first KEPT chunks
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

// Asks for what a group's rows begin with.
static inline void prefetch_group(const element *x, int group, int rows, int cols) {
    const size_t begin = (size_t)group * ROWS * cols;
    const size_t wanted = cols < WORK * CHUNK ? cols : WORK * CHUNK;
    for (size_t row = (size_t)group * ROWS, i = 0; i < ROWS && row + i < (size_t)rows; ++i) {
        const char *line = (const char *)(x + begin + i * cols);
        for (size_t at = 0; at < wanted * sizeof(element); at += 64) __builtin_prefetch(line + at);
    }
}

static void work_through(const element *x, element *y, int group, int rows, int cols) {
#if CACHE == 1
    static _Thread_local waiting scratch[ROWS][KEPT * CHUNK] __attribute__((aligned(64)));
#endif
    struct row block[ROWS];
    const int first = group * ROWS;
    const int count = rows - first < ROWS ? rows - first : ROWS;
    for (int i = 0; i < count; ++i) {
        const size_t offset = (size_t)(first + i) * cols;
#if CACHE == 1
        waiting *kept = scratch[i];
#else
        waiting *kept = y + offset;
#endif
        block[i] = (struct row){.x = x + offset, .y = y + offset, .kept = kept, .maximum = LOWEST};
    }
#if !ONLINE
    for (int i = 0; i < count; ++i) find_row_maximum(&block[i], cols);
#endif
    for (int i = 0; i < count; ++i) sum_row(&block[i], cols);
    for (int i = 0; i < count; ++i) write_row(&block[i], cols);
}

void softmax(const element *restrict x, element *restrict y, int rows, int cols) {
    const int groups = (rows + ROWS - 1) / ROWS;
    const int stride = (groups + STEPS - 1) / STEPS;
    for (int start = 0; start < stride; ++start) {
        for (int group = start; group < groups; group += stride) {
#if PREFETCH > 0
            const long ahead = group + (long)PREFETCH * stride;
            if (ahead < groups) prefetch_group(x, (int)ahead, rows, cols);
#endif
            work_through(x, y, group, rows, cols);
        }
    }
#if STREAM && defined(__SSE2__)
    _mm_sfence();
#endif
}
