// Slow and plainly right: one output element at a time, summed in double.
#include <stddef.h>

void matmul_reference(const float *A, const float *B, float *C, int m, int n, int k) {
    for (int row = 0; row < m; ++row) {
        for (int column = 0; column < n; ++column) {
            double sum = 0.0;
            for (int step = 0; step < k; ++step) {
                sum += (double)A[(size_t)row * k + step] * (double)B[(size_t)step * n + column];
            }
            C[(size_t)row * n + column] = (float)sum;
        }
    }
}
