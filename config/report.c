/* Findings, and how people read them. The one hard part is the caret: a column counts characters, as editors do, but a terminal
 * moves by cells, so the line under the source repeats its tabs and uses each character's width. */
#include "config/report.h"

#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "config/text.h"
#include "foundry/base/buf.h"

enum { TEXT_BYTES = sizeof((struct fo_err){ 0 }.msg) };

struct block {
    struct cf_finding findings[CF_MAX_FINDINGS];
    unsigned order[CF_MAX_FINDINGS];         /* as added, to keep the sort stable */
    char texts[CF_MAX_FINDINGS][TEXT_BYTES]; /* by slot */
    unsigned n_added;
    int file;    /* of what is added next */
    size_t last; /* when full: the finding that stands last in the text */
};

/* What may not reach a terminal as it is: controls, and what turns the direction of text or hides in it. */
static bool is_unsafe(uint32_t c) {
    return c < 0x20 || (c >= 0x7F && c < 0xA0) || (c >= 0x200B && c <= 0x200F) || (c >= 0x202A && c <= 0x202E) ||
           (c >= 0x2060 && c <= 0x206F) || c == 0xFEFF;
}

int cf_report_init(struct cf_report *r, struct fo_err *e) {
    struct block *b = calloc(1, sizeof *b);
    if (!b) return fo_fail(e, FO_ENOMEM, "no memory to check the manifest");
    *r = (struct cf_report){ .findings = b->findings, .memory = b };
    return FO_OK;
}

void cf_report_done(struct cf_report *r) {
    if (!r) return;
    free(r->memory);
    *r = (struct cf_report){ 0 };
}

void cf_report_file(struct cf_report *r, int file) {
    struct block *b = r->memory;
    b->file = file;
}

static int by_place(const struct cf_finding *a, const struct cf_finding *b) {
    if (a->file != b->file) return a->file < b->file ? -1 : 1;
    if (a->line != b->line) return a->line < b->line ? -1 : 1;
    if (a->col != b->col) return a->col < b->col ? -1 : 1;
    return 0;
}

void cf_report_add(struct cf_report *r, enum cf_class class, int line, int col, int width, const char *fmt, ...) {
    struct block *b = r->memory;
    struct cf_finding f = { .class = class, .file = b->file, .line = line, .col = col, .width = width < 1 ? 1 : width };
    size_t slot = r->n;
    if (slot == CF_MAX_FINDINGS) {
        r->cut = true;
        slot = b->last;
        if (by_place(&f, &b->findings[slot]) >= 0) return;
    } else
        r->n++;
    char text[sizeof b->texts[0]];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    size_t step;
    uint32_t c;
    for (char *p = text; *p; p += step) { /* messages quote untrusted text */
        step = cf_utf8(p, strlen(p), &c);
        if (step && !is_unsafe(c)) continue;
        *p = '?';
        if (step > 1) memmove(p + 1, p + step, strlen(p + step) + 1);
        step = 1;
    }
    struct fo_err clean; /* cuts at a character */
    fo_fail(&clean, FO_EFORMAT, "%s%s", text, strlen(text) == sizeof text - 1 ? "..." : "");
    memcpy(b->texts[slot], clean.msg, sizeof clean.msg);
    f.text = b->texts[slot];
    b->findings[slot] = f;
    b->order[slot] = b->n_added++;
    if (r->n < CF_MAX_FINDINGS) return;
    b->last = 0;
    for (size_t i = 1; i < r->n; i++)
        if (by_place(&b->findings[i], &b->findings[b->last]) >= 0) b->last = i;
}

/* Insertion sort: at most 100, and mostly in order already. A finding's text lives in its slot's array and moves by pointer. */
void cf_report_sort(struct cf_report *r) {
    struct block *b = r->memory;
    for (size_t i = 1; i < r->n; i++) {
        struct cf_finding f = b->findings[i];
        unsigned order = b->order[i];
        size_t at = i;
        for (; at > 0; at--) {
            int c = by_place(&f, &b->findings[at - 1]);
            if (c > 0 || (c == 0 && order > b->order[at - 1])) break;
            b->findings[at] = b->findings[at - 1];
            b->order[at] = b->order[at - 1];
        }
        b->findings[at] = f;
        b->order[at] = order;
    }
}

int cf_report_close(struct cf_report *r, int rc, struct fo_err *e) {
    cf_report_sort(r);
    if (rc == FO_OK && r->n > 0) {
        const struct cf_finding *f = &r->findings[0];
        rc = r->n == 1 ? fo_fail_at(e, FO_EFORMAT, f->line, f->col, "%s", f->text)
                       : fo_fail_at(e, FO_EFORMAT, f->line, f->col, "%s (and %zu%s more)", f->text, r->n - 1, r->cut ? " or" : "");
    }
    if (r->n == 0) cf_report_done(r);
    return rc;
}

const char *cf_shown(const char *s, size_t len, char out[CF_SHOWN_BYTES]) {
    if (len < CF_SHOWN_BYTES) {
        memcpy(out, s, len);
        out[len] = '\0';
        return out;
    }
    size_t keep = CF_SHOWN_BYTES - 4;
    while (keep > 0 && ((unsigned char)s[keep] & 0xC0) == 0x80) keep--;
    memcpy(out, s, keep);
    memcpy(out + keep, "...", 4);
    return out;
}

/* --- formatting ------------------------------------------------------------------------------------------------------------- */
enum { WINDOW_CELLS = 120, LEFT_CELLS = 60, GUTTER = 5 };

/* Cells a terminal needs: the coarse ranges of Unicode's East Asian Width (UAX 11) and combining marks. */
static int cells(uint32_t c) {
    static const struct {
        uint32_t first, last;
        int cells;
    } rows[] = {
        { 0x0300, 0x036F, 0 }, { 0x0483, 0x0489, 0 }, { 0x0591, 0x05BD, 0 },   { 0x064B, 0x065F, 0 },
        { 0x1100, 0x115F, 2 }, { 0x20D0, 0x20FF, 0 }, { 0x2E80, 0x303E, 2 },   { 0x3041, 0xA4CF, 2 },
        { 0xAC00, 0xD7A3, 2 }, { 0xF900, 0xFAFF, 2 }, { 0xFE00, 0xFE0F, 0 },   { 0xFE30, 0xFE6F, 2 },
        { 0xFF00, 0xFF60, 2 }, { 0xFFE0, 0xFFE6, 2 }, { 0x1F300, 0x1FAFF, 2 }, { 0x20000, 0x3FFFD, 2 },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (c >= rows[i].first && c <= rows[i].last) return rows[i].cells;
    return 1;
}

struct place {
    size_t start, end; /* bytes of the line, its break left out */
};

static bool find_line(const char *text, size_t len, int line, struct place *ret) {
    size_t at = cf_bom(text, len);
    for (int n = 1; n < line; n++) {
        while (at < len && cf_line_break(text + at, len - at) == 0) at++;
        if (at == len) return false;
        at += cf_line_break(text + at, len - at);
    }
    ret->start = at;
    while (at < len && cf_line_break(text + at, len - at) == 0) at++;
    ret->end = at;
    return true;
}

/* The source line into `src` and what stands below it into `mark`, both cut to a window around the place. */
static void draw(const struct cf_finding *f, const char *line, size_t len, struct fo_buf *src, struct fo_buf *mark) {
    int col = 1, cell = 0, first_cell = 0, caret_cell = 0;
    for (size_t at = 0; at < len && col < f->col; col++) { /* first find the caret's cell, to place the window */
        uint32_t c;
        size_t n = cf_utf8(line + at, len - at, &c);
        caret_cell += n && !is_unsafe(c) ? cells(c) : 1;
        at += n ? n : 1;
    }
    if (caret_cell > WINDOW_CELLS - LEFT_CELLS / 2) first_cell = caret_cell - LEFT_CELLS;
    if (first_cell > 0) {
        fo_buf_puts(src, "...");
        fo_buf_puts(mark, "   ");
    }
    col = 1;
    for (size_t at = 0; at < len; col++) {
        uint32_t c;
        size_t n = cf_utf8(line + at, len - at, &c), step = n ? n : 1;
        bool plain = n && !is_unsafe(c);
        int w = plain ? cells(c) : 1;
        if (cell - first_cell >= WINDOW_CELLS) {
            fo_buf_puts(src, "...");
            break;
        }
        if (cell >= first_cell) {
            bool tab = n && c == '\t';
            if (plain || tab)
                fo_buf_append(src, line + at, step);
            else
                fo_buf_putc(src, '?');
            if (col < f->col)
                for (int i = 0; i < w; i++) fo_buf_putc(mark, tab ? '\t' : ' ');
            else if (col - f->col < f->width)
                for (int i = 0; i < w; i++) fo_buf_putc(mark, col == f->col && i == 0 ? '^' : '~');
        }
        cell += w;
        at += step;
    }
    if (f->col >= col) fo_buf_putc(mark, '^'); /* at the end of the line: something is missing there */
}

static void format(const struct cf_finding *f, const char *file, const char *text, size_t len, struct fo_buf *out) {
    struct fo_buf src, mark;
    fo_buf_init(&src, 1 << 12);
    fo_buf_init(&mark, 1 << 12);
    fo_buf_printf(out, "%s:%d:%d: error: %s\n", file, f->line, f->col, f->text);
    struct place p;
    if (find_line(text, len, f->line, &p)) {
        draw(f, text + p.start, p.end - p.start, &src, &mark);
        fo_buf_printf(out, "%*d | %s\n%*s | %s\n", GUTTER, f->line, fo_buf_str(&src), GUTTER, "", fo_buf_str(&mark));
    }
    out->failed |= src.failed || mark.failed;
    fo_buf_done(&src);
    fo_buf_done(&mark);
}

char *cf_finding_format(const struct cf_finding *f, const char *file, const char *text, size_t len) {
    struct fo_buf out;
    fo_buf_init(&out, 1 << 16);
    format(f, file, text, len, &out);
    char *s = fo_buf_steal(&out);
    fo_buf_done(&out);
    return s;
}

char *cf_report_format(const struct cf_report *r, const struct cf_text *texts) {
    struct fo_buf out;
    fo_buf_init(&out, CF_MAX_FINDINGS << 16);
    for (size_t i = 0; i < r->n; i++) {
        const struct cf_text *t = &texts[r->findings[i].file];
        format(&r->findings[i], t->name, t->text, t->len, &out);
    }
    fo_buf_printf(&out, "%s: %zu error%s%s\n", texts[0].name, r->n, r->n == 1 ? "" : "s", r->cut ? ", and more" : "");
    char *s = fo_buf_steal(&out);
    fo_buf_done(&out);
    return s;
}
