// Reading memory from its first byte to its last: what a kernel that reads keys and values is measured against.

#include <stdint.h>
#include <string.h>

#define WIDE 64  // bytes

typedef uint64_t wide __attribute__((vector_size(WIDE)));

// The exclusive or of all whole WIDE bytes; `threads` read a part each.
uint64_t stream(const char *bytes, int64_t count, int threads) {
    uint64_t found = 0;
#pragma omp parallel for num_threads(threads) reduction(^ : found) if (threads > 1)
    for (int part = 0; part < threads; part++) {
        int64_t lines = count / WIDE, first = lines * part / threads, stop = lines * (part + 1) / threads;
        wide all[4] = {{0}}, one;
        for (int64_t line = first; line + 4 <= stop; line += 4)
            for (int i = 0; i < 4; i++) {
                memcpy(&one, bytes + (line + i) * WIDE, WIDE);
                all[i] ^= one;
            }
        for (int64_t line = stop - (stop - first) % 4; line < stop; line++) {
            memcpy(&one, bytes + line * WIDE, WIDE);
            all[0] ^= one;
        }
        all[0] ^= all[1] ^ all[2] ^ all[3];
        for (int i = 0; i < WIDE / 8; i++) found ^= all[0][i];
    }
    return found;
}
