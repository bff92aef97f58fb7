/* What a HuggingFace model's config.json says, in GGUF's words. For hf.c. */
#pragma once
#include <stdbool.h>
#include <stddef.h>

struct fo_err;
struct fo_gguf_writer;
struct fo_region;

struct fo_hf_config {
    const char *arch; /* general.architecture; static */
    bool tied;        /* the output is the embedding: a lm_head.weight counts for nothing */
    bool biases;      /* q, k and v have them */
    /* Divisors of the inverse frequencies, [n_rope] in the region, or NULL: what GGUF keeps as rope_freqs.weight, rope_factors_short.weight and
     * rope_factors_long.weight. */
    const float *rope_freqs, *rope_short, *rope_long;
    size_t n_rope;
};

/* `text` is the file's; `name` stands in errors; `title` is what the model is called unless the file says so. Appends general.* and the
 * architecture's keys. FO_EFORMAT and FO_EUNSUPPORTED name the key, its value and what was expected; FO_ENOMEM. */
int fo_hf_config_read(const char *text, size_t len, const char *name, const char *title, struct fo_region *region, struct fo_gguf_writer *w,
                      struct fo_hf_config *ret, struct fo_err *e);
