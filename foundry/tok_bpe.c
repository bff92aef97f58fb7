/* Byte-level BPE (tokenizer.ggml.model "gpt2"): a pre-tokenizer rule cuts the text into words; a word starts as its bytes, each
 * of which has a token, and the merges of the file join them (tok_merge.h); or as its characters, where that is the same (tok_chars.c).
 *
 * What HuggingFace directories say beyond that (their own expressions, normalisation) is in metadata named tokenizer.pantheon.*.
 *
 * Token texts in the file are not raw: every byte is written as a printable character, itself where it is one (0x21..0x7E,
 * 0xA1..0xAC, 0xAE..0xFF) and else the next one from U+0100 on, so a space is U+0120. */
#include "foundry/tok_int.h"

#include <stdlib.h>

#include "foundry/base/buf.h"
#include "foundry/base/err.h"
#include "foundry/tok_merge.h"
#include "foundry/tok_pre.h"
#include "foundry/unicode.h"
#include "foundry/unicode_nfc.h"

static bool is_printed(unsigned byte) {
    return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

uint32_t fo_tok_byte_char(unsigned byte) {
    if (is_printed(byte)) return byte;
    uint32_t cp = 0x100;
    for (unsigned b = 0; b < byte; b++) cp += !is_printed(b);
    return cp;
}

int fo_tok_char_byte(uint32_t cp) {
    if (cp < 0x100) return is_printed(cp) ? (int)cp : -1;
    if (cp < 0x121) return (int)(cp - 0x100);
    if (cp < 0x143) return (int)(cp - 0x121 + 0x7F);
    return cp == 0x143 ? 0xAD : -1;
}

static size_t put_char(char *out, uint32_t cp) {
    if (cp < 0x80) {
        out[0] = (char)cp;
        return 1;
    }
    out[0] = (char)(0xC0 | cp >> 6);
    out[1] = (char)(0x80 | (cp & 0x3F));
    return 2;
}

static void bpe_piece(const struct fo_tok_entry *en, void (*put)(void *ctx, uint8_t byte), void *ctx) {
    size_t len;
    for (size_t i = 0; i < en->len; i += len) {
        uint32_t cp = fo_utf8_next(en->s + i, en->len - i, &len);
        int byte = cp < FO_UNICODE_END ? fo_tok_char_byte(cp) : -1;
        if (byte >= 0) put(ctx, (uint8_t)byte);
        else for (size_t j = 0; j < len; j++) put(ctx, (uint8_t)en->s[i + j]);
    }
}

/* --- merging --------------------------------------------------------------------------------- */

/* A symbol is an id, or NO_TOKEN for a byte without one. */
#define NO_TOKEN (UINT32_MAX - 1)

static inline uint32_t bpe_pair(const struct fo_tok *t, uint32_t a, uint32_t b, const char *s, size_t n, uint32_t *ret_made) {
    (void)s, (void)n;
    return fo_tok_pair_find(t, a, b, ret_made);
}

/* Of two that nothing has been merged into: mostly bytes. */
static inline uint32_t bpe_first(const struct fo_tok *t, uint32_t a, uint32_t b, const char *s, size_t n, uint32_t *ret_made) {
    if (n != 2) return fo_tok_pair_find(t, a, b, ret_made);
    const struct fo_tok_first *p = &t->first[(uint8_t)s[0] << 8 | (uint8_t)s[1]];
    *ret_made = p->id;
    return p->rank;
}

static inline size_t bpe_len(const struct fo_tok *t, uint32_t sym) {
    return sym == NO_TOKEN ? 1 : t->entry[sym].n_sym;
}

/* The token whose text is this word, -1 = none. */
static int32_t whole_word(const struct fo_tok *t, const char *s, size_t n) {
    char text[2 * 256];
    size_t len = 0;
    if (n > t->max_len || n > sizeof text / 2) return -1;
    for (size_t i = 0; i < n; i++) len += put_char(text + len, t->byte_char[(uint8_t)s[i]]);
    int32_t id = fo_tok_find(t, text, len);
    return id >= 0 && fo_tok_is_mergeable(&t->entry[id]) ? id : -1;
}

static int bpe_push(const struct fo_tok *t, struct fo_tok_work *w, uint32_t sym, const char *s, size_t n) {
    (void)t, (void)s, (void)n;
    return sym == NO_TOKEN ? 0 : fo_tok_push(w, (int32_t)sym);
}

/* The token of the character of three bytes at s[i], where merging may start from it: tok_chars.c. */
static inline uint32_t char_at(const struct fo_tok *t, const char *s, size_t i, size_t n) {
    if (n - i < 3 || ((uint8_t)s[i] & 0xF0) != 0xE0) return UINT32_MAX;
    uint8_t a = (uint8_t)s[i], b = (uint8_t)s[i + 1], c = (uint8_t)s[i + 2];
    if ((b & 0xC0) != 0x80 || (c & 0xC0) != 0x80) return UINT32_MAX;
    if ((i && ((uint8_t)s[i - 1] & 0xC0) != 0x80) || (i + 3 < n && (uint8_t)s[i + 3] < 0xC0)) return UINT32_MAX;
    return t->chars[(a & 15u) << 12 | (b & 63u) << 6 | (c & 63u)];
}

/* The symbols that the merging of s[0..n) starts from. sym and at have room for n and n + 1; the number of symbols is returned, and at has
 * the end behind the last one. */
static inline unsigned start(const struct fo_tok *t, const char *s, size_t n, uint32_t *sym, uint16_t *at) {
    unsigned k = 0;
    for (size_t i = 0; i < n; k++) {
        uint32_t whole = char_at(t, s, i, n);
        int32_t id = t->byte_id[(uint8_t)s[i]];
        at[k] = (uint16_t)i;
        sym[k] = whole != UINT32_MAX ? whole : id < 0 ? NO_TOKEN : (uint32_t)id;
        i += whole != UINT32_MAX ? 3 : 1;
    }
    at[k] = (uint16_t)n;
    return k;
}

static inline void bpe_fill(const struct fo_tok *t, struct fo_merge_window *m, const char *s, size_t n) {
    m->n = start(t, s, n, m->sym, m->at);
}

static int merge_word(const struct fo_tok *t, struct fo_tok_work *w, const char *s, size_t n) {
    int rc = 0;
    if (n <= FO_MERGE_SHORT) {
        struct fo_merge_short m;
        m.n = start(t, s, n, m.sym, m.at);
        fo_merge_few(t, &m, s, bpe_first, bpe_pair);
        for (unsigned i = 0; i < m.n && !rc; i++) rc = bpe_push(t, w, m.sym[i], NULL, 0);
        return rc;
    }
    bool done;
    if ((rc = fo_tok_check_room(w, s, n)) || (rc = fo_merge_windows(t, w, s, n, bpe_fill, bpe_first, bpe_pair, bpe_push, &done)) || done) return rc;
    if ((rc = fo_merge_room(w, n))) return rc;
    for (size_t i = 0; i < n; i++) {
        int32_t id = t->byte_id[(uint8_t)s[i]];
        w->sym[i].value = id < 0 ? NO_TOKEN : (uint32_t)id;
    }
    fo_merge_many(t, w, s, n, bpe_pair, bpe_len);
    for (size_t i = 0; i < n && !rc; i += bpe_len(t, w->sym[i].value)) rc = bpe_push(t, w, w->sym[i].value, NULL, 0);
    return rc;
}

static int encode_word(void *ctx, const char *s, size_t n) {
    struct fo_tok_work *w = ctx;
    const struct fo_tok *t = w->t;
    if (n == 1) return t->byte_id[(uint8_t)*s] < 0 ? 0 : fo_tok_push(w, t->byte_id[(uint8_t)*s]);
    struct fo_tok_seen *slot;
    bool done;
    int rc = fo_tok_seen_find(w, s, n, &slot, &done);
    if (rc || done) return rc;
    size_t before = w->n;
    int32_t id = t->whole_words ? whole_word(t, s, n) : -1;
    rc = id >= 0 ? fo_tok_push(w, id) : merge_word(t, w, s, n);
    if (!rc && slot) *slot = (struct fo_tok_seen){ s, (uint32_t)n, (uint32_t)(w->n - before), before };
    return rc;
}

/* A copy of the text as the merges want it: normalised, with a space in front. */
static int bpe_prepare(struct fo_tok_work *w, bool normalize, bool space, const char **s, size_t *n) {
    struct fo_tok_copy *copy = malloc(sizeof *copy);
    struct fo_buf out;
    if (!copy) return fo_fail(w->e, FO_ENOMEM, "no memory for %zu bytes of text", *n);
    fo_buf_init(&out, 3 * *n + 1);
    if (space) fo_buf_putc(&out, ' ');
    int rc = normalize ? fo_nfc(*s, *n, &out, w->e) : 0;
    if (!normalize && !fo_buf_append(&out, *s, *n)) rc = fo_fail(w->e, FO_ENOMEM, "no memory for %zu bytes of text", *n);
    if (rc) {
        fo_buf_done(&out);
        free(copy);
        return rc;
    }
    *n = out.len;
    *s = copy->s = fo_buf_steal(&out);
    copy->next = w->copies;
    w->copies = copy;
    return 0;
}

static int bpe_encode(const struct fo_tok *t, struct fo_tok_work *w, const char *s, size_t n) {
    bool normalize = t->nfc && !fo_nfc_is_certain(s, n), space = t->spaced && *s != ' ';
    size_t read;
    int rc = normalize || space ? bpe_prepare(w, normalize, space, &s, &n) : 0;
    if (rc) return rc;
    w->e->code = FO_OK;
    rc = fo_pre_split(t->pre, s, n, encode_word, w, &read);
    if (rc == FO_ELIMIT && !w->e->code) return fo_fail(w->e, rc, "the model's pre-tokenizer reads %zu bytes of text more than 64 times", n);
    return rc;
}

/* --- open ------------------------------------------------------------------------------------ */

/* Passes that the file brings along: an array of strings, each flags (d = FO_PASS_DROP, b = FO_PASS_BYTES), a colon, an expression. */
static int open_split(struct fo_tok *t, const struct fo_gguf_kv *kv, struct fo_err *e) {
    struct fo_pre_pass pass[FO_PRE_MAX_PASSES];
    uint64_t at = 0;
    size_t n = 0;
    if (kv->type != FO_GGUF_ARRAY || (kv->n && kv->elem != FO_GGUF_STRING)) return fo_fail(e, FO_EFORMAT, "tokenizer.pantheon.split is not an array of strings");
    for (struct fo_str s; fo_gguf_array_str(kv, &at, &s); n++) {
        const char *colon = memchr(s.s, ':', s.len < 3 ? s.len : 3);
        if (n == FO_PRE_MAX_PASSES || !colon) return fo_fail(e, FO_EFORMAT, "tokenizer.pantheon.split: string %zu has no flags or is one too many", n);
        pass[n] = (struct fo_pre_pass){ .re = colon + 1, .len = s.len - (size_t)(colon + 1 - s.s) };
        for (const char *c = s.s; c < colon; c++) pass[n].flags |= *c == 'd' ? FO_PASS_DROP : *c == 'b' ? FO_PASS_BYTES : 0u;
    }
    return fo_pre_open_passes(pass, n, &t->pre, e);
}

static int bpe_open(struct fo_tok *t, const struct fo_gguf *g, struct fo_err *e) {
    const struct fo_gguf_kv *split = fo_gguf_find(g, "tokenizer.pantheon.split");
    struct fo_str pre = { "default", 7 };
    unsigned flags = 0;
    int rc;
    if (!split && fo_gguf_find(g, "tokenizer.ggml.pre") && (rc = fo_gguf_get_str(g, "tokenizer.ggml.pre", &pre, e))) return rc;
    if ((rc = split ? open_split(t, split, e) : fo_pre_open(pre.s, pre.len, &t->pre, &flags, e))) return rc;
    t->whole_words = flags & FO_PRE_WHOLE_WORDS;
    if ((rc = fo_tok_read_flag(g, "tokenizer.pantheon.ignore_merges", &t->whole_words, e)) ||
        (rc = fo_tok_read_flag(g, "tokenizer.pantheon.nfc", &t->nfc, e)) || (rc = fo_tok_read_flag(g, "tokenizer.pantheon.spaced", &t->spaced, e))) {
        return rc;
    }
    t->add_bos = flags & FO_PRE_ADD_BOS;
    for (uint32_t i = 0; i < t->n; i++) {
        struct fo_tok_entry *en = &t->entry[i];
        size_t n = 0, len;
        for (size_t at = 0; at < en->len; at += len, n++) fo_utf8_next(en->s + at, en->len - at, &len);
        en->n_sym = n <= UINT16_MAX ? (uint16_t)n : 0;
        if (fo_tok_is_mergeable(en) && en->n_sym && n > t->max_len) t->max_len = n;
    }
    unsigned n_bytes = 0;
    for (unsigned b = 0; b < 256; b++) {
        char text[2];
        t->byte_char[b] = (uint16_t)fo_tok_byte_char(b);
        int32_t id = fo_tok_find(t, text, put_char(text, t->byte_char[b]));
        if (id >= 0 && fo_tok_is_mergeable(&t->entry[id])) t->byte_id[b] = id, n_bytes++;
    }
    if (!n_bytes) return fo_fail(e, FO_EFORMAT, "tokenizer.ggml.tokens has no token for any byte");
    t->lossy = n_bytes < 256;
    if ((rc = fo_tok_open_merges(t, g, e))) return rc;
    t->first = malloc(FO_TOK_FIRSTS * sizeof *t->first);
    if (!t->first) return fo_fail(e, FO_ENOMEM, "no memory for the tokenizer's merges");
    for (unsigned i = 0; i < FO_TOK_FIRSTS; i++) {
        int32_t a = t->byte_id[i >> 8], b = t->byte_id[i & 255];
        t->first[i].rank = a < 0 || b < 0 ? FO_MERGE_NONE : fo_tok_pair_find(t, (uint32_t)a, (uint32_t)b, &t->first[i].id);
    }
    return fo_tok_open_chars(t, e);
}

const struct fo_tok_algo fo_tok_bpe = {
    .model = "gpt2", .open = bpe_open, .encode = bpe_encode, .piece = bpe_piece, .bos = -1, .eos = -1,
};
