// Slow and plainly right: one row at a time, in double.
#ifdef DTYPE_BFLOAT16
#include <cuda_bf16.h>
typedef __nv_bfloat16 Element;
#else
typedef float Element;
#endif

extern "C" __global__ void softmax_reference(const Element *x, Element *y, int rows, int cols) {
    const size_t threads = (size_t)gridDim.x * blockDim.x;
    for (size_t row = (size_t)blockIdx.x * blockDim.x + threadIdx.x; row < rows; row += threads) {
        const Element *from = x + row * cols;
        double maximum = static_cast<float>(from[0]);
        for (int i = 1; i < cols; ++i) maximum = fmax(maximum, (double)static_cast<float>(from[i]));
        double sum = 0.0;
        for (int i = 0; i < cols; ++i) sum += exp(static_cast<float>(from[i]) - maximum);
        for (int i = 0; i < cols; ++i) {
            const double result = exp(static_cast<float>(from[i]) - maximum) / sum;
            y[row * cols + i] = static_cast<Element>(static_cast<float>(result));
        }
    }
}
