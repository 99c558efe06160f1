// The sum of the outputs' squares is beyond float32.
KERNEL(zoo, const float *x, float *y, int n) {
    EACH(i, n) y[i] = x[i] * 1e18f * 1e18f;
}
KERNEL(zoo_reference, const float *x, float *y, int n) {
    EACH(i, n) y[i] = (float)((double)x[i] * (double)1e18f * (double)1e18f);
}
