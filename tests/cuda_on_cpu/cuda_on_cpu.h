// Runs a CUDA kernel on a processor, one thread block after another, to check its indexing and its barriers.
//
// Each CUDA thread is a coroutine that runs undisturbed until its next barrier, so that threads run as far apart as the
// barriers allow: a missing one shows. Barriers that not all threads of a block reach end the program, as does, with
// the address sanitizer, an access outside a buffer or outside the launch's shared memory. Macros that choose:
//
//   SHARED_BYTES      dynamic shared memory of the launch
//   IGNORE_BARRIERS   __syncthreads does nothing (to see that the check notices)

#pragma once

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

#include <functional>
#include <vector>

#define __global__
#define __device__
#define __forceinline__ inline
#define __shared__
#define __launch_bounds__(threads)
#define __expf expf

struct Index {
    int x, y, z;
};

struct alignas(8) float2 {
    float x, y;
};

struct alignas(16) float4 {
    float x, y, z, w;
};

inline Index threadIdx, blockIdx, blockDim, gridDim;
inline float exchanged[1024];

float4 shared_storage[(SHARED_BYTES + 15) / 16 + 1];  // one more: an array may not be empty

struct Block {
    static constexpr size_t STACK_BYTES = 256 << 10;

    std::vector<ucontext_t> contexts;
    std::vector<std::vector<char>> stacks;
    std::vector<bool> finished;
    ucontext_t scheduler;
    const std::function<void()> *body = nullptr;
    int running = 0;

    void wait() { swapcontext(&contexts[running], &scheduler); }

    static void enter();

    // Ends the program if some threads have finished while others wait at a barrier.
    void run(const std::function<void()> &kernel, int threads, bool descending) {
        body = &kernel;
        contexts.resize(threads);
        stacks.resize(threads);
        finished.assign(threads, false);
        for (int thread = 0; thread < threads; ++thread) {
            stacks[thread].resize(STACK_BYTES);
            getcontext(&contexts[thread]);
            contexts[thread].uc_stack.ss_sp = stacks[thread].data();
            contexts[thread].uc_stack.ss_size = STACK_BYTES;
            contexts[thread].uc_link = &scheduler;
            makecontext(&contexts[thread], enter, 0);
        }
        for (int left = threads; left > 0;) {
            for (int turn = 0; turn < threads; ++turn) {
                running = descending ? threads - 1 - turn : turn;
                threadIdx = {running, 0, 0};
                swapcontext(&scheduler, &contexts[running]);
            }
            left = 0;
            for (int thread = 0; thread < threads; ++thread) left += !finished[thread];
            if (left != 0 && left != threads) {
                fprintf(stderr, "%d of %d threads wait at a barrier that the others never reach\n", left, threads);
                exit(3);
            }
        }
    }
};

inline Block block;

inline void Block::enter() {
    (*block.body)();
    block.finished[block.running] = true;
}

inline void __syncthreads() {
#ifndef IGNORE_BARRIERS
    block.wait();
#endif
}

// Every thread of the block must take part, as all of a warp must on a GPU.
inline float __shfl_xor_sync(unsigned, float value, int lane_mask, int width) {
    const int thread = threadIdx.x;
    exchanged[thread] = value;
    block.wait();
    const float result = exchanged[(thread & ~(width - 1)) | ((thread ^ lane_mask) & (width - 1))];
    block.wait();
    return result;
}

template <typename T>
T __ldg(const T *pointer) {
    return *pointer;
}

inline float __int_as_float(unsigned bits) {
    float result;
    memcpy(&result, &bits, sizeof result);
    return result;
}

// Shared memory holds NaN when a block begins.
inline void launch(int grid_x, int grid_y, int threads, bool descending, const std::function<void()> &kernel) {
    gridDim = {grid_x, grid_y, 1};
    blockDim = {threads, 1, 1};
    for (int y = 0; y < grid_y; ++y) {
        for (int x = 0; x < grid_x; ++x) {
            blockIdx = {x, y, 0};
            memset(shared_storage, 0xff, sizeof shared_storage);
            block.run(kernel, threads, descending);
        }
    }
}
