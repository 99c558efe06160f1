// The primitives for asynchronous copies.

#pragma once

#include "cuda_on_cpu.h"

inline void __pipeline_memcpy_async(void *to, const void *from, size_t bytes, size_t zeros = 0) {
    if (bytes != 4 && bytes != 8 && bytes != 16) emulator::fail("an asynchronous copy is not of 4, 8 or 16 bytes");
    if (zeros > bytes) emulator::fail("an asynchronous copy has more zeros than bytes");
    if (reinterpret_cast<uintptr_t>(to) % bytes != 0 || reinterpret_cast<uintptr_t>(from) % bytes != 0) {
        emulator::fail("an asynchronous copy is not aligned to its size");
    }
    emulator::block.self().copies.add(to, from, bytes, zeros);
}

inline void __pipeline_commit() { emulator::block.self().copies.commit(); }
inline void __pipeline_wait_prior(unsigned left) { emulator::block.self().copies.wait(left); }
