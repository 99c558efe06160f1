CANDIDATE {
    EACH(row, rows / 2) y[row] = product(a, x, row, cols);
}
