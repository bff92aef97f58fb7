/* The trie over a vocabulary: see tokens.h. Tokens are sorted by their bytes; then one pass over the sorted list meets the nodes in
 * depth-first order, a token adding those that it does not share with the one before.
 *
 * Control tokens stand in it behind the byte PN_MARK, all in one branch: a grammar that asks for none of them leaves it with its first step. A
 * token of plain bytes that has this byte (a vocabulary of bytes has one) is left out, or it could begin what only a control token may be. */
#include "engine/grammar/tokens.h"

#include <stdlib.h>
#include <string.h>

#include "engine/dialect.h"
#include "foundry/base/buf.h"
#include "foundry/base/err.h"
#include "foundry/tok.h"

enum { MAX_TOKEN_BYTES = 4095 /* what is longer is never allowed: a page of spaces, at most */, MANY_BELOW = 64 };

static int by_bytes(const void *x, const void *y, void *ctx) {
    const struct pn_tokens *v = ctx;
    int32_t a = *(const int32_t *)x, b = *(const int32_t *)y;
    uint32_t na = v->text_at[a + 1] - v->text_at[a], nb = v->text_at[b + 1] - v->text_at[b];
    int order = memcmp(v->text + v->text_at[a], v->text + v->text_at[b], na < nb ? na : nb);
    if (order != 0) return order;
    if (na != nb) return na < nb ? -1 : 1;
    return a < b ? -1 : a > b;
}

static uint32_t no_id(const struct pn_tokens *v) {
    return ((uint32_t)v->n_vocab + 63) / 64 * 64;
}

/* How many nodes and twins the sorted tokens make; with `fill` they are made. */
static void make_nodes(struct pn_tokens *v, bool fill) {
    uint32_t n = 0, open[MAX_TOKEN_BYTES + 1], depth = 0; /* open: the nodes of the token before */
    v->n_twins = 0;
    for (uint32_t i = 0; i < v->n_ids; i++) {
        const char *text = v->text + v->text_at[v->ids[i]], *before = i ? v->text + v->text_at[v->ids[i - 1]] : "";
        uint32_t len = v->text_at[v->ids[i] + 1] - v->text_at[v->ids[i]], same = 0;
        while (same < depth && same < len && text[same] == before[same]) same++;
        if (same == len) { /* and so is all of the token before: a longer one comes later */
            if (fill) v->twins[v->n_twins][0] = v->ids[i], v->twins[v->n_twins][1] = v->ids[i - 1];
            v->n_twins++;
            continue;
        }
        while (fill && depth > same) v->nodes[open[--depth]].skip = n;
        depth = same;
        for (; depth < len; depth++, n++) {
            open[depth] = n;
            if (fill)
                v->nodes[n] = (struct pn_token_node){ .id = depth + 1 == len ? (uint32_t)v->ids[i] : no_id(v), .depth = (uint16_t)(depth + 1),
                                                      .byte = (uint8_t)text[depth] };
        }
    }
    while (fill && depth > 0) v->nodes[open[--depth]].skip = n;
    v->n_nodes = n;
}

/* Notes what stands below the nodes that have much below them; how many there are, or with `fill` what. */
static void make_below(struct pn_tokens *v, bool fill) {
    v->n_below = 1;
    for (uint32_t i = 0; i < v->n_nodes; i++) {
        struct pn_token_node *node = &v->nodes[i];
        if (node->skip - i < MANY_BELOW) continue;
        if (fill) {
            node->below = v->n_below;
            for (uint32_t k = i + 1; k < node->skip; k++) v->below[v->n_below][v->nodes[k].byte >> 6] |= 1ULL << (v->nodes[k].byte & 63);
        }
        v->n_below++;
    }
}

void pn_tokens_free(struct pn_tokens *v) {
    if (!v) return;
    free(v->nodes);
    free(v->below);
    free(v->twins);
    free(v->ids);
    free(v->ends);
    free(v->text_at);
    free(v->text);
    free(v);
}

static int fail_memory(struct pn_tokens *v, struct fo_err *e) {
    pn_tokens_free(v);
    return fo_fail(e, FO_ENOMEM, "no memory for the trie of a vocabulary");
}

/* What a token that ends nothing is to a grammar; nothing for one that none can allow. */
static void put_bytes(const struct fo_tok *t, int32_t id, struct fo_buf *text) {
    bool control = fo_tok_is_control(t, id);
    size_t before = text->len;
    if (control) fo_buf_putc(text, (char)PN_MARK);
    size_t own = text->len;
    fo_tok_piece(t, id, control, text);
    if (text->failed || text->len == before) return;
    bool none = text->len == own || memchr(text->data + own, PN_MARK, text->len - own);
    if (none) text->data[text->len = before] = '\0';
}

int pn_tokens_new(const struct fo_tok *t, struct pn_tokens **ret, struct fo_err *e) {
    struct pn_tokens *v = calloc(1, sizeof *v);
    if (!v) return fail_memory(v, e);
    size_t n = (size_t)fo_tok_n_vocab(t);
    struct fo_buf text;
    v->n_vocab = fo_tok_n_vocab(t);
    v->ids = malloc((n + 1) * sizeof *v->ids);
    v->ends = malloc((n + 1) * sizeof *v->ends);
    v->text_at = calloc(n + 1, sizeof *v->text_at);
    if (!v->ids || !v->ends || !v->text_at) return fail_memory(v, e);
    fo_buf_init(&text, UINT32_MAX / 2);
    for (int32_t id = 0; id < v->n_vocab; id++) {
        size_t before = text.len;
        if (fo_tok_is_end(t, id))
            v->ends[v->n_ends++] = id;
        else
            put_bytes(t, id, &text);
        if (text.failed) break;
        if (text.len - before > MAX_TOKEN_BYTES) text.data[text.len = before] = '\0'; /* no text of a token, and no depth of a trie */
        v->text_at[id + 1] = (uint32_t)text.len;
        if (text.len == before) continue;
        v->ids[v->n_ids++] = id;
        if (text.len - before > v->longest) v->longest = (uint32_t)(text.len - before);
    }
    bool failed = text.failed;
    v->bytes = sizeof *v + (n + 1) * (sizeof *v->ids + sizeof *v->ends + sizeof *v->text_at) + text.len;
    v->text = fo_buf_steal(&text);
    fo_buf_done(&text);
    if (failed) return fail_memory(v, e);
    if (v->n_ids > 1) qsort_r(v->ids, v->n_ids, sizeof *v->ids, by_bytes, v);
    make_nodes(v, false);
    v->nodes = malloc(((size_t)v->n_nodes + 1) * sizeof *v->nodes);
    v->twins = malloc(((size_t)v->n_twins + 1) * sizeof *v->twins);
    if (!v->nodes || !v->twins) return fail_memory(v, e);
    make_nodes(v, true);
    make_below(v, false);
    v->below = calloc(v->n_below, sizeof *v->below);
    if (!v->below) return fail_memory(v, e);
    make_below(v, true);
    v->bytes += ((size_t)v->n_nodes + 1) * sizeof *v->nodes + ((size_t)v->n_twins + 1) * sizeof *v->twins + v->n_below * sizeof *v->below;
    *ret = v;
    return 0;
}
