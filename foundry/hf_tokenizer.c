/* tokenizer.json and the files beside it: see hf_tokenizer.h; what happens to text is in hf_pipeline.c.
 *
 * A tokenizer.json (the format of the HuggingFace `tokenizers` library) holds `model` with `vocab` (text -> id) and `merges`, the
 * `added_tokens`, and the parts of hf_pipeline.c. Ids come in any order and may have gaps; config.json's vocab_size can be larger, as
 * the rows of an embedding are padded: both become unused tokens. Tokens past that size have no row and are left out.
 *
 * Nothing is believed: a text is walked once before it is parsed, so that neither depth nor the number of values can cost more than the
 * limits say, and ids are checked against the number of tokens before there is a table of them. */
#include "foundry/hf_tokenizer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "foundry/base/err.h"
#include "foundry/base/file.h"
#include "foundry/hf_int.h"
#include "foundry/tok_int.h"

enum {
    MAX_BYTES = 64 << 20,      /* tokenizer.json */
    MAX_SMALL_BYTES = 8 << 20, /* any other */
    MAX_VALUES = 8000000,
    MAX_DEPTH = 64,
    MAX_GAPS = 65536, /* ids without a token */
    MAX_NAME = 64,    /* of a chat template */
    MAX_ENDS = 64,
};

/* --- reading -------------------------------------------------------------------------------------------------------------- */

const char *fo_hf_text(const json_t *object, const char *key) {
    const char *text = json_string_value(json_object_get(object, key));
    return text ? text : "";
}

/* Depth and number of values, before the parser allocates any. */
static int check_bounds(struct fo_str text, const char *name, struct fo_err *e) {
    size_t depth = 0, values = 1;
    for (size_t i = 0; i < text.len; i++) {
        char c = text.s[i];
        if (c == '"') {
            for (i++; i < text.len && text.s[i] != '"'; i++) i += text.s[i] == '\\';
        } else if (c == '[' || c == '{') {
            values++;
            if (++depth > MAX_DEPTH) return fo_fail_need(e, FO_ELIMIT, depth, MAX_DEPTH, "%s is nested more than %d levels deep", name, MAX_DEPTH);
        } else if (c == ']' || c == '}') {
            depth -= depth > 0;
        } else if (c == ',' || c == ':') {
            values++;
        }
    }
    if (values > MAX_VALUES) return fo_fail_need(e, FO_ELIMIT, values, MAX_VALUES, "%s has %zu values, at most %d are read", name, values, MAX_VALUES);
    return 0;
}

static int parse(struct fo_str text, const char *name, json_t **ret, struct fo_err *e) {
    json_error_t error;
    if (!text.s) return 0;
    int rc = check_bounds(text, name, e);
    if (rc) return rc;
    json_t *j = json_loadb(text.s, text.len, JSON_ALLOW_NUL, &error);
    /* Running out of memory leaves no text in most places. */
    if (!j && (!*error.text || json_error_code(&error) == json_error_out_of_memory)) return fo_fail(e, FO_ENOMEM, "%s: no memory for %zu bytes of JSON", name, text.len);
    if (!j) return fo_fail_at(e, FO_EFORMAT, error.line > 0 ? error.line : 0, error.column > 0 ? error.column : 0, "%s: %s", name, error.text);
    if (!json_is_object(j)) {
        json_decref(j);
        return fo_fail(e, FO_EFORMAT, "%s is not a JSON object", name);
    }
    *ret = j;
    return 0;
}

/* --- vocabulary ----------------------------------------------------------------------------------------------------------- */

static int find_vocab(struct fo_hf *h) {
    const char *type;
    h->model = json_object_get(h->tokenizer, "model");
    h->vocab = json_object_get(h->model, "vocab");
    h->merges = json_object_get(h->model, "merges");
    type = fo_hf_text(h->model, "type");
    if (*type ? strcmp(type, "BPE") != 0 : !json_is_array(h->merges)) {
        return fo_fail(h->e, FO_EUNSUPPORTED, "a tokenizer of the kind '%.64s' (model.type) is not one that this build has", *type ? type : "unnamed");
    }
    if (!json_is_object(h->vocab) || !json_is_array(h->merges)) return fo_fail(h->e, FO_EFORMAT, "model.vocab or model.merges is missing");
    if (json_real_value(json_object_get(h->model, "dropout")) > 0) return fo_fail(h->e, FO_EUNSUPPORTED, "a BPE tokenizer with dropout");
    if (*fo_hf_text(h->model, "continuing_subword_prefix") || *fo_hf_text(h->model, "end_of_word_suffix")) {
        return fo_fail(h->e, FO_EUNSUPPORTED, "a BPE tokenizer with continuing_subword_prefix or end_of_word_suffix");
    }
    return 0;
}

/* The id of a member, -1 when it is none that a vocabulary may have. */
static int64_t id_of(const json_t *value) {
    return json_is_integer(value) && json_integer_value(value) >= 0 && json_integer_value(value) < INT32_MAX ? json_integer_value(value) : -1;
}

static size_t vocab_size(const struct fo_hf *h) {
    const json_t *size = json_object_get(h->config, "vocab_size");
    if (!size) size = json_object_get(json_object_get(h->config, "text_config"), "vocab_size");
    return id_of(size) > 0 ? (size_t)id_of(size) : 0;
}

/* Each (text, id) of the vocabulary and of the added tokens: the highest id first, then into the table. */
static int size_vocab(struct fo_hf *h, const json_t *added, const json_t *decoder) {
    const char *key;
    const json_t *value;
    size_t i, n = json_object_size(h->vocab) + json_array_size(added) + json_object_size(decoder), size = vocab_size(h);
    int64_t high = -1, id;
    json_object_foreach((json_t *)(uintptr_t)h->vocab, key, value) {
        if ((id = id_of(value)) < 0) return fo_fail(h->e, FO_EFORMAT, "the token '%.64s' has no id that is one", key);
        if (id > high) high = id;
    }
    json_array_foreach(added, i, value) {
        if ((id = id_of(json_object_get(value, "id"))) < 0 || !json_is_string(json_object_get(value, "content"))) {
            return fo_fail(h->e, FO_EFORMAT, "added_tokens[%zu] has no id or no content", i);
        }
        if (id > high) high = id;
    }
    h->n_tokens = (size_t)(high + 1);
    if (size) h->n_tokens = size;
    if (!h->n_tokens) return fo_fail(h->e, FO_EFORMAT, "there are no tokens");
    if (h->n_tokens > n && h->n_tokens - n > MAX_GAPS) {
        return fo_fail_need(h->e, FO_ELIMIT, h->n_tokens, n + MAX_GAPS, "%zu tokens are named, but ids or vocab_size go up to %zu", n, h->n_tokens);
    }
    h->token = calloc(h->n_tokens, sizeof *h->token);
    return h->token ? 0 : fo_fail(h->e, FO_ENOMEM, "no memory for a vocabulary");
}

static int add_token(struct fo_hf *h, int64_t id, const json_t *token) {
    const json_t *content = json_object_get(token, "content");
    if (id < 0 || (size_t)id >= h->n_tokens) return 0;
    h->token[id] = (struct fo_hf_token){
        .s = json_string_value(content),
        .len = json_string_length(content),
        .type = json_is_true(json_object_get(token, "special")) ? FO_TT_CONTROL : FO_TT_USER,
        .lstrip = json_is_true(json_object_get(token, "lstrip")),
        .rstrip = json_is_true(json_object_get(token, "rstrip")),
    };
    if (memchr(h->token[id].s, '\0', h->token[id].len)) return 0; /* nothing refers to such a text */
    if (!json_object_set_new(h->added, h->token[id].s, json_integer(id))) return 0;
    return fo_fail(h->e, FO_ENOMEM, "no memory for a vocabulary");
}

static int read_vocab(struct fo_hf *h) {
    const json_t *added = json_object_get(h->tokenizer, "added_tokens"), *decoder = json_object_get(h->tokenizer_config, "added_tokens_decoder");
    const char *key;
    const json_t *value;
    size_t i;
    int rc = size_vocab(h, added, decoder);
    if (!rc && !(h->added = json_object())) rc = fo_fail(h->e, FO_ENOMEM, "no memory for a vocabulary");
    if (rc) return rc;
    json_object_foreach((json_t *)(uintptr_t)h->vocab, key, value) {
        size_t id = (size_t)json_integer_value(value), len = strlen(key);
        if (id >= h->n_tokens) continue;
        bool byte = !h->byte_level && fo_tok_byte_name(key, len) >= 0;
        h->token[id] = (struct fo_hf_token){ .s = key, .len = len, .type = byte ? FO_TT_BYTE : FO_TT_NORMAL };
    }
    /* Tokens that only tokenizer_config.json names; what tokenizer.json says of one comes after it and wins. */
    json_object_foreach((json_t *)(uintptr_t)decoder, key, value) {
        char *end;
        unsigned long long id = strtoull(key, &end, 10);
        if (*end || !*key || !json_is_string(json_object_get(value, "content"))) return fo_fail(h->e, FO_EFORMAT, "added_tokens_decoder (tokenizer_config.json) has the key '%.64s'", key);
        if (id < h->n_tokens && !h->token[id].s && (rc = add_token(h, (int64_t)id, value))) return rc;
    }
    json_array_foreach(added, i, value) {
        if (json_is_true(json_object_get(value, "single_word"))) {
            return fo_fail(h->e, FO_EUNSUPPORTED, "the added token '%.64s' matches single words only", fo_hf_text(value, "content"));
        }
        if ((rc = add_token(h, id_of(json_object_get(value, "id")), value))) return rc;
    }
    return 0;
}

/* The id of a text (NUL-terminated all the same), -1 = none. */
static int64_t find_token(const struct fo_hf *h, const char *s, size_t len) {
    if (memchr(s, '\0', len)) return -1;
    int64_t id = id_of(json_object_get(h->added, s));
    if (id < 0) id = id_of(json_object_get(h->vocab, s));
    return id < (int64_t)h->n_tokens ? id : -1;
}

/* The token that a role names, in either of its forms: a text, or an object with its content. It is never made of a user's text. */
static int64_t role_token(struct fo_hf *h, const json_t *role) {
    const json_t *text = json_is_object(role) ? json_object_get(role, "content") : role;
    int64_t id = json_is_string(text) ? find_token(h, json_string_value(text), json_string_length(text)) : -1;
    if (id >= 0 && h->token[id].type != FO_TT_BYTE) h->token[id].type = FO_TT_CONTROL;
    return id;
}

static int64_t named_token(struct fo_hf *h, const char *name) {
    const json_t *role = json_object_get(h->tokenizer_config, name);
    return role_token(h, role ? role : json_object_get(h->special_tokens_map, name));
}

/* --- writing -------------------------------------------------------------------------------------------------------------- */

/* The halves of a merge, in either of its forms; false for what merges nothing (half of it empty, or with a space in it). */
static bool merge_halves(const json_t *merge, struct fo_str half[2]) {
    if (json_is_array(merge)) {
        for (size_t i = 0; i < 2; i++) {
            const json_t *text = json_array_get(merge, i);
            half[i] = (struct fo_str){ json_string_value(text), json_string_length(text) };
        }
    } else {
        const char *s = json_string_value(merge), *gap = s ? memchr(s, ' ', json_string_length(merge)) : NULL;
        if (!gap) return false;
        half[0] = (struct fo_str){ s, (size_t)(gap - s) };
        half[1] = (struct fo_str){ gap + 1, json_string_length(merge) - half[0].len - 1 };
    }
    for (size_t i = 0; i < 2; i++) {
        if (!half[i].len || memchr(half[i].s, ' ', half[i].len)) return false;
    }
    return true;
}

/* The merges; and for SPM scores that put tokens in the same order, for readers that know no merges there. */
static int write_merges(struct fo_hf *h) {
    size_t i, n = 0;
    const json_t *merge;
    struct fo_str half[2];
    struct fo_buf b;
    float *score = h->byte_level ? NULL : calloc(h->n_tokens, sizeof *score);
    if (!h->byte_level && !score) return fo_fail(h->e, FO_ENOMEM, "no memory for a vocabulary");
    fo_buf_init(&b, MAX_BYTES);
    json_array_foreach(h->merges, i, merge) n += merge_halves(merge, half);
    fo_gguf_put_array(h->w, "tokenizer.ggml.merges", FO_GGUF_STRING, n);
    n = 0;
    json_array_foreach(h->merges, i, merge) {
        if (!merge_halves(merge, half)) continue;
        n++;
        fo_buf_clear(&b);
        if (score) {
            fo_buf_append(&b, half[0].s, half[0].len);
            fo_buf_append(&b, half[1].s, half[1].len);
            if (b.failed) break;
            int64_t id = find_token(h, b.data, b.len);
            if (id >= 0 && score[id] == 0.0F) score[id] = -(float)n;
            fo_buf_clear(&b);
        }
        fo_buf_append(&b, half[0].s, half[0].len);
        fo_buf_putc(&b, ' ');
        fo_buf_append(&b, half[1].s, half[1].len);
        fo_gguf_put_elem(h->w, (struct fo_str){ fo_buf_str(&b), b.len });
        if (b.failed) break;
    }
    if (score) fo_gguf_put_f32s(h->w, "tokenizer.ggml.scores", score, h->n_tokens);
    if (score) fo_gguf_put_bool(h->w, "tokenizer.pantheon.merges", true);
    free(score);
    int rc = b.failed ? fo_fail(h->e, FO_ENOMEM, "no memory for merges") : 0;
    fo_buf_done(&b);
    return rc;
}

static int write_vocab(struct fo_hf *h) {
    int32_t *type = malloc(h->n_tokens * sizeof *type);
    if (!type) return fo_fail(h->e, FO_ENOMEM, "no memory for a vocabulary");
    fo_gguf_put_array(h->w, "tokenizer.ggml.tokens", FO_GGUF_STRING, h->n_tokens);
    for (size_t i = 0; i < h->n_tokens; i++) {
        char gap[32];
        const struct fo_hf_token *t = &h->token[i];
        if (!t->s) snprintf(gap, sizeof gap, "[PAD%zu]", i);
        fo_gguf_put_elem(h->w, t->s ? (struct fo_str){ t->s, t->len } : (struct fo_str){ gap, strlen(gap) });
        type[i] = t->s ? t->type : FO_TT_UNUSED;
    }
    fo_gguf_put_i32s(h->w, "tokenizer.ggml.token_type", type, h->n_tokens);
    free(type);
    return 0;
}

static void write_id(struct fo_hf *h, const char *key, int64_t id) {
    if (id >= 0) fo_gguf_put_u32(h->w, key, (uint32_t)id);
    else if (!h->byte_level) fo_gguf_put_u32(h->w, key, UINT32_MAX); /* SPM would take its own for silence */
}

static void add_ends(const struct fo_hf *h, const json_t *ids, int32_t *ends, size_t *n) {
    for (size_t i = 0; i < (json_is_array(ids) ? json_array_size(ids) : 1); i++) {
        int64_t id = id_of(json_is_array(ids) ? json_array_get(ids, i) : ids);
        if (id >= 0 && id < (int64_t)h->n_tokens && *n < MAX_ENDS) ends[(*n)++] = (int32_t)id;
    }
}

static void write_ends(struct fo_hf *h) {
    int32_t ends[MAX_ENDS];
    size_t n = 0;
    if (h->eos >= 0) ends[n++] = (int32_t)h->eos;
    add_ends(h, json_object_get(h->generation_config, "eos_token_id"), ends, &n);
    add_ends(h, json_object_get(h->config, "eos_token_id"), ends, &n);
    add_ends(h, json_object_get(json_object_get(h->config, "text_config"), "eos_token_id"), ends, &n);
    fo_gguf_put_i32s(h->w, "tokenizer.pantheon.end_token_ids", ends, n);
    for (size_t i = 0; i < n; i++) {
        if (h->token[ends[i]].type == FO_TT_USER) h->token[ends[i]].type = FO_TT_CONTROL; /* nobody ends a turn by writing it */
    }
}

static int write_strips(struct fo_hf *h) {
    int32_t *ids = malloc(h->n_tokens * sizeof *ids);
    size_t n = 0;
    if (!ids) return fo_fail(h->e, FO_ENOMEM, "no memory for a vocabulary");
    for (size_t i = 0; i < h->n_tokens; i++) {
        if (h->token[i].lstrip) ids[n++] = (int32_t)i;
    }
    fo_gguf_put_i32s(h->w, "tokenizer.pantheon.lstrip_token_ids", ids, n);
    n = 0;
    for (size_t i = 0; i < h->n_tokens; i++) {
        if (h->token[i].rstrip) ids[n++] = (int32_t)i;
    }
    fo_gguf_put_i32s(h->w, "tokenizer.pantheon.rstrip_token_ids", ids, n);
    free(ids);
    return 0;
}

static void put_template(struct fo_hf *h, const char *name, struct fo_str text) {
    char key[sizeof "tokenizer.chat_template." + MAX_NAME];
    bool whole = !*name || !strcmp(name, "default");
    snprintf(key, sizeof key, whole ? "tokenizer.chat_template" : "tokenizer.chat_template.%s", name);
    fo_gguf_put_str(h->w, key, text);
}

/* chat_template.jinja, else chat_template.json, else tokenizer_config.json: a text, or a list of named ones. */
static int write_templates(struct fo_hf *h, const struct fo_hf_files *files) {
    const json_t *own = json_object_get(h->template_json, "chat_template"), *item;
    size_t i;
    if (files->tool_use_jinja.s) put_template(h, "tool_use", files->tool_use_jinja);
    if (files->jinja.s) {
        put_template(h, "", files->jinja);
        return 0;
    }
    if (!own) own = json_object_get(h->tokenizer_config, "chat_template");
    if (json_is_string(own)) put_template(h, "", (struct fo_str){ json_string_value(own), json_string_length(own) });
    json_array_foreach(own, i, item) {
        const json_t *text = json_object_get(item, "template");
        const char *name = fo_hf_text(item, "name");
        bool again = !strcmp(name, "tool_use") && files->tool_use_jinja.s;
        for (size_t k = 0; k < i; k++) again = again || !strcmp(fo_hf_text(json_array_get(own, k), "name"), name);
        if (!*name || strlen(name) > MAX_NAME || i == MAX_NAME || !json_is_string(text) || again) {
            return fo_fail(h->e, FO_EFORMAT, "chat_template[%zu] has no name or template of its own", i);
        }
        put_template(h, json_array_size(own) == 1 ? "" : name, (struct fo_str){ json_string_value(text), json_string_length(text) });
    }
    return 0;
}

static int convert(struct fo_hf *h, const struct fo_hf_files *files) {
    const json_t *more, *role;
    size_t i;
    int rc;
    if ((rc = find_vocab(h)) || (rc = fo_hf_read_pipeline(h))) return rc;
    if (!h->byte_level && !json_is_true(json_object_get(h->model, "byte_fallback"))) {
        return fo_fail(h->e, FO_EUNSUPPORTED, "a BPE tokenizer that is neither byte-level nor has byte_fallback");
    }
    if ((rc = read_vocab(h)) || (rc = fo_hf_read_post(h))) return rc;
    int64_t bos = named_token(h, "bos_token"), eos = named_token(h, "eos_token"), pad = named_token(h, "pad_token");
    int64_t unk = role_token(h, json_object_get(h->model, "unk_token"));
    if (unk < 0) unk = named_token(h, "unk_token");
    else named_token(h, "unk_token");
    json_array_foreach(more = json_object_get(h->tokenizer_config, "additional_special_tokens"), i, role) role_token(h, role);
    json_array_foreach(more = json_object_get(h->special_tokens_map, "additional_special_tokens"), i, role) role_token(h, role);
    if (!h->add_bos || h->bos < 0 || h->bos >= (int64_t)h->n_tokens) h->bos = bos;
    if (!h->add_eos || h->eos < 0 || h->eos >= (int64_t)h->n_tokens) h->eos = eos;
    if (unk >= 0 && !h->byte_level) h->token[unk].type = FO_TT_UNKNOWN;
    unsigned n_bytes = 0;
    for (i = 0; i < h->n_tokens; i++) n_bytes += h->token[i].type == FO_TT_BYTE;
    if (!h->byte_level && n_bytes != 256) return fo_fail(h->e, FO_EUNSUPPORTED, "byte_fallback with %u of 256 bytes", n_bytes);

    const char *kind = h->byte_level ? "gpt2" : "llama";
    fo_gguf_put_str(h->w, "tokenizer.ggml.model", (struct fo_str){ kind, strlen(kind) });
    fo_hf_write_pipeline(h);
    write_ends(h);
    if ((rc = write_vocab(h)) || (rc = write_merges(h))) return rc;
    write_id(h, "tokenizer.ggml.bos_token_id", h->bos);
    write_id(h, "tokenizer.ggml.eos_token_id", h->eos);
    write_id(h, "tokenizer.ggml.unknown_token_id", unk);
    if (pad >= 0) fo_gguf_put_u32(h->w, "tokenizer.ggml.padding_token_id", (uint32_t)pad);
    fo_gguf_put_bool(h->w, "tokenizer.ggml.add_bos_token", h->add_bos);
    fo_gguf_put_bool(h->w, "tokenizer.ggml.add_eos_token", h->add_eos);
    return (rc = write_strips(h)) ? rc : write_templates(h, files);
}

int fo_hf_tokenizer_parse(const struct fo_hf_files *files, struct fo_gguf_writer *w, struct fo_err *e) {
    struct fo_gguf_writer own; /* so that a failure leaves w as it was */
    struct fo_hf h = { .e = e, .w = &own, .bos = -1, .eos = -1 };
    int rc;
    if (!files->tokenizer.s) return fo_fail(e, FO_ENOENT, "there is no tokenizer.json");
    fo_gguf_writer_init(&own, w->kv.cap_bytes);
    for (size_t i = 0; i < FO_PRE_MAX_PASSES; i++) fo_buf_init(&h.pass[i], 1 << 20);
    if (!(rc = parse(files->tokenizer, "tokenizer.json", &h.tokenizer, e)) && !(rc = parse(files->tokenizer_config, "tokenizer_config.json", &h.tokenizer_config, e)) &&
        !(rc = parse(files->special_tokens_map, "special_tokens_map.json", &h.special_tokens_map, e)) &&
        !(rc = parse(files->generation_config, "generation_config.json", &h.generation_config, e)) && !(rc = parse(files->config, "config.json", &h.config, e)) &&
        !(rc = parse(files->template_json, "chat_template.json", &h.template_json, e)) && (rc = convert(&h, files))) {
        fo_wrap(e, "tokenizer.json");
    }
    if (!rc && (own.kv.failed || !fo_buf_append(&w->kv, own.kv.data, own.kv.len))) rc = fo_fail(e, FO_ENOMEM, "no memory for a tokenizer's metadata");
    if (!rc) w->n_kv += own.n_kv;
    fo_gguf_writer_done(&own);
    for (size_t i = 0; i < FO_PRE_MAX_PASSES; i++) fo_buf_done(&h.pass[i]);
    free(h.token);
    json_decref(h.added);
    json_decref(h.tokenizer);
    json_decref(h.tokenizer_config);
    json_decref(h.special_tokens_map);
    json_decref(h.generation_config);
    json_decref(h.config);
    json_decref(h.template_json);
    return rc;
}

/* A file that may be absent. */
static int read_file(const char *dir, const char *name, size_t cap_bytes, struct fo_str *ret, struct fo_err *e) {
    char path[4096];
    char *text;
    if (snprintf(path, sizeof path, "%s/%s", dir, name) >= (int)sizeof path) return fo_fail(e, FO_ELIMIT, "the path of %s is too long", name);
    int rc = fo_file_read(path, cap_bytes, &text, &ret->len, e);
    if (rc) return rc == FO_ENOENT ? 0 : rc;
    ret->s = text;
    return 0;
}

int fo_hf_tokenizer(const char *dir, struct fo_gguf_writer *w, struct fo_err *e) {
    struct fo_hf_files files = { 0 };
    const struct {
        const char *name;
        size_t cap_bytes;
        struct fo_str *text;
    } list[] = {
        { "tokenizer.json", MAX_BYTES, &files.tokenizer },
        { "tokenizer_config.json", MAX_SMALL_BYTES, &files.tokenizer_config },
        { "special_tokens_map.json", MAX_SMALL_BYTES, &files.special_tokens_map },
        { "generation_config.json", MAX_SMALL_BYTES, &files.generation_config },
        { "config.json", MAX_SMALL_BYTES, &files.config },
        { "chat_template.jinja", MAX_SMALL_BYTES, &files.jinja },
        { "chat_template.json", MAX_SMALL_BYTES, &files.template_json },
        { "additional_chat_templates/tool_use.jinja", MAX_SMALL_BYTES, &files.tool_use_jinja },
    };
    int rc = 0;
    for (size_t i = 0; i < sizeof list / sizeof list[0] && !rc; i++) rc = read_file(dir, list[i].name, list[i].cap_bytes, list[i].text, e);
    if (!rc) rc = fo_hf_tokenizer_parse(&files, w, e);
    if (rc) fo_wrap(e, "%s", dir);
    for (size_t i = 0; i < sizeof list / sizeof list[0]; i++) free((char *)(uintptr_t)list[i].text->s);
    return rc;
}
