/* Kept texts: see prefix.h.
 *
 *     running   begun here and not ended: any order, a handful
 *     idle      least recently used first
 *
 * Looking through all of them for the longest common beginning compares at most the tokens that there is memory for, a page at a time and until
 * they differ: less than one op of a step. */
#include "engine/prefix.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "engine/index.h"
#include "engine/kv.h"
#include "engine/model.h"
#include "engine/wake.h"
#include "foundry/base/err.h"

enum {
    N_EVICTED = 1 << 12, /* pages of given up texts that are remembered */
    NAMES_BYTES = 64     /* of the tenant's and the session's names, usually */
};

struct text {
    struct text *prev, *next;
    struct pn_seq *seq; /* packed when idle */
    char *tenant, *session; /* or NULL */
    uint64_t id;
    double used_ms; /* when it began, became idle, or was of use to another then */
    bool idle;
    bool hidden;    /* idle, and found by nobody: pn_prefix_hold's or pn_prefix_room's */
    uint32_t listed; /* tokens whose chain is in the index while it runs */
    size_t bytes;   /* of host memory when idle */
};

struct list {
    struct text *first, *last;
};

struct pn_prefix {
    struct pn_model *m;
    struct pn_kv *kv;
    struct list running, idle;
    uint32_t n_idle;
    uint64_t last_id;
    uint64_t bytes, cap_bytes;  /* of idle texts */
    struct pn_index *index;
    uint64_t evicted[N_EVICTED]; /* chains, each at its remainder: a new one drives out an old one */
    uint32_t idle_refs[];        /* [pn_kv_numbers] how many idle texts hold a page */
};

/* --- small things ---------------------------------------------------------------------------- */
static void list_push(struct list *l, struct text *t) {
    t->prev = l->last;
    t->next = NULL;
    *(l->last ? &l->last->next : &l->first) = t;
    l->last = t;
}

static void list_remove(struct list *l, struct text *t) {
    *(t->prev ? &t->prev->next : &l->first) = t->next;
    *(t->next ? &t->next->prev : &l->last) = t->prev;
}

bool pn_same_name(const char *a, const char *b) {
    return a == b || (a && b && strcmp(a, b) == 0);
}

/* All tokens of `cap` texts of full length, and a text for each page. */
static uint64_t cap_bytes(const struct pn_kv *kv, uint32_t cap) {
    return cap * (pn_kv_seq_bytes(kv, kv->ctx_cap) + (uint64_t)kv->max_seq_pages * (sizeof(struct text) + sizeof(struct pn_seq) + NAMES_BYTES));
}

/* Pages whose chains are listed at most: those of the idle texts' tokens, and those that running ones begin with. */
static uint64_t most_chains(const struct pn_kv *kv, uint32_t cap) {
    return cap_bytes(kv, cap) / sizeof(int32_t) / kv->page_tokens + (uint64_t)cap * kv->max_seq_pages;
}

uint64_t pn_prefix_bytes(const struct pn_kv *kv, uint32_t cap) {
    return sizeof(struct pn_prefix) + pn_kv_numbers(kv) * sizeof(uint32_t) + cap_bytes(kv, cap) + pn_index_bytes(most_chains(kv, cap));
}

int pn_prefix_new(struct pn_model *m, uint32_t cap, struct pn_prefix **ret, struct fo_err *e) {
    struct pn_kv *kv = pn_model_kv(m);
    struct pn_prefix *p = calloc(1, sizeof *p + pn_kv_numbers(kv) * sizeof p->idle_refs[0]);
    if (!p) return fo_fail(e, FO_ENOMEM, "no memory for a cache of %llu pages", (unsigned long long)kv->n_pages);
    if (pn_index_new(most_chains(kv, cap), &p->index, e)) {
        free(p);
        return e->code;
    }
    p->m = m;
    p->kv = kv;
    p->cap_bytes = cap_bytes(kv, cap);
    *ret = p;
    return FO_OK;
}

/* --- what is listed -------------------------------------------------------------------------- */
/* Whether any page of a text is as good as any other to go on from. */
static bool anywhere(const struct pn_prefix *p) {
    return p->kv->window == 0 && p->kv->states.n_blocks == 0;
}

static void list_chain(struct pn_prefix *p, uint64_t chain, bool add) {
    (add ? pn_index_add : pn_index_drop)(p->index, chain);
}

/* The chains of the first n tokens of a text, of those pages behind which another could begin. */
static void list_pages(struct pn_prefix *p, const struct text *t, uint32_t n, bool add) {
    uint32_t page = p->kv->page_tokens;
    uint64_t chain = pn_chain_start(t->tenant);
    for (uint32_t at = page; at <= n; at += page) {
        chain = pn_chain_next(chain, t->seq->tokens + at - page, page);
        bool last = at + page > n; /* from there on the whole text may be moved */
        if (last || anywhere(p) || (t->idle && pn_kv_seq_start(t->seq, at) == at)) list_chain(p, chain, add);
    }
}

/* As list_pages of all of an idle text, whose pages nobody else may begin with while it is hidden. */
static void list_idle(struct pn_prefix *p, const struct text *t, bool add) {
    if (!t->hidden) list_pages(p, t, t->seq->len, add);
}

static void remember_evicted(struct pn_prefix *p, const struct text *t) {
    uint32_t page = p->kv->page_tokens;
    uint64_t chain = pn_chain_start(t->tenant);
    for (uint32_t at = page; at <= t->seq->len; at += page) {
        chain = pn_chain_next(chain, t->seq->tokens + at - page, page);
        p->evicted[chain % N_EVICTED] = chain;
    }
}

/* Whether the page behind the first n tokens was kept once. */
static bool was_evicted(const struct pn_prefix *p, const char *tenant, const int32_t *tokens, uint32_t n, uint32_t n_tokens) {
    uint32_t end = (n / p->kv->page_tokens + 1) * p->kv->page_tokens;
    if (end > n_tokens) return false;
    uint64_t chain = pn_chain_next(pn_chain_start(tenant), tokens, end);
    return p->evicted[chain % N_EVICTED] == chain;
}

/* --- coming and going ------------------------------------------------------------------------ */
static size_t text_bytes(const struct text *t) {
    return sizeof *t + pn_kv_seq_bytes(t->seq->kv, t->seq->room) + (t->tenant ? strlen(t->tenant) + 1 : 0) + (t->session ? strlen(t->session) + 1 : 0);
}

static void text_free(struct text *t) {
    if (!t) return;
    pn_seq_free(t->seq);
    free(t->tenant);
    free(t->session);
    free(t);
}

/* The idle texts without t, which is nobody's then. */
static void take_idle(struct pn_prefix *p, struct text *t) {
    list_idle(p, t, false);
    list_remove(&p->idle, t);
    for (uint32_t i = t->seq->first_page; i < t->seq->n_pages; i++) p->idle_refs[t->seq->pages[i]]--;
    p->n_idle--;
    p->bytes -= t->bytes;
    t->idle = false;
}

static void evict(struct pn_prefix *p, struct text *t) {
    if (!t->hidden) remember_evicted(p, t);
    take_idle(p, t);
    text_free(t);
}

static bool frees_something(const struct pn_prefix *p, const struct text *t) {
    for (uint32_t i = t->seq->first_page; i < t->seq->n_pages; i++)
        if (p->kv->refs[t->seq->pages[i]] == 1) return true;
    for (uint32_t i = 0; i < t->seq->state.n_marks; i++)
        if (p->kv->states.refs[t->seq->state.marks[i].block] == 1) return true;
    return t->seq->state.block != PN_NO_BLOCK && p->kv->states.refs[t->seq->state.block] == 1;
}

/* The least recently used, of those with this in common; NULL = there is none. */
static struct text *oldest(const struct pn_prefix *p, bool hidden_too, bool frees) {
    struct text *t = p->idle.first;
    while (t && ((t->hidden && !hidden_too) || (frees && !frees_something(p, t)))) t = t->next;
    return t;
}

int pn_prefix_evict(struct pn_prefix *p) {
    struct text *t = oldest(p, false, true);
    if (!t) t = oldest(p, true, true); /* who is saved or comes back does so again; who runs has been promised its memory */
    if (!t) t = p->idle.first;
    if (!t) return 0;
    evict(p, t);
    return 1;
}

int pn_prefix_evict_cold(struct pn_prefix *p, double before_ms) {
    struct text *with_state = NULL, *t = p->idle.first;
    for (; t && (t->hidden || t->used_ms >= before_ms || t->seq->state.block != PN_NO_BLOCK); t = t->next)
        if (!with_state && !t->hidden && t->used_ms < before_ms) with_state = t;
    if (!t) t = with_state;
    if (!t) return 0;
    evict(p, t);
    return 1;
}

uint32_t pn_prefix_forget(struct pn_prefix *p, const char *tenant, const char *session) {
    uint32_t n = 0;
    for (struct text *t = p->idle.first, *next; t; t = next) {
        next = t->next;
        if (t->hidden || !pn_same_name(t->tenant, tenant) || !pn_same_name(t->session, session)) continue;
        take_idle(p, t);
        text_free(t);
        n++;
    }
    return n;
}

void pn_prefix_free(struct pn_prefix *p) {
    if (!p) return;
    assert(!p->running.first);
    while (p->idle.first) evict(p, p->idle.first);
    pn_index_free(p->index);
    free(p);
}

uint32_t pn_prefix_count(const struct pn_prefix *p) {
    return p->n_idle;
}

/* Whether nobody but idle texts holds a page. */
static bool is_idle(const struct pn_prefix *p, uint64_t page) {
    return p->idle_refs[page] > 0 && p->idle_refs[page] == p->kv->refs[page];
}

/* Of the small pages in a place, those that idle texts alone hold. */
static uint32_t small_idle(const struct pn_prefix *p, uint64_t place) {
    const struct pn_kv *kv = p->kv;
    uint32_t n = 0;
    for (uint32_t i = 0; kv->n_small && kv->in_place[place] && i < kv->n_small; i++) n += is_idle(p, kv->n_pages + place * kv->n_small + i);
    return n;
}

uint64_t pn_prefix_pages(const struct pn_prefix *p) {
    const struct pn_kv *kv = p->kv;
    uint64_t n = 0;
    for (uint64_t i = 0; i < kv->n_pages; i++) n += is_idle(p, i) || (kv->n_small && kv->in_place[i] && small_idle(p, i) == kv->in_place[i]);
    return n;
}

/* Pages, of those that are taken now, that there would be room for without any idle text. */
static uint64_t most_room(const struct pn_prefix *p) {
    const struct pn_kv *kv = p->kv;
    if (!pn_kv_takes_small(kv)) return kv->n_free + pn_prefix_pages(p);
    uint64_t n = pn_kv_room(kv, true);
    for (uint64_t i = 0; i < kv->n_pages; i++) n += is_idle(p, i) ? kv->n_small : small_idle(p, i);
    return n;
}

uint32_t pn_prefix_requantise(struct pn_prefix *p, double before_ms, uint32_t most, int (*write)(void *ctx, uint32_t from, uint32_t to), void *ctx) {
    struct pn_kv *kv = p->kv;
    uint32_t n = 0;
    for (struct text *t = p->idle.first; kv->n_small && t && n < most; t = t->next) {
        if (t->hidden || t->used_ms >= before_ms) continue;
        for (uint32_t i = t->seq->first_page; i < t->seq->n_pages && n < most; i++) {
            uint32_t from = t->seq->pages[i];
            if (pn_kv_is_small(kv, from) || kv->refs[from] > 1) continue;
            uint32_t to = pn_kv_small_to(kv, from);
            if (write(ctx, from, to)) {
                if (pn_kv_place(kv, to) == from) evict(p, t); /* it may be half written over */
                return n;
            }
            pn_kv_made_small(kv, from, to);
            p->idle_refs[from] = 0;
            p->idle_refs[to] = 1;
            t->seq->pages[i] = to;
            n++;
        }
    }
    return n;
}

uint32_t pn_prefix_kept(const struct pn_prefix *p, const char *tenant, const int32_t *tokens, uint32_t n) {
    return n == 0 ? 0 : pn_index_find(p->index, tenant, tokens, n - 1, p->kv->page_tokens);
}

/* --- beginning ------------------------------------------------------------------------------- */
/* How many tokens s has in common with tokens[0..n). */
static uint32_t in_common(const struct pn_seq *s, const int32_t *tokens, uint32_t n) {
    uint32_t k = 0, page = s->kv->page_tokens;
    if (n > s->len) n = s->len;
    while (n - k >= page && memcmp(s->tokens + k, tokens + k, page * sizeof *tokens) == 0) k += page;
    while (k < n && s->tokens[k] == tokens[k]) k++;
    return k;
}

/* What is there for a prompt. */
struct found {
    struct text *best; /* NULL = nothing to begin with */
    uint32_t start;    /* tokens of it */
    bool any, whole;   /* something is kept for the tenant; all that the longest has is in the prompt */
    uint32_t common;   /* at its longest */
};

static void look_at(struct found *f, struct text *t, const char *tenant, const int32_t *tokens, uint32_t n) {
    if (t->hidden || !pn_same_name(t->tenant, tenant) || t->seq->len == 0) return;
    uint32_t common = in_common(t->seq, tokens, n), most = common < n ? common : n - 1;
    uint32_t start = t->idle && most == t->seq->len ? most : pn_kv_seq_start(t->seq, most);
    f->any = true;
    if (common > f->common) f->common = common, f->whole = false;
    f->whole |= common == f->common && common == t->seq->len;
    if (start > 0 && start >= f->start) f->best = t, f->start = start;
}

static struct found look(const struct pn_prefix *p, const char *tenant, const int32_t *tokens, uint32_t n) {
    struct found f = { 0 };
    for (struct text *t = p->running.first; t; t = t->next) look_at(&f, t, tenant, tokens, n);
    for (struct text *t = p->idle.first; t; t = t->next) look_at(&f, t, tenant, tokens, n);
    return f;
}

static enum pn_cache_miss why(const struct pn_prefix *p, const struct found *f, const char *tenant, const int32_t *tokens, uint32_t n) {
    uint32_t page = p->kv->page_tokens, most = f->common < n ? f->common : n - 1, best = (n - 1) / page * page;
    if (f->start >= best && (best > 0 || most == n - 1) && f->any) return PN_CACHE_FULL;
    if (f->start < most / page * page) return p->kv->states.n_blocks > 0 ? PN_CACHE_STATE : PN_CACHE_WINDOW;
    if (was_evicted(p, tenant, tokens, f->start, n)) return PN_CACHE_EVICTED;
    return !f->any ? PN_CACHE_EMPTY : f->whole && f->common > 0 ? PN_CACHE_FULL : PN_CACHE_DIVERGED;
}

/* Heap for a running text, with a sequence of full length. */
static struct text *text_new(struct pn_prefix *p, const char *tenant, struct fo_err *e) {
    struct text *t = calloc(1, sizeof *t);
    if (!t || (tenant && !(t->tenant = strdup(tenant)))) {
        free(t);
        fo_fail(e, FO_ENOMEM, "no memory for a sequence");
        return NULL;
    }
    if (pn_kv_seq_new(p->kv, p->kv->ctx_cap, &t->seq, e) == FO_OK) return t;
    text_free(t);
    return NULL;
}

int pn_prefix_begin(struct pn_prefix *p, const char *tenant, const int32_t *tokens, uint32_t n, struct pn_seq **ret, enum pn_cache_miss *ret_miss,
                    uint32_t *ret_shared, struct fo_err *e) {
    struct text *t;
    while (!(t = text_new(p, tenant, e)))
        if (!pn_prefix_evict(p)) return e->code;
    struct found f = look(p, tenant, tokens, n);
    *ret_miss = why(p, &f, tenant, tokens, n);
    *ret_shared = f.common;
    if (f.best && f.best->idle && f.start == f.best->seq->len) {
        take_idle(p, f.best);
        pn_kv_seq_move(f.best->seq, t->seq);
        f.best->seq = NULL;
        text_free(f.best);
    } else if (f.best) {
        pn_kv_seq_share(f.best->seq, f.start, t->seq);
        if (f.best->idle && p->kv->states.n_blocks == 0) { /* it was of use. Of blocks of state there are few, and those that were of use live on in t */
            list_remove(&p->idle, f.best);
            list_push(&p->idle, f.best);
            f.best->used_ms = pn_now_ms();
        }
    }
    t->id = ++p->last_id;
    t->used_ms = pn_now_ms();
    t->seq->state.prompt = n;
    t->listed = t->seq->len;
    list_pages(p, t, t->listed, true);
    list_push(&p->running, t);
    *ret = t->seq;
    return FO_OK;
}

/* Blocks of state that a running sequence holds for the future only. */
static int drop_marks(struct pn_prefix *p) {
    for (struct text *t = p->running.first; t; t = t->next)
        if (pn_state_drop_mark(t->seq, true)) return 1;
    return 0;
}

/* A block of state of the idle texts: a checkpoint that is not one of a text's last two, which its next turn needs, before any text. */
static int free_block(struct pn_prefix *p) {
    for (struct text *t = p->idle.first; t; t = t->next) {
        if (t->hidden || t->seq->state.n_marks <= 2) continue;
        list_pages(p, t, t->seq->len, false); /* nobody begins there any more */
        pn_state_drop_mark(t->seq, false);
        list_pages(p, t, t->seq->len, true);
        return 1;
    }
    return pn_prefix_evict(p);
}

int pn_prefix_reserve(struct pn_prefix *p, struct pn_seq *seq, uint32_t n, struct fo_err *e) {
    const struct pn_kv *kv = p->kv;
    const struct pn_states *st = &kv->states;
    uint32_t marks = pn_state_marks_to_come(seq); /* those it has may be others' too, and free nothing */
    while (st->n_blocks > 0 && st->n_free < st->n_promised + st->n_float + 1 + marks && free_block(p)) {}
    while (pn_seq_reserve(seq, n, e) != FO_OK) {
        if (e->code != FO_ENOMEM) return e->code;
        uint32_t pages = pn_kv_pages(kv, n);
        bool in_vain = kv->window == 0 && pages > seq->n_pages && pages - seq->n_pages > most_room(p);
        if (in_vain || (!pn_prefix_evict(p) && !drop_marks(p))) return e->code;
    }
    return FO_OK;
}

/* --- keeping --------------------------------------------------------------------------------- */
static struct text *running(const struct pn_prefix *p, const struct pn_seq *seq) {
    struct text *t = p->running.first;
    while (t && t->seq != seq) t = t->next;
    return t;
}

static void stop_running(struct pn_prefix *p, struct text *t) {
    list_pages(p, t, t->listed, false);
    list_remove(&p->running, t);
}

void pn_prefix_drop(struct pn_prefix *p, struct pn_seq *seq) {
    if (!seq) return;
    struct text *t = running(p, seq);
    stop_running(p, t);
    text_free(t);
}

/* Idle texts of the same session that t goes on from are part of it. False = t itself is part of one, which was of use. Where a text can be
 * gone on from at its checkpoints or its end only, each has its own. */
static bool is_news(struct pn_prefix *p, const struct text *t) {
    for (struct text *o = p->idle.first, *next; o && anywhere(p); o = next) {
        next = o->next;
        if (o->hidden || !pn_same_name(o->tenant, t->tenant) || !pn_same_name(o->session, t->session)) continue;
        uint32_t common = in_common(o->seq, t->seq->tokens, t->seq->len);
        if (common == o->seq->len) {
            take_idle(p, o);
            text_free(o);
        } else if (common == t->seq->len) {
            list_remove(&p->idle, o);
            list_push(&p->idle, o);
            o->used_ms = pn_now_ms();
            return false;
        }
    }
    return true;
}

/* False = there is no memory for the name; the one before stays. */
static bool rename_text(struct text *t, const char *session) {
    char *copy = session ? strdup(session) : NULL;
    if (session && !copy) return false;
    free(t->session);
    t->session = copy;
    return true;
}

void pn_prefix_name(struct pn_prefix *p, struct pn_seq *seq, const char *session) {
    (void)rename_text(running(p, seq), session); /* then it is found when it has ended */
}

/* The text with no more memory than it needs. False = there is none for that. */
static bool pack(struct pn_prefix *p, struct text *t, const char *session) {
    struct pn_seq *packed;
    struct fo_err ignored; /* then it is not kept */
    if (!rename_text(t, session) || t->seq->len == 0 || pn_kv_seq_new(p->kv, t->seq->len, &packed, &ignored)) return false;
    pn_state_mark_end(t->seq);
    pn_kv_seq_move(t->seq, packed);
    t->seq = packed;
    t->bytes = text_bytes(t);
    return t->bytes <= p->cap_bytes;
}

/* Among the idle ones, as the most recently used. */
static void make_idle(struct pn_prefix *p, struct text *t) {
    while (p->bytes + t->bytes > p->cap_bytes) evict(p, p->idle.first);
    t->idle = true;
    t->used_ms = pn_now_ms();
    list_push(&p->idle, t);
    for (uint32_t i = t->seq->first_page; i < t->seq->n_pages; i++) p->idle_refs[t->seq->pages[i]]++;
    p->n_idle++;
    p->bytes += t->bytes;
    list_idle(p, t, true);
}

void pn_prefix_put(struct pn_prefix *p, const char *session, struct pn_seq *seq) {
    struct text *t = running(p, seq);
    stop_running(p, t);
    if (!pack(p, t, session) || !is_news(p, t)) {
        text_free(t);
        return;
    }
    make_idle(p, t);
}

/* --- saved and restored ---------------------------------------------------------------------- */
void pn_prefix_each(const struct pn_prefix *p, void (*fn)(void *ctx, const struct pn_kept *k), void *ctx) {
    for (const struct text *t = p->idle.first; t; t = t->next)
        if (!t->hidden) fn(ctx, &(struct pn_kept){ t->id, t->tenant, t->session, t->seq, t->used_ms, true });
    for (const struct text *t = p->running.first; t; t = t->next) fn(ctx, &(struct pn_kept){ t->id, t->tenant, t->session, t->seq, t->used_ms, false });
}

static struct text *by_id(const struct pn_prefix *p, uint64_t id) {
    for (struct text *t = p->idle.first; t; t = t->next)
        if (t->id == id) return t;
    for (struct text *t = p->running.first; t; t = t->next)
        if (t->id == id) return t;
    return NULL;
}

/* A hidden text with room for n tokens and nothing in it yet. */
static struct text *hidden_new(struct pn_prefix *p, const char *tenant, const char *session, uint32_t n, struct fo_err *e) {
    struct text *t = calloc(1, sizeof *t);
    if (!t || (tenant && !(t->tenant = strdup(tenant))) || !rename_text(t, session)) {
        fo_fail(e, FO_ENOMEM, "no memory for a text");
    } else if (pn_kv_seq_new(p->kv, n, &t->seq, e) == FO_OK) {
        t->id = ++p->last_id;
        t->hidden = true;
        t->bytes = text_bytes(t);
        if (t->bytes <= p->cap_bytes) return t;
        fo_fail_need(e, FO_ENOMEM, t->bytes, p->cap_bytes, "a text of %u tokens takes more host memory than there is for all", n);
    }
    text_free(t);
    return NULL;
}

/* All of an idle text but a page that is not full, which who goes on from it writes to. */
static void share_all(const struct pn_seq *from, struct pn_seq *to) {
    struct pn_kv *kv = to->kv;
    memcpy(to->tokens, from->tokens, from->len * sizeof *to->tokens);
    to->len = from->len;
    to->first_page = from->first_page;
    to->n_pages = to->want_pages = from->len / kv->page_tokens > from->first_page ? from->len / kv->page_tokens : from->first_page;
    for (uint32_t i = to->first_page; i < to->n_pages; i++) kv->refs[to->pages[i] = from->pages[i]]++;
    to->state = from->state;
    for (uint32_t i = 0; i < to->state.n_marks; i++) kv->states.refs[to->state.marks[i].block]++;
    if (to->state.block != PN_NO_BLOCK) kv->states.refs[to->state.block]++;
}

int pn_prefix_hold(struct pn_prefix *p, uint64_t id, uint64_t *ret, struct fo_err *e) {
    const struct text *from = by_id(p, id);
    if (!from) return fo_fail(e, FO_ENOENT, "the text is not kept any more");
    uint32_t n = from->idle ? from->seq->len : pn_kv_seq_start(from->seq, from->seq->len);
    if (n == 0) return fo_fail(e, FO_EBUSY, "the text is being computed, and nothing of it can be gone on from yet");
    struct text *t = hidden_new(p, from->tenant, from->session, n, e);
    if (!t) return e->code;
    if (from->idle) share_all(from->seq, t->seq);
    else pn_kv_seq_share(from->seq, n, t->seq);
    make_idle(p, t);
    *ret = t->id;
    return FO_OK;
}

struct pn_seq *pn_prefix_held(struct pn_prefix *p, uint64_t id) {
    struct text *t = by_id(p, id);
    if (!t || !t->hidden) return NULL;
    list_remove(&p->idle, t);
    list_push(&p->idle, t);
    t->used_ms = pn_now_ms();
    return t->seq;
}

void pn_prefix_let_go(struct pn_prefix *p, uint64_t id) {
    struct text *t = by_id(p, id);
    if (t && t->hidden) evict(p, t);
}

/* What is free, and what idle texts that are not hidden would free: places of pages, and blocks of state beyond those that others count on. */
static int room(const struct pn_prefix *p, uint64_t *ret_places, uint64_t *ret_blocks, struct fo_err *e) {
    const struct pn_kv *kv = p->kv;
    const struct pn_states *st = &kv->states;
    uint32_t *pages = calloc(pn_kv_numbers(kv) + 1, sizeof *pages), *gone = calloc(kv->n_pages + 1, sizeof *gone), *blocks = calloc(st->n_blocks + 1, sizeof *blocks);
    uint64_t n_places = kv->n_free, n_blocks = st->n_free;
    if (!pages || !gone || !blocks) {
        free(pages);
        free(gone);
        free(blocks);
        return fo_fail(e, FO_ENOMEM, "no memory to count the pages of kept texts");
    }
    for (const struct text *t = p->idle.first; t; t = t->next) {
        const struct pn_seq *s = t->seq;
        if (t->hidden) continue;
        for (uint32_t i = s->first_page; i < s->n_pages; i++) {
            uint32_t page = s->pages[i], place = pn_kv_place(kv, page);
            if (++pages[page] == kv->refs[page]) n_places += ++gone[place] == (pn_kv_is_small(kv, page) ? kv->in_place[place] : 1);
        }
        for (uint32_t i = 0; i < s->state.n_marks; i++) n_blocks += ++blocks[s->state.marks[i].block] == st->refs[s->state.marks[i].block];
        if (s->state.block != PN_NO_BLOCK) n_blocks += ++blocks[s->state.block] == st->refs[s->state.block];
    }
    free(pages);
    free(gone);
    free(blocks);
    *ret_places = n_places;
    *ret_blocks = n_blocks > st->n_promised + st->n_float ? n_blocks - st->n_promised - st->n_float : 0;
    return FO_OK;
}

/* Places that so many small pages begin, beside those that have room for some already. */
static uint32_t small_places(const struct pn_kv *kv, uint32_t n_small, uint32_t room_for) {
    return n_small > room_for ? (n_small - room_for + kv->n_small - 1) / kv->n_small : 0;
}

static bool has_room(const struct pn_kv *kv, uint32_t n_pages, uint32_t n_small, uint32_t n_blocks) {
    return kv->n_free >= (uint64_t)n_pages - n_small + small_places(kv, n_small, kv->n_small_free) && kv->states.n_free >= kv->states.n_promised + kv->states.n_float + n_blocks;
}

int pn_prefix_room(struct pn_prefix *p, const char *tenant, const char *session, const struct pn_text_shape *x, uint64_t *ret, struct fo_err *e) {
    struct pn_kv *kv = p->kv;
    uint32_t n_pages = pn_kv_pages(kv, x->n) - x->first_page, blocks[PN_MAX_MARKS + 1];
    uint64_t have_places = 0, have_blocks = 0;
    if (room(p, &have_places, &have_blocks, e)) return e->code;
    uint32_t places = n_pages - x->n_small + small_places(kv, x->n_small, 0);
    if (places > have_places)
        return fo_fail_need(e, FO_ENOMEM, places, have_places, "kv: %u pages are needed, and %llu are free or held by kept texts", places, (unsigned long long)have_places);
    if (x->n_blocks > have_blocks)
        return fo_fail_need(e, FO_ENOMEM, x->n_blocks, have_blocks, "state: %u blocks are needed, and %llu are free or held by kept texts", x->n_blocks, (unsigned long long)have_blocks);
    if (x->spare && !has_room(kv, n_pages, x->n_small, x->n_blocks)) return fo_fail_need(e, FO_ENOMEM, places, kv->n_free, "kv: %u pages are needed, and %u are free", places, kv->n_free);
    struct text *t = hidden_new(p, tenant, session, x->n, e);
    if (!t) return e->code;
    if (x->spare && p->bytes + t->bytes > p->cap_bytes) {
        fo_fail_need(e, FO_ENOMEM, t->bytes, p->cap_bytes - p->bytes, "the host memory of kept texts is taken");
        text_free(t);
        return e->code;
    }
    for (struct text *old; !has_room(kv, n_pages, x->n_small, x->n_blocks) && ((old = oldest(p, false, true)) || (old = oldest(p, false, false)));) evict(p, old);
    memcpy(t->seq->tokens, x->tokens, x->n * sizeof *x->tokens);
    t->seq->first_page = x->first_page;
    t->seq->n_pages = t->seq->want_pages = x->first_page + n_pages;
    for (uint32_t i = x->first_page; i < t->seq->n_pages; i++) t->seq->pages[i] = pn_kv_take(kv, x->n_small > 0 && x->kinds[i - x->first_page] == 1);
    t->seq->len = x->first_page * kv->page_tokens;
    pn_kv_seq_touch(t->seq, x->n - t->seq->len);
    t->seq->len = x->n;
    for (uint32_t i = 0; i < x->n_blocks; i++) {
        blocks[i] = pn_states_take(&kv->states);
        kv->states.refs[blocks[i]] = 0; /* until its holders are counted */
    }
    for (uint32_t i = 0; i < x->n_marks; i++) {
        t->seq->state.marks[i] = (struct pn_mark){ x->marks[i].len, blocks[x->marks[i].block] };
        kv->states.refs[blocks[x->marks[i].block]]++;
    }
    t->seq->state.n_marks = x->n_marks;
    if (x->n_blocks > 0) kv->states.refs[t->seq->state.block = blocks[x->newest]]++;
    make_idle(p, t);
    *ret = t->id;
    return FO_OK;
}

bool pn_prefix_show(struct pn_prefix *p, uint64_t id) {
    struct text *t = by_id(p, id);
    if (!t || !t->hidden) return false;
    take_idle(p, t);
    t->hidden = false;
    if (!is_news(p, t)) text_free(t);
    else make_idle(p, t);
    return true;
}

/* --- for tests ------------------------------------------------------------------------------- */
struct count {
    uint32_t *pages, *blocks, promised;
    bool good;
};

static void count_seq(struct count *c, const struct pn_seq *s) {
    const struct pn_states *st = &s->kv->states;
    for (uint32_t i = s->first_page; i < s->n_pages; i++) c->pages[s->pages[i]]++;
    for (uint32_t i = 0; i < s->state.n_marks; i++) c->blocks[s->state.marks[i].block]++;
    if (s->state.block != PN_NO_BLOCK) c->blocks[s->state.block]++;
    c->promised += s->state.promised;
    /* a page that is shared is full */
    for (uint32_t i = s->first_page; i < s->n_pages; i++) c->good &= s->kv->refs[s->pages[i]] == 1 || i < s->len / s->kv->page_tokens;
    c->good &= st->n_blocks == 0 || s->len == 0 || s->state.block != PN_NO_BLOCK;
}

/* Places: what is in each, those that are partly held, and how many are free. */
static bool check_places(const struct pn_kv *kv, const uint32_t *pages, uint64_t *ret_free) {
    uint64_t n_free = 0, n_partly = 0, held = 0, room = 0;
    bool good = true;
    for (uint64_t i = 0; i < kv->n_pages; i++) {
        uint32_t n = 0;
        for (uint32_t k = 0; k < kv->n_small; k++) n += pages[kv->n_pages + i * kv->n_small + k] > 0;
        good &= (kv->n_small ? kv->in_place[i] == n : n == 0) && (n == 0 || pages[i] == 0); /* a page, or small ones */
        n_free += n == 0 && pages[i] == 0;
        held += n;
        if (n == 0 || n == kv->n_small) continue;
        n_partly++;
        room += kv->n_small - n;
        good &= kv->at[i] < kv->n_partly && kv->partly[kv->at[i]] == i;
    }
    *ret_free = n_free;
    return good && n_partly == kv->n_partly && held == kv->n_small_held && room == kv->n_small_free;
}

bool pn_prefix_check(const struct pn_prefix *p, struct pn_seq *const *others, uint32_t n_others) {
    const struct pn_kv *kv = p->kv;
    const uint64_t numbers = pn_kv_numbers(kv);
    struct count c = { calloc(numbers, sizeof *c.pages), calloc(kv->states.n_blocks + 1, sizeof *c.blocks), 0, true };
    c.good = c.pages && c.blocks;
    if (!c.good) goto out;
    uint64_t bytes = 0;
    uint32_t n_idle = 0;
    for (const struct text *t = p->idle.first; t; t = t->next, n_idle++) {
        count_seq(&c, t->seq);
        bytes += t->bytes;
    }
    for (uint64_t i = 0; i < numbers; i++) c.good &= p->idle_refs[i] == c.pages[i];
    for (const struct text *t = p->running.first; t; t = t->next) count_seq(&c, t->seq);
    for (uint32_t i = 0; i < n_others; i++) count_seq(&c, others[i]);
    uint64_t n_free = 0, n_free_blocks = 0;
    for (uint64_t i = 0; i < numbers; i++) c.good &= kv->refs[i] == c.pages[i];
    c.good &= check_places(kv, c.pages, &n_free);
    for (uint32_t i = 0; i < kv->n_free; i++) c.good &= c.pages[kv->free_pages[i]]++ == 0;
    for (uint32_t i = 0; i < kv->states.n_blocks; i++) n_free_blocks += c.blocks[i] == 0, c.good &= kv->states.refs[i] == c.blocks[i];
    uint64_t touched = 0, free_touched = 0;
    for (uint64_t i = 0; i < kv->n_pages; i++) touched += kv->touched[i], free_touched += kv->touched[i] && kv->refs[i] == 0 && !(kv->n_small && kv->in_place[i]);
    c.good &= touched == kv->n_touched && free_touched == kv->n_free_touched;
    c.good &= n_free == kv->n_free && n_free_blocks == kv->states.n_free && c.promised == kv->states.n_promised;
    c.good &= kv->states.n_free >= kv->states.n_promised + kv->states.n_float;
    c.good &= n_idle == p->n_idle && bytes == p->bytes && bytes <= p->cap_bytes && (p->idle.first || p->running.first || pn_index_count(p->index) == 0);
out:
    free(c.pages);
    free(c.blocks);
    return c.good;
}
