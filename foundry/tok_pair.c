/* The merges of a vocabulary: a hash from pairs of ids to what they make, see tok_int.h. */
#include <stdlib.h>

#include "foundry/base/err.h"
#include "foundry/tok_int.h"

int fo_tok_pairs_new(struct fo_tok *t, size_t n, struct fo_err *e) {
    size_t size = 16, words = 16;
    while (size < n + n / 2) size *= 2;
    while (words * 64 < n * 8) words *= 2;
    t->pair = malloc(size * sizeof *t->pair);
    t->pair_bits = calloc(words, sizeof *t->pair_bits);
    if (!t->pair || !t->pair_bits) return fo_fail(e, FO_ENOMEM, "no memory for the tokenizer's merges");
    memset(t->pair, 0xFF, size * sizeof *t->pair);
    t->pair_mask = size - 1;
    t->pair_bits_mask = words - 1;
    return 0;
}

void fo_tok_pair_add(struct fo_tok *t, uint32_t a, uint32_t b, uint32_t rank, uint32_t id) {
    uint64_t hash = fo_tok_mix((uint64_t)a << 32 | b, t->seed), bit = hash >> 32;
    struct fo_tok_pair *p = fo_tok_pair_slot(t, hash, a, b);
    if (p->a == UINT32_MAX) *p = (struct fo_tok_pair){ a, b, rank, id };
    t->pair_bits[(bit >> 6) & t->pair_bits_mask] |= UINT64_C(1) << (bit & 63);
}

int fo_tok_open_merges(struct fo_tok *t, const struct fo_gguf *g, struct fo_err *e) {
    const struct fo_gguf_kv *kv = fo_gguf_find(g, "tokenizer.ggml.merges");
    if (!kv || kv->type != FO_GGUF_ARRAY || kv->elem != FO_GGUF_STRING) {
        return fo_fail(e, FO_EFORMAT, "tokenizer.ggml.merges is missing or not an array of strings");
    }
    if (kv->n >= INT32_MAX) return fo_fail(e, FO_EFORMAT, "tokenizer.ggml.merges has too many entries");
    int rc = fo_tok_pairs_new(t, (size_t)kv->n, e);
    if (rc) return rc;
    t->n_ranks = (size_t)kv->n;
    uint64_t at = 0;
    struct fo_str m;
    char joined[1024];
    for (uint32_t rank = 0; fo_gguf_array_str(kv, &at, &m); rank++) {
        const char *gap = m.len > 2 ? memchr(m.s + 1, ' ', m.len - 1) : NULL;
        if (!gap || m.len - 1 > sizeof joined) continue;
        size_t left = (size_t)(gap - m.s), right = m.len - left - 1;
        memcpy(joined, m.s, left);
        memcpy(joined + left, gap + 1, right);
        int32_t a = fo_tok_find(t, m.s, left), b = fo_tok_find(t, gap + 1, right), id = fo_tok_find(t, joined, left + right);
        if (a < 0 || b < 0 || id < 0 || !fo_tok_is_mergeable(&t->entry[id])) continue;
        /* Broken UTF-8 could count fewer characters joined than apart; a merge must cover exactly what its parts cover. */
        if (!t->entry[id].n_sym || t->entry[a].n_sym + t->entry[b].n_sym != t->entry[id].n_sym) continue;
        fo_tok_pair_add(t, (uint32_t)a, (uint32_t)b, rank, (uint32_t)id);
    }
    return 0;
}
