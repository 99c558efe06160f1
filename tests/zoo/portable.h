// What lets one text be a CUDA kernel and a C function. Every thread takes elements in strides; C takes all in turn.
#pragma once

#if defined(__CUDACC__)
#define KERNEL(name, ...) extern "C" __global__ void name(__VA_ARGS__)
#define EACH(i, n) for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < (n); i += gridDim.x * blockDim.x)
#define STATE static __device__
#define HELPER static __device__
#define APART __noinline__
#define ADD_TO(place, value) atomicAdd(&(place), (value))
#define BITS(value) __float_as_uint(value)
#define FROM_BITS(bits) __uint_as_float(bits)
static __device__ unsigned long long clock_ns(void) {
    unsigned long long now_ns;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now_ns));
    return now_ns;
}
#else
#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>
static inline unsigned long long clock_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return 1000000000ull * (unsigned long long)now.tv_sec + (unsigned long long)now.tv_nsec;
}
#define KERNEL(name, ...) void name(__VA_ARGS__)
#define EACH(i, n) for (int i = 0; i < (n); ++i)
#define STATE static
#define HELPER static
#define APART __attribute__((noinline))
#define ADD_TO(place, value) ((place) += (value))
union FloatBits {
    float value;
    unsigned bits;
};
#define BITS(number) ((union FloatBits){.value = (number)}).bits
#define FROM_BITS(pattern) ((union FloatBits){.bits = (pattern)}).value
#endif

// How elements of the problem's type are stored, and what is added up in.
#if defined(DTYPE_FLOAT64)
typedef double Stored;
typedef double Wide;
#define LOAD(place) (place)
#define STORED(value) (value)
#elif defined(DTYPE_BFLOAT16)
typedef unsigned short Stored;
typedef float Wide;
#define LOAD(place) FROM_BITS((unsigned)(place) << 16)
HELPER unsigned short to_bfloat16(float value) {
    const unsigned bits = BITS(value);
    return (unsigned short)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}
#define STORED(value) to_bfloat16((float)(value))
#elif defined(DTYPE_FLOAT16) && defined(__CUDACC__)
typedef unsigned short Stored;
typedef float Wide;
HELPER float from_half(unsigned short bits) {
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
    return value;
}
HELPER unsigned short to_half(float value) {
    unsigned short bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return bits;
}
#define LOAD(place) from_half(place)
#define STORED(value) to_half((float)(value))
#elif defined(DTYPE_FLOAT16)
typedef _Float16 Stored;
typedef float Wide;
#define LOAD(place) ((float)(place))
#define STORED(value) ((_Float16)(value))
#else
typedef float Stored;
typedef float Wide;
#define LOAD(place) (place)
#define STORED(value) ((float)(value))
#endif
