CANDIDATE {
    EACH(row, rows) y[row] = 0.0f;
}
