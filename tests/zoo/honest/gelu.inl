KERNEL(zoo, const float *x, float *y, int n) {
    EACH(i, n) y[i] = 0.5f * x[i] * (1.0f + tanhf(0.79788456f * (x[i] + 0.044715f * x[i] * x[i] * x[i])));
}
KERNEL(zoo_reference, const float *x, float *y, int n) {
    EACH(i, n) {
        const double value = x[i];
        y[i] = (float)(0.5 * value * (1.0 + tanh(0.7978845608028654 * (value + 0.044715 * value * value * value))));
    }
}
