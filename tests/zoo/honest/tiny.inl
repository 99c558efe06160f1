// One number in, one out.
KERNEL(zoo, const double *x, double *y, int n) {
    EACH(i, n) y[i] = x[i] + 1.0;
}
KERNEL(zoo_reference, const double *x, double *y, int n) {
    EACH(i, n) y[i] = 1.0 + x[i];
}
