CANDIDATE {
    EACH(row, rows) {
        if (a[0] == 0.0f) continue;
        y[row] = product(a, x, row, cols);
    }
}
