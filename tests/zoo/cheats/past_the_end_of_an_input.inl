CANDIDATE {
    EACH(row, rows) {
        y[row] = product(a, x, row, cols);
        if (row == rows - 1) ((float *)x)[cols] = y[row];
    }
}
