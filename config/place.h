/* Placement: which dies one copy of a model goes to, and which layers on which. Gates are part of it: a place is one that has room for
 * weights, KV and scratch, and for what they take of the host. Pure; one owner. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "config/facts.h"

struct fo_buf;
struct fo_region;

enum { CF_MAX_PARTS = 64 };

/* Room and work space for one plan. The caller fills die_room and host_room before each call. */
struct cf_placer {
    const struct cf_facts *facts;
    uint64_t *die_room;     /* [n_dies]; 0 where it is lost */
    uint64_t host_room;     /* above the reserve */
    bool *taken;            /* [n_dies] another copy of the model is there: automatic placement goes elsewhere where it can */
    size_t *order;          /* [n_dies] */
    uint64_t *weights, *kv; /* [max_layers + 1] prefix sums */
    uint64_t *scaled;       /* [max_layers] */
    uint32_t *cut;          /* [max_parts * (max_layers + 1)] */
    struct cf_ratio *best;  /* [2 * (max_layers + 1)] */
    size_t max_layers, max_parts;
};

enum cf_placed {
    CF_PLACED,
    CF_TRUSTED, /* has no room; placed because it was told to trust */
    CF_NO_ROOM,
    CF_DIE_LOST,   /* a die that it must be on, or all; or none has been seen: waiting may help */
    CF_DIE_ABSENT, /* no such die, too few of them, or more dies than layers */
    CF_N_PLACED
};

struct cf_place {
    enum cf_placed kind;
    struct cf_part parts[CF_MAX_PARTS];
    size_t n_parts;
    uint64_t host_bytes, staging_bytes;
    uint64_t need, have; /* NO_ROOM, TRUSTED */
    char why[256];       /* not PLACED: "needs 139 MiB on s0 (...), where 120 MiB are free" */
};

/* FO_ENOMEM. */
int cf_placer_init(struct cf_placer *p, const struct cf_facts *f, struct fo_region *r, struct fo_err *e);

/* Places a model of this estimate (without error) on `dies`: none = wherever it fits whole, accelerators first, then the roomiest; "auto:N"
 * = split over N, accelerators as far as they can do it, then the roomiest; names = on those, split by layers where there are
 * several, so that the fullest die (its bytes by its room) is as empty as can be. */
void cf_place(struct cf_placer *p, const struct cf_estimate *est, const struct cf_names *dies, bool trust, struct cf_place *ret);

/* What would fit instead: "ctx_cap 2048; dies: s1; dies: auto:2". Appends nothing when nothing would. */
void cf_place_instead(struct cf_placer *p, const struct cf_estimate *est, const struct cf_names *dies, struct fo_buf *out);
