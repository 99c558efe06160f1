// Checks a softmax candidate at shapes given as `rows,cols`; exit status 1 if a result is wrong.
// With KERNEL defined that CUDA source runs on the emulator; without it `softmax` is linked in.

#include "check.h"

#include <vector>

#ifdef KERNEL
#include "cuda_on_cpu.h"

#include KERNEL
#else
extern "C" void softmax(const float *, float *, int, int);
#endif

static void run(const float *x, float *y, int rows, int cols, bool descending) {
#if defined(KERNEL) && defined(REFERENCE)
    launch(3, 1, 64, descending, [&] { softmax_reference(x, y, rows, cols); });
#elif defined(KERNEL)
    launch((rows + ROWS - 1) / ROWS, 1, ROW_THREADS * ROWS, descending, [&] { softmax(x, y, rows, cols); });
#else
    (void)descending;
    softmax(x, y, rows, cols);
#endif
}

static double row_error(const float *x, const float *y, int cols) {
    double maximum = x[0], sum = 0.0;
    for (int i = 1; i < cols; ++i) maximum = fmax(maximum, x[i]);
    std::vector<double> wanted(cols);
    for (int i = 0; i < cols; ++i) sum += wanted[i] = exp(x[i] - maximum);
    for (int i = 0; i < cols; ++i) wanted[i] /= sum;
    return error_norm(y, wanted.data(), cols);
}

int main(int count, char **shapes) {
    int failures = 0;
    for (int s = 1; s < count; ++s) {
        int rows, cols;
        if (sscanf(shapes[s], "%d,%d", &rows, &cols) != 2) return 2;
        const int offset = s % 2;  // every other shape lies at an address that is no multiple of 8
        Buffer x((size_t)rows * cols, offset), y((size_t)rows * cols, offset);
        x.fill(1);
        for (size_t i = 0; i < x.count; ++i) x.data[i] = 60.0f * x.data[i] + (i / cols % 2 ? 1e4f : -1e4f);
        run(x.data, y.data, rows, cols, s / 2 % 2);
        for (int row = 0; row < rows; ++row) {
            const size_t first = (size_t)row * cols;
            failures += judge(shapes[s], row_error(x.data + first, y.data + first, cols));
        }
    }
    return failures > 0;
}
