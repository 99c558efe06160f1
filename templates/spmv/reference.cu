// Slow and plainly right: one row at a time, in double.
extern "C" __global__ void spmv_reference(const int *offsets, const int *columns, const float *values, const float *x,
                                          float *y, int rows) {
    const int threads = gridDim.x * blockDim.x;
    for (int row = blockIdx.x * blockDim.x + threadIdx.x; row < rows; row += threads) {
        double sum = 0.0;
        for (int at = offsets[row]; at < offsets[row + 1]; ++at) sum += (double)values[at] * x[columns[at]];
        y[row] = (float)sum;
    }
}
