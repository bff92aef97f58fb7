/* The five characters that mean something in HTML: see html.h. */
#include "daemon/html.h"

#include <assert.h>
#include <stdarg.h>
#include <string.h>

#include "foundry/base/buf.h"

void pd_html_text(struct fo_buf *out, const char *s) {
    for (; *s; s++) {
        switch (*s) {
        case '&': fo_buf_puts(out, "&amp;"); break;
        case '<': fo_buf_puts(out, "&lt;"); break;
        case '>': fo_buf_puts(out, "&gt;"); break;
        case '"': fo_buf_puts(out, "&quot;"); break;
        case '\'': fo_buf_puts(out, "&#39;"); break;
        default: fo_buf_putc(out, (unsigned char)*s < ' ' && *s != '\n' ? ' ' : *s); break;
        }
    }
}

void pd_html_put(struct fo_buf *out, const char *format, ...) {
    va_list ap;
    va_start(ap, format);
    for (const char *p = format; *p;) {
        size_t n = strcspn(p, "%");
        fo_buf_append(out, p, n);
        p += n;
        if (!*p) break;
        assert(p[1] == 's' || p[1] == '%');
        if (p[1] == 's') pd_html_text(out, va_arg(ap, const char *));
        else fo_buf_putc(out, '%');
        p += 2;
    }
    va_end(ap);
}
