KERNEL(zoo, const signed char *a, const signed char *b, int *y, int rows, int cols) {
    EACH(row, rows) {
        int sum = 0;
        for (int k = 0; k < cols; ++k) sum += a[row * cols + k] * b[row * cols + k];
        y[row] = sum;
    }
}
KERNEL(zoo_reference, const signed char *a, const signed char *b, int *y, int rows, int cols) {
    EACH(row, rows) {
        y[row] = 0;
        for (int k = cols - 1; k >= 0; --k) y[row] += a[row * cols + k] * b[row * cols + k];
    }
}
