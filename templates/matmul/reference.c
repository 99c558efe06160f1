// Slow and plainly right: one output element at a time, summed in double.
#include <stddef.h>

void matmul_reference(const float *A, const float *B, float *C, float *sums, int *tickets, int m, int n, int k) {
    (void)sums, (void)tickets;
    for (int row = 0; row < m; ++row) {
        for (int column = 0; column < n; ++column) {
            double sum = 0.0;
            for (int step = 0; step < k; ++step) {
#ifdef A_LAYOUT_COLUMN
                const double a = A[(size_t)step * m + row];
#else
                const double a = A[(size_t)row * k + step];
#endif
#ifdef B_LAYOUT_COLUMN
                const double b = B[(size_t)column * k + step];
#else
                const double b = B[(size_t)step * n + column];
#endif
                sum += a * b;
            }
            C[(size_t)row * n + column] = (float)sum;
        }
    }
}
