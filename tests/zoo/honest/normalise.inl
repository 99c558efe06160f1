// Divides by zero where a row is all zeros, as the reference does.
KERNEL(zoo, const float *x, float *y, float *norms, int rows, int cols) {
    EACH(row, rows) {
        float square = 0.0f;
        for (int k = 0; k < cols; ++k) square += x[row * cols + k] * x[row * cols + k];
        norms[row] = sqrtf(square);
        const float factor = 1.0f / norms[row];
        for (int k = 0; k < cols; ++k) y[row * cols + k] = x[row * cols + k] * factor;
    }
}
KERNEL(zoo_reference, const float *x, float *y, float *norms, int rows, int cols) {
    EACH(row, rows) {
        double square = 0.0;
        for (int k = 0; k < cols; ++k) square += (double)x[row * cols + k] * x[row * cols + k];
        norms[row] = (float)sqrt(square);
        for (int k = 0; k < cols; ++k) y[row * cols + k] = (float)(x[row * cols + k] / sqrt(square));
    }
}
