// C[m, n] = A[m, k] * B[k, n] in float32 for any m, n, k >= 1. C is row-major; A and B are what A_LAYOUT and B_LAYOUT say.
//
// A block of threads owns a BM x BN tile of C and walks along k in steps of BK. A thread owns TM x TN sums in
// registers, a warp 4 x 8 or 8 x 4 such thread tiles.
//
//   VEC        floats per load and store, global and shared (where the operands are aligned for it)
//   UNROLL     steps of k unrolled together
//   STAGES     1: one buffer; 2: the next tile travels through registers while this one is multiplied;
//              3 and more: that many buffers, filled by asynchronous copies
//   FRAGMENTS  2: the operands of a step are loaded from shared memory during the step before it; 1: when needed
//   TRANSPOSE  of an operand that lies along k in memory (a row-major A, a column-major B). 1: it is transposed on its
//              way into shared memory, so that the operands of a step lie side by side; 0: it stays as it lies, and
//              VEC steps of it are loaded together
//   PAD        floats added to every row of a tile in shared memory, against bank conflicts
//   ORDER      of the products of a step: row by row or column by column of the thread tile, there and back, so that one
//              operand of a product is that of the product before it
//   SPLIT_K    blocks that share a tile of C, each with its part of k: their sums meet in `sums`, and the last one to
//              arrive moves them to C. Both workspaces are left as they were found, all zeros
//   RASTER     rows of tiles that are visited together, column by column, so that they share B in the cache

#include <cuda_pipeline.h>

constexpr int THREADS_M = BM / TM;
constexpr int THREADS_N = BN / TN;
constexpr int THREADS = THREADS_M * THREADS_N;

// As many operands as possible are shared by the threads of a warp: 4 x 8, or 8 x 4 of thread tiles wider than tall.
constexpr int LANES_N_WANTED = TN > TM ? 4 : 8;
constexpr int LANES_M_LEAST = 32 / (LANES_N_WANTED < THREADS_N ? LANES_N_WANTED : THREADS_N);
constexpr int LANES_M = LANES_M_LEAST < THREADS_M ? LANES_M_LEAST : THREADS_M;
constexpr int LANES_N = 32 / LANES_M;
constexpr int WARPS_N = THREADS_N / LANES_N;

// Registers that a thread needs, roughly; where that is few, two blocks of 256 threads fit a multiprocessor.
constexpr int REGISTERS = TM * TN + FRAGMENTS * (TM * (TRANSPOSE ? 1 : VEC) + TN) +
                          (BM + BN) * BK / THREADS * (STAGES < 3 ? VEC + 1 : 1) / VEC + 24;
constexpr int FITTING = 65536 / (THREADS * (REGISTERS <= 128 ? 128 : 256));
constexpr int MIN_BLOCKS = FITTING > 1 ? FITTING : 1;

#if VEC == 4
typedef float4 Wide;
#elif VEC == 2
typedef float2 Wide;
#else
typedef float Wide;
#endif

union Pack {
    Wide wide;
    float at[VEC];
};

extern __shared__ float4 shared_storage[];

template <int FLOATS>
__device__ __forceinline__ void copy_async(float *to, const float *from) {
    __pipeline_memcpy_async(to, from, 4 * FLOATS);
}

__device__ __forceinline__ Pack load_wide(const float *from) {
    Pack pack;
    pack.wide = *reinterpret_cast<const Wide *>(from);
    return pack;
}

// One operand as a block sees it: EXTENT lines (rows of A, columns of B) of which BK steps at a time are copied into
// shared memory. A thread multiplies T of the lines.
template <int EXTENT, int T, int LANES, bool ALONG_K>
struct Operand {
    static constexpr bool AS_IT_LIES = ALONG_K && !TRANSPOSE;  // in shared memory
    static constexpr int STRIDE = AS_IT_LIES ? BK + PAD : EXTENT + PAD;
    static constexpr int FLOATS = AS_IT_LIES ? EXTENT * STRIDE : BK * STRIDE;
    static constexpr int COPIES = EXTENT * BK / (VEC * THREADS);         // of a thread per tile
    static constexpr int RUN = (ALONG_K ? BK : EXTENT) / VEC;            // vectors that lie side by side in memory
    static constexpr int CHUNK = AS_IT_LIES ? 1 : VEC;                   // of a thread's lines that lie side by side
    static constexpr int PACKS = AS_IT_LIES ? T : T / VEC;               // of a fragment

    const float *data;  // of the whole operand
    const float *next;  // of the tile that is copied next
    size_t stride;      // floats from one line to the next if it lies along k, from one step to the next otherwise
    int lines, first_line, step, end;
    bool aligned;
    int offsets[COPIES];  // from `next`, for vectors inside the operand

    // Vector i that this thread copies: where in its run, and which run.
    static __device__ __forceinline__ int in_run(int i) {
        return (THREADS >= RUN ? threadIdx.x % RUN : threadIdx.x + i * THREADS % RUN) * VEC;
    }
    static __device__ __forceinline__ int run(int i) {
        return THREADS >= RUN ? threadIdx.x / RUN + i * (THREADS / RUN) : i * THREADS / RUN;
    }

    __device__ __forceinline__ Operand(const float *data, int lines, int k, int first_line, int first_step, int end)
        : data(data), stride(ALONG_K ? k : lines), lines(lines), first_line(first_line), step(first_step), end(end) {
        aligned = stride % VEC == 0 && (size_t)data % sizeof(Wide) == 0;
        next = data + (ALONG_K ? first_line * stride + first_step : first_step * stride + first_line);
#pragma unroll
        for (int i = 0; i < COPIES; ++i) {
            // Lines past the last one repeat it: what they yield is never stored.
            const int last = lines - first_line - (ALONG_K ? 1 : VEC);
            const int line = min(ALONG_K ? run(i) : in_run(i), last);
            offsets[i] = ALONG_K ? line * (int)stride + in_run(i) : run(i) * (int)stride + line;
        }
    }

    __device__ __forceinline__ bool whole() const { return aligned && step + BK <= end; }

    __device__ __forceinline__ void advance() {
        step += BK;
        next += ALONG_K ? BK : BK * stride;
    }

    // Float j of vector i, and whether there is such a float.
    __device__ __forceinline__ const float *place(int i, int j, bool &inside) const {
        const int line = first_line + (ALONG_K ? run(i) : in_run(i) + j);
        const int at = step + (ALONG_K ? in_run(i) + j : run(i));
        inside = line < lines && at < end;
        return data + (ALONG_K ? line * stride + at : at * stride + line);
    }

    static __device__ __forceinline__ float *place_shared(float *tile, int i, int j) {
        return tile + (ALONG_K && TRANSPOSE ? (in_run(i) + j) * STRIDE + run(i) : run(i) * STRIDE + in_run(i) + j);
    }

    __device__ __forceinline__ void copy_tile_async(float *tile) const {
        if (whole()) {
#pragma unroll
            for (int i = 0; i < COPIES; ++i) {
                if (ALONG_K && TRANSPOSE) {
#pragma unroll
                    for (int j = 0; j < VEC; ++j) copy_async<1>(place_shared(tile, i, j), next + offsets[i] + j);
                } else {
                    copy_async<VEC>(place_shared(tile, i, 0), next + offsets[i]);
                }
            }
        } else {
#pragma unroll 1
            for (int i = 0; i < COPIES; ++i) {
#pragma unroll 1
                for (int j = 0; j < VEC; ++j) {
                    bool inside;
                    const float *from = place(i, j, inside);
                    if (inside) {
                        copy_async<1>(place_shared(tile, i, j), from);
                    } else {
                        *place_shared(tile, i, j) = 0.0f;
                    }
                }
            }
        }
    }

    __device__ __forceinline__ void load_tile(Pack (&packs)[COPIES]) const {
        if (whole()) {
#pragma unroll
            for (int i = 0; i < COPIES; ++i) packs[i] = load_wide(next + offsets[i]);
        } else {
#pragma unroll
            for (int i = 0; i < COPIES; ++i) {
#pragma unroll
                for (int j = 0; j < VEC; ++j) {
                    bool inside;
                    const float *from = place(i, j, inside);
                    packs[i].at[j] = inside ? *from : 0.0f;
                }
            }
        }
    }

    static __device__ __forceinline__ void store_tile(float *tile, const Pack (&packs)[COPIES]) {
#pragma unroll
        for (int i = 0; i < COPIES; ++i) {
            if (ALONG_K && TRANSPOSE) {
#pragma unroll
                for (int j = 0; j < VEC; ++j) *place_shared(tile, i, j) = packs[i].at[j];
            } else {
                *reinterpret_cast<Wide *>(place_shared(tile, i, 0)) = packs[i].wide;
            }
        }
    }

    // Line i of a thread's T, counted from the first line of its warp.
    static __device__ __forceinline__ int line(int i, int lane) { return i / CHUNK * (LANES * CHUNK) + lane * CHUNK + i % CHUNK; }

    // What a thread multiplies in one step, or in VEC steps if the tile is as it lies.
    struct Fragment {
        Pack packs[PACKS];

        // `own`: the tile, from the first of the thread's lines on. `turn`: of the steps unrolled together.
        __device__ __forceinline__ void load(const float *own, int step, int turn) {
            if (AS_IT_LIES) {
                if (turn % VEC != 0) return;
#pragma unroll
                for (int i = 0; i < T; ++i) packs[i] = load_wide(own + line(i, 0) * STRIDE + step);
            } else {
#pragma unroll
                for (int i = 0; i < PACKS; ++i) packs[i] = load_wide(own + line(i * VEC, 0) + step * STRIDE);
            }
        }

        __device__ __forceinline__ float at(int i, int turn) const {
            return AS_IT_LIES ? packs[i].at[turn % VEC] : packs[i / VEC].at[i % VEC];
        }

        __device__ __forceinline__ void take(const Fragment &from, int turn) {
            if (AS_IT_LIES && turn % VEC != 0) return;
#pragma unroll
            for (int i = 0; i < PACKS; ++i) packs[i] = from.packs[i];
        }
    };
};

#ifdef A_LAYOUT_COLUMN
typedef Operand<BM, TM, LANES_M, false> OperandA;
#else
typedef Operand<BM, TM, LANES_M, true> OperandA;
#endif
#ifdef B_LAYOUT_COLUMN
typedef Operand<BN, TN, LANES_N, true> OperandB;
#else
typedef Operand<BN, TN, LANES_N, false> OperandB;
#endif

// Where a thread's sums lie in the tile of C.
struct Place {
    int warp_m, warp_n, lane_m, lane_n;

    __device__ __forceinline__ Place() {
        const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
        // Neighbouring lanes pairwise share operands of either kind, which lets a vector load serve them at once.
        lane_m = LANES_M == 1 ? 0 : lane / (2 * LANES_N) * 2 + lane % 2;
        lane_n = LANES_M == 1 ? lane : lane / 2 % LANES_N;
        warp_m = warp / WARPS_N * (LANES_M * TM);
        warp_n = warp % WARPS_N * (LANES_N * TN);
    }

    __device__ __forceinline__ int row(int i) const { return warp_m + OperandA::line(i, lane_m); }
    __device__ __forceinline__ int column(int j) const { return warp_n + OperandB::line(j, lane_n); }
    __device__ __forceinline__ int own_a() const { return row(0) * (OperandA::AS_IT_LIES ? OperandA::STRIDE : 1); }
    __device__ __forceinline__ int own_b() const {
        return OperandA::FLOATS + column(0) * (OperandB::AS_IT_LIES ? OperandB::STRIDE : 1);
    }
};

struct Fragments {
    OperandA::Fragment a;
    OperandB::Fragment b;

    __device__ __forceinline__ void load(const float *own_a, const float *own_b, int step, int turn) {
        a.load(own_a, step, turn);
        b.load(own_b, step, turn);
    }

    __device__ __forceinline__ void take(const Fragments &from, int turn) {
        a.take(from.a, turn);
        b.take(from.b, turn);
    }

    __device__ __forceinline__ void multiply(float (&sum)[TM][TN], int turn) const {
#pragma unroll
        for (int product = 0; product < TM * TN; ++product) {
#ifdef ORDER_ROWS
            const int i = product / TN, j = i % 2 == 0 ? product % TN : TN - 1 - product % TN;
#else
            const int j = product / TM, i = j % 2 == 0 ? product % TM : TM - 1 - product % TM;
#endif
            sum[i][j] += a.at(i, turn) * b.at(j, turn);
        }
    }
};

__device__ __forceinline__ void store(float *to, const float *sums, int count, bool aligned) {
    if (aligned && count >= VEC) {
        Pack pack;
#pragma unroll
        for (int i = 0; i < VEC; ++i) pack.at[i] = sums[i];
        *reinterpret_cast<Wide *>(to) = pack.wide;
    } else {
#pragma unroll
        for (int i = 0; i < VEC; ++i) {
            if (i < count) to[i] = sums[i];
        }
    }
}

// Chunks of neighbouring columns are stored as vectors.
__device__ __forceinline__ void store_tile(float *C, int m, int n, int first_row, int first_column, const Place &place,
                                           const float (&sum)[TM][TN]) {
    constexpr int CHUNK = OperandB::CHUNK;
    const bool aligned = n % VEC == 0 && (size_t)C % sizeof(Wide) == 0;
#pragma unroll
    for (int i = 0; i < TM; ++i) {
        const int row = first_row + place.row(i);
        if (row >= m) continue;
#pragma unroll
        for (int j = 0; j < TN; j += CHUNK) {
            const int column = first_column + place.column(j);
            float *to = C + (size_t)row * n + column;
            if (CHUNK == VEC) {
                store(to, &sum[i][j], n - column, aligned);
            } else if (column < n) {
                *to = sum[i][j];
            }
        }
    }
}

#if SPLIT_K > 1

constexpr int SUMS = TM * TN;
constexpr bool FOURS = SUMS % 4 == 0;  // sums of a thread lie in fours, which neighbouring threads interleave

__device__ __forceinline__ void add_four(float *to, float x, float y, float z, float w) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("red.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to), "f"(x), "f"(y), "f"(z), "f"(w) : "memory");
#else
    atomicAdd(to, x);
    atomicAdd(to + 1, y);
    atomicAdd(to + 2, z);
    atomicAdd(to + 3, w);
#endif
}

// What other blocks have written lies in L2.
template <typename T>
__device__ __forceinline__ T load_from_l2(const T *from) {
#ifdef __CUDA_ARCH__
    return __ldcg(from);
#else
    return *from;
#endif
}

// Adds the sums of this block to those of the others. Whether it is the last one, and has got all of them.
__device__ __forceinline__ bool combine(float *sums, int *tickets, float (&sum)[TM][TN]) {
    float *aligned = sums + (4 - (size_t)sums / 4 % 4) % 4;
    float *own = aligned + (size_t)blockIdx.x * (BM * BN) + threadIdx.x * (FOURS ? 4 : 1);
    int *last = reinterpret_cast<int *>(shared_storage);
#pragma unroll
    for (int i = 0; i < SUMS; i += FOURS ? 4 : 1) {
        if (FOURS) {
            add_four(own + i * THREADS, sum[i / TN][i % TN], sum[(i + 1) / TN][(i + 1) % TN], sum[(i + 2) / TN][(i + 2) % TN], sum[(i + 3) / TN][(i + 3) % TN]);
        } else {
            atomicAdd(own + i * THREADS, sum[i / TN][i % TN]);
        }
    }
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) *last = atomicAdd(tickets + blockIdx.x, 1) == SPLIT_K - 1;
    __syncthreads();
    if (!*last) return false;
    __threadfence();
    if (threadIdx.x == 0) tickets[blockIdx.x] = 0;
#pragma unroll
    for (int i = 0; i < SUMS; i += FOURS ? 4 : 1) {
        if (FOURS) {
            float4 *four = reinterpret_cast<float4 *>(own + i * THREADS);
            const float4 all = load_from_l2(four);
            sum[i / TN][i % TN] = all.x, sum[(i + 1) / TN][(i + 1) % TN] = all.y, sum[(i + 2) / TN][(i + 2) % TN] = all.z, sum[(i + 3) / TN][(i + 3) % TN] = all.w;
            *four = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        } else {
            sum[i / TN][i % TN] = load_from_l2(own + i * THREADS);
            own[i * THREADS] = 0.0f;
        }
    }
    return true;
}

#endif

// The tiles of a block on their way into shared memory, in order.
struct Copies {
    OperandA a;
    OperandB b;
    int left;  // tiles that are not on their way yet

    __device__ __forceinline__ void advance() {
        a.advance();
        b.advance();
        --left;
    }

#if STAGES > 2
    __device__ __forceinline__ void begin(float *stage) {
        if (left > 0) {
            a.copy_tile_async(stage);
            b.copy_tile_async(stage + OperandA::FLOATS);
            advance();
        }
        __pipeline_commit();
    }

    // Of all but the latest STAGES - 2.
    __device__ __forceinline__ void finish(float *) { __pipeline_wait_prior(STAGES - 2); }
#else
    Pack a_packs[OperandA::COPIES];
    Pack b_packs[OperandB::COPIES];
    bool begun;

    __device__ __forceinline__ void begin(float *) {
        begun = left > 0;
        if (begun) {
            a.load_tile(a_packs);
            b.load_tile(b_packs);
            advance();
        }
    }

    __device__ __forceinline__ void finish(float *stage) {
        if (begun) {
            OperandA::store_tile(stage, a_packs);
            OperandB::store_tile(stage + OperandA::FLOATS, b_packs);
        }
    }
#endif
};

#if STAGES == 1

__device__ __forceinline__ void multiply_tiles(Copies &copies, int tiles, float *stage, float (&sum)[TM][TN]) {
    const Place place;
    const float *own_a = stage + place.own_a(), *own_b = stage + place.own_b();
    for (int tile = 0; tile < tiles; ++tile) {
        copies.begin(stage);
        copies.finish(stage);
        __syncthreads();
#pragma unroll 1
        for (int step = 0; step < BK; step += UNROLL) {
            Fragments fragments;
#pragma unroll
            for (int turn = 0; turn < UNROLL; ++turn) {
                fragments.load(own_a, own_b, step + turn, turn);
                fragments.multiply(sum, turn);
            }
        }
        __syncthreads();
    }
}

#else

constexpr int STAGE_FLOATS = OperandA::FLOATS + OperandB::FLOATS;

// Multiplies the operands of a step, and loads those of `step`: of the same one, or of the next with two sets of fragments.
__device__ __forceinline__ void multiply_step(Fragments &current, const float *own_a, const float *own_b, int step,
                                              int turn, float (&sum)[TM][TN]) {
#if FRAGMENTS == 1
    current.load(own_a, own_b, step, turn);
    current.multiply(sum, turn);
#else
    const int next_turn = (turn + 1) % UNROLL;
    Fragments next;
    next.load(own_a, own_b, step, next_turn);
    current.multiply(sum, turn);
    current.take(next, next_turn);
#endif
}

template <int COUNT>
__device__ __forceinline__ void multiply_steps(Fragments &current, const float *own_a, const float *own_b, int step,
                                               float (&sum)[TM][TN]) {
#pragma unroll
    for (int turn = 0; turn < COUNT; ++turn) {
        multiply_step(current, own_a, own_b, step + turn + FRAGMENTS - 1, turn, sum);
    }
}

__device__ __forceinline__ void multiply_tiles(Copies &copies, int tiles, float *stages, float (&sum)[TM][TN]) {
    const Place place;
    for (int stage = 0; stage < STAGES - 1; ++stage) {
        copies.begin(stages + stage * STAGE_FLOATS);
        if (STAGES == 2) copies.finish(stages);
    }
    if (STAGES > 2) copies.finish(stages);
    __syncthreads();
    const float *own_a = stages + place.own_a(), *own_b = stages + place.own_b();
    Fragments current;
    if (FRAGMENTS == 2) current.load(own_a, own_b, 0, 0);
    int reading = 0, writing = STAGES - 1;
    for (int tile = 0; tile < tiles; ++tile) {
        float *stage = stages + writing * STAGE_FLOATS;
        copies.begin(stage);
        writing = reading;
        reading = reading + 1 == STAGES ? 0 : reading + 1;
        const float *next_a = stages + place.own_a() + reading * STAGE_FLOATS;
        const float *next_b = stages + place.own_b() + reading * STAGE_FLOATS;
#if FRAGMENTS == 1
#pragma unroll 1
        for (int step = 0; step < BK; step += UNROLL) multiply_steps<UNROLL>(current, own_a, own_b, step, sum);
        copies.finish(stage);
        __syncthreads();  // the next tile has arrived, and all threads have finished with this one
#else
#pragma unroll 1
        for (int step = 0; step < BK - UNROLL; step += UNROLL) multiply_steps<UNROLL>(current, own_a, own_b, step, sum);
        multiply_steps<UNROLL - 1>(current, own_a, own_b, BK - UNROLL, sum);
        copies.finish(stage);
        __syncthreads();  // the next tile has arrived, and all of this one is in registers
        multiply_step(current, next_a, next_b, 0, UNROLL - 1, sum);
#endif
        own_a = next_a;
        own_b = next_b;
    }
}

#endif

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
    matmul(const float *A, const float *B, float *C, float *sums, int *tickets, int m, int n, int k) {
    // Which tile.
    const int tiles_m = (m + BM - 1) / BM, tiles_n = (n + BN - 1) / BN;
    const int group = blockIdx.x / (RASTER * tiles_n), in_group = blockIdx.x % (RASTER * tiles_n);
    const int group_rows = min(RASTER, tiles_m - group * RASTER);
    const int row = (group * RASTER + in_group % group_rows) * BM, column = in_group / group_rows * BN;

    // Which part of k.
    const int steps = ((k + BK - 1) / BK + SPLIT_K - 1) / SPLIT_K * BK;
    const int first_step = min(k, (int)blockIdx.y * steps), end = min(k, first_step + steps);
    const int tiles = (end - first_step + BK - 1) / BK;

    Copies copies = {OperandA(A, m, k, row, first_step, end), OperandB(B, n, k, column, first_step, end), tiles};
    float sum[TM][TN] = {};
    multiply_tiles(copies, tiles, reinterpret_cast<float *>(shared_storage), sum);
#if SPLIT_K > 1
    if (!combine(sums, tickets, sum)) return;
#endif
    store_tile(C, m, n, row, column, Place(), sum);
}
