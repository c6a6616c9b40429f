// Products of packed tokens with weight matrices, and what is done with each result while it is in registers.
//
// A matrix lies in panels of LANES outputs: for each STEP inputs in order, a cache line with the weights of the panel's
// outputs. A row's sum goes over the inputs from the first to the last, whoever shares the product and however it is
// split among threads, so that a token's results do not depend on its company.
//
// Built for one element type: FLOAT32 or BFLOAT16; bfloat16 is summed in float.

#ifndef KVLAB_PRODUCT_H
#define KVLAB_PRODUCT_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#if defined(BFLOAT16) && defined(__AVX512BF16__)
#include <immintrin.h>
#endif

#define LANES 16
#define LINE 64  // bytes in a cache line: what a panel has for STEP inputs
#define MOST_PANELS 4  // of a tile

#ifdef __AVX512F__
#define ROWS 10  // rows and panels of a tile: their sums, and a few more, fill the registers
#define WIDE_ROWS 6  // so few rows leave room for twice as many panels
#else
#define ROWS 3
#define WIDE_ROWS 1
#endif

// GCC's and Clang's vector types: the compiler turns them into whatever the CPU has.
typedef float lanes __attribute__((vector_size(LANES * 4)));
typedef uint32_t words __attribute__((vector_size(LANES * 4)));
typedef int32_t flags __attribute__((vector_size(LANES * 4)));

#ifdef BFLOAT16
typedef uint16_t element;
typedef uint16_t halves __attribute__((vector_size(LANES * 2)));
#define STEP 2

static inline lanes load(const element *from) {
    halves half;
    memcpy(&half, from, sizeof half);
    return (lanes)(__builtin_convertvector(half, words) << 16);
}

static inline void store(element *to, lanes value) {  // to the nearest, ties to even; NaN stays NaN
    words bits = (words)value, nan = (words)(flags)(value != value);
    words rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    halves half = __builtin_convertvector((nan & (bits >> 16 | 64)) | (~nan & rounded), halves);
    memcpy(to, &half, sizeof half);
}
#else
typedef float element;
#define STEP 1

static inline lanes load(const element *from) {
    lanes loaded;
    memcpy(&loaded, from, sizeof loaded);
    return loaded;
}

static inline void store(element *to, lanes value) { memcpy(to, &value, sizeof value); }
#endif

// sum + the products of STEP inputs with a line of weights.
#if defined(BFLOAT16) && defined(__AVX512BF16__)
static inline lanes add_product(lanes sum, const element *weight, const element *x) {
    int32_t pair;
    memcpy(&pair, x, sizeof pair);
    __m512i line = _mm512_loadu_si512(weight);
    return (lanes)_mm512_dpbf16_ps((__m512)sum, (__m512bh)line, (__m512bh)_mm512_set1_epi32(pair));
}
#elif defined(BFLOAT16)
static inline lanes add_product(lanes sum, const element *weight, const element *x) {
    words line;
    memcpy(&line, weight, sizeof line);
    uint32_t low = (uint32_t)x[0] << 16, high = (uint32_t)x[1] << 16;
    float first, second;
    memcpy(&first, &low, sizeof first);
    memcpy(&second, &high, sizeof second);
    return sum + (lanes)(line << 16) * first + (lanes)(line & 0xffff0000u) * second;
}
#else
static inline lanes add_product(lanes sum, const element *weight, const element *x) {
    return sum + load(weight) * x[0];
}
#endif

struct matrix {
    const element *panels;
    int64_t inputs, outputs;  // STEP divides inputs; the last panel is filled up with zeros
};

// What becomes of a row's results. GATED: panels of gates and of values take turns, and one result is made of two.
enum kind { KEPT, ADDED, GATED, REAL };

struct results {
    enum kind kind;
    void *at;  // elements; float for REAL
    int64_t stride, columns;  // of a row, as it is stored
};

// e^x to about 1e-7 relative: 2^n * e^r with |r| <= ln(2) / 2. NaN stays NaN.
static inline lanes power(lanes x) {
    flags low = x < -87.0f, high = x > 88.0f;
    lanes least = {0}, most = {0};
    least = least - 87.0f, most = most + 88.0f;
    x = (lanes)((low & (flags)least) | (high & (flags)most) | (~low & ~high & (flags)x));
    lanes shifted = x * 1.44269504f + 12582912.0f;  // rounds to a whole number, which ends in the last bits
    lanes n = shifted - 12582912.0f;
    lanes r = x - n * 0.693145752f;
    r -= n * 1.42860677e-6f;
    lanes p = r * 1.38888889e-3f + 8.33333333e-3f;
    p = p * r + 4.16666667e-2f;
    p = p * r + 1.66666667e-1f;
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    return p * (lanes)(((flags)shifted + 127) << 23);
}

static inline lanes gated(lanes gate, lanes value) { return gate / (1.0f + power(-gate)) * value; }

// Up to LANES elements, of which the last may lie behind the end of a row.
static inline void store_some(element *to, lanes value, int64_t count) {
    element all[LANES];
    store(all, value);
    memcpy(to, all, (size_t)count * sizeof(element));
}

static inline lanes load_some(const element *from, int64_t count) {
    element all[LANES] = {0};
    memcpy(all, from, (size_t)count * sizeof(element));
    return load(all);
}

static inline void put(const struct results *results, lanes value, int64_t row, int64_t column) {
    int64_t count = results->columns - column;
    if (results->kind == REAL) {
        float *to = (float *)results->at + row * results->stride + column;
        memcpy(to, &value, (count < LANES ? (size_t)count : LANES) * sizeof(float));
        return;
    }
    element *to = (element *)results->at + row * results->stride + column;
    if (count >= LANES)
        store(to, results->kind == ADDED ? load(to) + value : value);
    else
        store_some(to, results->kind == ADDED ? load_some(to, count) + value : value, count);
}

static void put_tile(const struct results *results, const lanes *sum, int rows, int panels, int64_t row, int64_t panel) {
    for (int r = 0; r < rows; r++, sum += panels) {
        if (results->kind == GATED)
            for (int p = 0; p < panels; p += 2) put(results, gated(sum[p], sum[p + 1]), row + r, (panel + p) / 2 * LANES);
        else
            for (int p = 0; p < panels; p++) put(results, sum[p], row + r, (panel + p) * LANES);
    }
}

// The sums of `rows` rows of x with `panels` panels; both are constants where this is expanded.
static inline __attribute__((always_inline)) void sum_tile(const int rows, const int panels, const element *x,
                                                           int64_t x_stride, const element *weights, int64_t inputs,
                                                           int64_t ahead, lanes *out) {
    lanes sum[ROWS][MOST_PANELS] = {{{0}}};
    int64_t size = inputs * LANES;
    for (int64_t i = 0; i < inputs; i += STEP) {
#pragma GCC unroll 4
        for (int p = 0; p < panels; p++) {
            const element *line = weights + p * size + i * LANES;
            __builtin_prefetch(line + ahead, 0, 2);
#pragma GCC unroll 10
            for (int r = 0; r < rows; r++) sum[r][p] = add_product(sum[r][p], line, x + r * x_stride + i);
        }
    }
#pragma GCC unroll 10
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int p = 0; p < panels; p++) out[r * panels + p] = sum[r][p];
}

#define FOR_ROWS(count, panels) \
    case count: sum_tile(count, panels, x, x_stride, weights, inputs, ahead, out); break;

#ifdef __AVX512F__
#define FOR_FEW(panels) FOR_ROWS(2, panels) FOR_ROWS(3, panels) FOR_ROWS(4, panels) FOR_ROWS(5, panels) FOR_ROWS(6, panels)
#define FOR_MANY(panels) FOR_ROWS(7, panels) FOR_ROWS(8, panels) FOR_ROWS(9, panels) FOR_ROWS(10, panels)
#else
#define FOR_FEW(panels)
#define FOR_MANY(panels) FOR_ROWS(2, panels) FOR_ROWS(3, panels)
#endif

static void any_tile(int rows, int panels, const element *x, int64_t x_stride, const element *weights, int64_t inputs,
                     int64_t ahead, lanes *out) {
    if (panels == 4)
        switch (rows) { FOR_ROWS(1, 4) FOR_FEW(4) }
    else if (panels == 2)
        switch (rows) { FOR_ROWS(1, 2) FOR_FEW(2) FOR_MANY(2) }
    else
        switch (rows) { FOR_ROWS(1, 1) FOR_FEW(1) FOR_MANY(1) }
}

// Rows [0, rows) of x times the panels [first, last) of the matrix; tiles of one height, or nearly.
static void multiply(const struct matrix *matrix, const element *x, int64_t x_stride, int64_t rows, int64_t first,
                     int64_t last, const struct results *results) {
    lanes out[ROWS * MOST_PANELS];
    int64_t tiles = (rows + ROWS - 1) / ROWS;
    int64_t widest = rows <= WIDE_ROWS ? 4 : 2;
    for (int64_t panel = first, panels; panel < last; panel += panels) {
        panels = last - panel >= widest ? widest : last - panel >= 2 ? 2 : 1;
        const element *weights = matrix->panels + panel * matrix->inputs * LANES;
        for (int64_t tile = 0; tile < tiles; tile++) {
            int64_t row = tile * rows / tiles, count = (tile + 1) * rows / tiles - row;
            int64_t ahead = tile == tiles - 1 ? panels * matrix->inputs * LANES : 0;  // the next panels come in meanwhile
            any_tile((int)count, (int)panels, x + row * x_stride, x_stride, weights, matrix->inputs, ahead, out);
            put_tile(results, out, (int)count, (int)panels, row, panel);
        }
    }
}

// A thread's share of a product that `parts` threads do together: pairs of panels side by side.
static void multiply_share(const struct matrix *matrix, const element *x, int64_t x_stride, int64_t rows, int part,
                           int parts, const struct results *results) {
    int64_t panels = (matrix->outputs + LANES - 1) / LANES, pairs = (panels + 1) / 2;
    int64_t first = part * pairs / parts * 2, last = (part + 1) * pairs / parts * 2;
    multiply(matrix, x, x_stride, rows, first, last < panels ? last : panels, results);
}

#endif
