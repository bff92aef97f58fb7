/* A model family: how one architecture is read, laid out and computed. THE family table is in family.c: a new family is one file in
 * families/ and one row. What families share is in blocks.h; what every model has, whatever its family, is in model.c. */
#pragma once
#include <stddef.h>
#include <stdint.h>

#include "engine/moe.h"
#include "engine/rope.h"
#include "foundry/ops.h"

struct fo_arena;
struct fo_err;
struct fo_gguf;
struct fo_stream;
struct pn_bind;

/* Most that is believed of a file, so that sums of products stay far inside 64 bits. */
enum {
    PN_MAX_LAYERS = 1024,
    PN_MAX_EMBD = 1 << 17,
    PN_MAX_FF = 1 << 20,
    PN_MAX_HEADS = 4096,
    PN_MAX_HEAD_DIM = 1024,
    PN_MAX_VOCAB = 1 << 22,
    PN_MAX_CTX = 1 << 28,
    PN_MAX_EXPERTS = 512
};

/* What probe reads; each checked against its bounds there, and against the tensors' shapes by bind. */
struct pn_hparams {
    uint32_t n_vocab, n_ctx_train, n_layer, n_embd, n_ff;
    uint32_t n_head, n_head_kv, head_dim; /* n_head is a multiple of n_head_kv */
    uint32_t n_rot;                       /* dimensions of a head that rotate: even, <= head_dim */
    uint32_t window;                      /* sliding window in positions, 0 = none */
    uint32_t state_bytes;                 /* of recurrent state: a sequence's in one layer, a multiple of 64; 0 = none */
    uint32_t n_expert, n_expert_used;     /* 0 = the feed-forward block is one; else 1 to n_expert are asked */
    float rms_eps, rope_base;
    struct pn_rope_scaling rope;
    uint32_t ctx_cap; /* set by the model between probe and bind: what a sequence may hold */
};

/* Scratch of a step, on the device. Row counts are at most those of the layout. */
struct pn_buffers {
    float *x;         /* [rows][n_embd] the residual stream */
    float *h;         /* [rows][n_embd] a normalised input, then a block's output; at the end the states that are asked for, then those to make logits of */
    float *q, *att;   /* [rows][n_head * head_dim] */
    float *k, *v;     /* [rows][n_head_kv * head_dim] */
    float *gate, *up; /* [rows][n_ff] */
    float *router;    /* [rows][n_expert] */
    float *expert_in, *expert_out; /* [rows][n_embd] with experts */
    float *logits;    /* [logit rows][n_vocab] */
};

/* Recurrent state on one die: blocks of block_bytes, of which a sequence's layer l has state_bytes from (l - first_layer) * state_bytes on. */
struct pn_step_state {
    unsigned char *pool;  /* device memory */
    uint64_t block_bytes;
    const uint32_t *from; /* [batch.n_seqs] blocks to go on from; UINT32_MAX at position 0, which begins from nothing */
    const uint32_t *to;   /* [batch.n_seqs] blocks to write: what lies behind the rows of this step. None is another's, nor in `from` */
};

/* One call of the forward pass: some tokens of some sequences, one row a token, through the layers [first_layer, end_layer) of one die.
 * The die of layer 0 begins with the embedding, the one of the last layer ends with states and logits; between dies the model carries buf.x. */
struct pn_step {
    struct fo_stream *stream;
    uint32_t first_layer, end_layer;
    const struct pn_hparams *h;
    const struct fo_kv_geom *kv; /* of this die: its layer 0 is first_layer */
    int n_rows;
    const int32_t *ids;          /* [n_rows] */
    const int32_t *pos;          /* [n_rows] */
    struct fo_attn_batch batch;  /* which rows are whose */
    const int32_t *const *tokens; /* [batch.n_seqs] each sequence from its start, the rows of this step included: [pos + n] */
    const int32_t *wanted;       /* [n_wanted] rows whose logits are asked for, ascending */
    int n_wanted;
    const int32_t *stated;       /* [n_stated] rows whose states after the output norm are asked for, ascending; none is wanted too */
    int n_stated;
    struct pn_buffers buf;
    struct pn_routes routes; /* with experts */
    struct pn_step_state state; /* with recurrent state */
};

struct pn_family {
    const char *arch; /* general.architecture */
    /* Reads and checks the hyperparameters. FO_EUNSUPPORTED names what this build lacks. */
    int (*probe)(const struct fo_gguf *g, struct pn_hparams *ret, struct fo_err *e);
    /* Binds every tensor. *ret_weights is the family's own struct, in the model's region. */
    int (*bind)(struct pn_bind *b, const struct pn_hparams *h, void **ret_weights, struct fo_err *e);
    /* Takes the buffers of a step of `rows` tokens and `logit_rows` rows of logits. `block` is the device block behind the arena, NULL
     * when measuring (the pointers are then NULL too). */
    int (*layout)(const struct pn_hparams *h, int rows, int logit_rows, struct fo_arena *a, unsigned char *block, struct pn_buffers *ret,
                  struct fo_err *e);
    /* From ids to buf.h [n_stated][n_embd], the states that are asked for, and buf.logits [n_wanted][n_vocab]. Allocates nothing. */
    int (*forward)(const void *weights, const struct pn_step *s, struct fo_err *e);
};

/* The row of an architecture (not NUL-terminated), or NULL. */
const struct pn_family *pn_family_find(const char *arch, size_t len);
/* "llama, ...": the architectures of this build, for refusals. Returns `out`. */
const char *pn_family_list(char *out, size_t size);

extern const struct pn_family pn_family_llama, pn_family_phi3, pn_family_qwen2, pn_family_qwen3, pn_family_script;
