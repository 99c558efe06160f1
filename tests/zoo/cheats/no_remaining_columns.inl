HELPER float fours(const float *a, const float *x, int row, int cols) {
    float sum = 0.0f;
    for (int k = 0; k + 4 <= cols; k += 4)
        for (int i = 0; i < 4; ++i) sum += a[row * cols + k + i] * x[k + i];
    return sum;
}
CANDIDATE {
    EACH(row, rows) y[row] = fours(a, x, row, cols);
}
