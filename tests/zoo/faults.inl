// y = 2 x, slowly, by v = v / 2 + x; and what a candidate may do to the device instead.
#if defined(FAULT_STACK_OVERFLOW)
HELPER APART float deep(float value, int depth) {
    volatile float frame[64];
    frame[depth % 64] = value;
    return depth ? deep(frame[depth % 64] + 1.0f, depth - 1) + frame[0] : value;
}
#endif
#if defined(FAULT_LAUNCH_BOUNDS) && defined(__CUDACC__)
extern "C" __global__ void __launch_bounds__(32) zoo(const float *x, float *y, int n, int rounds) {
#else
KERNEL(zoo, const float *x, float *y, int n, int rounds) {
#endif
    EACH(i, n) {
        float value = x[i];
        for (int round = 0; round < rounds; ++round) value = 0.5f * value + x[i];
        y[i] = value;
        if (i != 0) continue;
#if defined(FAULT_ILLEGAL_ADDRESS)
        *(volatile int *)8 = 1;
#elif defined(FAULT_INFINITE_LOOP)
        while (*(const volatile float *)x < 1e30f) {
        }
#elif defined(FAULT_MISALIGNED) && defined(__CUDACC__)
        *(volatile double *)((char *)y + 4) = 1.0;
#elif defined(FAULT_MISALIGNED)
        typedef float Four __attribute__((vector_size(16)));
        *(volatile Four *)((char *)y + 4) = (Four){1.0f, 1.0f, 1.0f, 1.0f};
#elif defined(FAULT_TRAP) && defined(__CUDACC__)
        asm volatile("trap;");
#elif defined(FAULT_TRAP)
        abort();
#elif defined(FAULT_OUT_OF_MEMORY)
        volatile char *much = (volatile char *)malloc((size_t)1 << 46);
        much[i] = 1;
        y[i] += much[rounds];
#elif defined(FAULT_STACK_OVERFLOW)
        y[i] += 1e-9f * deep(value, 1 << 24);
#elif defined(FAULT_LAUNCH_BOUNDS) && !defined(__CUDACC__)
        _exit(3);
#endif
    }
}
