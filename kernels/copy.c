// Stretches of slots to other slots, of the same pool or another one, in any layout of either.
//
// Built once for all shapes: elements are bytes here.

#include <stdint.h>
#include <string.h>

#include "pool.h"

#define MANY (1 << 20)  // bytes from which on a second thread is worth its start

struct shape {
    int64_t heads, head_bytes, element_bytes;
};

static int dense(const struct pool *pool, const struct shape *shape) {
    return !pool->shift && pool->slot_stride * shape->element_bytes == shape->heads * shape->head_bytes;
}

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

// Slots from this one on that lie side by side in a head.
static int64_t beside(const struct pool *pool, int64_t slot) { return pool->mask + 1 - (slot & pool->mask); }

static void copy_stretch(const char *from, const struct pool *from_pool, int64_t source, char *to,
                         const struct pool *to_pool, int64_t target, int64_t tokens, const struct shape *shape) {
    const int64_t size = shape->element_bytes, slot_bytes = shape->heads * shape->head_bytes;
    if (dense(from_pool, shape) && dense(to_pool, shape)) {
        memcpy(to + target * slot_bytes, from + source * slot_bytes, tokens * slot_bytes);
        return;
    }
    int together = !from_pool->shift && !to_pool->shift;  // a slot's heads lie side by side in both
    int64_t pieces = together ? 1 : shape->heads, bytes = together ? slot_bytes : shape->head_bytes;
    for (int64_t piece = 0; piece < pieces; piece++) {
        for (int64_t done = 0, run; done < tokens; done += run) {
            int64_t here = source + done, there = target + done;
            run = least(least(beside(from_pool, here), beside(to_pool, there)), tokens - done);
            memcpy(to + offset_of(to_pool, there, piece) * size, from + offset_of(from_pool, here, piece) * size,
                   run * bytes);
        }
    }
}

// In each of `tensors` pairs of memory: tokens[i] slots from source[i] on to target[i] on, i < count, in that order.
// The two stretches of one i do not overlap. A pool's strides are in elements of element_bytes.
void copy_slots(char *const *from, const struct pool *from_pool, char *const *to, const struct pool *to_pool,
                int64_t tensors, const int64_t *source, const int64_t *target, const int64_t *tokens, int64_t count,
                int64_t heads, int64_t head_bytes, int64_t element_bytes, int threads) {
    const struct shape shape = {heads, head_bytes, element_bytes};
    int64_t bytes = 0;
    for (int64_t i = 0; i < count; i++) bytes += tensors * tokens[i] * heads * head_bytes;
#pragma omp parallel for num_threads(threads) if (threads > 1 && bytes >= MANY)
    for (int64_t tensor = 0; tensor < tensors; tensor++)
        for (int64_t i = 0; i < count; i++)
            copy_stretch(from[tensor], from_pool, source[i], to[tensor], to_pool, target[i], tokens[i], &shape);
}
