// Runs a CUDA kernel on a processor, one thread block after another, to check its indexing and its barriers.
//
// Each CUDA thread is a coroutine that runs undisturbed until it has to wait: at a barrier of the block, or for the
// other lanes of its warp (shuffles, votes, matrix instructions). So threads run as far apart as the barriers allow,
// and a missing one shows. The order is fixed: ascending or descending, for blocks, warps and lanes alike. A wait that
// cannot end, a write past the launch's shared memory, or an asynchronous copy that is not aligned ends the program
// with status 3; with the address sanitizer every access outside of a buffer or of shared memory does. Shared memory
// holds NaN when a block begins. Threads that have returned count as arrived, as on a GPU. Blocks never run at the
// same time: one that waits for a block which comes later hangs.
//
//   IGNORE_BARRIERS   __syncthreads does nothing (to see that a check notices)
//   USE_UCONTEXT      as on processors other than x86-64: the C library switches between threads, several times slower

#pragma once

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define __global__
#define __device__
#define __host__
#define __constant__
#define __managed__
#define __forceinline__ inline
#define __noinline__
#define __launch_bounds__(...)
#define __cluster_dims__(...)
#define __grid_constant__
#define __align__(bytes) __attribute__((aligned(bytes)))
// In a function this makes a variable static, after `extern` it is harmless.
#define __shared__ thread_local

#include "vector_types.h"
// Needs the types.
#include "threads.h"
// Needs the threads.
#include "arithmetic.h"
#include "warps.h"
// Needs the warps.
#include "tensor_cores.h"
