// Slow and plainly right: one row at a time, in double.
extern "C" __global__ void softmax_reference(const float *x, float *y, int rows, int cols) {
    const size_t threads = (size_t)gridDim.x * blockDim.x;
    for (size_t row = (size_t)blockIdx.x * blockDim.x + threadIdx.x; row < rows; row += threads) {
        const float *from = x + row * cols;
        double maximum = from[0];
        for (int i = 1; i < cols; ++i) maximum = from[i] > maximum ? from[i] : maximum;
        double sum = 0.0;
        for (int i = 0; i < cols; ++i) sum += exp((double)from[i] - maximum);
        for (int i = 0; i < cols; ++i) y[row * cols + i] = (float)(exp((double)from[i] - maximum) / sum);
    }
}
