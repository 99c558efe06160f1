// Buffers and comparison of the programs that check one candidate.

#pragma once

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// `count` floats that end where the allocation ends, `offset` floats past an aligned address.
struct Buffer {
    float *allocation, *data;
    size_t count;

    Buffer(size_t count, int offset) : count(count) {
        allocation = static_cast<float *>(malloc((count + offset) * sizeof(float)));
        data = allocation + offset;
        memset(allocation, 0xff, (count + offset) * sizeof(float));  // NaN
    }
    ~Buffer() { free(allocation); }
    Buffer(const Buffer &) = delete;

    void fill(unsigned seed) {
        for (size_t i = 0; i < count; ++i) {
            seed = seed * 1664525u + 1013904223u;
            data[i] = static_cast<float>(seed >> 8) / (1 << 23) - 1.0f;
        }
    }
};

// ||got - wanted|| / ||wanted||; NaN if anything is NaN.
inline double error_norm(const float *got, const double *wanted, size_t count) {
    double difference = 0.0, norm = 0.0;
    for (size_t i = 0; i < count; ++i) {
        difference += (got[i] - wanted[i]) * (got[i] - wanted[i]);
        norm += wanted[i] * wanted[i];
    }
    return sqrt(difference / norm);
}

// 0 if the error is that of float32 arithmetic.
inline int judge(const char *what, double error) {
    const bool good = error < 2e-6;
    if (!good) fprintf(stderr, "%s: error %g\n", what, error);
    return good ? 0 : 1;
}
