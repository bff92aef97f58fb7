/* From logits to one token. The chain is fixed: logit_bias, penalties over the tokens seen, temperature, top_k, top_p, min_p, then a
 * draw from the seeded generator; temperature 0 takes the largest (the lowest id among equals). The same seed and logits give the
 * same token on every host. One owner: the worker. */
#pragma once
#include <stdint.h>

#include "foundry/base/rng.h"

struct fo_err;

struct pn_logit_bias {
    int32_t id;
    float bias; /* -100 .. 100; -100 bans, 100 forces as far as others allow */
};

struct pn_sampling {
    float temperature;       /* >= 0; 0 = greedy */
    int32_t top_k;           /* 0 = off */
    float top_p;             /* (0, 1]; 1 = off */
    float min_p;             /* [0, 1); 0 = off */
    float repeat_penalty;    /* > 0; 1 = off; over the last repeat_last_n tokens, prompt included */
    int32_t repeat_last_n;   /* 0 = off, -1 = all */
    float presence_penalty;  /* over generated tokens, as OpenAI defines it */
    float frequency_penalty;
    const struct pn_logit_bias *bias; /* [n_bias]; copied when a sampler is made */
    int32_t n_bias;
    uint64_t seed;
};

/* temperature 1, everything else off, seed 0. */
extern const struct pn_sampling pn_sampling_default;

struct pn_sampler;
/* FO_EINVAL names the field that is out of range (as the API spells it); FO_ENOMEM. */
int pn_sampler_new(const struct pn_sampling *p, int32_t n_vocab, struct pn_sampler **ret, struct fo_err *e);
void pn_sampler_free(struct pn_sampler *s);
/* Tells it a token that is now part of the text (prompt tokens first, then each generated one). */
void pn_sampler_accept(struct pn_sampler *s, int32_t id, int generated);
/* logits [n_vocab] are changed in place. Not-a-number logits never win; all of them NaN is the caller's model failing: returns -1. */
int32_t pn_sampler_pick(struct pn_sampler *s, float *logits);
