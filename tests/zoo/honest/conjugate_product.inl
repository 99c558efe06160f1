// Complex numbers as pairs.
KERNEL(zoo, const float *x, const float *y, float *z, int n) {
    EACH(i, n) {
        z[2 * i] = x[2 * i] * y[2 * i] + x[2 * i + 1] * y[2 * i + 1];
        z[2 * i + 1] = x[2 * i + 1] * y[2 * i] - x[2 * i] * y[2 * i + 1];
    }
}
KERNEL(zoo_reference, const float *x, const float *y, float *z, int n) {
    EACH(i, n) {
        z[2 * i] = (float)((double)x[2 * i] * y[2 * i] + (double)x[2 * i + 1] * y[2 * i + 1]);
        z[2 * i + 1] = (float)((double)x[2 * i + 1] * y[2 * i] - (double)x[2 * i] * y[2 * i + 1]);
    }
}
