/* See exposition.h. */
#include "daemon/exposition.h"

#include "daemon/http.h"
#include "daemon/oai.h"
#include "foundry/base/buf.h"

void pd_metric_head(struct fo_buf *out, const char *name, const char *type, const char *help) {
    fo_buf_printf(out, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

void pd_metric_label(struct fo_buf *out, char *before, const char *name, const char *value) {
    fo_buf_printf(out, "%c%s=\"", *before, name);
    for (; *value; value++) {
        if (*value == '"' || *value == '\\') fo_buf_putc(out, '\\');
        if (*value == '\n') fo_buf_puts(out, "\\n");
        else fo_buf_putc(out, *value);
    }
    fo_buf_putc(out, '"');
    *before = ',';
}

void pd_metric_reply(struct pd_call *c, struct fo_buf *page) {
    if (page->failed) pd_json_reply(c, 200, page); /* which says so */
    else pd_reply(c, 200, "text/plain; version=0.0.4; charset=utf-8", "Cache-Control: no-store\r\n", page->data, page->len);
}
