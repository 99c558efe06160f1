// Slow and plainly right: a block scans one row at a time, in double. Each thread adds up a contiguous part, then
// scans it.
extern "C" __global__ void scan_reference(const float *x, float *y, long long *, int *, int rows, int cols) {
    __shared__ double sums[256];
    const int length = (cols + (int)blockDim.x - 1) / (int)blockDim.x;
    const int first = min((long long)threadIdx.x * length, (long long)cols), end = min(length, cols - first) + first;
    for (int row = blockIdx.x; row < rows; row += gridDim.x) {
        const float *from = x + (size_t)row * cols;
        float *to = y + (size_t)row * cols;
        double sum = 0.0;
        for (int i = first; i < end; ++i) sum += from[i];
        sums[threadIdx.x] = sum;
        __syncthreads();
        sum = 0.0;
        for (int thread = 0; thread < (int)threadIdx.x; ++thread) sum += sums[thread];
        for (int i = first; i < end; ++i) {
            sum += from[i];
            to[i] = (float)sum;
        }
        __syncthreads();
    }
}
