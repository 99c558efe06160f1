// What the lanes of a warp do together: shuffles, votes, reductions.

#pragma once

namespace emulator {

// Meets the other lanes of the mask; `Together::compute` then sees the operands of all, null where a lane has returned
// or takes no part.
template <typename Together, typename Operand>
void together(unsigned mask, Operand &own) {
    block.meet(
        mask, [](void *const *operands) { Together::compute(reinterpret_cast<Operand *const *>(operands)); }, &own);
}

inline int lane() { return block.running % 32; }

template <typename T>
struct Shuffled {
    T value;
    int from;
    T result;

    static void compute(Shuffled *const *lanes) {
        for (int i = 0; i < 32; ++i) {
            if (lanes[i] == nullptr) continue;
            const Shuffled *source = lanes[lanes[i]->from];
            if (source != nullptr) {
                lanes[i]->result = source->value;
            } else {
                memset(static_cast<void *>(&lanes[i]->result), 0xff, sizeof(T));  // undefined on a GPU
            }
        }
    }
};

template <typename T>
T shuffle(unsigned mask, T value, int from) {
    Shuffled<T> own{value, from, value};
    together<Shuffled<T>>(mask, own);
    return own.result;
}

struct Voted {
    bool predicate;
    unsigned result;

    static void compute(Voted *const *lanes) {
        unsigned ballot = 0;
        for (int i = 0; i < 32; ++i) ballot |= (lanes[i] != nullptr && lanes[i]->predicate ? 1u : 0u) << i;
        for (int i = 0; i < 32; ++i) {
            if (lanes[i] != nullptr) lanes[i]->result = ballot;
        }
    }
};

struct Met {
    static void compute(Met *const *) {}
};

template <typename T>
struct Matched {
    T value;
    unsigned result;

    static void compute(Matched *const *lanes) {
        for (int i = 0; i < 32; ++i) {
            if (lanes[i] == nullptr) continue;
            lanes[i]->result = 0;
            for (int j = 0; j < 32; ++j) {
                if (lanes[j] != nullptr && lanes[j]->value == lanes[i]->value) lanes[i]->result |= 1u << j;
            }
        }
    }
};

template <typename T, typename Combine>
struct Reduced {
    T value;

    static void compute(Reduced *const *lanes) {
        bool begun = false;
        T total{};
        for (int i = 0; i < 32; ++i) {
            if (lanes[i] == nullptr) continue;
            total = begun ? Combine::of(total, lanes[i]->value) : lanes[i]->value;
            begun = true;
        }
        for (int i = 0; i < 32; ++i) {
            if (lanes[i] != nullptr) lanes[i]->value = total;
        }
    }
};

}  // namespace emulator

template <typename T>
T __shfl_sync(unsigned mask, T value, int source, int width = 32) {
    const int first = emulator::lane() & ~(width - 1);
    return emulator::shuffle(mask, value, first | (source & (width - 1)));
}

template <typename T>
T __shfl_xor_sync(unsigned mask, T value, int lane_mask, int width = 32) {
    const int own = emulator::lane(), from = own ^ lane_mask;
    return emulator::shuffle(mask, value, from < (own & ~(width - 1)) + width ? from : own);
}

template <typename T>
T __shfl_up_sync(unsigned mask, T value, unsigned distance, int width = 32) {
    const int own = emulator::lane(), from = own - static_cast<int>(distance);
    return emulator::shuffle(mask, value, from >= (own & ~(width - 1)) ? from : own);
}

template <typename T>
T __shfl_down_sync(unsigned mask, T value, unsigned distance, int width = 32) {
    const int own = emulator::lane(), from = own + static_cast<int>(distance);
    return emulator::shuffle(mask, value, from < (own & ~(width - 1)) + width ? from : own);
}

inline void __syncwarp(unsigned mask = 0xffffffffu) {
    emulator::Met own;
    emulator::together<emulator::Met>(mask, own);
}

inline unsigned __ballot_sync(unsigned mask, int predicate) {
    emulator::Voted own{predicate != 0, 0};
    emulator::together<emulator::Voted>(mask, own);
    return own.result;
}

inline int __any_sync(unsigned mask, int predicate) { return __ballot_sync(mask, predicate) != 0; }
inline int __all_sync(unsigned mask, int predicate) { return __ballot_sync(mask, !predicate) == 0; }

// The lanes that have not returned: those of a branch cannot be told.
inline unsigned __activemask() {
    unsigned mask = 0;
    const int first = emulator::block.running / 32 * 32;
    for (int i = 0; i < 32 && first + i < emulator::block.count; ++i) {
        if (emulator::block.threads[first + i].state != emulator::State::RETURNED) mask |= 1u << i;
    }
    return mask;
}

template <typename T>
unsigned __match_any_sync(unsigned mask, T value) {
    emulator::Matched<T> own{value, 0};
    emulator::together<emulator::Matched<T>>(mask, own);
    return own.result;
}

#define WARP_REDUCTION(name, combined)                                    \
    template <typename T>                                                 \
    T name(unsigned mask, T value) {                                      \
        struct Combine {                                                  \
            static T of(T a, T b) { return combined; }                    \
        };                                                                \
        emulator::Reduced<T, Combine> own{value};                         \
        emulator::together<emulator::Reduced<T, Combine>>(mask, own);     \
        return own.value;                                                 \
    }
WARP_REDUCTION(__reduce_add_sync, a + b)
WARP_REDUCTION(__reduce_min_sync, a < b ? a : b)
WARP_REDUCTION(__reduce_max_sync, a < b ? b : a)
WARP_REDUCTION(__reduce_and_sync, a & b)
WARP_REDUCTION(__reduce_or_sync, a | b)
WARP_REDUCTION(__reduce_xor_sync, a ^ b)
#undef WARP_REDUCTION
