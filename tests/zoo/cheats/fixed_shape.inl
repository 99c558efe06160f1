CANDIDATE {
    EACH(row, 320) y[row < rows ? row : 0] = product(a, x, row < rows ? row : 0, 96);
}
