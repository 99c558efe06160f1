// y[rows, cols] = (x - mean) / sqrt(variance + eps) * gamma + beta over the last axis, row-major, for any rows, cols >=
// 1; gamma and beta have cols elements. float32 or bfloat16 in memory, float32 in between.
//
// ROWS rows (a group) share a block of threads; ROW_THREADS threads work on one row, each on every ROW_THREADS-th
// vector of it. A block works through STEPS groups, one after another, as many groups apart as there are blocks.
//
//   VEC         elements per load and store (where the rows are aligned for it)
//   STATISTICS  two_pass: the mean, then sums about it; shifted: sums of differences to the row's first element and of
//               their squares, in one pass; welford: running mean and squares, in one pass
//   CACHE       where a thread keeps its first WORK vectors between the passes: 1 shared memory, 2 registers;
//               0: nowhere, every pass reads global memory. Vectors past the first WORK are always read again
//   UNROLL      vectors past the first WORK that a thread loads before it uses the first of them
//   PREFETCH    groups whose kept vectors are on their way into shared memory while one is worked on (cp.async)
//   AFFINE      1: a thread loads its first WORK vectors of gamma and beta once, into registers; 0: for each row again
//   REDUCE      how the threads of a row combine: warp shuffles, or a tree in shared memory
//   STREAM      1: x and y pass through the caches as data that is not used again

#ifdef DTYPE_BFLOAT16
#include <cuda_bf16.h>
#endif
#if PREFETCH > 0
#include <cuda_pipeline.h>
#endif

constexpr int THREADS = ROW_THREADS * ROWS;
constexpr int BUFFERS = CACHE == 1 ? PREFETCH + 1 : PREFETCH;   // groups that have room in shared memory
constexpr int SLOTS = BUFFERS * WORK * ROW_THREADS * ROWS;      // vectors that have
constexpr int WARPS = ROW_THREADS > 32 ? ROW_THREADS / 32 : 1;  // of a row
constexpr int LOADED = UNROLL;
constexpr unsigned ALL_LANES = 0xffffffffu;

#ifdef DTYPE_BFLOAT16
typedef unsigned short Element;  // the bits of a bfloat16
#else
typedef float Element;
#endif

template <int BYTES>
struct WideOf;
template <>
struct WideOf<16> {
    typedef float4 type;
};
template <>
struct WideOf<8> {
    typedef float2 type;
};
template <>
struct WideOf<4> {
    typedef float type;
};
template <>
struct WideOf<2> {
    typedef unsigned short type;
};

// Two bfloat16, or the only one.
template <int WIDTH>
struct PairOf {
    typedef unsigned type;
};
template <>
struct PairOf<1> {
    typedef Element type;
};

// A vector of WIDTH elements as it lies in memory.
template <int WIDTH>
union Pack {
    typename WideOf<WIDTH * sizeof(Element)>::type wide;
    Element at[WIDTH];
    typename PairOf<WIDTH>::type pairs[(WIDTH + 1) / 2];
};

// One to calculate with.
template <int WIDTH>
struct Floats {
    float at[WIDTH];
};

template <int WIDTH>
__device__ __forceinline__ Floats<WIDTH> decoded(const Pack<WIDTH> &pack) {
    Floats<WIDTH> values;
#pragma unroll
    for (int i = 0; i < WIDTH; ++i) {
#ifdef DTYPE_BFLOAT16
        const unsigned pair = pack.pairs[i / 2];
        values.at[i] = __int_as_float(i % 2 == 0 ? pair << 16 : pair & 0xffff0000u);
#else
        values.at[i] = pack.at[i];
#endif
    }
    return values;
}

template <int WIDTH>
__device__ __forceinline__ Pack<WIDTH> encoded(const Floats<WIDTH> &values) {
    Pack<WIDTH> pack;
#ifdef DTYPE_BFLOAT16
    if (WIDTH == 1) {
        const __nv_bfloat16 rounded = __float2bfloat16(values.at[0]);
        pack.at[0] = reinterpret_cast<const Element &>(rounded);
    } else {
#pragma unroll
        for (int i = 0; i + 1 < WIDTH; i += 2) {
            const __nv_bfloat162 rounded = __floats2bfloat162_rn(values.at[i], values.at[i + 1]);
            pack.pairs[i / 2] = reinterpret_cast<const unsigned &>(rounded);
        }
    }
#else
#pragma unroll
    for (int i = 0; i < WIDTH; ++i) pack.at[i] = values.at[i];
#endif
    return pack;
}

extern __shared__ float4 shared_storage[];

// What the threads of a row combine. `from` is the same value of another thread.
struct Sum {
    float value;
    __device__ __forceinline__ Sum shuffled(int distance, int width) const {
        return {__shfl_xor_sync(ALL_LANES, value, distance, width)};
    }
    __device__ __forceinline__ Sum with(const Sum &from) const { return {value + from.value}; }
};

struct SumAndSquares {
    float sum, squares;
    __device__ __forceinline__ SumAndSquares shuffled(int distance, int width) const {
        return {__shfl_xor_sync(ALL_LANES, sum, distance, width), __shfl_xor_sync(ALL_LANES, squares, distance, width)};
    }
    __device__ __forceinline__ SumAndSquares with(const SumAndSquares &from) const {
        return {sum + from.sum, squares + from.squares};
    }
};

// Number, mean, and squared differences to the mean. T. F. Chan, G. H. Golub, R. J. LeVeque: Updating formulae and a
// pairwise algorithm for computing sample variances, 1979.
struct Moments {
    float count, mean, squares;
    __device__ __forceinline__ Moments shuffled(int distance, int width) const {
        return {__shfl_xor_sync(ALL_LANES, count, distance, width), __shfl_xor_sync(ALL_LANES, mean, distance, width),
                __shfl_xor_sync(ALL_LANES, squares, distance, width)};
    }
    __device__ __forceinline__ Moments with(const Moments &from) const {
        const float total = count + from.count;
        const float share = total > 0.0f ? __fdividef(from.count, total) : 0.0f;
        const float difference = from.mean - mean;
        return {total, mean + difference * share, squares + from.squares + difference * difference * count * share};
    }
};

// Combines one value per thread over the threads of a row; every thread of the block calls it and gets the result.
struct Reduction {
    int turn;  // which half of the memory the next reduction uses: the one before it may still be read

    template <typename Value>
    __device__ __forceinline__ Value operator()(Value value) {
        Value *partial = reinterpret_cast<Value *>(reinterpret_cast<Pack<VEC> *>(shared_storage) + SLOTS);
#ifdef REDUCE_SHUFFLE
        constexpr int WIDTH = ROW_THREADS < 32 ? ROW_THREADS : 32;
#pragma unroll
        for (int distance = WIDTH / 2; distance > 0; distance /= 2) value = value.with(value.shuffled(distance, WIDTH));
        if (ROW_THREADS > 32) {
            partial = reinterpret_cast<Value *>(reinterpret_cast<float *>(partial) + turn * (3 * THREADS / 32));
            turn ^= 1;
            if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = value;
            __syncthreads();
            const Value *first = partial + threadIdx.x / ROW_THREADS * WARPS;
            value = first[0];
#pragma unroll
            for (int warp = 1; warp < WARPS; ++warp) value = value.with(first[warp]);
        }
        return value;
#else
        const int lane = threadIdx.x % ROW_THREADS;
        __syncthreads();  // the reduction before this one has been read
        partial[threadIdx.x] = value;
        __syncthreads();
#pragma unroll
        for (int active = ROW_THREADS / 2; active > 0; active /= 2) {
            if (lane < active) partial[threadIdx.x] = partial[threadIdx.x].with(partial[threadIdx.x + active]);
            __syncthreads();
        }
        return partial[threadIdx.x - lane];
#endif
    }
};

template <int WIDTH, bool ONCE>
__device__ __forceinline__ Pack<WIDTH> load(const Element *from, int vector) {
    const auto *address = &reinterpret_cast<const Pack<WIDTH> *>(from)[vector].wide;
    Pack<WIDTH> pack;
    pack.wide = ONCE ? __ldcs(address) : __ldg(address);
    return pack;
}

template <int WIDTH>
__device__ __forceinline__ void store(Element *to, int vector, const Pack<WIDTH> &pack) {
    auto *address = &reinterpret_cast<Pack<WIDTH> *>(to)[vector].wide;
    if (STREAM) {
        __stcs(address, pack.wide);
    } else {
        *address = pack.wide;
    }
}

// A thread's view of a row: vectors lane, lane + ROW_THREADS, ... below `vectors`, the first KEPT of which it keeps.
template <int WIDTH, int KEPT>
struct Row {
    const Element *from;
    Element *to;
    int vectors;  // 0 for a row past the last one: such threads only take part in reductions
    int lane;

    __device__ __forceinline__ Row(const Element *x, Element *y, int group, int rows, int cols) {
        const long long row = (long long)group * ROWS + threadIdx.x / ROW_THREADS;
        const long long offset = row < rows ? row * cols : 0;
        from = x + offset;
        to = y + offset;
        vectors = row < rows ? cols / WIDTH : 0;
        lane = threadIdx.x % ROW_THREADS;
    }

    __device__ __forceinline__ float first() const {
        return vectors > 0 ? decoded(load<1, false>(from, 0)).at[0] : 0.0f;
    }

    // Calls `use` with index and vector of every vector that is kept.
    template <typename Use>
    __device__ __forceinline__ void each_kept(Use use) const {
#pragma unroll
        for (int i = 0; i < KEPT; ++i) {
            const int vector = lane + i * ROW_THREADS;
            if (vector < vectors) use(i, vector);
        }
    }

    // Calls `use` with vector and contents of every vector that is not kept.
    template <typename Use>
    __device__ __forceinline__ void each_other(Use use) const {
#pragma unroll 1
        for (int start = lane + KEPT * ROW_THREADS; start < vectors; start += LOADED * ROW_THREADS) {
            Pack<WIDTH> packs[LOADED];
#pragma unroll
            for (int i = 0; i < LOADED; ++i) {
                const int vector = start + i * ROW_THREADS;
                if (vector < vectors) packs[i] = load<WIDTH, STREAM>(from, vector);
            }
#pragma unroll
            for (int i = 0; i < LOADED; ++i) {
                const int vector = start + i * ROW_THREADS;
                if (vector < vectors) use(vector, packs[i]);
            }
        }
    }
};

// The vectors of a row that a thread keeps between the passes.
template <int WIDTH, int KEPT>
struct Keep {
    int step;  // how many groups the block has worked through
#if CACHE == 2
    Pack<WIDTH> packs[KEPT > 0 ? KEPT : 1];
#endif

    static __device__ __forceinline__ Pack<WIDTH> *slot(int buffer, int i) {
        return reinterpret_cast<Pack<WIDTH> *>(shared_storage) + (buffer * WORK + i) * THREADS + threadIdx.x;
    }

    __device__ __forceinline__ Pack<WIDTH> &at(int i) {
#if CACHE == 2
        return packs[i];
#else
        return *slot(PREFETCH > 0 ? step % (PREFETCH + 1) : 0, i);
#endif
    }

#if PREFETCH > 0
    // Starts to copy the vectors of the row that comes `ahead` steps after the present one.
    __device__ __forceinline__ void fetch(const Row<WIDTH, KEPT> &row, int ahead) {
        row.each_kept([&](int i, int vector) {
            Pack<WIDTH> *to = slot((step + ahead) % BUFFERS, i);
            if (sizeof(*to) >= 4) {
                __pipeline_memcpy_async(to, reinterpret_cast<const Pack<WIDTH> *>(row.from) + vector, sizeof(*to));
            } else {
                *to = load<WIDTH, STREAM>(row.from, vector);
            }
        });
        __pipeline_commit();
    }
#endif

    // Has the row's vectors ready in at(), and those of the row `ahead` on their way.
    __device__ __forceinline__ void take(const Row<WIDTH, KEPT> &row, const Row<WIDTH, KEPT> &ahead) {
#if PREFETCH == 0
        (void)ahead;
        row.each_kept([&](int i, int vector) { at(i) = load<WIDTH, STREAM>(row.from, vector); });
#elif CACHE == 1
        fetch(ahead, PREFETCH);
        __pipeline_wait_prior(PREFETCH);
#else
        __pipeline_wait_prior(PREFETCH - 1);
        row.each_kept([&](int i, int) { at(i) = *slot(step % BUFFERS, i); });
        fetch(ahead, PREFETCH);
#endif
    }
};

// The deviations of a row's elements are scale * (x - near) + offset. Two terms, since the mean of a row far from zero
// has no float that is near enough.
struct Scaling {
    float near, scale, offset;

    // mean: relative to `near`
    __device__ __forceinline__ Scaling(float near, float mean, float variance, float eps) : near(near) {
        scale = rsqrtf(fmaxf(variance, 0.0f) + eps);
        offset = -mean * scale;
    }
};

template <int WIDTH>
__device__ __forceinline__ void add_elements(Sum &sum, const Pack<WIDTH> &pack) {
    const Floats<WIDTH> values = decoded(pack);
#pragma unroll
    for (int i = 0; i < WIDTH; ++i) sum.value += values.at[i];
}

template <int WIDTH>
__device__ __forceinline__ void add_differences(SumAndSquares &about, const Pack<WIDTH> &pack, float near) {
    const Floats<WIDTH> values = decoded(pack);
#pragma unroll
    for (int i = 0; i < WIDTH; ++i) {
        const float difference = values.at[i] - near;
        about.sum += difference;
        about.squares += difference * difference;
    }
}

// Of one vector, relative to `near`.
template <int WIDTH>
__device__ __forceinline__ Moments moments_of(const Pack<WIDTH> &pack, float near) {
    const Floats<WIDTH> values = decoded(pack);
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < WIDTH; ++i) sum += values.at[i] - near;
    Moments moments = {WIDTH, sum / WIDTH, 0.0f};
#pragma unroll
    for (int i = 0; i < WIDTH; ++i) {
        const float difference = values.at[i] - near - moments.mean;
        moments.squares += difference * difference;
    }
    return moments;
}

// first: of the row's elements; share: what one of them contributes to a mean
template <int WIDTH, int KEPT>
__device__ __forceinline__ Scaling scaling_of(
    const Row<WIDTH, KEPT> &row, Keep<WIDTH, KEPT> &keep, float first, Reduction &reduce, float share, float eps) {
#ifdef STATISTICS_WELFORD
    Moments moments = {0.0f, 0.0f, 0.0f};
    row.each_kept([&](int i, int) { moments = moments.with(moments_of(keep.at(i), first)); });
    row.each_other([&](int, const Pack<WIDTH> &pack) { moments = moments.with(moments_of(pack, first)); });
    moments = reduce(moments);
    return Scaling(first, moments.mean, moments.squares * share, eps);
#else
    float near = first;
#ifdef STATISTICS_TWO_PASS
    Sum sum = {0.0f};
    row.each_kept([&](int i, int) { add_elements(sum, keep.at(i)); });
    row.each_other([&](int, const Pack<WIDTH> &pack) { add_elements(sum, pack); });
    near = reduce(sum).value * share;
#endif
    SumAndSquares about = {0.0f, 0.0f};
    row.each_kept([&](int i, int) { add_differences(about, keep.at(i), near); });
    row.each_other([&](int, const Pack<WIDTH> &pack) { add_differences(about, pack, near); });
    about = reduce(about);
    const float mean = about.sum * share;
    return Scaling(near, mean, about.squares * share - mean * mean, eps);
#endif
}

template <int WIDTH>
__device__ __forceinline__ Pack<WIDTH> applied(
    const Pack<WIDTH> &x, const Scaling &scaling, const Pack<WIDTH> &gamma, const Pack<WIDTH> &beta) {
    Floats<WIDTH> values = decoded(x);
    const Floats<WIDTH> factors = decoded(gamma), terms = decoded(beta);
#pragma unroll
    for (int i = 0; i < WIDTH; ++i) {
        const float deviation = (values.at[i] - scaling.near) * scaling.scale + scaling.offset;
        values.at[i] = deviation * factors.at[i] + terms.at[i];
    }
    return encoded(values);
}

// WIDTH: elements per access; KEPT: vectors that a thread keeps.
template <int WIDTH, int KEPT>
__device__ __forceinline__ void normalise(
    const Element *__restrict__ x, const Element *__restrict__ gamma, const Element *__restrict__ beta,
    Element *__restrict__ y, int rows, int cols, float eps) {
    typedef Row<WIDTH, KEPT> View;
    const int groups = (rows + ROWS - 1) / ROWS;
    const int stride = gridDim.x;
    const float share = 1.0f / cols;
#if AFFINE
    Pack<WIDTH> kept_gamma[KEPT > 0 ? KEPT : 1], kept_beta[KEPT > 0 ? KEPT : 1];
#pragma unroll
    for (int i = 0; i < KEPT; ++i) {
        const int vector = threadIdx.x % ROW_THREADS + i * ROW_THREADS;
        if (vector < cols / WIDTH) {
            kept_gamma[i] = load<WIDTH, false>(gamma, vector);
            kept_beta[i] = load<WIDTH, false>(beta, vector);
        }
    }
#endif
    Reduction reduce = {0};
    Keep<WIDTH, KEPT> keep;
    keep.step = 0;
#if PREFETCH > 0
#pragma unroll
    for (int ahead = 0; ahead < PREFETCH; ++ahead) {
        keep.fetch(View(x, y, blockIdx.x + ahead * stride, rows, cols), ahead);
    }
#endif
    float next_first = View(x, y, blockIdx.x, rows, cols).first();
#pragma unroll 1
    for (int group = blockIdx.x; keep.step < STEPS && group < groups; group += stride) {
        const View row(x, y, group, rows, cols);
        keep.take(row, View(x, y, group + PREFETCH * stride, rows, cols));
        const float first = next_first;
        if (STEPS > 1) next_first = View(x, y, group + stride, rows, cols).first();
        const Scaling scaling = scaling_of<WIDTH, KEPT>(row, keep, first, reduce, share, eps);
        row.each_kept([&](int i, int vector) {
#if AFFINE
            store<WIDTH>(row.to, vector, applied(keep.at(i), scaling, kept_gamma[i], kept_beta[i]));
#else
            const Pack<WIDTH> factors = load<WIDTH, false>(gamma, vector), terms = load<WIDTH, false>(beta, vector);
            store<WIDTH>(row.to, vector, applied(keep.at(i), scaling, factors, terms));
#endif
        });
        row.each_other([&](int vector, const Pack<WIDTH> &pack) {
            const Pack<WIDTH> factors = load<WIDTH, false>(gamma, vector), terms = load<WIDTH, false>(beta, vector);
            store<WIDTH>(row.to, vector, applied(pack, scaling, factors, terms));
        });
        ++keep.step;
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) layernorm(
    const Element *__restrict__ x, const Element *__restrict__ gamma, const Element *__restrict__ beta,
    Element *__restrict__ y, int rows, int cols, float eps) {
    if (cols % VEC == 0 && ((size_t)x | (size_t)gamma | (size_t)beta | (size_t)y) % sizeof(Pack<VEC>) == 0) {
        normalise<VEC, CACHE == 0 ? 0 : WORK>(x, gamma, beta, y, rows, cols, eps);
    } else {
        normalise<1, 0>(x, gamma, beta, y, rows, cols, eps);  // rows that start where no vector may
    }
}
