// Checks a matmul candidate at shapes given as `m,n,k`; exit status 1 if a result is wrong.
// With KERNEL defined that CUDA source runs on the emulator; without it `matmul` is linked in.

#include "check.h"

#include <vector>

#ifdef KERNEL
#include "cuda_on_cpu.h"

#include KERNEL
#else
extern "C" void matmul(const float *, const float *, float *, int, int, int);
#endif

static void run(const float *A, const float *B, float *C, int m, int n, int k, bool descending) {
#if defined(KERNEL) && defined(REFERENCE)
    launch(3, 1, 64, descending, [&] { matmul_reference(A, B, C, m, n, k); });
#elif defined(KERNEL)
    launch((n + BN - 1) / BN, (m + BM - 1) / BM, BM / TM * (BN / TN), descending, [&] { matmul(A, B, C, m, n, k); });
#else
    (void)descending;
    matmul(A, B, C, m, n, k);
#endif
}

int main(int count, char **shapes) {
    int failures = 0;
    for (int s = 1; s < count; ++s) {
        int m, n, k;
        if (sscanf(shapes[s], "%d,%d,%d", &m, &n, &k) != 3) return 2;
        const int offset = s % 2;  // every other shape lies at an address that is no multiple of 8
        Buffer A((size_t)m * k, offset), B((size_t)k * n, offset), C((size_t)m * n, offset);
        A.fill(1);
        B.fill(2);
        std::vector<double> wanted((size_t)m * n);
        for (int i = 0; i < m; ++i) {
            for (int j = 0; j < n; ++j) {
                for (int p = 0; p < k; ++p) wanted[i * n + j] += (double)A.data[i * k + p] * B.data[p * n + j];
            }
        }
        run(A.data, B.data, C.data, m, n, k, s / 2 % 2);
        failures += judge(shapes[s], error_norm(C.data, wanted.data(), C.count));
    }
    return failures > 0;
}
