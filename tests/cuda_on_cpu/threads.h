// Blocks of coroutines: who runs, who waits, and for what.

#pragma once

#include <sys/mman.h>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#endif

#if !defined(__x86_64__) && !defined(USE_UCONTEXT)
#define USE_UCONTEXT
#endif
#ifdef USE_UCONTEXT
#include <ucontext.h>
#endif

#include "copies.h"

inline uint3 threadIdx, blockIdx;
inline dim3 blockDim, gridDim;
constexpr int warpSize = 32;

constexpr size_t MOST_SHARED_BYTES = 228 << 10;
constexpr size_t SHARED_GUARD_BYTES = 4 << 10;

thread_local float4 shared_storage[(MOST_SHARED_BYTES + SHARED_GUARD_BYTES) / sizeof(float4)];

namespace emulator {

constexpr int MOST_THREADS = 1024;
// Not a multiple of a page: the tops of all stacks would share a few lines of the cache.
constexpr size_t STACK_BYTES = (256 << 10) + 4096 + 320;
constexpr int MOST_FRUITLESS_ROUNDS = 1 << 12;

[[noreturn]] inline void fail(const char *what) {
    fprintf(stderr, "block (%u, %u, %u), thread (%u, %u, %u): %s\n", blockIdx.x, blockIdx.y, blockIdx.z, threadIdx.x,
            threadIdx.y, threadIdx.z, what);
    exit(3);
}

#ifndef USE_UCONTEXT

// Pushes the registers that a function must keep, stores the stack pointer, and takes another one.
extern "C" void emulator_switch(void **from, void *to);
asm(R"(
.text
.type emulator_switch, @function
emulator_switch:
    push %rbp
    push %rbx
    push %r12
    push %r13
    push %r14
    push %r15
    mov %rsp, (%rdi)
    mov %rsi, %rsp
    pop %r15
    pop %r14
    pop %r13
    pop %r12
    pop %rbx
    pop %rbp
    ret
.size emulator_switch, .-emulator_switch
)");

struct Context {
    void *stack_pointer;

    void begin(char *stack, size_t bytes, void (*entry)()) {
        void **top = reinterpret_cast<void **>((reinterpret_cast<uintptr_t>(stack) + bytes) & ~uintptr_t{15});
        *--top = nullptr;  // where entry would return to
        *--top = reinterpret_cast<void *>(entry);
        for (int i = 0; i < 6; ++i) *--top = nullptr;
        stack_pointer = top;
    }

    void switch_to(Context &other) { emulator_switch(&stack_pointer, other.stack_pointer); }
};

#else

struct Context {
    ucontext_t context;

    void begin(char *stack, size_t bytes, void (*entry)()) {
        getcontext(&context);
        context.uc_stack.ss_sp = stack;
        context.uc_stack.ss_size = bytes;
        context.uc_link = nullptr;
        makecontext(&context, entry, 0);
    }

    void switch_to(Context &other) { swapcontext(&context, &other.context); }
};

#endif

enum class State : unsigned char { READY, YIELDED, AT_BARRIER, AT_NAMED_BARRIER, IN_WARP, RETURNED };

typedef void (*Operation)(void *const *operands);  // of 32 lanes; null for one that takes no part

struct Thread {
    Context context;
    uint3 index;
    State state;
    int barrier;          // a named one
    unsigned mask;        // lanes that take part in what it waits for
    Operation operation;  // of all of them, on their operands
    void *operand;
    Copies copies;
};

struct Block {
    Thread threads[MOST_THREADS];
    int arrived[16];  // at named barriers
    Context scheduler;
    char *stacks = nullptr;
    void (*body)(const void *) = nullptr;
    const void *arguments = nullptr;
    int count = 0, running = 0, left = 0;
    int votes = 0, voted = 0;
    bool descending = false;

    Thread &self() { return threads[running]; }

    void wait(State state) {
        self().state = state;
        self().context.switch_to(scheduler);
    }

    // Whether every lane of the mask that has not returned waits for this operation.
    bool is_complete(int warp, unsigned mask, Operation operation) const {
        for (unsigned rest = mask; rest != 0; rest &= rest - 1) {
            const int lane = warp * 32 + __builtin_ctz(rest);
            if (lane >= count || threads[lane].state == State::RETURNED) continue;
            const Thread &thread = threads[lane];
            if (thread.state != State::IN_WARP || thread.mask != mask || thread.operation != operation) return false;
        }
        return true;
    }

    void complete(int warp, unsigned mask, Operation operation) {
        void *operands[32] = {};
        for (unsigned rest = mask; rest != 0; rest &= rest - 1) {
            const int lane = __builtin_ctz(rest);
            if (warp * 32 + lane >= count || threads[warp * 32 + lane].state == State::RETURNED) continue;
            operands[lane] = threads[warp * 32 + lane].operand;
            threads[warp * 32 + lane].state = State::READY;
        }
        operation(operands);
    }

    // Waits until all lanes of the mask are here, and the operation is done.
    void meet(unsigned mask, Operation operation, void *operand) {
        const int warp = running / 32;
        if (!(mask >> running % 32 & 1)) fail("a lane is not in its own mask");
        Thread &thread = self();
        thread.state = State::IN_WARP;
        thread.mask = mask;
        thread.operation = operation;
        thread.operand = operand;
        if (is_complete(warp, mask, operation)) {
            complete(warp, mask, operation);
        } else {
            thread.context.switch_to(scheduler);
        }
    }

    void arrive(int barrier, int expected) {
        if (barrier < 1 || barrier > 15 || expected % 32 != 0) fail("a named barrier that there is not");
        if (++arrived[barrier] < expected) return;
        arrived[barrier] = 0;
        for (int i = 0; i < count; ++i) {
            if (threads[i].state == State::AT_NAMED_BARRIER && threads[i].barrier == barrier) {
                threads[i].state = State::READY;
            }
        }
    }

    void returned() {
        self().state = State::RETURNED;
        --left;
        const int warp = running / 32;
        for (int i = warp * 32; i < warp * 32 + 32 && i < count; ++i) {
            const Thread &thread = threads[i];
            if (thread.state == State::IN_WARP && is_complete(warp, thread.mask, thread.operation)) {
                complete(warp, thread.mask, thread.operation);
            }
        }
    }

    static void enter();

    void resume(int thread) {
        running = thread;
        threadIdx = threads[thread].index;
        scheduler.switch_to(threads[thread].context);
    }

    // Until all lanes wait for others. Whether any of them ran, and whether one did more than to ask again.
    struct Progress {
        bool any = false, real = false;
    };
    Progress run_warp(int warp) {
        Progress progress;
        const int first = warp * 32, lanes = count - first < 32 ? count - first : 32;
        for (int i = first; i < first + lanes; ++i) {
            if (threads[i].state == State::YIELDED) threads[i].state = State::READY;
        }
        for (bool again = true; again;) {
            again = false;
            for (int turn = 0; turn < lanes; ++turn) {
                const int thread = first + (descending ? lanes - 1 - turn : turn);
                if (threads[thread].state != State::READY) continue;
                resume(thread);
                again = progress.any = true;
                progress.real |= threads[thread].state != State::YIELDED;
            }
        }
        return progress;
    }

    bool release_barrier() {
        for (int i = 0; i < count; ++i) {
            if (threads[i].state != State::AT_BARRIER && threads[i].state != State::RETURNED) return false;
        }
        for (int i = 0; i < count; ++i) {
            if (threads[i].state == State::AT_BARRIER) threads[i].state = State::READY;
        }
        voted = votes;
        votes = 0;
        return true;
    }

    void prepare() {
        if (stacks == nullptr) {
            const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
            void *mapped = mmap(nullptr, MOST_THREADS * STACK_BYTES, PROT_READ | PROT_WRITE, flags, -1, 0);
            if (mapped == MAP_FAILED) fail("no memory for stacks");
            stacks = static_cast<char *>(mapped);
        }
        count = left = static_cast<int>(blockDim.x * blockDim.y * blockDim.z);
        if (count < 1 || count > MOST_THREADS) fail("a block of that many threads cannot be launched");
        for (int i = 0; i < count; ++i) {
            const unsigned x = i % blockDim.x, y = i / blockDim.x % blockDim.y, z = i / blockDim.x / blockDim.y;
            threads[i].index = {x, y, z};
            threads[i].state = State::READY;
            threads[i].copies.forget();
            threads[i].context.begin(stacks + i * STACK_BYTES, STACK_BYTES, enter);
        }
        for (int &threads_there : arrived) threads_there = 0;
    }

    void run() {
        prepare();
        for (int fruitless = 0; left > 0;) {
            const int warps = (count + 31) / 32;
            Progress progress;
            for (int turn = 0; turn < warps; ++turn) {
                const Progress one = run_warp(descending ? warps - 1 - turn : turn);
                progress.any |= one.any;
                progress.real |= one.real;
            }
            if (left == 0 || release_barrier()) {
                fruitless = 0;
                continue;
            }
            fruitless = progress.real ? 0 : fruitless + 1;
            if (!progress.any || fruitless > MOST_FRUITLESS_ROUNDS) stuck();
        }
    }

    [[noreturn]] void stuck() {
        int waiting[6] = {};
        for (int i = 0; i < count; ++i) ++waiting[static_cast<int>(threads[i].state)];
        fprintf(stderr, "of %d threads %d have returned, %d wait at a barrier, %d at a named one, %d for lanes of their "
                        "warp, %d in a loop, for what never comes\n",
                count, waiting[5], waiting[2], waiting[3], waiting[4], waiting[1]);
        fail("is where it ended");
    }
};

inline Block block;

inline void Block::enter() {
    block.body(block.arguments);
    block.returned();
    block.self().context.switch_to(block.scheduler);
}

// For loops that wait for another thread of the block.
inline void yield() { block.wait(State::YIELDED); }

inline void check_shared_guard(size_t shared_bytes) {
    const unsigned char *guard = reinterpret_cast<const unsigned char *>(shared_storage) + shared_bytes;
    static const struct Pattern {
        unsigned char bytes[SHARED_GUARD_BYTES];
        Pattern() { memset(bytes, 0xff, sizeof bytes); }
    } pattern;
    if (memcmp(guard, pattern.bytes, sizeof pattern.bytes) != 0) fail("wrote past the launch's shared memory");
}

inline void limit_shared_memory(size_t shared_bytes) {
    if (shared_bytes > MOST_SHARED_BYTES) fail("so much shared memory cannot be launched");
    char *storage = reinterpret_cast<char *>(shared_storage);
#ifdef __SANITIZE_ADDRESS__
    ASAN_UNPOISON_MEMORY_REGION(storage, shared_bytes);
    ASAN_POISON_MEMORY_REGION(storage + shared_bytes, sizeof shared_storage - shared_bytes);
#else
    memset(storage + shared_bytes, 0xff, SHARED_GUARD_BYTES);
#endif
}

// Launches `kernel`, something that is called once per thread.
template <typename Kernel>
void launch(dim3 grid, dim3 threads, size_t shared_bytes, bool descending, const Kernel &kernel) {
    gridDim = grid;
    blockDim = threads;
    block.body = [](const void *called) { (*static_cast<const Kernel *>(called))(); };
    block.arguments = &kernel;
    block.descending = descending;
    limit_shared_memory(shared_bytes);
    const unsigned long long blocks = 1ull * grid.x * grid.y * grid.z;
    for (unsigned long long turn = 0; turn < blocks; ++turn) {
        const unsigned long long number = descending ? blocks - 1 - turn : turn;
        blockIdx.x = number % grid.x;
        blockIdx.y = number / grid.x % grid.y;
        blockIdx.z = number / grid.x / grid.y;
        memset(shared_storage, 0xff, shared_bytes);
        block.run();
#ifndef __SANITIZE_ADDRESS__
        check_shared_guard(shared_bytes);
#endif
    }
}

}  // namespace emulator

inline void __syncthreads() {
#ifndef IGNORE_BARRIERS
    emulator::block.wait(emulator::State::AT_BARRIER);
#endif
}

inline int __syncthreads_count(int predicate) {
    emulator::block.votes += predicate != 0;
    emulator::block.wait(emulator::State::AT_BARRIER);
    return emulator::block.voted;
}

inline int __syncthreads_or(int predicate) { return __syncthreads_count(predicate) > 0; }
inline int __syncthreads_and(int predicate) { return __syncthreads_count(!predicate) == 0; }

// bar.sync and bar.arrive of barrier `id` (1 to 15) for `threads` threads.
inline void named_barrier_sync(int id, int threads) {
    emulator::Thread &self = emulator::block.self();
    self.barrier = id;
    self.state = emulator::State::AT_NAMED_BARRIER;
    emulator::block.arrive(id, threads);
    if (self.state == emulator::State::AT_NAMED_BARRIER) self.context.switch_to(emulator::block.scheduler);
}

inline void named_barrier_arrive(int id, int threads) { emulator::block.arrive(id, threads); }

inline void __nanosleep(unsigned) { emulator::yield(); }
inline void __threadfence() {}
inline void __threadfence_block() {}
inline void __threadfence_system() {}
[[noreturn]] inline void __trap() { emulator::fail("__trap()"); }
