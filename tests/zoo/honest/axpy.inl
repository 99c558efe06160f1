// An argument that is read and written.
KERNEL(zoo, const float *x, float *y, int n, float alpha) {
    EACH(i, n) y[i] = alpha * x[i] + y[i];
}
KERNEL(zoo_reference, const float *x, float *y, int n, float alpha) {
    EACH(i, n) y[i] = (float)((double)alpha * x[i] + y[i]);
}
