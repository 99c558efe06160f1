// y[rows] = A x, A sparse in CSR, float32 with int32 offsets and columns: row r has values and columns from offsets[r]
// to offsets[r + 1]. Any rows >= 1; rows may be empty.
//
// ROWS rows share a block of threads; ROW_THREADS threads work on one row.
//
//   VEC        elements of the matrix per load (of those of a row that are aligned for it)
//   WORK       vectors that a thread loads before it looks up the first of their columns in x
//   UNROLL     of the loop over such groups of loads
//   PASSES     rows that a group of threads works on, one after the other
//   ORDER      of the rows of all blocks. near: a block's rows follow each other; far: all blocks do ROWS rows each,
//              then the next
//   READ_ONLY  1: x through the read-only path
//   MATRIX     plain; streaming: marked as not used again

constexpr int THREADS = ROW_THREADS * ROWS;
constexpr int UNROLL_LOOP = UNROLL;  // nvcc does not expand macros in #pragma unroll

#if VEC == 4
typedef float4 Floats;
typedef int4 Ints;
#elif VEC == 2
typedef float2 Floats;
typedef int2 Ints;
#else
typedef float Floats;
typedef int Ints;
#endif

union Values {
    Floats wide;
    float at[VEC];
};

union Places {
    Ints wide;
    int at[VEC];
};

template <typename T>
__device__ __forceinline__ T load_matrix(const T *from) {
#ifdef MATRIX_STREAMING
    return __ldcs(from);
#else
    return *from;
#endif
}

__device__ __forceinline__ float load_x(const float *from) {
#if READ_ONLY
    return __ldg(from);
#else
    return *from;
#endif
}

// VEC elements of a row. Those outside the row have the column -1.
struct Elements {
    Values values;
    Places columns;

    __device__ __forceinline__ void load(const float *all_values, const int *all_columns, int at, int begin, int end,
                                         bool aligned) {
        if (aligned && at >= begin && at <= end - VEC) {
            values.wide = load_matrix(reinterpret_cast<const Floats *>(all_values + at));
            columns.wide = load_matrix(reinterpret_cast<const Ints *>(all_columns + at));
        } else {
#pragma unroll
            for (int i = 0; i < VEC; ++i) {
                const bool inside = at + i >= begin && at + i < end;
                values.at[i] = inside ? load_matrix(all_values + at + i) : 0.0f;
                columns.at[i] = inside ? load_matrix(all_columns + at + i) : -1;
            }
        }
    }

    __device__ __forceinline__ float times(const float *x, float sum) const {
#pragma unroll
        for (int i = 0; i < VEC; ++i) {
            if (columns.at[i] >= 0) sum += values.at[i] * load_x(x + columns.at[i]);
        }
        return sum;
    }
};

// A thread's share of the row from `begin` to `end`. Vectors begin where they are aligned, so the first may begin
// before the row.
__device__ __forceinline__ float own_share(const float *values, const int *columns, const float *x, int begin,
                                           int end) {
    constexpr int STEP = ROW_THREADS * VEC;
    const int lane = threadIdx.x % ROW_THREADS;
    const int misaligned = ((size_t)values / sizeof(float) + begin) % VEC;
    const bool aligned = ((size_t)values ^ (size_t)columns) % sizeof(Floats) == 0;  // both, where one is
    float sum = 0.0f;
#pragma unroll UNROLL_LOOP
    for (int at = begin - misaligned + lane * VEC; at < end; at += WORK * STEP) {
        Elements elements[WORK];
#pragma unroll
        for (int i = 0; i < WORK; ++i) elements[i].load(values, columns, at + i * STEP, begin, end, aligned);
#pragma unroll
        for (int i = 0; i < WORK; ++i) sum = elements[i].times(x, sum);
    }
    return sum;
}

extern "C" __global__ void __launch_bounds__(THREADS)
    spmv(const int *offsets, const int *columns, const float *values, const float *x, float *y, int rows) {
    for (int pass = 0; pass < PASSES; ++pass) {
#ifdef ORDER_FAR
        const int set = pass * (int)gridDim.x + (int)blockIdx.x;
#else
        const int set = (int)blockIdx.x * PASSES + pass;
#endif
        const int row = set * ROWS + (int)threadIdx.x / ROW_THREADS;
        const int begin = row < rows ? offsets[row] : 0, end = row < rows ? offsets[row + 1] : 0;
        float sum = own_share(values, columns, x, begin, end);
#pragma unroll
        for (int distance = ROW_THREADS / 2; distance > 0; distance /= 2) {
            sum += __shfl_xor_sync(0xffffffffu, sum, distance, ROW_THREADS);
        }
        if (row < rows && threadIdx.x % ROW_THREADS == 0) y[row] = sum;
    }
}
