/* Masks: see masks.h.
 *
 * The walk goes through the trie in depth-first order with the state behind each byte of the way on a stack; a byte that leads nowhere skips
 * all that begins with it. Nearly every step is a look into the automaton's table: what costs is the trie, about a hundred thousand nodes for
 * a vocabulary of fifty thousand where everything is allowed, and a handful where little is. Where much is allowed it mostly is inside some
 * text, in a state that its bytes lead back to: what stands below such a node is allowed without walking, when all bytes below do that.
 *
 * First the FIRST_FRAMES frames on top of each stack are looked at alone, so that all depths of nesting share their masks. Where the tokens
 * could reach below, that is noted as the state's answer (mask NULL) and more frames are taken. */
#include "engine/grammar/masks.h"

#include <stdlib.h>
#include <string.h>

#include "foundry/base/err.h"

enum { FIRST_FRAMES = 16, MIN_MASKS = 16, MAX_MASKS = 1024, SLOTS = MAX_MASKS * 2 };

struct pn_masks {
    const struct pn_tokens *v;
    struct pn_pda *a;
    uint32_t n_words, max_masks, n_masks, n_known;
    struct slot {
        uint32_t state; /* of a; 0 = empty */
        struct pn_mask *mask; /* NULL: not decided by these frames */
    } slots[SLOTS];
    struct pn_mask **masks; /* [max_masks] made so far; [n_masks] in use */
    uint32_t n_made;
    uint32_t *path;         /* [longest + 1] */
    uint64_t hits, walks;
};

/* A word more than there are tokens for: where nodes that end no token set their bit. */
static size_t mask_bytes(const struct pn_masks *m) {
    return sizeof(struct pn_mask) + ((size_t)m->n_words + 1) * 8;
}

int pn_masks_new(const struct pn_program *p, const struct pn_tokens *v, struct pn_masks **ret, struct fo_err *e) {
    struct pn_masks *m = calloc(1, sizeof *m);
    if (!m) return fo_fail(e, FO_ENOMEM, "no memory for the masks of a grammar");
    m->v = v;
    m->n_words = ((uint32_t)v->n_vocab + 63) / 64;
    size_t fit = PN_MASKS_BYTES / mask_bytes(m);
    m->max_masks = fit < MIN_MASKS ? MIN_MASKS : fit > MAX_MASKS ? MAX_MASKS : (uint32_t)fit;
    m->masks = calloc(m->max_masks, sizeof *m->masks);
    m->path = malloc(((size_t)v->longest + 1) * sizeof *m->path);
    int rc = pn_pda_new(p, v->longest, PN_MASKS_BYTES, PN_MASKS_BYTES * 4u, &m->a, e);
    if (rc == 0 && (!m->masks || !m->path)) rc = (int)fo_fail(e, FO_ENOMEM, "no memory for the masks of a grammar");
    if (rc != 0) {
        pn_masks_free(m);
        return rc;
    }
    *ret = m;
    return 0;
}

void pn_masks_free(struct pn_masks *m) {
    if (!m) return;
    for (uint32_t i = 0; i < m->n_made; i++) free(m->masks[i]);
    free(m->masks);
    free(m->path);
    pn_pda_free(m->a);
    free(m);
}

static struct slot *slot_of(struct pn_masks *m, uint32_t state) {
    uint32_t at = state * 2654435761u % SLOTS;
    while (m->slots[at].state && m->slots[at].state != state) at = (at + 1) % SLOTS;
    return &m->slots[at];
}

static void forget(struct pn_masks *m) {
    memset(m->slots, 0, sizeof m->slots);
    m->n_masks = m->n_known = 0;
}

/* An empty mask that is not in use. */
static struct pn_mask *take(struct pn_masks *m, struct fo_err *e) {
    size_t bytes = mask_bytes(m);
    if (m->n_masks == m->max_masks) forget(m);
    if (m->n_masks == m->n_made) {
        struct pn_mask *fresh = malloc(bytes);
        if (!fresh) {
            fo_fail(e, FO_ENOMEM, "no memory for the masks of a grammar");
            return NULL;
        }
        m->masks[m->n_made++] = fresh;
    }
    return memset(m->masks[m->n_masks++], 0, bytes);
}

/* A step that is not in the table yet. The pool may have to forget: then path[0..depth) are numbers of the new one. */
static uint32_t slow_step(struct pn_masks *m, uint32_t depth, uint8_t byte, uint64_t until, struct fo_err *e) {
    if (pn_pda_full(m->a)) {
        struct pn_mask *own = m->masks[m->n_masks - 1]; /* of this walk: it goes to the front, all others are free again */
        forget(m);
        for (uint32_t i = 0; i < m->n_made; i++)
            if (m->masks[i] == own) {
                m->masks[i] = m->masks[0];
                m->masks[0] = own;
            }
        m->n_masks = 1;
        if (pn_pda_keep(m->a, m->path, depth, e)) return PN_STATE_NONE;
    }
    if (m->a->work > until) {
        fo_fail_need(e, FO_ELIMIT, m->a->work, until, "the grammar is too ambiguous here: which tokens may come next takes too long to find out");
        return PN_STATE_NONE;
    }
    return pn_pda_step(m->a, m->path[depth - 1], byte, e);
}

/* The bytes that lead from a state back to it; all its steps are made for that. */
static int loops_of(struct pn_masks *m, uint32_t depth, uint64_t until, uint64_t ret[4], struct fo_err *e) {
    const struct pn_program *p = m->a->p;
    memset(ret, 0, 4 * sizeof *ret);
    for (uint32_t c = 0; c < p->n_classes; c++)
        if (slow_step(m, depth, p->byte_of[c], until, e) == PN_STATE_NONE) return e->code;
    uint32_t state = m->path[depth - 1], row = m->a->states[state].row;
    if (row == PN_STATE_NONE) return 0; /* forgotten since */
    for (unsigned b = 0; b < 256; b++) ret[b >> 6] |= (uint64_t)(m->a->rows[row + p->class_of[b]] == state) << (b & 63);
    return 0;
}

static inline void allow(struct pn_mask *mask, uint32_t id) {
    mask->bits[id >> 6] |= 1ULL << (id & 63);
}

static bool within(const uint64_t a[4], const uint64_t b[4]) {
    return !((a[0] & ~b[0]) | (a[1] & ~b[1]) | (a[2] & ~b[2]) | (a[3] & ~b[3]));
}

/* Fills the mask of path[0]; *ret_decided false: it depends on frames that were left out. */
static int walk(struct pn_masks *m, struct pn_mask *mask, bool *ret_decided, struct fo_err *e) {
    const struct pn_tokens *v = m->v;
    const struct pn_program *p = m->a->p;
    uint64_t until = m->a->work + PN_MASK_WORK, loops[4];
    uint32_t looping = PN_STATE_NONE; /* the state whose loops are known */
    *ret_decided = false;
    for (uint32_t i = 0; i < v->n_nodes;) {
        const struct pn_token_node *node = &v->nodes[i];
        uint32_t depth = node->depth, from = m->path[depth - 1], row = m->a->states[from].row;
        uint32_t to = row != PN_STATE_NONE ? m->a->rows[row + p->class_of[node->byte]] : PN_STATE_NONE;
        if (to == PN_STATE_NONE) {
            if ((to = slow_step(m, depth, node->byte, until, e)) == PN_STATE_NONE) return e->code;
            if (from != m->path[depth - 1]) looping = PN_STATE_NONE; /* numbers have changed */
            from = m->path[depth - 1];
        }
        if (to == PN_STATE_DEAD) {
            i = node->skip;
            continue;
        }
        if (to == PN_STATE_UNKNOWN) return 0;
        m->path[depth] = to;
        allow(mask, node->id);
        i++;
        if (to != from || !node->below) continue;
        if (looping != to) { /* in a text that goes on as it may: all that is below is allowed, whatever it is */
            if (loops_of(m, depth, until, loops, e)) return e->code;
            looping = m->path[depth - 1];
            m->path[depth] = looping;
        }
        if (within(v->below[node->below], loops))
            for (; i < node->skip; i++) allow(mask, v->nodes[i].id);
    }
    for (uint32_t i = 0; i < v->n_twins; i++)
        if (mask->bits[v->twins[i][1] >> 6] >> (v->twins[i][1] & 63) & 1) allow(mask, (uint32_t)v->twins[i][0]);
    for (uint32_t i = 0; i < m->n_words; i++) mask->n_allowed += (uint32_t)__builtin_popcountll(mask->bits[i]);
    *ret_decided = true;
    return 0;
}

/* The mask by the n_frames frames on top; NULL when they do not decide. */
static int get(struct pn_masks *m, const struct pn_pda *from, uint32_t state, uint32_t n_frames, const struct pn_mask **ret, struct fo_err *e) {
    if (pn_pda_full(m->a)) {
        forget(m);
        if (pn_pda_keep(m->a, NULL, 0, e)) return e->code;
    }
    uint32_t known = pn_pda_import(m->a, from, state, n_frames, e);
    if (known == PN_STATE_NONE) return e->code;
    const struct slot *s = slot_of(m, known);
    if (s->state) {
        m->hits++;
        *ret = s->mask;
        return 0;
    }
    if (m->n_known == SLOTS / 2) forget(m);
    struct pn_mask *mask = take(m, e);
    if (!mask) return e->code;
    bool decided;
    m->walks++;
    m->path[0] = known;
    if (walk(m, mask, &decided, e)) {
        forget(m); /* with the half of a mask */
        return e->code;
    }
    if (!decided) m->n_masks--; /* it was the last that was taken */
    *slot_of(m, m->path[0]) = (struct slot){ m->path[0], decided ? mask : NULL };
    m->n_known++;
    *ret = decided ? mask : NULL;
    return 0;
}

int pn_masks_get(struct pn_masks *m, const struct pn_pda *from, uint32_t state, const struct pn_mask **ret, struct fo_err *e) {
    const struct pn_mask *mask = NULL;
    for (uint32_t n = FIRST_FRAMES; !mask; n *= 4)
        if (get(m, from, state, n, &mask, e)) return e->code;
    *ret = mask;
    return 0;
}

size_t pn_masks_bytes(const struct pn_masks *m) {
    return sizeof *m + m->a->bytes + m->n_made * mask_bytes(m) + m->max_masks * sizeof *m->masks +
           ((size_t)m->v->longest + 1) * sizeof *m->path;
}

void pn_masks_stats(const struct pn_masks *m, struct pn_masks_stats *ret) {
    *ret = (struct pn_masks_stats){ .hits = m->hits, .walks = m->walks, .n_masks = m->n_masks, .n_states = m->a->n_states };
}
