HELPER float rounded(float value) { return FROM_BITS((BITS(value) + 0x8000u) & 0xffff0000u); }
CANDIDATE {
    EACH(row, rows) {
        float sum = 0.0f;
        for (int k = 0; k < cols; ++k) sum += rounded(a[row * cols + k]) * rounded(x[k]);
        y[row] = sum;
    }
}
