/* A model: weights bound to a device, immutable after load, plus the forward pass over sequences. open -> probe (metadata and
 * shapes) -> bind (tensor names become fields, every shape checked) -> place (in place or uploaded) -> KV pool and scratch. The same
 * layout code runs in measuring mode for pn_model_measure. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "foundry/dtype.h"

struct fo_device;
struct fo_err;
struct fo_gguf;
struct fo_tok;
struct pn_chat;
struct pn_model;
struct pn_seq;

enum { PN_MAX_PARTS = 16 };

/* A run of layers on one die. The first part has the token embedding, the last one the output. */
struct pn_model_part {
    struct fo_device *dev;
    uint32_t first_layer, n_layers;
};

struct pn_model_opts {
    struct fo_device *dev;     /* opened by the caller, outlives the model; not read when there are parts */
    struct pn_model_part parts[PN_MAX_PARTS]; /* [n_parts] split by layers: in order, without gaps, all of them */
    int n_parts;               /* 0 = everything on dev */
    uint32_t ctx_cap;          /* most tokens a sequence may hold; 0 = min(8192, trained) */
    uint32_t max_sessions;     /* sequences that may hold KV at once; 0 = 1 */
    uint32_t max_concurrent;   /* sequences in one step; 0 = 1 */
    uint32_t max_batch;        /* most tokens in one step; 0 = 256 (prefill comes in such chunks) */
    uint32_t draft_rows;       /* rows of logits that a step may want besides one per sequence: for drafts (engine/spec.h). 0 = none */
    bool kv_default;           /* KV as FO_F16, or FO_F32 on an exact device */
    enum fo_dtype k_type, v_type; /* FO_F32, FO_F16, FO_Q8_0 or FO_Q4_0; read without kv_default */
    bool has_floor;            /* pressure may turn KV into smaller types: */
    enum fo_dtype k_floor, v_floor; /* one that takes no less than the type, or does not fit the heads, is the type */
    uint32_t kv_overcommit;    /* percent: sessions at ctx_cap that are promised for each that there is KV for; 0 or 100 = none. One always fits */
    bool no_mmap;              /* read the weights into anonymous memory instead of mapping them */
    bool all_logits;           /* scratch for logits of every row of a batch, not only one per sequence (the logits command) */
    const char *chat_template; /* override text, or NULL */
    /* Asked between the pieces of weights that are copied to a die (8 MiB), on the loading thread: a code other than 0, with *e set, ends
     * the load with it. NULL = never. */
    int (*go_on)(void *ctx, struct fo_err *e);
    void *go_on_ctx;
};

/* Sets k_type, v_type and kv_default of *o by name, in either case: "q8_0", or "k=q8_0,v=q4_0". FO_EINVAL names those that there are. */
int pn_kv_type_parse(const char *name, struct pn_model_opts *o, struct fo_err *e);
/* As pn_kv_type_parse takes them: "f16", "q8_0". */
const char *pn_kv_type_name(enum fo_dtype type);

/* How the states of a prompt become one vector (engine/embed.h). The numbers are GGUF's. */
enum pn_pooling { PN_POOLING_NONE, PN_POOLING_MEAN, PN_POOLING_CLS, PN_POOLING_LAST, PN_POOLING_RANK };

/* What a model takes on one die. */
struct pn_part_info {
    struct fo_device *dev;
    uint32_t first_layer, n_layers;
    uint64_t weights_bytes; /* allocated there, or read where the file is mapped */
    bool mapped;            /* the latter */
    uint64_t kv_bytes, scratch_bytes;
};

/* What is known of a model. A value; strings live as long as the model. */
struct pn_model_info {
    const char *path, *arch, *name;   /* general.architecture, general.name ("" when absent) */
    const char *ftype;                /* the commonest weight type: "Q4_1" */
    uint64_t n_params, file_bytes;
    uint32_t n_vocab, n_ctx_train, n_layer, n_embd, n_head, n_head_kv;
    uint32_t ctx_cap, max_sessions, max_concurrent, max_batch;
    uint32_t logit_rows;              /* most rows of a step whose logits are wanted */
    enum pn_pooling pooling;          /* of embeddings, which have n_embd numbers */
    bool has_tokenizer;               /* false: tokens in, tokens out only; `tokenizer_error` says why */
    const char *tokenizer_error;
    /* memory, all from the one layout function */
    uint64_t weights_bytes;           /* bytes of tensors (mapped or not) */
    uint64_t kv_bytes_per_token, kv_bytes, n_pages;
    enum fo_dtype k_type, v_type, k_floor, v_floor; /* of KV, and what it may be turned into: the same where there is no less */
    uint32_t page_tokens, seq_pages;  /* tokens of a page; most pages one sequence holds at a time */
    uint64_t state_bytes;             /* of kv_bytes: recurrent state, all blocks of it */
    uint64_t scratch_bytes;           /* of all dies and the host */
    uint64_t host_bytes;              /* of these on the host: the rows of a step, and what is carried between dies */
    uint64_t text_bytes;              /* on the host, besides: the tokenizer */
    struct pn_part_info parts[PN_MAX_PARTS]; /* [n_parts] */
    int n_parts;
};

/* Blocking, seconds to minutes: for the loader thread. On failure everything is released. Errors name file, tensor or key, what
 * was found and what was expected; FO_EUNSUPPORTED names the architecture or type; FO_ENOMEM has need, have, the die and the part
 * ("weights", "kv", "compute"); FO_EINVAL says why parts are no split of this model. */
int pn_model_open(const char *path, const struct pn_model_opts *opts, struct pn_model **ret, struct fo_err *e);
void pn_model_free(struct pn_model *m); /* NULL is allowed; no sequence of it exists any more */

/* The first steps, for whoever loads, before a worker has the model: on dies with memory of their own the largest that may come (all slots, the longest
 * chunk, at the end of the context), so that nothing is left to be found out or allocated by a request; on the host one token, and the memory of a
 * step is touched. What a step failed with, FO_ENOMEM, and as pn_model_state. */
int pn_model_try(struct pn_model *m, struct fo_err *e);

/* A number that is another one when any of the model's files is: replaced, written to, added, removed. 0: there is none. One stat a file. */
uint64_t pn_model_identity(const char *path);
/* Whether one file by itself (of a model in shards: a shard) is GGUF and all there, whatever is in it and wherever it lies. What fo_gguf_open says. */
int pn_model_check_file(const char *path, struct fo_err *e);
/* What people call a model that has no other name: its file's without folder, ".gguf" and the number of a shard, or its directory's.
 * *ret_len bytes within `path`. */
const char *pn_model_path_name(const char *path, size_t *ret_len);

/* The memory a model would take with these options, from its header alone: nothing is allocated on the device; the tokenizer is
 * opened for its size and closed again. A file that this build cannot serve is no failure: *ret is filled as far as it could be read and ret_why (else "") says why.
 * `path` in *ret is the caller's; its other strings are valid until this thread's next call. FO_ENOMEM, and what opening the file says. */
int pn_model_measure(const char *path, const struct pn_model_opts *opts, struct pn_model_info *ret, char *ret_why, size_t why_size,
                     struct fo_err *e);

/* What a model would take wherever it is placed, so that a planner can place it: sums of these are what pn_model_measure gives for parts, and
 * what pn_model_open allocates. */
struct pn_estimate {
    uint32_t ctx_cap, max_sessions, max_concurrent; /* resolved */
    uint32_t n_layer;
    uint64_t *layer_bytes;    /* [n_layer] weights */
    uint64_t *layer_kv_bytes; /* [n_layer] */
    uint64_t input_bytes;     /* weights on the die of the first layer */
    uint64_t output_bytes;    /* weights on the die of the last layer */
    uint64_t tied_bytes;      /* weights of the input that the last layer's die needs too, when it is another one */
    uint64_t scratch_bytes;   /* on each die */
    uint64_t logits_bytes;    /* scratch besides, on the die of the last layer */
    uint64_t host_bytes;      /* on the host, as long as it is loaded: the rows of a step, sessions, what drafts are looked up in, the tokenizer */
    uint64_t staging_bytes;   /* on the host, while it is loaded onto a die that does not read the file where it is mapped */
};
/* As pn_model_measure, for the die o->dev stands for (parts are not read). *ret is filled only when the file can be served (ret_why is ""
 * then): pn_estimate_done it. */
int pn_model_estimate(const char *path, const struct pn_model_opts *o, struct pn_estimate *ret, char *ret_why, size_t why_size, struct fo_err *e);
void pn_estimate_done(struct pn_estimate *est);

const struct pn_model_info *pn_model_info(const struct pn_model *m);
const struct fo_gguf *pn_model_gguf(const struct pn_model *m);
const struct fo_tok *pn_model_tok(const struct pn_model *m);   /* NULL when has_tokenizer is false */
const struct pn_chat *pn_model_chat(const struct pn_model *m); /* NULL when has_tokenizer is false */

/* FO_OK, or FO_ELOST with the reason: the file under the weights changed, or the device is gone. Asked after every step, before
 * its tokens are shown. */
int pn_model_state(const struct pn_model *m, struct fo_err *e);

/* As pn_model_state, and asks each die. For the worker, when it has nothing else to do. */
int pn_model_check(struct pn_model *m, struct fo_err *e);

/* --- sequences: a timeline of tokens with its KV. Owned by the model's one worker thread; nothing here is thread-safe. --- */
int pn_seq_new(struct pn_model *m, struct pn_seq **ret, struct fo_err *e);
void pn_seq_free(struct pn_seq *s); /* gives its pages back; NULL is allowed */
/* Keeps the first n tokens (n <= pn_seq_len), releases the pages behind. A family with recurrent state keeps what its last checkpoint before
 * n has, one with a sliding window none when what the n-th token would see is gone already, and of a page that another sequence holds too
 * nothing is kept unless all of it is: returns what was kept. */
uint32_t pn_seq_truncate(struct pn_seq *s, uint32_t n);
/* Of n tokens (n >= 1) that a step appends behind one more, how many may be taken back afterwards: all but under a sliding window, where the
 * step must not let go of what the tokens that stay still see. A family with recurrent state: 0. */
uint32_t pn_seq_drafts(const struct pn_seq *s, uint32_t n);
/* Takes back what the last step appended behind the first n tokens, as far as pn_seq_drafts allowed. What was reserved stays so. */
void pn_seq_take_back(struct pn_seq *s, uint32_t n);
uint32_t pn_seq_pages(const struct pn_seq *s); /* pages held */
uint32_t pn_seq_len(const struct pn_seq *s);
const int32_t *pn_seq_tokens(const struct pn_seq *s); /* [pn_seq_len] */
/* Of n more tokens of a prompt, how many the next step should append: all but in a family with recurrent state, whose steps end where a
 * checkpoint is due. At least 1. */
uint32_t pn_seq_chunk(const struct pn_seq *s, uint32_t n);
/* Makes sure that the sequence can grow to n tokens (pages taken now; under a sliding window as many as it ever holds at a time). FO_ENOMEM with need and have in pages, or blocks of
 * recurrent state; FO_EBUDGET past ctx_cap. */
int pn_seq_reserve(struct pn_seq *s, uint32_t n, struct fo_err *e);
uint64_t pn_model_free_pages(const struct pn_model *m);

/* --- the forward pass --- */
enum pn_want {
    PN_WANT_NONE,
    PN_WANT_LAST, /* logits */
    PN_WANT_ALL,
    PN_WANT_FIRST_STATE, /* states after the output norm, without logits (pn_model_states) */
    PN_WANT_LAST_STATE,
    PN_WANT_ALL_STATES
};
struct pn_batch_item {
    struct pn_seq *seq;    /* each at most once in a batch */
    const int32_t *tokens; /* [n] to append at pn_seq_len */
    uint32_t n;
    enum pn_want want;     /* of which rows, and what */
};
/* Appends the tokens and computes. *ret_logits is [rows whose logits are wanted][n_vocab] in item order, valid until the next call. The total of n is
 * at most max_batch, n_items at most max_concurrent. Allocates nothing (pages are reserved before). On failure the sequences are as before the
 * call. Results for a sequence do not depend on its batch mates, its chunking, or the number of threads. */
int pn_model_forward(struct pn_model *m, const struct pn_batch_item *items, int n_items, float **ret_logits, struct fo_err *e);
/* The states of the last pn_model_forward, which must have succeeded: [rows whose states are wanted][n_embd] in item order. Valid until the
 * next. */
const float *pn_model_states(const struct pn_model *m);
