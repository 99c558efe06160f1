// Slow and plainly right: a block adds up one row at a time, in double.
extern "C" __global__ void spmv_reference(const int *offsets, const int *columns, const float *values, const float *x,
                                          float *y, int rows) {
    __shared__ double partial[256];
    for (int row = blockIdx.x; row < rows; row += gridDim.x) {
        double sum = 0.0;
        for (int at = offsets[row] + threadIdx.x; at < offsets[row + 1]; at += blockDim.x) {
            sum += (double)values[at] * x[columns[at]];
        }
        partial[threadIdx.x] = sum;
        __syncthreads();
        if (threadIdx.x == 0) {
            for (int i = 1; i < (int)blockDim.x; ++i) sum += partial[i];
            y[row] = (float)sum;
        }
        __syncthreads();
    }
}
