/* See dialects.h. */
#include "tests/support/dialects.h"

#include <stdlib.h>
#include <string.h>

#include "engine/chat.h"
#include "foundry/base/err.h"
#include "foundry/gguf.h"
#include "foundry/tok.h"
#include "tests/support/gguf_write.h"
#include "tests/support/tiny.h"

enum { MAX_WORDS = 64, CONTROL = 3, NORMAL = 1 };

/* An expression of Jinja that is this text. */
static void literal(struct fo_buf *b, const char *text) {
    fo_buf_puts(b, "{{ '");
    for (; text && *text; text++) {
        if (*text == '\n') fo_buf_puts(b, "\\n");
        else if (*text == '\'' || *text == '\\') fo_buf_printf(b, "\\%c", *text);
        else fo_buf_putc(b, *text);
    }
    fo_buf_puts(b, "' }}");
}

static void write_calls(struct fo_buf *b, const struct pn_call_format *f) {
    bool list = f->shape == PN_CALL_LIST;
    literal(b, f->text[PN_CALL_OPEN]);
    if (list) literal(b, f->text[PN_CALL_BEGIN]);
    if (list) fo_buf_putc(b, '[');
    fo_buf_puts(b, "{% for c in m.tool_calls %}{% if not loop.first %}");
    literal(b, f->text[PN_CALL_BETWEEN]);
    fo_buf_puts(b, "{% endif %}");
    if (!list) literal(b, f->text[PN_CALL_BEGIN]);
    if (f->shape == PN_CALL_OBJECT || list)
        fo_buf_printf(b, "{\"name\": \"{{ c.function.name }}\", \"%s\": {{ c.function.arguments | tojson }}}", f->arguments);
    else fo_buf_puts(b, "{{ c.function.name }}");
    if (!list) literal(b, f->text[PN_CALL_MIDDLE]);
    if (f->shape == PN_CALL_NAMED) fo_buf_puts(b, "{{ c.function.arguments | tojson }}");
    if (f->shape == PN_CALL_TAGS) {
        fo_buf_puts(b, "{% for k, v in c.function.arguments.items() %}");
        literal(b, f->text[PN_CALL_ARG_BEGIN]);
        fo_buf_puts(b, "{{ k }}");
        literal(b, f->text[PN_CALL_ARG_MIDDLE]);
        fo_buf_puts(b, "{{ v }}");
        literal(b, f->text[PN_CALL_ARG_END]);
        fo_buf_puts(b, "{% endfor %}");
    }
    if (!list) literal(b, f->text[PN_CALL_END]);
    fo_buf_puts(b, "{% endfor %}");
    if (list) fo_buf_putc(b, ']');
    if (list) literal(b, f->text[PN_CALL_END]);
    literal(b, f->text[PN_CALL_CLOSE]);
}

char *test_dialect_template(const struct pn_call_format *f, const struct pn_reasoning *r) {
    struct fo_buf b;
    fo_buf_init(&b, 1 << 16);
    if (f) fo_buf_puts(&b, "{% if tools %}<functions>{{ tools | tojson }}{% endif %}");
    fo_buf_puts(&b, "{% for m in messages %}<{{ m.role }}>");
    if (r) {
        fo_buf_puts(&b, "{% if m.reasoning_content %}");
        literal(&b, r->open);
        fo_buf_puts(&b, "{{ m.reasoning_content }}");
        literal(&b, r->close);
        literal(&b, r->after);
        fo_buf_puts(&b, "{% endif %}");
    }
    fo_buf_puts(&b, "{{ m.content or '' }}{% if m.tool_calls %}");
    if (f) write_calls(&b, f);
    fo_buf_puts(&b, "{% endif %}{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}");
    char *text = fo_buf_steal(&b);
    if (!text) abort();
    return text;
}

/* The words of text that are tags and nothing but: "<x>", "[X]". */
static void add_words(const char *text, char words[MAX_WORDS][64], size_t *n) {
    while (text && *text) {
        size_t len = strcspn(text, " \n"), one = strcspn(text, ">]") + 1;
        if (one <= len && one < 64 && (*text == '<' || *text == '[')) {
            bool known = false;
            len = one;
            for (size_t i = 0; i < *n; i++) known |= strlen(words[i]) == len && memcmp(words[i], text, len) == 0;
            if (!known && *n < MAX_WORDS) {
                memcpy(words[*n], text, len);
                words[(*n)++][len] = 0;
            }
        }
        text += len;
        text += strspn(text, " \n");
    }
}

static void open_vocabulary(struct test_dialect *t, const struct pn_call_format *f, const struct pn_reasoning *r) {
    char words[MAX_WORDS][64], bytes[256][4] = { { 0 } };
    const char *list[1 + MAX_WORDS + 256];
    int32_t types[1 + MAX_WORDS + 256];
    size_t n_words = 0, n = 0;
    struct test_gguf w;
    struct fo_err e = { 0 };
    for (int i = 0; f && i < PN_N_CALL_TEXTS; i++) add_words(f->text[i], words, &n_words);
    if (r) add_words(r->open, words, &n_words);
    if (r) add_words(r->close, words, &n_words);
    list[n] = "<|end|>";
    types[n++] = CONTROL;
    for (size_t i = 0; i < n_words; i++) {
        list[n] = words[i];
        types[n++] = CONTROL;
    }
    for (int i = 0; i < 256; i++) {
        test_put_byte_char(bytes[i], i);
        list[n] = bytes[i];
        types[n++] = NORMAL;
    }
    test_gguf_init(&w, 3);
    test_gguf_str(&w, "general.architecture", "llama");
    test_gguf_str(&w, "tokenizer.ggml.model", "gpt2");
    test_gguf_str(&w, "tokenizer.ggml.pre", "smollm");
    test_gguf_strs(&w, "tokenizer.ggml.tokens", list, n);
    test_gguf_i32s(&w, "tokenizer.ggml.token_type", types, n);
    test_gguf_strs(&w, "tokenizer.ggml.merges", list, 0);
    test_gguf_u32(&w, "tokenizer.ggml.eos_token_id", 0);
    test_gguf_bool(&w, "tokenizer.ggml.add_bos_token", false);
    if (!test_gguf_finish(&w, &t->file) || fo_gguf_parse(t->file.data, t->file.len, "words", &t->g, &e) || fo_tok_open(t->g, &t->tok, &e)) abort();
}

void test_dialect_open(struct test_dialect *t, const struct pn_call_format *f, const struct pn_reasoning *r, bool marks) {
    struct fo_err e = { 0 };
    char *text = test_dialect_template(f, r);
    *t = (struct test_dialect){ 0 };
    if (marks) open_vocabulary(t, f, r);
    if (pn_chat_open_text(text, strlen(text), "", "", &t->chat, &e) || pn_dialect_new(t->chat, t->tok, &t->d, &e)) abort();
    free(text);
}

void test_dialect_close(struct test_dialect *t) {
    pn_dialect_free(t->d);
    pn_chat_free(t->chat);
    fo_tok_free(t->tok);
    fo_gguf_close(t->g);
    fo_buf_done(&t->file);
}

const struct pn_call_format *test_call_row(const char *name) {
    const struct pn_call_format *f;
    for (size_t i = 0; (f = pn_call_format_row(i)); i++)
        if (strcmp(f->name, name) == 0) return f;
    abort();
}

static void put(struct fo_buf *out, const char *text) {
    fo_buf_puts(out, text ? text : "");
}

void test_call_arguments(const struct pn_call_format *f, struct fo_buf *out, const char *const *arguments) {
    (void)f;
    fo_buf_putc(out, '{');
    for (size_t i = 0; arguments[i]; i += 2) fo_buf_printf(out, "%s\"%s\": %s", i ? ", " : "", arguments[i], arguments[i + 1]);
    fo_buf_putc(out, '}');
}

/* A value as tags have it: a string without its quotes, its escapes undone (the few that tests use). */
static void put_value(struct fo_buf *out, const char *json) {
    size_t n = strlen(json);
    if (*json != '"') {
        put(out, json);
        return;
    }
    for (size_t i = 1; i + 1 < n; i++) {
        if (json[i] != '\\') fo_buf_putc(out, json[i]);
        else if (json[++i] == 'n') fo_buf_putc(out, '\n');
        else fo_buf_putc(out, json[i]);
    }
}

void test_call_write(const struct pn_call_format *f, struct fo_buf *out, const char *name, const char *const *arguments, int nth, bool last) {
    bool list = f->shape == PN_CALL_LIST;
    if (nth == 0) put(out, f->text[PN_CALL_OPEN]);
    else put(out, f->text[PN_CALL_BETWEEN]);
    if (!list || nth == 0) put(out, f->text[PN_CALL_BEGIN]);
    if (list && nth == 0) put(out, "[");
    if (f->shape == PN_CALL_OBJECT || list) {
        fo_buf_printf(out, "{\"name\": \"%s\", \"%s\": ", name, f->arguments);
        test_call_arguments(f, out, arguments);
        put(out, "}");
    } else {
        put(out, name);
        put(out, f->text[PN_CALL_MIDDLE]);
    }
    if (f->shape == PN_CALL_NAMED) test_call_arguments(f, out, arguments);
    for (size_t i = 0; f->shape == PN_CALL_TAGS && arguments[i]; i += 2) {
        put(out, f->text[PN_CALL_ARG_BEGIN]);
        put(out, arguments[i]);
        put(out, f->text[PN_CALL_ARG_MIDDLE]);
        put_value(out, arguments[i + 1]);
        put(out, f->text[PN_CALL_ARG_END]);
    }
    if (list && last) put(out, "]");
    if (!list || last) put(out, f->text[PN_CALL_END]);
    if (last) put(out, f->text[PN_CALL_CLOSE]);
}

void test_dialect_mark(const struct pn_dialect *d, const char *text, size_t n, struct fo_buf *out) {
    for (size_t i = 0; i < n;) {
        size_t len = 0, best = 0;
        const char *mark;
        for (size_t k = 0; (mark = pn_dialect_mark_text(d, k, &len)); k++)
            if (len > best && len <= n - i && memcmp(mark, text + i, len) == 0) best = len;
        if (best) fo_buf_putc(out, (char)PN_MARK);
        if (!best) best = 1;
        fo_buf_append(out, text + i, best);
        i += best;
    }
}
