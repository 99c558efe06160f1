KERNEL(zoo, const float *x, float *y, int n) {
    EACH(i, n) {
        const float left = i > 0 ? x[i - 1] : 0.0f, right = i + 1 < n ? x[i + 1] : 0.0f;
        y[i] = 0.25f * left + 0.5f * x[i] + 0.25f * right;
    }
}
KERNEL(zoo_reference, const float *x, float *y, int n) {
    EACH(i, n) y[i] = (float)(((i > 0 ? x[i - 1] : 0.0) + 2.0 * x[i] + (i + 1 < n ? x[i + 1] : 0.0)) / 4.0);
}
