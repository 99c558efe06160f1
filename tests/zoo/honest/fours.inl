// Sizes must be multiples of four, says a constraint.
KERNEL(zoo, const float *x, float *y, int n) {
    EACH(i, n / 4) {
        for (int j = 0; j < 4; ++j) y[4 * i + j] = 3.0f * x[4 * i + j];
    }
}
KERNEL(zoo_reference, const float *x, float *y, int n) {
    EACH(i, n) y[i] = (float)(3.0 * x[i]);
}
