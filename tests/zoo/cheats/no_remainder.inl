// Rows in fours, columns in fours.
CANDIDATE {
    EACH(row, rows / 4 * 4) y[row] = product(a, x, row, cols / 4 * 4);
}
