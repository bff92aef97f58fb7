/* Compiled grammars and the runs over them: see grammar.h.
 *
 * The list holds a reference to each grammar that it keeps; a grammar is found by the SHA-256 of its kind and text. While one compiles, its
 * place in the list says so and others wait at the bell; compiling itself holds no lock. What was used longest ago goes first when there are
 * too many or they take too much. Masks hold on to the vocabulary's trie, which belongs to the list and lives as long as the last grammar
 * that uses it (counted too). Locks: the list's, then a grammar's. */
#include "engine/grammar/grammar.h"

#include <pthread.h>
#include <stdatomic.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/dialect.h"
#include "engine/grammar/front.h"
#include "engine/grammar/gbnf.h"
#include "engine/grammar/ir.h"
#include "engine/grammar/json_object.h"
#include "engine/grammar/masks.h"
#include "engine/grammar/pieces.h"
#include "engine/grammar/regex.h"
#include "engine/grammar/schema.h"
#include "foundry/base/buf.h"
#include "foundry/base/clock.h"
#include "foundry/base/err.h"
#include "foundry/base/log.h"
#include "foundry/base/sha256.h"
#include "foundry/tok.h"

enum { RUN_SOFT_BYTES = 256 << 10, RUN_HARD_BYTES = 16 << 20 };

/* The trie, with a count. */
struct trie {
    atomic_int refs;
    struct pn_tokens *tokens;
};

struct pn_grammar {
    atomic_int refs;
    struct pn_program *program;
    struct trie *trie;
    double compile_ms;
    pthread_mutex_t lock; /* guards masks */
    struct pn_masks *masks;
    atomic_size_t masks_bytes;
};

struct kept {
    uint8_t key[FO_SHA256_BYTES];
    struct pn_grammar *g; /* NULL while it is compiled */
    uint64_t used;        /* 0 = this place is free */
};

struct pn_grammars {
    const struct fo_tok *tok;
    pthread_mutex_t lock; /* guards the rest */
    pthread_cond_t compiled;
    struct trie *trie; /* NULL before the first grammar */
    uint64_t clock, n_compiled, found;
    double compile_s;
    struct kept kept[PN_GRAMMARS_KEPT];
};

/* --- notations --------------------------------------------------------------------------------- */
static int build_choice(struct pn_ir *ir, const char *text, size_t len, struct fo_err *e) {
    struct pn_front f = { .ir = ir, .e = e };
    uint32_t n, rule = pn_ir_rule(ir, "choice", 6, 0, 0);
    int rc = 0;
    for (size_t at = 0; at + sizeof n <= len && rc == 0; at += n) {
        memcpy(&n, text + at, sizeof n);
        at += sizeof n;
        if (n > len - at)
            rc = (int)fo_fail(e, FO_EINTERNAL, "a choice of %u bytes where %zu are left", n, len - at);
        else if (memchr(text + at, PN_MARK, n))
            rc = (int)fo_fail(e, FO_EFORMAT, "a choice that is not UTF-8");
        else
            rc = pn_front_push(&f, pn_ir_literal(ir, text + at, n));
    }
    if (rc == 0) {
        pn_ir_define(ir, rule, pn_front_alt(&f, 0));
        pn_ir_root(ir, rule);
        rc = pn_ir_state(ir, e);
    }
    free(f.nodes);
    return rc;
}

/* See json_object.h. */
const char pn_json_object[] = "root ::= object\n"
                              "value ::= object | array | string | number | \"true\" | \"false\" | \"null\"\n"
                              "object ::= \"{\" ws ( member ( \",\" ws member )* )? \"}\"\n"
                              "member ::= string ws \":\" ws value ws\n"
                              "array ::= \"[\" ws ( value ws ( \",\" ws value ws )* )? \"]\"\n"
                              "string ::= \"\\\"\" ( [^\"\\\\\\x00-\\x1F] | \"\\\\\" ( [\"\\\\/bfnrt] | \"u\" escaped ) )* \"\\\"\"\n"
                              "escaped ::= ( [0-9a-ce-fA-CE-F] hex | [dD] [0-7] ) hex hex | [dD] [89abAB] hex hex \"\\\\u\" [dD] [c-fC-F] hex hex\n"
                              "hex ::= [0-9a-fA-F]\n"
                              "number ::= \"-\"? ( \"0\" | [1-9] [0-9]{0,30} ) ( \".\" [0-9]{1,30} )? ( [eE] [-+]? [0-9]{1,4} )?\n"
                              "ws ::= \" \"? | \"\\r\"? \"\\n\" [ \\t]{0,64}\n";

static int build_json_object(struct pn_ir *ir, const char *text, size_t len, struct fo_err *e) {
    (void)text, (void)len;
    return pn_gbnf_build(ir, pn_json_object, sizeof pn_json_object - 1, e);
}

static int build_json_schema(struct pn_ir *ir, const char *text, size_t len, struct fo_err *e) {
    char pointer[PN_SCHEMA_POINTER_BYTES]; /* the message has it too */
    return pn_schema_compile(text, len, ir, pointer, e);
}

/* A notation is a function that builds rules of a text. */
static const struct {
    const char *name;
    int (*build)(struct pn_ir *ir, const char *text, size_t len, struct fo_err *e);
} notations[PN_N_GRAMMARS] = {
    [PN_GRAMMAR_GBNF] = { "gbnf", pn_gbnf_build },
    [PN_GRAMMAR_REGEX] = { "regex", pn_regex_build },
    [PN_GRAMMAR_CHOICE] = { "choice", build_choice },
    [PN_GRAMMAR_JSON_OBJECT] = { "json_object", build_json_object },
    [PN_GRAMMAR_JSON_SCHEMA] = { "json_schema", build_json_schema },
    [PN_GRAMMAR_PIECES] = { "pieces", pn_pieces_build },
};

/* --- one grammar ------------------------------------------------------------------------------- */
static void trie_put(struct trie *t) {
    if (!t || atomic_fetch_sub(&t->refs, 1) != 1) return;
    pn_tokens_free(t->tokens);
    free(t);
}

struct pn_grammar *pn_grammar_ref(struct pn_grammar *g) {
    atomic_fetch_add(&g->refs, 1);
    return g;
}

void pn_grammar_put(struct pn_grammar *g) {
    if (!g || atomic_fetch_sub(&g->refs, 1) != 1) return;
    if (g->masks && fo_log_debug_on("grammar")) {
        struct pn_masks_stats s;
        pn_masks_stats(g->masks, &s);
        FO_DEBUGF("grammar", "given up masks=%u states=%u masks_bytes=%zu hits=%llu walks=%llu", s.n_masks, s.n_states, pn_masks_bytes(g->masks),
                  (unsigned long long)s.hits, (unsigned long long)s.walks);
    }
    pn_masks_free(g->masks);
    pn_program_free(g->program);
    trie_put(g->trie);
    pthread_mutex_destroy(&g->lock);
    free(g);
}

static int compile(struct trie *trie, enum pn_grammar_kind kind, const char *text, size_t len, struct pn_grammar **ret, struct fo_err *e) {
    struct pn_ir *ir = NULL;
    struct timespec from, to;
    clock_gettime(CLOCK_MONOTONIC, &from);
    struct pn_grammar *g = calloc(1, sizeof *g);
    if (!g) return fo_fail(e, FO_ENOMEM, "no memory for a grammar");
    pthread_mutex_init(&g->lock, NULL);
    atomic_init(&g->refs, 1);
    atomic_fetch_add(&trie->refs, 1);
    g->trie = trie;
    int rc = pn_ir_new(&ir, e);
    if (rc == 0) rc = notations[kind].build(ir, text, len, e);
    if (rc == 0) rc = pn_program_new(ir, &g->program, e);
    if (rc == 0) rc = pn_masks_new(g->program, trie->tokens, &g->masks, e);
    pn_ir_free(ir);
    if (rc != 0) {
        pn_grammar_put(g);
        if (e->line > 0 && kind != PN_GRAMMAR_JSON_OBJECT && kind != PN_GRAMMAR_PIECES) fo_wrap(e, "line %d, column %d", e->line, e->col);
        return rc;
    }
    clock_gettime(CLOCK_MONOTONIC, &to);
    g->compile_ms = (double)(to.tv_sec - from.tv_sec) * 1e3 + (double)(to.tv_nsec - from.tv_nsec) / 1e6;
    FO_DEBUGF("grammar", "compiled kind=%s text_bytes=%zu ms=%.2f ops=%u program_bytes=%zu", notations[kind].name, len, g->compile_ms, g->program->n_ops,
              g->program->bytes);
    *ret = g;
    return 0;
}

void pn_grammar_info(struct pn_grammar *g, struct pn_grammar_info *ret) {
    struct pn_masks_stats s;
    pthread_mutex_lock(&g->lock);
    pn_masks_stats(g->masks, &s);
    size_t bytes = pn_masks_bytes(g->masks);
    pthread_mutex_unlock(&g->lock);
    *ret = (struct pn_grammar_info){ .compile_ms = g->compile_ms, .program_bytes = g->program->bytes, .masks_bytes = bytes,
                                     .tokens_bytes = g->trie->tokens->bytes, .mask_hits = s.hits, .mask_walks = s.walks };
}

/* --- those of a model -------------------------------------------------------------------------- */
int pn_grammars_new(const struct fo_tok *t, struct pn_grammars **ret, struct fo_err *e) {
    struct pn_grammars *all = calloc(1, sizeof *all);
    if (!all) return fo_fail(e, FO_ENOMEM, "no memory for grammars");
    all->tok = t;
    pthread_mutex_init(&all->lock, NULL);
    pthread_cond_init(&all->compiled, NULL);
    *ret = all;
    return 0;
}

void pn_grammars_free(struct pn_grammars *all) {
    if (!all) return;
    for (size_t i = 0; i < PN_GRAMMARS_KEPT; i++) pn_grammar_put(all->kept[i].g);
    trie_put(all->trie);
    pthread_cond_destroy(&all->compiled);
    pthread_mutex_destroy(&all->lock);
    free(all);
}

/* The trie, made with the first call; under the lock, for whoever comes first needs it and so do all others. */
static int trie_of(struct pn_grammars *all, struct fo_err *e) {
    if (all->trie) return 0;
    struct trie *t = calloc(1, sizeof *t);
    if (!t) return fo_fail(e, FO_ENOMEM, "no memory for grammars");
    atomic_init(&t->refs, 1);
    uint64_t from = fo_now_ms();
    if (pn_tokens_new(all->tok, &t->tokens, e)) {
        free(t);
        return e->code;
    }
    FO_DEBUGF("grammar", "vocabulary tokens=%u nodes=%u longest=%u bytes=%zu ms=%llu", t->tokens->n_ids, t->tokens->n_nodes, t->tokens->longest,
              t->tokens->bytes, (unsigned long long)(fo_now_ms() - from));
    all->trie = t;
    return 0;
}

/* Gives up what was used longest ago until there is a place and all takes no more than it may. NULL: every place is being compiled for. */
static struct kept *place_for(struct pn_grammars *all) {
    for (;;) {
        struct kept *oldest = NULL, *empty = NULL;
        size_t bytes = 0;
        for (size_t i = 0; i < PN_GRAMMARS_KEPT; i++) {
            struct kept *k = &all->kept[i];
            if (k->used == 0) {
                empty = k;
            } else if (k->g) {
                bytes += k->g->program->bytes + atomic_load(&k->g->masks_bytes);
                if (!oldest || k->used < oldest->used) oldest = k;
            }
        }
        if ((empty && bytes <= PN_GRAMMARS_KEPT_BYTES) || !oldest) return empty;
        pn_grammar_put(oldest->g);
        *oldest = (struct kept){ 0 };
    }
}

static struct kept *find(struct pn_grammars *all, const uint8_t key[FO_SHA256_BYTES]) {
    for (size_t i = 0; i < PN_GRAMMARS_KEPT; i++)
        if (all->kept[i].used && memcmp(all->kept[i].key, key, FO_SHA256_BYTES) == 0) return &all->kept[i];
    return NULL;
}

static int key_of(int kind, const char *text, size_t len, uint8_t ret[FO_SHA256_BYTES], struct fo_err *e) {
    char *all = malloc(len + 1);
    if (!all) return fo_fail(e, FO_ENOMEM, "no memory for a grammar");
    all[0] = (char)kind;
    if (len > 0) memcpy(all + 1, text, len);
    fo_sha256(all, len + 1, ret);
    free(all);
    return 0;
}

/* What a grammar is compiled of: a text, which is also what it is kept under, or the text that `write` makes for it. */
struct source {
    enum pn_grammar_kind kind;
    const char *text; /* [len] */
    size_t len;
    int (*write)(void *ctx, struct fo_buf *ret, struct fo_err *e);
    void *ctx;
};

static int fail_size(size_t len, struct fo_err *e) {
    return fo_fail_need(e, FO_ELIMIT, len, PN_GRAMMAR_MAX_TEXT, "the grammar is too big: %d KiB are allowed", PN_GRAMMAR_MAX_TEXT >> 10);
}

static int compile_source(struct trie *trie, const struct source *src, struct pn_grammar **ret, struct fo_err *e) {
    if (!src->write) return compile(trie, src->kind, src->text, src->len, ret, e);
    struct timespec from, to;
    struct fo_buf text;
    clock_gettime(CLOCK_MONOTONIC, &from);
    fo_buf_init(&text, PN_GRAMMAR_MAX_TEXT);
    int rc = src->write(src->ctx, &text, e);
    if (rc == 0 && text.failed) rc = fail_size(PN_GRAMMAR_MAX_TEXT + 1, e);
    clock_gettime(CLOCK_MONOTONIC, &to);
    if (rc == 0) rc = compile(trie, src->kind, fo_buf_str(&text), text.len, ret, e);
    fo_buf_done(&text);
    if (rc == 0) (*ret)->compile_ms += (double)(to.tv_sec - from.tv_sec) * 1e3 + (double)(to.tv_nsec - from.tv_nsec) / 1e6;
    return rc;
}

static int get(struct pn_grammars *all, const uint8_t key[FO_SHA256_BYTES], const struct source *src, struct pn_grammar **ret, struct fo_err *e) {
    struct kept *k;
    pthread_mutex_lock(&all->lock);
    while ((k = find(all, key)) && !k->g) pthread_cond_wait(&all->compiled, &all->lock);
    if (k) {
        k->used = ++all->clock;
        all->found++;
        *ret = pn_grammar_ref(k->g);
        pthread_mutex_unlock(&all->lock);
        return 0;
    }
    int rc = trie_of(all, e);
    if (rc == 0 && (k = place_for(all))) {
        k->used = ++all->clock;
        memcpy(k->key, key, FO_SHA256_BYTES);
    }
    pthread_mutex_unlock(&all->lock);
    struct pn_grammar *g = NULL;
    if (rc == 0) rc = compile_source(all->trie, src, &g, e);
    pthread_mutex_lock(&all->lock);
    if (g) all->n_compiled++, all->compile_s += g->compile_ms / 1e3;
    if (k) {
        if (g)
            k->g = pn_grammar_ref(g);
        else
            *k = (struct kept){ 0 };
        pthread_cond_broadcast(&all->compiled);
    }
    pthread_mutex_unlock(&all->lock);
    if (rc == 0) *ret = g;
    return rc;
}

static int need_tokenizer(const struct pn_grammars *all, struct fo_err *e) {
    return all->tok ? 0 : (int)fo_fail(e, FO_EUNSUPPORTED, "this model has no tokenizer: its answers cannot be held to a grammar");
}

int pn_grammars_get(struct pn_grammars *all, enum pn_grammar_kind kind, const char *text, size_t len, struct pn_grammar **ret, struct fo_err *e) {
    uint8_t key[FO_SHA256_BYTES];
    if (need_tokenizer(all, e)) return (int)e->code;
    if (len > PN_GRAMMAR_MAX_TEXT) return fail_size(len, e);
    if (key_of((int)kind, text, len, key, e)) return (int)e->code;
    return get(all, key, &(struct source){ .kind = kind, .text = text, .len = len }, ret, e);
}

int pn_grammars_made(struct pn_grammars *all, const char *key_text, size_t n_key, int (*write)(void *ctx, struct fo_buf *ret, struct fo_err *e), void *ctx,
                     struct pn_grammar **ret, struct fo_err *e) {
    uint8_t key[FO_SHA256_BYTES];
    if (need_tokenizer(all, e) || key_of(PN_N_GRAMMARS, key_text, n_key, key, e)) return (int)e->code; /* a kind of key that no text has */
    return get(all, key, &(struct source){ .kind = PN_GRAMMAR_PIECES, .write = write, .ctx = ctx }, ret, e);
}

void pn_grammars_info(struct pn_grammars *all, struct pn_grammars_info *ret) {
    pthread_mutex_lock(&all->lock);
    *ret = (struct pn_grammars_info){ .compiled = all->n_compiled, .found = all->found, .compile_s = all->compile_s, .bytes = all->trie ? all->trie->tokens->bytes : 0 };
    for (size_t i = 0; i < PN_GRAMMARS_KEPT; i++)
        if (all->kept[i].g) ret->bytes += all->kept[i].g->program->bytes + atomic_load(&all->kept[i].g->masks_bytes);
    pthread_mutex_unlock(&all->lock);
}

/* --- a run ------------------------------------------------------------------------------------- */
struct pn_grammar_run {
    struct pn_grammar *g;
    struct pn_pda *a;
    uint32_t state;
};

int pn_grammar_run_new(struct pn_grammar *g, struct pn_grammar_run **ret, struct fo_err *e) {
    struct pn_grammar_run *r = calloc(1, sizeof *r);
    if (!r) return fo_fail(e, FO_ENOMEM, "no memory for following a grammar");
    r->g = pn_grammar_ref(g);
    if (pn_pda_new(g->program, UINT32_MAX, RUN_SOFT_BYTES, RUN_HARD_BYTES, &r->a, e) || (r->state = pn_pda_start(r->a, e)) == PN_STATE_NONE) {
        pn_grammar_run_free(r);
        return e->code;
    }
    *ret = r;
    return 0;
}

void pn_grammar_run_free(struct pn_grammar_run *r) {
    if (!r) return;
    pn_pda_free(r->a);
    pn_grammar_put(r->g);
    free(r);
}

bool pn_grammar_run_may_end(const struct pn_grammar_run *r) {
    return pn_pda_state(r->a, r->state)->may_end;
}

int pn_grammar_run_bytes(struct pn_grammar_run *r, const char *bytes, size_t n, bool *ret_alive, struct fo_err *e) {
    for (size_t i = 0; i < n && r->state != PN_STATE_DEAD; i++) {
        if (pn_pda_full(r->a) && pn_pda_keep(r->a, &r->state, 1, e)) return e->code;
        uint32_t to = pn_pda_step(r->a, r->state, (uint8_t)bytes[i], e);
        if (to == PN_STATE_NONE) return e->code;
        r->state = to;
    }
    *ret_alive = r->state != PN_STATE_DEAD;
    return 0;
}

int pn_grammar_run_accept(struct pn_grammar_run *r, int32_t id, bool *ret_over, struct fo_err *e) {
    const struct pn_tokens *v = r->g->trie->tokens;
    bool alive = false;
    if (id < 0 || id >= v->n_vocab || v->text_at[id] == v->text_at[id + 1]) return fo_fail(e, FO_EINTERNAL, "token %d has no text that a grammar could allow", id);
    if (pn_grammar_run_bytes(r, v->text + v->text_at[id], v->text_at[id + 1] - v->text_at[id], &alive, e)) return e->code;
    if (!alive)
        return fo_fail_need(e, FO_ELIMIT, PN_PDA_MAX_FRAMES, PN_PDA_MAX_FRAMES, "the answer nests deeper than the %d levels that a grammar is followed down",
                            PN_PDA_MAX_FRAMES);
    const struct pn_state *s = pn_pda_state(r->a, r->state);
    *ret_over = s->may_end && s->n == 0;
    return 0;
}

uint32_t pn_grammar_run_allows(struct pn_grammar_run *r, const int32_t *ids, uint32_t n) {
    const struct pn_tokens *v = r->g->trie->tokens;
    uint32_t state = r->state;
    struct fo_err ignored;
    for (uint32_t i = 0; i < n; i++) {
        int32_t id = ids[i];
        if (id < 0 || id >= v->n_vocab || v->text_at[id] == v->text_at[id + 1]) return i;
        for (uint32_t at = v->text_at[id]; at < v->text_at[id + 1]; at++) {
            if (pn_pda_full(r->a)) return i; /* making room would move the run */
            state = pn_pda_step(r->a, state, (uint8_t)v->text[at], &ignored);
            if (state == PN_STATE_NONE || state == PN_STATE_DEAD) return i;
        }
    }
    return n;
}

/* No token continues what must go on: names the bytes. */
static int fail_stuck(const struct pn_grammar_run *r, struct fo_err *e) {
    const struct pn_state *s = pn_pda_state(r->a, r->state);
    unsigned n = 0, first = 0;
    for (unsigned b = 0; b < 256; b++) {
        bool may = false;
        for (uint32_t i = 0; i < s->n && !may; i++) {
            const struct pn_op *o = &r->a->p->ops[r->a->places[s->at + i].op];
            may = r->a->p->sets[(size_t)o->a * 4 + (b >> 6)] >> (b & 63) & 1;
        }
        if (may && n++ == 0) first = b;
    }
    return fo_fail(e, FO_EUNSUPPORTED, "the grammar asks for one of %u bytes next (0x%02X the first of them), and no token of this model's vocabulary continues the answer so", n, first);
}

/* The mask's zeros become minus infinity. */
static void apply(const struct pn_mask *mask, float *logits, uint32_t n) {
    for (uint32_t lo = 0; lo < n; lo += 64) {
        uint64_t bits = mask->bits[lo / 64];
        uint32_t here = n - lo < 64 ? n - lo : 64;
        if (bits == UINT64_MAX) continue;
        for (uint32_t i = 0; i < here; i++) logits[lo + i] = bits >> i & 1 ? logits[lo + i] : -INFINITY;
    }
}

int pn_grammar_run_mask(struct pn_grammar_run *r, bool ignore_end, float *logits, uint32_t n_vocab, bool *ret_over, struct fo_err *e) {
    const struct pn_tokens *v = r->g->trie->tokens;
    uint32_t n = n_vocab < (uint32_t)v->n_vocab ? n_vocab : (uint32_t)v->n_vocab, n_allowed = 0;
    bool may_end = pn_grammar_run_may_end(r), ends = false;
    float end_logits[64]; /* those of end tokens, while the mask is put over them */
    uint32_t n_ends = v->n_ends < 64 ? v->n_ends : 64;
    for (uint32_t i = 0; i < n_ends; i++) end_logits[i] = (uint32_t)v->ends[i] < n ? logits[v->ends[i]] : -INFINITY;
    pthread_mutex_lock(&r->g->lock);
    const struct pn_mask *mask;
    int rc = pn_masks_get(r->g->masks, r->a, r->state, &mask, e);
    if (rc == 0) {
        n_allowed = mask->n_allowed;
        atomic_store(&r->g->masks_bytes, pn_masks_bytes(r->g->masks));
        apply(mask, logits, n);
    }
    pthread_mutex_unlock(&r->g->lock);
    if (rc != 0) return rc;
    for (uint32_t i = n; i < n_vocab; i++) logits[i] = -INFINITY;
    if (may_end && !ignore_end)
        for (uint32_t i = 0; i < n_ends; i++)
            if ((uint32_t)v->ends[i] < n) {
                logits[v->ends[i]] = end_logits[i];
                ends = true;
            }
    *ret_over = n_allowed == 0 && may_end && !ends;
    return n_allowed == 0 && !may_end ? fail_stuck(r, e) : 0;
}

void pn_grammar_run_ban_ends(const struct pn_grammar_run *r, float *logits, uint32_t n_vocab) {
    const struct pn_tokens *v = r->g->trie->tokens;
    for (uint32_t i = 0; i < v->n_ends; i++)
        if ((uint32_t)v->ends[i] < n_vocab) logits[v->ends[i]] = -INFINITY;
}
