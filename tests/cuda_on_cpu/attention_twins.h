// Twins of what attention's kernel.cu writes in PTX. Warpgroup products happen as late as allowed, when a thread waits
// for them, so that a register or a tile that changes too early shows. Operands in shared memory are found through
// their descriptors, as the PTX manual lays them out for a swizzle of 128 bytes.

#pragma once

#include <vector>

#include "cuda_bf16.h"
#include "cuda_pipeline.h"

template <int BYTES>
void copy_async(void *to, const void *from, bool inside) {
    __pipeline_memcpy_async(to, from, BYTES, inside ? 0 : BYTES);
}

inline void commit_copies() { __pipeline_commit(); }

template <int PENDING>
void wait_for_copies() {
    __pipeline_wait_prior(PENDING);
}

inline float exp2_approximate(float x) { return exp2f(x); }

inline void fence_shared_for_wgmma() {}
inline void pin(float &) {}
inline void pin(unsigned &) {}
inline void compute_here(float) {}

namespace emulator {

inline char *shared_base() {
    char *storage = reinterpret_cast<char *>(shared_storage);
    return storage + (1024 - reinterpret_cast<uintptr_t>(storage) % 1024) % 1024;
}

struct WgmmaOperand {
    size_t first, leading, stride;

    explicit WgmmaOperand(unsigned long long bits) {
        if (bits >> 62 != 1) fail("wgmma: an operand that is not swizzled by 128 bytes");
        first = (bits & 0x3fff) << 4;
        leading = (bits >> 16 & 0x3fff) << 4;
        stride = (bits >> 32 & 0x3fff) << 4;
    }

    // The element at `place` along m or n, and `depth`.
    unsigned at(int place, int depth, bool transposed) const {
        size_t address = first;
        if (transposed) {
            address += place / 64 * leading + depth / 8 * stride + depth % 8 * 128 + place % 64 * 2;
        } else {
            address += place / 8 * stride + place % 8 * 128 + depth * 2;
        }
        address ^= (address >> 7 & 7) << 4;
        unsigned short element;
        memcpy(&element, shared_base() + address, sizeof element);
        return element;
    }

    // Two neighbours along the depth, as a register of a fragment.
    unsigned pair(int place, int depth, bool transposed) const {
        return at(place, depth + 1, transposed) << 16 | at(place, depth, transposed);
    }
};

struct PendingProduct {
    float (*d)[4];
    int tiles;
    bool transposed, add, a_is_shared;
    const unsigned *a_registers;
    unsigned long long a, b, group;

    void fragment(unsigned (&registers)[4]) const {
        for (int i = 0; i < 4; ++i) {
            if (a_is_shared) {
                const int row = threadIdx.x / 32 % 4 * 16 + lane() / 4 + i % 2 * 8;
                registers[i] = WgmmaOperand(a).pair(row, lane() % 4 * 2 + i / 2 * 8, false);
            } else {
                registers[i] = a_registers[i];
            }
        }
    }

    void compute() const {
        unsigned left[4];
        fragment(left);
        const WgmmaOperand right(b);
        for (int tile = 0; tile < tiles; ++tile) {
            const int column = tile * 8 + lane() / 4, depth = lane() % 4 * 2;
            const unsigned registers[2] = {right.pair(column, depth, transposed),
                                           right.pair(column, depth + 8, transposed)};
            if (!add) {
                for (float &sum : d[tile]) sum = 0.0f;
            }
            multiply<bfloat16_value>(d[tile], left, registers);
        }
    }
};

struct PendingProducts {
    std::vector<PendingProduct> products;
    unsigned long long group = 0;
    bool arrived = false;

    static PendingProducts &own() {
        static PendingProducts all[MOST_THREADS];
        return all[block.running];
    }

    void start(PendingProduct product) {
        if (!arrived) fail("wgmma: no wgmma.fence before it");
        product.group = group;
        products.push_back(product);
    }

    void wait(unsigned long long left) {
        size_t done = 0;
        while (done < products.size() && products[done].group + left < group) products[done++].compute();
        products.erase(products.begin(), products.begin() + done);
    }
};

}  // namespace emulator

inline void wgmma_arrive() { emulator::PendingProducts::own().arrived = true; }

inline void wgmma_commit() {
    ++emulator::PendingProducts::own().group;
    emulator::PendingProducts::own().arrived = false;
}

template <int PENDING>
void wgmma_wait() {
    emulator::PendingProducts::own().wait(PENDING);
}

inline unsigned long long wgmma_operand(const void *first, int leading, int stride) {
    const unsigned long long address = static_cast<const char *>(first) - emulator::shared_base();
    return (address & 0x3ffff) >> 4 | static_cast<unsigned long long>(leading >> 4) << 16 |
           static_cast<unsigned long long>(stride >> 4) << 32 | 1ull << 62;
}

template <int N, int TRANSPOSED>
struct Wgmma {
    static void run(float (&d)[N / 8][4], unsigned long long a, unsigned long long b, int add) {
        emulator::PendingProducts::own().start({d, N / 8, TRANSPOSED != 0, add != 0, true, nullptr, a, b, 0});
    }
    static void run(float (&d)[N / 8][4], const unsigned (&a)[4], unsigned long long b, int add) {
        emulator::PendingProducts::own().start({d, N / 8, TRANSPOSED != 0, add != 0, false, a, 0, b, 0});
    }
};
