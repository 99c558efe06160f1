// Twins of the instructions of templates/matmul_half: rounding, asynchronous copies, and wgmma with its descriptors as
// the PTX manual has them.
//
// Products begin when wgmma is called and are computed as late as allowed, when they are waited for. At both times
// what they read must have arrived and been fenced by whoever wrote it, so that a copy into a stage that is still
// read, a missing wait and a missing proxy fence end the program.

#pragma once

#include <vector>

#include "cuda_pipeline.h"
#include "small_floats.h"

#if defined(MMA_WGMMA) && !defined(WITHOUT_WGMMA)
#define __CUDA_ARCH_FEAT_SM90_ALL 1
#endif

namespace emulator {

#ifdef DTYPE_FLOAT16
typedef Float16 Format;
#else
typedef Bfloat16 Format;
#endif

constexpr unsigned SHARED_BEGINS = 1024 + 16;  // an address that is aligned to 16 bytes, and to no more

// What a thread has written to shared memory and not fenced yet, in chunks of 16 bytes.
struct Written {
    unsigned chunk;
    unsigned long long group;  // of its copies; 0: stored at once
};

struct Product {
    float *d;
    unsigned long long a, b, group;
};

struct Proxies {
    int writer[MOST_SHARED_BYTES / 16] = {};  // 1 + the thread whose write to the chunk is not fenced; 0: none
    std::vector<Written> written[MOST_THREADS];
    unsigned long long copies[MOST_THREADS] = {}, arrived[MOST_THREADS] = {};  // groups
    std::vector<Product> products[MOST_THREADS];
    unsigned long long groups[MOST_THREADS] = {};  // of products

    void write(const void *to, unsigned long long group) {
        const size_t byte = static_cast<const char *>(to) - reinterpret_cast<const char *>(shared_storage);
        const unsigned chunk = static_cast<unsigned>(byte / 16);
        writer[chunk] = block.running + 1;
        written[block.running].push_back({chunk, group});
    }

    void fence() {
        std::vector<Written> later;
        for (const Written &one : written[block.running]) {
            if (one.group > arrived[block.running]) {
                later.push_back(one);
            } else {
                writer[one.chunk] = 0;
            }
        }
        written[block.running] = later;
    }
};

inline Proxies proxies;

}  // namespace emulator

inline unsigned shared_address(const void *pointer) {
    return emulator::SHARED_BEGINS + static_cast<unsigned>(static_cast<const char *>(pointer) -
                                                           reinterpret_cast<const char *>(shared_storage));
}

template <int BYTES>
void copy_async(void *to, const void *from, bool inside) {
    __pipeline_memcpy_async(to, from, BYTES, inside ? 0 : BYTES);
    emulator::proxies.write(to, emulator::proxies.copies[emulator::block.running] + 1);
}

inline void commit_copies() {
    __pipeline_commit();
    ++emulator::proxies.copies[emulator::block.running];
}

template <int PENDING>
void wait_for_copies() {
    __pipeline_wait_prior(PENDING);
    const unsigned long long committed = emulator::proxies.copies[emulator::block.running];
    emulator::proxies.arrived[emulator::block.running] = committed > PENDING ? committed - PENDING : 0;
}

inline void store_chunk(void *to, const uint4 &chunk) {
    if (reinterpret_cast<uintptr_t>(to) % 16 != 0) emulator::fail("a chunk is not aligned to 16 bytes");
    memcpy(to, &chunk, sizeof chunk);
    emulator::proxies.write(to, 0);
}

inline unsigned rounded_pair(float low, float high) {
    return emulator::Format::of(low) | static_cast<unsigned>(emulator::Format::of(high)) << 16;
}

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

namespace emulator {

// An operand in shared memory, of as many rows (of A) or columns (of B) as the instruction has, and 16 deep.
class Operand {
    unsigned long long descriptor;
    bool deep;  // neighbours in memory are neighbours along k

    unsigned field(int shift) const { return static_cast<unsigned>(descriptor >> shift & 0x3fff) << 4; }

public:
    Operand(unsigned long long descriptor, bool deep) : descriptor(descriptor), deep(deep) {
        const unsigned width = swizzle_bytes();
        if ((descriptor >> 49 & 7) != 0) fail("wgmma: base offsets are not known here");
        if (field(0) / width % 8 != 0) fail("wgmma: an operand does not begin where its swizzle does");
    }

    unsigned swizzle_bytes() const {
        switch (descriptor >> 62) {
            case 1: return 128;
            case 2: return 64;
            case 3: return 32;
            default: fail("wgmma: operands without swizzle are not known here");
        }
    }

    // Canonical layouts, in bytes, before the swizzle. Along k: lines of one swizzle's width, eight of them together,
    // the next eight a stride on. Along m or n: eight lines of one swizzle's width for eight steps of k, the next eight
    // a stride on; what is wider goes on a leading offset later.
    unsigned address(int position, int k) const {
        const unsigned width = swizzle_bytes(), leading = field(16), stride = field(32);
        const unsigned line = deep ? position : k, along = 2 * (deep ? k : position);
        if (deep && field(0) % width + along >= width) fail("wgmma: an operand goes on past its swizzle");
        const unsigned first = field(0) + line / 8 * stride + along / width * leading;
        const unsigned plain = first + line % 8 * width + along % width;
        return plain ^ (plain >> 7 & (width / 16 - 1)) << 4;
    }

    float value(int position, int k) const {
        const unsigned byte = address(position, k) - SHARED_BEGINS;
        if (byte >= MOST_SHARED_BYTES) fail("wgmma: an operand is not in shared memory");
        if (proxies.writer[byte / 16] != 0) fail("wgmma: reads what is being written, or has not been fenced");
        unsigned short raw;
        memcpy(&raw, reinterpret_cast<const char *>(shared_storage) + byte, sizeof raw);
        return Format::value(raw);
    }
};

#ifdef A_LAYOUT_COLUMN
constexpr bool A_DEEP = false;
#else
constexpr bool A_DEEP = true;
#endif
#ifdef B_LAYOUT_COLUMN
constexpr bool B_DEEP = true;
#else
constexpr bool B_DEEP = false;
#endif

// A thread's part of m64nWNk16: rows 16 * warp + lane / 4 and eight below, two columns of every eight.
inline void compute(const Product &product, bool only_look) {
    const Operand a(product.a, A_DEEP), b(product.b, B_DEEP);
    const int lane = block.running % 32, top = block.running / 32 % 4 * 16 + lane / 4;
    float rows[2][16];
    for (int i = 0; i < 32; ++i) rows[i / 16][i % 16] = a.value(top + i / 16 * 8, i % 16);
    for (int pair = 0; pair < WN / 8; ++pair) {
        for (int side = 0; side < 2; ++side) {
            float sums[2] = {};
            for (int k = 0; k < 16; ++k) {
                const float factor = b.value(pair * 8 + lane % 4 * 2 + side, k);
                for (int i = 0; i < 2; ++i) sums[i] += rows[i][k] * factor;
            }
            for (int i = 0; i < 2 && !only_look; ++i) product.d[pair * 4 + i * 2 + side] += sums[i];
        }
    }
}

}  // namespace emulator

inline void fence_async_proxy() { emulator::proxies.fence(); }
inline void wgmma_fence() {}
inline void wgmma_commit() { ++emulator::proxies.groups[emulator::block.running]; }

template <int PENDING>
void wgmma_wait() {
    std::vector<emulator::Product> &products = emulator::proxies.products[emulator::block.running];
    size_t done = 0;
    for (; done < products.size(); ++done) {
        if (products[done].group + PENDING >= emulator::proxies.groups[emulator::block.running]) break;
        emulator::compute(products[done], false);
    }
    products.erase(products.begin(), products.begin() + done);
}

inline void wgmma(float (&d)[WN / 2], unsigned long long a, unsigned long long b) {
    const emulator::Product product{d, a, b, emulator::proxies.groups[emulator::block.running]};
    emulator::compute(product, true);
    emulator::proxies.products[emulator::block.running].push_back(product);
}

inline void pin(float &) {}

#endif
