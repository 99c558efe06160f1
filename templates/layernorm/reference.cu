// Slow and plainly right: one row at a time, in double.
#ifdef DTYPE_BFLOAT16
#include <cuda_bf16.h>
typedef __nv_bfloat16 Element;
#else
typedef float Element;
#endif

extern "C" __global__ void layernorm_reference(
    const Element *x, const Element *gamma, const Element *beta, Element *y, int rows, int cols, float eps) {
    const size_t threads = (size_t)gridDim.x * blockDim.x;
    for (size_t row = (size_t)blockIdx.x * blockDim.x + threadIdx.x; row < rows; row += threads) {
        const Element *from = x + row * cols;
        double sum = 0.0, squares = 0.0;
        for (int i = 0; i < cols; ++i) sum += static_cast<float>(from[i]);
        const double mean = sum / cols;
        for (int i = 0; i < cols; ++i) {
            const double difference = static_cast<float>(from[i]) - mean;
            squares += difference * difference;
        }
        const double deviation = sqrt(squares / cols + eps);
        for (int i = 0; i < cols; ++i) {
            const double value = (static_cast<float>(from[i]) - mean) / deviation;
            const double result = value * static_cast<float>(gamma[i]) + static_cast<float>(beta[i]);
            y[row * cols + i] = static_cast<Element>(static_cast<float>(result));
        }
    }
}
