// Reads what nobody has written.
CANDIDATE {
    EACH(row, rows) y[row] += product(a, x, row, cols);
}
