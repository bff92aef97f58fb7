/* From logits to one token: see sampler.h for the chain.
 *
 * Nothing is sorted. top_k and top_p both keep a prefix of the vocabulary in order of falling weight, so all that is needed is the
 * smallest weight that stays. A histogram over the leading bits of the weights finds the bucket it lies in, by counts for top_k and
 * by sums for top_p; within that bucket it is found by partitioning (Hoare's quickselect). min_p is such a bound by itself. The
 * draw then walks the vocabulary in order of ids over what is not below the bound. A weight and its id make one 64-bit key, so that
 * "equal weights: the lowest id first" needs no second comparison.
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

#include "foundry/base/err.h"

const struct pn_sampling pn_sampling_default = { .temperature = 1, .top_p = 1, .repeat_penalty = 1 };

enum { MAX_LAST_N = 1 << 20 };
static const float MIN_TEMPERATURE = 1e-5F; /* below it the draw is greedy but for exact ties: taken as 0 */

struct pn_sampler {
    struct pn_sampling p; /* bias points to our copy */
    int32_t n_vocab;
    struct fo_rng rng;
    uint64_t *keys; /* [n_vocab] scratch of pick; NULL when neither top_k nor top_p is on */

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
static inline uint32_t bits_of(float f) {
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    return bits;
}

static inline float float_of(uint32_t bits) {
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

/* e^x for x <= 0: x = n ln2 + r, |r| <= ln2/2, a Taylor polynomial for e^r (its error is below half a unit in the last place of
 * float), and n put into the exponent. 0 for NaN and below -87, where floats would become subnormal. Only IEEE additions and
 * multiplications, so every host gives the same bits; no branch, so that compilers make vectors of it. */
static inline float exp_fixed(float x) {
    const float shift = 12582912.0F; /* 1.5 * 2^23: adding it rounds to an integer */
    const uint32_t minus_87 = 0xC2AE0000U, bits = bits_of(x);
    uint32_t in = (bits & 0x7FFFFFFFU) < (minus_87 & 0x7FFFFFFFU) ? UINT32_MAX : 0;
    float low = float_of((bits & in) | (minus_87 & ~in));
    float t = low * 1.44269504F + shift;
    float n = t - shift;
    float r = low - n * 0.693359375F; /* ln2 in two parts: the first is exact in few bits */
    r = r + n * 2.12194440e-4F;
    float y = 1.0F / 5040;
    y = y * r + 1.0F / 720;
    y = y * r + 1.0F / 120;
    y = y * r + 1.0F / 24;
    y = y * r + 1.0F / 6;
    y = y * r + 0.5F;
    y = y * r + 1.0F;
    y = y * r + 1.0F;
    float scale = float_of(((uint32_t)((int32_t)n + 127)) << 23);
    return float_of(bits_of(y * scale) & in);
}

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
static int32_t largest(const float *logits, int32_t n) {
    int32_t best = -1;
    float max = -INFINITY;
    for (int32_t i = 0; i < n; i++)
        if (logits[i] > max) max = logits[i], best = i;
    return best;
}

static inline uint64_t key_of(float w, int32_t id) {
    return (uint64_t)bits_of(w) << 32 | (UINT32_MAX - (uint32_t)id); /* positive floats order as their bits do */
}

static inline double weight_of(uint64_t key) {
    return (double)float_of((uint32_t)(key >> 32));
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
    for (int32_t i = 0; i < s->n_vocab; i++) {
        if (!(w[i] > above)) continue;
        uint64_t key = key_of(w[i], i);
        if (key >= least) amount[key >> SHIFT] += by_count ? 1 : (double)w[i];
    }
    uint64_t bucket = 0;
    for (uint64_t k = N_BUCKETS; k-- > 0;) {
        if (amount[k] == 0) continue;
        bucket = k;
        if (before + amount[k] >= goal) break;
        before += amount[k];
    }
    uint64_t *keys = s->keys;
    size_t lo = 0, hi = 0;
    for (int32_t i = 0; i < s->n_vocab; i++) {
        if (!(w[i] > above)) continue;
        uint64_t key = key_of(w[i], i);
        if (key >= least && key >> SHIFT == bucket) keys[hi++] = key;
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

int32_t pn_sampler_pick(struct pn_sampler *s, float *logits) {
    const struct pn_sampling *p = &s->p;
    penalise(s, logits);
    int32_t best = largest(logits, s->n_vocab);
    if (best < 0 || p->temperature < MIN_TEMPERATURE || logits[best] == INFINITY) return best;

    /* From here on the array holds weights: 1 for the largest, 0 for what cannot come. */
    float max = logits[best], inverse = 1.0F / p->temperature;
    for (int32_t i = 0; i < s->n_vocab; i++) logits[i] = exp_fixed((logits[i] - max) * inverse);
    double sum = 0;
    for (int32_t i = 0; i < s->n_vocab; i++) sum += (double)logits[i];

    uint64_t least = 0;
    if (p->top_k > 0) {
        least = bound(s, logits, 0, 0, true, p->top_k);
        if (p->top_p < 1) {
            sum = 0;
            for (int32_t i = 0; i < s->n_vocab; i++)
                if (logits[i] > 0 && key_of(logits[i], i) >= least) sum += (double)logits[i];
        }
    }
    if (p->top_p < 1) {
        /* What is smaller than (1-p)/n_vocab of the sum cannot all together reach 1-p of it, so it lies outside. */
        float tiny = (float)((1.0 - (double)p->top_p) * sum / s->n_vocab * 0.99);
        least = bound(s, logits, tiny, least, false, (double)p->top_p * sum);
    }
    uint64_t min_p_key = key_of(p->min_p, 0) >> 32 << 32;
    if (min_p_key > least) least = min_p_key;
    float at_least = float_of((uint32_t)(least >> 32));

    double kept = 0;
    for (int32_t i = 0; i < s->n_vocab; i++)
        if (logits[i] >= at_least && key_of(logits[i], i) >= least) kept += (double)logits[i];
    double goal = fo_rng_unit(&s->rng) * kept, seen = 0;
    int32_t last = best;
    for (int32_t i = 0; i < s->n_vocab; i++) {
        if (!(logits[i] >= at_least && logits[i] > 0 && key_of(logits[i], i) >= least)) continue;
        seen += (double)logits[i];
        last = i;
        if (seen > goal) break;
    }
    return last;
}
