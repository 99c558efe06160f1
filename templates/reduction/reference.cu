// Slow and plainly right: a block adds up one row at a time, in double.
extern "C" __global__ void reduction_reference(const float *x, float *y, float *, int *, int rows, int cols) {
    __shared__ double partial[256];
    for (int row = blockIdx.x; row < rows; row += gridDim.x) {
        const float *from = x + (size_t)row * cols;
#ifdef OPERATION_MAX
        double total = from[0];
        for (int i = threadIdx.x; i < cols; i += blockDim.x) total = fmax(total, (double)from[i]);
#else
        double total = 0.0;
#pragma unroll 16
        for (int i = threadIdx.x; i < cols; i += blockDim.x) total += from[i];
#endif
        partial[threadIdx.x] = total;
        __syncthreads();
        if (threadIdx.x == 0) {
            for (int i = 1; i < (int)blockDim.x; ++i) {
#ifdef OPERATION_MAX
                total = fmax(total, partial[i]);
#else
                total += partial[i];
#endif
            }
            y[row] = (float)total;
        }
        __syncthreads();
    }
}
