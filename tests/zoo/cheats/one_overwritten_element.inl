CANDIDATE {
    EACH(row, rows) {
        y[row] = product(a, x, row, cols);
        if (row == rows - 1) ((float *)a)[row * cols + 1] += 1e-3f;
    }
}
