/* Running a program: see pda.h.
 *
 * A step takes every place whose set has the byte and walks from behind it to all ops that read a byte, through calls, returns and loops.
 * Where ways part (a split, a loop's end) the walk notes having been there with this very stack and never goes twice, so that its length is
 * bounded by what there is and not by the number of ways. The places found are sorted, so that equal states are equal arrays. */
#include "engine/grammar/pda.h"

#include <stdlib.h>
#include <string.h>

#include "engine/grammar/ir.h"
#include "foundry/base/err.h"

enum { IS_LOOP = 1u << 31, UNKNOWN = UINT32_MAX /* as `what`: the rest of this stack was left out */, IS_UNKNOWN = 1 };

/* --- memory ------------------------------------------------------------------------------------ */
/* Room for one item more in an array of `size` bytes each. */
static int room(struct pn_pda *a, void *array, uint32_t *cap, uint32_t n, uint32_t more, size_t size, struct fo_err *e) {
    void *at;
    if (n + more <= *cap) return 0;
    uint32_t to = *cap ? *cap * 2 : 32;
    while (to < n + more) to *= 2;
    size_t add = (size_t)(to - *cap) * size;
    if (a->bytes + add > a->hard_bytes)
        return fo_fail_need(e, FO_ELIMIT, a->bytes + add, a->hard_bytes, "the grammar is too ambiguous here: following it would take more than %zu KiB", a->hard_bytes >> 10);
    memcpy(&at, array, sizeof at);
    at = realloc(at, to * size);
    if (!at) return fo_fail(e, FO_ENOMEM, "no memory for following a grammar");
    memcpy(array, &at, sizeof at);
    *cap = to;
    a->bytes += add;
    return 0;
}

/* An index of at least twice the items, rebuilt with hash_of(item). */
static int index_room(struct pn_pda *a, uint32_t **index, unsigned *bits, uint32_t n, uint32_t (*hash_of)(const struct pn_pda *, uint32_t), struct fo_err *e) {
    if (*index && (uint64_t)(n + 1) * 2 <= 1ULL << *bits) return 0;
    unsigned to = *index ? *bits + 1 : 6;
    uint32_t *fresh = calloc((size_t)1 << to, sizeof *fresh);
    if (!fresh) return fo_fail(e, FO_ENOMEM, "no memory for following a grammar");
    for (uint32_t i = 1; i < n; i++) {
        uint32_t at = hash_of(a, i) >> (32 - to);
        while (fresh[at]) at = (at + 1) & ((1u << to) - 1);
        fresh[at] = i;
    }
    a->bytes += ((size_t)1 << to) * sizeof *fresh - (*index ? ((size_t)1 << *bits) * sizeof *fresh : 0);
    free(*index);
    *index = fresh;
    *bits = to;
    return 0;
}

static uint32_t mix(uint32_t hash, uint32_t v) {
    uint64_t x = ((uint64_t)hash << 32 | v) * 0x9E3779B97F4A7C15u;
    return (uint32_t)(x >> 32) ^ (uint32_t)x;
}

static uint32_t last_mix(uint32_t hash) {
    return (hash ^ hash >> 15) * 0x2C1B3C6Du; /* the index takes the leading bits */
}

static uint32_t frame_hash(const struct pn_pda *a, uint32_t i) {
    const struct pn_frame *f = &a->frames[i];
    return last_mix(mix(mix(mix(1, f->below), f->what), f->count));
}

static uint32_t places_hash(const struct pn_place *p, uint32_t n, bool may_end) {
    uint32_t hash = mix(n, may_end);
    for (uint32_t i = 0; i < n; i++) hash = mix(mix(hash, p[i].op), p[i].stack);
    return last_mix(hash);
}

static uint32_t state_hash(const struct pn_pda *a, uint32_t i) {
    const struct pn_state *s = &a->states[i];
    return places_hash(a->places + s->at, s->n, s->may_end);
}

/* --- stacks ------------------------------------------------------------------------------------ */
/* The frame (what, count) on top of `below`. */
static int push(struct pn_pda *a, uint32_t below, uint32_t what, uint32_t count, uint32_t *ret, struct fo_err *e) {
    struct pn_frame f = { .below = below, .what = what, .count = count, .depth = (below ? a->frames[below].depth : 0) + 1 };
    if (index_room(a, &a->frame_index, &a->frame_bits, a->n_frames, frame_hash, e)) return e->code;
    if (room(a, &a->frames, &a->cap_frames, a->n_frames, 1, sizeof f, e)) return e->code;
    a->frames[a->n_frames] = f;
    uint32_t mask = (1u << a->frame_bits) - 1, at = frame_hash(a, a->n_frames) >> (32 - a->frame_bits);
    for (; a->frame_index[at]; at = (at + 1) & mask) {
        const struct pn_frame *g = &a->frames[a->frame_index[at]];
        if (g->below == below && g->what == what && g->count == count) {
            *ret = a->frame_index[at];
            return 0;
        }
    }
    a->frame_index[at] = *ret = a->n_frames++;
    return 0;
}

/* --- a step ------------------------------------------------------------------------------------ */
static int put(struct pn_pda *a, struct pn_place **list, uint32_t *n, uint32_t *cap, uint32_t op, uint32_t stack, struct fo_err *e) {
    if (room(a, list, cap, *n, 1, sizeof **list, e)) return e->code;
    (*list)[(*n)++] = (struct pn_place){ op, stack };
    return 0;
}

/* Whether the walk has branched at this op with this stack before; notes it. `met` is an index of its own: open addressing, empty = op 0,
 * which never branches. */
static int branch(struct pn_pda *a, uint32_t op, uint32_t stack, bool *ret_before, struct fo_err *e) {
    if (a->n_met * 2 >= a->cap_met) {
        uint32_t old = a->cap_met;
        struct pn_place *from = a->met, *to = calloc(old ? (size_t)old * 2 : 64, sizeof *to);
        if (!to) return fo_fail(e, FO_ENOMEM, "no memory for following a grammar");
        a->cap_met = old ? old * 2 : 64;
        a->bytes += (a->cap_met - old) * sizeof *to;
        for (uint32_t i = 0; i < old; i++) {
            if (!from[i].op) continue;
            uint32_t at = mix(from[i].op, from[i].stack) & (a->cap_met - 1);
            while (to[at].op) at = (at + 1) & (a->cap_met - 1);
            to[at] = from[i];
        }
        free(from);
        a->met = to;
    }
    uint32_t at = mix(op, stack) & (a->cap_met - 1);
    for (; a->met[at].op; at = (at + 1) & (a->cap_met - 1))
        if (a->met[at].op == op && a->met[at].stack == stack) {
            *ret_before = true;
            return 0;
        }
    a->met[at] = (struct pn_place){ op, stack };
    a->n_met++;
    *ret_before = false;
    return 0;
}

static int todo(struct pn_pda *a, uint32_t op, uint32_t stack, struct fo_err *e) {
    return put(a, &a->todo, &a->n_todo, &a->cap_todo, op, stack, e);
}

/* A counter that cannot come to one of its bounds within n rounds is as good as any other such. */
static uint32_t far_count(const struct pn_loop *l, uint32_t count, uint32_t n) {
    if (count < l->min) return l->min - count > n ? 0 : count;
    return l->max == PN_IR_INFINITE || l->max - count > n ? l->min : count;
}

/* The end of a round of the loop whose frame is on top. */
static int loop_end(struct pn_pda *a, uint32_t stack, struct fo_err *e) {
    struct pn_frame f = a->frames[stack];
    const struct pn_loop *l = &a->p->loops[f.what & ~IS_LOOP];
    uint32_t count = far_count(l, f.count + 1, a->horizon), again;
    if (l->max == PN_IR_INFINITE || count < l->max)
        if (push(a, f.below, f.what, count, &again, e) || todo(a, l->body, again, e)) return e->code;
    return count >= l->min ? todo(a, l->exit, f.below, e) : 0;
}

/* Follows one way until it parts, reads or ends. */
static int follow(struct pn_pda *a, uint32_t op, uint32_t stack, struct fo_err *e) {
    for (;;) {
        const struct pn_op *o = &a->p->ops[op];
        bool before;
        if (++a->work > a->work_end) break;
        switch ((enum pn_op_kind)o->kind) {
        case PN_OP_BYTE: return put(a, &a->next, &a->n_next, &a->cap_next, op, stack, e);
        case PN_OP_RETURN:
            if (stack == 0) {
                a->may_end = true;
                return 0;
            }
            if (a->frames[stack].what == UNKNOWN) {
                a->unknown = true;
                return 0;
            }
            op = a->frames[stack].what;
            stack = a->frames[stack].below;
            break;
        case PN_OP_SPLIT:
            if (branch(a, op, stack, &before, e)) return e->code;
            if (before) return 0;
            for (uint32_t i = 0; i < o->b; i++)
                if (todo(a, a->p->targets[o->a + i], stack, e)) return e->code;
            return 0;
        case PN_OP_CALL:
            if (stack && a->frames[stack].depth >= PN_PDA_MAX_FRAMES) return 0;
            if (push(a, stack, o->b, 0, &stack, e)) return e->code;
            op = o->a;
            break;
        case PN_OP_JUMP: op = o->a; break;
        case PN_OP_ENTER: {
            const struct pn_loop *l = &a->p->loops[o->a];
            if (branch(a, op, stack, &before, e)) return e->code;
            if (before) return 0;
            if (l->min == 0 && todo(a, l->exit, stack, e)) return e->code;
            if (stack && a->frames[stack].depth >= PN_PDA_MAX_FRAMES) return 0;
            if (push(a, stack, o->a | IS_LOOP, 0, &stack, e)) return e->code;
            op = l->body;
            break;
        }
        case PN_OP_LOOP:
            if (a->frames[stack].what == UNKNOWN) {
                a->unknown = true;
                return 0;
            }
            if (branch(a, op, stack, &before, e)) return e->code;
            return before ? 0 : loop_end(a, stack, e);
        }
    }
    return fo_fail_need(e, FO_ELIMIT, PN_PDA_MAX_WALK, PN_PDA_MAX_WALK, "the grammar is too ambiguous here: from one byte to the next there are more than %d steps", PN_PDA_MAX_WALK);
}

static int by_place(const void *x, const void *y) {
    const struct pn_place *p = x, *q = y;
    if (p->op != q->op) return p->op < q->op ? -1 : 1;
    return p->stack < q->stack ? -1 : p->stack > q->stack;
}

/* What the walk found, as a state. */
static uint32_t settle(struct pn_pda *a, struct fo_err *e) {
    uint32_t n = 0;
    if (a->n_next > 1) qsort(a->next, a->n_next, sizeof *a->next, by_place);
    for (uint32_t i = 0; i < a->n_next; i++)
        if (n == 0 || by_place(&a->next[n - 1], &a->next[i]) != 0) a->next[n++] = a->next[i];
    if (a->unknown) return PN_STATE_UNKNOWN;
    if (n == 0 && !a->may_end) return PN_STATE_DEAD;
    if (n > PN_PDA_MAX_PLACES) {
        fo_fail_need(e, FO_ELIMIT, n, PN_PDA_MAX_PLACES, "the grammar is too ambiguous here: a text may be read in more than %d ways at once", PN_PDA_MAX_PLACES);
        return PN_STATE_NONE;
    }
    if (index_room(a, &a->state_index, &a->state_bits, a->n_states, state_hash, e)) return PN_STATE_NONE;
    uint32_t mask = (1u << a->state_bits) - 1, at = places_hash(a->next, n, a->may_end) >> (32 - a->state_bits);
    for (; a->state_index[at]; at = (at + 1) & mask) {
        const struct pn_state *s = &a->states[a->state_index[at]];
        if (s->n == n && s->may_end == a->may_end && memcmp(a->places + s->at, a->next, n * sizeof *a->next) == 0)
            return a->state_index[at];
    }
    if (room(a, &a->states, &a->cap_states, a->n_states, 1, sizeof *a->states, e)) return PN_STATE_NONE;
    if (room(a, &a->places, &a->cap_places, a->n_places, n, sizeof *a->places, e)) return PN_STATE_NONE;
    if (n > 0) memcpy(a->places + a->n_places, a->next, n * sizeof *a->next);
    a->states[a->n_states] = (struct pn_state){ .at = a->n_places, .n = n, .row = PN_STATE_NONE, .may_end = a->may_end };
    a->n_places += n;
    return a->state_index[at] = a->n_states++;
}

static void begin(struct pn_pda *a) {
    if (a->n_met > 0) memset(a->met, 0, a->cap_met * sizeof *a->met);
    a->n_next = a->n_todo = a->n_met = 0;
    a->may_end = a->unknown = false;
    a->work_end = a->work + PN_PDA_MAX_WALK;
}

static uint32_t walk(struct pn_pda *a, struct fo_err *e) {
    while (a->n_todo > 0) {
        struct pn_place t = a->todo[--a->n_todo];
        if (follow(a, t.op, t.stack, e)) return PN_STATE_NONE;
    }
    return settle(a, e);
}

uint32_t pn_pda_start(struct pn_pda *a, struct fo_err *e) {
    begin(a);
    return todo(a, a->p->start, 0, e) ? PN_STATE_NONE : walk(a, e);
}

uint32_t pn_pda_step(struct pn_pda *a, uint32_t state, uint8_t byte, struct fo_err *e) {
    uint32_t n_classes = a->p->n_classes, c = a->p->class_of[byte];
    struct pn_state *s = &a->states[state];
    if (s->row == PN_STATE_NONE) {
        if (state == PN_STATE_DEAD) return PN_STATE_DEAD;
        if (room(a, &a->rows, &a->cap_rows, a->n_rows, n_classes, sizeof *a->rows, e)) return PN_STATE_NONE;
        s->row = a->n_rows;
        memset(a->rows + a->n_rows, 0xFF, n_classes * sizeof *a->rows);
        a->n_rows += n_classes;
    }
    if (a->rows[s->row + c] != PN_STATE_NONE) return a->rows[s->row + c];
    begin(a);
    for (uint32_t i = 0; i < s->n; i++) {
        struct pn_place p = a->places[s->at + i];
        const struct pn_op *o = &a->p->ops[p.op];
        if (!(a->p->sets[(size_t)o->a * 4 + (byte >> 6)] >> (byte & 63) & 1)) continue;
        if (todo(a, o->b, p.stack, e)) return PN_STATE_NONE;
    }
    uint32_t to = walk(a, e);
    if (to != PN_STATE_NONE) a->rows[a->states[state].row + c] = to; /* the states may have moved */
    return to;
}

/* --- coming, keeping, going -------------------------------------------------------------------- */
int pn_pda_new(const struct pn_program *p, uint32_t horizon, size_t soft_bytes, size_t hard_bytes, struct pn_pda **ret, struct fo_err *e) {
    struct pn_pda *a = calloc(1, sizeof *a);
    if (!a) return fo_fail(e, FO_ENOMEM, "no memory for following a grammar");
    a->p = p;
    a->horizon = horizon;
    a->soft_bytes = a->full_bytes = soft_bytes;
    a->hard_bytes = hard_bytes;
    if (room(a, &a->frames, &a->cap_frames, 0, 1, sizeof *a->frames, e) || room(a, &a->states, &a->cap_states, 0, 1, sizeof *a->states, e)) {
        pn_pda_free(a);
        return e->code;
    }
    a->frames[0] = (struct pn_frame){ 0 };
    a->states[0] = (struct pn_state){ .row = PN_STATE_NONE };
    a->n_frames = a->n_states = 1;
    *ret = a;
    return 0;
}

static void done(struct pn_pda *a) {
    free(a->frames);
    free(a->places);
    free(a->states);
    free(a->rows);
    free(a->frame_index);
    free(a->state_index);
    free(a->next);
    free(a->todo);
    free(a->met);
}

void pn_pda_free(struct pn_pda *a) {
    if (!a) return;
    done(a);
    free(a);
}

/* A stack of `from` as one of `a`; see pn_pda_import. */
static int import_stack(struct pn_pda *a, const struct pn_pda *from, uint32_t stack, uint32_t n_frames, uint32_t *ret, struct fo_err *e) {
    uint32_t list[PN_PDA_MAX_FRAMES], n = 0, top = 0;
    for (; stack && n < n_frames && n < PN_PDA_MAX_FRAMES; stack = from->frames[stack].below) list[n++] = stack;
    if (stack && push(a, 0, UNKNOWN, IS_UNKNOWN, &top, e)) return e->code;
    while (n-- > 0) {
        const struct pn_frame *f = &from->frames[list[n]];
        bool loop = f->what & IS_LOOP && f->what != UNKNOWN;
        if (push(a, top, f->what, loop ? far_count(&a->p->loops[f->what & ~IS_LOOP], f->count, a->horizon) : f->count, &top, e)) return e->code;
    }
    *ret = top;
    return 0;
}

uint32_t pn_pda_import(struct pn_pda *a, const struct pn_pda *from, uint32_t state, uint32_t n_frames, struct fo_err *e) {
    if (state == PN_STATE_DEAD) return PN_STATE_DEAD;
    const struct pn_state *s = &from->states[state];
    begin(a);
    a->may_end = s->may_end;
    for (uint32_t i = 0; i < s->n; i++) {
        uint32_t stack;
        if (import_stack(a, from, from->places[s->at + i].stack, n_frames, &stack, e)) return PN_STATE_NONE;
        if (put(a, &a->next, &a->n_next, &a->cap_next, from->places[s->at + i].op, stack, e)) return PN_STATE_NONE;
    }
    return settle(a, e);
}

int pn_pda_keep(struct pn_pda *a, uint32_t *states, uint32_t n, struct fo_err *e) {
    struct pn_pda *fresh;
    if (pn_pda_new(a->p, a->horizon, a->soft_bytes, a->hard_bytes, &fresh, e)) return e->code;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t to = pn_pda_import(fresh, a, states[i], UINT32_MAX, e);
        if (to == PN_STATE_NONE) {
            pn_pda_free(fresh);
            return e->code;
        }
        states[i] = to;
    }
    fresh->work = a->work;
    if (fresh->bytes * 2 > fresh->full_bytes) fresh->full_bytes = fresh->bytes * 2; /* else it would be full again at once */
    done(a);
    *a = *fresh;
    free(fresh);
    return 0;
}
