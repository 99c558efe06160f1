// Slow and plainly right: one row at a time, in double.
#include <math.h>
#include <stddef.h>

void softmax_reference(const float *x, float *y, int rows, int cols) {
    for (int row = 0; row < rows; ++row) {
        const float *from = x + (size_t)row * cols;
        float *to = y + (size_t)row * cols;
        double maximum = from[0];
        for (int i = 1; i < cols; ++i) maximum = from[i] > maximum ? from[i] : maximum;
        double sum = 0.0;
        for (int i = 0; i < cols; ++i) sum += exp((double)from[i] - maximum);
        for (int i = 0; i < cols; ++i) to[i] = (float)(exp((double)from[i] - maximum) / sum);
    }
}
