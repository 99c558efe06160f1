// What the worker asks of its own device about outputs, inputs and guard bands, so that they need not cross the bus.
//
// Every block leaves its share of each number in `partials`, in a row of its own, the first of which begins at word
// `first`; the host adds the rows up, in an order that is always the same. Blocks have a power of two of threads and 8 bytes of dynamic shared memory for each.

typedef unsigned char Byte;
typedef unsigned long long Word;

extern __shared__ float4 shared_storage[];

struct Add {
    template <typename T>
    static __device__ T of(T a, T b) { return a + b; }
};

struct Max {
    template <typename T>
    static __device__ T of(T a, T b) { return a > b ? a : b; }
};

// Every thread of the block must take part; the first one stores what came out.
template <typename Join, typename T>
__device__ void leave(T mine, T *share) {
    T *joined = (T *)shared_storage;
    const int thread = (int)threadIdx.x;
    joined[thread] = mine;
    __syncthreads();
    for (int half = (int)blockDim.x / 2; half > 0; half /= 2) {
        if (thread < half) joined[thread] = Join::of(joined[thread], joined[thread + half]);
        __syncthreads();
    }
    if (thread == 0) *share = joined[0];
    __syncthreads();
}

__device__ long long first_index() { return (long long)blockIdx.x * (long long)blockDim.x + (long long)threadIdx.x; }

__device__ long long all_threads() { return (long long)gridDim.x * (long long)blockDim.x; }

__device__ bool is_finite(double value) { return value - value == 0.0; }

// How a type is stored, and its elements as numbers.

template <typename T>
struct Plain {
    typedef T Stored;
    static __device__ double number(T value) { return (double)value; }
};

struct Half {
    typedef unsigned short Stored;
    static __device__ double number(unsigned short bits) {
        const unsigned magnitude = (bits & 0x7fffu) << 13;
        const bool special = (bits & 0x7c00u) == 0x7c00u;
        // The exponents' biases differ by 112, also for the smallest numbers, which are not normalised.
        const double value = special ? __int_as_float(magnitude | 0x7f800000u)
                                     : __int_as_float(magnitude) * 5192296858534827628530496329220096.0;
        return bits & 0x8000u ? -value : value;
    }
};

struct Brain {
    typedef unsigned short Stored;
    static __device__ double number(unsigned short bits) { return __int_as_float((unsigned)bits << 16); }
};

// Seven numbers, those of `Sums` in checking.py and in its order.
template <typename Type, bool exact>
__device__ void compare(const void *out, const void *reference, long long count, double *partials, long long first) {
    const typename Type::Stored *outs = (const typename Type::Stored *)out;
    const typename Type::Stored *references = (const typename Type::Stored *)reference;
    double elements = 0.0, square = 0.0, peak = 0.0, reference_square = 0.0, reference_peak = 0.0;
    double unfinite = 0.0, differing = 0.0;
    for (long long i = first_index(); i < count; i += all_threads()) {
        const double got = Type::number(outs[i]), want = Type::number(references[i]);
        elements += 1.0;
        if (exact && outs[i] != references[i]) differing += 1.0;
        if (!is_finite(want)) continue;
        reference_square += want * want;
        reference_peak = Max::of(reference_peak, fabs(want));
        if (!is_finite(got)) {
            unfinite += 1.0;
            continue;
        }
        const double difference = got - want;
        square += difference * difference;
        peak = Max::of(peak, fabs(difference));
    }
    double *share = partials + first + 7 * (long long)blockIdx.x;
    leave<Add>(elements, share);
    leave<Add>(square, share + 1);
    leave<Max>(peak, share + 2);
    leave<Add>(reference_square, share + 3);
    leave<Max>(reference_peak, share + 4);
    leave<Add>(unfinite, share + 5);
    leave<Add>(differing, share + 6);
}

#define COMPARE(name, type, exact)                                                                                   \
    extern "C" __global__ void compare_##name(const void *out, const void *reference, long long count,               \
                                              double *partials, long long first) {                                   \
        compare<type, exact>(out, reference, count, partials, first);                                                \
    }

COMPARE(float16, Half, false)
COMPARE(bfloat16, Brain, false)
COMPARE(float32, Plain<float>, false)
COMPARE(float64, Plain<double>, false)
COMPARE(int8, Plain<signed char>, true)
COMPARE(int16, Plain<short>, true)
COMPARE(int32, Plain<int>, true)
COMPARE(int64, Plain<long long>, true)
COMPARE(uint8, Plain<unsigned char>, true)
COMPARE(uint16, Plain<unsigned short>, true)
COMPARE(uint32, Plain<unsigned>, true)
COMPARE(uint64, Plain<unsigned long long>, true)

// How many bytes were looked at, and how many words (of 8 bytes; the last may be shorter) are not equal.
extern "C" __global__ void differing_words(const Byte *one, const Byte *other, long long nbytes, double *partials,
                                           long long first) {
    const Word *ones = (const Word *)one, *others = (const Word *)other;
    double seen = 0.0, differing = 0.0;
    for (long long i = first_index(); i < nbytes / 8; i += all_threads()) {
        seen += 8.0;
        if (ones[i] != others[i]) differing += 1.0;
    }
    if (first_index() == 0) {
        for (long long i = nbytes / 8 * 8; i < nbytes; ++i) {
            seen += 1.0;
            if (one[i] != other[i]) differing += 1.0;
        }
    }
    double *share = partials + first + 2 * (long long)blockIdx.x;
    leave<Add>(seen, share);
    leave<Add>(differing, share + 1);
}

// How many bytes of the bands were looked at, and how many before and after the payload are not the pattern.
extern "C" __global__ void broken_guards(const Byte *payload, long long before, long long nbytes, long long after,
                                         int pattern, double *partials, long long first) {
    double seen = 0.0, broken_before = 0.0, broken_after = 0.0;
    for (long long i = first_index(); i < before; i += all_threads()) {
        seen += 1.0;
        if (payload[i - before] != pattern) broken_before += 1.0;
    }
    for (long long i = first_index(); i < after; i += all_threads()) {
        seen += 1.0;
        if (payload[nbytes + i] != pattern) broken_after += 1.0;
    }
    double *share = partials + first + 3 * (long long)blockIdx.x;
    leave<Add>(seen, share);
    leave<Add>(broken_before, share + 1);
    leave<Add>(broken_after, share + 2);
}

// The finaliser of splitmix64 (S. Vigna, 2015): every bit of a word matters, and so does its place.
__device__ Word mixed(Word word, Word place) {
    word ^= (place + 1) * 0x9e3779b97f4a7c15ull;
    word = (word ^ (word >> 30)) * 0xbf58476d1ce4e5b9ull;
    word = (word ^ (word >> 27)) * 0x94d049bb133111ebull;
    return word ^ (word >> 31);
}

// A number modulo 2^64 that tells whether bytes are still the same.
extern "C" __global__ void fingerprint(const Byte *bytes, long long nbytes, Word *partials, long long first) {
    const Word *words = (const Word *)bytes;
    Word sum = 0;
    for (long long i = first_index(); i < nbytes / 8; i += all_threads()) sum += mixed(words[i], (Word)i);
    if (first_index() == 0) {
        for (long long i = nbytes / 8 * 8; i < nbytes; ++i) sum += mixed(bytes[i], ~(Word)i);
    }
    leave<Add>(sum, partials + first + (long long)blockIdx.x);
}

// Leaves NaN in all of a block's shared memory, for the kernel that comes next.
extern "C" __global__ void spoil_shared(long long nbytes) {
    volatile Word *words = (volatile Word *)shared_storage;
    for (long long i = (long long)threadIdx.x; i < nbytes / 8; i += (long long)blockDim.x) words[i] = ~(Word)0;
}
