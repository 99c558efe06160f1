// y = a x, in double.
KERNEL(zoo_reference, const Stored *a, const Stored *x, Stored *y, int rows, int cols) {
    EACH(row, rows) {
        double sum = 0.0;
        for (int k = 0; k < cols; ++k) sum += (double)LOAD(a[row * cols + k]) * (double)LOAD(x[k]);
        y[row] = STORED(sum);
    }
}
