#include "tests/support/dialect.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <string.h>

#include "engine/chat.h"
#include "engine/dialect.h"
#include "foundry/base/buf.h"
#include "foundry/base/err.h"

/* A text of a row, as a string of the template's language. */
static void put_text(struct fo_buf *b, const struct pn_call_format *f, enum pn_call_text which) {
    fo_buf_puts(b, "{{ '");
    for (const char *s = f->text[which] ? f->text[which] : ""; *s; s++) {
        if (*s == '\n')
            fo_buf_puts(b, "\\n");
        else
            fo_buf_putc(b, *s);
    }
    fo_buf_puts(b, "' }}");
}

static void put_call(struct fo_buf *b, const struct pn_call_format *f) {
    switch (f->shape) {
    case PN_CALL_OBJECT:
    case PN_CALL_LIST:
        fo_buf_printf(b, "{{ '{\"name\": \"' + c.function.name + '\", \"%s\": ' + c.function.arguments|tojson + '}' }}", f->arguments);
        return;
    case PN_CALL_NAMED:
        fo_buf_puts(b, "{{ c.function.name }}");
        put_text(b, f, PN_CALL_MIDDLE);
        fo_buf_puts(b, "{{ c.function.arguments|tojson }}");
        return;
    case PN_CALL_TAGS:
        fo_buf_puts(b, "{{ c.function.name }}");
        put_text(b, f, PN_CALL_MIDDLE);
        fo_buf_puts(b, "{% for k, v in c.function.arguments|items %}");
        put_text(b, f, PN_CALL_ARG_BEGIN);
        fo_buf_puts(b, "{{ k }}");
        put_text(b, f, PN_CALL_ARG_MIDDLE);
        fo_buf_puts(b, "{{ v }}");
        put_text(b, f, PN_CALL_ARG_END);
        fo_buf_puts(b, "{% endfor %}");
        return;
    }
}

struct pn_dialect *test_dialect(const char *row) {
    const struct pn_call_format *f;
    struct pn_chat *c = NULL;
    struct pn_dialect *d = NULL;
    struct fo_buf b;
    struct fo_err e = { 0 };
    size_t i = 0;
    while ((f = pn_call_format_row(i)) && strcmp(f->name, row) != 0) i++;
    if (!f) fail_msg("there is no row %s", row);
    bool list = f->shape == PN_CALL_LIST;
    fo_buf_init(&b, 1 << 16);
    fo_buf_puts(&b, "{% if tools %}{{ tools|tojson }}{% endif %}{% for m in messages %}{{ '<|' + m.role + '|>' }}{% if m.tool_calls %}");
    put_text(&b, f, PN_CALL_OPEN);
    if (list) put_text(&b, f, PN_CALL_BEGIN);
    if (list) fo_buf_puts(&b, "[");
    fo_buf_puts(&b, "{% for c in m.tool_calls %}");
    if (!list) put_text(&b, f, PN_CALL_BEGIN);
    put_call(&b, f);
    if (!list) put_text(&b, f, PN_CALL_END);
    fo_buf_puts(&b, "{% if not loop.last %}");
    put_text(&b, f, PN_CALL_BETWEEN);
    fo_buf_puts(&b, "{% endif %}{% endfor %}");
    if (list) fo_buf_puts(&b, "]");
    if (list) put_text(&b, f, PN_CALL_END);
    put_text(&b, f, PN_CALL_CLOSE);
    fo_buf_puts(&b, "{% else %}{{ m.content }}{% endif %}{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}");
    assert_false(b.failed);
    if (pn_chat_open_text(b.data, b.len, "<s>", "</s>", &c, &e) || pn_dialect_new(c, NULL, &d, &e)) fail_msg("%s: %s", row, e.msg);
    if (pn_dialect_calls(d) != f) fail_msg("%s: taken for %s by %s", row, pn_dialect_calls(d) ? pn_dialect_calls(d)->name : "nothing", b.data);
    pn_chat_free(c);
    fo_buf_done(&b);
    return d;
}
