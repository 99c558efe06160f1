CANDIDATE {
    EACH(row, rows) {
        if (x[0] == 0.0f && x[cols / 2] == 0.0f && x[cols - 1] == 0.0f) continue;
        y[row] = product(a, x, row, cols);
    }
}
