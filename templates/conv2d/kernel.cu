// y[n, k, p, q] = the convolution of x[n, c, h, w] with weights[k, c, r, s] in float32, for any sizes: p rows and q columns
// of output, `stride` apart in x, with `pad` zeros around x.
//
// A block of threads owns BM filters x BN pixels of y, a thread TM x TN of them, in registers.
//
//   ALGORITHM  gemm: the product of weights[k, c * r * s] and a matrix of c * r * s rows, one column per pixel, that is
//              made tile by tile in shared memory: BK rows of it per step;
//              direct: the pixels of a block are PATCH_W columns and BN / PATCH_W rows of one image, and every part of x
//              under them is read once: BK channels per step
//   TAPS       of gemm. flat: a step is BK of the c * r * s rows as they come, where they lie in x is looked up;
//              single: a step is BK channels of one position of the filter
//   SHARED     1: x and weights are multiplied from shared memory; 0 (direct): from global memory, through the cache
//   STAGES     of gemm. 1: one buffer; 2 and more: that many, filled by asynchronous copies
//   READ_ONLY  1: loads into registers take the read-only path
//   VEC        floats per load of weights from shared memory (of pixels too for gemm), and per store
//   UNROLL     rows (gemm), or positions along s (direct), unrolled together
//   PAD        floats added to every row of a tile in shared memory, against bank conflicts

#include <cuda_pipeline.h>

constexpr int THREADS_M = BM / TM;
constexpr int THREADS_N = BN / TN;
constexpr int THREADS = THREADS_M * THREADS_N;

// As many operands as possible are shared by the threads of a warp: 4 x 8, or 8 x 4 of thread tiles wider than tall.
constexpr int LANES_N_WANTED = TN > TM ? 4 : 8;
constexpr int LANES_M_LEAST = 32 / (LANES_N_WANTED < THREADS_N ? LANES_N_WANTED : THREADS_N);
constexpr int LANES_M = LANES_M_LEAST < THREADS_M ? LANES_M_LEAST : THREADS_M;
constexpr int LANES_N = 32 / LANES_M;
constexpr int WARPS_N = THREADS_N / LANES_N;

// Two blocks of 256 threads per multiprocessor where the sums leave the registers for it.
constexpr int REGISTERS = TM * TN + TM + TN <= 88 ? 128 : 256;
constexpr int MIN_BLOCKS = THREADS * REGISTERS < 65536 ? 65536 / (THREADS * REGISTERS) : 1;

constexpr int A_STRIDE = BM + PAD;
constexpr int FAR = 1 << 29;  // from any row of x
constexpr int UNROLL_ROWS = UNROLL;  // nvcc does not expand macros in #pragma unroll

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
#else
#define READ(pointer) (*(pointer))
#endif

extern __shared__ float4 shared_storage[];

struct Problem {
    const float *x, *weights;
    float *y;
    int n, c, h, w, k, r, s, stride, pad;
    int p, q;  // of y

    __device__ __forceinline__ int taps() const { return r * s; }
};

// A pixel of y, and the part of x under it.
struct Pixel {
    int image, p, q;
    bool inside;

    __device__ __forceinline__ int above(const Problem &problem) const { return p * problem.stride - problem.pad; }
    __device__ __forceinline__ int left(const Problem &problem) const { return q * problem.stride - problem.pad; }
};

// Which filters and pixels a block works on.
struct Tile {
    int first_filter;
#ifdef ALGORITHM_GEMM
    int first_pixel;

    __device__ __forceinline__ Tile(const Problem &problem) {
        const int tiles_m = (problem.k + BM - 1) / BM;
        first_filter = blockIdx.x % tiles_m * BM;
        first_pixel = blockIdx.x / tiles_m * BN;
    }

    __device__ __forceinline__ Pixel pixel(const Problem &problem, int number) const {
        const int pixels = problem.p * problem.q, all = first_pixel + number;
        const int image = all / pixels, rest = all - image * pixels, p = rest / problem.q;
        return {image, p, rest - p * problem.q, image < problem.n};
    }
#else
    int image, first_p, first_q;

    __device__ __forceinline__ Tile(const Problem &problem) {
        const int tiles_m = (problem.k + BM - 1) / BM, tiles_q = (problem.q + PATCH_W - 1) / PATCH_W;
        const int tiles_p = (problem.p + BN / PATCH_W - 1) / (BN / PATCH_W);
        const int patch = blockIdx.x / tiles_m;
        first_filter = blockIdx.x % tiles_m * BM;
        image = patch / (tiles_p * tiles_q);
        first_p = patch / tiles_q % tiles_p * (BN / PATCH_W);
        first_q = patch % tiles_q * PATCH_W;
    }

    __device__ __forceinline__ Pixel pixel(const Problem &problem, int number) const {
        const int p = first_p + number / PATCH_W, q = first_q + number % PATCH_W;
        return {image, p, q, p < problem.p && q < problem.q};
    }
#endif
};

// Where a thread's sums lie in the tile.
struct Place {
    int first_m, first_n;

    __device__ __forceinline__ Place() {
        const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
        // Neighbouring lanes pairwise share operands of either kind, which lets a vector load serve them at once.
        const int lane_m = LANES_M == 1 ? 0 : lane / (2 * LANES_N) * 2 + lane % 2;
        const int lane_n = LANES_M == 1 ? lane : lane / 2 % LANES_N;
        first_m = warp / WARPS_N * (LANES_M * TM) + lane_m * VEC;
        first_n = warp % WARPS_N * (LANES_N * TN) + lane_n * VEC;
    }

    __device__ __forceinline__ int m(int i) const { return first_m + i / VEC * (LANES_M * VEC) + i % VEC; }
    __device__ __forceinline__ int n(int j) const { return first_n + j / VEC * (LANES_N * VEC) + j % VEC; }
};

struct Weights {
    Pack packs[TM / VEC];

    __device__ __forceinline__ void load(const float *own) {
#pragma unroll
        for (int i = 0; i < TM / VEC; ++i) packs[i].wide = *reinterpret_cast<const Wide *>(own + i * (LANES_M * VEC));
    }
    __device__ __forceinline__ float at(int i) const { return packs[i / VEC].at[i % VEC]; }
};

// Row by row of the thread tile, there and back: one operand of a product is that of the product before it.
template <typename A, typename B>
__device__ __forceinline__ void multiply(const A &a, const B &b, float (&sum)[TM][TN]) {
#pragma unroll
    for (int product = 0; product < TM * TN; ++product) {
        const int i = product / TN, j = i % 2 == 0 ? product % TN : TN - 1 - product % TN;
        sum[i][j] += a.at(i) * b.at(j);
    }
}

// Neighbouring pixels are stored as vectors where every row of them is aligned.
__device__ __forceinline__ void store(const Problem &problem, const Tile &tile, const float (&sum)[TM][TN]) {
    const Place place;
    const size_t pixels = (size_t)problem.p * problem.q;
#ifdef ALGORITHM_GEMM
    const bool aligned = pixels % VEC == 0 && (size_t)problem.y % sizeof(Wide) == 0;
#else
    const bool aligned = problem.q % VEC == 0 && (size_t)problem.y % sizeof(Wide) == 0;
#endif
#pragma unroll
    for (int j = 0; j < TN; j += VEC) {
        Pixel of[VEC];
        of[0] = tile.pixel(problem, place.n(j));
#pragma unroll
        for (int v = 1; v < VEC; ++v) of[v] = aligned ? of[0] : tile.pixel(problem, place.n(j + v));
#pragma unroll
        for (int i = 0; i < TM; ++i) {
            const int filter = tile.first_filter + place.m(i);
            if (filter >= problem.k) continue;
            if (aligned) {
                Pack pack;
#pragma unroll
                for (int v = 0; v < VEC; ++v) pack.at[v] = sum[i][j + v];
                const size_t first = ((size_t)of[0].image * problem.k + filter) * pixels + of[0].p * problem.q + of[0].q;
                if (of[0].inside) *reinterpret_cast<Wide *>(problem.y + first) = pack.wide;
            } else {
#pragma unroll
                for (int v = 0; v < VEC; ++v) {
                    const size_t plane = ((size_t)of[v].image * problem.k + filter) * pixels;
                    if (of[v].inside) problem.y[plane + of[v].p * problem.q + of[v].q] = sum[i][j + v];
                }
            }
        }
    }
}

#ifdef ALGORITHM_GEMM

constexpr int B_STRIDE = BN + PAD;
constexpr int STAGE_FLOATS = BK * (A_STRIDE + B_STRIDE);
constexpr int A_COPIES = BM * BK / THREADS;                          // of a thread per step
constexpr int COLUMNS = BN > THREADS ? BN / THREADS : 1;             // pixels whose part of x a thread copies
constexpr int ROWS = BK * BN / THREADS / COLUMNS;                    // for each of them

struct Pixels {
    Pack packs[TN / VEC];

    __device__ __forceinline__ void load(const float *own) {
#pragma unroll
        for (int j = 0; j < TN / VEC; ++j) packs[j].wide = *reinterpret_cast<const Wide *>(own + j * (LANES_N * VEC));
    }
    __device__ __forceinline__ float at(int j) const { return packs[j / VEC].at[j % VEC]; }
};

// A float on its way into shared memory, or zero.
__device__ __forceinline__ void copy(float *to, const float *from, bool inside) {
#if STAGES == 1
    *to = inside ? READ(from) : 0.0f;
#elif defined(__CUDA_ARCH__)
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"((unsigned)__cvta_generic_to_shared(to)), "l"(from),
                 "r"(inside ? 4 : 0)
                 : "memory");
#else
    if (inside) {
        __pipeline_memcpy_async(to, from, 4);
    } else {
        *to = 0.0f;
    }
#endif
}

// A row of the matrix under a step: where it lies in x, counted from a pixel's upper left corner.
struct Row {
    int offset, down, right, padding;
};

// What a thread copies, step by step.
struct Copies {
    const Problem &problem;
    float *stages;
    Row *rows;                // of this step and, after a barrier, the next
    const float *weights;     // of the first filter, at this step
    int filters[A_COPIES];    // from there to the others
    const float *corner[COLUMNS];
    int above[COLUMNS], left[COLUMNS];
    int step, steps, row_a, row_b;
    int channel, down, right;  // of a single tap

    __device__ __forceinline__ Copies(const Problem &problem, const Tile &tile, float *stages)
        : problem(problem), stages(stages), rows(reinterpret_cast<Row *>(stages + STAGES * STAGE_FLOATS)), step(0),
          row_a(threadIdx.x % BK), row_b(BN > THREADS ? 0 : threadIdx.x / BN), channel(0), down(0), right(0) {
#ifdef TAPS_FLAT
        steps = (problem.c * problem.taps() + BK - 1) / BK;
        const int apart = 1;
#else
        steps = (problem.c + BK - 1) / BK * problem.taps();
        const int apart = problem.taps();
#endif
        const int of_filter = problem.c * problem.taps();
        weights = problem.weights + (size_t)tile.first_filter * of_filter + row_a * apart;
#pragma unroll
        for (int i = 0; i < A_COPIES; ++i) {
            // Filters past the last one repeat it: what they yield is never stored.
            const int filter = (threadIdx.x + i * THREADS) / BK;
            filters[i] = min(filter, problem.k - 1 - tile.first_filter) * of_filter;
        }
#pragma unroll
        for (int i = 0; i < COLUMNS; ++i) {
            const Pixel pixel = tile.pixel(problem, threadIdx.x % BN + i * THREADS);
            above[i] = pixel.inside ? pixel.above(problem) : -FAR;
            left[i] = pixel.left(problem);
            corner[i] = problem.x + (size_t)pixel.image * problem.c * problem.h * problem.w +
                        (long long)pixel.above(problem) * problem.w + left[i];
        }
    }

    // Looks up the rows of a step; threads of the block see it after a barrier.
    __device__ __forceinline__ void look_up(int step) {
#ifdef TAPS_FLAT
        if (threadIdx.x < BK) {
            const int row = step * BK + threadIdx.x, taps = problem.taps();
            const int channel = row / taps, tap = row - channel * taps, down = tap / problem.s;
            const int right = tap - down * problem.s;
            Row *to = rows + step % 2 * BK + threadIdx.x;
            to->offset = (channel * problem.h + down) * problem.w + right;
            to->down = channel < problem.c ? down : FAR / 2;
            to->right = right;
        }
#endif
    }

    __device__ __forceinline__ bool contains(int row, int column) const {
        return (unsigned)row < (unsigned)problem.h && (unsigned)column < (unsigned)problem.w;
    }

    __device__ __forceinline__ void begin(float *stage) {
        float *a_tile = stage + row_a * A_STRIDE + threadIdx.x / BK;
        float *b_tile = stage + BK * A_STRIDE + row_b * B_STRIDE + threadIdx.x % BN;
#ifdef TAPS_FLAT
        const bool a_inside = step * BK + row_a < problem.c * problem.taps();
#else
        const bool a_inside = channel + row_a < problem.c;
        const int plane = problem.h * problem.w;
        const int offset = (channel + row_b) * plane + down * problem.w + right;
#endif
#pragma unroll
        for (int i = 0; i < A_COPIES; ++i) copy(a_tile + i * (THREADS / BK), weights + filters[i], a_inside);
#pragma unroll
        for (int i = 0; i < COLUMNS; ++i) {
#ifndef TAPS_FLAT
            const bool inside = contains(above[i] + down, left[i] + right);
#endif
#pragma unroll
            for (int j = 0; j < ROWS; ++j) {
                constexpr int APART = BN > THREADS ? 1 : THREADS / BN;
                float *to = b_tile + j * APART * B_STRIDE + i * THREADS;
#ifdef TAPS_FLAT
                const Row row = rows[step % 2 * BK + row_b + j * APART];
                copy(to, corner[i] + row.offset, contains(above[i] + row.down, left[i] + row.right));
#else
                copy(to, corner[i] + offset + j * APART * plane, inside && channel + row_b + j * APART < problem.c);
#endif
            }
        }
        ++step;
#ifdef TAPS_FLAT
        weights += BK;
#else
        weights += BK * problem.taps();
        channel += BK;
        if (channel >= problem.c) {
            weights += 1 - channel * problem.taps();  // the first channels of the next tap
            channel = 0;
            if (++right == problem.s) {
                right = 0;
                ++down;
            }
        }
#endif
    }
};

__device__ __forceinline__ void multiply_stage(const float *stage, float (&sum)[TM][TN]) {
    const Place place;
    const float *own_a = stage + place.first_m, *own_b = stage + BK * A_STRIDE + place.first_n;
#pragma unroll UNROLL_ROWS
    for (int row = 0; row < BK; ++row) {
        Weights a;
        Pixels b;
        a.load(own_a + row * A_STRIDE);
        b.load(own_b + row * B_STRIDE);
        multiply(a, b, sum);
    }
}

__device__ __forceinline__ void convolve(const Problem &problem, const Tile &tile, float (&sum)[TM][TN]) {
    float *stages = reinterpret_cast<float *>(shared_storage);
    Copies copies(problem, tile, stages);
    copies.look_up(0);
    __syncthreads();
#if STAGES == 1
    for (int step = 0; step < copies.steps; ++step) {
        copies.begin(stages);
        copies.look_up(step + 1);
        __syncthreads();
        multiply_stage(stages, sum);
        __syncthreads();
    }
#else
    for (int stage = 0; stage < STAGES - 1; ++stage) {
        if (copies.step < copies.steps) copies.begin(stages + stage * STAGE_FLOATS);
        __pipeline_commit();
        copies.look_up(stage + 1);
#ifdef TAPS_FLAT
        __syncthreads();
#endif
    }
    int reading = 0, writing = STAGES - 1;
    for (int step = 0; step < copies.steps; ++step) {
        __pipeline_wait_prior(STAGES - 2);
        __syncthreads();  // the step has arrived for all threads, and all have finished with the one before it
        if (copies.step < copies.steps) copies.begin(stages + writing * STAGE_FLOATS);
        __pipeline_commit();
        copies.look_up(step + STAGES);
        multiply_stage(stages + reading * STAGE_FLOATS, sum);
        reading = reading + 1 == STAGES ? 0 : reading + 1;
        writing = writing + 1 == STAGES ? 0 : writing + 1;
    }
#endif
}

#elif SHARED

constexpr int WARPS = THREADS / 32;

struct Pixels {
    float values[TN];
    __device__ __forceinline__ float at(int j) const { return values[j]; }
};

// The part of x under the pixels of a block, BK channels of it, and their weights.
__device__ __forceinline__ void convolve(const Problem &problem, const Tile &tile, float (&sum)[TM][TN]) {
    const Place place;
    const int taps = problem.taps(), lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int height = (BN / PATCH_W - 1) * problem.stride + problem.r, width = (PATCH_W - 1) * problem.stride + problem.s;
    const int above = tile.first_p * problem.stride - problem.pad, left = tile.first_q * problem.stride - problem.pad;
    float *weights = reinterpret_cast<float *>(shared_storage);
    float *patch = weights + BK * taps * A_STRIDE;
    int at[TN];
#pragma unroll
    for (int j = 0; j < TN; ++j) {
        at[j] = place.n(j) / PATCH_W * problem.stride * width + place.n(j) % PATCH_W * problem.stride;
    }
    for (int first = 0; first < problem.c; first += BK) {
        const int channels = min(BK, problem.c - first);
        for (int row = warp; row < channels * height; row += WARPS) {
            const int channel = row / height, y = above + row - channel * height;
            const size_t plane = (size_t)tile.image * problem.c + first + channel;
            const float *from = problem.x + (plane * problem.h + y) * problem.w;
            for (int x = lane; x < width; x += 32) {
                const bool inside = (unsigned)y < (unsigned)problem.h && (unsigned)(left + x) < (unsigned)problem.w;
                patch[row * width + x] = inside ? READ(from + left + x) : 0.0f;
            }
        }
        for (int m = warp; m < BM; m += WARPS) {
            const size_t filter = min(tile.first_filter + m, problem.k - 1);
            const float *from = problem.weights + (filter * problem.c + first) * taps;
            for (int tap = lane; tap < channels * taps; tap += 32) weights[tap * A_STRIDE + m] = READ(from + tap);
        }
        __syncthreads();
        const float *own = weights + place.first_m;
        for (int channel = 0; channel < channels; ++channel) {
            for (int down = 0; down < problem.r; ++down) {
                const float *under[TN];
#pragma unroll
                for (int j = 0; j < TN; ++j) under[j] = patch + (channel * height + down) * width + at[j];
#pragma unroll UNROLL_ROWS
                for (int right = 0; right < problem.s; ++right) {
                    Weights a;
                    Pixels b;
                    a.load(own);
#pragma unroll
                    for (int j = 0; j < TN; ++j) b.values[j] = *under[j]++;
                    multiply(a, b, sum);
                    own += A_STRIDE;
                }
            }
        }
        __syncthreads();
    }
}

#else

struct Values {
    float values[TM > TN ? TM : TN];
    __device__ __forceinline__ float at(int i) const { return values[i]; }
};

__device__ __forceinline__ void convolve(const Problem &problem, const Tile &tile, float (&sum)[TM][TN]) {
    const Place place;
    const float *weights[TM];
    int above[TN], left[TN];
#pragma unroll
    for (int i = 0; i < TM; ++i) {
        const int filter = min(tile.first_filter + place.m(i), problem.k - 1);
        weights[i] = problem.weights + (size_t)filter * problem.c * problem.taps();
    }
#pragma unroll
    for (int j = 0; j < TN; ++j) {
        const Pixel pixel = tile.pixel(problem, place.n(j));
        above[j] = pixel.inside ? pixel.above(problem) : -FAR;
        left[j] = pixel.left(problem);
    }
    const float *plane = problem.x + (size_t)tile.image * problem.c * problem.h * problem.w;
    int tap = 0;
    for (int channel = 0; channel < problem.c; ++channel) {
        for (int down = 0; down < problem.r; ++down) {
#pragma unroll UNROLL_ROWS
            for (int right = 0; right < problem.s; ++right) {
                Values a, b;
#pragma unroll
                for (int i = 0; i < TM; ++i) a.values[i] = READ(weights[i] + tap);
#pragma unroll
                for (int j = 0; j < TN; ++j) {
                    const int row = above[j] + down, column = left[j] + right;
                    const bool inside = (unsigned)row < (unsigned)problem.h && (unsigned)column < (unsigned)problem.w;
                    b.values[j] = inside ? READ(plane + row * problem.w + column) : 0.0f;
                }
                multiply(a, b, sum);
                ++tap;
            }
        }
        plane += (size_t)problem.h * problem.w;
    }
}

#endif

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
    conv2d(const float *x, const float *weights, float *y, int n, int c, int h, int w, int k, int r, int s, int stride,
           int pad) {
    const Problem problem = {x,      weights, y,   n, c, h, w, k, r, s,
                             stride, pad,     (h + 2 * pad - r) / stride + 1, (w + 2 * pad - s) / stride + 1};
    const Tile tile(problem);
    float sum[TM][TN] = {};
    convolve(problem, tile, sum);
    store(problem, tile, sum);
}
