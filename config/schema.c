/* Rows against nodes: see schema.h. A mapping is read in two passes. The first matches each key of the text with a row (unknown,
 * misspelt, repeated); the second walks the rows in the table's order, so that `defaults` is read before the models that start as
 * a copy of it, wherever they stand in the file. */
#include "config/schema.h"

#include <assert.h>
#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "config/report.h"
#include "config/scalar.h"
#include "config/yaml.h"
#include "foundry/base/buf.h"
#include "foundry/base/region.h"

enum { MAX_ROWS = 32, MAX_NEAR = 40 };

/* --- did you mean ----------------------------------------------------------------------------------------------------------- */
static int fold(char c) {
    return c == '-' ? '_' : tolower((unsigned char)c);
}

static int least(int a, int b) {
    return a < b ? a : b;
}

int cf_distance(const char *a, const char *b, int most) {
    int na = (int)strnlen(a, MAX_NEAR + 1), nb = (int)strnlen(b, MAX_NEAR + 1);
    if (na > MAX_NEAR || nb > MAX_NEAR || na - nb > most || nb - na > most) return most + 1;
    int d[3][MAX_NEAR + 1]; /* rows i-2, i-1, i of the table */
    for (int j = 0; j <= nb; j++) d[1][j] = j;
    for (int i = 1; i <= na; i++) {
        d[2][0] = i;
        for (int j = 1; j <= nb; j++) {
            int same = fold(a[i - 1]) == fold(b[j - 1]);
            d[2][j] = least(least(d[1][j] + 1, d[2][j - 1] + 1), d[1][j - 1] + !same);
            if (i > 1 && j > 1 && fold(a[i - 1]) == fold(b[j - 2]) && fold(a[i - 2]) == fold(b[j - 1]))
                d[2][j] = least(d[2][j], d[0][j - 2] + 1);
        }
        memcpy(d[0], d[1], sizeof d[0]);
        memcpy(d[1], d[2], sizeof d[1]);
    }
    return d[1][nb] > most ? most + 1 : d[1][nb];
}

static bool holds_word(const char *words, const char *word) {
    size_t n = strlen(word);
    for (const char *w = words; w && *w; w += strcspn(w, " "), w += *w == ' ')
        if (strcspn(w, " ") == n && strncasecmp(w, word, n) == 0) return true;
    return false;
}

/* The row whose name is within `most` edits of the word: the nearest, the first among equals. */
static const struct cf_key *nearest(const struct cf_keys *keys, const char *word, int most) {
    int best = most;
    const struct cf_key *near = NULL;
    for (size_t i = 0; i < keys->n; i++) {
        int d = cf_distance(word, keys->rows[i].name, best);
        if (d < best || (d == best && !near)) {
            best = d;
            near = &keys->rows[i];
        }
    }
    return near;
}

static const struct cf_key *known_as(const struct cf_keys *keys, const char *word) {
    for (size_t i = 0; i < keys->n; i++)
        if (holds_word(keys->rows[i].also, word)) return &keys->rows[i];
    return NULL;
}

/* The group that has exactly this key (or knows it by another name), searched from the top. */
static const struct cf_keys *home(const struct cf_keys *keys, const char *word, const struct cf_key **ret_row) {
    for (size_t i = 0; i < keys->n; i++)
        if (strcmp(keys->rows[i].name, word) == 0 || holds_word(keys->rows[i].also, word)) {
            *ret_row = &keys->rows[i];
            return keys;
        }
    for (size_t i = 0; i < keys->n; i++) {
        const struct cf_keys *found = keys->rows[i].keys ? home(keys->rows[i].keys, word, ret_row) : NULL;
        if (found) return found;
    }
    return NULL;
}

/* Says what is nearest to an unknown key, from the surest guess to the boldest: a slip of one letter, a name that other programs use
 * here, a key of another group, more letters. Returns the row of this group that was probably meant, or NULL. */
static const struct cf_key *unknown(const struct cf_schema *s, const struct cf_keys *keys, const struct cf_node *key) {
    if (s->rep->cut) return NULL; /* full: spare the search */
    char shown[CF_SHOWN_BYTES];
    cf_shown(key->text, key->len, shown);
    int len = (int)strnlen(key->text, MAX_NEAR + 1);
    const struct cf_key *near = nearest(keys, key->text, 1), *row;
    const struct cf_keys *other = NULL;
    if (!near) near = known_as(keys, key->text);
    if (!near) other = home(keys, key->text, &row); /* below this group first: a model has a queue, and the host a timeout */
    if (!near && !other) other = home(s->root, key->text, &row);
    if (!near && !other && len > 3) near = nearest(keys, key->text, len <= 6 ? 2 : 3);
    if (strcmp(key->text, "<<") == 0)
        cf_report_add(s->rep, CF_UNKNOWN_KEY, key->line, key->col, key->width,
                      "merge keys ('<<') are not used here; what models share belongs in 'defaults'");
    else if (near)
        cf_report_add(s->rep, CF_UNKNOWN_KEY, key->line, key->col, key->width, "'%s': no such key in %s; did you mean '%s'?", shown,
                      keys->in, near->name);
    else if (other)
        cf_report_add(s->rep, CF_UNKNOWN_KEY, key->line, key->col, key->width, "'%s': no such key in %s; '%s' belongs in %s", shown,
                      keys->in, row->name, other->in);
    else
        cf_report_add(s->rep, CF_UNKNOWN_KEY, key->line, key->col, key->width, "'%s': no such key in %s", shown, keys->in);
    return near;
}

/* --- values ----------------------------------------------------------------------------------------------------------------- */
static int no_memory(const struct cf_schema *s) {
    return fo_fail(s->e, FO_ENOMEM, "no memory to read the manifest");
}

static int store(const struct cf_schema *s, enum cf_kind kind, const union cf_value *v, void *at) {
    switch (kind) {
    case CF_FLAG:
        *(bool *)at = v->flag;
        break;
    case CF_COUNT:
        *(int64_t *)at = v->count;
        break;
    case CF_NUMBER:
    case CF_PERCENT:
        *(double *)at = v->number;
        break;
    case CF_BYTES:
    case CF_MS:
        *(uint64_t *)at = v->bytes;
        break;
    case CF_CHOICE:
        *(int *)at = v->choice;
        break;
    default: {
        char *copy = v->text ? fo_region_strndup(s->region, v->text, strlen(v->text)) : NULL;
        if (v->text && !copy) return no_memory(s);
        for (char *c = copy; kind == CF_SHA256 && *c; c++) *c = (char)tolower((unsigned char)*c);
        *(char **)at = copy;
    }
    }
    return FO_OK;
}

size_t cf_key_item_size(const struct cf_key *list) {
    return list->each == CF_GROUP ? list->keys->size : list->each == CF_LIST ? sizeof(struct cf_names) : sizeof(char *);
}

static const char *const wanted[CF_N_KINDS] = {
    [CF_GROUP] = "a mapping ('key: value' lines)", [CF_LIST] = "a list ([ a, b ], or lines with '- ')"
};
static const char *const got[] = { [CF_NODE_SCALAR] = "one value", [CF_NODE_LIST] = "a list", [CF_NODE_MAP] = "a mapping" };

/* Written as "key:" and no more, or as null. */
static bool is_nothing(const struct cf_node *n) {
    const char *seen = n->plain ? cf_yaml11(n->text) : NULL;
    return seen && strcmp(seen, "no value") == 0;
}

/* Whether the node has the shape that `kind` needs; else a finding. */
static bool shaped(const struct cf_schema *s, const struct cf_key *k, enum cf_kind kind, const struct cf_node *n) {
    enum cf_node_kind need = kind == CF_GROUP ? CF_NODE_MAP : kind == CF_LIST ? CF_NODE_LIST : CF_NODE_SCALAR;
    if (n->kind == CF_NODE_BAD) return false;
    if (n->kind == CF_NODE_SCALAR && is_nothing(n)) {
        const struct cf_node *at = n->key ? n->key : n;
        cf_report_add(s->rep, CF_TYPE, at->line, at->col, at->width, "'%s' has %s%s", k->name,
                      n->key ? "no value" : "an entry without a value", kind == CF_LIST ? "; an empty list is []" : "");
        return false;
    }
    if (n->kind == need) return true;
    bool entry = !n->key; /* of a list */
    cf_report_add(s->rep, CF_TYPE, n->line, n->col, n->width, "'%s' %s%s, not %s%s", k->name, entry ? "(each entry) must be " : "must be ",
                  wanted[kind] ? wanted[kind]
                  : entry      ? "one text"
                               : "one value",
                  got[n->kind], need == CF_NODE_SCALAR && entry ? "; a text with ':' or '[' in it needs quotes" : "");
    return false;
}

/* One of a list of lists: names, as many as the outer list may have, and at least one. */
static int read_names(const struct cf_schema *s, const struct cf_key *k, const struct cf_node *list, struct cf_names *item) {
    if (list->n == 0 || (double)list->n > k->max) {
        cf_report_add(s->rep, CF_RANGE, list->line, list->col, 1, "'%s': an entry with %u names; 1 to %.0f are allowed", k->name, list->n,
                      k->max);
        return FO_OK;
    }
    item->names = fo_region_array(s->region, list->n, sizeof *item->names);
    if (!item->names) return no_memory(s);
    for (const struct cf_node *n = list->first; n; n = n->next) {
        union cf_value v;
        if (!shaped(s, k, CF_NAME, n) || !cf_scalar_read(k, CF_NAME, n, s->rep, &v)) continue;
        int rc = store(s, CF_NAME, &v, &item->names[item->n]);
        if (rc) return rc;
        item->n++;
    }
    return FO_OK;
}

static int read_list(const struct cf_schema *s, const struct cf_key *k, const struct cf_node *list, unsigned char *object) {
    if ((double)list->n > k->max) {
        cf_report_add(s->rep, CF_RANGE, list->line, list->col, 1, "'%s': %u entries; at most %.0f are allowed", k->name, list->n, k->max);
        return FO_OK;
    }
    if ((double)list->n < k->min && s->whole)
        cf_report_add(s->rep, CF_RANGE, list->line, list->col, 1, "'%s': no entries; at least %.0f is needed", k->name, k->min);
    size_t size = cf_key_item_size(k), i = 0;
    unsigned char *items = list->n ? fo_region_array(s->region, list->n, size) : NULL;
    if (list->n && !items) return no_memory(s);
    for (const struct cf_node *n = list->first; n; n = n->next, i++) {
        unsigned char *item = items + i * size;
        if (k->has_from) memcpy(item, object + k->from, size);
        if (!shaped(s, k, k->each, n)) continue;
        union cf_value v;
        int rc = FO_OK;
        if (k->each == CF_GROUP)
            rc = cf_schema_read(s, k->keys, n, item);
        else if (k->each == CF_LIST)
            rc = read_names(s, k, n, (struct cf_names *)item);
        else if (cf_scalar_read(k, k->each, n, s->rep, &v))
            rc = store(s, k->each, &v, item);
        if (rc) return rc;
    }
    if (k->stored) {
        *(void **)(object + k->at) = items;
        *(size_t *)(object + k->count) = list->n;
    }
    return FO_OK;
}

static int read_value(const struct cf_schema *s, const struct cf_key *k, const struct cf_node *n, unsigned char *object) {
    if (k->later) {
        cf_report_add(s->rep, CF_NOT_YET, n->key->line, n->key->col, n->key->width,
                      "'%s': known, but this version does not honour it yet; remove it", k->name);
        return FO_OK;
    }
    if (k->one && n->kind == CF_NODE_SCALAR && !is_nothing(n)) {
        struct cf_node item = *n;
        item.next = NULL;
        const struct cf_node list = {
            .kind = CF_NODE_LIST, .line = n->line, .col = n->col, .width = 1, .n = 1, .key = n->key, .first = &item
        };
        return read_list(s, k, &list, object);
    }
    if (!shaped(s, k, k->kind, n)) return FO_OK;
    if (k->kind == CF_GROUP) return cf_schema_read(s, k->keys, n, object + k->at);
    if (k->kind == CF_LIST) return read_list(s, k, n, object);
    union cf_value v;
    if (!cf_scalar_read(k, k->kind, n, s->rep, &v)) return FO_OK;
    if (k->has_flag) *(bool *)(object + k->has) = true;
    return k->stored ? store(s, k->kind, &v, object + k->at) : FO_OK;
}

int cf_schema_read(const struct cf_schema *s, const struct cf_keys *keys, const struct cf_node *map, void *object) {
    const struct cf_node *seen[MAX_ROWS] = { 0 };
    bool misspelt[MAX_ROWS] = { 0 };
    assert(keys->n <= MAX_ROWS);
    for (const struct cf_node *v = map->first; v; v = v->next) {
        const struct cf_node *key = v->key;
        if (key->kind != CF_NODE_SCALAR) continue;
        size_t i = 0;
        while (i < keys->n && strcmp(keys->rows[i].name, key->text) != 0) i++;
        if (i == keys->n) {
            const struct cf_key *meant = unknown(s, keys, key);
            if (meant) misspelt[meant - keys->rows] = true; /* and therefore not missing */
        } else if (seen[i])
            cf_report_add(s->rep, CF_DUPLICATE, key->line, key->col, key->width, "'%s' is written twice in %s; first in line %d, column %d",
                          key->text, keys->in, seen[i]->key->line, seen[i]->key->col);
        else
            seen[i] = v;
    }
    for (size_t i = 0; i < keys->n; i++) {
        const struct cf_key *k = &keys->rows[i];
        if (seen[i]) {
            int rc = read_value(s, k, seen[i], object);
            if (rc) return rc;
        } else if (k->must && s->whole && !misspelt[i])
            cf_report_add(s->rep, CF_MISSING, map->line, map->col, map->width, "'%s' is missing in %s", k->name, keys->in);
    }
    return FO_OK;
}

int cf_schema_defaults(const struct cf_keys *keys, void *object, struct fo_region *r, struct fo_err *e) {
    const struct cf_schema s = { .region = r, .e = e };
    for (size_t i = 0; i < keys->n; i++) {
        const struct cf_key *k = &keys->rows[i];
        unsigned char *at = (unsigned char *)object + k->at;
        if (k->later) continue;
        if (k->kind == CF_GROUP) {
            int rc = cf_schema_defaults(k->keys, at, r, e);
            if (rc) return rc;
        }
        if (!k->def || !k->stored) continue;
        const struct cf_node n = { .kind = CF_NODE_SCALAR, .plain = true, .text = k->def, .len = (uint32_t)strlen(k->def) };
        union cf_value v;
        bool fits = cf_scalar_read(k, k->kind == CF_LIST ? k->each : k->kind, &n, NULL, &v);
        assert(fits); /* a table whose default breaks its own bounds is our bug; a test reads every table */
        (void)fits;
        if (k->kind == CF_LIST) { /* of one element */
            char **items = fo_region_array(r, 1, sizeof *items);
            if (!items) return no_memory(&s);
            *(void **)at = items;
            *(size_t *)((unsigned char *)object + k->count) = 1;
            at = (unsigned char *)items;
        }
        int rc = store(&s, k->kind == CF_LIST ? k->each : k->kind, &v, at);
        if (rc) return rc;
    }
    return FO_OK;
}

/* --- what a row accepts, for pages ------------------------------------------------------------------------------------------ */
static void bounds(const struct cf_key *k, enum cf_kind kind, struct fo_buf *out) {
    char lo[32], hi[32];
    cf_format_bound(kind, k->min, lo);
    cf_format_bound(kind, k->max, hi);
    if (k->above_min || k->below_max)
        fo_buf_printf(out, ", %s %s and %s %s", k->above_min ? "more than" : "at least", lo, k->below_max ? "less than" : "at most", hi);
    else if (strcmp(lo, hi) == 0)
        fo_buf_printf(out, ": %s", lo);
    else
        fo_buf_printf(out, ", %s to %s", lo, hi);
}

void cf_key_accepts(const struct cf_key *k, struct fo_buf *out) {
    static const char *const one[CF_N_KINDS] = { "true or false", "a whole number",  "a number", "a size", "a time",
                                                 "a share",       "a text",          "a path",   "a name", "a URL",
                                                 "64 hexadecimal digits", "an address", "one of ", "keys of its own", "a list" };
    static const char *const many[CF_N_KINDS] = {
        [CF_TEXT] = "a list of texts",        [CF_PATH] = "a list of paths",     [CF_NAME] = "a list of names",
        [CF_URL] = "a list of URLs", [CF_SHA256] = "a list of such",
        [CF_ADDRESS] = "a list of addresses", [CF_GROUP] = "a list of mappings", [CF_LIST] = "a list of lists of names"
    };
    if (k->kind == CF_LIST) {
        fo_buf_puts(out, many[k->each]);
        if (k->one) fo_buf_printf(out, " (or %s alone)", one[k->each]);
        fo_buf_printf(out, ", at most %.0f", k->max);
        return;
    }
    fo_buf_puts(out, one[k->kind]);
    if (k->kind == CF_CHOICE)
        for (const char *w = k->words; *w; w++) {
            if (*w == '|')
                fo_buf_puts(out, ", ");
            else
                fo_buf_putc(out, *w);
        }
    if (k->kind >= CF_COUNT && k->kind <= CF_PERCENT) bounds(k, k->kind, out);
    if (k->autos) fo_buf_puts(out, ", or auto");
}
