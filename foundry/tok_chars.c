/* Byte-level BPE that starts from characters: which characters of three bytes (Chinese, Japanese, Korean and most other scripts) may be taken
 * as their tokens before any merging, without changing what comes out.
 *
 * The merge taken is always the one of the lowest rank. Say a character's bytes, merged by themselves, become one token, the highest rank on
 * the way being r. Then it may be taken at once if every merge that takes a piece of it together with something beyond its edges (its
 * first bytes, or all of it, behind a token that ends in a continuation byte; its last bytes, or all of it, before one that starts with a
 * lead byte) has a rank above r. For as long as such a character is incomplete, a merge of its own, of r or less, is there to be taken
 * before any of those; so nothing crosses its edges before it is complete, and whoever starts with it complete finds no pair to take that
 * would not have had to wait anyway. All other merges are the same, in the same order, whatever its neighbours are: only the bytes beside it
 * matter, a continuation byte before it and a lead byte behind, or nothing. */
#include <stdlib.h>

#include "foundry/base/err.h"
#include "foundry/tok_int.h"
#include "foundry/unicode.h"

enum { N_BYTES = 3 };

/* The raw byte at an end of a token's text. */
static int edge(const struct fo_tok_entry *en, bool last) {
    size_t at = last && en->len ? en->len - 1 : 0, len;
    while (last && at && ((uint8_t)en->s[at] & 0xC0) == 0x80) at--;
    return en->len ? fo_tok_char_byte(fo_utf8_next(en->s + at, en->len - at, &len)) : -1;
}

struct ranks {
    uint32_t *left;  /* [n] lowest of the merges of a token that ends in a continuation byte with it */
    uint32_t *right; /* [n] lowest of its merges with a token that starts with a lead byte */
};

static uint32_t least(uint32_t a, uint32_t b) {
    return a < b ? a : b;
}

static void collect(const struct fo_tok *t, struct ranks *r) {
    for (size_t i = 0; i <= t->pair_mask; i++) {
        const struct fo_tok_pair *p = &t->pair[i];
        if (p->a == UINT32_MAX) continue;
        int a_last = edge(&t->entry[p->a], true), b_first = edge(&t->entry[p->b], false);
        if (a_last >= 0x80 && a_last < 0xC0) r->left[p->b] = least(r->left[p->b], p->rank);
        if (b_first >= 0xC0) r->right[p->a] = least(r->right[p->a], p->rank);
    }
}

/* The token of a character, UINT32_MAX when it has to be merged with the others. */
static uint32_t token_of(const struct fo_tok *t, const struct ranks *r, const uint32_t byte[N_BYTES]) {
    uint32_t front = 0, back = 0, whole = 0, begin = byte[0], end = byte[2];
    uint32_t first = fo_tok_pair_find(t, byte[0], byte[1], &front), second = fo_tok_pair_find(t, byte[1], byte[2], &back), last;
    if (first == UINT32_MAX && second == UINT32_MAX) return UINT32_MAX;
    if (first <= second) {
        last = fo_tok_pair_find(t, begin = front, byte[2], &whole);
    } else {
        first = second;
        last = fo_tok_pair_find(t, byte[0], end = back, &whole);
    }
    if (last == UINT32_MAX) return UINT32_MAX;
    uint32_t done = first > last ? first : last;
    uint32_t before = least(least(r->left[byte[0]], r->left[begin]), r->left[whole]);
    uint32_t behind = least(least(r->right[byte[2]], r->right[end]), r->right[whole]);
    return before > done && behind > done ? whole : UINT32_MAX;
}

static void fill(struct fo_tok *t, const struct ranks *r) {
    for (uint32_t i = 0; i < FO_TOK_CHARS; i++) {
        int32_t id[N_BYTES] = { t->byte_id[0xE0 | i >> 12], t->byte_id[0x80 | (i >> 6 & 63)], t->byte_id[0x80 | (i & 63)] };
        bool bytes = id[0] >= 0 && id[1] >= 0 && id[2] >= 0;
        t->chars[i] = bytes ? token_of(t, r, (uint32_t[]){ (uint32_t)id[0], (uint32_t)id[1], (uint32_t)id[2] }) : UINT32_MAX;
    }
}

int fo_tok_open_chars(struct fo_tok *t, struct fo_err *e) {
    size_t n = t->n, bytes = n * sizeof(uint32_t);
    struct ranks r = { malloc(bytes), malloc(bytes) };
    int rc = 0;
    t->chars = malloc(FO_TOK_CHARS * sizeof *t->chars);
    if (!r.left || !r.right || !t->chars) {
        rc = fo_fail(e, FO_ENOMEM, "no memory for the tokenizer's characters");
    } else {
        memset(r.left, 0xFF, bytes);
        memset(r.right, 0xFF, bytes);
        collect(t, &r);
        fill(t, &r);
    }
    free(r.left);
    free(r.right);
    return rc;
}
