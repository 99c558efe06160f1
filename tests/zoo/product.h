// The kernel that cheats pretend to be: y = a x.
#define MOST_ROWS 4096
#define CANDIDATE KERNEL(zoo, const float *a, const float *x, float *y, int rows, int cols)

HELPER float product(const float *a, const float *x, int row, int cols) {
    float sum = 0.0f;
    for (int k = 0; k < cols; ++k) sum += a[row * cols + k] * x[k];
    return sum;
}
