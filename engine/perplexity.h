/* How well a model predicts a text: e to the mean negative log-probability of its tokens. Measured as llama-perplexity does by default, so that
 * figures compare: the tokens are cut into windows that do not overlap; each is computed on its own, its first token replaced by BOS where
 * the model's metadata adds one; and of each the tokens of its second half count, which all have half a window before them. On the thread
 * that owns the model. */
#pragma once
#include <stddef.h>
#include <stdint.h>

struct fo_err;
struct pn_model;

struct pn_perplexity {
    double value, error;   /* error: the standard error of the value */
    uint64_t n_scored;     /* tokens that counted */
    uint32_t n_windows, window; /* windows computed; tokens of each */
};

/* ids[n] as pn_text_encode gives them with `add`; the model was opened with all_logits and a ctx_cap of at least `window`. `progress` is called
 * after each window, of n_windows in all, with the figures so far; a code other than 0, with *e set, ends the work with it. NULL = never.
 * FO_EINVAL when the window is shorter than 8 tokens, or the text than a window; what computing says. */
typedef int pn_perplexity_fn(void *ctx, const struct pn_perplexity *so_far, uint32_t n_windows, struct fo_err *e);
int pn_perplexity(struct pn_model *m, const int32_t *ids, size_t n, uint32_t window, pn_perplexity_fn *progress, void *ctx,
                  struct pn_perplexity *ret, struct fo_err *e);
