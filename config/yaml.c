/* YAML to nodes, over libyaml's events. Events, because its document loader is quadratic in nesting; the depth cap stops us after
 * seventeen brackets, whatever follows.
 *
 * Two things come before libyaml sees a byte: bad UTF-8 and characters that YAML forbids are found here, because libyaml reports
 * them without a place. Its own mistakes ("did not find expected key") come once and end the reading; the nodes before it stay, so
 * that their mistakes are told in the same run. */
#include "config/yaml.h"

#include <stdio.h>
#include <string.h>
#include <yaml.h>

#include "config/report.h"
#include "config/text.h"
#include "foundry/base/region.h"

struct level {
    struct cf_node *node;
    struct cf_node *key; /* of a map: read, its value not yet */
    struct cf_node **tail;
};

struct reader {
    struct fo_region *region;
    struct cf_report *rep;
    struct fo_err *e;
    const char *text;
    size_t len;
    struct cf_node *root;
    struct level stack[CF_MAX_DEPTH];
    int depth;
    int n_nodes, n_documents;
    bool stop, whole;
};

/* --- characters ------------------------------------------------------------------------------------------------------------- */
static bool allowed(uint32_t c) {
    return c == 0x09 || c == 0x0A || c == 0x0D || (c >= 0x20 && c < 0x7F) || c == 0x85 || (c >= 0xA0 && c < 0xFEFF) ||
           (c > 0xFEFF && c <= 0xFFFD) || c > 0xFFFF;
}

/* Reports what YAML cannot read; false when there is any. */
static bool check_characters(struct reader *r) {
    size_t n_before = r->rep->n;
    int line = 1, col = 1;
    if (r->len >= 2 && (memcmp(r->text, "\xFF\xFE", 2) == 0 || memcmp(r->text, "\xFE\xFF", 2) == 0)) {
        cf_report_add(r->rep, CF_SYNTAX, 1, 1, 1, "this is UTF-16; save the file as UTF-8");
        return false;
    }
    for (size_t at = cf_bom(r->text, r->len); at < r->len && !r->rep->cut;) {
        size_t step = cf_line_break(r->text + at, r->len - at);
        if (step) {
            at += step;
            line++;
            col = 1;
            continue;
        }
        uint32_t c;
        step = cf_utf8(r->text + at, r->len - at, &c);
        if (!step) {
            cf_report_add(r->rep, CF_SYNTAX, line, col, 1, "byte 0x%02X is not UTF-8; save the file as UTF-8", (unsigned char)r->text[at]);
            step = 1;
        } else if (!allowed(c))
            cf_report_add(r->rep, CF_SYNTAX, line, col, 1, "character U+%04X may not stand in a manifest", (unsigned)c);
        at += step;
        col++;
    }
    return r->rep->n == n_before;
}

/* --- nodes ------------------------------------------------------------------------------------------------------------------ */
static void report(struct reader *r, yaml_mark_t at, int width, const char *what) {
    cf_report_add(r->rep, CF_SYNTAX, (int)at.line + 1, (int)at.column + 1, width, "%s", what);
}

static int limit(struct reader *r, yaml_mark_t at, const char *what, int most) {
    cf_report_add(r->rep, CF_SYNTAX, (int)at.line + 1, (int)at.column + 1, 1, "%s: at most %d are allowed", what, most);
    return fo_fail_at(r->e, FO_ELIMIT, (int)at.line + 1, (int)at.column + 1, "%s: at most %d are allowed", what, most);
}

static int no_memory(struct reader *r) {
    return fo_fail(r->e, FO_ENOMEM, "no memory to read the manifest");
}

/* Makes a node and hangs it where it belongs: the root, a list, or as key or value into a map. */
static int add(struct reader *r, const yaml_event_t *ev, enum cf_node_kind kind, struct cf_node **ret) {
    if (r->n_nodes++ == CF_MAX_NODES) return limit(r, ev->start_mark, "too many values in one manifest", CF_MAX_NODES);
    struct cf_node *n = fo_region_alloc(r->region, sizeof *n);
    if (!n) return no_memory(r);
    n->kind = kind;
    n->line = (int)ev->start_mark.line + 1;
    n->col = (int)ev->start_mark.column + 1;
    n->width = 1;
    if (kind != CF_NODE_LIST && kind != CF_NODE_MAP && ev->end_mark.line == ev->start_mark.line &&
        ev->end_mark.column > ev->start_mark.column)
        n->width = (int)(ev->end_mark.column - ev->start_mark.column);
    struct level *up = r->depth ? &r->stack[r->depth - 1] : NULL;
    if (!up)
        r->root = n;
    else if (up->node->kind == CF_NODE_MAP && !up->key) {
        if (kind == CF_NODE_LIST || kind == CF_NODE_MAP)
            report(r, ev->start_mark, 1, "a key must be a word; a text that starts with '[' or '{' needs quotes");
        up->key = n;
    } else {
        n->key = up->key;
        up->key = NULL;
        *up->tail = n;
        up->tail = &n->next;
        up->node->n++;
    }
    *ret = n;
    return FO_OK;
}

static int open_level(struct reader *r, const yaml_event_t *ev, enum cf_node_kind kind) {
    struct cf_node *n = NULL;
    if (r->depth == CF_MAX_DEPTH) return limit(r, ev->start_mark, "too many levels of nesting", CF_MAX_DEPTH);
    int rc = add(r, ev, kind, &n);
    if (rc) return rc;
    r->stack[r->depth++] = (struct level){ .node = n, .tail = &n->first };
    return FO_OK;
}

static void refuse_properties(struct reader *r, const yaml_event_t *ev, const yaml_char_t *anchor, const yaml_char_t *tag) {
    if (anchor) report(r, ev->start_mark, 1, "anchors ('&name') are not used here; what models share belongs in 'defaults'");
    if (tag) report(r, ev->start_mark, 1, "tags ('!name') are not used here; write quotes where a text is meant");
}

static int scalar(struct reader *r, const yaml_event_t *ev) {
    struct cf_node *n = NULL;
    int rc = add(r, ev, CF_NODE_SCALAR, &n);
    if (rc) return rc;
    refuse_properties(r, ev, ev->data.scalar.anchor, ev->data.scalar.tag);
    n->plain = ev->data.scalar.style == YAML_PLAIN_SCALAR_STYLE;
    const char *s = (const char *)ev->data.scalar.value;
    if (memchr(s, '\0', ev->data.scalar.length)) {
        report(r, ev->start_mark, n->width, "a text may not hold a NUL character");
        n->kind = CF_NODE_BAD;
        return FO_OK;
    }
    n->len = (uint32_t)ev->data.scalar.length;
    n->text = fo_region_strndup(r->region, s, n->len);
    return n->text ? FO_OK : no_memory(r);
}

static int take(struct reader *r, const yaml_event_t *ev) {
    struct cf_node *n;
    switch (ev->type) {
    case YAML_DOCUMENT_START_EVENT:
        if (ev->data.document_start.version_directive ||
            ev->data.document_start.tag_directives.start != ev->data.document_start.tag_directives.end)
            report(r, ev->start_mark, 1, "directives ('%YAML', '%TAG') are not used here; remove the line");
        if (++r->n_documents > 1) {
            report(r, ev->start_mark, 3, "a second document: a manifest is one; remove the '---' or use another file");
            r->stop = true;
        }
        return FO_OK;
    case YAML_STREAM_END_EVENT:
        r->stop = r->whole = true;
        return FO_OK;
    case YAML_ALIAS_EVENT:
        report(r, ev->start_mark, (int)(ev->end_mark.column - ev->start_mark.column),
               "aliases ('*name') are not used here; write the value itself (a text that starts with '*' needs quotes)");
        return add(r, ev, CF_NODE_BAD, &n);
    case YAML_SCALAR_EVENT:
        return scalar(r, ev);
    case YAML_SEQUENCE_START_EVENT:
        refuse_properties(r, ev, ev->data.sequence_start.anchor, ev->data.sequence_start.tag);
        return open_level(r, ev, CF_NODE_LIST);
    case YAML_MAPPING_START_EVENT:
        refuse_properties(r, ev, ev->data.mapping_start.anchor, ev->data.mapping_start.tag);
        return open_level(r, ev, CF_NODE_MAP);
    case YAML_SEQUENCE_END_EVENT:
    case YAML_MAPPING_END_EVENT:
        r->depth--;
        return FO_OK;
    default:
        return FO_OK; /* stream start, document end */
    }
}

/* libyaml says what its grammar lacked; people want to know what they wrote. First the byte at the place, then its words. */
static const char *hint(const char *problem, const char *at, const char *end) {
    static const struct {
        const char *problem, *hint;
    } rows[] = {
        { "mapping values are not allowed", "a second ': ' in one line, or wrong indentation; a text with ': ' in it needs quotes" },
        { "could not find expected ':'", "a key without ': ' (a space belongs after the colon), or wrong indentation" },
        { "did not find expected key", "wrong indentation, or a text that goes on after its closing quote" },
        { "did not find expected '-' indicator", "the items of a list begin with '- ', all at one indentation" },
        { "did not find expected ',' or ']'", "a '[' is not closed, or a ',' is missing" },
        { "did not find expected ',' or '}'", "a '{' is not closed, or a ',' is missing" },
        { "found unexpected end of stream", "a quote is not closed" },
        { "found unknown escape character", "in \"...\" a backslash starts an escape; write '...', or \\\\ for one backslash" },
        { "block sequence entries are not allowed", "'- ' cannot start here: put the list on its own lines, or write [ ... ]" },
        { "did not find expected node content", "a value is missing here" },
        { "did not find expected <document start>", "text after the end of the manifest: wrong indentation?" },
        { "did not find expected alphabetic", "a text that starts with '*' or '&' needs quotes" },
        { "found undefined tag handle", "a text that starts with '!' needs quotes" },
    };
    if (at < end && *at == '\t') return "a tab cannot indent or start a value in YAML; use spaces";
    if (at < end && (*at == '@' || *at == '`')) return "a text cannot start with this character; put it in quotes";
    if (at < end && *at == '%' && strncmp(problem, "found character", 15) == 0) return "a text that starts with '%' needs quotes";
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (strncmp(problem, rows[i].problem, strlen(rows[i].problem)) == 0) return rows[i].hint;
    return NULL;
}

static int syntax_error(struct reader *r, const yaml_parser_t *p) {
    if (p->error == YAML_MEMORY_ERROR) return no_memory(r);
    const char *problem = p->problem ? p->problem : "not YAML", *end = r->text + r->len;
    /* an unclosed quote is best shown where it opens, not at the end of the file */
    bool unclosed = p->context && strncmp(problem, "found unexpected end of stream", 30) == 0;
    yaml_mark_t place = unclosed ? p->context_mark : p->problem_mark;
    /* mark.index counts characters; walk to its byte */
    const char *at = r->text + cf_bom(r->text, r->len);
    uint32_t c;
    for (size_t i = 0; i < place.index && at < end; i++) {
        size_t n = cf_utf8(at, (size_t)(end - at), &c);
        at += n ? n : 1;
    }
    const char *h = hint(problem, at, end);
    char began[96] = "";
    if (p->context && p->context_mark.line != place.line)
        snprintf(began, sizeof began, ", %s that began in line %d", p->context, (int)p->context_mark.line + 1);
    if (h)
        cf_report_add(r->rep, CF_SYNTAX, (int)place.line + 1, (int)place.column + 1, 1, "%s (%s%s)", h, problem, began);
    else
        cf_report_add(r->rep, CF_SYNTAX, (int)place.line + 1, (int)place.column + 1, 1, "%s%s", problem, began);
    r->stop = true;
    return FO_OK;
}

int cf_yaml_read(const char *text, size_t len, int *n_nodes, struct fo_region *region, struct cf_report *rep, struct cf_node **ret_root, bool *ret_whole,
                 struct fo_err *e) {
    struct reader r = { .region = region, .rep = rep, .e = e, .text = text, .len = len, .n_nodes = n_nodes ? *n_nodes : 0 };
    if (len > CF_MAX_TEXT_BYTES) {
        cf_report_add(rep, CF_SYNTAX, 1, 1, 1, "the manifest has %zu bytes; at most %d are read", len, CF_MAX_TEXT_BYTES);
        return fo_fail_need(e, FO_ELIMIT, len, CF_MAX_TEXT_BYTES, "the manifest has %zu bytes; at most %d are read", len,
                            CF_MAX_TEXT_BYTES);
    }
    if (!check_characters(&r)) {
        *ret_root = NULL;
        *ret_whole = false;
        return FO_OK;
    }
    yaml_parser_t p;
    if (!yaml_parser_initialize(&p)) return no_memory(&r);
    yaml_parser_set_encoding(&p, YAML_UTF8_ENCODING);
    size_t bom = cf_bom(text, len);
    yaml_parser_set_input_string(&p, (const unsigned char *)text + bom, len - bom);
    int rc = FO_OK;
    while (rc == FO_OK && !r.stop) {
        yaml_event_t ev;
        if (!yaml_parser_parse(&p, &ev)) {
            rc = syntax_error(&r, &p);
            continue;
        }
        rc = take(&r, &ev);
        yaml_event_delete(&ev);
    }
    yaml_parser_delete(&p);
    if (n_nodes) *n_nodes = r.n_nodes;
    if (rc) return rc;
    *ret_root = r.root;
    *ret_whole = r.whole;
    return FO_OK;
}

struct cf_node *cf_node_find(const struct cf_node *map, const char *key) {
    if (!map || map->kind != CF_NODE_MAP) return NULL;
    for (struct cf_node *v = map->first; v; v = v->next)
        if (v->key->kind == CF_NODE_SCALAR && strcmp(v->key->text, key) == 0) return v;
    return NULL;
}
