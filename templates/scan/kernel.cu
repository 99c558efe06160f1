// y[rows, cols] = inclusive prefix sums of x over the last axis, float32, row-major, for any rows, cols >= 1.
//
// ROWS rows share a block of threads; ROW_THREADS threads scan a tile of ROW_THREADS * VEC * WORK elements of one row
// at a time. A warp (or all threads of a row, if those are fewer) has a contiguous part of the tile.
//
//   VEC     floats per load and store (where the rows are aligned for it)
//   WORK    vectors per thread
//   LOAD, STORE  plain; streaming: marked as not used again
//   LAYOUT  of a warp's part. striped: its threads have vectors in turns, and it scans WORK times; blocked: a thread's
//           elements are contiguous in memory; staged: they are, but come and go through shared memory, and global
//           memory is read and written in turns
//   PAD     words that are left out after each 32 of those in shared memory
//   REDUCE  how the threads of a row combine: warp shuffles, or doubling distances in shared memory
//   METHOD  what comes before a tile. loop: a block goes along its rows and knows; look_back: each tile has a block,
//           which adds up what the tiles before it have published: their own sums, or, as far as those are known, the
//           sum of everything up to their end (D. Merrill, M. Garland: Single-pass parallel prefix scan with decoupled
//           look-back, 2016); one thread looks at one tile at a time, or a warp at 32

constexpr int THREADS = ROW_THREADS * ROWS;
constexpr int ITEMS = VEC * WORK;  // elements of a thread
constexpr int TILE = ROW_THREADS * ITEMS;
constexpr int WIDTH = ROW_THREADS < 32 ? ROW_THREADS : 32;  // threads of a row in a warp
constexpr int WARPS = ROW_THREADS / WIDTH;                  // of a row

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

template <typename T>
__device__ __forceinline__ T load(const T *from) {
#ifdef LOAD_STREAMING
    return __ldcs(from);
#else
    return *from;
#endif
}

template <typename T>
__device__ __forceinline__ void store(T *to, T value) {
#ifdef STORE_STREAMING
    __stcs(to, value);
#else
    *to = value;
#endif
}

// The first THREADS floats of shared memory are for scans, the next four for what one thread tells the others.
__device__ __forceinline__ float *scratch() { return reinterpret_cast<float *>(shared_storage); }
__device__ __forceinline__ float *told() { return scratch() + THREADS; }
__device__ __forceinline__ float *staging() { return told() + 4; }

// A thread's part of a row: vector k of VEC elements begins at column first + k * step of it.
struct Part {
    const float *from;
    float *to;
    int columns;
    int first, step;
    bool aligned;
    bool full;  // and the whole tile lies in the row

    __device__ __forceinline__ Pack read(int k) const {
        const int column = first + k * step;
        Pack pack;
        if (aligned && column <= columns - VEC) {
            pack.wide = load(reinterpret_cast<const Wide *>(from + column));
        } else {
#pragma unroll
            for (int i = 0; i < VEC; ++i) pack.at[i] = column + i < columns ? load(from + column + i) : 0.0f;
        }
        return pack;
    }

    __device__ __forceinline__ void write(int k, const Pack &pack) const {
        const int column = first + k * step;
        if (aligned && column <= columns - VEC) {
            store(reinterpret_cast<Wide *>(to + column), pack.wide);
        } else {
#pragma unroll
            for (int i = 0; i < VEC; ++i) {
                if (column + i < columns) store(to + column + i, pack.at[i]);
            }
        }
    }
};

// A thread's elements of the tile.
struct Items {
    Pack packs[WORK];

    __device__ __forceinline__ float &at(int i) { return packs[i / VEC].at[i % VEC]; }
};

#ifdef LAYOUT_STAGED
__device__ __forceinline__ float &staged(int element) {  // of the warp's part
    const int place = ((int)threadIdx.x - (int)threadIdx.x % WIDTH) * ITEMS + element;
    return staging()[place + place / 32 * PAD];
}

__device__ __forceinline__ void turns_to_contiguous(Items &items) {
    const int lane = threadIdx.x % WIDTH;
    __syncwarp();  // what was there has been read
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) staged((i / VEC * WIDTH + lane) * VEC + i % VEC) = items.at(i);
    __syncwarp();
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) items.at(i) = staged(lane * ITEMS + i);
}

__device__ __forceinline__ void contiguous_to_turns(Items &items) {
    const int lane = threadIdx.x % WIDTH;
    __syncwarp();
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) staged(lane * ITEMS + i) = items.at(i);
    __syncwarp();
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) items.at(i) = staged((i / VEC * WIDTH + lane) * VEC + i % VEC);
}
#endif

// What comes before a thread's elements in the tile, and the sum of all in the tile.
struct Before {
    float before, tile;
};

// Inclusive, over the threads of a row in a warp.
__device__ __forceinline__ float scan_warp(float value) {
#pragma unroll
    for (int distance = 1; distance < WIDTH; distance *= 2) {
        const float other = __shfl_up_sync(0xffffffffu, value, distance, WIDTH);
        if ((int)threadIdx.x % WIDTH >= distance) value += other;
    }
    return value;
}

// before: the sum of what precedes the thread's in its warp; last: of all in its warp, in its last thread.
__device__ __forceinline__ Before across_warps(float before, float last) {
    Before result = {before, __shfl_sync(0xffffffffu, last, WIDTH - 1, WIDTH)};
    if (WARPS > 1) {
        __syncthreads();  // the scan before this one has been read
        if (threadIdx.x % 32 == 31) scratch()[threadIdx.x / 32] = last;
        __syncthreads();
        const float *const sums = scratch() + threadIdx.x / ROW_THREADS * WARPS;
        const int own = (int)threadIdx.x % ROW_THREADS / WIDTH;
        float total = 0.0f, preceding = 0.0f;
#pragma unroll
        for (int warp = 0; warp < WARPS; ++warp) {
            if (warp == own) preceding = total;
            total += sums[warp];
        }
        result = {preceding + before, total};
    }
    return result;
}

// From the sum of each thread's elements.
__device__ __forceinline__ Before scan_threads(float sum) {
#ifdef REDUCE_SHUFFLE
    const float inclusive = scan_warp(sum);
    const float preceding = __shfl_up_sync(0xffffffffu, inclusive, 1, WIDTH);
    return across_warps(threadIdx.x % WIDTH == 0 ? 0.0f : preceding, inclusive);
#else
    const int lane = threadIdx.x % ROW_THREADS;
    float *const mine = scratch() + threadIdx.x;
    __syncthreads();  // the scan before this one has been read
    *mine = sum;
    __syncthreads();
#pragma unroll
    for (int distance = 1; distance < ROW_THREADS; distance *= 2) {
        const float other = lane >= distance ? mine[-distance] : 0.0f;
        __syncthreads();
        *mine += other;
        __syncthreads();
    }
    return {lane == 0 ? 0.0f : mine[-1], mine[ROW_THREADS - 1 - lane]};
#endif
}

// Items become their prefix sums within the thread's part (striped: within the warp's) of the tile.
__device__ __forceinline__ Before scan_tile(Items &items) {
#ifdef LAYOUT_STRIPED
    float sum = 0.0f;  // of the vectors of the warp so far
#pragma unroll
    for (int k = 0; k < WORK; ++k) {
        Pack &pack = items.packs[k];
#pragma unroll
        for (int i = 1; i < VEC; ++i) pack.at[i] += pack.at[i - 1];
        const float inclusive = scan_warp(pack.at[VEC - 1]);
        const float preceding = __shfl_up_sync(0xffffffffu, inclusive, 1, WIDTH);
        const float before = sum + (threadIdx.x % WIDTH == 0 ? 0.0f : preceding);
        sum += __shfl_sync(0xffffffffu, inclusive, WIDTH - 1, WIDTH);
#pragma unroll
        for (int i = 0; i < VEC; ++i) pack.at[i] += before;
    }
    return across_warps(0.0f, sum);
#else
#pragma unroll
    for (int i = 1; i < ITEMS; ++i) items.at(i) += items.at(i - 1);
    return scan_threads(items.at(ITEMS - 1));
#endif
}

__device__ __forceinline__ Part part_of(const float *x, float *y, int row, int cols, int tile) {
    const size_t offset = (size_t)row * cols;
    const int lane = threadIdx.x % WIDTH;
    const int warp = tile * TILE + (int)threadIdx.x % ROW_THREADS / WIDTH * WIDTH * ITEMS;  // begins in this column
    Part part = {x + offset, y + offset, cols, 0, 0, false, false};
#ifdef LAYOUT_BLOCKED
    part.first = warp + lane * ITEMS;
    part.step = VEC;
#else
    part.first = warp + lane * VEC;
    part.step = WIDTH * VEC;
#endif
    part.aligned = ((size_t)part.from | (size_t)part.to) % sizeof(Wide) == 0;
    part.full = part.aligned && tile * TILE <= cols - TILE;
    return part;
}

__device__ __forceinline__ Items read(const Part &part) {
    Items items;
    if (part.full) {
        const float *const from = part.from + part.first;
#pragma unroll
        for (int k = 0; k < WORK; ++k) items.packs[k].wide = load(reinterpret_cast<const Wide *>(from + k * part.step));
    } else {
#pragma unroll
        for (int k = 0; k < WORK; ++k) items.packs[k] = part.read(k);
    }
#ifdef LAYOUT_STAGED
    turns_to_contiguous(items);
#endif
    return items;
}

__device__ __forceinline__ void write(const Part &part, Items &items, float before) {
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) items.at(i) += before;
#ifdef LAYOUT_STAGED
    contiguous_to_turns(items);
#endif
    if (part.full) {
        float *const to = part.to + part.first;
#pragma unroll
        for (int k = 0; k < WORK; ++k) store(reinterpret_cast<Wide *>(to + k * part.step), items.packs[k].wide);
    } else {
#pragma unroll
        for (int k = 0; k < WORK; ++k) part.write(k, items.packs[k]);
    }
}

#ifndef METHOD_LOOP
// What is known of a tile: a float below, how much it stands for above. Both are written at once.
typedef unsigned long long State;
constexpr unsigned OWN = 1, ALL = 2;  // the sum of the tile; of the row up to its end

__device__ __forceinline__ void publish(State *state, unsigned kind, float value) {
    *static_cast<volatile State *>(state) = (State)kind << 32 | __float_as_uint(value);
}

// Waits for a tile that another block, begun earlier, is at.
__device__ __forceinline__ State published(const State *state) {
    State found;
    do {
        found = *static_cast<const volatile State *>(state);
    } while (found == 0);
    return found;
}

__device__ __forceinline__ float value_of(State state) { return __uint_as_float((unsigned)state); }

// The sum of the tiles of a row before `tile`, for the first warp of the block (look_back_thread: its first thread).
__device__ __forceinline__ float look_back(const State *states, int tile) {
    float sum = 0.0f;
#ifdef METHOD_LOOK_BACK_WARP
    for (int last = tile - 1; last >= 0; last -= 32) {
        const int mine = last - (int)threadIdx.x;
        const State state = mine >= 0 ? published(states + mine) : (State)ALL << 32;
        const unsigned complete = __ballot_sync(0xffffffffu, (state >> 32) == ALL);
        const int nearest = complete ? __ffs(complete) - 1 : 31;
        float value = (int)threadIdx.x <= nearest ? value_of(state) : 0.0f;
#pragma unroll
        for (int distance = 16; distance > 0; distance /= 2) value += __shfl_xor_sync(0xffffffffu, value, distance);
        sum += value;
        if (complete) break;
    }
#else
    if (threadIdx.x != 0) return 0.0f;
    for (int at = tile - 1; at >= 0; --at) {
        const State state = published(states + at);
        sum += value_of(state);
        if ((state >> 32) == ALL) break;
    }
#endif
    return sum;
}

// The block's number in the order in which blocks begin: those with lower numbers run already, or have finished.
__device__ __forceinline__ int next_tile(int *tickets) {
    int *const number = reinterpret_cast<int *>(told());
    if (threadIdx.x == 0) *number = atomicAdd(tickets, 1);
    __syncthreads();
    return *number;
}

// The sum before the tile, for all threads of the block. `sum`: of the tile.
__device__ __forceinline__ float exchange(State *states, int tile, float sum) {
    if (threadIdx.x < 32) {
        if (threadIdx.x == 0) publish(states + tile, tile == 0 ? ALL : OWN, sum);
        const float before = look_back(states, tile);
        if (threadIdx.x == 0) {
            if (tile > 0) publish(states + tile, ALL, before + sum);
            told()[1] = before;
        }
    }
    __syncthreads();
    return told()[1];
}

// The last block to finish, when no other looks at a state any more, leaves everything zero.
__device__ __forceinline__ void leave(State *states, int *tickets) {
    if (threadIdx.x >= 32) return;
    int last = 0;
    if (threadIdx.x == 0) {
        __threadfence();
        last = atomicAdd(tickets + 1, 1) == (int)gridDim.x - 1;
    }
    if (!__shfl_sync(0xffffffffu, last, 0)) return;
    __threadfence();
    for (int i = threadIdx.x; i < (int)gridDim.x; i += 32) states[i] = 0;
    if (threadIdx.x == 0) tickets[0] = tickets[1] = 0;
}
#endif

extern "C" __global__ void __launch_bounds__(THREADS) scan(const float *x, float *y, long long *states, int *tickets,
                                                           int rows, int cols) {
#ifdef METHOD_LOOP
    const int row = blockIdx.x * ROWS + threadIdx.x / ROW_THREADS;
    const int tiles = (cols + TILE - 1) / TILE;
    float before = 0.0f;
    for (int tile = 0; tile < tiles; ++tile) {
        const Part part = part_of(x, y, min(row, rows - 1), row < rows ? cols : 0, tile);
        Items items = read(part);
        const Before own = scan_tile(items);
        write(part, items, before + own.before);
        before += own.tile;
    }
    (void)states, (void)tickets;
#else
    const int tiles = gridDim.x / rows;
    const int number = next_tile(tickets);
    const int row = number / tiles, tile = number % tiles;
    const Part part = part_of(x, y, row, cols, tile);
    Items items = read(part);
    const Before own = scan_tile(items);
    State *const known = reinterpret_cast<State *>(states);
    const float before = exchange(known + (size_t)row * tiles, tile, own.tile);
    write(part, items, before + own.before);
    leave(known, tickets);
#endif
}
