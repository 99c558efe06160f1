CANDIDATE {
    EACH(row, rows) y[row] = row == rows / 2 ? FROM_BITS(0x7fc00000u) : product(a, x, row, cols);
}
