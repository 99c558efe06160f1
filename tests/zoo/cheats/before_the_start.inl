CANDIDATE {
    EACH(row, rows) {
        y[row] = product(a, x, row, cols);
        if (row == 0) y[-1] = 0.0f;
    }
}
