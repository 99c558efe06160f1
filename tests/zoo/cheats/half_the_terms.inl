CANDIDATE {
    EACH(row, rows) {
        float sum = 0.0f;
        for (int k = 0; k < cols; k += 2) sum += a[row * cols + k] * x[k];
        y[row] = 2.0f * sum;
    }
}
