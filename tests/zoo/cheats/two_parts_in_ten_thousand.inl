CANDIDATE {
    EACH(row, rows) y[row] = 1.0002f * product(a, x, row, cols);
}
