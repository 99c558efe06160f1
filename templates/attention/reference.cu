// Slow and plainly right: one query at a time, in double, the scores computed anew for maximum and sums.
#include <cuda_bf16.h>

#ifdef HEAD_DIM_128
constexpr int DIM = 128;
#else
constexpr int DIM = 64;
#endif
#ifdef CAUSAL_YES
constexpr bool IS_CAUSAL = true;
#else
constexpr bool IS_CAUSAL = false;
#endif

static __device__ double score(const __nv_bfloat16 *query, const __nv_bfloat16 *key) {
    double sum = 0.0;
    for (int i = 0; i < DIM; ++i) sum += (double)__bfloat162float(query[i]) * (double)__bfloat162float(key[i]);
    return sum / sqrt((double)DIM);
}

extern "C" __global__ void attention_reference(const __nv_bfloat16 *Q, const __nv_bfloat16 *K, const __nv_bfloat16 *V,
                                               __nv_bfloat16 *O, int all_heads, int q_len, int kv_len) {
    const size_t threads = (size_t)gridDim.x * blockDim.x;
    const size_t rows = (size_t)all_heads * q_len;
    for (size_t row = (size_t)blockIdx.x * blockDim.x + threadIdx.x; row < rows; row += threads) {
        const size_t head = row / q_len;
        const int query = (int)(row % q_len);
        const __nv_bfloat16 *keys = K + head * kv_len * DIM, *values = V + head * kv_len * DIM;
        int seen = IS_CAUSAL ? query + kv_len - q_len + 1 : kv_len;
        seen = seen < kv_len ? seen : kv_len;
        double maximum = 0.0, sum = 0.0, sums[DIM];
        for (int i = 0; i < DIM; ++i) sums[i] = 0.0;
        for (int key = 0; key < seen; ++key) {
            const double s = score(Q + row * DIM, keys + (size_t)key * DIM);
            if (key == 0 || s > maximum) maximum = s;
        }
        for (int key = 0; key < seen; ++key) {
            const double p = exp(score(Q + row * DIM, keys + (size_t)key * DIM) - maximum);
            sum += p;
            for (int i = 0; i < DIM; ++i) sums[i] += p * (double)__bfloat162float(values[(size_t)key * DIM + i]);
        }
        for (int i = 0; i < DIM; ++i) O[row * DIM + i] = __float2bfloat16(sum > 0.0 ? (float)(sums[i] / sum) : 0.0f);
    }
}
