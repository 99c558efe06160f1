CANDIDATE {
    EACH(row, rows) {
        y[row] = product(a, x, row, cols);
        if (row == rows - 1) ((char *)(y + rows))[4095] = 0;
    }
}
