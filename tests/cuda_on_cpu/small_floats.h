// Floating-point types of 16 bits, computed with in binary32 and rounded to nearest even after every operation.

#pragma once

#include "cuda_on_cpu.h"

namespace emulator {

// `Format` has of(float) -> bits and value(bits) -> float.
template <typename Format>
struct Small {
    unsigned short raw;

    Small() = default;
    Small(float x) : raw(Format::of(x)) {}
    Small(double x) : raw(Format::of(static_cast<float>(x))) {}
    Small(int x) : raw(Format::of(static_cast<float>(x))) {}
    operator float() const { return Format::value(raw); }

    static Small of_bits(unsigned short raw) {
        Small result;
        result.raw = raw;
        return result;
    }

    friend Small operator+(Small a, Small b) { return Small(float(a) + float(b)); }
    friend Small operator-(Small a, Small b) { return Small(float(a) - float(b)); }
    friend Small operator*(Small a, Small b) { return Small(float(a) * float(b)); }
    friend Small operator/(Small a, Small b) { return Small(float(a) / float(b)); }
    friend Small operator-(Small a) { return of_bits(a.raw ^ 0x8000); }
    friend bool operator==(Small a, Small b) { return float(a) == float(b); }
    friend bool operator!=(Small a, Small b) { return float(a) != float(b); }
    friend bool operator<(Small a, Small b) { return float(a) < float(b); }
    friend bool operator>(Small a, Small b) { return float(a) > float(b); }
    friend bool operator<=(Small a, Small b) { return float(a) <= float(b); }
    friend bool operator>=(Small a, Small b) { return float(a) >= float(b); }
    Small &operator+=(Small other) { return *this = *this + other; }
    Small &operator-=(Small other) { return *this = *this - other; }
    Small &operator*=(Small other) { return *this = *this * other; }
};

template <typename Format>
struct alignas(4) SmallPair {
    Small<Format> x, y;
};

struct Bfloat16 {
    static float value(unsigned short raw) { return bits<float>(static_cast<unsigned>(raw) << 16); }
    static unsigned short of(float x) {
        const unsigned whole = bits<unsigned>(x);
        if (x != x) return 0x7fff;
        return static_cast<unsigned short>((whole + 0x7fff + (whole >> 16 & 1)) >> 16);
    }
};

struct Float16 {
    static float value(unsigned short raw) { return static_cast<float>(bits<_Float16>(raw)); }
    static unsigned short of(float x) { return bits<unsigned short>(static_cast<_Float16>(x)); }
};

}  // namespace emulator

// Arithmetic that both types have under the same names.
#define SMALL_ARITHMETIC(type, pair)                                                                              \
    inline type __hadd(type a, type b) { return a + b; }                                                          \
    inline type __hsub(type a, type b) { return a - b; }                                                          \
    inline type __hmul(type a, type b) { return a * b; }                                                          \
    inline type __hdiv(type a, type b) { return a / b; }                                                          \
    inline type __hneg(type a) { return -a; }                                                                     \
    inline type __habs(type a) { return type::of_bits(a.raw & 0x7fff); }                                          \
    inline type __hfma(type a, type b, type c) { return type(fmaf(a, b, c)); }                                    \
    inline type __hmax(type a, type b) { return type(fmaxf(a, b)); }                                              \
    inline type __hmin(type a, type b) { return type(fminf(a, b)); }                                              \
    inline bool __heq(type a, type b) { return a == b; }                                                          \
    inline bool __hlt(type a, type b) { return a < b; }                                                           \
    inline bool __hgt(type a, type b) { return a > b; }                                                           \
    inline pair __hadd2(pair a, pair b) { return {a.x + b.x, a.y + b.y}; }                                        \
    inline pair __hsub2(pair a, pair b) { return {a.x - b.x, a.y - b.y}; }                                        \
    inline pair __hmul2(pair a, pair b) { return {a.x * b.x, a.y * b.y}; }                                        \
    inline pair __hfma2(pair a, pair b, pair c) { return {__hfma(a.x, b.x, c.x), __hfma(a.y, b.y, c.y)}; }        \
    inline pair __hmax2(pair a, pair b) { return {__hmax(a.x, b.x), __hmax(a.y, b.y)}; }                          \
    inline pair __hmin2(pair a, pair b) { return {__hmin(a.x, b.x), __hmin(a.y, b.y)}; }                          \
    inline float __low2float(pair a) { return a.x; }                                                              \
    inline float __high2float(pair a) { return a.y; }
