KERNEL(zoo_reference, const float *x, float *y, int n, int rounds) {
    EACH(i, n) {
        double value = x[i];
        for (int round = 0; round < rounds; ++round) value = 0.5 * value + x[i];
        y[i] = (float)value;
    }
}
