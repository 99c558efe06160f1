KERNEL(zoo, const float *x, int *y, int rows, int cols) {
    EACH(row, rows) {
        int best = cols - 1;
        for (int k = cols - 2; k >= 0; --k) best = x[row * cols + k] >= x[row * cols + best] ? k : best;
        y[row] = best;
    }
}
KERNEL(zoo_reference, const float *x, int *y, int rows, int cols) {
    EACH(row, rows) {
        int best = 0;
        for (int k = 1; k < cols; ++k) best = x[row * cols + k] > x[row * cols + best] ? k : best;
        y[row] = best;
    }
}
