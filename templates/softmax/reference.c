// Slow and plainly right: one row at a time, in double.
#include <math.h>
#include <stddef.h>
#include <string.h>

#ifdef DTYPE_BFLOAT16
typedef unsigned short element;  // the bits of a bfloat16

static double number(element stored) {
    const unsigned bits = (unsigned)stored << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

// To nearest, ties to even; NaN stays NaN.
static element rounded(double number) {
    const float value = (float)number;
    unsigned bits;
    memcpy(&bits, &value, sizeof bits);
    return isnan(value) ? 0x7fc0 : (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}
#else
typedef float element;

static double number(element stored) { return stored; }
static element rounded(double number) { return (float)number; }
#endif

void softmax_reference(const element *x, element *y, int rows, int cols) {
    for (int row = 0; row < rows; ++row) {
        const element *from = x + (size_t)row * cols;
        element *to = y + (size_t)row * cols;
        double maximum = number(from[0]);
        for (int i = 1; i < cols; ++i) maximum = number(from[i]) > maximum ? number(from[i]) : maximum;
        double sum = 0.0;
        for (int i = 0; i < cols; ++i) sum += exp(number(from[i]) - maximum);
        for (int i = 0; i < cols; ++i) to[i] = rounded(exp(number(from[i]) - maximum) / sum);
    }
}
