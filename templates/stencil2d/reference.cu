// Slow and plainly right: one element at a time, in double.
__device__ double element(const float *x, int height, int width, int i, int j) {
    return i >= 0 && i < height && j >= 0 && j < width ? x[(size_t)i * width + j] : 0.0;
}

extern "C" __global__ void stencil2d_reference(const float *x, float *y, int height, int width, float centre,
                                               float side) {
    const size_t threads = (size_t)gridDim.x * blockDim.x, count = (size_t)height * width;
    for (size_t at = (size_t)blockIdx.x * blockDim.x + threadIdx.x; at < count; at += threads) {
        const int i = at / width, j = at % width;
        const double around = element(x, height, width, i - 1, j) + element(x, height, width, i + 1, j) +
                              element(x, height, width, i, j - 1) + element(x, height, width, i, j + 1);
        y[at] = (float)(centre * element(x, height, width, i, j) + side * around);
    }
}
