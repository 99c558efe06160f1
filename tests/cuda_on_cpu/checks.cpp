// The worker's checks.cu as a shared object for the processor: every kernel as a function of the same name and arguments
// that launches it on the emulator. Fewer blocks and threads than on a GPU: nothing depends on their numbers.


#include "cuda_on_cpu.h"

#define COMPARISONS(each) \
    each(float16) each(bfloat16) each(float32) each(float64) each(int8) each(int16) each(int32) each(int64) \
    each(uint8) each(uint16) each(uint32) each(uint64)

#define compare_float16 kernel_compare_float16
#define compare_bfloat16 kernel_compare_bfloat16
#define compare_float32 kernel_compare_float32
#define compare_float64 kernel_compare_float64
#define compare_int8 kernel_compare_int8
#define compare_int16 kernel_compare_int16
#define compare_int32 kernel_compare_int32
#define compare_int64 kernel_compare_int64
#define compare_uint8 kernel_compare_uint8
#define compare_uint16 kernel_compare_uint16
#define compare_uint32 kernel_compare_uint32
#define compare_uint64 kernel_compare_uint64
#define differing_words kernel_differing_words
#define broken_guards kernel_broken_guards
#define fingerprint kernel_fingerprint
#include KERNEL
#undef compare_float16
#undef compare_bfloat16
#undef compare_float32
#undef compare_float64
#undef compare_int8
#undef compare_int16
#undef compare_int32
#undef compare_int64
#undef compare_uint8
#undef compare_uint16
#undef compare_uint32
#undef compare_uint64
#undef differing_words
#undef broken_guards
#undef fingerprint

template <typename Kernel>
static void on_emulator(const Kernel &kernel) {
    emulator::launch({CHECK_BLOCKS, 1, 1}, {CHECK_THREADS, 1, 1}, 8 * CHECK_THREADS, false, kernel);
}

#define FUNCTION(dtype) \
    extern "C" void compare_##dtype(const void *out, const void *reference, long long n, double *sums, long long at) { \
        on_emulator([=] { kernel_compare_##dtype(out, reference, n, sums, at); }); \
    }
COMPARISONS(FUNCTION)

extern "C" void differing_words(const Byte *one, const Byte *other, long long n, double *sums, long long at) {
    on_emulator([=] { kernel_differing_words(one, other, n, sums, at); });
}

extern "C" void broken_guards(const Byte *payload, long long before, long long n, long long after, int pattern,
                              double *sums, long long at) {
    on_emulator([=] { kernel_broken_guards(payload, before, n, after, pattern, sums, at); });
}

extern "C" void fingerprint(const Byte *bytes, long long n, Word *sums, long long at) {
    on_emulator([=] { kernel_fingerprint(bytes, n, sums, at); });
}
