/* Perplexity: see perplexity.h. */
#include "engine/perplexity.h"

#include <math.h>

#include "engine/model.h"
#include "foundry/base/err.h"
#include "foundry/tok.h"

enum { LEAST_WINDOW = 8 };

struct sums {
    double nll, squares; /* of negative log-probabilities, and of their squares */
    uint64_t n;
};

/* -log of the softmax's probability of `id`. */
static double surprise(const float *logits, uint32_t n_vocab, int32_t id) {
    float top = logits[0];
    for (uint32_t i = 1; i < n_vocab; i++) top = logits[i] > top ? logits[i] : top;
    double sum = 0;
    for (uint32_t i = 0; i < n_vocab; i++) sum += (double)expf(logits[i] - top);
    return log(sum) + (double)top - (double)logits[id];
}

static struct pn_perplexity figures(const struct sums *s, uint32_t n_windows, uint32_t window) {
    double mean = s->nll / (double)s->n, variance = s->squares / (double)s->n - mean * mean, value = exp(mean);
    double error = variance > 0 && s->n > 1 ? value * sqrt(variance / (double)(s->n - 1)) : 0;
    return (struct pn_perplexity){ value, error, s->n, n_windows, window };
}

/* Computes one window and adds what counts of it. */
static int score(struct pn_model *m, const int32_t *ids, int32_t first_id, uint32_t window, struct sums *s, struct fo_err *e) {
    const struct pn_model_info *info = pn_model_info(m);
    struct pn_seq *seq;
    if (pn_seq_new(m, &seq, e)) return e->code;
    int rc = pn_seq_reserve(seq, window, e);
    for (uint32_t at = 0; !rc && at < window;) { /* the first token alone, since it may be another; the halves apart */
        uint32_t end = at == 0 ? 1 : at < window / 2 ? window / 2 : window, k = end - at < info->max_batch ? end - at : info->max_batch;
        bool counts = at >= window / 2;
        float *logits;
        struct pn_batch_item item = { .seq = seq, .tokens = at ? ids + at : &first_id, .n = k, .want = counts ? PN_WANT_ALL : PN_WANT_NONE };
        rc = pn_model_forward(m, &item, 1, &logits, e);
        if (!rc) rc = pn_model_state(m, e);
        for (uint32_t i = at; !rc && counts && i < at + k && i + 1 < window; i++) {
            double v = surprise(logits + (size_t)(i - at) * info->n_vocab, info->n_vocab, ids[i + 1]);
            s->nll += v;
            s->squares += v * v;
            s->n++;
        }
        at += k;
    }
    pn_seq_free(seq);
    return rc;
}

int pn_perplexity(struct pn_model *m, const int32_t *ids, size_t n, uint32_t window, pn_perplexity_fn *progress, void *ctx,
                  struct pn_perplexity *ret, struct fo_err *e) {
    const struct fo_tok *tok = pn_model_tok(m);
    struct sums s = { 0 };
    struct pn_perplexity p = { 0 };
    if (window < LEAST_WINDOW)
        return fo_fail_need(e, FO_EINVAL, LEAST_WINDOW, window, "a window of %u tokens; at least %d make sense", window, LEAST_WINDOW);
    if (window > pn_model_info(m)->ctx_cap)
        return fo_fail_need(e, FO_EINVAL, window, pn_model_info(m)->ctx_cap, "a window of %u tokens is more than the cap of %u", window,
                            pn_model_info(m)->ctx_cap);
    if (n < window) return fo_fail_need(e, FO_EINVAL, window, n, "the text has %zu tokens, less than one window of %u", n, window);
    if (n / window > UINT32_MAX) return fo_fail(e, FO_ELIMIT, "the text has %zu tokens", n);
    for (size_t i = 0; i < n; i++)
        if (ids[i] < 0 || (uint32_t)ids[i] >= pn_model_info(m)->n_vocab)
            return fo_fail(e, FO_EINVAL, "token %d (number %zu) is out of range: the vocabulary has %u", ids[i], i + 1, pn_model_info(m)->n_vocab);
    bool bos = tok && fo_tok_add_bos(tok) && fo_tok_bos(tok) >= 0;
    uint32_t n_windows = (uint32_t)(n / window);
    for (uint32_t i = 0; i < n_windows; i++) {
        const int32_t *first = ids + (size_t)i * window;
        if (score(m, first, bos ? fo_tok_bos(tok) : first[0], window, &s, e)) return e->code;
        p = figures(&s, i + 1, window);
        if (progress && progress(ctx, &p, n_windows, e)) return e->code;
    }
    *ret = p;
    return FO_OK;
}
