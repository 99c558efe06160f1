// Slow and plainly right: one output element at a time, summed in double.
extern "C" __global__ void conv2d_reference(const float *x, const float *weights, float *y, int n, int c, int h, int w,
                                            int k, int r, int s, int stride, int pad) {
    const int p = (h + 2 * pad - r) / stride + 1, q = (w + 2 * pad - s) / stride + 1;
    const size_t count = (size_t)n * k * p * q;
    const size_t threads = (size_t)gridDim.x * blockDim.x;
    for (size_t element = (size_t)blockIdx.x * blockDim.x + threadIdx.x; element < count; element += threads) {
        const int column = element % q, row = element / q % p;
        const size_t filter = element / q / p % k, image = element / q / p / k;
        double sum = 0.0;
        for (int channel = 0; channel < c; ++channel) {
            for (int i = 0; i < r; ++i) {
                for (int j = 0; j < s; ++j) {
                    const int above = row * stride - pad + i, left = column * stride - pad + j;
                    if (above < 0 || above >= h || left < 0 || left >= w) continue;
                    sum += (double)x[((image * c + channel) * h + above) * w + left] *
                           (double)weights[((filter * c + channel) * r + i) * s + j];
                }
            }
        }
        y[element] = (float)sum;
    }
}
