/* Grammars put together of parts: see pieces.h. A node is a letter and its numbers, four bytes each in the order of little-endian machines; a
 * string is its length and its bytes. Reading is one pass, with a stack no deeper than PN_PIECES_MAX_DEPTH. */
#include "engine/grammar/pieces.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "engine/grammar/front.h"
#include "engine/grammar/gbnf.h"
#include "engine/grammar/json_object.h"
#include "foundry/base/buf.h"
#include "foundry/base/err.h"

enum { DOCUMENT = 'D', LITERAL = 'L', SEQ = 'S', ALT = 'A', REPEAT = 'R', LIST = 'I', OBJECT = 'O', BLANK = 'W', SCHEMA = 'J' };

/* --- writing ----------------------------------------------------------------------------------- */
static void put_number(struct fo_buf *b, uint32_t n) {
    for (int i = 0; i < 4; i++) fo_buf_putc(b, (char)(n >> i * 8 & 0xFF));
}

static void put_string(struct fo_buf *b, const char *s, size_t n) {
    if (n > UINT32_MAX / 2) b->failed = true;
    put_number(b, (uint32_t)n);
    fo_buf_append(b, s, n);
}

void pn_piece_document(struct fo_buf *b, const char *json, size_t n, char escaped) {
    fo_buf_putc(b, DOCUMENT);
    put_number(b, (unsigned char)escaped);
    put_string(b, json, n);
}

void pn_piece_literal(struct fo_buf *b, const char *bytes, size_t n) {
    fo_buf_putc(b, LITERAL);
    put_string(b, bytes, n);
}

void pn_piece_seq(struct fo_buf *b, uint32_t n) {
    fo_buf_putc(b, SEQ);
    put_number(b, n);
}

void pn_piece_alt(struct fo_buf *b, uint32_t n) {
    fo_buf_putc(b, ALT);
    put_number(b, n);
}

void pn_piece_repeat(struct fo_buf *b, uint32_t min, uint32_t max) {
    fo_buf_putc(b, REPEAT);
    put_number(b, min);
    put_number(b, max);
}

void pn_piece_list(struct fo_buf *b) {
    fo_buf_putc(b, LIST);
}

void pn_piece_object(struct fo_buf *b) {
    fo_buf_putc(b, OBJECT);
}

void pn_piece_blank(struct fo_buf *b) {
    fo_buf_putc(b, BLANK);
}

void pn_piece_schema(struct fo_buf *b, const struct pn_piece_schema *s) {
    const char *mark = s->mark ? s->mark : "", *end = s->end ? s->end : "";
    fo_buf_putc(b, SCHEMA);
    put_number(b, s->document);
    put_number(b, s->form);
    put_number(b, s->property != NULL);
    put_string(b, s->property ? s->property : "", s->property ? strlen(s->property) : 0);
    put_string(b, mark, strlen(mark));
    put_string(b, end, strlen(end));
}

/* --- reading ----------------------------------------------------------------------------------- */
struct document {
    const char *text; /* [len] */
    size_t len;
    uint32_t escaped;
    struct pn_schema *schema; /* NULL: `same` has it */
    uint32_t same;
};

/* A part of a schema that was asked for, by what asked for it. */
struct part {
    size_t at, len; /* in the text */
    uint32_t rule;
};

struct reader {
    struct pn_front f; /* text, place and lists; no lines: it has none */
    struct document *documents; /* [n_documents] */
    uint32_t n_documents;
    struct part *parts; /* [n_parts] */
    size_t n_parts, cap_parts;
    uint32_t object, blank; /* rules; 0 = not asked for yet */
    uint64_t work;
    struct fo_err *e;
};

static int fail(struct reader *r, const char *what) {
    return (int)fo_fail(r->e, FO_EINVAL, "no grammar of pieces: %s at byte %zu", what, r->f.at);
}

static int number(struct reader *r, uint32_t *ret) {
    if (r->f.len - r->f.at < 4) return fail(r, "it ends within a number");
    const unsigned char *p = (const unsigned char *)r->f.text + r->f.at;
    *ret = (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
    r->f.at += 4;
    return 0;
}

static int string(struct reader *r, const char **ret, size_t *ret_n) {
    uint32_t n = 0;
    if (number(r, &n)) return (int)r->e->code;
    if (n > r->f.len - r->f.at) return fail(r, "it ends within a string");
    *ret = r->f.text + r->f.at;
    *ret_n = n;
    r->f.at += n;
    return 0;
}

/* A string without NUL, with one behind it; the caller frees it. */
static int name(struct reader *r, char **ret) {
    const char *s = "";
    size_t n = 0;
    if (string(r, &s, &n)) return (int)r->e->code;
    if (memchr(s, '\0', n)) return fail(r, "a name with a NUL");
    if (!(*ret = strndup(s, n))) return (int)fo_fail(r->e, FO_ENOMEM, "no memory for a grammar");
    return 0;
}

static int read_documents(struct reader *r) {
    r->documents = calloc(PN_PIECES_MAX_DOCUMENTS, sizeof *r->documents);
    if (!r->documents) return (int)fo_fail(r->e, FO_ENOMEM, "no memory for a grammar");
    while (pn_front_peek(&r->f) == DOCUMENT) {
        struct document d = { .same = r->n_documents };
        r->f.at++;
        if (r->n_documents == PN_PIECES_MAX_DOCUMENTS) return fail(r, "too many schemas");
        if (number(r, &d.escaped) || string(r, &d.text, &d.len)) return (int)r->e->code;
        if (d.escaped > 0x7F) return fail(r, "a character that cannot be escaped so");
        for (uint32_t i = 0; i < r->n_documents && d.same == r->n_documents; i++) {
            const struct document *o = &r->documents[i];
            if (o->len == d.len && o->escaped == d.escaped && memcmp(o->text, d.text, d.len) == 0) d.same = i;
        }
        if (d.same == r->n_documents && pn_schema_open(d.text, d.len, (char)d.escaped, r->f.ir, &r->work, &d.schema, r->e)) return (int)r->e->code;
        r->documents[r->n_documents++] = d;
    }
    return 0;
}

/* The rule of any object, and of the blanks in it: those of the grammar of one. */
static int json_rules(struct reader *r) {
    if (r->object) return 0;
    if (pn_gbnf_build(r->f.ir, pn_json_object, strlen(pn_json_object), r->e)) return (int)r->e->code;
    r->object = pn_ir_rule(r->f.ir, "object", 6, 0, 0);
    r->blank = pn_ir_rule(r->f.ir, "ws", 2, 0, 0);
    return 0;
}

static int keep_part(struct reader *r, size_t at, uint32_t rule) {
    if (r->n_parts == r->cap_parts) {
        size_t cap = r->cap_parts ? r->cap_parts * 2 : 64;
        struct part *more = realloc(r->parts, cap * sizeof *more);
        if (!more) return (int)fo_fail(r->e, FO_ENOMEM, "no memory for a grammar");
        r->parts = more;
        r->cap_parts = cap;
    }
    r->parts[r->n_parts++] = (struct part){ at, r->f.at - at, rule };
    return 0;
}

/* What stands behind the letter of a SCHEMA. The same again is the same rule. */
static int read_schema(struct reader *r, uint32_t *ret) {
    size_t at = r->f.at;
    uint32_t document = 0, form = 0, has = 0;
    char *property = NULL, *mark = NULL, *end = NULL;
    int rc = number(r, &document);
    if (rc == 0) rc = number(r, &form);
    if (rc == 0) rc = number(r, &has);
    if (rc == 0) rc = name(r, &property);
    if (rc == 0) rc = name(r, &mark);
    if (rc == 0) rc = name(r, &end);
    if (rc == 0 && (document >= r->n_documents || form > PN_SCHEMA_TEXT || has > 1 || !strstr(end, mark))) rc = fail(r, "a schema that is none");
    uint32_t rule = 0;
    if (rc == 0) {
        document = r->documents[document].same;
        for (size_t i = 0; i < r->n_parts && !rule; i++)
            if (r->parts[i].len == r->f.at - at && memcmp(r->f.text + r->parts[i].at, r->f.text + at, r->parts[i].len) == 0) rule = r->parts[i].rule;
        if (!rule) {
            rule = pn_schema_part(r->documents[document].schema, has ? property : NULL, (enum pn_schema_form)form, mark, end);
            rc = keep_part(r, at, rule);
        }
        *ret = rule ? pn_ir_ref(r->f.ir, rule) : pn_ir_never(r->f.ir);
    }
    free(property);
    free(mark);
    free(end);
    return rc;
}

/* The two nodes read last: what a list is of, which is a rule so that its code is there once, and what stands between. */
static uint32_t list_of(struct reader *r) {
    struct pn_ir *ir = r->f.ir;
    uint32_t between = r->f.nodes[--r->f.n_nodes], one = pn_ir_rule(ir, "", 0, 0, 0);
    pn_ir_define(ir, one, r->f.nodes[--r->f.n_nodes]);
    uint32_t more[] = { between, pn_ir_ref(ir, one) };
    uint32_t all[] = { pn_ir_ref(ir, one), pn_ir_repeat(ir, pn_ir_seq(ir, more, 2), 0, PN_IR_INFINITE) };
    return pn_ir_seq(ir, all, 2);
}

static int read_node(struct reader *r, unsigned depth) {
    struct pn_front *f = &r->f;
    int letter = pn_front_peek(f);
    size_t n = 0, from = f->n_nodes;
    uint32_t a = 0, b = 0, node = 0;
    const char *s = "";
    if (depth > PN_PIECES_MAX_DEPTH) return fail(r, "nested too deep");
    f->at += letter >= 0;
    switch (letter) {
    case LITERAL:
        if (string(r, &s, &n)) return (int)r->e->code;
        node = pn_ir_literal(f->ir, s, n);
        break;
    case SEQ:
    case ALT:
        if (number(r, &a)) return (int)r->e->code;
        for (uint32_t i = 0; i < a; i++)
            if (read_node(r, depth + 1)) return (int)r->e->code;
        node = letter == SEQ ? pn_front_seq(f, from) : pn_front_alt(f, from);
        break;
    case REPEAT:
        if (number(r, &a) || number(r, &b) || read_node(r, depth + 1)) return (int)r->e->code;
        node = pn_ir_repeat(f->ir, f->nodes[--f->n_nodes], a, b);
        break;
    case LIST:
        if (read_node(r, depth + 1) || read_node(r, depth + 1)) return (int)r->e->code;
        node = list_of(r);
        break;
    case OBJECT:
    case BLANK:
        if (json_rules(r)) return (int)r->e->code;
        node = pn_ir_ref(f->ir, letter == OBJECT ? r->object : r->blank);
        break;
    case SCHEMA:
        if (read_schema(r, &node)) return (int)r->e->code;
        break;
    default:
        return fail(r, "no node");
    }
    return pn_front_push(f, node);
}

int pn_pieces_build(struct pn_ir *ir, const char *text, size_t len, struct fo_err *e) {
    struct reader r = { .f = { .ir = ir, .text = text, .len = len, .e = e }, .e = e };
    char pointer[PN_SCHEMA_POINTER_BYTES]; /* the message has it too */
    e->code = FO_OK;
    int rc = read_documents(&r);
    if (rc == 0) rc = read_node(&r, 0);
    if (rc == 0 && r.f.at != len) rc = fail(&r, "something behind its end");
    for (uint32_t i = 0; i < r.n_documents; i++)
        if (r.documents[i].schema) rc = pn_schema_close(r.documents[i].schema, pointer, e);
    if (rc == 0) {
        uint32_t root = pn_ir_rule(ir, "", 0, 0, 0);
        pn_ir_define(ir, root, r.f.nodes[0]);
        pn_ir_root(ir, root);
        rc = pn_ir_state(ir, e);
    }
    free(r.documents);
    free(r.parts);
    free(r.f.nodes);
    return rc;
}
