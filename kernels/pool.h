// Where a pool of keys, or of values, has the elements of one slot and head: the one thing that layouts differ in.
//
// token_major [S, H, D]: shift and mask are 0, and tile_stride is a slot's; the slots may lie apart.
// head_major [S / W, H, W, D]: tiles of W slots, a power of two; in a tile a head's slots lie side by side.
// The D elements of a slot's head lie side by side in both.

#ifndef KVLAB_POOL_H
#define KVLAB_POOL_H

#include <stdint.h>

struct pool {
    int64_t shift, mask;  // slot >> shift is its tile, slot & mask its place in there
    int64_t tile_stride, head_stride, slot_stride;  // elements
};

static inline int64_t offset_of(const struct pool *pool, int64_t slot, int64_t head) {
    return (slot >> pool->shift) * pool->tile_stride + head * pool->head_stride +
           (slot & pool->mask) * pool->slot_stride;
}

#endif
