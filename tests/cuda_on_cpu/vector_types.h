// float4 and its like, with CUDA's alignment.

#pragma once

#define VECTOR_TYPES(name, element, align2, align4)                                                          \
    struct name##1 {                                                                                         \
        element x;                                                                                           \
    };                                                                                                       \
    struct alignas(align2) name##2 {                                                                         \
        element x, y;                                                                                        \
    };                                                                                                       \
    struct name##3 {                                                                                         \
        element x, y, z;                                                                                     \
    };                                                                                                       \
    struct alignas(align4) name##4 {                                                                         \
        element x, y, z, w;                                                                                  \
    };                                                                                                       \
    inline name##1 make_##name##1(element x) { return {x}; }                                                 \
    inline name##2 make_##name##2(element x, element y) { return {x, y}; }                                   \
    inline name##3 make_##name##3(element x, element y, element z) { return {x, y, z}; }                     \
    inline name##4 make_##name##4(element x, element y, element z, element w) { return {x, y, z, w}; }

VECTOR_TYPES(char, signed char, 2, 4)
VECTOR_TYPES(uchar, unsigned char, 2, 4)
VECTOR_TYPES(short, short, 4, 8)
VECTOR_TYPES(ushort, unsigned short, 4, 8)
VECTOR_TYPES(int, int, 8, 16)
VECTOR_TYPES(uint, unsigned, 8, 16)
VECTOR_TYPES(longlong, long long, 16, 16)
VECTOR_TYPES(ulonglong, unsigned long long, 16, 16)
VECTOR_TYPES(float, float, 8, 16)
VECTOR_TYPES(double, double, 16, 16)

struct dim3 {
    unsigned x = 1, y = 1, z = 1;
};
