// z = alpha * x + y over n elements, for any n >= 1; float32 or bfloat16 in memory, float32 in between.
//
//   BLOCK   threads
//   VEC     elements per load and store (where the arrays are aligned for it)
//   ITEMS   vectors that a thread loads before it uses the first of them
//   STEPS   how often a block does that, as far apart as all blocks reach together (a grid-stride loop); 1: once
//   ORDER   blocked: a block's vectors of one step are neighbours; strided: all blocks' first vectors come before all
//           second ones
//   LOADS   plain; read_only: through the read-only path; streaming: as data that is not used again
//   STORES  plain; streaming: as data that is not used again

#ifdef DTYPE_BFLOAT16
#include <cuda_bf16.h>
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

// A vector as it lies in memory.
template <int WIDTH>
union Pack {
    typename WideOf<WIDTH * sizeof(Element)>::type wide;
    Element at[WIDTH];
};

__device__ __forceinline__ float number(Element stored) {
#ifdef DTYPE_BFLOAT16
    return __int_as_float((unsigned)stored << 16);
#else
    return stored;
#endif
}

__device__ __forceinline__ Element rounded(float value) {
#ifdef DTYPE_BFLOAT16
    return __bfloat16_as_ushort(__float2bfloat16(value));
#else
    return value;
#endif
}

template <int WIDTH>
__device__ __forceinline__ Pack<WIDTH> load(const Element *from, long long vector) {
    const auto *address = &reinterpret_cast<const Pack<WIDTH> *>(from)[vector].wide;
    Pack<WIDTH> pack;
#if defined(LOADS_STREAMING)
    pack.wide = __ldcs(address);
#elif defined(LOADS_READ_ONLY)
    pack.wide = __ldg(address);
#else
    pack.wide = *address;
#endif
    return pack;
}

template <int WIDTH>
__device__ __forceinline__ void store(Element *to, long long vector, const Pack<WIDTH> &pack) {
    auto *address = &reinterpret_cast<Pack<WIDTH> *>(to)[vector].wide;
#ifdef STORES_STREAMING
    __stcs(address, pack.wide);
#else
    *address = pack.wide;
#endif
}

template <int WIDTH>
__device__ __forceinline__ Pack<WIDTH> combined(float alpha, const Pack<WIDTH> &x, const Pack<WIDTH> &y) {
    Pack<WIDTH> z;
#pragma unroll
    for (int i = 0; i < WIDTH; ++i) z.at[i] = rounded(alpha * number(x.at[i]) + number(y.at[i]));
    return z;
}

// Whole vectors; what is left of the last one goes to the first threads of the grid.
template <int WIDTH>
__device__ __forceinline__ void work_through(const Element *x, const Element *y, Element *z, int n, float alpha) {
    const int vectors = n / WIDTH;
#ifdef ORDER_STRIDED
    const long long apart = (long long)gridDim.x * BLOCK;  // of a thread's vectors
    const long long mine = (long long)blockIdx.x * BLOCK + threadIdx.x;
#else
    const long long apart = BLOCK;
    const long long mine = (long long)blockIdx.x * BLOCK * ITEMS + threadIdx.x;
#endif
    const long long step = (long long)gridDim.x * BLOCK * ITEMS;
    long long start = mine;
#pragma unroll 1
    for (int done = 0; done < STEPS * (VEC / WIDTH) && start < vectors; ++done, start += step) {
        Pack<WIDTH> xs[ITEMS], ys[ITEMS];
#pragma unroll
        for (int i = 0; i < ITEMS; ++i) {
            if (start + i * apart < vectors) {
                xs[i] = load<WIDTH>(x, start + i * apart);
                ys[i] = load<WIDTH>(y, start + i * apart);
            }
        }
#pragma unroll
        for (int i = 0; i < ITEMS; ++i) {
            if (start + i * apart < vectors) store<WIDTH>(z, start + i * apart, combined(alpha, xs[i], ys[i]));
        }
    }
    const int left = n - vectors * WIDTH;
    if (blockIdx.x == 0 && threadIdx.x < left) {
        const int i = n - 1 - threadIdx.x;
        store<1>(z, i, combined(alpha, load<1>(x, i), load<1>(y, i)));
    }
}

extern "C" __global__ void __launch_bounds__(BLOCK) elementwise(
    const Element *__restrict__ x, const Element *__restrict__ y, Element *__restrict__ z, int n, float alpha) {
    if (((size_t)x | (size_t)y | (size_t)z) % sizeof(Pack<VEC>) == 0) {
        work_through<VEC>(x, y, z, n, alpha);
    } else {
        work_through<1>(x, y, z, n, alpha);
    }
}
