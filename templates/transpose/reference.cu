// One element at a time.
extern "C" __global__ void transpose_reference(const float *x, float *y, int rows, int cols) {
    const size_t threads = (size_t)gridDim.x * blockDim.x;
    const size_t elements = (size_t)rows * cols;
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < elements; i += threads) {
        y[i % cols * rows + i / cols] = x[i];
    }
}
