// What a tile of a sequence's tokens adds to one key/value head's sums, and how sums are put together.
//
// The GROUPS query heads of a key/value head read its keys and values once, ROWS keys at a time, so that each load
// serves GROUPS products and each query ROWS. Weights are powers of two relative to a running maximum.

#ifndef KVLAB_DECODE_TILE_H
#define KVLAB_DECODE_TILE_H

#include "vectors.h"

#define TILE 16  // tokens; fixed, since it decides the order of the sums
#define SLACK 8  // how far above the maximum that weights are relative to a score may lie
#define LINE 64  // bytes in a cache line
#define TILES_AHEAD ((int)sizeof(element) == 2 ? 2 : HEAD_DIM > 64 ? 3 : 4)  // measured: docs/cpu.md
#define UNITS (HEAD_DIM / LANES / PARTS)
#define CHUNKS (HEAD_DIM / LANES)
#define SPANS (TILE / LANES)

#define LEAST(a, b) ((a) < (b) ? (a) : (b))
#define POWER_OF_TWO(n) ((n) >= 16 ? 16 : (n) >= 8 ? 8 : (n) >= 4 ? 4 : (n) >= 2 ? 2 : 1)
#define SUMS (REGISTER_BYTES == 64 ? 16 : 8)                       // that are kept in registers at once
#define ROWS LEAST(LANES, POWER_OF_TWO(SUMS / GROUPS))             // keys at once
#define BREADTH LEAST(UNITS, POWER_OF_TWO(SUMS / GROUPS / PARTS))  // units of values at once

// What has been read of a sequence so far, by one key/value head.
struct state {
    lanes sum[GROUPS][CHUNKS];
    lanes weight[GROUPS];  // to be added up
    lanes top[GROUPS];     // the same in all
};

static struct state nothing(void) {
    struct state state = {0};
    for (int g = 0; g < GROUPS; g++) state.top[g] = (lanes){0} - INFINITY;
    return state;
}

// Where the tokens of the tiles lie that will be read next, in order.
struct ahead {
    const int64_t *tile[TILES_AHEAD];
};

// The line where a unit begins, of each tile ahead, into the second-level cache. A CPU drops what it cannot keep under
// way: so each line is asked for more than once, and one at a time between products.
INLINE void fetch(const element *from, struct ahead ahead, int token, int unit) {
    int beyond = unit * LANES * PARTS;
    if (beyond * (int)sizeof(element) % LINE) return;
#pragma GCC unroll 8
    for (int i = 0; i < TILES_AHEAD; i++) __builtin_prefetch(from + ahead.tile[i][token] + beyond, 0, 2);
}

// Scores of a tile's keys.
static __attribute__((noinline)) void score_keys(lanes score[GROUPS][SPANS], const element *q, const element *keys,
                                                 const int64_t at[TILE], struct ahead ahead, real scale) {
    lanes part[GROUPS][TILE / ROWS];
#pragma GCC unroll 1
    for (int row = 0; row < TILE; row += ROWS) {
        lanes dot[GROUPS][ROWS] = {0};
#pragma GCC unroll 16
        for (int unit = 0; unit < UNITS; unit++) {
            packed key[ROWS];
            for (int i = 0; i < ROWS; i++) {
                key[i] = load(keys + at[row + i] + unit * LANES * PARTS);
                KEEP(key[i]);
                fetch(keys, ahead, row + i, unit);
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
    for (int g = 0; g < GROUPS; g++)
        for (int s = 0; s < SPANS; s++) {
            lanes *of = part[g] + s * LANES / ROWS;
#pragma GCC unroll 4
            for (int half = ROWS; half < LANES; half *= 2)
                for (int i = 0; i < LANES / ROWS; i += 2 * half / ROWS)
                    of[i] = merge(of[i], of[i + half / ROWS], half);
            score[g][s] = of[0] * scale;
        }
}

// A new maximum for one group, and what was summed up under the old one.
static void raise_top(struct state *state, int g, const lanes score[SPANS]) {
    real top = state->top[g][0];
    for (int s = 0; s < SPANS; s++) top = fmax(top, largest(score[s]));
    lanes shrink = power(state->top[g] - top);
    state->top[g] = (lanes){0} + top;
    state->weight[g] *= shrink;
    for (int c = 0; c < CHUNKS; c++) state->sum[g][c] *= shrink;
}

// How far the scores are above the maximum, at most.
INLINE lanes excess_of(const struct state *state, lanes score[GROUPS][SPANS]) {
    lanes excess = (lanes){0} - INFINITY;
    for (int g = 0; g < GROUPS; g++)
        for (int s = 0; s < SPANS; s++) excess = larger(excess, score[g][s] - state->top[g]);
    return excess;
}

// Scores to weights. The maximum that they are taken relative to rises only when one is far above it.
static __attribute__((noinline)) void weigh(struct state *state, share weight[][GROUPS][TILE],
                                            lanes score[][GROUPS][SPANS], int heads) {
    lanes most = (lanes){0} - INFINITY;
    for (int head = 0; head < heads; head++) most = larger(most, excess_of(state + head, score[head]));
    if (largest(most) > SLACK)
        for (int head = 0; head < heads; head++)
            if (largest(excess_of(state + head, score[head])) > SLACK)
                for (int g = 0; g < GROUPS; g++) raise_top(state + head, g, score[head][g]);
    for (int head = 0; head < heads; head++)
        for (int g = 0; g < GROUPS; g++)
            for (int s = 0; s < SPANS; s++)
                state[head].weight[g] +=
                    store_shares(weight[head][g] + s * LANES, power(score[head][g][s] - state[head].top[g]));
}

// Scores of tokens that are not there.
static void leave_out(lanes score[][GROUPS][SPANS], int heads, int count) {
    for (int head = 0; head < heads; head++)
        for (int g = 0; g < GROUPS; g++)
            for (int i = count; i < TILE; i++) score[head][g][i / LANES][i % LANES] = -INFINITY;
}

static __attribute__((noinline)) void add_values(struct state *state, share weight[GROUPS][TILE],
                                                 const element *values, const int64_t *at, int count,
                                                 struct ahead ahead) {
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
                for (int token = i; token < i + STEP; token++) fetch(values, ahead, token, first + unit);
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

// Put what was read after `into` to it.
static void fold(struct state *into, const struct state *piece) {
    for (int g = 0; g < GROUPS; g++) {
        lanes top = larger(into->top[g], piece->top[g]);
        lanes before = power(into->top[g] - top), after = power(piece->top[g] - top);
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

#endif
