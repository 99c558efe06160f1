// Slow and plainly right: one output element at a time, summed in double.
#ifdef DTYPE_FLOAT16
#include <cuda_fp16.h>
typedef __half Element;
__device__ double value(Element x) { return __half2float(x); }
__device__ Element rounded(double x) { return __float2half((float)x); }
#else
#include <cuda_bf16.h>
typedef __nv_bfloat16 Element;
__device__ double value(Element x) { return __bfloat162float(x); }
__device__ Element rounded(double x) { return __float2bfloat16((float)x); }
#endif

extern "C" __global__ void matmul_half_reference(const Element *A, const Element *B, Element *C, float *, int *, int m,
                                                 int n, int k, int) {
#ifdef A_LAYOUT_COLUMN
    const size_t a_row = 1, a_step = m;
#else
    const size_t a_row = k, a_step = 1;
#endif
#ifdef B_LAYOUT_COLUMN
    const size_t b_step = 1, b_column = k;
#else
    const size_t b_step = n, b_column = 1;
#endif
    const size_t count = (size_t)m * n;
    const size_t threads = (size_t)gridDim.x * blockDim.x;
    for (size_t element = (size_t)blockIdx.x * blockDim.x + threadIdx.x; element < count; element += threads) {
        const Element *a = A + element / n * a_row;
        const Element *b = B + element % n * b_column;
        double sum = 0.0;
        for (int step = 0; step < k; ++step) sum += value(a[step * a_step]) * value(b[step * b_step]);
        C[element] = rounded(sum);
    }
}
