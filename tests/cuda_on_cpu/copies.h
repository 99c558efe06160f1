// Asynchronous copies (cp.async) of one thread, which happen as late as allowed: when it waits for them.

#pragma once

namespace emulator {

struct Copy {
    void *to;
    const void *from;
    size_t bytes, zeros;
    unsigned long long group;
};

class Copies {
    Copy *pending = nullptr;
    size_t count = 0, room = 0;
    unsigned long long group = 0;  // the one that is not committed yet

public:
    void add(void *to, const void *from, size_t bytes, size_t zeros) {
        if (count == room) {
            room = room ? 2 * room : 64;
            pending = static_cast<Copy *>(realloc(pending, room * sizeof(Copy)));
        }
        pending[count++] = {to, from, bytes, zeros, group};
    }

    void commit() { ++group; }

    // Performs those of all committed groups but the `left` latest.
    void wait(unsigned long long left) {
        size_t done = 0;
        for (; done < count && pending[done].group + left < group; ++done) {
            const Copy &copy = pending[done];
            if (copy.bytes > copy.zeros) memcpy(copy.to, copy.from, copy.bytes - copy.zeros);
            memset(static_cast<char *>(copy.to) + copy.bytes - copy.zeros, 0, copy.zeros);
        }
        count -= done;
        if (done) memmove(pending, pending + done, count * sizeof(Copy));
    }

    void forget() { count = 0; }
};

}  // namespace emulator
