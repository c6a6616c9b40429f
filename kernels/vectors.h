// Numbers a register at a time, for one HEAD_DIM and element type (FLOAT32, FLOAT64 or BFLOAT16).
//
// `lanes` are as many reals as a register of the machine holds and HEAD_DIM is a multiple of; sums are kept in
// them. A `packed` is the elements that one load brings: lanes, or for bfloat16 twice as many, whose even and odd
// elements are unpacked apart. GCC's and Clang's vector types become whatever the machine has; only the product
// of bfloat16 pairs needs its own instruction, with AVX512_BF16.

#ifndef KVLAB_VECTORS_H
#define KVLAB_VECTORS_H

#include <math.h>
#include <stdint.h>
#include <string.h>
#ifdef __AVX512F__
#include <immintrin.h>
#endif

#if defined(__AVX512F__)
#define REGISTER_BYTES 64
#elif defined(__AVX__)
#define REGISTER_BYTES 32
#else
#define REGISTER_BYTES 16
#endif

#if defined(FLOAT64)
typedef double element, real;
typedef int64_t whole;
#define WIDEST (REGISTER_BYTES / 8)
#define PARTS 1  // lanes in a packed
#elif defined(BFLOAT16)
typedef uint16_t element;
typedef float real;
typedef int32_t whole;
#define WIDEST (REGISTER_BYTES / 4)
#define PARTS 2
#else
typedef float element, real;
typedef int32_t whole;
#define WIDEST (REGISTER_BYTES / 4)
#define PARTS 1
#endif

#define FITS(n) ((n) <= WIDEST && HEAD_DIM % ((n) * PARTS) == 0)
#if FITS(16)
#define LANES 16
#define EACH(f, half) f(0, half), f(1, half), f(2, half), f(3, half), f(4, half), f(5, half), f(6, half), \
    f(7, half), f(8, half), f(9, half), f(10, half), f(11, half), f(12, half), f(13, half), f(14, half), f(15, half)
#elif FITS(8)
#define LANES 8
#define EACH(f, half) \
    f(0, half), f(1, half), f(2, half), f(3, half), f(4, half), f(5, half), f(6, half), f(7, half)
#elif FITS(4)
#define LANES 4
#define EACH(f, half) f(0, half), f(1, half), f(2, half), f(3, half)
#elif FITS(2)
#define LANES 2
#define EACH(f, half) f(0, half), f(1, half)
#else
#error "HEAD_DIM is no multiple of 2, or of 4 in bfloat16"
#endif

typedef real lanes __attribute__((vector_size(LANES * sizeof(real))));
typedef whole wholes __attribute__((vector_size(LANES * sizeof(real))));

#define INLINE static inline __attribute__((always_inline))

#ifdef BFLOAT16
typedef uint32_t packed __attribute__((vector_size(LANES * 4)));  // an odd element above each even one

INLINE void unpack(lanes part[PARTS], packed both) {
    part[0] = (lanes)(both << 16);
    part[1] = (lanes)(both & 0xffff0000);
}

INLINE packed rounded(lanes value) {  // to bfloat16 in the upper half, to the nearest, ties to even; NaN stays one
    packed bits = (packed)value;
    packed near = bits + 0x7fff + (bits >> 16 & 1);
    packed is_nan = (packed)(value != value);
    return (near & ~is_nan) | ((bits | 0x400000) & is_nan);
}

INLINE packed pack(const lanes part[PARTS]) { return rounded(part[0]) >> 16 | (rounded(part[1]) & 0xffff0000); }
#else
typedef lanes packed;

INLINE void unpack(lanes part[PARTS], packed all) { part[0] = all; }

INLINE packed pack(const lanes part[PARTS]) { return part[0]; }
#endif

INLINE packed load(const element *from) {
    packed loaded;
    memcpy(&loaded, from, sizeof loaded);
    return loaded;
}

// Keep what was loaded in a register: GCC would load it again for every use.
#ifdef __x86_64__
#define KEEP(value) __asm__("" : "+v"(value))
#else
#define KEEP(value)
#endif

INLINE void store(element *to, packed value) { memcpy(to, &value, sizeof value); }

// sum + a * b, lane by lane; for bfloat16 a lane takes two products.
INLINE lanes add_products(lanes sum, packed a, packed b) {
#if defined(BFLOAT16) && defined(__AVX512BF16__) && LANES == 16
    return (lanes)_mm512_dpbf16_ps((__m512)sum, (__m512bh)a, (__m512bh)b);
#elif defined(BFLOAT16) && defined(__AVX512BF16__) && defined(__AVX512VL__) && LANES == 8
    return (lanes)_mm256_dpbf16_ps((__m256)sum, (__m256bh)a, (__m256bh)b);
#else
    lanes left[PARTS], right[PARTS];
    unpack(left, a), unpack(right, b);
    for (int part = 0; part < PARTS; part++) sum += left[part] * right[part];
    return sum;
#endif
}

#if defined(BFLOAT16) && defined(__AVX512BF16__) && LANES == 16
// Weights are rounded to bfloat16, two tokens a product.
#define STEP 2
typedef uint16_t share;

INLINE lanes store_shares(share *to, lanes weight) {
    __m256i shares = (__m256i)_mm512_cvtneps_pbh((__m512)weight);
    memcpy(to, &shares, sizeof shares);
    return (lanes)((packed)_mm512_cvtepu16_epi32(shares) << 16);
}

INLINE void interleave(lanes value[PARTS], packed first, packed second) {
    value[0] = (lanes)((first & 0xffff) | second << 16);
    value[1] = (lanes)(first >> 16 | (second & 0xffff0000));
}

INLINE lanes broadcast(const share *shares) {
    uint32_t both;
    memcpy(&both, shares, sizeof both);
    return (lanes)((packed){0} + both);
}

INLINE lanes add_shares(lanes sum, lanes shares, lanes value) {
    return (lanes)_mm512_dpbf16_ps((__m512)sum, (__m512bh)shares, (__m512bh)value);
}
#else
#define STEP 1
typedef real share;

// What was stored.
INLINE lanes store_shares(share *to, lanes weight) {
    memcpy(to, &weight, sizeof weight);
    return weight;
}

INLINE void interleave(lanes value[PARTS], packed first, packed second) {
    (void)second;
    unpack(value, first);
}

INLINE lanes broadcast(const share *shares) { return (lanes){0} + *shares; }

INLINE lanes add_shares(lanes sum, lanes shares, lanes value) { return sum + shares * value; }
#endif

#define OTHER(lane, half) ((lane) & (half) ? LANES + (lane) - (half) : (lane) + (half))
#define SAME(lane, half) ((lane) & (half) ? LANES + (lane) : (lane))
#ifdef __clang__
#define SHUFFLE(a, b, f, half) __builtin_shufflevector(a, b, EACH(f, half))
#else
#define SHUFFLE(a, b, f, half) __builtin_shuffle(a, b, (wholes){EACH(f, half)})
#endif

// Lanes without bit `half` of their number: pairs of a's lanes added; lanes with it: pairs of b's.
INLINE lanes merge(lanes a, lanes b, int half) {
    switch (half) {
        case 1: return SHUFFLE(a, b, OTHER, 1) + SHUFFLE(a, b, SAME, 1);
#if LANES > 2
        case 2: return SHUFFLE(a, b, OTHER, 2) + SHUFFLE(a, b, SAME, 2);
#endif
#if LANES > 4
        case 4: return SHUFFLE(a, b, OTHER, 4) + SHUFFLE(a, b, SAME, 4);
#endif
#if LANES > 8
        case 8: return SHUFFLE(a, b, OTHER, 8) + SHUFFLE(a, b, SAME, 8);
#endif
    }
    __builtin_unreachable();
}

INLINE real total(lanes sum) {
    real lane[LANES];
    memcpy(lane, &sum, sizeof lane);
    for (int half = LANES / 2; half; half /= 2)
        for (int i = 0; i < half; i++) lane[i] += lane[i + half];
    return lane[0];
}

// Where one is NaN, a.
INLINE lanes larger(lanes a, lanes b) {
#if defined(__AVX512F__) && LANES == 16
    return (lanes)_mm512_max_ps((__m512)b, (__m512)a);
#else
    wholes which = (wholes)(b > a);
    return (lanes)(((wholes)b & which) | ((wholes)a & ~which));
#endif
}

INLINE real largest(lanes value) {
    value = larger(value, SHUFFLE(value, value, OTHER, 1));
#if LANES > 2
    value = larger(value, SHUFFLE(value, value, OTHER, 2));
#endif
#if LANES > 4
    value = larger(value, SHUFFLE(value, value, OTHER, 4));
#endif
#if LANES > 8
    value = larger(value, SHUFFLE(value, value, OTHER, 8));
#endif
    return value[0];
}

#define LOG2_E 1.4426950408889634

#ifdef FLOAT64
INLINE lanes power(lanes x) {
    for (int i = 0; i < LANES; i++) x[i] = exp2(x[i]);
    return x;
}
#else
// To about 1e-7 relative, and 2^-126 for less: 2^n * 2^r with |r| <= 1/2. NaN stays NaN.
INLINE lanes power(lanes x) {
    const real round = 12582912.0f;  // 1.5 * 2^23: what is added to it loses its fraction
    x = larger(x, (lanes){0} - 126.0f);
    lanes shifted = x + round, r = x - (shifted - round);
    lanes p = r * 1.5403530e-4f + 1.3333558e-3f;
    p = p * r + 9.6181291e-3f;
    p = p * r + 5.5504109e-2f;
    p = p * r + 2.4022651e-1f;
    p = p * r + 6.9314718e-1f;
    p = p * r + 1.0f;
    return p * (lanes)(((wholes)shifted + 127) << 23);  // of shifted only the bits of n survive
}
#endif

#endif
