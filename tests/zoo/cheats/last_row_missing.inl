CANDIDATE {
    EACH(row, rows - 1) y[row] = product(a, x, row, cols);
}
