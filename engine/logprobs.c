/* Log-probabilities: see logprobs.h.
 *
 * Text is counted in characters: `n_decoded` came out of detokenisation, `n_shown` of these were let out by stop matching, in the same
 * order. A token remembers n_decoded as it stood in front of it, so it is known to be out when n_shown has passed that place, and to be
 * cut away when a stop string was completed and n_shown has not. Tokens without text (control tokens) wait only while text in front of
 * them is held.
 *
 * What can be held is bounded: stop matching holds less than PN_MAX_STOP_BYTES, detokenisation 3 bytes, and a token with text has a byte
 * at least. Only tokens without text could be more; then the oldest goes out early. */
#include "engine/logprobs.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/floats.h"
#include "engine/request.h"
#include "foundry/base/err.h"
#include "foundry/base/utf8.h"

enum { BLOCK = 128 };

/* The sum of e^(logit - max); 1 for each that is the largest, also when that is infinite. */
static double sum_of(const float *logits, int32_t n_vocab, float max) {
    double sum[PN_LANES] = { 0 };
    for (int32_t lo = 0; lo < n_vocab; lo += BLOCK) {
        int32_t n = n_vocab - lo < BLOCK ? n_vocab - lo : BLOCK, i = 0;
        const float *l = logits + lo;
        float w[BLOCK];
        for (int32_t j = 0; j < n; j++) w[j] = l[j] == max ? 1 : pn_exp_fixed(l[j] - max);
        for (; i + PN_LANES <= n; i += PN_LANES)
            for (int j = 0; j < PN_LANES; j++) sum[j] += (double)w[i + j];
        for (int j = 0; i < n; i++, j++) sum[j] += (double)w[i];
    }
    return pn_fold(sum);
}

static float logprob_of(float logit, float max, double log_sum) {
    if (logit == max) return (float)(0 - log_sum);
    return logit > -INFINITY ? (float)((double)logit - (double)max - log_sum) : -INFINITY;
}

/* The n largest logits into top [n], falling, as logits; returns how many. */
static uint32_t likeliest(const float *logits, int32_t n_vocab, uint32_t n, struct pn_logprob *top) {
    uint32_t have = 0;
    float least = -INFINITY;
    if (n == 0) return 0;
    for (int32_t i = 0; i < n_vocab; i++) {
        float l = logits[i];
        if (have == n && !(l > least)) continue;
        if (l != l) l = -INFINITY;
        uint32_t at = have < n ? have++ : n - 1;
        for (; at > 0 && top[at - 1].logprob < l; at--) top[at] = top[at - 1];
        top[at] = (struct pn_logprob){ i, l };
        least = top[have - 1].logprob;
    }
    return have;
}

void pn_logprobs_of(const float *logits, int32_t n_vocab, int32_t id, uint32_t n_top, struct pn_logprobs *ret) {
    float max = pn_largest_of(logits, n_vocab);
    double log_sum = log(sum_of(logits, n_vocab, max));
    ret->token = (struct pn_logprob){ id, logprob_of(logits[id], max, log_sum) };
    ret->n_top = likeliest(logits, n_vocab, n_top, ret->top);
    for (uint32_t i = 0; i < ret->n_top; i++) ret->top[i].logprob = logprob_of(ret->top[i].logprob, max, log_sum);
}

/* --- on their way ---------------------------------------------------------------------------- */
struct pn_lp {
    uint32_t n_top, cap, first, n, n_due; /* the n from `first` on, round; the first n_due of them go out */
    int32_t n_vocab;
    uint64_t n_decoded, n_shown; /* characters */
    float *logits;               /* [n_vocab] of the newest token */
    struct pn_logprobs held[];   /* [cap] */
};

enum { CAP = 8, CAP_STOPS = PN_MAX_STOP_BYTES + CAP };

int pn_lp_new(uint32_t n_top, int32_t n_vocab, bool stops, struct pn_lp **ret, struct fo_err *e) {
    if (n_top > PN_MAX_TOP_LOGPROBS)
        return fo_fail_need(e, FO_EINVAL, n_top, PN_MAX_TOP_LOGPROBS, "top_logprobs must be at most %d", PN_MAX_TOP_LOGPROBS);
    uint32_t cap = stops ? CAP_STOPS : CAP;
    struct pn_lp *q = calloc(1, sizeof *q + cap * sizeof q->held[0]);
    float *logits = malloc((size_t)n_vocab * sizeof *logits);
    if (!q || !logits) {
        free(q);
        free(logits);
        return fo_fail(e, FO_ENOMEM, "no memory for log-probabilities over %d tokens", n_vocab);
    }
    q->n_top = n_top;
    q->cap = cap;
    q->n_vocab = n_vocab;
    q->logits = logits;
    *ret = q;
    return 0;
}

void pn_lp_free(struct pn_lp *q) {
    if (!q) return;
    free(q->logits);
    free(q);
}

void pn_lp_see(struct pn_lp *q, const float *logits) {
    memcpy(q->logits, logits, (size_t)q->n_vocab * sizeof *logits);
}

void pn_lp_add(struct pn_lp *q, int32_t id) {
    assert(q->n_due == 0 && q->n < q->cap);
    struct pn_logprobs *p = &q->held[(q->first + q->n++) % q->cap];
    p->text_at = q->n_decoded;
    pn_logprobs_of(q->logits, q->n_vocab, id, q->n_top, p);
}

void pn_lp_text(struct pn_lp *q, const char *decoded, size_t n_decoded, const char *shown, size_t n_shown, bool mid_character, bool stopped) {
    q->n_decoded += fo_utf8_count(decoded, n_decoded);
    q->n_shown += fo_utf8_count(shown, n_shown);
    bool nothing_held = q->n_shown == q->n_decoded && !mid_character;
    while (q->n_due < q->n && ((nothing_held && !stopped) || q->held[(q->first + q->n_due) % q->cap].text_at < q->n_shown)) q->n_due++;
    if (stopped) q->n = q->n_due;
    else if (q->n == q->cap && q->n_due == 0) q->n_due = 1;
}

const struct pn_logprobs *pn_lp_due(const struct pn_lp *q) {
    return q->n_due > 0 ? &q->held[q->first] : NULL;
}

void pn_lp_sent(struct pn_lp *q) {
    assert(q->n_due > 0);
    q->first = (q->first + 1) % q->cap;
    q->n--;
    q->n_due--;
}
