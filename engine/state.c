/* Blocks of recurrent state: see state.h. */
#include "engine/state.h"

#include <assert.h>
#include <string.h>

#include "engine/kv.h"
#include "foundry/base/arena.h"
#include "foundry/base/err.h"

int pn_states_layout(struct pn_states *p, struct fo_arena *host, struct fo_err *e) {
    uint64_t list, refs;
    if (p->n_blocks == 0) return FO_OK;
    if (fo_arena_take(host, p->n_blocks * sizeof *p->free_blocks, _Alignof(uint32_t), &list, e) ||
        fo_arena_take(host, p->n_blocks * sizeof *p->refs, _Alignof(uint32_t), &refs, e))
        return e->code;
    p->free_blocks = fo_arena_ptr(host, list);
    p->refs = fo_arena_ptr(host, refs);
    return FO_OK;
}

void pn_states_clear(struct pn_states *p) {
    p->n_free = p->n_blocks;
    p->n_promised = 0;
    for (uint32_t i = 0; i < p->n_blocks; i++) {
        p->free_blocks[i] = p->n_blocks - 1 - i;
        p->refs[i] = 0;
    }
}

uint32_t pn_states_take(struct pn_states *p) {
    assert(p->n_free > 0);
    uint32_t block = p->free_blocks[--p->n_free];
    p->refs[block] = 1;
    return block;
}

void pn_states_put(struct pn_states *p, uint32_t block) {
    if (block == PN_NO_BLOCK) return;
    assert(p->refs[block] > 0);
    if (--p->refs[block] == 0) p->free_blocks[p->n_free++] = block;
}

static uint32_t held(struct pn_states *p, uint32_t block) {
    p->refs[block]++;
    return block;
}

/* Blocks that nobody counts on. */
static uint32_t spare(const struct pn_states *p) {
    return p->n_free > p->n_promised + p->n_float ? p->n_free - p->n_promised - p->n_float : 0;
}

static void promise(struct pn_seq *s, bool promised) {
    if (s->state.promised != promised) s->kv->states.n_promised += promised ? 1 : UINT32_MAX;
    s->state.promised = promised;
}

int pn_state_reserve(struct pn_seq *s, struct fo_err *e) {
    const struct pn_states *p = &s->kv->states;
    if (p->n_blocks == 0 || s->state.promised || (s->state.block != PN_NO_BLOCK && p->refs[s->state.block] == 1)) return FO_OK;
    if (spare(p) == 0) return fo_fail_need(e, FO_ENOMEM, 1, 0, "state: one more block is needed and none of %u is free", p->n_blocks);
    promise(s, true);
    return FO_OK;
}

/* The last page boundary before the end of the prompt, whose last token is always computed. */
static uint32_t prompt_end(const struct pn_seq *s) {
    return s->state.prompt == 0 ? 0 : (s->state.prompt - 1) / s->kv->page_tokens * s->kv->page_tokens;
}

static bool ends_prompt(const struct pn_seq *s) {
    return s->len == prompt_end(s) || s->len + s->kv->page_tokens == prompt_end(s);
}

uint32_t pn_state_marks_to_come(const struct pn_seq *s) {
    uint32_t end = prompt_end(s), page = s->kv->page_tokens;
    return s->kv->states.n_blocks == 0 ? 0 : (end > s->len) + (end > page && end - page > s->len);
}

int pn_state_drop_mark(struct pn_seq *s, bool any) {
    struct pn_seq_state *st = &s->state;
    uint32_t n = st->n_marks > 2 ? st->n_marks - 2 : any && st->n_marks > 0, victim = 0, least = UINT32_MAX;
    for (uint32_t i = 0; i < n; i++) { /* the one whose neighbours are closest: those that stay are spread over the text */
        uint32_t after = i + 1 < st->n_marks ? st->marks[i + 1].len : s->len, before = i > 0 ? st->marks[i - 1].len : 0;
        if (after - before < least) least = after - before, victim = i;
    }
    if (n == 0) return 0;
    pn_states_put(&s->kv->states, st->marks[victim].block);
    memmove(&st->marks[victim], &st->marks[victim + 1], (--st->n_marks - victim) * sizeof *st->marks);
    if (st->block != PN_NO_BLOCK && s->kv->states.refs[st->block] == 1) promise(s, false); /* its own now, to be given back by its next step */
    return 1;
}

void pn_state_commit(struct pn_seq *s, uint32_t block) {
    pn_states_put(&s->kv->states, s->state.block);
    s->state.block = block;
    promise(s, false);
}

void pn_state_keep(struct pn_seq *s) {
    uint32_t page = s->kv->page_tokens, n = s->state.n_marks;
    if (s->state.prompt == 0 || s->len % page != 0 || (n > 0 && s->state.marks[n - 1].len == s->len)) return;
    bool end = ends_prompt(s), answers = s->len > s->state.prompt;
    if (!end && (s->len % (PN_MARK_PAGES * page) != 0 || (answers && n == PN_MAX_MARKS))) return;
    /* One of its own gives way, at the end of a prompt whichever. Nothing gives way to a long answer, of which a template may drop the thoughts. */
    if (spare(&s->kv->states) == 0 && !answers) pn_state_drop_mark(s, end);
    if (spare(&s->kv->states) == 0) return;
    pn_state_mark_end(s);
    promise(s, true);
}

void pn_state_mark_end(struct pn_seq *s) {
    struct pn_seq_state *st = &s->state;
    if (st->block == PN_NO_BLOCK || s->len % s->kv->page_tokens != 0 || (st->n_marks > 0 && st->marks[st->n_marks - 1].len == s->len)) return;
    if (st->n_marks == PN_MAX_MARKS) pn_state_drop_mark(s, false);
    st->marks[st->n_marks++] = (struct pn_mark){ s->len, held(&s->kv->states, st->block) };
}

uint32_t pn_state_mark(const struct pn_seq *s, uint32_t n) {
    uint32_t i = s->state.n_marks;
    while (i > 0 && s->state.marks[i - 1].len > n) i--;
    return i > 0 ? s->state.marks[i - 1].len : 0;
}

void pn_state_cut(struct pn_seq *s, uint32_t n) {
    struct pn_states *p = &s->kv->states;
    struct pn_seq_state *st = &s->state;
    if (n == s->len) return;
    while (st->n_marks > 0 && st->marks[st->n_marks - 1].len > n) pn_states_put(p, st->marks[--st->n_marks].block);
    pn_states_put(p, st->block);
    assert(n == 0 || st->marks[st->n_marks - 1].len == n);
    st->block = n == 0 ? PN_NO_BLOCK : held(p, st->marks[st->n_marks - 1].block);
}

void pn_state_share(const struct pn_seq *from, uint32_t n, struct pn_seq *to) {
    struct pn_states *p = &to->kv->states;
    for (uint32_t i = 0; i < from->state.n_marks && from->state.marks[i].len <= n; i++) {
        to->state.marks[i] = from->state.marks[i];
        held(p, to->state.marks[i].block);
        to->state.n_marks = i + 1;
    }
    assert(to->state.n_marks > 0 && to->state.marks[to->state.n_marks - 1].len == n);
    to->state.block = held(p, to->state.marks[to->state.n_marks - 1].block);
}

void pn_state_move(struct pn_seq *from, struct pn_seq *to) {
    promise(from, false);
    to->state = from->state;
    from->state = (struct pn_seq_state){ .block = PN_NO_BLOCK };
}

void pn_state_free(struct pn_seq *s) {
    promise(s, false);
    while (pn_state_drop_mark(s, true)) {}
    pn_states_put(&s->kv->states, s->state.block);
    s->state.block = PN_NO_BLOCK;
}

uint32_t pn_state_chunk(const struct pn_seq *s, uint32_t n) {
    uint32_t page = s->kv->page_tokens, every = PN_MARK_PAGES * page, end = prompt_end(s);
    if (s->kv->states.n_blocks == 0 || s->state.prompt == 0) return n;
    const uint32_t at[] = { (s->len / every + 1) * every, end, end > page ? end - page : 0 };
    for (size_t i = 0; i < sizeof at / sizeof *at; i++)
        if (at[i] > s->len && at[i] - s->len < n) n = at[i] - s->len;
    return n;
}
