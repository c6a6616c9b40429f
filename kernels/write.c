// New keys and values into their slots, in any layout of the pool.
//
// Built once for all shapes: elements are bytes here.

#include <stdint.h>
#include <string.h>

#include "pool.h"

#define MANY 1024  // tokens from which on a second thread is worth its start

// The new tokens of a launch, the same in each of its layers: token t < count goes to slot[t]. k and v [count, heads,
// head_bytes], their tokens k_stride and v_stride bytes apart; a pool's strides are in elements of element_bytes.
struct tokens {
    const struct pool *pool;
    const int64_t *slot;
    int64_t count, k_stride, v_stride, heads, head_bytes, element_bytes, threads;
};

void write_slots(const struct tokens *all, char *keys, char *values, const char *k, const char *v) {
    const struct pool *pool = all->pool;
    int64_t head_bytes = all->head_bytes, threads = all->threads, count = all->count;
    int together = pool->head_stride * all->element_bytes == head_bytes;  // a slot's heads lie side by side
    int64_t pieces = together ? 1 : all->heads, bytes = together ? all->heads * head_bytes : head_bytes;
#pragma omp parallel for num_threads(threads) if (threads > 1 && count >= MANY)
    for (int64_t t = 0; t < count; t++) {
        for (int64_t piece = 0; piece < pieces; piece++) {
            int64_t to = offset_of(pool, all->slot[t], piece) * all->element_bytes;
            memcpy(keys + to, k + t * all->k_stride + piece * head_bytes, bytes);
            memcpy(values + to, v + t * all->v_stride + piece * head_bytes, bytes);
        }
    }
}
