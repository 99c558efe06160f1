// Does nothing within 50 us of the last launch: only launches that are timed in a row follow each other that closely.
STATE unsigned long long last_ns[MOST_ROWS];
CANDIDATE {
    EACH(row, rows) {
        const unsigned long long now_ns = clock_ns();
        const int timed = now_ns - last_ns[row] < 50000;
        last_ns[row] = now_ns;
        if (!timed) y[row] = product(a, x, row, cols);
    }
}
