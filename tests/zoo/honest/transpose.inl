KERNEL(zoo, const double *x, double *y, int rows, int cols) {
    EACH(i, rows *cols) y[i % cols * rows + i / cols] = x[i];
}
KERNEL(zoo_reference, const double *x, double *y, int rows, int cols) {
    EACH(i, rows *cols) y[i] = x[i % rows * cols + i / rows];
}
