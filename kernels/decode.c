// Attention of single query tokens over their own sequences' keys and values, for both geometries and layouts.
//
// A sequence is read in pieces of a size that its own length decides, a piece TILE tokens at a time with a running
// maximum (online softmax), always from the first to the last; pieces are put together in order. So a sequence's
// sums are the same whatever the geometry, the layout, the block size, the threads and the other sequences, and
// threads can share a long one. The GROUPS query heads of a key/value head read its keys and values once; heads
// that lie side by side are read together.
//
// Built for one HEAD_DIM, GROUPS and element type (FLOAT32, FLOAT64 or BFLOAT16).

#include <stdlib.h>

#include "pool.h"
#include "vectors.h"

#define TILE 16  // tokens; fixed, since it decides the order of the sums
#define SLACK 8       // how far above the maximum that weights are relative to a score may lie
#define SHORTEST_PIECE 256
#define MOST_PIECES 16
#define ITEMS 4  // of work for each thread, at least
#define LINE 64  // bytes in a cache line
#define UNITS (HEAD_DIM / LANES / PARTS)
#define CHUNKS (HEAD_DIM / LANES)

// Sums that are kept in registers at once.
#define SUMS (REGISTER_BYTES == 64 ? 16 : 8)
#define LEAST(a, b) ((a) < (b) ? (a) : (b))
#define POWER_OF_TWO(n) ((n) >= 16 ? 16 : (n) >= 8 ? 8 : (n) >= 4 ? 4 : (n) >= 2 ? 2 : 1)
#define ROWS LEAST(LANES, POWER_OF_TWO(SUMS / GROUPS))         // keys at once
#define BREADTH LEAST(UNITS, POWER_OF_TWO(SUMS / GROUPS / PARTS))  // units of values at once

#define STATE_BYTES (GROUPS * HEAD_DIM * (int)sizeof(real))
#define BUNDLE (8192 / STATE_BYTES > 8 ? 8 : 8192 / STATE_BYTES < 1 ? 1 : 8192 / STATE_BYTES)  // heads together

// What has been read of a sequence so far, by one key/value head.
struct state {
    lanes sum[GROUPS][CHUNKS];
    lanes weight[GROUPS];  // to be added up
    real top[GROUPS];
};

static struct state nothing(void) {
    struct state state = {0};
    for (int g = 0; g < GROUPS; g++) state.top[g] = -INFINITY;
    return state;
}

// Where a sequence's tokens lie.
struct sequence {
    const struct pool *pool;
    int64_t start;         // slot of the first token, without a table
    const int32_t *table;  // of blocks, or NULL
    int64_t block_size;
};

// A tile's tokens: elements from the pool's beginning, for head 0. The last one's stand for those beyond it.
static void locate(int64_t at[TILE], const struct sequence *sequence, int64_t first, int count) {
    if (count <= 0) return;
    int64_t slot = sequence->start + first, block = 0, left = count;
    if (sequence->table) {
        block = first / sequence->block_size;
        left = sequence->block_size - first % sequence->block_size;
        slot = sequence->table[block] * sequence->block_size + first % sequence->block_size;
    }
    for (int i = 0; i < count; i++) {
        at[i] = offset_of(sequence->pool, slot++, 0);
        if (--left == 0 && i + 1 < count) {
            slot = sequence->table[++block] * sequence->block_size;
            left = sequence->block_size;
        }
    }
    for (int i = count; i < TILE; i++) at[i] = at[count - 1];
}

// Into the second-level cache, where a unit begins a line. One line at a time, between products: a CPU drops what
// is asked for at once beyond what it can keep under way.
INLINE void fetch(const element *row, int unit) {
    int byte = unit * LANES * PARTS * (int)sizeof(element);
    if (byte % LINE == 0) __builtin_prefetch((const char *)row + byte, 0, 2);
}

// Scores of LANES keys.
INLINE void score_keys(lanes score[GROUPS], const element *q, const element *keys, const int64_t *at,
                       const int64_t *next) {
    lanes part[GROUPS][LANES / ROWS];
#pragma GCC unroll 1
    for (int row = 0; row < LANES; row += ROWS) {
        lanes dot[GROUPS][ROWS] = {0};
#pragma GCC unroll 16
        for (int unit = 0; unit < UNITS; unit++) {
            packed key[ROWS];
            for (int i = 0; i < ROWS; i++) {
                key[i] = load(keys + at[row + i] + unit * LANES * PARTS);
                fetch(keys + next[row + i], unit);
            }
            for (int g = 0; g < GROUPS; g++) {
                packed query = load(q + g * HEAD_DIM + unit * LANES * PARTS);
                for (int i = 0; i < ROWS; i++) dot[g][i] = add_products(dot[g][i], query, key[i]);
            }
        }
        for (int g = 0; g < GROUPS; g++) {
#pragma GCC unroll 4
            for (int half = 1; half < ROWS; half *= 2)
                for (int i = 0; i < ROWS; i += 2 * half) dot[g][i] = merge(dot[g][i], dot[g][i + half], half);
            part[g][row / ROWS] = dot[g][0];
        }
    }
    for (int g = 0; g < GROUPS; g++) {
#pragma GCC unroll 4
        for (int half = ROWS; half < LANES; half *= 2)
            for (int i = 0; i < LANES / ROWS; i += 2 * half / ROWS)
                part[g][i] = merge(part[g][i], part[g][i + half / ROWS], half);
        score[g] = part[g][0];
    }
}

// A new maximum for one group, and what was summed up under the old one.
static __attribute__((noinline)) void raise_top(struct state *state, int g, const lanes score[TILE / LANES]) {
    real top = state->top[g];
    for (int s = 0; s < TILE / LANES; s++) top = fmax(top, largest(score[s]));
    lanes shrink = power((lanes){0} + (state->top[g] - top));
    state->top[g] = top;
    state->weight[g] *= shrink;
    for (int c = 0; c < CHUNKS; c++) state->sum[g][c] *= shrink;
}

// Scores to weights. The maximum that they are taken relative to rises only when one is far above it.
INLINE void weigh(struct state *state, share weight[GROUPS][TILE], lanes score[GROUPS][TILE / LANES], real scale,
                  int count) {
    lanes excess = (lanes){0} - INFINITY;
    for (int s = 0; s < TILE / LANES; s++) {
        wholes lane;
        for (int i = 0; i < LANES; i++) lane[i] = i;
        wholes there = (wholes)(lane < (whole)(count - s * LANES));
        for (int g = 0; g < GROUPS; g++) {
            score[g][s] = select_lanes(there, score[g][s] * scale, (lanes){0} - INFINITY);
            excess = larger(excess, score[g][s] - state->top[g]);
        }
    }
    if (largest(excess) > SLACK)
        for (int g = 0; g < GROUPS; g++) raise_top(state, g, score[g]);
    for (int g = 0; g < GROUPS; g++)
        for (int s = 0; s < TILE / LANES; s++)
            state->weight[g] += store_shares(weight[g] + s * LANES, power(score[g][s] - state->top[g]));
}

static __attribute__((noinline)) void add_values(struct state *state, share weight[GROUPS][TILE],
                                                 const element *values, const int64_t *at, int count,
                                                 const int64_t *next) {
#pragma GCC unroll 16
    for (int first = 0; first < UNITS; first += BREADTH) {
        const int breadth = LEAST(BREADTH, UNITS - first);
        lanes sum[GROUPS][BREADTH * PARTS];
        for (int g = 0; g < GROUPS; g++)
            for (int c = 0; c < breadth * PARTS; c++) sum[g][c] = state->sum[g][first * PARTS + c];
        for (int i = 0; i < count; i += STEP) {
            lanes value[BREADTH * PARTS];
            for (int unit = 0; unit < breadth; unit++) {
                int64_t beyond = (first + unit) * LANES * PARTS;
                packed second = STEP == 2 && i + 1 < count ? load(values + at[i + 1] + beyond) : (packed){0};
                for (int token = i; token < i + STEP; token++) fetch(values + next[token], first + unit);
                interleave(value + unit * PARTS, load(values + at[i] + beyond), second);
            }
            for (int g = 0; g < GROUPS; g++) {
                lanes shares = broadcast(weight[g] + i);
                for (int c = 0; c < breadth * PARTS; c++) sum[g][c] = add_shares(sum[g][c], shares, value[c]);
            }
        }
        for (int g = 0; g < GROUPS; g++)
            for (int c = 0; c < breadth * PARTS; c++) state->sum[g][first * PARTS + c] = sum[g][c];
    }
}

static __attribute__((noinline)) void weigh_tile(struct state *state, share weight[GROUPS][TILE],
                                                 const element *q, const element *keys, const int64_t *at,
                                                 int count, const int64_t *next, real scale) {
    lanes score[GROUPS][TILE / LANES], scored[GROUPS];
    for (int s = 0; s < TILE / LANES; s++) {
        if (s * LANES < count) score_keys(scored, q, keys, at + s * LANES, next + s * LANES);
        for (int g = 0; g < GROUPS; g++) score[g][s] = scored[g];
    }
    weigh(state, weight, score, scale, count);
}

// Put what was read after `into` to it.
static void fold(struct state *into, const struct state *piece) {
    for (int g = 0; g < GROUPS; g++) {
        real top = into->top[g] > piece->top[g] ? into->top[g] : piece->top[g];
        lanes before = power((lanes){0} + (into->top[g] - top)), after = power((lanes){0} + (piece->top[g] - top));
        into->top[g] = top;
        into->weight[g] = into->weight[g] * before + piece->weight[g] * after;
        for (int c = 0; c < CHUNKS; c++) into->sum[g][c] = into->sum[g][c] * before + piece->sum[g][c] * after;
    }
}

static void finish(element *o, const struct state *state) {
    for (int g = 0; g < GROUPS; g++) {
        lanes weight = (lanes){0} + total(state->weight[g]);
        for (int unit = 0; unit < UNITS; unit++) {
            lanes part[PARTS];
            for (int i = 0; i < PARTS; i++) part[i] = state->sum[g][unit * PARTS + i] / weight;
            store(o + g * HEAD_DIM + unit * LANES * PARTS, pack(part));
        }
    }
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
    real scale;
    int64_t bundles;       // parts of the key/value heads
    struct state *states;  // of every query, head and piece; NULL: an item is a query's whole sequence
};

// One query's tokens and heads.
struct item {
    struct sequence sequence;
    int64_t first, stop, piece;  // tokens
    int64_t head;
    int heads;
    const element *q, *keys, *values;
    element *o;
};

static struct item item_of(const struct launch *launch, int64_t query, int64_t bundle) {
    int64_t kv_heads = launch->kv_heads, b = launch->sequence[query], stop = launch->seen[query];
    int64_t head = kv_heads * bundle / launch->bundles, beyond = head * launch->pool->head_stride;
    int64_t first = launch->window && launch->window < stop ? stop - launch->window : 0;
    int64_t packed_head = (launch->token[query] * kv_heads + head) * GROUPS * HEAD_DIM;
    struct sequence sequence = {launch->pool, 0, 0, launch->block_size};
    if (launch->table)
        sequence.table = launch->table + b * launch->width;
    else
        sequence.start = launch->start[b];
    return (struct item){
        sequence,
        first,
        stop,
        piece_of(stop - first),
        head,
        (int)(kv_heads * (bundle + 1) / launch->bundles - head),
        launch->q + packed_head,
        launch->keys + beyond,
        launch->values + beyond,
        launch->o + packed_head,
    };
}

// The states of an item's heads, of its tokens [first, first + piece).
static void attend_piece(struct state *state, const struct item *item, int64_t first, real scale) {
    int64_t places[2][TILE], stride = item->sequence.pool->head_stride, stop = LEAST(first + item->piece, item->stop);
    share weight[BUNDLE][GROUPS][TILE];
    for (int head = 0; head < item->heads; head++) state[head] = nothing();
    int count = (int)LEAST(stop - first, TILE), turn = 0;
    locate(places[0], &item->sequence, first, count);
    for (; first < stop; first += TILE, turn ^= 1) {
        int following = (int)LEAST(stop - first - count, TILE);
        const int64_t *at = places[turn], *next = following > 0 ? places[turn ^ 1] : at;
        locate(places[turn ^ 1], &item->sequence, first + count, following);
        for (int head = 0; head < item->heads; head++)
            weigh_tile(state + head, weight[head], item->q + head * GROUPS * HEAD_DIM, item->keys + head * stride,
                       at, count, next, scale);
        for (int head = 0; head < item->heads; head++)
            add_values(state + head, weight[head], item->values + head * stride, at, count, next);
        count = following;
    }
}

static void attend_whole(const struct launch *launch, int64_t query, int64_t bundle) {
    struct item item = item_of(launch, query, bundle);
    struct state state[BUNDLE], later[BUNDLE];
    for (int64_t first = item.first; first < item.stop; first += item.piece) {
        struct state *piece = first == item.first ? state : later;
        attend_piece(piece, &item, first, launch->scale);
        for (int head = 0; piece == later && head < item.heads; head++) fold(state + head, later + head);
    }
    for (int head = 0; head < item.heads; head++) finish(item.o + head * GROUPS * HEAD_DIM, state + head);
}

static void attend_part(const struct launch *launch, int64_t query, int64_t bundle, int64_t part) {
    struct item item = item_of(launch, query, bundle);
    int64_t first = item.first + part * item.piece;
    if (first >= item.stop) return;
    struct state *states = launch->states + (query * MOST_PIECES + part) * launch->kv_heads + item.head;
    attend_piece(states, &item, first, launch->scale);
}

// Put a query's pieces together, in order.
static void join(const struct launch *launch, int64_t query, int64_t bundle) {
    struct item item = item_of(launch, query, bundle);
    struct state *states = launch->states + query * MOST_PIECES * launch->kv_heads + item.head;
    for (int64_t part = 1; item.first + part * item.piece < item.stop; part++)
        for (int head = 0; head < item.heads; head++) fold(states + head, states + part * launch->kv_heads + head);
    for (int head = 0; head < item.heads; head++) finish(item.o + head * GROUPS * HEAD_DIM, states + head);
}

// q and o [T, H * GROUPS, HEAD_DIM]; keys and values are two pools laid out alike. Query i < count is packed token
// token[i]; it sees the first seen[i] tokens of sequence[i], of them the last `window` if that is not 0.
// Contiguous rows: table is NULL and start[b] is the slot of sequence b's first token; paged: row b of table, of
// width entries.
void attend_decode(const element *q, const element *keys, const element *values, element *o,
                   const int64_t *sequence, const int64_t *token, int64_t count, const int32_t *seen,
                   int64_t window, const int64_t *start, const int32_t *table, int64_t width, int64_t block_size,
                   int64_t kv_heads, const struct pool *pool, double scale, int threads) {
    struct launch launch = {q,     keys,  values,     o,        sequence, token,       seen, window, start,
                            table, width, block_size, kv_heads, pool,     (real)scale, 0,    NULL};
    launch.bundles = (kv_heads + BUNDLE - 1) / BUNDLE;
    if (threads > 1 && count * launch.bundles < ITEMS * threads) {
        launch.states = aligned_alloc(LINE, count * MOST_PIECES * kv_heads * sizeof(struct state));
        if (count * launch.bundles * MOST_PIECES < ITEMS * threads) launch.bundles = kv_heads;
    }
    int64_t items = count * launch.bundles;
    if (!launch.states) {
#pragma omp parallel for schedule(dynamic) num_threads(threads) if (threads > 1)
        for (int64_t item = 0; item < items; item++)
            attend_whole(&launch, item / launch.bundles, item % launch.bundles);
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
