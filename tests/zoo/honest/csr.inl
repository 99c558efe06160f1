// Reads where offsets and columns say, which must never be outside.
KERNEL(zoo, const int *offsets, const int *columns, const float *values, const float *x, float *y, int rows, int cols,
       int nonzeros) {
    EACH(i, rows) {
        float sum = 0.0f;
        for (int j = offsets[i]; j < offsets[i + 1]; ++j) sum += values[j] * x[columns[j]];
        y[i] = sum;
    }
}
KERNEL(zoo_reference, const int *offsets, const int *columns, const float *values, const float *x, float *y, int rows,
       int cols, int nonzeros) {
    EACH(i, rows) {
        double sum = 0.0;
        for (int j = offsets[i]; j < offsets[i + 1]; ++j) sum += (double)values[j] * x[columns[j]];
        y[i] = (float)sum;
    }
}
