/* The inside of struct pn_value (engine/value.h), for value*.c and jinja*.c only.
 *
 * A value is 16 bytes and copied freely; what it points to lives in a region and never changes once made. Three exceptions stay
 * invisible: a namespace's attributes (jinja_impl.h), an iterator that was used up (`struct pn_list`), and the spare room behind a
 * string that grows (`struct pn_strbuf`), which only its newest owner may write to. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/value.h"

/* Who wrote a value. For a string whose bytes differ, PN_BY_BOTH says that pn_str.user has one entry a byte. */
enum pn_mark { PN_BY_TEMPLATE = 0, PN_BY_USER = 1, PN_BY_BOTH = 2 };

enum {
    PN_DEPTH_JSON = 64,   /* nesting of a JSON text */
    PN_DEPTH_VALUE = 128, /* nesting of any value: what walks values may recurse */
    PN_SORTED_FROM = 9    /* dicts from this size on have a sorted index */
};

/* Bytes with room behind them, shared by strings that are prefixes of one another: s = s + x costs x, not s. */
struct pn_strbuf {
    char *s;       /* [cap] */
    uint8_t *user; /* [cap] */
    size_t used, cap;
};

struct pn_str {
    const char *s;       /* [len], UTF-8, not NUL-terminated */
    const uint8_t *user; /* [len] of enum pn_mark 0 or 1 when the value's mark is PN_BY_BOTH */
    size_t len;
    struct pn_strbuf *grow; /* NULL, or where s lies */
};

/* What a list looks like to a template. */
enum pn_seq { PN_SEQ_LIST, PN_SEQ_TUPLE, PN_SEQ_RANGE, PN_SEQ_GROUP, PN_SEQ_KEYS, PN_SEQ_VALUES, PN_SEQ_ITEMS, PN_SEQ_ITER };

/* Why a value is undefined, for the error when it is used: nothing known; the name s; an object of kind `big` without attribute s,
 * without element i, or whose attribute s a template may not use. */
enum pn_undef { PN_U_PLAIN, PN_U_NAME, PN_U_ATTR, PN_U_ITEM, PN_U_UNSAFE };

struct pn_value {
    uint8_t kind; /* enum pn_value_kind */
    uint8_t mark; /* enum pn_mark; PN_BY_BOTH for strings only */
    uint8_t safe; /* PN_V_STR: came out of `safe` or `escape`; PN_V_UNDEFINED: enum pn_undef */
    uint8_t big;  /* PN_V_FLOAT: an integer of JSON that int64 cannot hold, `s` keeps its digits; PN_V_UNDEFINED: kind of the object */
    union {
        bool b;
        int64_t i;
        double f;
        const struct pn_str *s;
        struct pn_list *list;
        const struct pn_dict *dict;
        struct pn_object *obj;
    };
};

struct pn_list {
    struct pn_value *v; /* [n] */
    size_t n;
    uint64_t weight; /* see pn_value_weight */
    uint8_t seq;     /* enum pn_seq */
    uint8_t depth;   /* 1 + the deepest element's */
    bool taken;      /* PN_SEQ_ITER: was iterated; nothing is left */
    const struct fo_err *broken; /* PN_SEQ_ITER: what going through it fails with */
    const int64_t *range;        /* PN_SEQ_RANGE: start, stop, step: how it is written */
};

struct pn_dict {
    struct pn_value *k, *v; /* [n] in insertion order, keys unique */
    uint32_t *order;        /* [n] indices by pn_key_cmp, when n >= PN_SORTED_FROM */
    size_t n;
    uint64_t weight;
    uint8_t depth;
};

/* Constructors of scalars. */
static inline struct pn_value pn_none(void) {
    return (struct pn_value){ .kind = PN_V_NULL };
}
static inline struct pn_value pn_bool(bool b) {
    return (struct pn_value){ .kind = PN_V_BOOL, .b = b };
}
static inline struct pn_value pn_int(int64_t i) {
    return (struct pn_value){ .kind = PN_V_INT, .i = i };
}
static inline struct pn_value pn_float(double f) {
    return (struct pn_value){ .kind = PN_V_FLOAT, .f = f };
}
static inline struct pn_value pn_undefined(enum pn_undef why, struct pn_value object, const struct pn_str *s) {
    return (struct pn_value){ .kind = PN_V_UNDEFINED, .safe = (uint8_t)why, .big = object.kind, .s = s };
}

/* Strings. All return false when the region is full. The bytes are copied, or (`pn_str_view`) stay where they are and outlive the
 * region. */
bool pn_str_new(struct fo_region *r, const char *s, size_t len, enum pn_mark mark, struct pn_value *ret);
bool pn_str_view(struct fo_region *r, const char *s, size_t len, enum pn_mark mark, struct pn_value *ret);
/* Bytes [from, from + len) of a string, shared with it. */
bool pn_str_part(struct fo_region *r, struct pn_value v, size_t from, size_t len, struct pn_value *ret);
/* The mark of byte i. */
static inline uint8_t pn_str_by(struct pn_value v, size_t i) {
    return v.mark == PN_BY_BOTH ? v.s->user[i] : v.mark;
}
static inline bool pn_str_is(struct pn_value v, const char *lit, size_t len) {
    return v.kind == PN_V_STR && v.s->len == len && __builtin_memcmp(v.s->s, lit, len) == 0;
}

/* Lists and dicts. `items` is copied; NULL leaves the elements zeroed (undefined) for the caller to fill before pn_list_seal.
 * FO_ELIMIT past PN_DEPTH_VALUE, FO_ENOMEM or FO_ELIMIT when the region is full. */
int pn_list_new(struct fo_region *r, const struct pn_value *items, size_t n, enum pn_seq seq, struct pn_value *ret, struct fo_err *e);
int pn_list_seal(struct pn_value list, struct fo_err *e); /* after filling: computes depth and weight */
/* Takes over k and v [n] (in the region). A key that comes again replaces the value at its first place, as in Python. */
int pn_dict_new(struct fo_region *r, struct pn_value *k, struct pn_value *v, size_t n, struct pn_value *ret, struct fo_err *e);
const struct pn_value *pn_dict_get(const struct pn_dict *d, struct pn_value key); /* NULL when absent */
const struct pn_value *pn_dict_find(const struct pn_dict *d, const char *key, size_t len);
/* A copy of `d` (a dict, or anything else for an empty one) with one more string key. `key` is not copied. */
int pn_dict_with(struct fo_region *r, struct pn_value d, const char *key, struct pn_value v, struct pn_value *ret, struct fo_err *e);

/* Whether it takes subscripts: views of a dict and iterators do not. */
static inline bool pn_is_indexed(const struct pn_list *l) {
    return l->seq <= PN_SEQ_GROUP;
}

/* What walking a value costs: values in it, 64 bytes of text counted as one. Values that are in several places count each time: a
 * list that holds another twice, and so on 60 times, is small in memory but not to walk. Saturates. */
uint64_t pn_value_weight(struct pn_value v);

/* A full region as an error: FO_ENOMEM when the heap was why (errno says so; whoever begins to fill a region clears it), else
 * FO_ELIMIT. */
int pn_region_full(const struct fo_region *r, struct fo_err *e);

/* Comparison as Python's ==; numbers and booleans compare by value. Depth is bounded by construction. */
bool pn_value_eq(struct pn_value a, struct pn_value b);
/* A total order over anything, for keys: kinds first, then contents. Equal exactly when == says so. */
int pn_key_cmp(struct pn_value a, struct pn_value b);
/* Whether Python would take it as a key (no list or dict inside). */
bool pn_value_hashable(struct pn_value v);
bool pn_value_truth(struct pn_value v);
/* Bool, int and float as a number. */
static inline bool pn_is_number(struct pn_value v) {
    return v.kind == PN_V_BOOL || v.kind == PN_V_INT || v.kind == PN_V_FLOAT;
}
double pn_value_num(struct pn_value v);
const char *pn_kind_name(enum pn_value_kind kind);
/* The Python name of its type ("str", "NoneType"), for errors. */
const char *pn_value_type(struct pn_value v);

/* --- value_text.c ----------------------------------------------------------------------------- */

/* Text being written, with a mark for each byte. A render has one: finished output lies at its start, and whoever builds a string
 * writes behind it and takes it off again (pn_out_pop). Failure is sticky. */
struct pn_out {
    char *s;
    uint8_t *user;
    size_t len, size, cap_bytes;
    int failed; /* 0, FO_ELIMIT or FO_ENOMEM */
};
void pn_out_init(struct pn_out *t, size_t cap_bytes);
void pn_out_done(struct pn_out *t);
void pn_out_put(struct pn_out *t, const char *s, size_t n, uint8_t mark);
void pn_out_puts(struct pn_out *t, const char *s, uint8_t mark);
void pn_out_fill(struct pn_out *t, char c, size_t n, uint8_t mark);
void pn_out_put_str(struct pn_out *t, struct pn_value str);                             /* with its marks */
void pn_out_put_part(struct pn_out *t, struct pn_value str, size_t from, size_t len);
void pn_out_put_char(struct pn_out *t, uint32_t c, uint8_t mark);                       /* one code point as UTF-8 */
/* Takes everything from `from` off again as a string in the region. The error is the text's own or the region's. */
int pn_out_pop(struct pn_out *t, size_t from, struct fo_region *r, struct pn_value *ret, struct fo_err *e);
int pn_out_error(const struct pn_out *t, struct fo_err *e); /* 0 when nothing failed */

/* str(v) and repr(v) as Python writes them. Undefined is "". */
void pn_out_put_value(struct pn_out *t, struct pn_value v);
void pn_out_put_repr(struct pn_out *t, struct pn_value v);
void pn_out_put_ascii(struct pn_out *t, struct pn_value v); /* repr with everything past ASCII escaped */
/* A float as Python's repr: the shortest digits that read back the same. */
size_t pn_float_repr(double f, char out[32]);
void pn_out_escape_html(struct pn_out *t, struct pn_value str);

struct pn_json_style {
    const char *item, *key; /* separators after an element and after a key */
    size_t item_len, key_len;
    uint8_t sep_mark;
    struct pn_value indent; /* a string repeated for each level; undefined = all on one line */
    bool ensure_ascii, sort_keys;
};
/* json.dumps. FO_EFORMAT when a value has no JSON form. */
int pn_out_put_json(struct pn_out *t, struct pn_value v, const struct pn_json_style *style, struct fo_err *e);

/* --- UTF-8: strings are valid where they come from templates and JSON; a stray byte counts as one character. */
static inline size_t pn_char_len(const char *s, size_t left) {
    unsigned char c = (unsigned char)*s;
    size_t n = c < 0xC0 ? 1 : c < 0xE0 ? 2 : c < 0xF0 ? 3 : 4;
    return n <= left ? n : 1;
}
uint32_t pn_char_at(const char *s, size_t left, size_t *ret_len);
size_t pn_count_chars(const char *s, size_t len);
/* The byte offset of character i (at most the length). */
size_t pn_char_offset(const char *s, size_t len, size_t i);
bool pn_is_unprintable(uint32_t c); /* as repr sees it */
bool pn_is_space(uint32_t c); /* as str.strip and str.split see it */
/* Offset of the first byte that is not UTF-8, or len. Surrogates and overlong forms are not. */
size_t pn_utf8_valid(const char *s, size_t len);
