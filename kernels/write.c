// New keys and values into their slots, in any layout of the pool.
//
// Built once for all shapes: elements are bytes here.

#include <stdint.h>
#include <string.h>

#include "pool.h"

#define MANY 1024  // tokens from which on a second thread is worth its start

// Token t < count goes to slot[t]. k and v [count, heads, head_bytes], their tokens k_stride and v_stride bytes
// apart; a pool's strides are in elements of element_bytes.
void write_slots(char *keys, char *values, const struct pool *pool, const int64_t *slot, int64_t count,
                 const char *k, const char *v, int64_t k_stride, int64_t v_stride, int64_t heads,
                 int64_t head_bytes, int64_t element_bytes, int threads) {
    int together = pool->head_stride * element_bytes == head_bytes;  // a slot's heads lie side by side
    int64_t pieces = together ? 1 : heads, bytes = together ? heads * head_bytes : head_bytes;
#pragma omp parallel for num_threads(threads) if (threads > 1 && count >= MANY)
    for (int64_t t = 0; t < count; t++) {
        for (int64_t piece = 0; piece < pieces; piece++) {
            int64_t to = offset_of(pool, slot[t], piece) * element_bytes;
            memcpy(keys + to, k + t * k_stride + piece * head_bytes, bytes);
            memcpy(values + to, v + t * v_stride + piece * head_bytes, bytes);
        }
    }
}
