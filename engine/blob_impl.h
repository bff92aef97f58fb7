/* Inside blobs, whose files are: blob.c (the form, and what a blob goes with), blob_save.c and blob_restore.c.
 *
 * All numbers are little-endian.
 *
 *     header     struct pn_blob_head: what it goes with, every count, its whole length; its own checksum last
 *     section    { u32 kind, u32 index, u64 bytes } payload { u64 checksum of both }, in this order and all of them:
 *       TOKENS   0                        [n_tokens] i32
 *       KINDS    0                        [n_pages] u8: 0 = a page of the pool's types, 1 = a small one (kv.h). With n_pages > 0
 *       STATE    0 .. n_blocks - 1        [n_layer][state_bytes]
 *       PAGE     first_page .. + n_pages  [n_layer][K and V of all heads]; behind the last token zeros
 *
 * The length of each follows from the header and the model, so nothing is allocated or skipped by a number that a section claims. Each section has its
 * own checksum, over its head too: none can be left out, doubled or put elsewhere. The checksum is against damage and carelessness; who may
 * write a session's tokens may have it say what they like anyway, and whatever the bytes are, they are no more than numbers that attention reads. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/blob.h"
#include "engine/state.h"
#include "engine/sched.h"
#include "foundry/base/err.h"

struct pn_model;
struct pn_sched;

enum pn_print_field {
    PN_PRINT_WEIGHTS,
    PN_PRINT_TOKENIZER,
    PN_PRINT_TEMPLATE,
    PN_PRINT_ROPE,
    PN_PRINT_VOCABULARY,
    PN_PRINT_LAYERS,
    PN_PRINT_HEADS,
    PN_PRINT_WINDOW,
    PN_PRINT_STATE,
    PN_PRINT_KV_K,
    PN_PRINT_KV_V,
    PN_PRINT_FLOOR_K,
    PN_PRINT_FLOOR_V,
    PN_PRINT_PAGE_TOKENS,
    PN_PRINT_PAGE_LAYOUT,
    PN_N_PRINT
};

/* What a blob goes with. */
struct pn_print {
    uint64_t field[PN_N_PRINT];
};
/* Reads samples of the weights where they are mapped. Any thread. */
void pn_print_of(const struct pn_model *m, struct pn_print *ret);
const char *pn_print_name(enum pn_print_field f);

enum { PN_BLOB_VERSION = 1 };
#define PN_BLOB_MAGIC "pnblob\r\n"

struct pn_blob_head {
    char magic[8];
    uint32_t version, head_bytes;
    uint64_t bytes; /* of all of it */
    struct pn_print print;
    uint32_t n_tokens, first_page, n_pages;
    uint32_t n_small; /* of n_pages */
    uint32_t n_blocks, newest, n_marks; /* 0 without recurrent state */
    uint32_t zero;
    struct pn_mark marks[PN_MAX_MARKS];
    uint64_t sum; /* of what stands before it */
};

enum pn_section_kind { PN_SECTION_TOKENS = 1, PN_SECTION_KINDS, PN_SECTION_STATE, PN_SECTION_PAGE };
struct pn_section_head {
    uint32_t kind, index;
    uint64_t bytes;
};
uint64_t pn_section_sum(const struct pn_section_head *h, const void *payload);

/* Bytes of a PAGE, of either kind, and of a STATE: of all layers. */
uint64_t pn_blob_page_bytes(const struct pn_model *m, bool small);
uint64_t pn_blob_state_bytes(const struct pn_model *m);
/* What a whole blob takes with these counts. */
uint64_t pn_blob_bytes(const struct pn_model *m, const struct pn_blob_head *h);
void pn_blob_seal(struct pn_blob_head *h); /* sets its checksum */
/* Whether the model can take a blob of this head, and all its counts hold together. FO_EFORMAT, FO_EUNSUPPORTED with *ret_field. */
int pn_blob_check(const struct pn_model *m, const struct pn_blob_head *h, const char **ret_field, struct fo_err *e);

/* What saving and restoring share: a hidden text of the prefix cache, and what its errands came to. The first member of either's own struct, which is
 * what errands are handed. */
struct pn_transfer {
    uint64_t hidden; /* 0 = none yet */
    int rc;
    struct fo_err err;
};
/* Runs an errand; its code, or that of not getting there. */
int pn_transfer_run(struct pn_sched *s, pn_sched_errand_fn *fn, struct pn_transfer *x, struct fo_err *e);
/* The hidden text's sequence, for an errand; NULL, and x's code is FO_ENOMEM, when it had to give way. */
struct pn_seq *pn_transfer_seq(struct pn_transfer *x, struct pn_prefix *p);
int pn_transfer_gave_way(struct pn_transfer *x);
/* Lets go of the hidden text, if there is one. */
void pn_transfer_end(struct pn_sched *s, struct pn_transfer *x);

/* Copies a page (of all layers, in the order of a blob) or a block of state to or from memory of the host. The worker's. FO_ELOST and the like. */
enum pn_blob_way { PN_BLOB_OUT, PN_BLOB_IN };
int pn_blob_move_page(struct pn_model *m, uint32_t page, enum pn_blob_way way, unsigned char *host, struct fo_err *e);
/* Stores zeros in a page's positions from `from` on: what stands there may be somebody else's. The worker's, between steps. */
int pn_blob_clear(struct pn_model *m, uint32_t page, uint32_t from, struct fo_err *e);
int pn_blob_move_state(struct pn_model *m, uint32_t block, enum pn_blob_way way, unsigned char *host, struct fo_err *e);
