// Runs one kernel once or several times, as the job in a text file says:
//
//   GRID_X GRID_Y GRID_Z BLOCK_X BLOCK_Y BLOCK_Z SHARED_BYTES DESCENDING LAUNCHES
//   scalar BYTES BITS                        one line per argument, in call order
//   KIND BYTES OFFSET PATH                   input | inout | output | workspace | null
//
// BITS is an unsigned number. Arrays are read from PATH, and what was written is stored in PATH.0, PATH.1, … per
// launch. An array begins OFFSET bytes past an aligned address. With the address sanitizer it ends where its allocation
// ends; otherwise guard bands lie on both sides. Between launches outputs are poisoned, and inouts are given their
// contents back; workspaces are zero at first and keep what is in them. Exit status 3: see cuda_on_cpu.h, or a buffer
// that was written to and must not be.
//
//   ENTRY      the kernel           SOURCE   the file that defines it
//   CONFIG     a header with the parameters' macros
//   PROTOTYPE  instead of SOURCE: declares a C function, which is called once and linked in
//   TWINS      a header to include before SOURCE

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <utility>

#ifndef PROTOTYPE
#include "cuda_bf16.h"
#include "cuda_fp16.h"
#include "cuda_on_cpu.h"
#include "cuda_pipeline.h"
#endif

namespace driver {

constexpr int MOST_ARGUMENTS = 64;
#ifdef __SANITIZE_ADDRESS__
constexpr size_t GUARD_BYTES = 0;
#else
constexpr size_t GUARD_BYTES = 4096;
#endif
constexpr int GUARD = 0xa5;

[[noreturn]] inline void refuse(const char *what, const char *of) {
    fprintf(stderr, "%s: %s\n", what, of);
    exit(3);
}

struct Given {
    char kind[16], path[4096];
    size_t bytes, offset;
    unsigned long long bits;
    unsigned char *allocation, *data, *contents;  // contents: what it begins as

    bool is(const char *name) const { return strcmp(kind, name) == 0; }

    void allocate() {
        const size_t whole = GUARD_BYTES + offset + bytes + GUARD_BYTES;
        // Past the last byte lies what the address sanitizer guards.
        allocation = static_cast<unsigned char *>(malloc(whole));
        contents = static_cast<unsigned char *>(malloc(bytes));
        data = is("null") ? nullptr : allocation + GUARD_BYTES + offset;
        memset(allocation, GUARD, whole);
        memset(contents, is("workspace") ? 0 : 0xff, bytes);
        if (is("input") || is("inout")) read();
        if (!is("null")) memcpy(data, contents, bytes);
    }

    void read() {
        FILE *file = fopen(path, "rb");
        if (file == nullptr || fread(contents, 1, bytes, file) != bytes) refuse("cannot be read", path);
        fclose(file);
    }

    void write(int launch) const {
        char name[4096 + 16];
        snprintf(name, sizeof name, "%s.%d", path, launch);
        FILE *file = fopen(name, "wb");
        if (file == nullptr || fwrite(data, 1, bytes, file) != bytes) refuse("cannot be written", name);
        fclose(file);
    }

    void check() const {
        if (is("input") && memcmp(data, contents, bytes) != 0) refuse("an input was written", path);
        for (size_t i = 0; i < GUARD_BYTES; ++i) {
            if (allocation[i] != GUARD || data[bytes + i] != GUARD) refuse("written outside of its buffer", path);
        }
    }
};

inline Given given[MOST_ARGUMENTS];
inline int count = 0;

inline void parse_arguments(FILE *job) {
    while (count < MOST_ARGUMENTS && fscanf(job, "%15s %zu", given[count].kind, &given[count].bytes) == 2) {
        Given &argument = given[count++];
        if (argument.is("scalar")) {
            if (fscanf(job, "%llu", &argument.bits) != 1) refuse("cannot be read", "a scalar");
        } else {
            if (fscanf(job, "%zu %4095[^\n]", &argument.offset, argument.path) != 2) refuse("cannot be read", "a line");
            argument.allocate();
        }
    }
}

template <typename T>
T passed(const Given &argument) {
    if constexpr (std::is_pointer_v<T>) {
        if (argument.is("scalar")) refuse("is a pointer, and declared a", argument.kind);
        return reinterpret_cast<T>(argument.data);
    } else {
        if (!argument.is("scalar") || argument.bytes != sizeof(T)) refuse("has another size than declared", "a scalar");
        T value;
        memcpy(&value, &argument.bits, sizeof value);
        return value;
    }
}

template <typename... T, size_t... I>
void call(void (*kernel)(T...), std::index_sequence<I...>) {
    kernel(passed<T>(given[I])...);
}

template <typename... T>
void call(void (*kernel)(T...)) {
    if (sizeof...(T) != static_cast<size_t>(count)) refuse("another number of arguments than declared", "kernel");
    call(kernel, std::make_index_sequence<sizeof...(T)>());
}

template <typename Kernel>
int run(const char *path, Kernel *kernel) {
    FILE *job = fopen(path, "r");
    unsigned grid[3], block[3];
    size_t shared_bytes;
    int descending, launches;
    if (job == nullptr || fscanf(job, "%u %u %u %u %u %u %zu %d %d", grid, grid + 1, grid + 2, block, block + 1, block + 2,
                                 &shared_bytes, &descending, &launches) != 9) {
        refuse("cannot be read", path);
    }
    parse_arguments(job);
    for (int launch = 0; launch < launches; ++launch) {
        for (int i = 0; i < count; ++i) {
            if (given[i].is("output") || given[i].is("inout")) memcpy(given[i].data, given[i].contents, given[i].bytes);
        }
#ifdef PROTOTYPE
        call(kernel);
#else
        emulator::launch({grid[0], grid[1], grid[2]}, {block[0], block[1], block[2]}, shared_bytes, descending != 0,
                         [=] { call(kernel); });
#endif
        for (int i = 0; i < count; ++i) {
            if (given[i].is("scalar") || given[i].is("null")) continue;
            given[i].check();
            if (given[i].is("output") || given[i].is("inout")) given[i].write(launch);
        }
    }
    return 0;
}

}  // namespace driver

// Parameters are macros, which nothing before this line must see.
#include CONFIG
#ifdef PROTOTYPE
PROTOTYPE
#else
#ifdef TWINS
#include TWINS
#endif
#include SOURCE
#endif

int main(int, char **arguments) { return driver::run(arguments[1], ENTRY); }
