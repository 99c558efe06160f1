// float16 of CUDA's header of this name, what kernels commonly use of it.

#pragma once

#include "small_floats.h"

typedef emulator::Small<emulator::Float16> __half;
typedef emulator::SmallPair<emulator::Float16> __half2;
typedef __half half;
typedef __half2 half2;

SMALL_ARITHMETIC(__half, __half2)

inline __half __float2half(float x) { return __half(x); }
inline __half __float2half_rn(float x) { return __half(x); }
inline __half __double2half(double x) { return __half(x); }
inline float __half2float(__half x) { return x; }
inline __half2 __floats2half2_rn(float x, float y) { return {x, y}; }
inline __half2 __float22half2_rn(float2 pair) { return {pair.x, pair.y}; }
inline __half2 __float2half2_rn(float x) { return {x, x}; }
inline __half2 __half2half2(__half x) { return {x, x}; }
inline __half2 __halves2half2(__half x, __half y) { return {x, y}; }
inline __half2 make_half2(__half x, __half y) { return {x, y}; }
inline float2 __half22float2(__half2 pair) { return {pair.x, pair.y}; }
inline __half __low2half(__half2 pair) { return pair.x; }
inline __half __high2half(__half2 pair) { return pair.y; }
inline unsigned short __half_as_ushort(__half x) { return x.raw; }
inline __half __ushort_as_half(unsigned short raw) { return __half::of_bits(raw); }
