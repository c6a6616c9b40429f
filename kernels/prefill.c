// Attention of pieces of several new tokens, prompts or chunks of them, for both geometries and layouts.
//
// One item of work is QUERIES tokens of one piece with one key/value head. Keys and values are taken TILE at a time
// and packed, keys transposed, so that both products run over whole vectors: GROUPS * QUERIES rows share what is
// packed. Tiles start at multiples of TILE of a sequence's own positions, and each row sums in one order: what a row
// gives does not depend on the other rows, on how a prompt is cut, on the geometry, nor on the threads.
//
// Built for one HEAD_DIM, GROUPS, QUERIES and element type (FLOAT32 or BFLOAT16); bfloat16 sums in float, where the
// machine has them through dot products of pairs.

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "packed.h"
#include "pool.h"

#define TILE 64  // tokens; fixed, since it decides the order of the sums
#define LOG2_E 1.44269504f

#define SPANS (TILE / LANES)                      // vectors of scores in a row
#define SHRINKS ((ROWS + LANES - 1) / LANES)      // vectors with a number for each row
#define WIDE ((HEAD_DIM + LANES - 1) / LANES)     // vectors of a value
#define BLOCK ((GROUPS * QUERIES + ROWS - 1) / ROWS * ROWS)  // rows of an item

struct scratch {
    operands keys[DEPTH][SPANS], values[TILE / STEP][WIDE];
    lanes sum[BLOCK][WIDE], weight[BLOCK], score[ROWS][SPANS], shrink[SHRINKS];
    operand query[BLOCK][DEPTH], share[ROWS][TILE / STEP];
    float top[BLOCK];  // the highest score so far, scaled
};

// Where the tokens [first, first + count) of a sequence lie, in elements. Reads only the table entries of these tokens.
static void locate(int64_t *at, int64_t first, int count, int64_t start, const int32_t *table, int64_t block_size,
                   const struct pool *pool, int64_t head) {
    int64_t block = table ? first / block_size : 0, offset = table ? first % block_size : 0;
    for (int i = 0; i < count; i++) {
        int64_t slot = table ? table[block] * block_size + offset : start + first + i;
        at[i] = offset_of(pool, slot, head);
        if (++offset == block_size) offset = 0, block++;
    }
}

static void pack_keys(struct scratch *s, const element *keys, const int64_t *at, int count) {
    operand(*to)[TILE] = (operand(*)[TILE])s->keys;
    for (int i = 0; i < count; i++)
        for (int step = 0; step < DEPTH; step++) to[step][i] = along(keys + at[i], step);
    for (int step = 0; step < DEPTH; step++)
        for (int i = count; i % LANES; i++) to[step][i] = 0;
}

static void pack_values(struct scratch *s, const element *values, const int64_t *at, int count) {
    for (int i = 0; i < count; i += STEP) {
        operand *to = (operand *)s->values[i / STEP];
        const element *first = values + at[i];
#ifdef PAIRS
        const element *second = i + 1 < count ? values + at[i + 1] : 0;
        for (int d = 0; d < HEAD_DIM; d++) to[d] = first[d] | (second ? (uint32_t)second[d] << 16 : 0);
#else
        for (int d = 0; d < HEAD_DIM; d++) to[d] = widen(first[d]);
#endif
        for (int d = HEAD_DIM; d < WIDE * LANES; d++) to[d] = 0;
    }
}

static inline float highest(lanes values) {
    float lane[LANES];
    memcpy(lane, &values, sizeof lane);
    for (int half = LANES / 2; half; half /= 2)
        for (int i = 0; i < half; i++) lane[i] = lane[i] > lane[i + half] ? lane[i] : lane[i + half];
    return lane[0];
}

// 2^x for x <= 0, to about 1e-7 relative (bfloat16: 4e-5); 0 below 2^-126. NaN stays NaN.
static inline lanes power(lanes x) {
    const float magic = 12582912.0f;  // 1.5 * 2^23: what is added to it loses its fraction, to the nearest
    lanes shifted = x + magic, r = x - (shifted - magic);
#ifdef BFLOAT16
    lanes p = r * 9.6181291e-3f + 5.5504109e-2f;
#else
    lanes p = r * 1.5403530e-4f + 1.3333558e-3f;
    p = p * r + 9.6181291e-3f;
    p = p * r + 5.5504109e-2f;
#endif
    p = p * r + 2.4022651e-1f;
    p = p * r + 6.9314718e-1f;
    p = p * r + 1.0f;
    p = (lanes)((words)p + ((words)shifted << 23));  // below -126 it may overflow, and counts for nothing
    return (lanes)((ints)p & ~(x < -126.0f));
}

// The highest of a row's scores, its keys outside [low, high) of the tile left out.
static inline float highest_seen(lanes *score, int low, int high, int spans) {
    const lanes none = (lanes){0} - INFINITY;
    lanes most = none;
    ints lane;
    for (int i = 0; i < LANES; i++) lane[i] = i;
    for (int v = 0; v < spans; v++) {
        if (low > v * LANES || high < (v + 1) * LANES) {
            ints index = lane + v * LANES, seen = (index >= low) & (index < high);
            score[v] = (lanes)(((ints)score[v] & seen) | ((ints)none & ~seen));
        }
        ints more = score[v] > most;
        most = (lanes)(((ints)score[v] & more) | ((ints)most & ~more));
    }
    return highest(most);
}

// Scores of a row's keys to their shares, given the highest so far.
static inline void soften(const lanes *score, operand *share, lanes *weight, float top, int spans, float scale) {
    for (int v = 0; v < spans; v++) {
        lanes part = power(score[v] * scale - top);
        *weight += part;
#ifdef PAIRS
        __m256bh halves = _mm512_cvtneps_pbh((__m512)part);
        memcpy((uint16_t *)share + v * LANES, &halves, sizeof halves);
#else
        memcpy(share + v * LANES, &part, sizeof part);
#endif
    }
}

static inline int within(int64_t x) { return x < 0 ? 0 : x > TILE ? TILE : (int)x; }

// Rows [row, row + ROWS) of an item of `rows` over the tile's first `limit` keys. The item's first token is `at`
// tokens behind the tile's.
static inline void attend_rows(struct scratch *s, int row, int rows, int64_t at, int64_t window, int limit,
                               float scale) {
    const int spans = (limit + LANES - 1) / LANES;
    float *top = s->top + row, zero[ROWS], *shrink = (float *)s->shrink;
    products(s->score[0], SPANS, 0, s->query[row], DEPTH, s->keys[0], SPANS, DEPTH, spans);
    for (int r = 0; r < ROWS; r++) {
        int64_t stop = at + (row + r < rows ? row + r : rows - 1) / GROUPS + 1;
        float found = scale * highest_seen(s->score[r], window ? within(stop - window) : 0, within(stop), spans);
        float higher = found > top[r] ? found : top[r];
        zero[r] = higher == -INFINITY ? 0 : higher;  // nothing seen so far
        shrink[r] = top[r] - zero[r], top[r] = higher;
    }
    for (int v = 0; v < SHRINKS; v++) s->shrink[v] = power(s->shrink[v]);
    for (int r = 0; r < ROWS; r++) {
        s->weight[row + r] *= shrink[r];
        soften(s->score[r], s->share[r], &s->weight[row + r], zero[r], spans, scale);
    }
    products(s->sum[row], WIDE, shrink, s->share[0], TILE / STEP, s->values[0], WIDE, (limit + STEP - 1) / STEP, WIDE);
}

// `tokens` queries, the first of them at position `position`; q and o point to that one's head.
static void attend_item(const element *q, const element *keys, const element *values, element *o, int64_t token_stride,
                        int tokens, int64_t position, int64_t window, int64_t start, const int32_t *table,
                        int64_t block_size, const struct pool *pool, int64_t head, float scale) {
    struct scratch s;
    memset(s.shrink, 0, sizeof s.shrink);
    int64_t at[TILE], stop = position + tokens;
    int rows = tokens * GROUPS;
    for (int row = 0; row < (rows + ROWS - 1) / ROWS * ROWS; row++) {
        const element *from = q + row / GROUPS * token_stride + row % GROUPS * HEAD_DIM;
        for (int step = 0; step < DEPTH; step++) s.query[row][step] = row < rows ? along(from, step) : 0;
        for (int c = 0; c < WIDE; c++) s.sum[row][c] = (lanes){0};
        s.weight[row] = (lanes){0}, s.top[row] = -INFINITY;
    }
    int64_t first = window && position >= window ? (position - window + 1) / TILE * TILE : 0;
    for (; first < stop; first += TILE) {
        int count = stop - first < TILE ? (int)(stop - first) : TILE;
        locate(at, first, count, start, table, block_size, pool, head);
        pack_keys(&s, keys, at, count);
        pack_values(&s, values, at, count);
        for (int row = 0; row < rows; row += ROWS) {
            int64_t nearest = position + row / GROUPS;
            int64_t furthest = position + (row + ROWS < rows ? row + ROWS - 1 : rows - 1) / GROUPS;
            if (furthest < first || (window && nearest - window + 1 >= first + TILE)) continue;
            int limit = furthest - first < TILE ? (int)(furthest - first) + 1 : TILE;
            attend_rows(&s, row, rows, position - first, window, limit, (float)(scale * LOG2_E));
        }
    }
    for (int row = 0; row < rows; row++) {
        element *to = o + row / GROUPS * token_stride + row % GROUPS * HEAD_DIM;
        float weight = 0, value[WIDE * LANES];
        for (int i = 0; i < LANES; i++) weight += s.weight[row][i];
        for (int c = 0; c < WIDE; c++) s.sum[row][c] /= weight;
        memcpy(value, s.sum[row], sizeof value);
        for (int d = 0; d < HEAD_DIM; d++) to[d] = narrow(value[d]);
    }
}

struct item {
    int64_t sequence, token, left;  // its packed first token, and how many tokens the piece has from there on
};

// The pieces of at least `shortest` new tokens, cut up; how many items that is. items NULL: only count.
static int64_t cut(const int32_t *new, int64_t sequences, int64_t shortest, struct item *items) {
    int64_t count = 0, token = 0;
    for (int64_t b = 0; b < sequences; token += new[b++])
        for (int64_t first = 0; new[b] >= shortest && first < new[b]; first += QUERIES, count++)
            if (items) items[count] = (struct item){b, token + first, new[b] - first};
    return count;
}

// q and o [T, H * GROUPS, HEAD_DIM]: the new[b] last tokens of sequence b's length[b], packed one sequence after
// another; those of fewer than `shortest` are left out. Contiguous rows: table is NULL and start[b] the slot of
// sequence b's first token; paged: row b of table, of width entries. window: last tokens that a query sees, itself included;
// 0: all. Not 0 is returned where there is no memory to list the work.
int attend_prefill(const element *q, const element *keys, const element *values, element *o, int64_t sequences,
                   int64_t shortest, const int32_t *new, const int32_t *length, const int64_t *start,
                   const int32_t *table, int64_t width, int64_t block_size, const struct pool *pool, int64_t kv_heads,
                   int64_t window, double scale, int threads) {
    const int64_t token_stride = kv_heads * GROUPS * HEAD_DIM, count = cut(new, sequences, shortest, 0);
    struct item *items = malloc((count + 1) * sizeof *items);
    if (!items) return 1;
    cut(new, sequences, shortest, items);
#pragma omp parallel for schedule(dynamic) num_threads(threads) if (threads > 1)
    for (int64_t turn = 0; turn < count * kv_heads; turn++) {
        const struct item *item = items + count - 1 - turn / kv_heads;  // a piece's last tokens see most: first
        int64_t b = item->sequence, head = turn % kv_heads;
        int64_t query = item->token * token_stride + head * GROUPS * HEAD_DIM;
        attend_item(q + query, keys, values, o + query, token_stride, item->left < QUERIES ? (int)item->left : QUERIES,
                    length[b] - item->left, window, table ? 0 : start[b], table ? table + b * width : 0, block_size,
                    pool, head, (float)scale);
    }
    free(items);
    return 0;
}
