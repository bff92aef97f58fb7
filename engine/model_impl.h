/* What a model is made of: for model.c (opening), forward.c (computing) and estimate.c (asking beforehand). Everyone else: model.h. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "engine/bind.h"
#include "engine/family.h"
#include "engine/kv.h"
#include "engine/model.h"
#include "foundry/base/arena.h"
#include "foundry/base/err.h"

struct fo_stream;
struct pn_chat;

enum { PN_SHOWN = 128 /* bytes of general.name that are kept */ };

enum pn_block_kind { PN_WEIGHTS, PN_KV, PN_COMPUTE, PN_N_BLOCKS };

struct pn_block {
    struct fo_arena arena;
    uint64_t bytes;      /* as measured */
    unsigned char *data; /* device address */
};

/* A run of layers and the die that computes it. */
struct pn_part {
    struct fo_device *dev;
    uint32_t first_layer, end_layer;
    bool in_place; /* weights are read where the file is mapped */
    struct pn_block block[PN_N_BLOCKS];
    struct fo_kv_geom kv; /* its own layers only */
    unsigned char *states; /* blocks of recurrent state, of its own layers; NULL without */
    struct pn_buffers buf;
    struct fo_stream *stream;
    uint64_t stream_bytes;
};

struct pn_model {
    struct pn_model_info info;
    char *path;
    char arch[PN_SHOWN], name[PN_SHOWN], tokenizer_error[sizeof ((struct fo_err *)0)->msg];
    struct fo_gguf *gguf;
    struct fo_tok *tok;
    struct pn_chat *chat;
    uint64_t template_sum; /* of the template's text */
    const struct pn_family *family;
    struct pn_hparams h;
    struct fo_region region;
    struct pn_bind bind;
    struct pn_bind_die bind_dies[PN_MAX_PARTS];
    void *weights; /* the family's, in the region */
    struct pn_part part[PN_MAX_PARTS]; /* [n_parts] */
    int n_parts;
    struct pn_kv kv;
    struct fo_arena host; /* free pages, and what follows */
    uint64_t host_bytes;  /* as measured */
    void *heap_block;
    /* the step under way */
    int32_t *ids, *pos;       /* [max_batch] */
    int32_t *wanted;          /* [logit_rows] */
    int32_t *stated;          /* [max_batch] */
    struct fo_attn_seq *seqs; /* [max_concurrent] */
    const int32_t **tokens;   /* [max_concurrent] each sequence from its start */
    uint32_t *pages_before;   /* [max_concurrent] pages each sequence held, to give back what a failed step took */
    uint32_t *states_from, *states_to; /* [max_concurrent] NULL without recurrent state */
    uint32_t logit_rows, draft_rows;
    float *host_logits; /* [logit_rows][n_vocab], or NULL: the last die's are host memory */
    struct pn_routes routes;  /* of max_batch rows; NULLs without experts */
    float *carried;     /* [max_batch][n_embd], on its way from die to die, then states; NULL with one whose memory is host memory */
    const float *states; /* of the last step */
};

/* Bytes of a block of recurrent state of n layers. */
uint64_t pn_model_state_bytes(const struct pn_model *m, uint32_t n_layers);

/* model.c's, for estimate.c: a model as far as its file's header, and then as far as the measured layout. */
int pn_model_start(const char *path, struct pn_model **ret, struct fo_err *e);
int pn_model_prepare(struct pn_model *m, const struct pn_model_opts *o, struct fo_err *e);
/* The tokenizer of a model that was started with text, and what it takes. One that this build lacks is no failure: the model then takes and gives
 * tokens only. FO_ENOMEM. */
int pn_model_open_tok(struct pn_model *m, struct fo_err *e);
