/* Reader of one safetensors file, and of the index over several: see safetensors.h. Nothing in it is believed: the header's length is checked against the file and a limit,
 * each shape against its offsets, the offsets against the data and each other. */
#include "foundry/safetensors.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "foundry/base/err.h"
#include "foundry/json.h"

enum { LENGTH_BYTES = 8, MAX_HEADER_BYTES = 64 << 20, MAX_TENSORS = 65536, MAX_TYPE = 32, MAX_SHOWN = 120 };

/* THE types: what the format calls them and what they are here. The others of the format are known by name alone, for the refusal. */
static const struct {
    const char *name;
    enum fo_dtype type;
} types[] = { { "F32", FO_F32 }, { "F16", FO_F16 }, { "BF16", FO_BF16 } };

struct place {
    uint64_t begin, end;
};

struct reader {
    struct fo_json j;
    struct fo_err *e;
    const char *file;
    const unsigned char *data;
    uint64_t n_data, data_at; /* bytes of data, and where they begin in the file */
    struct place *places;     /* [n] */
    size_t n, size;
    char name[FO_SAFETENSORS_NAME];
};

static int wrong(struct reader *r, enum fo_code code, const char *what) {
    return (int)fo_fail(r->e, code, "%s: tensor %.100s: %s", r->file, r->name, what);
}

/* What an entry says, before any of it is checked. */
struct entry {
    char type[MAX_TYPE];
    uint64_t shape[FO_MAX_DIMS], offsets[2];
    int n_dims, n_offsets; /* -1: not said */
};

static int numbers(struct reader *r, const char *what, uint64_t *ret, int max, int *ret_n) {
    char text[64];
    bool more;
    int n = 0;
    if (*ret_n >= 0) {
        snprintf(text, sizeof text, "%s is there twice", what);
        return wrong(r, FO_EFORMAT, text);
    }
    if (fo_json_open(&r->j, '[') || fo_json_more(&r->j, ']', true, &more)) return (int)r->e->code;
    while (more) {
        if (n == max) {
            snprintf(text, sizeof text, "%s has more than %d numbers", what, max);
            return wrong(r, FO_EFORMAT, text);
        }
        if (fo_json_u64(&r->j, &ret[n++]) || fo_json_more(&r->j, ']', false, &more)) return (int)r->e->code;
    }
    *ret_n = n;
    return FO_OK;
}

static int read_entry(struct reader *r, struct entry *ret) {
    char key[32];
    bool more;
    *ret = (struct entry){ .n_dims = -1, .n_offsets = -1 };
    if (fo_json_open(&r->j, '{') || fo_json_more(&r->j, '}', true, &more)) return (int)r->e->code;
    while (more) {
        if (fo_json_key(&r->j, key, sizeof key, NULL)) return (int)r->e->code;
        if (strcmp(key, "dtype") == 0) {
            if (ret->type[0]) return wrong(r, FO_EFORMAT, "dtype is there twice");
            if (fo_json_str(&r->j, ret->type, sizeof ret->type, NULL)) return (int)r->e->code;
        } else if (strcmp(key, "shape") == 0 ? numbers(r, key, ret->shape, FO_MAX_DIMS, &ret->n_dims)
                   : strcmp(key, "data_offsets") == 0 ? numbers(r, key, ret->offsets, 2, &ret->n_offsets)
                                                      : fo_json_skip(&r->j)) {
            return (int)r->e->code;
        }
        if (fo_json_more(&r->j, '}', false, &more)) return (int)r->e->code;
    }
    if (!ret->type[0]) return wrong(r, FO_EFORMAT, "dtype is missing");
    if (ret->n_dims < 0) return wrong(r, FO_EFORMAT, "shape is missing");
    if (ret->n_offsets != 2) return wrong(r, FO_EFORMAT, "data_offsets are not two numbers");
    return FO_OK;
}

static int find_type(struct reader *r, const char *name, enum fo_dtype *ret) {
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (strcmp(types[i].name, name) == 0) {
            *ret = types[i].type;
            return FO_OK;
        }
    for (const char *c = name; *c; c++) /* untrusted, and on its way to a terminal */
        if ((unsigned char)*c < 0x21 || (unsigned char)*c > 0x7E) return wrong(r, FO_EFORMAT, "dtype is no name of a type");
    return (int)fo_fail(r->e, FO_EUNSUPPORTED, "%s: tensor %.100s has the type %s, which this build does not serve (F32, F16, BF16)", r->file, r->name, name);
}

static int check_entry(struct reader *r, const struct entry *x, struct fo_safetensor *ret) {
    int64_t n = 1;
    uint64_t bytes, begin = x->offsets[0], end = x->offsets[1];
    *ret = (struct fo_safetensor){ .name = r->name, .t.ne = { 1, 1, 1, 1 } };
    if (find_type(r, x->type, &ret->t.type)) return (int)r->e->code;
    for (int d = 0; d < x->n_dims; d++) {
        uint64_t ne = x->shape[d];
        if (ne == 0) return wrong(r, FO_EFORMAT, "a dimension of 0: nothing to hold");
        if (ne > INT64_MAX || __builtin_mul_overflow(n, (int64_t)ne, &n)) return wrong(r, FO_EFORMAT, "the product of its dimensions overflows");
        ret->t.ne[x->n_dims - 1 - d] = (int64_t)ne;
    }
    bytes = fo_dtype_bytes(ret->t.type, (uint64_t)n);
    if (bytes == 0) return wrong(r, FO_EFORMAT, "its size in bytes overflows");
    if (begin > end || end > r->n_data)
        return (int)fo_fail_need(r->e, FO_EFORMAT, end, r->n_data, "%s: tensor %.100s: data_offsets [%llu, %llu], but there are %llu bytes of data: truncated?",
                                 r->file, r->name, (unsigned long long)begin, (unsigned long long)end, (unsigned long long)r->n_data);
    if (end - begin != bytes)
        return (int)fo_fail_need(r->e, FO_EFORMAT, bytes, end - begin, "%s: tensor %.100s: its shape needs %llu bytes, data_offsets give %llu", r->file, r->name,
                                 (unsigned long long)bytes, (unsigned long long)(end - begin));
    ret->t.data = (void *)(uintptr_t)(r->data + begin);
    ret->offset = r->data_at + begin;
    ret->bytes = bytes;
    return FO_OK;
}

static int keep_place(struct reader *r, const struct entry *x) {
    if (r->n == MAX_TENSORS) return (int)fo_fail_need(r->e, FO_ELIMIT, MAX_TENSORS + 1, MAX_TENSORS, "%s: more than %d tensors", r->file, MAX_TENSORS);
    if (r->n == r->size) {
        size_t size = r->size ? 2 * r->size : 256;
        struct place *more = realloc(r->places, size * sizeof *more);
        if (!more) return (int)fo_fail_need(r->e, FO_ENOMEM, size * sizeof *more, 0, "%s: no memory for its directory", r->file);
        r->places = more;
        r->size = size;
    }
    r->places[r->n++] = (struct place){ x->offsets[0], x->offsets[1] };
    return FO_OK;
}

static int by_begin(const void *a, const void *b) {
    const struct place *x = a, *y = b;
    return (x->begin > y->begin) - (x->begin < y->begin);
}

/* Every byte of the data belongs to one tensor. */
static int check_cover(struct reader *r) {
    uint64_t at = 0;
    if (r->n) qsort(r->places, r->n, sizeof *r->places, by_begin);
    for (size_t i = 0; i < r->n; at = r->places[i++].end)
        if (r->places[i].begin != at)
            return (int)fo_fail(r->e, FO_EFORMAT, "%s: the bytes at %llu of its data belong to %s", r->file,
                                (unsigned long long)(r->places[i].begin < at ? r->places[i].begin : at), r->places[i].begin < at ? "two tensors" : "no tensor");
    if (at == r->n_data) return FO_OK;
    return (int)fo_fail_need(r->e, FO_EFORMAT, at, r->n_data, "%s: %llu bytes of data, but its tensors end at %llu", r->file, (unsigned long long)r->n_data,
                             (unsigned long long)at);
}

static int read_all(struct reader *r, int (*each)(void *ctx, const struct fo_safetensor *t, struct fo_err *e), void *ctx) {
    struct entry x;
    struct fo_safetensor t;
    bool more;
    if (fo_json_open(&r->j, '{') || fo_json_more(&r->j, '}', true, &more)) return (int)r->e->code;
    while (more) {
        size_t len;
        if (fo_json_key(&r->j, r->name, sizeof r->name, &len)) return (int)r->e->code;
        if (len == 0) return fo_json_fail(&r->j, "a tensor without a name");
        if (strcmp(r->name, "__metadata__") == 0) {
            if (fo_json_skip(&r->j)) return (int)r->e->code;
        } else if (read_entry(r, &x) || check_entry(r, &x, &t) || keep_place(r, &x) || each(ctx, &t, r->e)) {
            return (int)r->e->code;
        }
        if (fo_json_more(&r->j, '}', false, &more)) return (int)r->e->code;
    }
    return fo_json_end(&r->j) ? (int)r->e->code : check_cover(r);
}

int fo_safetensors_read(const void *bytes, uint64_t n, const char *file, int (*each)(void *ctx, const struct fo_safetensor *t, struct fo_err *e),
                        void *ctx, struct fo_err *e) {
    uint64_t length;
    size_t path_bytes = strlen(file);
    if (path_bytes > MAX_SHOWN) file += path_bytes - MAX_SHOWN; /* a long path must not push the reason out of the message */
    if (n < LENGTH_BYTES) return (int)fo_fail_need(e, FO_EFORMAT, LENGTH_BYTES, n, "%s: %llu bytes are no safetensors file", file, (unsigned long long)n);
    memcpy(&length, bytes, sizeof length);
    if (length > n - LENGTH_BYTES)
        return (int)fo_fail_need(e, FO_EFORMAT, length, n - LENGTH_BYTES, "%s: a header of %llu bytes where %llu follow: truncated, or no safetensors file", file,
                                 (unsigned long long)length, (unsigned long long)(n - LENGTH_BYTES));
    if (length > MAX_HEADER_BYTES)
        return (int)fo_fail_need(e, FO_ELIMIT, length, MAX_HEADER_BYTES, "%s: a header of %llu bytes, at most %d are read", file, (unsigned long long)length,
                                 MAX_HEADER_BYTES);
    struct reader r = { .e = e, .file = file, .data = (const unsigned char *)bytes + LENGTH_BYTES + length, .n_data = n - LENGTH_BYTES - length,
                        .data_at = LENGTH_BYTES + length };
    r.j = fo_json_over((const char *)bytes + LENGTH_BYTES, (size_t)length, file, LENGTH_BYTES, e);
    int rc = read_all(&r, each, ctx);
    free(r.places);
    return rc;
}

/* --- the index --- */

static int read_map(struct fo_json *j, int (*each)(void *ctx, const char *tensor, const char *in, struct fo_err *e), void *ctx) {
    char tensor[FO_SAFETENSORS_NAME], in[FO_SAFETENSORS_NAME];
    bool more;
    if (fo_json_open(j, '{') || fo_json_more(j, '}', true, &more)) return (int)j->e->code;
    while (more)
        if (fo_json_key(j, tensor, sizeof tensor, NULL) || fo_json_str(j, in, sizeof in, NULL) || each(ctx, tensor, in, j->e) ||
            fo_json_more(j, '}', false, &more))
            return (int)j->e->code;
    return FO_OK;
}

int fo_safetensors_index(const char *text, size_t n, const char *file, int (*each)(void *ctx, const char *tensor, const char *in, struct fo_err *e), void *ctx,
                         struct fo_err *e) {
    struct fo_json j = fo_json_over(text, n, file, 0, e);
    char key[64];
    bool more, found = false;
    if (fo_json_open(&j, '{') || fo_json_more(&j, '}', true, &more)) return (int)e->code;
    while (more) {
        if (fo_json_key(&j, key, sizeof key, NULL)) return (int)e->code;
        bool map = strcmp(key, "weight_map") == 0;
        if (map && found) return fo_json_fail(&j, "weight_map is there twice");
        if ((map ? read_map(&j, each, ctx) : fo_json_skip(&j)) || fo_json_more(&j, '}', false, &more)) return (int)e->code;
        found = found || map;
    }
    if (!found) return fo_json_fail(&j, "weight_map is missing");
    return fo_json_end(&j);
}
