/* SPM (tokenizer.ggml.model "llama"): BPE over characters whose order of merging is the score of the token a pair makes, with
 * <0x00>..<0xFF> for what no token covers. Where the file says so (tokenizer.pantheon.merges: a tokenizer.json has no scores), a list
 * of merges decides instead, as in byte-level BPE.
 *
 * Texts in the file write a space as U+2581. Here it is the other way round: U+2581 in the input and in the vocabulary becomes a
 * space, so that text only shrinks. A space goes in front of the text, and after every special token, unless the file says not.
 *
 * The whole text is one word in principle. Where no token has a space behind another character (all published vocabularies),
 * nothing can merge across such a place, so the text is cut there and words that come again are looked up. */
#include "foundry/tok_int.h"

#include <stdlib.h>

#include "foundry/base/err.h"
#include "foundry/tok_merge.h"
#include "foundry/unicode.h"

#define SPACE_MARK "\xE2\x96\x81" /* U+2581 */

static size_t put_plain(char *out, const char *s, size_t n) {
    size_t len = 0;
    for (size_t i = 0; i < n;) {
        if (n - i >= 3 && !memcmp(s + i, SPACE_MARK, 3)) {
            out[len++] = ' ';
            i += 3;
        } else {
            out[len++] = s[i++];
        }
    }
    return len;
}

static void spm_piece(const struct fo_tok_entry *en, void (*put)(void *ctx, uint8_t byte), void *ctx) {
    for (size_t i = 0; i < en->len;) {
        if (en->len - i >= 3 && !memcmp(en->s + i, SPACE_MARK, 3)) {
            put(ctx, ' ');
            i += 3;
        } else {
            put(ctx, (uint8_t)en->s[i++]);
        }
    }
}

/* The token that text may become whose plain text this is, -1 = none. */
static int32_t find_plain(const struct fo_tok *t, const char *s, size_t n) {
    for (size_t i = fo_tok_hash_bytes(t->seed, s, n) & t->by_plain.mask;; i = (i + 1) & t->by_plain.mask) {
        uint32_t slot = t->by_plain.slots[i];
        if (!slot) return -1;
        uint32_t at = t->plain_at[slot - 1];
        if (t->plain_at[slot] - at == n && !memcmp(t->plain + at, s, n)) return (int32_t)(slot - 1);
    }
}

/* A symbol is its length. */
static inline uint32_t spm_pair(const struct fo_tok *t, uint32_t a, uint32_t b, const char *s, size_t n, uint32_t *ret_made) {
    *ret_made = a + b;
    int32_t id = n <= t->max_len ? find_plain(t, s, n) : -1;
    return id < 0 ? FO_MERGE_NONE : t->rank[id];
}

static inline size_t spm_len(const struct fo_tok *t, uint32_t sym) {
    (void)t;
    return sym;
}

/* With merges a symbol is an id, or NO_TOKEN and the length of a character without one. */
#define NO_TOKEN (UINT32_MAX - 8)

static inline size_t id_len(const struct fo_tok *t, uint32_t sym) {
    return sym >= NO_TOKEN ? sym - NO_TOKEN : t->plain_at[sym + 1] - t->plain_at[sym];
}

static inline uint32_t id_pair(const struct fo_tok *t, uint32_t a, uint32_t b, const char *s, size_t n, uint32_t *ret_made) {
    (void)s, (void)n;
    return fo_tok_pair_find(t, a, b, ret_made);
}

static uint32_t first_symbol(const struct fo_tok *t, const char *s, size_t n) {
    int32_t id = t->pair ? find_plain(t, s, n) : -1;
    return !t->pair ? (uint32_t)n : id >= 0 ? (uint32_t)id : (uint32_t)(NO_TOKEN + n);
}

static int push_symbol(const struct fo_tok *t, struct fo_tok_work *w, const char *s, size_t n) {
    int32_t id = find_plain(t, s, n);
    int rc = 0;
    bool bytes = true;
    if (id >= 0) return fo_tok_push(w, id);
    for (size_t i = 0; i < n; i++) bytes = bytes && t->byte_id[(uint8_t)s[i]] >= 0;
    if (!bytes) return t->unk >= 0 ? fo_tok_push(w, t->unk) : 0;
    for (size_t i = 0; i < n && !rc; i++) rc = fo_tok_push(w, t->byte_id[(uint8_t)s[i]]);
    return rc;
}

/* A character's length as its first byte claims it. Broken UTF-8 thus takes the bytes behind it along; they come out as bytes too,
 * as references do it, and nothing is lost. */
static size_t char_len(const char *s, size_t n) {
    uint8_t lead = (uint8_t)*s;
    size_t len = lead < 0xC0 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
    return len < n ? len : n;
}

static int spm_push(const struct fo_tok *t, struct fo_tok_work *w, uint32_t sym, const char *s, size_t n) {
    return t->pair && sym < NO_TOKEN ? fo_tok_push(w, (int32_t)sym) : push_symbol(t, w, s, n);
}

static inline void spm_fill(const struct fo_tok *t, struct fo_merge_window *m, const char *s, size_t n) {
    size_t len;
    m->n = 0;
    for (size_t i = 0; i < n; i += len) {
        len = char_len(s + i, n - i);
        m->sym[m->n] = first_symbol(t, s + i, len);
        m->at[m->n++] = (uint16_t)i;
    }
    m->at[m->n] = (uint16_t)n;
}

static int merge_long(const struct fo_tok *t, struct fo_tok_work *w, const char *s, size_t n) {
    size_t len;
    bool done;
    int rc = t->pair ? fo_merge_windows(t, w, s, n, spm_fill, id_pair, id_pair, spm_push, &done)
                     : fo_merge_windows(t, w, s, n, spm_fill, spm_pair, spm_pair, spm_push, &done);
    if (rc || done || (rc = fo_merge_room(w, n))) return rc;
    for (size_t i = 0; i < n; i += len) {
        len = char_len(s + i, n - i);
        w->sym[i].value = w->sym[i + len - 1].value = first_symbol(t, s + i, len);
    }
    if (t->pair) fo_merge_many(t, w, s, n, id_pair, id_len);
    else fo_merge_many(t, w, s, n, spm_pair, spm_len);
    for (size_t i = 0; i < n && !rc; i += len) {
        len = t->pair ? id_len(t, w->sym[i].value) : w->sym[i].value;
        rc = spm_push(t, w, w->sym[i].value, s + i, len);
    }
    return rc;
}

static int merge_word(const struct fo_tok *t, struct fo_tok_work *w, const char *s, size_t n) {
    size_t len;
    int rc = 0;
    if (n > FO_MERGE_SHORT) return (rc = fo_tok_check_room(w, s, n)) ? rc : merge_long(t, w, s, n);
    struct fo_merge_short m = { .n = 0 };
    for (size_t i = 0; i < n; i += len) {
        len = char_len(s + i, n - i);
        m.sym[m.n] = first_symbol(t, s + i, len);
        m.at[m.n++] = (uint32_t)i;
    }
    m.at[m.n] = (uint32_t)n;
    if (t->pair) fo_merge_few(t, &m, s, id_pair, id_pair);
    else fo_merge_few(t, &m, s, spm_pair, spm_pair);
    for (unsigned i = 0; i < m.n && !rc; i++) rc = spm_push(t, w, m.sym[i], s + m.at[i], m.at[i + 1] - m.at[i]);
    return rc;
}

static int encode_word(const struct fo_tok *t, struct fo_tok_work *w, const char *s, size_t n) {
    struct fo_tok_seen *slot;
    bool done;
    int rc = fo_tok_seen_find(w, s, n, &slot, &done);
    if (rc || done) return rc;
    size_t before = w->n;
    rc = merge_word(t, w, s, n);
    if (!rc && slot) *slot = (struct fo_tok_seen){ s, (uint32_t)n, (uint32_t)(w->n - before), before };
    return rc;
}

/* The plain text of every piece of a call goes behind that of the piece before, since words seen earlier are compared with it.
 * Pieces are parted by special tokens of at least one byte, so input and one byte are room enough for the spaces put in front. */
static int spm_encode(const struct fo_tok *t, struct fo_tok_work *w, const char *s, size_t n) {
    int rc = 0;
    size_t len = 0;
    if (!w->text && !(w->text = malloc(w->text_size))) return fo_fail(w->e, FO_ENOMEM, "no memory for %zu bytes of text", w->text_size);
    char *p = w->text + w->text_len;
    bool has = *s == ' ' || (n >= 3 && !memcmp(s, SPACE_MARK, 3)), may = t->space_prefix == FO_PREFIX_MISSING || (t->space_prefix == FO_PREFIX_FIRST && w->first);
    if (t->space_prefix == FO_PREFIX_ALL || (may && !has)) p[len++] = ' ';
    len += put_plain(p + len, s, n);
    w->text_len += len;
    if (!t->words && !t->split_spaces) return encode_word(t, w, p, len);
    for (size_t from = 0, at = 1; from < len && !rc; from = at++) {
        while (at < len && !(p[at] == ' ' && (t->split_spaces || p[at - 1] != ' '))) at++;
        rc = encode_word(t, w, p + from, at - from);
    }
    return rc;
}

/* --- open ------------------------------------------------------------------------------------ */

struct scored {
    float score;
    uint32_t id;
};

static int by_score(const void *a, const void *b) {
    const struct scored *x = a, *y = b;
    return x->score > y->score ? -1 : x->score < y->score;
}

/* rank = how many different scores are better. */
static int open_scores(struct fo_tok *t, const struct fo_gguf *g, struct fo_err *e) {
    const struct fo_gguf_kv *kv = fo_gguf_find(g, "tokenizer.ggml.scores");
    if (!kv || kv->type != FO_GGUF_ARRAY || kv->elem == FO_GGUF_STRING || kv->elem == FO_GGUF_ARRAY) {
        return fo_fail(e, FO_EFORMAT, "tokenizer.ggml.scores is missing or not an array of numbers");
    }
    if (kv->n != t->n) {
        return fo_fail_need(e, FO_EFORMAT, t->n, kv->n, "tokenizer.ggml.scores has %llu entries for %u tokens", (unsigned long long)kv->n,
                            t->n);
    }
    struct scored *order = malloc(t->n * sizeof *order);
    t->rank = malloc(t->n * sizeof *t->rank);
    if (!order || !t->rank) {
        free(order);
        return fo_fail(e, FO_ENOMEM, "no memory for the tokenizer's scores");
    }
    for (uint32_t i = 0; i < t->n; i++) {
        float score = (float)fo_gguf_array_f64(kv, i);
        order[i] = (struct scored){ score == score ? score : -3.4e38f, i };
    }
    qsort(order, t->n, sizeof *order, by_score);
    for (uint32_t i = 0, rank = 0; i < t->n; i++) {
        if (i && order[i].score < order[i - 1].score) rank++;
        t->rank[order[i].id] = rank;
    }
    t->n_ranks = t->n; /* at most */
    free(order);
    return 0;
}

static int open_plain(struct fo_tok *t, bool merges, struct fo_err *e) {
    uint64_t total = 0;
    for (uint32_t i = 0; i < t->n; i++) total += t->entry[i].len;
    if (total > UINT32_MAX) return fo_fail(e, FO_EFORMAT, "tokenizer.ggml.tokens: %llu bytes of text", (unsigned long long)total);
    t->plain_bytes = (size_t)total + 1;
    t->plain = malloc(t->plain_bytes);
    t->plain_at = malloc(((size_t)t->n + 1) * sizeof *t->plain_at);
    if (!t->plain || !t->plain_at) return fo_fail(e, FO_ENOMEM, "no memory for the tokenizer's vocabulary");
    int rc = fo_tok_hash_new(&t->by_plain, t->n, e);
    if (rc) return rc;
    t->words = true;
    uint32_t at = 0;
    for (uint32_t i = 0; i < t->n; i++) {
        struct fo_tok_entry *en = &t->entry[i];
        t->plain_at[i] = at;
        size_t n = put_plain(t->plain + at, en->s, en->len);
        const char *s = t->plain + at;
        t->plain_at[i + 1] = at += (uint32_t)n;
        en->n_sym = n <= UINT16_MAX ? (uint16_t)n : 0;
        if (!n || !fo_tok_is_mergeable(en)) continue;
        if (merges && memchr(en->s, ' ', en->len)) continue; /* text has none when it is merged, only U+2581 */
        if (n > t->max_len) t->max_len = n;
        for (size_t k = 1; k < n; k++) t->words = t->words && !(s[k] == ' ' && s[k - 1] != ' ');
        int32_t have = find_plain(t, s, n);
        if (have >= 0) continue; /* the first of equal texts */
        size_t slot = fo_tok_hash_bytes(t->seed, s, n) & t->by_plain.mask;
        while (t->by_plain.slots[slot]) slot = (slot + 1) & t->by_plain.mask;
        t->by_plain.slots[slot] = i + 1;
    }
    return 0;
}

/* The merges that the scores amount to: of any two tokens whose texts together are one, by its score. Only where every character of a
 * token is a token too (and none is broken UTF-8), as in all published vocabularies; else texts are looked up while merging. */
static int open_pairs(struct fo_tok *t, struct fo_err *e) {
    size_t n_pairs = 0, len;
    for (int adding = 0; adding < 2; adding++) {
        for (uint32_t i = 0; i < t->n; i++) {
            const char *s = t->plain + t->plain_at[i];
            size_t n = t->plain_at[i + 1] - t->plain_at[i];
            if (!n || find_plain(t, s, n) != (int32_t)i) continue; /* text does not become it */
            for (size_t at = 0; at < n; at += len) {
                if (!adding && fo_utf8_next(s + at, n - at, &len) >= FO_UNICODE_END) return 0;
                len = char_len(s + at, n - at);
                if (!adding && find_plain(t, s + at, len) < 0) return 0;
                int32_t a = at ? find_plain(t, s, at) : -1, b = a >= 0 ? find_plain(t, s + at, n - at) : -1;
                n_pairs += !adding && b >= 0;
                if (adding && b >= 0) fo_tok_pair_add(t, (uint32_t)a, (uint32_t)b, t->rank[i], i);
            }
        }
        int rc = adding ? 0 : fo_tok_pairs_new(t, n_pairs, e);
        if (rc) return rc;
    }
    return 0;
}

static int spm_open(struct fo_tok *t, const struct fo_gguf *g, struct fo_err *e) {
    static const char *const prefixes[] = { "none", "all", "missing", "first" }; /* as FO_PREFIX_* */
    bool merges = false, prefix = true;
    int rc = fo_tok_read_flag(g, "tokenizer.pantheon.merges", &merges, e);
    if (rc || (rc = open_plain(t, merges, e)) || (rc = merges ? fo_tok_open_merges(t, g, e) : open_scores(t, g, e)) ||
        (!merges && (rc = open_pairs(t, e)))) {
        return rc;
    }
    for (uint32_t i = 0; i < t->n; i++) {
        const struct fo_tok_entry *en = &t->entry[i];
        int byte = en->type == FO_TT_BYTE ? fo_tok_byte_name(en->s, en->len) : -1;
        if (byte >= 0 && t->byte_id[byte] < 0) t->byte_id[byte] = (int32_t)i;
    }
    struct fo_str how;
    if ((rc = fo_tok_read_flag(g, "tokenizer.ggml.add_space_prefix", &prefix, e)) ||
        (rc = fo_tok_read_flag(g, "tokenizer.pantheon.split_spaces", &t->split_spaces, e))) {
        return rc;
    }
    t->space_prefix = prefix ? FO_PREFIX_ALL : FO_PREFIX_NONE;
    if (!fo_gguf_find(g, "tokenizer.pantheon.space_prefix")) return 0;
    if ((rc = fo_gguf_get_str(g, "tokenizer.pantheon.space_prefix", &how, e))) return rc;
    for (uint8_t i = 0; i < sizeof prefixes / sizeof prefixes[0]; i++) {
        if (strlen(prefixes[i]) == how.len && !memcmp(prefixes[i], how.s, how.len)) {
            t->space_prefix = i;
            return 0;
        }
    }
    return fo_fail(e, FO_EFORMAT, "tokenizer.pantheon.space_prefix is '%.*s'", how.len < 64 ? (int)how.len : 64, how.s);
}

const struct fo_tok_algo fo_tok_spm = {
    .model = "llama", .open = spm_open, .encode = spm_encode, .piece = spm_piece, .bos = 1, .eos = 2, .add_bos = true,
};
