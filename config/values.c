/* Rows over C objects: see values.h. */
#include "config/values.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "config/schema.h"
#include "config/text.h"
#include "foundry/base/buf.h"
#include "foundry/base/region.h"

static const void *at(const struct cf_key *k, const void *object) {
    return (const unsigned char *)object + k->at;
}

static size_t count_of(const struct cf_key *k, const void *object) {
    return *(const size_t *)((const unsigned char *)object + k->count);
}

/* Whether the key has a value in this object: not when the manifest left it to the engine or to the request. */
static bool has_value(const struct cf_key *k, const void *object) {
    if (k->kind == CF_GROUP) return true;
    if (!k->stored) return false;
    if (k->has_flag) return *(const bool *)((const unsigned char *)object + k->has);
    if (k->kind == CF_LIST) return count_of(k, object) > 0;
    if (k->kind >= CF_TEXT && k->kind <= CF_ADDRESS) return *(char *const *)at(k, object) != NULL;
    if ((k->kind == CF_BYTES || k->kind == CF_MS) && !k->def && !k->must) return *(const uint64_t *)at(k, object) >= (k->min > 1 ? (uint64_t)k->min : 1);
    return true;
}

/* --- writing ---------------------------------------------------------------------------------------------------------------- */
/* The shortest plain decimal that reads back as the same double. */
static void put_number(double v, struct fo_buf *out) {
    char text[48];
    for (int digits = 0; digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*f", digits, v);
        if (strtod(text, NULL) == v) break;
    }
    fo_buf_puts(out, text);
}

static void put_unit(enum cf_kind kind, uint64_t v, struct fo_buf *out) {
    static const struct {
        uint64_t factor;
        const char *unit;
    } sizes[] = { { 1ull << 40, "TiB" }, { 1ull << 30, "GiB" }, { 1ull << 20, "MiB" }, { 1ull << 10, "KiB" }, { 1, "B" } },
      times[] = { { 86400000, "d" }, { 3600000, "h" }, { 60000, "min" }, { 1000, "s" }, { 1, "ms" } };
    size_t i = v ? 0 : 4;
    while (i < 4 && v % (kind == CF_BYTES ? sizes[i].factor : times[i].factor)) i++;
    fo_buf_printf(out, "\"%llu%s\"", (unsigned long long)(v / (kind == CF_BYTES ? sizes[i].factor : times[i].factor)),
                  kind == CF_BYTES ? sizes[i].unit : times[i].unit);
}

static void put_list(const struct cf_key *k, const void *object, struct fo_buf *out);

static void put_value(const struct cf_key *k, enum cf_kind kind, const void *v, struct fo_buf *out) {
    switch (kind) {
    case CF_FLAG:
        fo_buf_puts(out, *(const bool *)v ? "true" : "false");
        break;
    case CF_COUNT:
        if (k->autos && *(const int64_t *)v == CF_AUTO)
            fo_buf_puts(out, "\"auto\"");
        else
            fo_buf_printf(out, "%lld", (long long)*(const int64_t *)v);
        break;
    case CF_NUMBER:
        put_number(*(const double *)v, out);
        break;
    case CF_PERCENT:
        fo_buf_putc(out, '"');
        put_number(*(const double *)v, out);
        fo_buf_puts(out, "%\"");
        break;
    case CF_BYTES:
    case CF_MS:
        put_unit(kind, *(const uint64_t *)v, out);
        break;
    case CF_CHOICE: {
        const char *w = k->words;
        for (int i = *(const int *)v; i > 0; i--) w += strcspn(w, "|") + 1;
        fo_buf_printf(out, "\"%.*s\"", (int)strcspn(w, "|"), w);
        break;
    }
    case CF_GROUP:
        cf_values_write(k->keys, v, out);
        break;
    default: { /* a text; one that is not UTF-8 cannot come from a manifest */
        const char *s = *(char *const *)v;
        if (!s || !cf_quote(s, out)) fo_buf_puts(out, "\"\"");
    }
    }
}

static void put_list(const struct cf_key *k, const void *object, struct fo_buf *out) {
    const unsigned char *items = *(unsigned char *const *)at(k, object);
    fo_buf_puts(out, "[");
    for (size_t i = 0; i < count_of(k, object); i++) {
        const void *item = items + i * cf_key_item_size(k);
        if (i) fo_buf_puts(out, ", ");
        if (k->each != CF_LIST) {
            put_value(k, k->each, item, out);
            continue;
        }
        const struct cf_names *names = item;
        fo_buf_puts(out, "[");
        for (size_t j = 0; j < names->n; j++) {
            if (j) fo_buf_puts(out, ", ");
            put_value(k, CF_NAME, &names->names[j], out);
        }
        fo_buf_puts(out, "]");
    }
    fo_buf_puts(out, "]");
}

static bool any_value(const struct cf_keys *keys, const void *object) {
    for (size_t i = 0; i < keys->n; i++)
        if (!keys->rows[i].later && has_value(&keys->rows[i], object) &&
            (keys->rows[i].kind != CF_GROUP || any_value(keys->rows[i].keys, at(&keys->rows[i], object))))
            return true;
    return false;
}

void cf_values_write(const struct cf_keys *keys, const void *object, struct fo_buf *out) {
    const char *sep = "{";
    for (size_t i = 0; i < keys->n; i++) {
        const struct cf_key *k = &keys->rows[i];
        if (k->later || !has_value(k, object) || (k->kind == CF_GROUP && !any_value(k->keys, at(k, object)))) continue;
        fo_buf_printf(out, "%s\"%s\": ", sep, k->name);
        if (k->kind == CF_LIST)
            put_list(k, object, out);
        else
            put_value(k, k->kind, at(k, object), out);
        sep = ", ";
    }
    fo_buf_puts(out, *sep == '{' ? "{}" : "}");
}

/* --- copying ---------------------------------------------------------------------------------------------------------------- */
static int no_memory(struct fo_err *e) {
    return fo_fail(e, FO_ENOMEM, "no memory to copy settings");
}

static int own_text(char **text, struct fo_region *r, struct fo_err *e) {
    if (!*text) return FO_OK;
    *text = fo_region_strndup(r, *text, strlen(*text));
    return *text ? FO_OK : no_memory(e);
}

static int own_texts(char ***texts, size_t n, struct fo_region *r, struct fo_err *e) {
    char **copy = n ? fo_region_array(r, n, sizeof *copy) : NULL;
    if (n && !copy) return no_memory(e);
    if (n) memcpy(copy, *texts, n * sizeof *copy);
    *texts = copy;
    for (size_t i = 0; i < n; i++) {
        int rc = own_text(&copy[i], r, e);
        if (rc) return rc;
    }
    return FO_OK;
}

static int own_list(const struct cf_key *k, void *object, struct fo_region *r, struct fo_err *e) {
    unsigned char **items = (unsigned char **)((unsigned char *)object + k->at), *copy;
    size_t n = count_of(k, object), size = cf_key_item_size(k);
    if (k->each != CF_GROUP && k->each != CF_LIST) return own_texts((char ***)items, n, r, e);
    copy = n ? fo_region_array(r, n, size) : NULL;
    if (n && !copy) return no_memory(e);
    if (n) memcpy(copy, *items, n * size);
    *items = copy;
    for (size_t i = 0; i < n; i++) {
        struct cf_names *names = (struct cf_names *)(copy + i * size);
        int rc = k->each == CF_GROUP ? cf_values_own(k->keys, copy + i * size, r, e) : own_texts(&names->names, names->n, r, e);
        if (rc) return rc;
    }
    return FO_OK;
}

int cf_values_own(const struct cf_keys *keys, void *object, struct fo_region *r, struct fo_err *e) {
    for (size_t i = 0; i < keys->n; i++) {
        const struct cf_key *k = &keys->rows[i];
        unsigned char *v = (unsigned char *)object + k->at;
        int rc = FO_OK;
        if (k->later) continue;
        if (k->kind == CF_GROUP)
            rc = cf_values_own(k->keys, v, r, e);
        else if (k->stored && k->kind == CF_LIST)
            rc = own_list(k, object, r, e);
        else if (k->stored && k->kind >= CF_TEXT && k->kind <= CF_ADDRESS)
            rc = own_text((char **)v, r, e);
        if (rc) return rc;
    }
    return FO_OK;
}

/* --- comparing -------------------------------------------------------------------------------------------------------------- */
static bool same_text(const char *a, const char *b) {
    return a == b || (a && b && strcmp(a, b) == 0);
}

static bool same_names(const struct cf_names *a, const struct cf_names *b) {
    if (a->n != b->n) return false;
    for (size_t i = 0; i < a->n; i++)
        if (!same_text(a->names[i], b->names[i])) return false;
    return true;
}

static bool same_number(double a, double b) {
    return !(a < b) && !(a > b);
}

/* The costliest change between two lists of mappings, element by element; false when they are equal. */
static bool lists_differ(const struct cf_key *k, const unsigned char *a, size_t n_a, const unsigned char *b, size_t n_b,
                         enum cf_change *ret) {
    size_t size = cf_key_item_size(k);
    bool differ = n_a != n_b;
    enum cf_change worst = differ ? CF_RELOAD : CF_LIVE;
    for (size_t i = 0; i < n_a && i < n_b; i++) {
        struct cf_diff d[CF_MAX_DIFFS];
        size_t n = cf_values_diff(k->keys, a + i * size, b + i * size, NULL, d, CF_MAX_DIFFS);
        differ |= n > 0;
        for (size_t j = 0; j < n; j++)
            if (d[j].change > worst) worst = d[j].change;
    }
    *ret = worst;
    return differ;
}

static bool same(const struct cf_key *k, const void *was, const void *is, enum cf_change *ret_change) {
    bool has_a = has_value(k, was), has_b = has_value(k, is);
    *ret_change = k->change;
    if (!has_a || !has_b) {
        if (k->kind == CF_LIST && k->each == CF_GROUP && has_a != has_b) *ret_change = CF_RELOAD;
        return has_a == has_b;
    }
    const void *a = at(k, was), *b = at(k, is);
    switch (k->kind) {
    case CF_FLAG:
        return *(const bool *)a == *(const bool *)b;
    case CF_COUNT:
    case CF_BYTES:
    case CF_MS:
        return memcmp(a, b, sizeof(uint64_t)) == 0;
    case CF_NUMBER:
    case CF_PERCENT:
        return same_number(*(const double *)a, *(const double *)b);
    case CF_CHOICE:
        return *(const int *)a == *(const int *)b;
    case CF_LIST: {
        size_t n_a = count_of(k, was), n_b = count_of(k, is);
        const unsigned char *x = *(unsigned char *const *)a, *y = *(unsigned char *const *)b;
        if (k->each == CF_GROUP) return !lists_differ(k, x, n_a, y, n_b, ret_change);
        if (n_a != n_b) return false;
        for (size_t i = 0; i < n_a; i++)
            if (k->each == CF_LIST ? !same_names((const struct cf_names *)x + i, (const struct cf_names *)y + i)
                                   : !same_text(((char *const *)x)[i], ((char *const *)y)[i]))
                return false;
        return true;
    }
    default:
        return same_text(*(char *const *)a, *(char *const *)b);
    }
}

/* The value as people write it, without the quotes of one text. */
static void say(const struct cf_key *k, const void *object, char *out, size_t size) {
    struct fo_buf b;
    if (!has_value(k, object)) {
        snprintf(out, size, "%s", k->autos ? "auto" : "unset");
        return;
    }
    fo_buf_init(&b, 1 << 16);
    if (k->kind == CF_LIST && k->each == CF_GROUP)
        fo_buf_printf(&b, "%zu", count_of(k, object));
    else if (k->kind == CF_LIST)
        put_list(k, object, &b);
    else
        put_value(k, k->kind, at(k, object), &b);
    const char *s = fo_buf_str(&b);
    char *to = out, *end = out + size - 4;
    for (; *s && to < end; s++)
        if (*s != '"') *to++ = *s;
    if (*s) { /* cut at a character */
        while (to > out && ((unsigned char)*s & 0xC0) == 0x80) {
            s--;
            to--;
        }
        memcpy(to, "...", 3);
        to += 3;
    }
    *to = '\0';
    fo_buf_done(&b);
}

struct walk {
    struct cf_diff *ret;
    size_t n, cap;
};

static void diff(const struct cf_keys *keys, const void *was, const void *is, const char *prefix, const char *const *but, struct walk *w) {
    for (size_t i = 0; i < keys->n; i++) {
        const struct cf_key *k = &keys->rows[i];
        enum cf_change change;
        const char *const *skip = but;
        char path[sizeof w->ret->key];
        while (skip && *skip && strcmp(*skip, k->name) != 0) skip++;
        if (k->later || (skip && *skip)) continue;
        snprintf(path, sizeof path, "%s%s%s", prefix, *prefix ? "." : "", k->name);
        if (k->kind == CF_GROUP)
            diff(k->keys, at(k, was), at(k, is), path, NULL, w);
        else if (k->stored && !same(k, was, is, &change) && w->n < w->cap) {
            struct cf_diff *d = &w->ret[w->n++];
            *d = (struct cf_diff){ .change = change };
            memcpy(d->key, path, sizeof path);
            say(k, was, d->was, sizeof d->was);
            say(k, is, d->is, sizeof d->is);
        }
    }
}

size_t cf_values_diff(const struct cf_keys *keys, const void *was, const void *is, const char *const *but, struct cf_diff *ret,
                      size_t cap) {
    struct walk w = { ret, 0, cap };
    diff(keys, was, is, "", but, &w);
    return w.n;
}
