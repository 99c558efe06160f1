HELPER float rounded(float value) { return FROM_BITS((BITS(value) + 0x1000u) & ~0x1fffu); }
CANDIDATE {
    EACH(row, rows) y[row] = rounded(product(a, x, row, cols));
}
