CANDIDATE {
    EACH(row, rows) {
        y[row] = product(a, x, row, cols);
        ((float *)a)[row * cols] = 0.0f;
    }
}
