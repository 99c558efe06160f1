// Slow and plainly right: one output element at a time, summed in double.
extern "C" __global__ void matmul_reference(const float *A, const float *B, float *C, float *, int *, int m, int n, int k) {
    const size_t count = (size_t)m * n;
    const size_t threads = (size_t)gridDim.x * blockDim.x;
    for (size_t element = (size_t)blockIdx.x * blockDim.x + threadIdx.x; element < count; element += threads) {
        const size_t row = element / n, column = element % n;
        double sum = 0.0;
        for (int step = 0; step < k; ++step) {
#ifdef A_LAYOUT_COLUMN
            const double a = A[(size_t)step * m + row];
#else
            const double a = A[row * k + step];
#endif
#ifdef B_LAYOUT_COLUMN
            const double b = B[column * k + step];
#else
            const double b = B[(size_t)step * n + column];
#endif
            sum += a * b;
        }
        C[element] = (float)sum;
    }
}
