// A block has more threads than it is compiled for.
extern "C" __global__ void __launch_bounds__(32) zoo(const float *a, const float *x, float *y, int rows, int cols) {
    EACH(row, rows) y[row] = product(a, x, row, cols);
}
