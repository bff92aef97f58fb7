/* Tokenizers, the part that all algorithms share: see tok.h. The vocabulary and its hash, special tokens, BOS and EOS, bytes of
 * tokens, incremental decoding. An algorithm (tok_bpe.c, tok_spm.c) is a row of `algos`; it gets the text between special tokens.
 *
 * Special tokens are found by walking the sorted list of their texts: at each byte that starts one, the candidates narrow with
 * every further byte, and the longest one that may match here is taken. The cost is bounded by the longest special token per
 * byte of text (SPECIAL_MAX), whatever the text. */
#include "foundry/tok.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "foundry/base/buf.h"
#include "foundry/base/err.h"
#include "foundry/base/rng.h"
#include "foundry/tok_int.h"
#include "foundry/tok_merge.h"
#include "foundry/tok_pre.h"
#include "foundry/unicode.h"

enum { SPECIAL_MAX = 1024 }; /* longer texts of special tokens never match */

static const struct fo_tok_algo *const algos[] = { &fo_tok_bpe, &fo_tok_spm };

/* Names under which tokens end a turn or a text, wherever the metadata is silent. */
static const char *const end_names[] = {
    "</s>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|calls|>",
    "<|flush|>",
    "<end_of_turn>",
    "<turn|>",
    "<eos>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "[e~[",
    "<|end_of_turn|>",
    "<end_of_utterance>",
    "<|file_sep|>",
    "<|repo_name|>",
    "<|fim_pad|>",
    "<\uFF5Cend\u2581of\u2581sentence\uFF5C>",
};

/* --- vocabulary ------------------------------------------------------------------------------ */

int fo_tok_hash_new(struct fo_tok_hash *h, size_t n, struct fo_err *e) {
    size_t size = 16;
    while (size < n + n / 2) size *= 2;
    h->slots = calloc(size, sizeof *h->slots);
    if (!h->slots) return fo_fail(e, FO_ENOMEM, "no memory for the tokenizer's vocabulary");
    h->mask = size - 1;
    return 0;
}

int32_t fo_tok_find(const struct fo_tok *t, const char *text, size_t len) {
    for (size_t i = fo_tok_hash_bytes(t->seed, text, len) & t->by_text.mask;; i = (i + 1) & t->by_text.mask) {
        uint32_t slot = t->by_text.slots[i];
        if (!slot) return -1;
        const struct fo_tok_entry *en = &t->entry[slot - 1];
        if (en->len == len && !memcmp(en->s, text, len)) return (int32_t)(slot - 1);
    }
}

/* An array of the vocabulary's length, or NULL where the key is absent. */
static int vocab_array(const struct fo_tok *t, const struct fo_gguf *g, const char *key, const struct fo_gguf_kv **ret,
                       struct fo_err *e) {
    const struct fo_gguf_kv *kv = fo_gguf_find(g, key);
    *ret = kv;
    if (!kv) return 0;
    if (kv->type != FO_GGUF_ARRAY || kv->elem == FO_GGUF_STRING || kv->elem == FO_GGUF_ARRAY) {
        return fo_fail(e, FO_EFORMAT, "%s is not an array of numbers", key);
    }
    if (kv->n != t->n) {
        return fo_fail_need(e, FO_EFORMAT, t->n, kv->n, "%s has %llu entries for %u tokens", key, (unsigned long long)kv->n, t->n);
    }
    return 0;
}

static int open_vocab(struct fo_tok *t, const struct fo_gguf *g, struct fo_err *e) {
    const struct fo_gguf_kv *tokens = fo_gguf_find(g, "tokenizer.ggml.tokens"), *types;
    if (!tokens || tokens->type != FO_GGUF_ARRAY || tokens->elem != FO_GGUF_STRING || !tokens->n) {
        return fo_fail(e, FO_EFORMAT, "tokenizer.ggml.tokens is missing, empty or not an array of strings");
    }
    if (tokens->n >= INT32_MAX) {
        return fo_fail_need(e, FO_EFORMAT, tokens->n, INT32_MAX, "tokenizer.ggml.tokens has %llu entries", (unsigned long long)tokens->n);
    }
    t->n = (uint32_t)tokens->n;
    int rc = vocab_array(t, g, "tokenizer.ggml.token_type", &types, e);
    if (rc) return rc;
    t->entry = calloc(t->n, sizeof *t->entry);
    if (!t->entry) return fo_fail(e, FO_ENOMEM, "no memory for the tokenizer's vocabulary");
    if ((rc = fo_tok_hash_new(&t->by_text, t->n, e))) return rc;
    uint64_t at = 0;
    struct fo_str s;
    for (uint32_t i = 0; i < t->n && fo_gguf_array_str(tokens, &at, &s); i++) {
        if (s.len > UINT32_MAX) return fo_fail(e, FO_EFORMAT, "tokenizer.ggml.tokens: token %u is too long", i);
        int64_t type = types ? fo_gguf_array_i64(types, i) : FO_TT_NORMAL;
        t->entry[i] = (struct fo_tok_entry){ .s = s.s, .len = (uint32_t)s.len };
        t->entry[i].type = type > FO_TT_UNDEFINED && type <= FO_TT_BYTE ? (uint8_t)type : FO_TT_UNDEFINED;
        if (!s.len) continue; /* an empty text can neither be found nor come out of one */
        size_t slot = fo_tok_hash_bytes(t->seed, s.s, s.len) & t->by_text.mask;
        for (uint32_t other; (other = t->by_text.slots[slot]); slot = (slot + 1) & t->by_text.mask) {
            const struct fo_tok_entry *en = &t->entry[other - 1];
            if (en->len == s.len && !memcmp(en->s, s.s, s.len)) break; /* the first of equal texts is found */
        }
        if (!t->by_text.slots[slot]) t->by_text.slots[slot] = i + 1;
    }
    return 0;
}

static int by_special_text(const void *a, const void *b, void *ctx) {
    const struct fo_tok *t = ctx;
    uint32_t ia = *(const uint32_t *)a, ib = *(const uint32_t *)b;
    const struct fo_tok_entry *x = &t->entry[ia], *y = &t->entry[ib];
    int c = memcmp(x->s, y->s, x->len < y->len ? x->len : y->len);
    if (c) return c;
    if (x->len != y->len) return x->len < y->len ? -1 : 1;
    return ia < ib ? -1 : ia > ib;
}

static bool matches_as_special(const struct fo_tok_entry *en) {
    return en->len && en->len <= SPECIAL_MAX && (fo_tok_is_special_type(en->type) || en->type == FO_TT_USER);
}

static int open_special(struct fo_tok *t, struct fo_err *e) {
    for (uint32_t i = 0; i < t->n; i++) t->n_special += matches_as_special(&t->entry[i]);
    t->special = malloc((t->n_special + 1) * sizeof *t->special);
    if (!t->special) return fo_fail(e, FO_ENOMEM, "no memory for the tokenizer's special tokens");
    uint32_t n = 0;
    for (uint32_t i = 0; i < t->n; i++) {
        if (matches_as_special(&t->entry[i])) t->special[n++] = i;
    }
    qsort_r(t->special, n, sizeof *t->special, by_special_text, t);
    for (uint32_t i = n; i-- > 0;) t->special_at[(uint8_t)*t->entry[t->special[i]].s] = i;
    t->special_at[256] = n;
    for (unsigned b = 256; b-- > 0;) { /* a byte that starts none has an empty range */
        uint32_t i = t->special_at[b];
        if (i >= n || (uint8_t)*t->entry[t->special[i]].s != b) t->special_at[b] = t->special_at[b + 1];
    }
    return 0;
}

/* A key that names a token; *ret_id stays when it is absent. 2^32 - 1 is how some converters write "none". */
static int read_id(const struct fo_tok *t, const struct fo_gguf *g, const char *key, int32_t *ret_id, struct fo_err *e) {
    uint32_t id;
    if (!fo_gguf_find(g, key)) return 0;
    int rc = fo_gguf_get_u32(g, key, &id, e);
    if (rc) return rc;
    if (id == UINT32_MAX) *ret_id = -1;
    else if (id < t->n) *ret_id = (int32_t)id;
    else return fo_fail_need(e, FO_EFORMAT, id, t->n, "%s is %u, but there are %u tokens", key, id, t->n);
    return 0;
}

int fo_tok_read_flag(const struct fo_gguf *g, const char *key, bool *ret, struct fo_err *e) {
    return fo_gguf_find(g, key) ? fo_gguf_get_bool(g, key, ret, e) : 0;
}

/* Sets a flag on the tokens that an array names; the array may be absent. */
static int mark_ids(struct fo_tok *t, const struct fo_gguf *g, const char *key, uint8_t flag, struct fo_err *e) {
    const struct fo_gguf_kv *kv = fo_gguf_find(g, key);
    if (kv && (kv->type != FO_GGUF_ARRAY || kv->elem == FO_GGUF_STRING || kv->elem == FO_GGUF_ARRAY)) {
        return fo_fail(e, FO_EFORMAT, "%s is not an array of numbers", key);
    }
    for (uint64_t i = 0; kv && i < kv->n; i++) {
        int64_t id = fo_gguf_array_i64(kv, i);
        if (id < 0 || id >= t->n) return fo_fail(e, FO_EFORMAT, "%s names token %lld, but there are %u tokens", key, (long long)id, t->n);
        t->entry[id].flags |= flag;
    }
    return 0;
}

/* End tokens: those that keys name, and added tokens with a well-known name. An added token with such a name is a control token
 * even where the file calls it user-defined: else a user could end a turn by writing it. */
static int open_ends(struct fo_tok *t, const struct fo_gguf *g, struct fo_err *e) {
    static const char *const keys[] = { "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id" };
    int rc = 0;
    if (t->eos >= 0) t->entry[t->eos].flags |= FO_TF_END;
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        int32_t id = -1;
        if ((rc = read_id(t, g, keys[i], &id, e))) return rc;
        if (id >= 0) t->entry[id].flags |= FO_TF_END;
    }
    if ((rc = mark_ids(t, g, "tokenizer.pantheon.end_token_ids", FO_TF_END, e))) return rc;
    /* Where a turn ends in <|return|> or <|call|> (or <|flush|>, <|calls|>), <|end|> only separates its messages. */
    bool harmony = (fo_tok_find(t, "<|return|>", 10) >= 0 && fo_tok_find(t, "<|call|>", 8) >= 0) ||
                   (fo_tok_find(t, "<|flush|>", 9) >= 0 && fo_tok_find(t, "<|calls|>", 9) >= 0);
    for (size_t i = 0; i < sizeof end_names / sizeof end_names[0]; i++) {
        int32_t id = fo_tok_find(t, end_names[i], strlen(end_names[i]));
        if (id < 0 || (harmony && !strcmp(end_names[i], "<|end|>"))) continue;
        struct fo_tok_entry *en = &t->entry[id];
        if (en->type == FO_TT_USER) en->type = FO_TT_CONTROL;
        if (en->type == FO_TT_CONTROL) en->flags |= FO_TF_END;
    }
    return 0;
}

/* Phi-3's special tokens swallow the white space behind them, but for three. GGUF does not say so; the model's name does. */
static int open_strip(struct fo_tok *t, const struct fo_gguf *g, struct fo_err *e) {
    static const char *const keep[] = { "<unk>", "<s>", "<|endoftext|>" };
    struct fo_err ignored;
    struct fo_str name;
    bool phi3 = false;
    if (fo_gguf_find(g, "tokenizer.pantheon.rstrip_token_ids")) {
        int rc = mark_ids(t, g, "tokenizer.pantheon.lstrip_token_ids", FO_TF_LSTRIP, e);
        return rc ? rc : mark_ids(t, g, "tokenizer.pantheon.rstrip_token_ids", FO_TF_RSTRIP, e);
    }
    if (fo_gguf_get_str(g, "general.name", &name, &ignored)) return 0;
    for (size_t i = 0; i + 4 <= name.len; i++) {
        phi3 = phi3 || !strncasecmp(name.s + i, "phi3", 4) || (i + 5 <= name.len && !strncasecmp(name.s + i, "phi-3", 5));
    }
    for (uint32_t i = 0; i < t->n_special && phi3; i++) {
        struct fo_tok_entry *en = &t->entry[t->special[i]];
        en->flags |= FO_TF_RSTRIP;
        for (size_t k = 0; k < sizeof keep / sizeof keep[0]; k++) {
            if (en->len == strlen(keep[k]) && !memcmp(en->s, keep[k], en->len)) en->flags &= (uint8_t)~FO_TF_RSTRIP;
        }
    }
    return 0;
}

static int open_all(struct fo_tok *t, const struct fo_gguf *g, struct fo_err *e) {
    struct fo_str model;
    if (!fo_gguf_get_str(g, "tokenizer.pantheon.error", &model, e)) { /* of a directory's files */
        return fo_fail(e, FO_EUNSUPPORTED, "%.*s", model.len < 384 ? (int)model.len : 384, model.s);
    }
    int rc = fo_gguf_get_str(g, "tokenizer.ggml.model", &model, e);
    if (rc) return rc;
    for (size_t i = 0; i < sizeof algos / sizeof algos[0]; i++) {
        if (strlen(algos[i]->model) == model.len && !memcmp(algos[i]->model, model.s, model.len)) t->algo = algos[i];
    }
    if (!t->algo) {
        return fo_fail(e, FO_EUNSUPPORTED, "the tokenizer model '%.*s' (tokenizer.ggml.model) is not known",
                       model.len < 64 ? (int)model.len : 64, model.s);
    }
    t->seed = fo_rng_entropy();
    if ((rc = open_vocab(t, g, e))) return rc;
    memset(t->byte_id, 0xFF, sizeof t->byte_id);
    t->bos = (uint32_t)t->algo->bos < t->n ? t->algo->bos : -1;
    t->eos = (uint32_t)t->algo->eos < t->n ? t->algo->eos : -1;
    t->unk = -1;
    t->add_bos = t->algo->add_bos;
    if ((rc = read_id(t, g, "tokenizer.ggml.bos_token_id", &t->bos, e)) || (rc = read_id(t, g, "tokenizer.ggml.eos_token_id", &t->eos, e)) ||
        (rc = read_id(t, g, "tokenizer.ggml.unknown_token_id", &t->unk, e)) || (rc = open_ends(t, g, e)) ||
        (rc = t->algo->open(t, g, e)) || (rc = fo_tok_read_flag(g, "tokenizer.ggml.add_bos_token", &t->add_bos, e)) ||
        (rc = fo_tok_read_flag(g, "tokenizer.ggml.add_eos_token", &t->add_eos, e)) || (rc = open_special(t, e)) || (rc = open_strip(t, g, e))) {
        return rc;
    }
    t->add_bos = t->add_bos && t->bos >= 0;
    t->add_eos = t->add_eos && t->eos >= 0;
    return 0;
}

int fo_tok_open(const struct fo_gguf *g, struct fo_tok **ret, struct fo_err *e) {
    struct fo_tok *t = calloc(1, sizeof *t);
    if (!t) return fo_fail(e, FO_ENOMEM, "no memory for a tokenizer");
    int rc = open_all(t, g, e);
    if (rc) {
        fo_tok_free(t);
        return rc;
    }
    *ret = t;
    return 0;
}

void fo_tok_free(struct fo_tok *t) {
    if (!t) return;
    fo_pre_free(t->pre);
    free(t->entry);
    free(t->by_text.slots);
    free(t->special);
    free(t->pair);
    free(t->pair_bits);
    free(t->first);
    free(t->chars);
    free(t->plain);
    free(t->plain_at);
    free(t->rank);
    free(t->by_plain.slots);
    free(t);
}

static size_t hash_bytes(const struct fo_tok_hash *h) {
    return h->slots ? (h->mask + 1) * sizeof *h->slots : 0;
}

size_t fo_tok_bytes(const struct fo_tok *t) {
    size_t n = sizeof *t + t->n * sizeof *t->entry + hash_bytes(&t->by_text) + (t->n_special + 1) * sizeof *t->special + fo_pre_bytes(t->pre);
    if (t->pair) n += (t->pair_mask + 1) * sizeof *t->pair + (t->pair_bits_mask + 1) * sizeof *t->pair_bits;
    if (t->first) n += FO_TOK_FIRSTS * sizeof *t->first;
    if (t->chars) n += FO_TOK_CHARS * sizeof *t->chars;
    if (t->plain) n += t->plain_bytes + (t->n + 1) * sizeof *t->plain_at + hash_bytes(&t->by_plain);
    return t->rank ? n + t->n * sizeof *t->rank : n;
}

int32_t fo_tok_n_vocab(const struct fo_tok *t) {
    return (int32_t)t->n;
}

int32_t fo_tok_bos(const struct fo_tok *t) {
    return t->bos;
}

int32_t fo_tok_eos(const struct fo_tok *t) {
    return t->eos;
}

bool fo_tok_add_bos(const struct fo_tok *t) {
    return t->add_bos;
}

bool fo_tok_add_eos(const struct fo_tok *t) {
    return t->add_eos;
}

bool fo_tok_is_end(const struct fo_tok *t, int32_t id) {
    return (uint32_t)id < t->n && (t->entry[id].flags & FO_TF_END);
}

bool fo_tok_is_control(const struct fo_tok *t, int32_t id) {
    return (uint32_t)id < t->n && fo_tok_is_special_type(t->entry[id].type);
}

/* --- encoding -------------------------------------------------------------------------------- */

int fo_tok_push_slow(struct fo_tok_work *w, int32_t id) {
    if (w->max && w->n >= w->max) {
        return fo_fail_need(w->e, FO_ELIMIT, w->n + 1, w->max, "the text has more than %zu tokens", w->max);
    }
    size_t size = w->size ? w->size * 2 : 64;
    if (w->max && size > w->max) size = w->max;
    int32_t *ids = realloc(w->ids, size * sizeof *ids);
    if (!ids) return fo_fail(w->e, FO_ENOMEM, "no memory for %zu token ids", size);
    w->ids = ids;
    w->size = size;
    w->ids[w->n++] = id;
    return 0;
}

int fo_tok_check_room(struct fo_tok_work *w, const char *s, size_t n) {
    size_t known = 0, per = w->t->max_len ? w->t->max_len : 1;
    if (!w->max || n / per <= w->max - w->n) return 0;
    for (size_t i = 0; i < n; i++) known += w->t->byte_id[(uint8_t)s[i]] >= 0; /* the others may vanish */
    if (known / per <= w->max - w->n) return 0;
    return fo_fail_need(w->e, FO_ELIMIT, w->n + known / per, w->max, "the text has more than %zu tokens", w->max);
}

int fo_tok_seen_find(struct fo_tok_work *w, const char *s, size_t n, struct fo_tok_seen **ret_slot, bool *ret_done) {
    *ret_slot = NULL;
    *ret_done = false;
    if (!w->seen || n > UINT32_MAX) return 0;
    struct fo_tok_seen *slot = &w->seen[fo_tok_hash_bytes(w->t->seed, s, n) & w->seen_mask];
    *ret_slot = slot;
    if (slot->len != n || memcmp(slot->s, s, n)) return 0;
    int rc = 0;
    for (uint32_t i = 0; i < slot->n && !rc; i++) rc = fo_tok_push(w, w->ids[slot->at + i]);
    *ret_done = !rc;
    return rc;
}

/* The longest special token that may start at s[0], -1 = none. */
static int32_t special_at(const struct fo_tok *t, const char *s, const uint8_t *user, size_t n, unsigned flags) {
    uint32_t low = t->special_at[(uint8_t)*s], high = t->special_at[(uint8_t)*s + 1];
    int32_t best = -1;
    bool control = flags & FO_TOK_SPECIAL;
    for (size_t len = 1; low < high && len <= n; len++) { /* special[low..high) share their first len - 1 bytes with the text */
        uint8_t byte = (uint8_t)s[len - 1];
        uint32_t from = low, to = high;
        while (from < to) { /* first that is not less at this byte */
            uint32_t mid = from + (to - from) / 2;
            const struct fo_tok_entry *en = &t->entry[t->special[mid]];
            if (en->len < len || (uint8_t)en->s[len - 1] < byte) from = mid + 1;
            else to = mid;
        }
        low = from;
        for (to = high; from < to;) { /* first that is greater */
            uint32_t mid = from + (to - from) / 2;
            if ((uint8_t)t->entry[t->special[mid]].s[len - 1] <= byte) from = mid + 1;
            else to = mid;
        }
        high = from;
        control = control && !(user && user[len - 1]);
        /* Texts of exactly this length sort first; among equal ones the lowest id. */
        for (uint32_t i = low; i < high && t->entry[t->special[i]].len == len; i++) {
            if (control || t->entry[t->special[i]].type == FO_TT_USER) {
                best = (int32_t)t->special[i];
                break;
            }
        }
    }
    return best;
}

/* How many bytes of white space s[0..n) starts with, or ends with. */
static size_t spaces_at(const char *s, size_t n) {
    size_t at = 0, len;
    while (at < n && fo_unicode_is_space(fo_utf8_next(s + at, n - at, &len))) at += len;
    return at;
}

static size_t spaces_before(const char *s, size_t n) {
    size_t end = n, len;
    while (end) {
        size_t start = end - 1;
        while (start && end - start < 4 && ((uint8_t)s[start] & 0xC0) == 0x80) start--;
        if (!fo_unicode_is_space(fo_utf8_next(s + start, end - start, &len)) || start + len != end) break;
        end = start;
    }
    return n - end;
}

static int encode_parts(const struct fo_tok *t, struct fo_tok_work *w, const char *s, const uint8_t *user, size_t n, unsigned flags) {
    size_t from = 0, at = 0;
    int rc = 0;
    while (at < n && !rc) {
        unsigned first = (uint8_t)s[at];
        int32_t id = t->special_at[first] == t->special_at[first + 1] ? -1 : special_at(t, s + at, user ? user + at : NULL, n - at, flags);
        if (id < 0) {
            at++;
            continue;
        }
        size_t end = at - (t->entry[id].flags & FO_TF_LSTRIP ? spaces_before(s + from, at - from) : 0);
        w->first = !from;
        if (from < end) rc = t->algo->encode(t, w, s + from, end - from);
        if (!rc) rc = fo_tok_push(w, id);
        at += t->entry[id].len;
        if (t->entry[id].flags & FO_TF_RSTRIP) at += spaces_at(s + at, n - at);
        from = at;
    }
    w->first = !from;
    return rc || from == n ? rc : t->algo->encode(t, w, s + from, n - from);
}

/* A copy of the text in which every broken character is one U+FFFD; NULL in *ret_s when nothing is broken. */
static int repair(const char *s, const uint8_t *user, size_t n, char **ret_s, uint8_t **ret_user, size_t *ret_n, struct fo_err *e) {
    size_t len, out = 0, broken = 0;
    for (size_t i = 0; i < n; i += len) {
        bool bad = fo_utf8_next(s + i, n - i, &len) >= FO_UNICODE_END;
        broken += bad;
        out += bad ? 3 : len;
    }
    *ret_s = NULL;
    *ret_user = NULL;
    if (!broken) return 0;
    char *copy = malloc(out);
    uint8_t *marks = user ? malloc(out) : NULL;
    if (!copy || (user && !marks)) {
        free(copy);
        free(marks);
        return fo_fail(e, FO_ENOMEM, "no memory for %zu bytes of text", out);
    }
    out = 0;
    for (size_t i = 0; i < n; i += len) {
        bool bad = fo_utf8_next(s + i, n - i, &len) >= FO_UNICODE_END;
        if (user) memset(marks + out, user[i], bad ? 3 : len);
        memcpy(copy + out, bad ? "\xEF\xBF\xBD" : s + i, bad ? 3 : len);
        out += bad ? 3 : len;
    }
    *ret_s = copy;
    *ret_user = marks;
    *ret_n = out;
    return 0;
}

/* A table of words pays from a few kilobytes on. */
static void start_seen(struct fo_tok_work *w, size_t n) {
    size_t size = 256;
    if (n < 4096) return;
    while (size < n / 16 && size < 16384) size *= 2;
    w->seen = calloc(size, sizeof *w->seen); /* without it everything is merged anew: slower, not wrong */
    w->seen_mask = size - 1;
}

int fo_tok_encode(const struct fo_tok *t, const char *text, size_t len, const uint8_t *user, unsigned flags, size_t max_ids,
                  struct fo_tok_ids *ret, struct fo_err *e) {
    struct fo_tok_work w = { .max = max_ids, .e = e, .t = t };
    char *fixed = NULL;
    uint8_t *marks = NULL;
    int rc = 0;
    if (len >= INT32_MAX) return fo_fail_need(e, FO_ELIMIT, len, INT32_MAX, "a text of %zu bytes is too long", len);
    if (t->lossy && len) rc = repair(text, user, len, &fixed, &marks, &len, e);
    w.text_size = len + 1;
    start_seen(&w, len);
    if (!rc && (flags & FO_TOK_ADD) && t->add_bos) rc = fo_tok_push(&w, t->bos);
    if (!rc) rc = encode_parts(t, &w, fixed ? fixed : text, fixed ? marks : user, len, flags);
    if (!rc && (flags & FO_TOK_ADD) && t->add_eos) rc = fo_tok_push(&w, t->eos);
    free(fixed);
    free(marks);
    free(w.seen);
    fo_merge_done(&w);
    for (struct fo_tok_copy *copy; (copy = w.copies);) {
        w.copies = copy->next;
        free(copy->s);
        free(copy);
    }
    free(w.text);
    if (rc) free(w.ids);
    else *ret = (struct fo_tok_ids){ w.ids, w.n };
    return rc;
}

/* --- decoding -------------------------------------------------------------------------------- */

int fo_tok_byte_name(const char *s, size_t n) {
    static const char digits[] = "0123456789ABCDEF0123456789abcdef";
    if (n != 6 || memcmp(s, "<0x", 3) || s[5] != '>') return -1;
    const char *high = memchr(digits, s[3], 32), *low = memchr(digits, s[4], 32);
    return high && low ? (int)((high - digits) % 16 * 16 + (low - digits) % 16) : -1;
}

static void each_byte(const struct fo_tok *t, int32_t id, bool special, void (*put)(void *ctx, uint8_t byte), void *ctx) {
    if ((uint32_t)id >= t->n) return;
    const struct fo_tok_entry *en = &t->entry[id];
    int byte = en->type == FO_TT_BYTE ? fo_tok_byte_name(en->s, en->len) : -1;
    if (en->type == FO_TT_UNUSED || (fo_tok_is_special_type(en->type) && !special)) return;
    if (byte >= 0) {
        put(ctx, (uint8_t)byte);
    } else if (fo_tok_is_special_type(en->type) || en->type == FO_TT_USER) {
        for (uint32_t i = 0; i < en->len; i++) put(ctx, (uint8_t)en->s[i]);
    } else {
        t->algo->piece(en, put, ctx);
    }
}

static void put_raw(void *ctx, uint8_t byte) {
    fo_buf_putc(ctx, (char)byte);
}

void fo_tok_piece(const struct fo_tok *t, int32_t id, bool special, struct fo_buf *out) {
    each_byte(t, id, special, put_raw, out);
}

struct decode {
    struct fo_detok *d;
    struct fo_buf *out;
};

/* A byte that cannot go on what is held shows that to be broken, and is looked at again as a first byte. */
static void put_decoded(void *ctx, uint8_t byte) {
    struct decode *c = ctx;
    struct fo_detok *d = c->d;
    if (d->n_held) {
        bool ok = d->n_held == 1 ? fo_utf8_second_ok(d->held[0], byte) : (byte & 0xC0) == 0x80;
        if (ok) {
            d->held[d->n_held++] = byte;
            if (d->n_held == fo_utf8_lead_len(d->held[0])) {
                fo_buf_append(c->out, d->held, d->n_held);
                d->n_held = 0;
            }
            return;
        }
        fo_detok_end(d, c->out);
    }
    unsigned len = fo_utf8_lead_len(byte);
    if (len == 1) fo_buf_putc(c->out, (char)byte);
    else if (len == 0) fo_buf_puts(c->out, "\xEF\xBF\xBD");
    else d->held[d->n_held++] = byte;
}

void fo_detok_push(struct fo_detok *d, const struct fo_tok *t, int32_t id, bool special, struct fo_buf *out) {
    each_byte(t, id, special, put_decoded, &(struct decode){ d, out });
}

void fo_detok_end(struct fo_detok *d, struct fo_buf *out) {
    if (d->n_held) fo_buf_puts(out, "\xEF\xBF\xBD");
    d->n_held = 0;
}
