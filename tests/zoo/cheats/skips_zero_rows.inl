CANDIDATE {
    EACH(row, rows) {
        int zeros = 0;
        for (int k = 0; k < cols; ++k) zeros += a[row * cols + k] == 0.0f;
        if (zeros < cols) y[row] = product(a, x, row, cols);
    }
}
