CANDIDATE {
    EACH(row, rows) y[(row + 1) % rows] = product(a, x, row, cols);
}
