/* Sessions as bytes: a kept text (prefix.h) of one model is written out, and comes back into this or another copy of the model, so that its next turn
 * computes only what is new. Bytes are handed over and asked for piece by piece, and pages move one by one between steps of the worker: memory stays
 * bounded, and answers go on meanwhile. What runs comes first: a text that is saved or restored gives way to it, and the call fails.
 *
 * A blob says what it goes with, field by field (pn_print): weights, tokenizer, template, types and layout of pages. It fits a model that says the
 * same, on whatever dies its layers lie: pages and states are kept by layer.
 *
 * Any thread, but the worker's; blocking. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct fo_err;
struct pn_model;
struct pn_served;

/* Where a blob goes. A code other than 0, with *e set, ends the call with it. */
struct pn_blob_sink {
    int (*begin)(void *ctx, uint64_t bytes, uint32_t tokens, struct fo_err *e); /* before all else: how long it will be. NULL = nobody wants to know */
    int (*write)(void *ctx, const void *bytes, size_t n, struct fo_err *e);
    void *ctx;
};
/* Where it comes from. `read` fills all n bytes; FO_EFORMAT when there are not so many. */
struct pn_blob_source {
    int (*read)(void *ctx, void *bytes, size_t n, struct fo_err *e);
    int (*end)(void *ctx, struct fo_err *e); /* whether nothing follows: FO_EFORMAT. NULL = that is nobody's business */
    void *ctx;
    bool spare; /* only memory that nothing is kept in is taken */
};

/* A text as lists have it. A value; strings are its owner's. */
struct pn_text_info {
    uint64_t id;       /* at its instance, as long as the text is kept */
    uint32_t tokens;
    uint64_t sum;      /* of these: texts with the same one are the same */
    double used_ms;    /* as pn_kept */
    char *tenant, *session; /* or NULL */
};

/* The text of a session that was used last, running ones included. Only id, tokens and used_ms are set. FO_ENOENT; FO_EUNAVAIL. */
int pn_served_text(struct pn_served *s, const char *tenant, const char *session, struct pn_text_info *ret, struct fo_err *e);
/* All idle texts, most recently used first; pn_texts_free. FO_EUNAVAIL, FO_ENOMEM. */
int pn_served_texts(struct pn_served *s, struct pn_text_info **ret, size_t *ret_n, struct fo_err *e);
void pn_texts_free(struct pn_text_info *list, size_t n);
/* Gives up the idle texts of a session. *ret_n is how many there were. FO_EUNAVAIL. */
int pn_served_drop(struct pn_served *s, const char *tenant, const char *session, uint32_t *ret_n, struct fo_err *e);

/* Writes a text out: all of an idle one, of one that runs the whole pages (with recurrent state up to the last checkpoint). FO_ENOENT when it is gone; FO_EBUSY: it
 * runs and there is nothing to save yet; FO_ENOMEM, also when it had to give way half-way; FO_EUNAVAIL, FO_ELOST, and what the sink says. */
int pn_served_save(struct pn_served *s, uint64_t id, const struct pn_blob_sink *to, uint32_t *ret_tokens, struct fo_err *e);
/* Reads one in and keeps it as this session's. Everything is checked before memory is taken for it, and nobody finds it before all of it is there.
 * *ret_tokens is what a prompt that goes on from it need not compute. FO_EFORMAT: cut, altered or no blob; FO_EUNSUPPORTED: it goes with something else, and
 * *ret_field (may be NULL; static) is what differs; FO_ENOMEM with need and have; FO_EUNAVAIL, FO_ELOST, and what the source says. On failure
 * everything is as it was, but for idle texts that had given way. */
int pn_served_restore(struct pn_served *s, const char *tenant, const char *session, const struct pn_blob_source *from, uint32_t *ret_tokens, const char **ret_field,
                      struct fo_err *e);

/* The longest blob that this model can make or take. */
uint64_t pn_blob_most_bytes(const struct pn_model *m);
/* Memory that a call of pn_served_save or pn_served_restore takes for itself. */
uint64_t pn_blob_work_bytes(const struct pn_model *m);
