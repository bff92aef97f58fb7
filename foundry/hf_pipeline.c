/* What a tokenizer.json does to text before and after merging: normaliser, pre-tokenizer, post-processor. Each is an object with a
 * "type", or a Sequence of them; a type is a row of a table here, and one without a row is refused by its name.
 *
 * A pre-tokenizer becomes passes of regular expressions (tok_pre.h). From a ByteLevel on, text is what stands for its bytes, and a
 * pass sees that. */
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "foundry/base/err.h"
#include "foundry/hf_int.h"

#define MARK "\xE2\x96\x81" /* U+2581 */

/* The expression that ByteLevel brings along. */
#define BYTE_LEVEL_RE "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"

struct part {
    const char *type;
    int (*read)(struct fo_hf *h, const json_t *part);
};

/* Calls the row of a part, or of each part of a sequence. `what` is for the error. */
static int read_parts(struct fo_hf *h, const json_t *part, const char *what, const char *list, const struct part *table, size_t n) {
    if (!part || json_is_null(part)) return 0;
    const char *type = fo_hf_text(part, "type");
    if (!strcmp(type, "Sequence")) {
        const json_t *parts = json_object_get(part, list);
        int rc = json_is_array(parts) ? 0 : fo_fail(h->e, FO_EFORMAT, "the %s's sequence has no list '%s'", what, list);
        for (size_t i = 0; i < json_array_size(parts) && !rc; i++) rc = read_parts(h, json_array_get(parts, i), what, list, table, n);
        return rc;
    }
    for (size_t i = 0; i < n; i++) {
        if (!strcmp(type, table[i].type)) return table[i].read(h, part);
    }
    return fo_fail(h->e, FO_EUNSUPPORTED, "the %s '%.64s' is not one that this build has", what, type);
}

static int refuse(struct fo_hf *h, const char *what, const json_t *value) {
    char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT);
    int rc = fo_fail(h->e, FO_EUNSUPPORTED, "%s %.300s is not one that this build has", what, text ? text : "?");
    free(text);
    return rc;
}

static bool is_text(const json_t *value, const char *text) {
    return json_is_string(value) && !strcmp(json_string_value(value), text);
}

/* --- normaliser ----------------------------------------------------------------------------------------------------------- */

static int read_nfc(struct fo_hf *h, const json_t *part) {
    (void)part;
    h->nfc = true;
    return 0;
}

static int read_prepend(struct fo_hf *h, const json_t *part) {
    const json_t *text = json_object_get(part, "prepend");
    if (!is_text(text, MARK) && !(is_text(text, " ") && !h->marked)) return refuse(h, "a normaliser that prepends", text);
    h->space_prefix = "all";
    return 0;
}

static int read_replace(struct fo_hf *h, const json_t *part) {
    if (!is_text(json_object_get(json_object_get(part, "pattern"), "String"), " ") || !is_text(json_object_get(part, "content"), MARK)) {
        return refuse(h, "the normaliser", part);
    }
    h->marked = true;
    return 0;
}

static const struct part normalizers[] = { { "NFC", read_nfc }, { "Prepend", read_prepend }, { "Replace", read_replace } };

/* --- pre-tokenizer -------------------------------------------------------------------------------------------------------- */

static int add_pass(struct fo_hf *h, const char *re, size_t len, unsigned flags) {
    if (h->n_passes == FO_PRE_MAX_PASSES) {
        return fo_fail(h->e, FO_EUNSUPPORTED, "a pre-tokenizer of more than %d passes", FO_PRE_MAX_PASSES);
    }
    struct fo_buf *b = &h->pass[h->n_passes];
    if (!fo_buf_append(b, re, len)) return fo_fail(h->e, FO_ENOMEM, "no memory for a pre-tokenizer");
    h->pass_flags[h->n_passes++] = flags | (h->mapped ? FO_PASS_BYTES : 0u);
    return 0;
}

static int read_byte_level(struct fo_hf *h, const json_t *part) {
    int rc = 0;
    if (h->mapped) return fo_fail(h->e, FO_EUNSUPPORTED, "the pre-tokenizer 'ByteLevel' stands twice");
    if (json_is_true(json_object_get(part, "add_prefix_space"))) {
        if (h->n_passes) return fo_fail(h->e, FO_EUNSUPPORTED, "the pre-tokenizer 'ByteLevel' with add_prefix_space, behind another one");
        h->spaced = true;
    }
    if (!json_is_false(json_object_get(part, "use_regex"))) rc = add_pass(h, BYTE_LEVEL_RE, sizeof BYTE_LEVEL_RE - 1, 0);
    h->mapped = true;
    return rc;
}

static int read_digits(struct fo_hf *h, const json_t *part) {
    const char *re = json_is_true(json_object_get(part, "individual_digits")) ? "\\p{N}" : "\\p{N}+";
    return add_pass(h, re, strlen(re), 0);
}

static int read_punctuation(struct fo_hf *h, const json_t *part) {
    static const char re[] = "[\\p{P}\\$\\+<=>\\^~\\|`]+";
    const json_t *behavior = json_object_get(part, "behavior");
    bool one = !behavior || is_text(behavior, "Isolated");
    if (!one && !is_text(behavior, "Contiguous")) return refuse(h, "a Punctuation pre-tokenizer whose behaviour is", behavior);
    return add_pass(h, re, sizeof re - 1 - one, 0);
}

static int read_split(struct fo_hf *h, const json_t *part) {
    const json_t *pattern = json_object_get(part, "pattern"), *re = json_object_get(pattern, "Regex"), *text = json_object_get(pattern, "String");
    const json_t *behavior = json_object_get(part, "behavior");
    bool invert = json_is_true(json_object_get(part, "invert")), ours = is_text(behavior, "Isolated"), drop = false;
    if (is_text(text, " ") && h->marked) return 0; /* there are none any more */
    if (is_text(behavior, "Removed") && invert) drop = true; /* what matches is kept, what does not is removed */
    else if (!ours && !(is_text(behavior, "Contiguous") && !invert)) return refuse(h, "the pre-tokenizer", part);
    struct fo_buf b;
    fo_buf_init(&b, 1 << 20);
    if (!ours && !drop) fo_buf_puts(&b, "(?:");
    if (json_is_string(re)) fo_buf_append(&b, json_string_value(re), json_string_length(re));
    for (size_t i = 0; i < json_string_length(text); i++) {
        char c = json_string_value(text)[i];
        if (c > 0 && strchr("\\^$.|?*+()[]{}-&", c)) fo_buf_putc(&b, '\\');
        fo_buf_putc(&b, c);
    }
    if (!ours && !drop) fo_buf_puts(&b, ")+");
    int rc = b.failed ? fo_fail(h->e, FO_ENOMEM, "no memory for a pre-tokenizer") : 0;
    if (!rc && (!b.len || memchr(b.data, '\0', b.len))) rc = refuse(h, "the pre-tokenizer", part);
    if (!rc) rc = add_pass(h, b.data, b.len, drop ? FO_PASS_DROP : 0);
    fo_buf_done(&b);
    return rc;
}

static int read_metaspace(struct fo_hf *h, const json_t *part) {
    static const struct {
        const char *scheme, *prefix;
    } schemes[] = { { "always", "missing" }, { "first", "first" }, { "never", "none" } };
    const json_t *scheme = json_object_get(part, "prepend_scheme"), *mark = json_object_get(part, "replacement");
    const char *name = scheme ? fo_hf_text(part, "prepend_scheme") : json_is_false(json_object_get(part, "add_prefix_space")) ? "never" : "always";
    if (!is_text(mark, MARK)) return refuse(h, "a Metaspace pre-tokenizer whose replacement is", mark);
    h->marked = true;
    h->split_spaces = !json_is_false(json_object_get(part, "split"));
    for (size_t i = 0; i < sizeof schemes / sizeof schemes[0]; i++) {
        if (strcmp(name, schemes[i].scheme)) continue;
        if (strcmp(h->space_prefix, "all")) h->space_prefix = schemes[i].prefix; /* else every piece starts with one already */
        return 0;
    }
    return refuse(h, "a Metaspace pre-tokenizer whose prepend_scheme is", scheme);
}

static const struct part pre_tokenizers[] = {
    { "ByteLevel", read_byte_level }, { "Digits", read_digits }, { "Punctuation", read_punctuation }, { "Split", read_split }, { "Metaspace", read_metaspace },
};

int fo_hf_read_pipeline(struct fo_hf *h) {
    h->space_prefix = "none";
    int rc = read_parts(h, json_object_get(h->tokenizer, "normalizer"), "normaliser", "normalizers", normalizers, sizeof normalizers / sizeof normalizers[0]);
    if (!rc) {
        rc = read_parts(h, json_object_get(h->tokenizer, "pre_tokenizer"), "pre-tokenizer", "pretokenizers", pre_tokenizers,
                        sizeof pre_tokenizers / sizeof pre_tokenizers[0]);
    }
    if (rc) return rc;
    h->byte_level = h->mapped;
    if (h->byte_level && (h->marked || strcmp(h->space_prefix, "none"))) {
        return fo_fail(h->e, FO_EUNSUPPORTED, "a byte-level tokenizer that writes spaces as U+2581 or prepends to its text");
    }
    if (h->byte_level) return 0;
    if (!h->marked) return fo_fail(h->e, FO_EUNSUPPORTED, "a BPE tokenizer that is neither byte-level nor writes spaces as U+2581");
    if (h->nfc || h->n_passes) return fo_fail(h->e, FO_EUNSUPPORTED, "an SPM-style tokenizer with %s", h->nfc ? "the normaliser 'NFC'" : "a pre-tokenizer that splits");
    return 0;
}

void fo_hf_write_pipeline(struct fo_hf *h) {
    struct fo_pre_pass pass[FO_PRE_MAX_PASSES];
    bool whole = json_is_true(json_object_get(h->model, "ignore_merges"));
    if (!h->byte_level) {
        fo_gguf_put_bool(h->w, "tokenizer.ggml.add_space_prefix", strcmp(h->space_prefix, "none") != 0);
        fo_gguf_put_str(h->w, "tokenizer.pantheon.space_prefix", (struct fo_str){ h->space_prefix, strlen(h->space_prefix) });
        fo_gguf_put_bool(h->w, "tokenizer.pantheon.split_spaces", h->split_spaces);
        return;
    }
    for (size_t i = 0; i < h->n_passes; i++) {
        pass[i] = (struct fo_pre_pass){ .re = h->pass[i].data, .len = h->pass[i].len, .flags = h->pass_flags[i] };
    }
    const char *name = fo_pre_recognise(pass, h->n_passes, whole);
    if (!name) name = fo_pre_recognise(pass, h->n_passes, !whole);
    fo_gguf_put_str(h->w, "tokenizer.ggml.pre", name ? (struct fo_str){ name, strlen(name) } : (struct fo_str){ "custom", 6 });
    if (!name) {
        struct fo_buf b;
        fo_buf_init(&b, 1 << 21);
        fo_gguf_put_array(h->w, "tokenizer.pantheon.split", FO_GGUF_STRING, h->n_passes);
        for (size_t i = 0; i < h->n_passes; i++) {
            fo_buf_clear(&b);
            if (pass[i].flags & FO_PASS_DROP) fo_buf_putc(&b, 'd');
            if (pass[i].flags & FO_PASS_BYTES) fo_buf_putc(&b, 'b');
            fo_buf_putc(&b, ':');
            fo_buf_append(&b, pass[i].re, pass[i].len);
            fo_gguf_put_elem(h->w, (struct fo_str){ fo_buf_str(&b), b.len });
            if (b.failed) h->w->kv.failed = true;
        }
        fo_buf_done(&b);
    }
    fo_gguf_put_bool(h->w, "tokenizer.pantheon.ignore_merges", whole);
    if (h->nfc) fo_gguf_put_bool(h->w, "tokenizer.pantheon.nfc", true);
    if (h->spaced) fo_gguf_put_bool(h->w, "tokenizer.pantheon.spaced", true);
}

/* --- post-processor ------------------------------------------------------------------------------------------------------- */

static int read_nothing(struct fo_hf *h, const json_t *part) {
    (void)h, (void)part;
    return 0;
}

static int read_template(struct fo_hf *h, const json_t *part) {
    const json_t *single = json_object_get(part, "single"), *specials = json_object_get(part, "special_tokens");
    bool behind = false;
    for (size_t i = 0; i < json_array_size(single); i++) {
        const json_t *piece = json_array_get(single, i), *special = json_object_get(piece, "SpecialToken");
        if (json_object_get(piece, "Sequence")) {
            if (behind) return refuse(h, "the post-processor", single);
            behind = true;
            continue;
        }
        const json_t *ids = json_object_get(json_object_get(specials, fo_hf_text(special, "id")), "ids"), *id = json_array_get(ids, 0);
        if (json_array_size(ids) != 1 || !json_is_integer(id)) return refuse(h, "the post-processor", single);
        if (behind ? h->add_eos : h->add_bos) return refuse(h, "the post-processor", single); /* two in a row */
        *(behind ? &h->add_eos : &h->add_bos) = true;
        *(behind ? &h->eos : &h->bos) = json_integer_value(id);
    }
    return behind ? 0 : refuse(h, "the post-processor", single);
}

static const struct part post_processors[] = { { "ByteLevel", read_nothing }, { "TemplateProcessing", read_template } };

/* The class of a tokenizer whose add_bos_token is true when nothing is said. */
static bool is_llama_class(const struct fo_hf *h) {
    const char *class = fo_hf_text(h->tokenizer_config, "tokenizer_class");
    return !strncmp(class, "LlamaTokenizer", 14) || !strncmp(class, "CodeLlamaTokenizer", 18) || !strncmp(class, "GemmaTokenizer", 14);
}

int fo_hf_read_post(struct fo_hf *h) {
    const json_t *post = json_object_get(h->tokenizer, "post_processor"), *flag;
    int rc = read_parts(h, post, "post-processor", "processors", post_processors, sizeof post_processors / sizeof post_processors[0]);
    if (rc) return rc;
    if (!post || json_is_null(post)) h->add_bos = is_llama_class(h);
    if (json_is_boolean(flag = json_object_get(h->tokenizer_config, "add_bos_token"))) h->add_bos = json_is_true(flag);
    if (json_is_boolean(flag = json_object_get(h->tokenizer_config, "add_eos_token"))) h->add_eos = json_is_true(flag);
    return 0;
}
