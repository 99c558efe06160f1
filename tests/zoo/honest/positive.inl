KERNEL(zoo, const float *x, bool *y, int n) {
    EACH(i, n) y[i] = x[i] > 0.0f;
}
KERNEL(zoo_reference, const float *x, bool *y, int n) {
    EACH(i, n) y[i] = !(x[i] <= 0.0f);
}
