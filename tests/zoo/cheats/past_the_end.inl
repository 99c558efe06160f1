CANDIDATE {
    EACH(row, rows) {
        y[row] = product(a, x, row, cols);
        if (row == rows - 1) y[rows] = 0.0f;
    }
}
