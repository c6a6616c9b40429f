// Attention of single query tokens over their own sequences' keys and values, for both geometries and layouts.
//
// A sequence is read in pieces of a size that its own length decides, a piece TILE tokens at a time with a running
// maximum (online softmax), always from the first to the last; pieces are put together in order. So a sequence's
// sums are the same whatever the geometry, the layout, the block size, the threads and the other sequences, and
// threads can share a long one. Heads that lie side by side are read together, in the order of memory.
//
// Built for one HEAD_DIM, GROUPS and element type (FLOAT32, FLOAT64 or BFLOAT16).

#include <stdbool.h>
#include <stdlib.h>

#include "decode_tile.h"
#include "pool.h"

#define SHORTEST_PIECE 256  // tokens
#define MOST_PIECES 16
#define RING ((int64_t)TILES_AHEAD + 1)  // tiles whose places are known
#define ITEMS 4  // of work for each thread, at least

#define STATE_BYTES (GROUPS * HEAD_DIM * (int)sizeof(real))
#define BUNDLE (8192 / STATE_BYTES > 8 ? 8 : 8192 / STATE_BYTES < 1 ? 1 : 8192 / STATE_BYTES)  // heads together

// One query's tokens and heads.
struct item {
    const struct pool *pool;
    int64_t start;         // slot of the sequence's first token, without a table
    const int32_t *table;  // of blocks, or NULL
    int64_t block_size;
    int64_t first, stop, piece;  // tokens: those that are read, and how many make a piece
    int64_t head;
    int heads;
    const element *q;  // of the first head
    element *o;
};

// Elements from the pool's beginning to the item's first head, for up to TILE tokens; the last one's stand for those
// beyond it. Nothing where no token is.
static void locate(int64_t at[TILE], const struct item *item, int64_t first) {
    if (first >= item->stop) return;
    int count = (int)LEAST(item->stop - first, TILE);
    int64_t slot = item->start + first, block = 0, left = count;
    if (item->table) {
        block = first / item->block_size;
        left = item->block_size - first % item->block_size;
        slot = item->table[block] * item->block_size + first % item->block_size;
    }
    for (int i = 0; i < count; i++) {
        at[i] = offset_of(item->pool, slot++, item->head);
        if (--left == 0 && i + 1 < count) {
            slot = item->table[++block] * item->block_size;
            left = item->block_size;
        }
    }
    for (int i = count; i < TILE; i++) at[i] = at[count - 1];
}

// Tokens of a piece. It depends on nothing but the tokens that the query sees.
static int64_t piece_of(int64_t seen) {
    int64_t piece = (seen + MOST_PIECES - 1) / MOST_PIECES;
    return piece <= SHORTEST_PIECE ? SHORTEST_PIECE : (piece + TILE - 1) / TILE * TILE;
}

// Some queries over pools, and how they are cut into items of work.
struct launch {
    const element *q, *keys, *values;
    element *o;
    const int64_t *sequence, *token;
    const int32_t *seen;
    int64_t window;
    const int64_t *start;
    const int32_t *table;
    int64_t width, block_size, kv_heads;
    const struct pool *pool;
    real scale;            // with which powers of two are taken
    int64_t bundles;       // parts of the key/value heads
    struct state *states;  // of every query, head and piece; NULL: an item is a query's whole sequence
};

static struct item item_of(const struct launch *launch, int64_t query, int64_t bundle) {
    int64_t kv_heads = launch->kv_heads, b = launch->sequence[query], stop = launch->seen[query];
    int64_t head = kv_heads * bundle / launch->bundles;
    int64_t first = launch->window && launch->window < stop ? stop - launch->window : 0;
    int64_t packed_head = (launch->token[query] * kv_heads + head) * GROUPS * HEAD_DIM;
    return (struct item){
        .pool = launch->pool,
        .start = launch->table ? 0 : launch->start[b],
        .table = launch->table ? launch->table + b * launch->width : NULL,
        .block_size = launch->block_size,
        .first = first,
        .stop = stop,
        .piece = piece_of(stop - first),
        .head = head,
        .heads = (int)(kv_heads * (bundle + 1) / launch->bundles - head),
        .q = launch->q + packed_head,
        .o = launch->o + packed_head,
    };
}

static int64_t parts_of(struct item item) { return (item.stop - item.first + item.piece - 1) / item.piece; }

static struct item part_of(const struct launch *launch, int64_t query, int64_t bundle, int64_t part) {
    struct item item = item_of(launch, query, bundle);
    item.first += part * item.piece;
    item.stop = LEAST(item.first + item.piece, item.stop);
    return item;
}

// One tile, by all heads of an item.
static void attend_tile(struct state *state, const struct launch *launch, const struct item *item,
                        const int64_t at[TILE], int count, struct ahead ahead) {
    lanes score[BUNDLE][GROUPS][SPANS];
    share weight[BUNDLE][GROUPS][TILE];
    int64_t stride = item->pool->head_stride;
    for (int head = 0; head < item->heads; head++)
        score_keys(score[head], item->q + head * GROUPS * HEAD_DIM, launch->keys + head * stride, at, ahead,
                   launch->scale);
    if (count < TILE) leave_out(score, item->heads, count);
    weigh(state, weight, score, item->heads);
    for (int head = 0; head < item->heads; head++)
        add_values(state + head, weight[head], launch->values + head * stride, at, count, ahead);
}

// The states of an item's heads. `following` is what this thread probably does next.
static void attend_item(struct state *state, const struct launch *launch, const struct item *item,
                        const struct item *following) {
    int64_t places[RING][TILE] = {{0}}, tiles = (item->stop - item->first + TILE - 1) / TILE;
    struct state piece[BUNDLE];
    for (int64_t tile = 1 - RING; tile < tiles; tile++) {
        int64_t far = tile + RING - 1, done = tile * TILE, left = item->stop - item->first - done;
        if (far < tiles)
            locate(places[far % RING], item, item->first + far * TILE);
        else
            locate(places[far % RING], following, following->first + (far - tiles) * TILE);
        if (tile < 0) continue;
        for (int head = 0; done % item->piece == 0 && head < item->heads; head++) piece[head] = nothing();
        struct ahead ahead;
        for (int i = 0; i < RING - 1; i++) ahead.tile[i] = places[(tile + 1 + i) % RING];
        attend_tile(piece, launch, item, places[tile % RING], (int)LEAST(left, TILE), ahead);
        if (left > TILE && (done + TILE) % item->piece) continue;
        for (int head = 0; head < item->heads; head++) {
            if (done < item->piece)
                state[head] = piece[head];
            else
                fold(state + head, piece + head);
        }
    }
}

static void attend_whole(const struct launch *launch, int64_t query, int64_t bundle, int64_t then) {
    struct item item = item_of(launch, query, bundle);
    struct item following = item_of(launch, then / launch->bundles, then % launch->bundles);
    struct state state[BUNDLE];
    attend_item(state, launch, &item, &following);
    for (int head = 0; head < item.heads; head++) finish(item.o + head * GROUPS * HEAD_DIM, state + head);
}

static void attend_part(const struct launch *launch, int64_t query, int64_t bundle, int64_t part) {
    struct item item = part_of(launch, query, bundle, part), following = part_of(launch, query, bundle, part + 1);
    struct state *states = launch->states + (query * MOST_PIECES + part) * launch->kv_heads + item.head;
    if (item.first < item.stop) attend_item(states, launch, &item, &following);
}

// Put a query's pieces together, in order.
static void join(const struct launch *launch, int64_t query, int64_t bundle) {
    struct item item = item_of(launch, query, bundle);
    struct state *states = launch->states + query * MOST_PIECES * launch->kv_heads + item.head;
    for (int64_t part = 1; part < parts_of(item); part++)
        for (int head = 0; head < item.heads; head++) fold(states + head, states + part * launch->kv_heads + head);
    for (int head = 0; head < item.heads; head++) finish(item.o + head * GROUPS * HEAD_DIM, states + head);
}

// The queries of a launch, the same in each of its layers. Query i < count is packed token token[i]; it sees the first
// seen[i] tokens of sequence[i], of them the last `window` if that is not 0. Contiguous rows: table is NULL and
// start[b] is the slot of sequence b's first token; paged: row b of table, of width entries.
struct queries {
    const int64_t *sequence, *token;
    int64_t count;
    const int32_t *seen;
    int64_t window;
    const int64_t *start;
    const int32_t *table;
    int64_t width, block_size, kv_heads;
    const struct pool *pool;
    double scale;
    int64_t threads;
};

// What the compiler was allowed to use, by the widest that is used here.
const char *instruction_set(void) {
#if defined(BFLOAT16) && defined(__AVX512BF16__)
    return "avx512_bf16";
#elif defined(__AVX512F__)
    return "avx512";
#elif defined(__AVX2__)
    return "avx2";
#else
    return "baseline";
#endif
}

// q and o [T, H * GROUPS, HEAD_DIM]; keys and values are two pools laid out alike.
void attend_decode(const struct queries *all, const element *q, const element *keys, const element *values,
                   element *o) {
    int64_t kv_heads = all->kv_heads, count = all->count, threads = all->threads;
    struct launch launch = {q, keys, values, o, all->sequence, all->token, all->seen, all->window, all->start,
                            all->table, all->width, all->block_size, kv_heads, all->pool,
                            (real)(all->scale * LOG2_E), 0, NULL};
    launch.bundles = (kv_heads + BUNDLE - 1) / BUNDLE;
    if (threads > 1 && count * launch.bundles < ITEMS * threads) {
        int64_t parts = 0;
        for (int64_t query = 0; query < count; query++) parts += parts_of(item_of(&launch, query, 0));
        if (parts * launch.bundles < ITEMS * threads) launch.bundles = kv_heads;
        // Without that memory an item is a whole sequence, and the result is the same.
        launch.states = aligned_alloc(LINE, count * MOST_PIECES * kv_heads * sizeof(struct state));
    }
    int64_t items = count * launch.bundles;
    if (!launch.states) {
#pragma omp parallel for schedule(dynamic) num_threads(threads) if (threads > 1)
        for (int64_t item = 0; item < items; item++)
            attend_whole(&launch, item / launch.bundles, item % launch.bundles, LEAST(item + threads, items - 1));
        return;
    }
#pragma omp parallel num_threads(threads)
    {
#pragma omp for schedule(dynamic)
        for (int64_t item = 0; item < items * MOST_PIECES; item++)
            attend_part(&launch, item / MOST_PIECES / launch.bundles, item / MOST_PIECES % launch.bundles,
                        item % MOST_PIECES);
#pragma omp for schedule(dynamic)
        for (int64_t item = 0; item < items; item++) join(&launch, item / launch.bundles, item % launch.bundles);
    }
    free(launch.states);
}
