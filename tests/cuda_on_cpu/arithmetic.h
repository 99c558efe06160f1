// Device functions on numbers and memory: intrinsics, caching loads and stores, atomics.

#pragma once

#include <type_traits>

namespace emulator {

template <typename To, typename From>
To bits(From from) {
    static_assert(sizeof(To) == sizeof(From));
    To to;
    memcpy(&to, &from, sizeof to);
    return to;
}

template <typename T>
T replace(T *at, T value) {
    const T old = *at;
    *at = value;
    return old;
}

template <typename T>
using Same = std::common_type_t<T>;  // not deduced: a literal of another type is converted

}  // namespace emulator

inline int __float_as_int(float x) { return emulator::bits<int>(x); }
inline unsigned __float_as_uint(float x) { return emulator::bits<unsigned>(x); }
inline float __int_as_float(int x) { return emulator::bits<float>(x); }
inline float __uint_as_float(unsigned x) { return emulator::bits<float>(x); }
inline long long __double_as_longlong(double x) { return emulator::bits<long long>(x); }
inline double __longlong_as_double(long long x) { return emulator::bits<double>(x); }

inline float __expf(float x) { return expf(x); }
inline float __exp10f(float x) { return powf(10.0f, x); }
inline float __logf(float x) { return logf(x); }
inline float __log2f(float x) { return log2f(x); }
inline float __powf(float x, float y) { return powf(x, y); }
inline float __sinf(float x) { return sinf(x); }
inline float __cosf(float x) { return cosf(x); }
inline float __fdividef(float x, float y) { return x / y; }
inline float fdividef(float x, float y) { return x / y; }
inline float __fdiv_rn(float x, float y) { return x / y; }
inline float __frcp_rn(float x) { return 1.0f / x; }
inline float __fsqrt_rn(float x) { return sqrtf(x); }
inline float __frsqrt_rn(float x) { return 1.0f / sqrtf(x); }
inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
inline double rsqrt(double x) { return 1.0 / sqrt(x); }
inline float __fadd_rn(float x, float y) { return x + y; }
inline float __fmul_rn(float x, float y) { return x * y; }
inline float __fmaf_rn(float x, float y, float z) { return fmaf(x, y, z); }
inline float __saturatef(float x) { return fminf(fmaxf(x, 0.0f), 1.0f); }
inline float __int2float_rn(int x) { return static_cast<float>(x); }
inline float __uint2float_rn(unsigned x) { return static_cast<float>(x); }
inline int __float2int_rn(float x) { return static_cast<int>(rintf(x)); }
inline int __float2int_rz(float x) { return static_cast<int>(x); }
inline int __float2int_rd(float x) { return static_cast<int>(floorf(x)); }
inline int __float2int_ru(float x) { return static_cast<int>(ceilf(x)); }

template <typename A, typename B>
std::common_type_t<A, B> min(A a, B b) {
    typedef std::common_type_t<A, B> T;
    if constexpr (std::is_floating_point_v<T>) return static_cast<T>(fmin(a, b));
    return static_cast<T>(a) < static_cast<T>(b) ? static_cast<T>(a) : static_cast<T>(b);
}

template <typename A, typename B>
std::common_type_t<A, B> max(A a, B b) {
    typedef std::common_type_t<A, B> T;
    if constexpr (std::is_floating_point_v<T>) return static_cast<T>(fmax(a, b));
    return static_cast<T>(a) < static_cast<T>(b) ? static_cast<T>(b) : static_cast<T>(a);
}

inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
inline int __clz(int x) { return x == 0 ? 32 : __builtin_clz(static_cast<unsigned>(x)); }
inline int __clzll(long long x) { return x == 0 ? 64 : __builtin_clzll(static_cast<unsigned long long>(x)); }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __ffsll(long long x) { return __builtin_ffsll(x); }
inline unsigned __umulhi(unsigned x, unsigned y) { return static_cast<unsigned>(1ull * x * y >> 32); }
inline int __mulhi(int x, int y) { return static_cast<int>(static_cast<long long>(x) * y >> 32); }
inline unsigned __brev(unsigned x) {
    unsigned result = 0;
    for (int i = 0; i < 32; ++i) result |= (x >> i & 1) << (31 - i);
    return result;
}
inline unsigned __byte_perm(unsigned x, unsigned y, unsigned selector) {
    const unsigned long long both = static_cast<unsigned long long>(y) << 32 | x;
    unsigned result = 0;
    for (int i = 0; i < 4; ++i) {
        const unsigned chosen = selector >> (4 * i);
        unsigned byte = static_cast<unsigned>(both >> (8 * (chosen & 7))) & 0xff;
        if (chosen & 8) byte = byte & 0x80 ? 0xff : 0;
        result |= byte << (8 * i);
    }
    return result;
}
inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned shift) {
    return static_cast<unsigned>(((static_cast<unsigned long long>(high) << 32 | low) << (shift & 31)) >> 32);
}
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift) {
    return static_cast<unsigned>((static_cast<unsigned long long>(high) << 32 | low) >> (shift & 31));
}

#define CACHING_LOAD(name)        \
    template <typename T>         \
    T name(const T *from) {       \
        return *from;             \
    }
CACHING_LOAD(__ldg)
CACHING_LOAD(__ldca)
CACHING_LOAD(__ldcg)
CACHING_LOAD(__ldcs)
CACHING_LOAD(__ldcv)
CACHING_LOAD(__ldlu)
#undef CACHING_LOAD

#define CACHING_STORE(name)                            \
    template <typename T>                              \
    void name(T *to, emulator::Same<T> value) {        \
        *to = value;                                   \
    }
CACHING_STORE(__stcg)
CACHING_STORE(__stcs)
CACHING_STORE(__stwb)
CACHING_STORE(__stwt)
#undef CACHING_STORE

#define ATOMIC(name, changed)                           \
    template <typename T>                               \
    T name(T *at, emulator::Same<T> value) {            \
        const T old = *at;                              \
        return emulator::replace<T>(at, changed);       \
    }
ATOMIC(atomicAdd, old + value)
ATOMIC(atomicSub, old - value)
ATOMIC(atomicMin, value < old ? value : old)
ATOMIC(atomicMax, old < value ? value : old)
ATOMIC(atomicExch, (static_cast<void>(old), value))
ATOMIC(atomicAnd, old & value)
ATOMIC(atomicOr, old | value)
ATOMIC(atomicXor, old ^ value)
ATOMIC(atomicInc, old >= value ? T{0} : old + 1)
ATOMIC(atomicDec, old == 0 || old > value ? value : old - 1)
#undef ATOMIC

template <typename T>
T atomicCAS(T *at, emulator::Same<T> compared, emulator::Same<T> value) {
    const T old = *at;
    if (old == compared) *at = value;
    return old;
}
