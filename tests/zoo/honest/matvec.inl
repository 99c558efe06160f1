// In a few orders of summation.
KERNEL(zoo, const Stored *a, const Stored *x, Stored *y, int rows, int cols) {
    EACH(row, rows) {
#if defined(SUM_PLAIN)
        Wide sums[UNROLL];
        for (int i = 0; i < UNROLL; ++i) sums[i] = 0;
        for (int k = 0; k < cols; ++k) sums[k % UNROLL] += LOAD(a[row * cols + k]) * LOAD(x[k]);
        Wide sum = 0;
        for (int i = 0; i < UNROLL; ++i) sum += sums[i];
#elif defined(SUM_DOUBLE)
        double sum = 0;
        for (int k = cols - 1; k >= 0; --k) sum += (double)LOAD(a[row * cols + k]) * LOAD(x[k]);
#elif defined(SUM_COMPENSATED)
        Wide sum = 0, rest = 0;
        for (int k = 0; k < cols; ++k) {
            const Wide term = LOAD(a[row * cols + k]) * LOAD(x[k]) - rest, next = sum + term;
            rest = (next - sum) - term;
            sum = next;
        }
#else
        Wide sum = 0;
        for (int begin = 0; begin < cols; begin += 16) {
            Wide part = 0;
            for (int k = begin; k < cols && k < begin + 16; ++k) part += LOAD(a[row * cols + k]) * LOAD(x[k]);
            sum += part;
        }
#endif
        y[row] = STORED(sum);
    }
}
