// One layer of a Llama on the CPU but for its attention, in two calls: what comes before it, and what comes after.
//
// Few tokens: all threads share each product, and wait for one another between products. Many: each thread takes
// tokens of its own through the whole call, BLOCK at a time, and waits for nobody. A token's results are the same.

#include <omp.h>

#include "product.h"

#define BLOCK 40  // tokens whose way through a layer stays in a core's second-level cache

struct shape {
    int64_t hidden, ffn, q_heads, kv_heads, head_dim;
    float eps;
};

struct weights {
    const element *attention_norm, *mlp_norm;
    struct matrix q, kv, out, gate_up, down;
};

struct step {
    int64_t tokens;
    element *x_TC, *q_TQD, *kv_THD;  // kv_THD: the keys of a token's heads, then their values
    const float *cos_TK, *sin_TK;  // K = head_dim / 2
    element *normed, *inner;  // [rows, hidden] and [rows, ffn]: see scratch_rows
    int64_t threads;
};

// Whether each thread takes tokens of its own.
static int is_long(const struct step *step) { return step->tokens >= step->threads * BLOCK; }

// Rows of scratch that a step of so many tokens needs.
int64_t scratch_rows(int64_t tokens, int64_t threads) {
    return tokens >= threads * BLOCK ? threads * BLOCK : tokens;
}

static void norm(const element *x, const element *weight, int64_t hidden, float eps, element *to) {
    lanes squares = {0};
    int64_t whole = hidden / LANES * LANES, rest = hidden - whole;
    for (int64_t i = 0; i < whole; i += LANES) squares += load(x + i) * load(x + i);
    if (rest) squares += load_some(x + whole, rest) * load_some(x + whole, rest);
    float total = 0;
    for (int i = 0; i < LANES; i++) total += squares[i];
    float scale = 1.0f / sqrtf(total / hidden + eps);
    for (int64_t i = 0; i < whole; i += LANES) store(to + i, load(x + i) * scale * load(weight + i));
    if (rest) store_some(to + whole, load_some(x + whole, rest) * scale * load_some(weight + whole, rest), rest);
}

static void norm_rows(const element *x, const element *weight, const struct shape *shape, int64_t first, int64_t last,
                      element *to) {
    for (int64_t t = first; t < last; t++)
        norm(x + t * shape->hidden, weight, shape->hidden, shape->eps, to + t * shape->hidden);
}

// (a, b) -> (a cos - b sin, b cos + a sin), a the first half of a head and b the second.
static void turn(element *head, const float *cos, const float *sin, int64_t half) {
    for (int64_t i = 0; i < half; i += LANES) {
        int64_t count = half - i < LANES ? half - i : LANES;
        lanes c = {0}, s = {0};
        memcpy(&c, cos + i, count * sizeof(float));
        memcpy(&s, sin + i, count * sizeof(float));
        lanes a = load_some(head + i, count), b = load_some(head + half + i, count);
        store_some(head + i, a * c - b * s, count);
        store_some(head + half + i, b * c + a * s, count);
    }
}

static void turn_rows(const struct shape *shape, const struct step *step, int64_t first, int64_t last) {
    int64_t dim = shape->head_dim, half = dim / 2;
    for (int64_t t = first; t < last; t++) {
        const float *cos = step->cos_TK + t * half, *sin = step->sin_TK + t * half;
        element *q = step->q_TQD + t * shape->q_heads * dim, *k = step->kv_THD + t * 2 * shape->kv_heads * dim;
        for (int64_t h = 0; h < shape->q_heads; h++) turn(q + h * dim, cos, sin, half);
        for (int64_t h = 0; h < shape->kv_heads; h++) turn(k + h * dim, cos, sin, half);
    }
}

// Rows that one thread works on, alone or as one of `parts` that share their products.
struct share {
    int64_t first, last;  // tokens
    int part, parts;
    element *normed, *inner;
};

static int64_t begin(const struct share *share) {
    return share->first + share->part * (share->last - share->first) / share->parts;
}

static int64_t end(const struct share *share) {
    return share->first + (share->part + 1) * (share->last - share->first) / share->parts;
}

// Everybody has come here: a thread alone waits for nobody.
#define MEET(share) \
    if ((share)->parts > 1) { \
        _Pragma("omp barrier") \
    }

static void norm_share(const struct share *share, const struct shape *shape, const element *x_TC,
                       const element *weight) {
    element *to = share->normed - share->first * shape->hidden;
    norm_rows(x_TC, weight, shape, begin(share), end(share), to);
}

static void product(const struct share *share, const struct matrix *matrix, const element *x, enum kind kind, void *to,
                    int64_t columns) {
    struct results results = {kind, to, columns, columns};
    multiply_share(matrix, x, matrix->inputs, share->last - share->first, share->part, share->parts, &results);
}

static void before(const struct share *share, const struct shape *shape, const struct weights *weights,
                   const struct step *step) {
    int64_t q = shape->q_heads * shape->head_dim, kv = 2 * shape->kv_heads * shape->head_dim;
    norm_share(share, shape, step->x_TC, weights->attention_norm);
    MEET(share)
    product(share, &weights->q, share->normed, KEPT, step->q_TQD + share->first * q, q);
    product(share, &weights->kv, share->normed, KEPT, step->kv_THD + share->first * kv, kv);
    MEET(share)
    turn_rows(shape, step, begin(share), end(share));
}

static void after(const struct share *share, const struct shape *shape, const struct weights *weights,
                  const struct step *step, const element *o_TQD) {
    element *x = step->x_TC + share->first * shape->hidden;
    const element *o = o_TQD + share->first * weights->out.inputs;
    product(share, &weights->out, o, ADDED, x, shape->hidden);
    MEET(share)
    norm_share(share, shape, step->x_TC, weights->mlp_norm);
    MEET(share)
    product(share, &weights->gate_up, share->normed, GATED, share->inner, shape->ffn);
    MEET(share)
    product(share, &weights->down, share->inner, ADDED, x, shape->hidden);
}

// Calls work for the rows of a thread, blocks of them one after the other where the step is long.
#define EACH_SHARE(work) \
    _Pragma("omp parallel num_threads(step->threads)") { \
        int thread = omp_get_thread_num(), threads = omp_get_num_threads(); \
        if (is_long(step)) { \
            int64_t stop = (thread + 1) * step->tokens / threads, first = thread * step->tokens / threads; \
            for (int64_t last; first < stop; first = last) { \
                last = stop - first < BLOCK ? stop : first + BLOCK; \
                struct share share = {first, last, 0, 1, step->normed + thread * BLOCK * shape->hidden, \
                                      step->inner + thread * BLOCK * shape->ffn}; \
                work; \
            } \
        } else { \
            struct share share = {0, step->tokens, thread, threads, step->normed, step->inner}; \
            work; \
        } \
    }

void layer_before(const struct shape *shape, const struct weights *weights, const struct step *step) {
    EACH_SHARE(before(&share, shape, weights, step))
}

void layer_after(const struct shape *shape, const struct weights *weights, const struct step *step,
                 const element *o_TQD) {
    EACH_SHARE(after(&share, shape, weights, step, o_TQD))
}

// logits_NV, float, after the rows of x_TC.
void logits(const struct shape *shape, const element *weight, const struct matrix *head, const struct step *step,
            const int64_t *row_N, int64_t rows, element *normed_NC, float *logits_NV) {
#pragma omp parallel num_threads(step->threads)
    {
        struct share share = {0, rows, omp_get_thread_num(), omp_get_num_threads(), normed_NC, 0};
        for (int64_t n = begin(&share); n < end(&share); n++)
            norm(step->x_TC + row_N[n] * shape->hidden, weight, shape->hidden, shape->eps,
                 normed_NC + n * shape->hidden);
        MEET(&share)
        product(&share, head, normed_NC, REAL, logits_NV, head->outputs);
    }
}

// Puts weight_OI into every `every`-th of the panels from the first on; what is missing of the last one is zeros.
void pack(const element *weight_OI, int64_t outputs, int64_t inputs, element *panels, int64_t every, int64_t threads) {
#pragma omp parallel for num_threads(threads)
    for (int64_t panel = 0; panel < (outputs + LANES - 1) / LANES; panel++) {
        element *to = panels + panel * every * inputs * LANES;
        for (int64_t i = 0; i < inputs; i += STEP)
            for (int64_t o = panel * LANES; o < (panel + 1) * LANES; o++, to += STEP) {
                if (o < outputs)
                    memcpy(to, weight_OI + o * inputs + i, STEP * sizeof(element));
                else
                    memset(to, 0, STEP * sizeof(element));
            }
    }
}

// A product by itself: x_TI of so many rows, to_TO.
void multiply_rows(const struct matrix *matrix, const element *x_TI, int64_t rows, element *to_TO, int64_t threads) {
#pragma omp parallel num_threads(threads)
    {
        struct share share = {0, rows, omp_get_thread_num(), omp_get_num_threads(), 0, 0};
        product(&share, matrix, x_TI, KEPT, to_TO, matrix->outputs);
    }
}
