// Attention of single query tokens over their own sequences' keys and values, for both geometries.
//
// One item of work is one query's key/value head with the GROUPS query heads that share it: each key
// and value is read once. Tokens are taken TILE at a time with a running maximum (online softmax),
// always from the first to the last, so that a sequence's sums are the same whatever the geometry, the
// block size, the number of threads and the other sequences.
//
// Built for one HEAD_DIM, GROUPS and element type (FLOAT32, FLOAT64 or BFLOAT16).

#include <math.h>
#include <stdint.h>
#include <string.h>

#define TILE 64  // tokens; fixed, since it decides the order of the sums

#if defined(FLOAT64)
typedef double element, real;
#elif defined(BFLOAT16)
typedef uint16_t element;
typedef float real;
#else
typedef float element, real;
#endif

#if HEAD_DIM % 8 == 0
#define LANES 8
#elif HEAD_DIM % 4 == 0
#define LANES 4
#else
#define LANES 1
#endif
#define CHUNKS (HEAD_DIM / LANES)
#define LINE 64  // bytes in a cache line

// GCC's and Clang's vector types: the compiler turns them into whatever the CPU has.
typedef real lanes __attribute__((vector_size(LANES * sizeof(real))));

#ifdef BFLOAT16
typedef uint16_t halves __attribute__((vector_size(LANES * 2)));
typedef uint32_t words __attribute__((vector_size(LANES * 4)));

static inline lanes load(const element *from) {
    halves half;
    memcpy(&half, from, sizeof half);
    return (lanes)(__builtin_convertvector(half, words) << 16);
}

static inline element narrow(real value) {  // to the nearest, ties to even
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    if (value != value) return (element)(bits >> 16 | 64);
    return (element)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
#else
static inline lanes load(const element *from) {
    lanes loaded;
    memcpy(&loaded, from, sizeof loaded);
    return loaded;
}

static inline element narrow(real value) { return value; }
#endif

static inline real total(lanes sum) {
    real lane[LANES];
    memcpy(lane, &sum, sizeof lane);
    for (int half = LANES / 2; half; half /= 2)
        for (int i = 0; i < half; i++) lane[i] += lane[i + half];
    return lane[0];
}

#ifdef FLOAT64
static inline real power(real x) { return exp(x); }
#else
// e^x for x <= 0, to about 1e-7 relative: 2^n * e^r with |r| <= ln(2) / 2. NaN stays NaN.
static inline real power(real x) {
    x = x < -87.0f ? -87.0f : x;
    int32_t n = (int32_t)(x * 1.44269504f - 0.5f);
    real r = x - n * 0.693145752f;
    r -= n * 1.42860677e-6f;
    real p = 1.38888889e-3f;
    p = p * r + 8.33333333e-3f;
    p = p * r + 4.16666667e-2f;
    p = p * r + 1.66666667e-1f;
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    uint32_t bits = (uint32_t)(n + 127) << 23;
    real scale;
    memcpy(&scale, &bits, sizeof scale);
    return p * scale;
}
#endif

// Where the tokens [first, first + count) of a sequence lie, in elements from the head's first one.
// Reads only the table entries of these tokens.
static void locate(int64_t *at, int64_t first, int count, int64_t start, const int32_t *table,
                   int64_t block_size, int64_t slot_stride) {
    if (!table) {
        for (int i = 0; i < count; i++) at[i] = (start + first + i) * slot_stride;
        return;
    }
    int64_t block = first / block_size, offset = first % block_size;
    for (int i = 0; i < count; i++) {
        at[i] = (table[block] * block_size + offset) * slot_stride;
        if (++offset == block_size) offset = 0, block++;
    }
}

// Into the second-level cache: a tile of rows ahead would push this tile's out of the first.
static inline void fetch(const element *row) {
    for (int byte = 0; byte < HEAD_DIM * (int)sizeof(element); byte += LINE)
        __builtin_prefetch((const char *)row + byte, 0, 2);
}

static inline int least(int64_t a, int b) { return a < b ? (int)a : b; }

static void attend_head(const element *q, const element *keys, const element *values, element *o,
                        int64_t length, int64_t start, const int32_t *table, int64_t block_size,
                        int64_t slot_stride, real scale) {
    lanes query[GROUPS][CHUNKS], sum[GROUPS][CHUNKS];
    real score[GROUPS][TILE], top[GROUPS], weight[GROUPS];
    int64_t places[2][TILE];

    for (int g = 0; g < GROUPS; g++) {
        top[g] = -INFINITY, weight[g] = 0;
        for (int c = 0; c < CHUNKS; c++) {
            query[g][c] = load(q + g * HEAD_DIM + c * LANES) * scale;
            sum[g][c] = (lanes){0};
        }
    }
    int count = least(length, TILE);
    locate(places[0], 0, count, start, table, block_size, slot_stride);

    for (int64_t first = 0, turn = 0; first < length; first += TILE, turn ^= 1) {
        const int64_t *at = places[turn], *next = places[turn ^ 1];
        int following = least(length - first - count, TILE);
        locate(places[turn ^ 1], first + count, following, start, table, block_size, slot_stride);

        for (int i = 0; i < count; i++) {
            if (i < following) fetch(keys + next[i]);
            lanes dot[GROUPS] = {0};
            for (int c = 0; c < CHUNKS; c++) {
                lanes key = load(keys + at[i] + c * LANES);
                for (int g = 0; g < GROUPS; g++) dot[g] += query[g][c] * key;
            }
            for (int g = 0; g < GROUPS; g++) score[g][i] = total(dot[g]);
        }
        for (int g = 0; g < GROUPS; g++) {
            real highest = top[g], added = 0;
#pragma omp simd reduction(max : highest)
            for (int i = 0; i < count; i++) highest = score[g][i] > highest ? score[g][i] : highest;
#pragma omp simd reduction(+ : added)
            for (int i = 0; i < count; i++) added += score[g][i] = power(score[g][i] - highest);
            real shrink = first ? power(top[g] - highest) : 0;
            top[g] = highest, weight[g] = weight[g] * shrink + added;
            for (int c = 0; c < CHUNKS; c++) sum[g][c] *= shrink;
        }
        for (int i = 0; i < count; i++) {
            if (i < following) fetch(values + next[i]);
            for (int c = 0; c < CHUNKS; c++) {
                lanes value = load(values + at[i] + c * LANES);
                for (int g = 0; g < GROUPS; g++) sum[g][c] += score[g][i] * value;
            }
        }
        count = following;
    }
    for (int g = 0; g < GROUPS; g++)
        for (int c = 0; c < CHUNKS; c++)
            for (int l = 0; l < LANES; l++)
                o[g * HEAD_DIM + c * LANES + l] = narrow(sum[g][c][l] / weight[g]);
}

// q and o [T, H * GROUPS, HEAD_DIM]; keys and values [S, H, HEAD_DIM], slot_stride elements a slot.
// Query i < count is packed token token[i]; it sees the first seen[i] tokens of sequence[i]. Contiguous
// rows: table is NULL and start[b] is the slot of sequence b's first token; paged: row b of table, of
// width entries.
void attend_decode(const element *q, const element *keys, const element *values, element *o,
                   const int64_t *sequence, const int64_t *token, int64_t count, const int32_t *seen,
                   const int64_t *start, const int32_t *table, int64_t width, int64_t block_size,
                   int64_t kv_heads, int64_t slot_stride, double scale, int threads) {
#pragma omp parallel for schedule(dynamic) num_threads(threads) if (threads > 1)
    for (int64_t item = 0; item < count * kv_heads; item++) {
        int64_t b = sequence[item / kv_heads], head = item % kv_heads;
        int64_t query = (token[item / kv_heads] * kv_heads + head) * GROUPS * HEAD_DIM;
        attend_head(q + query, keys + head * HEAD_DIM, values + head * HEAD_DIM, o + query,
                    seen[item / kv_heads], table ? 0 : start[b], table ? table + b * width : 0, block_size,
                    slot_stride, (real)scale);
    }
}
