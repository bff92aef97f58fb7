/* The scripted model: it says what its file tells it, token by token, at a given pace. It needs as much memory as its file's tensors and
 * its KV say, and goes through the same loader, scheduler and tokenizer as any other, so that whatever stands around a model can be
 * tested without one.
 *
 * It is a function of the tokens before, like a real model, so that batches, chunks, reused prefixes and replicas give the same answer:
 *
 *     chat    everything behind the header of the last turn ("<turn>assistant<newline>") is answer already given; the next token is the
 *             script's at that place, whatever was said so far
 *     else    what the text's end and the script's beginning have in common, at its longest, is answer already given
 *
 * Behind its end the script's last token goes on. A file may hold ten more scripts, one a digit: the last digit before the answer
 * chooses ("Answer with case 3"), where there is a script of that digit.
 *
 * Keys:
 *     script.block_count, script.context_length, script.attention.head_count_kv, script.attention.key_length
 *     script.tokens           what it says, ids; script.case.0 to script.case.9 the others
 *     script.pace_us          how long a step takes; script.row_us how much longer for each of its tokens
 *     script.state_bytes      what each layer carries from token to token of a sequence besides KV, as models with recurrent state do; 0
 *     script.turn_token, script.newline_token, script.digit_tokens [10]     for the rules above; all optional
 * Tensors:
 *     token_embd.weight [n_embd][n_vocab], blk.N.norm.weight [n_embd], blk.N.bulk.weight of any shape: read by nothing, but there
 *
 * State, where there is some, is a number made of all tokens before, and is looked at again before a step goes on from it: one that does not
 * belong to the tokens fails the step.
 *
 * A step reads the embedding and normalises once a layer, so that a device has ops to fail. A token's state is what that leaves. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "engine/bind.h"
#include "engine/family.h"
#include "foundry/base/arena.h"
#include "foundry/base/err.h"
#include "foundry/device.h"
#include "foundry/gguf.h"

static const char arch[] = "script";

enum { N_CASES = 10, MAX_TOKENS = 1 << 20, MAX_US = 60 * 1000 * 1000, STATE_ALIGN = 64, MAX_STATE = 1 << 24 };
static const float LOSES = -1e9f; /* not infinite: a grammar that bans the winner still finds somebody */

struct said {
    int32_t *tokens; /* [n] */
    int32_t *fail;   /* [n] of Knuth, Morris and Pratt: how much of the beginning ends at i, without being all of it */
    int32_t n;
};

struct script_layer {
    struct fo_tensor norm; /* [n_embd] */
    struct fo_tensor bulk;
};

struct script {
    struct fo_tensor embed; /* [n_vocab][n_embd] */
    struct script_layer *layers;
    struct said plain, cases[N_CASES]; /* n = 0: there is none */
    int32_t turn, newline, digits[N_CASES]; /* -1: unknown */
    uint32_t pace_us, row_us;
    uint64_t *state, *carried; /* [state_bytes / 8] what a layer should carry, and does; the one worker's */
    float *row; /* [n_vocab], all LOSES between uses. The one worker's, as a step is */
};

/* --- probe --- */

static int script_probe(const struct fo_gguf *g, struct pn_hparams *ret, struct fo_err *e) {
    struct pn_hparams h = { .rms_eps = 1e-5f, .rope_base = 10000.0f };
    if (pn_key_u32(g, arch, "block_count", 1, PN_MAX_LAYERS, &h.n_layer, e) ||
        pn_key_u32(g, arch, "context_length", 1, PN_MAX_CTX, &h.n_ctx_train, e) ||
        pn_key_u32(g, arch, "attention.head_count_kv", 1, PN_MAX_HEADS, &h.n_head_kv, e) ||
        pn_key_u32(g, arch, "attention.key_length", 1, PN_MAX_HEAD_DIM, &h.head_dim, e))
        return e->code;
    if (pn_key_u32_opt(g, arch, "state_bytes", 0, MAX_STATE, &h.state_bytes, e)) return e->code;
    h.state_bytes = (h.state_bytes + STATE_ALIGN - 1) / STATE_ALIGN * STATE_ALIGN;
    const struct fo_gguf_tensor *embed = fo_gguf_tensor(g, "token_embd.weight");
    if (!embed) return fo_fail(e, FO_EFORMAT, "tensor token_embd.weight is missing");
    if (embed->t.ne[0] < 1 || embed->t.ne[0] > PN_MAX_EMBD || embed->t.ne[1] < 1 || embed->t.ne[1] > PN_MAX_VOCAB)
        return fo_fail(e, FO_EFORMAT, "tensor token_embd.weight has the shape [%lld, %lld]", (long long)embed->t.ne[0], (long long)embed->t.ne[1]);
    h.n_embd = h.n_ff = (uint32_t)embed->t.ne[0];
    h.n_vocab = (uint32_t)embed->t.ne[1];
    h.n_head = h.n_head_kv;
    *ret = h;
    return FO_OK;
}

/* --- bind --- */

/* An array of ids within the vocabulary. An absent key leaves *ret_n 0. */
static int read_ids(struct pn_bind *b, const char *key, uint32_t n_vocab, int32_t **ret, int32_t *ret_n, struct fo_err *e) {
    const struct fo_gguf_kv *kv = fo_gguf_find(b->g, key);
    if (!kv) return FO_OK;
    if (kv->type != FO_GGUF_ARRAY || kv->n < 1 || kv->n > MAX_TOKENS || kv->elem == FO_GGUF_STRING)
        return fo_fail(e, FO_EFORMAT, "%s is no array of 1 to %d token ids", key, MAX_TOKENS);
    int32_t *ids = fo_region_array(b->region, (size_t)kv->n, sizeof *ids);
    if (!ids) return fo_fail(e, FO_ENOMEM, "no memory for %s", key);
    for (uint64_t i = 0; i < kv->n; i++) {
        int64_t id = fo_gguf_array_i64(kv, i);
        if (id < 0 || id >= n_vocab)
            return fo_fail(e, FO_EFORMAT, "%s has the token %lld at %llu, outside the vocabulary of %u", key, (long long)id, (unsigned long long)i, n_vocab);
        ids[i] = (int32_t)id;
    }
    *ret = ids;
    *ret_n = (int32_t)kv->n;
    return FO_OK;
}

static int read_script(struct pn_bind *b, const char *key, uint32_t n_vocab, struct said *s, struct fo_err *e) {
    if (read_ids(b, key, n_vocab, &s->tokens, &s->n, e)) return e->code;
    if (s->n == 0) return FO_OK;
    s->fail = fo_region_array(b->region, (size_t)s->n, sizeof *s->fail);
    if (!s->fail) return fo_fail(e, FO_ENOMEM, "no memory for %s", key);
    for (int32_t i = 1, k = 0; i < s->n; i++) {
        while (k > 0 && s->tokens[i] != s->tokens[k]) k = s->fail[k - 1];
        k += s->tokens[i] == s->tokens[k];
        s->fail[i] = k;
    }
    return FO_OK;
}

static int read_token(const struct fo_gguf *g, const char *suffix, uint32_t n_vocab, int32_t *ret, struct fo_err *e) {
    uint32_t id = UINT32_MAX;
    if (pn_key_u32_opt(g, arch, suffix, 0, n_vocab - 1, &id, e)) return e->code;
    *ret = id == UINT32_MAX ? -1 : (int32_t)id;
    return FO_OK;
}

static int read_rules(struct pn_bind *b, uint32_t n_vocab, struct script *w, struct fo_err *e) {
    int32_t *digits = NULL, n = 0;
    if (read_token(b->g, "turn_token", n_vocab, &w->turn, e) || read_token(b->g, "newline_token", n_vocab, &w->newline, e) ||
        pn_key_u32_opt(b->g, arch, "pace_us", 0, MAX_US, &w->pace_us, e) || pn_key_u32_opt(b->g, arch, "row_us", 0, MAX_US, &w->row_us, e) ||
        read_ids(b, "script.digit_tokens", n_vocab, &digits, &n, e) || read_script(b, "script.tokens", n_vocab, &w->plain, e))
        return e->code;
    if (n && n != N_CASES) return fo_fail(e, FO_EFORMAT, "script.digit_tokens has %d tokens, expected %d", n, N_CASES);
    if (!w->plain.n) return fo_fail(e, FO_EFORMAT, "the key script.tokens is missing");
    for (int i = 0; i < N_CASES; i++) {
        char key[32];
        snprintf(key, sizeof key, "script.case.%d", i);
        w->digits[i] = n ? digits[i] : -1;
        if (read_script(b, key, n_vocab, &w->cases[i], e)) return e->code;
    }
    return FO_OK;
}

static int script_bind(struct pn_bind *b, const struct pn_hparams *h, void **ret, struct fo_err *e) {
    struct script *w = fo_region_alloc(b->region, sizeof *w);
    if (!w || !(w->layers = fo_region_array(b->region, h->n_layer, sizeof *w->layers)) ||
        !(w->row = fo_region_array(b->region, h->n_vocab, sizeof *w->row)) ||
        !(w->state = fo_region_array(b->region, h->state_bytes + 1, 1)) || !(w->carried = fo_region_array(b->region, h->state_bytes + 1, 1)))
        return fo_fail(e, FO_ENOMEM, "no memory to bind %u layers", h->n_layer);
    if (pn_bind_matrix(b, PN_AT_INPUT, "token_embd.weight", h->n_embd, h->n_vocab, &w->embed, e)) return e->code;
    for (uint32_t i = 0; i < h->n_layer; i++) {
        char name[32];
        snprintf(name, sizeof name, "blk.%u.bulk.weight", i);
        const struct fo_gguf_tensor *bulk = fo_gguf_tensor(b->g, name);
        if (pn_bind_vector(b, (int)i, "norm.weight", h->n_embd, &w->layers[i].norm, e) ||
            (bulk && pn_bind_matrix(b, (int)i, "bulk.weight", bulk->t.ne[0], bulk->t.ne[1], &w->layers[i].bulk, e)))
            return e->code;
    }
    if (read_rules(b, h->n_vocab, w, e)) return e->code;
    for (uint32_t i = 0; i < h->n_vocab; i++) w->row[i] = LOSES;
    *ret = w;
    return FO_OK;
}

static int script_layout(const struct pn_hparams *h, int rows, int logit_rows, struct fo_arena *a, unsigned char *block, struct pn_buffers *ret,
                         struct fo_err *e) {
    uint64_t x, logits;
    if (fo_arena_take(a, (uint64_t)rows * h->n_embd * sizeof(float), 64, &x, e) ||
        fo_arena_take(a, (uint64_t)logit_rows * h->n_vocab * sizeof(float), 64, &logits, e))
        return e->code;
    *ret = (struct pn_buffers){ .x = block ? (float *)(block + x) : NULL, .logits = block ? (float *)(block + logits) : NULL };
    ret->h = ret->x;
    return FO_OK;
}

/* --- what comes next --- */

/* The script that the last digit of text[0..n) chooses. */
static const struct said *chosen(const struct script *w, const int32_t *text, int32_t n) {
    while (n-- > 0)
        for (int d = 0; d < N_CASES; d++)
            if (text[n] == w->digits[d]) return w->cases[d].n ? &w->cases[d] : &w->plain;
    return &w->plain;
}

/* How long the longest beginning of s is with which text[0..n) ends. */
static int32_t overlap(const struct said *s, const int32_t *text, int32_t n) {
    int32_t k = 0;
    for (int32_t i = n > s->n ? n - s->n : 0; i < n; i++) {
        if (k == s->n) k = s->fail[k - 1];
        while (k > 0 && text[i] != s->tokens[k]) k = s->fail[k - 1];
        k += text[i] == s->tokens[k];
    }
    return k;
}

static int32_t next_token(const struct script *w, const int32_t *text, int32_t n) {
    const struct said *s = NULL;
    int32_t given = 0, turn = n - 1;
    while (turn >= 0 && (w->turn < 0 || text[turn] != w->turn)) turn--;
    if (turn >= 0) {
        int32_t start = turn + 1;
        while (start < n && text[start] != w->newline) start++;
        given = start < n ? n - start - 1 : 0;
        s = chosen(w, text, turn);
    } else {
        s = chosen(w, text, n);
        for (int i = 0; i <= N_CASES; i++) {
            const struct said *c = i < N_CASES ? &w->cases[i] : &w->plain;
            int32_t k = c->n ? overlap(c, text, n) : 0;
            if (k <= given || chosen(w, text, n - k) != c) continue;
            s = c;
            given = k;
        }
    }
    return s->tokens[given < s->n ? given : s->n - 1];
}

static void sleep_us(uint64_t us) {
    struct timespec t = { .tv_sec = (time_t)(us / 1000000), .tv_nsec = (long)(us % 1000000) * 1000 };
    while (nanosleep(&t, &t) != 0 && errno == EINTR) {}
}

static int say(const struct script *w, const struct pn_step *s, struct fo_err *e) {
    struct fo_device *dev = s->stream->dev;
    uint64_t n_vocab = s->h->n_vocab;
    const struct fo_attn_seq *seq = s->batch.seqs;
    const int32_t *const *tokens = s->tokens;
    for (int i = 0; i < s->n_wanted; i++) {
        while (s->wanted[i] >= seq->row + seq->n) seq++, tokens++;
        int32_t id = next_token(w, *tokens, seq->pos + s->wanted[i] - seq->row + 1);
        w->row[id] = 0;
        int rc = dev->upload(dev, s->buf.logits + (uint64_t)i * n_vocab, w->row, n_vocab * sizeof *w->row, e);
        w->row[id] = LOSES;
        if (rc) return fo_wrap(e, "output");
    }
    return FO_OK;
}

/* The states that are asked for to the front of h, which is x: one by one, since what is read may be the next to be written. */
static int gather(const struct script *w, const struct pn_step *s, struct fo_err *e) {
    const struct fo_tensor *norm = &w->layers[s->h->n_layer - 1].norm;
    uint64_t k = s->h->n_embd;
    for (int i = 0; i < s->n_stated; i++)
        if (fo_rms_norm(s->stream, s->buf.x + (uint64_t)s->stated[i] * k, norm->data, 1, (int64_t)k, s->h->rms_eps, s->buf.h + (uint64_t)i * k, e))
            return e->code;
    return FO_OK;
}

/* --- state --- */

/* Into w->state what a layer carries behind n tokens. */
static void state_of(const struct script *w, const int32_t *tokens, int32_t n, uint32_t layer, uint32_t bytes) {
    uint64_t h = UINT64_C(14695981039346656037) + layer; /* FNV-1a, a token at a time */
    for (int32_t i = 0; i < n; i++) h = (h ^ (uint32_t)tokens[i]) * UINT64_C(1099511628211);
    w->state[0] = (uint64_t)n;
    for (uint32_t i = 1; i < bytes / sizeof *w->state; i++) w->state[i] = h += i;
}

static int carry_state(const struct script *w, const struct pn_step *s, uint32_t layer, struct fo_err *e) {
    struct fo_device *dev = s->stream->dev;
    uint32_t bytes = s->h->state_bytes;
    uint64_t off = (uint64_t)(layer - s->first_layer) * bytes;
    for (int i = 0; i < s->batch.n_seqs && bytes; i++) {
        const struct fo_attn_seq *seq = &s->batch.seqs[i];
        if (seq->pos > 0) {
            if (dev->download(dev, w->carried, s->state.pool + s->state.from[i] * s->state.block_bytes + off, bytes, e)) return e->code;
            state_of(w, s->tokens[i], seq->pos, layer, bytes);
            if (memcmp(w->carried, w->state, bytes) != 0)
                return fo_fail(e, FO_EINTERNAL, "layer %u goes on at %d from the state of other tokens, %llu of them", layer, seq->pos, (unsigned long long)w->carried[0]);
        }
        state_of(w, s->tokens[i], seq->pos + seq->n, layer, bytes);
        if (dev->upload(dev, s->state.pool + s->state.to[i] * s->state.block_bytes + off, w->state, bytes, e)) return e->code;
    }
    return FO_OK;
}

static int script_forward(const void *weights, const struct pn_step *s, struct fo_err *e) {
    const struct script *w = weights;
    if (s->first_layer == 0 && fo_get_rows(s->stream, &w->embed, s->ids, s->n_rows, s->buf.x, e)) return e->code;
    for (uint32_t i = s->first_layer; i < s->end_layer; i++)
        if (fo_rms_norm(s->stream, s->buf.x, w->layers[i].norm.data, s->n_rows, s->h->n_embd, s->h->rms_eps, s->buf.x, e))
            return fo_wrap(e, "layer %u", i);
    for (uint32_t i = s->first_layer; i < s->end_layer; i++)
        if (carry_state(w, s, i, e)) return fo_wrap(e, "layer %u", i);
    if (s->end_layer < s->h->n_layer) return FO_OK;
    sleep_us(w->pace_us + (uint64_t)w->row_us * (uint64_t)s->n_rows);
    if (gather(w, s, e)) return fo_wrap(e, "output");
    return say(w, s, e);
}

const struct pn_family pn_family_script = { arch, script_probe, script_bind, script_layout, script_forward };
