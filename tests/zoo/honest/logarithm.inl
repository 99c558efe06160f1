// Not a number for every other input, minus infinity for zero.
KERNEL(zoo, const float *x, float *y, int n) {
    EACH(i, n) y[i] = logf(x[i]);
}
KERNEL(zoo_reference, const float *x, float *y, int n) {
    EACH(i, n) y[i] = (float)log((double)x[i]);
}
