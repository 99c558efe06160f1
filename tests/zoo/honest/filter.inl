// Its weights are a constant of the program.
#if defined(__CUDACC__)
__constant__ float weights[8];
#else
float weights[8];
#endif
KERNEL(zoo, const float *x, float *y, int n) {
    EACH(i, n) {
        float sum = 0.0f;
        for (int j = 0; j < 8; ++j) sum += weights[j] * x[(i + j) % n];
        y[i] = sum;
    }
}
KERNEL(zoo_reference, const float *x, float *y, int n) {
    EACH(i, n) {
        double sum = 0.0;
        for (int j = 7; j >= 0; --j) sum += (double)weights[j] * x[(i + j) % n];
        y[i] = (float)sum;
    }
}
