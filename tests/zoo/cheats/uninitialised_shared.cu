CANDIDATE {
    __shared__ float sums[1024];
    EACH(row, rows) {
        volatile float *sum = &sums[threadIdx.x];
        *sum += product(a, x, row, cols);
        y[row] = *sum;
    }
}
