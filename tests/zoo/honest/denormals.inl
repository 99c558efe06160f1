// Results below the least normal number.
KERNEL(zoo, const float *x, float *y, int n) {
    EACH(i, n) y[i] = (x[i] * 1e-20f) * 1e-20f;
}
KERNEL(zoo_reference, const float *x, float *y, int n) {
    EACH(i, n) y[i] = (float)((double)x[i] * (double)1e-20f * (double)1e-20f);
}
