// Products of a few rows with packed columns, the sums kept in registers: of floats, or of pairs of bfloat16 in dot
// products where the machine has them.
//
// For one element type, FLOAT32 or BFLOAT16, and one HEAD_DIM.

#ifndef KVLAB_PACKED_H
#define KVLAB_PACKED_H

#include <stdint.h>
#include <string.h>
#if defined(BFLOAT16) && defined(__AVX512BF16__)
#include <immintrin.h>
#define PAIRS 1
#endif

// Rows and vectors of a product that stay in registers: 6 x 4 of the 32 that AVX-512 has, 6 x 2 of 16.
#if defined(__AVX512F__)
#define VECTOR 64  // bytes
#define COLUMNS 4
#elif defined(__AVX__)
#define VECTOR 32
#define COLUMNS 2
#else
#define VECTOR 16
#define COLUMNS 2
#endif
#define ROWS 6
#define LANES (VECTOR / 4)

typedef float lanes __attribute__((vector_size(VECTOR)));
typedef int32_t ints __attribute__((vector_size(VECTOR)));
typedef uint32_t words __attribute__((vector_size(VECTOR)));

#ifdef BFLOAT16
typedef uint16_t element;
#else
typedef float element;
#endif

// What the products multiply: floats, or pairs of bfloat16 that lie one behind the other in the direction of the sum.
#ifdef PAIRS
#define STEP 2
typedef uint32_t operand;
typedef words operands;
static inline lanes add_product(lanes sum, operand row, operands column) {
    return (lanes)_mm512_dpbf16_ps((__m512)sum, (__m512bh)_mm512_set1_epi32((int)row), (__m512bh)column);
}
#else
#define STEP 1
typedef float operand;
typedef lanes operands;
static inline lanes add_product(lanes sum, operand row, operands column) { return sum + row * column; }
#endif
#define DEPTH ((HEAD_DIM + STEP - 1) / STEP)

#ifdef BFLOAT16
static inline float widen(element half) {
    uint32_t bits = (uint32_t)half << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline element narrow(float value) {  // to the nearest, ties to even
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    if (value != value) return (element)(bits >> 16 | 64);
    return (element)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
#else
static inline float widen(element value) { return value; }
static inline element narrow(float value) { return value; }
#endif

// One head of a slot as operands along the head.
static inline operand along(const element *head, int step) {
#ifdef PAIRS
    return head[2 * step] | (2 * step + 1 < HEAD_DIM ? (uint32_t)head[2 * step + 1] << 16 : 0);
#else
    return widen(head[step]);
#endif
}

// out[r][c] = out[r][c] * keep[r] + sum over k of rows[r][k] * columns[k][c], for ROWS rows and `count` vectors.
static inline __attribute__((always_inline)) void product(lanes *out, int out_stride, const float *keep,
                                                          const operand *rows, int row_stride,
                                                          const operands *columns, int column_stride, int depth,
                                                          const int count) {
    lanes sum[ROWS][COLUMNS];
#pragma GCC unroll 8
    for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 4
        for (int c = 0; c < count; c++) sum[r][c] = keep ? out[r * out_stride + c] * keep[r] : (lanes){0};
    for (int k = 0; k < depth; k++) {
        operands column[COLUMNS];
#pragma GCC unroll 4
        for (int c = 0; c < count; c++) column[c] = columns[k * column_stride + c];
#pragma GCC unroll 8
        for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 4
            for (int c = 0; c < count; c++) sum[r][c] = add_product(sum[r][c], rows[r * row_stride + k], column[c]);
    }
#pragma GCC unroll 8
    for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 4
        for (int c = 0; c < count; c++) out[r * out_stride + c] = sum[r][c];
}

static inline __attribute__((always_inline)) void products(lanes *out, int out_stride, const float *keep,
                                                           const operand *rows, int row_stride,
                                                           const operands *columns, int column_stride, int depth,
                                                           int count) {
    for (; count >= COLUMNS; count -= COLUMNS, out += COLUMNS, columns += COLUMNS)
        product(out, out_stride, keep, rows, row_stride, columns, column_stride, depth, COLUMNS);
#if COLUMNS > 2
    if (count == 3) product(out, out_stride, keep, rows, row_stride, columns, column_stride, depth, 3);
    if (count == 2) product(out, out_stride, keep, rows, row_stride, columns, column_stride, depth, 2);
#endif
    if (count == 1) product(out, out_stride, keep, rows, row_stride, columns, column_stride, depth, 1);
}

#endif
