/* From logits to one token: see sampler.h for the chain.
 *
 * Nothing is sorted. top_k and top_p both keep a prefix of the vocabulary in order of falling weight, so all that is needed is the
 * smallest weight that stays. A histogram over the leading bits of the weights finds the bucket it lies in, by counts for top_k and
 * by sums for top_p; within that bucket it is found by partitioning (Hoare's quickselect). min_p is such a bound by itself. The
 * draw then walks the vocabulary in order of ids over what is not below the bound. A weight and its id make one 64-bit key, so that
 * "equal weights: the lowest id first" needs no second comparison. Two passes touch everything, the largest logit and the weights with
 * their sum; the others skip the blocks of ids whose largest weight is below what they look for.
 *
 * The same on every host: weights come from an exponential made of float additions and multiplications alone (libm's differs
 * between versions and CPUs), the build never contracts a*b+c, sums run in a fixed order in double, pivots come from a fixed
 * sequence, and the draw from the seeded generator. */
#include "engine/sampler.h"

#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "engine/floats.h"
#include "foundry/base/err.h"

const struct pn_sampling pn_sampling_default = { .temperature = 1, .top_p = 1, .repeat_penalty = 1 };

enum {
    MAX_LAST_N = 1 << 20,
    BLOCK = 128 /* ids whose largest weight is kept: a distribution is peaked, so most blocks lie below every bound */
};
static const float MIN_TEMPERATURE = 1e-5F; /* below it the draw is greedy but for exact ties: taken as 0 */

struct pn_sampler {
    struct pn_sampling p; /* bias points to our copy */
    int32_t n_vocab;
    struct fo_rng rng;
    uint64_t *keys; /* [n_vocab] scratch of pick; NULL when neither top_k nor top_p is on */
    float *tops;    /* [n_vocab / BLOCK, rounded up] the largest weight of each block; NULL when the largest logit is always taken */

    uint32_t *recent;  /* [n_vocab] how often an id is among the last repeat_last_n; NULL = penalty off */
    int32_t *window;   /* [repeat_last_n] those ids, a ring; NULL when all are counted */
    int32_t n_window, at;
    uint32_t *written; /* [n_vocab] how often an id was generated; NULL = both penalties off */
};

/* --- parameters ------------------------------------------------------------------------------ */
/* The bounds of the plain fields: one row each. `open` = the lower bound itself is out. */
static const struct {
    const char *name;
    size_t at;
    double min, max;
    bool open;
} ranges[] = {
    { "temperature", offsetof(struct pn_sampling, temperature), 0, 100, false },
    { "top_p", offsetof(struct pn_sampling, top_p), 0, 1, true },
    { "min_p", offsetof(struct pn_sampling, min_p), 0, 1, false },
    { "repeat_penalty", offsetof(struct pn_sampling, repeat_penalty), 0, 100, true },
    { "presence_penalty", offsetof(struct pn_sampling, presence_penalty), -2, 2, false },
    { "frequency_penalty", offsetof(struct pn_sampling, frequency_penalty), -2, 2, false },
};

static int check(const struct pn_sampling *p, int32_t n_vocab, struct fo_err *e) {
    for (size_t i = 0; i < sizeof ranges / sizeof *ranges; i++) {
        double v = (double)*(const float *)((const char *)p + ranges[i].at);
        if (!(v >= ranges[i].min && v <= ranges[i].max) || (ranges[i].open && v <= ranges[i].min))
            return fo_fail(e, FO_EINVAL, "%s must be %s %g and at most %g", ranges[i].name, ranges[i].open ? "above" : "at least",
                           ranges[i].min, ranges[i].max);
    }
    if (p->min_p >= 1) return fo_fail(e, FO_EINVAL, "min_p must be below 1");
    if (p->top_k < 0) return fo_fail(e, FO_EINVAL, "top_k must be at least 0");
    if (p->repeat_last_n < -1 || p->repeat_last_n > MAX_LAST_N)
        return fo_fail(e, FO_EINVAL, "repeat_last_n must be at least -1 and at most %d", MAX_LAST_N);
    if (p->n_bias < 0 || p->n_bias > n_vocab) return fo_fail(e, FO_EINVAL, "logit_bias has more entries than the vocabulary");
    for (int32_t i = 0; i < p->n_bias; i++) {
        const struct pn_logit_bias *b = &p->bias[i];
        if (b->id < 0 || b->id >= n_vocab)
            return fo_fail_need(e, FO_EINVAL, (uint64_t)(b->id < 0 ? 0 : b->id), (uint64_t)n_vocab,
                                "logit_bias: there is no token %d (the vocabulary has %d)", b->id, n_vocab);
        if (!(b->bias >= -100 && b->bias <= 100)) return fo_fail(e, FO_EINVAL, "logit_bias of token %d must be between -100 and 100", b->id);
    }
    return 0;
}

int pn_sampler_new(const struct pn_sampling *p, int32_t n_vocab, struct pn_sampler **ret, struct fo_err *e) {
    if (n_vocab < 1) return fo_fail(e, FO_EINTERNAL, "a vocabulary of %d tokens", n_vocab);
    if (check(p, n_vocab, e) != 0) return e->code;
    struct pn_sampler *s = calloc(1, sizeof *s);
    if (!s) return fo_fail(e, FO_ENOMEM, "no memory for a sampler");
    s->p = *p;
    s->p.bias = NULL;
    s->n_vocab = n_vocab;
    fo_rng_seed(&s->rng, p->seed);

    size_t n = (size_t)n_vocab;
    bool ok = true;
    if (p->n_bias > 0) {
        struct pn_logit_bias *copy = malloc((size_t)p->n_bias * sizeof *copy);
        if (copy) memcpy(copy, p->bias, (size_t)p->n_bias * sizeof *copy);
        s->p.bias = copy;
        ok = copy != NULL;
    }
    if (ok && p->temperature >= MIN_TEMPERATURE && (p->top_k > 0 || p->top_p < 1)) ok = (s->keys = malloc(n * sizeof *s->keys)) != NULL;
    if (ok && p->temperature >= MIN_TEMPERATURE) ok = (s->tops = malloc((n + BLOCK - 1) / BLOCK * sizeof *s->tops)) != NULL;
    if (ok && p->repeat_penalty != 1.0F && p->repeat_last_n != 0) {
        ok = (s->recent = calloc(n, sizeof *s->recent)) != NULL;
        if (ok && p->repeat_last_n > 0) ok = (s->window = malloc((size_t)p->repeat_last_n * sizeof *s->window)) != NULL;
    }
    if (ok && (p->presence_penalty != 0 || p->frequency_penalty != 0)) ok = (s->written = calloc(n, sizeof *s->written)) != NULL;
    if (!ok) {
        pn_sampler_free(s);
        return fo_fail(e, FO_ENOMEM, "no memory for a sampler over %d tokens", n_vocab);
    }
    *ret = s;
    return 0;
}

void pn_sampler_free(struct pn_sampler *s) {
    if (!s) return;
    free((void *)(uintptr_t)s->p.bias);
    free(s->keys);
    free(s->tops);
    free(s->recent);
    free(s->window);
    free(s->written);
    free(s);
}

void pn_sampler_accept(struct pn_sampler *s, int32_t id, int generated) {
    if (id < 0 || id >= s->n_vocab) return;
    if (s->written && generated) s->written[id]++;
    if (!s->recent) return;
    if (s->window) {
        if (s->n_window == s->p.repeat_last_n)
            s->recent[s->window[s->at]]--;
        else
            s->n_window++;
        s->window[s->at] = id;
        if (++s->at == s->p.repeat_last_n) s->at = 0;
    }
    s->recent[id]++;
}

/* --- the chain ------------------------------------------------------------------------------- */
static void penalise(const struct pn_sampler *s, float *logits) {
    const struct pn_sampling *p = &s->p;
    for (int32_t i = 0; i < p->n_bias; i++) {
        float *l = &logits[p->bias[i].id];
        *l = p->bias[i].bias <= -100 ? -INFINITY : *l + p->bias[i].bias;
    }
    if (s->recent) /* Keskar et al., CTRL, arXiv 1909.05858, with the sign rule that makes it a penalty on both sides of 0 */
        for (int32_t i = 0; i < s->n_vocab; i++)
            if (s->recent[i]) logits[i] = logits[i] > 0 ? logits[i] / p->repeat_penalty : logits[i] * p->repeat_penalty;
    if (s->written)
        for (int32_t i = 0; i < s->n_vocab; i++)
            if (s->written[i]) logits[i] -= p->presence_penalty + p->frequency_penalty * (float)s->written[i];
}

/* The largest logit, the lowest id among equals; -1 when all are NaN or -infinity. */
static int32_t largest(const struct pn_sampler *s, const float *logits) {
    float max = -INFINITY;
    int32_t first = 0;
    for (int32_t lo = 0; lo < s->n_vocab; lo += BLOCK) {
        float top = pn_largest_of(logits + lo, s->n_vocab - lo < BLOCK ? s->n_vocab - lo : BLOCK);
        if (top > max) max = top, first = lo;
    }
    if (max == -INFINITY) return -1;
    while (logits[first] != max) first++;
    return first;
}

/* Logits become weights, e^((logit - max) / temperature), with the largest of each block in s->tops; returns their sum. */
static double weigh(struct pn_sampler *s, float *logits, float max) {
    float inverse = 1.0F / s->p.temperature;
    double sum[PN_LANES] = { 0 };
    for (int32_t lo = 0; lo < s->n_vocab; lo += BLOCK) {
        int32_t n = s->n_vocab - lo < BLOCK ? s->n_vocab - lo : BLOCK, i = 0;
        float *w = logits + lo;
        for (int32_t j = 0; j < n; j++) w[j] = pn_exp_fixed((w[j] - max) * inverse);
        s->tops[lo / BLOCK] = pn_largest_of(w, n);
        for (; i + PN_LANES <= n; i += PN_LANES)
            for (int j = 0; j < PN_LANES; j++) sum[j] += (double)w[i + j];
        for (int j = 0; i < n; i++, j++) sum[j] += (double)w[i];
    }
    return pn_fold(sum);
}

/* Where the next block with a weight of `least` or more begins, from `lo` on; n_vocab or more when there is none. */
static int32_t next_block(const struct pn_sampler *s, int32_t lo, float least) {
    while (lo < s->n_vocab && s->tops[lo / BLOCK] < least) lo += BLOCK;
    return lo;
}

static int32_t block_end(const struct pn_sampler *s, int32_t lo) {
    return s->n_vocab - lo < BLOCK ? s->n_vocab : lo + BLOCK;
}

/* lo over the blocks that hold a weight of `least` or more, ascending. */
#define EACH_BLOCK(lo, s, least) (int32_t lo = next_block(s, 0, least); lo < (s)->n_vocab; lo = next_block(s, lo + BLOCK, least))

/* The sum of the weights above `above`, or how many they are. */
static double sum_above(const struct pn_sampler *s, const float *w, float above, bool by_count) {
    double sum[PN_LANES] = { 0 };
    for EACH_BLOCK(lo, s, above) {
        int32_t i = lo, hi = block_end(s, lo);
        for (; i + PN_LANES <= hi; i += PN_LANES)
            for (int j = 0; j < PN_LANES; j++) {
                float here = w[i + j] > above ? w[i + j] : 0;
                sum[j] += (double)(by_count ? (float)(here > 0) : here);
            }
        for (; i < hi; i++) sum[0] += w[i] > above ? (by_count ? 1.0 : (double)w[i]) : 0;
    }
    return pn_fold(sum);
}

/* A weight below all that a prefix which adds up to `goal` needs (see bound); not below `tiny`. Most of the sum lies in few weights, so a
 * high one is tried first. */
static float below_prefix(const struct pn_sampler *s, const float *w, bool by_count, double goal, float tiny) {
    for (float above = 0.1F; above > tiny; above /= 16)
        if (sum_above(s, w, above, by_count) > goal * 1.000001) return above; /* more than rounding */
    return tiny;
}

static inline uint64_t key_of(float w, int32_t id) {
    return (uint64_t)pn_bits_of(w) << 32 | (UINT32_MAX - (uint32_t)id); /* positive floats order as their bits do */
}

static inline double weight_of(uint64_t key) {
    return (double)pn_float_of((uint32_t)(key >> 32));
}

/* Parts keys[lo, hi), at least two and all different, into a higher and a lower part, neither empty; returns where the lower one
 * starts. The pivot is the middle one of three taken by a fixed pseudo-random sequence, so that no file can prepare the worst. */
static size_t part(uint64_t *keys, size_t lo, size_t hi, uint32_t *seq) {
    size_t n = hi - lo;
    uint64_t a = keys[lo], b = keys[hi - 1], pivot;
    if (n == 2) {
        pivot = a > b ? a : b;
    } else {
        *seq = *seq * 1664525 + 1013904223;
        uint64_t c = keys[lo + 1 + *seq % (n - 2)];
        pivot = a > b ? (b > c ? b : (a > c ? c : a)) : (a > c ? a : (b > c ? c : b));
    }
    size_t i = lo, j = hi;
    for (;;) {
        while (i < j && keys[i] >= pivot) i++;
        while (i < j && keys[j - 1] < pivot) j--;
        if (i >= j) return i;
        uint64_t t = keys[i];
        keys[i] = keys[j - 1];
        keys[j - 1] = t;
    }
}

/* The smallest key of the shortest prefix, in falling order of keys, that adds up to `goal` (all of them if nothing does): each key
 * counts 1, or its weight. Only weights above `above` and keys from `least` on take part. */
static uint64_t bound(struct pn_sampler *s, const float *w, float above, uint64_t least, bool by_count, double goal) {
    enum { SHIFT = 52, N_BUCKETS = (0x3F800000 >> (SHIFT - 32)) + 1 }; /* sign, exponent and 3 bits of fraction; the last is 1.0 */
    double amount[N_BUCKETS] = { 0 }, before = 0;
    uint64_t *keys = s->keys;
    size_t n = 0;
    for EACH_BLOCK(from, s, above)
        for (int32_t i = from, to = block_end(s, from); i < to; i++) { /* written always and kept at times: nothing to predict */
            keys[n] = key_of(w[i], i);
            n += (w[i] > above) & (keys[n] >= least);
        }
    for (size_t i = 0; i < n; i++) amount[keys[i] >> SHIFT] += by_count ? 1 : weight_of(keys[i]);
    uint64_t bucket = 0;
    for (uint64_t k = N_BUCKETS; k-- > 0;) {
        if (amount[k] == 0) continue;
        bucket = k;
        if (before + amount[k] >= goal) break;
        before += amount[k];
    }
    size_t lo = 0, hi = 0;
    for (size_t i = 0; i < n; i++) {
        uint64_t key = keys[i];
        keys[hi] = key;
        hi += key >> SHIFT == bucket;
    }
    uint32_t seq = 1;
    if (before + amount[bucket] < goal) before = -HUGE_VAL; /* rounding left the goal out of reach: keep the whole bucket */
    while (hi - lo > 1) { /* all before lo stay, all from hi on go */
        size_t m = part(keys, lo, hi, &seq);
        double here = 0;
        for (size_t i = lo; i < m; i++) here += by_count ? 1 : weight_of(keys[i]);
        if (before + here >= goal) {
            hi = m;
        } else {
            before += here;
            lo = m;
        }
    }
    return keys[lo];
}

static inline float at_least_of(uint64_t key) {
    return pn_float_of((uint32_t)(key >> 32));
}

/* The sum of the weights whose keys are from `least` on, in order of ids. */
static double kept_of(const struct pn_sampler *s, const float *w, uint64_t least) {
    double sum = 0;
    float at_least = at_least_of(least);
    for EACH_BLOCK(lo, s, at_least)
        for (int32_t i = lo, hi = block_end(s, lo); i < hi; i++)
            if (w[i] >= at_least && key_of(w[i], i) >= least) sum += (double)w[i];
    return sum;
}

int32_t pn_sampler_pick(struct pn_sampler *s, float *logits) {
    const struct pn_sampling *p = &s->p;
    penalise(s, logits);
    int32_t best = largest(s, logits);
    if (best < 0 || p->temperature < MIN_TEMPERATURE || logits[best] == INFINITY) return best;

    double sum = weigh(s, logits, logits[best]); /* from here on the array holds weights: 1 for the largest, 0 for what cannot come */
    uint64_t least = 0;
    if (p->top_k > 0) {
        least = bound(s, logits, below_prefix(s, logits, true, p->top_k, 0), 0, true, p->top_k);
        if (p->top_p < 1) sum = kept_of(s, logits, least);
    }
    if (p->top_p < 1) {
        double goal = (double)p->top_p * sum;
        /* What is smaller than (1-p)/n_vocab of the sum cannot all together reach 1-p of it, so it lies outside. */
        float tiny = (float)((1.0 - (double)p->top_p) * sum / s->n_vocab * 0.99);
        least = bound(s, logits, least ? at_least_of(least) / 2 : below_prefix(s, logits, false, goal, tiny), least, false, goal);
    }
    uint64_t min_p_key = key_of(p->min_p, 0) >> 32 << 32;
    if (min_p_key > least) least = min_p_key;
    double kept = least ? kept_of(s, logits, least) : sum;
    double goal = fo_rng_unit(&s->rng) * kept, seen = 0;
    int32_t last = best;
    float at_least = at_least_of(least);
    for EACH_BLOCK(lo, s, at_least)
        for (int32_t i = lo, hi = block_end(s, lo); i < hi; i++) {
            if (!(logits[i] >= at_least && logits[i] > 0 && key_of(logits[i], i) >= least)) continue;
            seen += (double)logits[i];
            last = i;
            if (seen > goal) return last;
        }
    return last;
}
