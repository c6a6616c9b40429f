// Of each row of logits the largest, where it is, and the second largest: one pass over memory, rows side by side.

#include <math.h>
#include <stdint.h>
#include <string.h>

#define LANES 16

typedef float lanes __attribute__((vector_size(LANES * 4)));
typedef int32_t flags __attribute__((vector_size(LANES * 4)));

static inline lanes larger(lanes a, lanes b) {
    flags first = a > b;
    return (lanes)((first & (flags)a) | (~first & (flags)b));
}

static inline lanes smaller(lanes a, lanes b) {
    flags first = a < b;
    return (lanes)((first & (flags)a) | (~first & (flags)b));
}

struct two {
    lanes first, next;  // of the columns that a lane has seen
    flags wrong;  // it has seen a NaN
};

static inline void see(struct two *two, lanes x) {
    two->wrong |= x != x;
    two->next = larger(two->next, smaller(two->first, x));
    two->first = larger(two->first, x);
}

// NaN for both where the row has one.
static void two_of_row(const float *row, int64_t size, float *best, float *second) {
    lanes least = {0}, x;
    least = least - INFINITY;
    struct two two = {least, least, {0}};
    int64_t i = 0;
    for (; i + LANES <= size; i += LANES) {
        memcpy(&x, row + i, sizeof x);
        see(&two, x);
    }
    x = least;
    memcpy(&x, row + i, (size_t)(size - i) * sizeof(float));
    see(&two, x);
    *best = *second = -INFINITY;
    for (int i = 0; i < LANES; i++) {
        float high = two.first[i], low = two.wrong[i] ? NAN : two.next[i];
        if (low != low) {
            *best = *second = NAN;
            return;
        }
        *second = fmaxf(*second, fmaxf(low, fminf(*best, high)));
        *best = fmaxf(*best, high);
    }
}

void best_two(const float *logits_NV, int64_t rows, int64_t size, int64_t *token_N, float *best_N, float *second_N,
              int threads) {
#pragma omp parallel for num_threads(threads)
    for (int64_t n = 0; n < rows; n++) {
        const float *row = logits_NV + n * size;
        two_of_row(row, size, best_N + n, second_N + n);
        token_N[n] = 0;
        while (token_N[n] < size - 1 && !(row[token_N[n]] >= best_N[n]) && best_N[n] == best_N[n]) token_N[n]++;
    }
}
