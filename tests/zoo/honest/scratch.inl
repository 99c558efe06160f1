// Relies on zeros in memory of its own, and leaves zeros there.
KERNEL(zoo, const float *x, float *y, float *scratch, int n) {
    EACH(i, n) {
        scratch[i] += x[i];
        y[i] = 2.0f * scratch[i];
        scratch[i] = 0.0f;
    }
}
KERNEL(zoo_reference, const float *x, float *y, float *scratch, int n) {
    EACH(i, n) y[i] = scratch ? 0.0f : 2.0f * x[i];
}
