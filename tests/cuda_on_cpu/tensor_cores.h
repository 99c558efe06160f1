// Twins of the instructions for matrices in registers, with the fragment layouts of the PTX manual.

#pragma once

namespace emulator {

template <int MATRICES, bool TRANSPOSED>
struct LoadedMatrices {
    const void *row;  // lane i gives row i % 8 of matrix i / 8
    unsigned *registers;

    static void compute(LoadedMatrices *const *lanes) {
        for (int m = 0; m < MATRICES; ++m) {
            unsigned short matrix[8][8];
            for (int i = 0; i < 8; ++i) memcpy(matrix[i], lanes[8 * m + i]->row, sizeof matrix[i]);
            for (int lane = 0; lane < 32; ++lane) {
                const int row = lane / 4, column = lane % 4 * 2;
                const unsigned low = TRANSPOSED ? matrix[column][row] : matrix[row][column];
                const unsigned high = TRANSPOSED ? matrix[column + 1][row] : matrix[row][column + 1];
                lanes[lane]->registers[m] = high << 16 | low;
            }
        }
    }
};

template <int MATRICES, bool TRANSPOSED>
void load_matrices(unsigned *registers, const void *row) {
    const unsigned used = MATRICES == 4 ? 0xffffffffu : (1u << 8 * MATRICES) - 1;
    if (used >> lane() & 1 && reinterpret_cast<uintptr_t>(row) % 16 != 0) fail("ldmatrix: a row is not aligned to 16 bytes");
    if (__activemask() != 0xffffffffu) fail("ldmatrix: not all lanes of the warp are there");
    LoadedMatrices<MATRICES, TRANSPOSED> own{row, registers};
    together<LoadedMatrices<MATRICES, TRANSPOSED>>(0xffffffffu, own);
}

inline float bfloat16_value(unsigned bits16) { return bits<float>(bits16 << 16); }
inline float float16_value(unsigned bits16) {
    return static_cast<float>(bits<_Float16>(static_cast<unsigned short>(bits16)));
}

// d[16, 8] += a[16, 16] * b[16, 8]
template <float (*VALUE)(unsigned)>
struct Multiplied {
    float *d;
    const unsigned *a, *b;

    static float half_of(unsigned pair, int which) { return VALUE(which ? pair >> 16 : pair & 0xffff); }

    static void compute(Multiplied *const *lanes) {
        float a[16][16], b[16][8];
        for (int lane = 0; lane < 32; ++lane) {
            const int group = lane / 4, pair = lane % 4 * 2;
            for (int i = 0; i < 2; ++i) {
                for (int r = 0; r < 4; ++r) a[group + r % 2 * 8][pair + r / 2 * 8 + i] = half_of(lanes[lane]->a[r], i);
                for (int r = 0; r < 2; ++r) b[pair + r * 8 + i][group] = half_of(lanes[lane]->b[r], i);
            }
        }
        for (int lane = 0; lane < 32; ++lane) {
            const int group = lane / 4, pair = lane % 4 * 2;
            for (int r = 0; r < 4; ++r) {
                float sum = 0.0f;
                for (int k = 0; k < 16; ++k) sum += a[group + r / 2 * 8][k] * b[k][pair + r % 2];
                lanes[lane]->d[r] += sum;
            }
        }
    }
};

template <float (*VALUE)(unsigned)>
void multiply(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
    if (__activemask() != 0xffffffffu) fail("mma: not all lanes of the warp are there");
    Multiplied<VALUE> own{d, a, b};
    together<Multiplied<VALUE>>(0xffffffffu, own);
}

}  // namespace emulator

inline void ldmatrix_x4(unsigned (&r)[4], const void *row) { emulator::load_matrices<4, false>(r, row); }
inline void ldmatrix_x4_trans(unsigned (&r)[4], const void *row) { emulator::load_matrices<4, true>(r, row); }
inline void ldmatrix_x2(unsigned (&r)[2], const void *row) { emulator::load_matrices<2, false>(r, row); }
inline void ldmatrix_x2_trans(unsigned (&r)[2], const void *row) { emulator::load_matrices<2, true>(r, row); }

// mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32, and of float16: d += a * b
inline void mma_bf16(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
    emulator::multiply<emulator::bfloat16_value>(d, a, b);
}
inline void mma_f16(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
    emulator::multiply<emulator::float16_value>(d, a, b);
}
