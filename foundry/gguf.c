/* GGUF reader: see gguf.h. A file is, all little endian:
 *
 *     "GGUF" | u32 version | u64 n_tensors | u64 n_kv
 *     n_kv times:      string key | u32 type | value          value of an array: u32 element type | u64 n | n elements
 *     n_tensors times: string name | u32 n_dims | u64 dims[n_dims] | u32 type | u64 offset
 *     padding to the alignment (general.alignment, default 32) | tensor data, offsets counted from here
 *
 *     string: u64 length | bytes
 *
 * Nothing in it is believed. Counts are checked against the bytes that are left before anything is allocated, and against the
 * limits below, so the heap this takes is bounded: 65,536 entries of each kind need 11 MB. What is read once is kept (places and
 * lengths), since whoever may write the file may do so while we look; arrays are walked later and check their bounds again. Names
 * are hashed with a secret seed, so a file cannot be built whose names all collide. */
#include "foundry/gguf.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "foundry/base/cursor.h"
#include "foundry/base/err.h"
#include "foundry/base/file.h"
#include "foundry/base/rng.h"
#include "foundry/gguf_int.h"

enum {
    MAX_ENTRIES = 65536,    /* of metadata, and of tensors */
    MAX_KEY_BYTES = 65535,  /* the format's own limit */
    MAX_NAME_BYTES = 64,    /* the format's own limit */
    DEFAULT_ALIGNMENT = 32,
    MIN_KV_BYTES = 8 + 4 + 1,         /* empty key, type, the shortest value */
    MIN_TENSOR_BYTES = 8 + 4 + 4 + 8, /* empty name, no dimensions, type, offset */
};

/* Open addressing, at most half full; a slot is an index + 1, 0 = free. */
struct names {
    uint32_t *slots; /* [mask + 1] */
    uint32_t mask;
};

struct fo_gguf {
    const uint8_t *bytes; /* of the header: the first map's, or the caller's, or `meta` */
    uint64_t n_bytes;
    struct fo_map **maps; /* [n_maps], NULL when the caller keeps the bytes */
    size_t n_maps;
    uint64_t file_bytes;  /* of all files together */
    const char *format;
    struct fo_region region; /* what fo_gguf_keep gave */
    char *meta;
    uint32_t version;
    uint64_t alignment;
    uint64_t seed[2];
    struct fo_gguf_kv *kv;
    struct fo_gguf_tensor *tensors;
    size_t n_kv, n_tensors;
    size_t tensors_size; /* entries there is room for */
    struct names kv_names, tensor_names;
};

/* What each value type is: its name for errors and its bytes (0 = not of one size). */
static const struct {
    const char *name;
    uint8_t bytes;
} types[FO_GGUF_N_TYPES] = {
    [FO_GGUF_U8] = { "u8", 1 },   [FO_GGUF_I8] = { "i8", 1 },         [FO_GGUF_U16] = { "u16", 2 },    [FO_GGUF_I16] = { "i16", 2 },
    [FO_GGUF_U32] = { "u32", 4 }, [FO_GGUF_I32] = { "i32", 4 },       [FO_GGUF_F32] = { "f32", 4 },    [FO_GGUF_BOOL] = { "bool", 1 },
    [FO_GGUF_U64] = { "u64", 8 }, [FO_GGUF_I64] = { "i64", 8 },       [FO_GGUF_F64] = { "f64", 8 },    [FO_GGUF_STRING] = { "string", 0 },
    [FO_GGUF_ARRAY] = { "array", 0 },
};

const char *fo_gguf_type_name(enum fo_gguf_type type) {
    return (unsigned)type < FO_GGUF_N_TYPES ? types[type].name : "no type";
}

size_t fo_gguf_type_bytes(enum fo_gguf_type type) {
    return (unsigned)type < FO_GGUF_N_TYPES ? types[type].bytes : 0;
}

/* --- errors --------------------------------------------------------------------------------------------------------------- */

struct parser {
    struct fo_cursor c;
    struct fo_gguf *g;
    struct fo_err *e;
    const char *name;   /* of the file */
    const char *record; /* "metadata entry", "tensor", or NULL in the header */
    size_t index;
    struct fo_str label; /* the record's key or name, once read */
};

/* Puts where it went wrong in front of an error: file, byte offset, record, field. */
static int at(struct parser *p, size_t offset, const char *field) {
    size_t len = strlen(p->name), skip = len > 120 ? len - 120 : 0; /* a long path must not push the reason out of the message */
    char where[160] = "";
    if (p->record && p->label.len)
        snprintf(where, sizeof where, "%s %zu '%.*s': ", p->record, p->index, (int)(p->label.len < 80 ? p->label.len : 80), p->label.s);
    else if (p->record)
        snprintf(where, sizeof where, "%s %zu: ", p->record, p->index);
    return (int)fo_wrap(p->e, "%s%s: offset %zu: %s%s", skip ? "..." : "", p->name + skip, offset, where, field);
}

static int ends_within(struct parser *p, size_t offset, const char *field) {
    fo_fail(p->e, FO_EFORMAT, "the file ends here, at %llu bytes", (unsigned long long)p->g->n_bytes);
    return at(p, offset, field);
}

static int read_u32(struct parser *p, const char *field, uint32_t *ret) {
    size_t offset = fo_cursor_offset(&p->c);
    uint32_t v = fo_cursor_u32(&p->c);
    if (p->c.bad) return ends_within(p, offset, field);
    *ret = v;
    return FO_OK;
}

static int read_u64(struct parser *p, const char *field, uint64_t *ret) {
    size_t offset = fo_cursor_offset(&p->c);
    uint64_t v = fo_cursor_u64(&p->c);
    if (p->c.bad) return ends_within(p, offset, field);
    *ret = v;
    return FO_OK;
}

static int read_str(struct parser *p, const char *field, struct fo_str *ret) {
    size_t offset = fo_cursor_offset(&p->c);
    uint64_t len = 0;
    if (read_u64(p, field, &len)) return (int)p->e->code;
    const uint8_t *s = fo_cursor_take(&p->c, len);
    if (!s) {
        fo_fail_need(p->e, FO_EFORMAT, len, fo_cursor_left(&p->c), "a string of %llu bytes where %zu are left", (unsigned long long)len,
                     fo_cursor_left(&p->c));
        return at(p, offset, field);
    }
    *ret = (struct fo_str){ (const char *)s, (size_t)len };
    return FO_OK;
}

/* A key or a tensor's name: not empty, no NUL (look-ups take C strings), of limited length. */
static int read_name(struct parser *p, const char *field, size_t max, struct fo_str *ret) {
    size_t offset = fo_cursor_offset(&p->c);
    if (read_str(p, field, ret)) return (int)p->e->code;
    if (ret->len == 0) fo_fail(p->e, FO_EFORMAT, "is empty");
    else if (ret->len > max) fo_fail_need(p->e, FO_EFORMAT, ret->len, max, "has %zu bytes, at most %zu are allowed", ret->len, max);
    else if (memchr(ret->s, 0, ret->len)) fo_fail(p->e, FO_EFORMAT, "holds a NUL byte");
    else return FO_OK;
    return at(p, offset, field);
}

/* --- names ---------------------------------------------------------------------------------------------------------------- */

static uint64_t rotl(uint64_t x, int k) {
    return x << k | x >> (64 - k);
}

static void sip_round(uint64_t v[4]) {
    v[0] += v[1], v[2] += v[3];
    v[1] = rotl(v[1], 13) ^ v[0], v[3] = rotl(v[3], 16) ^ v[2];
    v[0] = rotl(v[0], 32);
    v[2] += v[1], v[0] += v[3];
    v[1] = rotl(v[1], 17) ^ v[2], v[3] = rotl(v[3], 21) ^ v[0];
    v[2] = rotl(v[2], 32);
}

/* SipHash-1-3 (Aumasson and Bernstein, 2012). */
static uint32_t hash(const uint64_t seed[2], struct fo_str s) {
    uint64_t v[4] = { seed[0] ^ 0x736F6D6570736575u, seed[1] ^ 0x646F72616E646F6Du, seed[0] ^ 0x6C7967656E657261u, seed[1] ^ 0x7465646279746573u };
    uint64_t word;
    size_t i = 0;
    for (; s.len - i >= 8; i += 8) {
        memcpy(&word, s.s + i, 8);
        v[3] ^= word;
        sip_round(v);
        v[0] ^= word;
    }
    word = 0;
    memcpy(&word, s.s + i, s.len - i);
    word |= (uint64_t)s.len << 56;
    v[3] ^= word;
    sip_round(v);
    v[0] ^= word;
    v[2] ^= 0xFF;
    for (int r = 0; r < 3; r++) sip_round(v);
    return (uint32_t)(v[0] ^ v[1] ^ v[2] ^ v[3]);
}

static int names_init(struct parser *p, struct names *t, size_t n) {
    uint32_t size = 2;
    while (size < 2 * n) size *= 2;
    t->slots = calloc(size, sizeof *t->slots);
    if (!t->slots) return (int)fo_fail_need(p->e, FO_ENOMEM, size * sizeof *t->slots, 0, "%s: no memory for the names", p->name);
    t->mask = size - 1;
    return FO_OK;
}

static struct fo_str name_of(const struct fo_gguf *g, const struct names *t, uint32_t i) {
    return t == &g->kv_names ? g->kv[i].key : g->tensors[i].name;
}

/* The slot of `name`, or the free one where it would go. */
static uint32_t *names_slot(const struct fo_gguf *g, const struct names *t, struct fo_str name) {
    for (uint32_t at_slot = hash(g->seed, name);; at_slot++) {
        uint32_t *slot = &t->slots[at_slot & t->mask];
        if (!*slot) return slot;
        struct fo_str have = name_of(g, t, *slot - 1);
        if (have.len == name.len && memcmp(have.s, name.s, name.len) == 0) return slot;
    }
}

/* Enters record `i`, just read at `offset`; refuses a second one of that name. */
static int names_add(struct parser *p, struct names *t, uint32_t i, size_t offset, const char *field) {
    uint32_t *slot = names_slot(p->g, t, name_of(p->g, t, i));
    if (*slot) {
        fo_fail(p->e, FO_EFORMAT, "the name of %s %u too", p->record, (unsigned)(*slot - 1));
        return at(p, offset, field);
    }
    *slot = i + 1;
    return FO_OK;
}

/* --- header --------------------------------------------------------------------------------------------------------------- */

/* A count of records that take at least `min_bytes` each, all of which must still follow. */
static int read_count(struct parser *p, const char *field, uint64_t min_bytes, uint64_t *ret) {
    size_t offset = fo_cursor_offset(&p->c);
    uint64_t n = 0, fit;
    if (read_u64(p, field, &n)) return (int)p->e->code;
    fit = fo_cursor_left(&p->c) / min_bytes;
    if (n > fit)
        fo_fail_need(p->e, FO_EFORMAT, n, fit, "%llu entries cannot stand in the %zu bytes left", (unsigned long long)n, fo_cursor_left(&p->c));
    else if (n > MAX_ENTRIES)
        fo_fail_need(p->e, FO_ELIMIT, n, MAX_ENTRIES, "%llu entries, at most %d are read", (unsigned long long)n, MAX_ENTRIES);
    else {
        *ret = n;
        return FO_OK;
    }
    return at(p, offset, field);
}

static int read_header(struct parser *p) {
    struct fo_gguf *g = p->g;
    const uint8_t *magic = fo_cursor_take(&p->c, 4);
    if (!magic) return ends_within(p, 0, "magic");
    if (memcmp(magic, "GGUF", 4) != 0) {
        fo_fail(p->e, FO_EFORMAT, "%02x %02x %02x %02x is not \"GGUF\": this is no GGUF file", magic[0], magic[1], magic[2], magic[3]);
        return at(p, 0, "magic");
    }
    if (read_u32(p, "version", &g->version)) return (int)p->e->code;
    if (g->version != 2 && g->version != 3) {
        if (g->version && (g->version & 0xFFFF) == 0) fo_fail(p->e, FO_EUNSUPPORTED, "0x%08x: a big-endian file", g->version);
        else fo_fail(p->e, FO_EUNSUPPORTED, "%u; 2 and 3 can be read", g->version);
        return at(p, 4, "version");
    }
    uint64_t n_tensors = 0, n_kv = 0;
    if (read_count(p, "tensor count", MIN_TENSOR_BYTES, &n_tensors)) return (int)p->e->code;
    if (read_count(p, "metadata count", MIN_KV_BYTES, &n_kv)) return (int)p->e->code;
    g->kv = calloc((size_t)n_kv + 1, sizeof *g->kv);
    g->tensors = calloc((size_t)n_tensors + 1, sizeof *g->tensors);
    if (!g->kv || !g->tensors)
        return (int)fo_fail_need(p->e, FO_ENOMEM, (n_kv + 1) * sizeof *g->kv + (n_tensors + 1) * sizeof *g->tensors, 0,
                                 "%s: no memory for its directory", p->name);
    g->n_kv = (size_t)n_kv;
    g->n_tensors = (size_t)n_tensors;
    g->tensors_size = (size_t)n_tensors + 1;
    if (names_init(p, &g->kv_names, g->n_kv) || names_init(p, &g->tensor_names, g->n_tensors)) return (int)p->e->code;
    return FO_OK;
}

/* --- metadata ------------------------------------------------------------------------------------------------------------- */

static int read_type(struct parser *p, const char *field, enum fo_gguf_type *ret) {
    size_t offset = fo_cursor_offset(&p->c);
    uint32_t v = 0;
    if (read_u32(p, field, &v)) return (int)p->e->code;
    if (v >= FO_GGUF_N_TYPES) {
        fo_fail(p->e, FO_EFORMAT, "%u is no value type", v);
        return at(p, offset, field);
    }
    *ret = (enum fo_gguf_type)v;
    return FO_OK;
}

/* Steps over kv->n elements of kv->elem and checks each. */
static int read_elements(struct parser *p, const struct fo_gguf_kv *kv) {
    size_t offset = fo_cursor_offset(&p->c);
    if (kv->elem == FO_GGUF_STRING) {
        if (kv->n > fo_cursor_left(&p->c) / 8) { /* a claim so large ends early, not after a long walk */
            fo_fail_need(p->e, FO_EFORMAT, kv->n, fo_cursor_left(&p->c) / 8, "%llu strings where %zu bytes are left",
                         (unsigned long long)kv->n, fo_cursor_left(&p->c));
            return at(p, offset, "value");
        }
        struct fo_str s;
        for (uint64_t i = 0; i < kv->n; i++)
            if (read_str(p, "string", &s)) return (int)p->e->code;
        return FO_OK;
    }
    uint64_t bytes;
    const uint8_t *v = NULL;
    if (!__builtin_mul_overflow(kv->n, (uint64_t)types[kv->elem].bytes, &bytes)) v = fo_cursor_take(&p->c, bytes);
    if (!v) {
        fo_fail_need(p->e, FO_EFORMAT, kv->n, fo_cursor_left(&p->c), "%llu elements of type %s where %zu bytes are left",
                     (unsigned long long)kv->n, types[kv->elem].name, fo_cursor_left(&p->c));
        return at(p, offset, "value");
    }
    if (kv->elem == FO_GGUF_BOOL)
        for (uint64_t i = 0; i < kv->n; i++)
            if (v[i] > 1) {
                fo_fail(p->e, FO_EFORMAT, "%u is no bool (0 or 1)", v[i]);
                return at(p, offset + (size_t)i, "value");
            }
    return FO_OK;
}

static int read_kv(struct parser *p, size_t i) {
    struct fo_gguf_kv *kv = &p->g->kv[i];
    size_t offset = fo_cursor_offset(&p->c);
    *p = (struct parser){ p->c, p->g, p->e, p->name, "metadata entry", i, { "", 0 } };
    if (read_name(p, "key", MAX_KEY_BYTES, &kv->key)) return (int)p->e->code;
    p->label = kv->key;
    if (names_add(p, &p->g->kv_names, (uint32_t)i, offset, "key")) return (int)p->e->code;
    if (read_type(p, "type", &kv->type)) return (int)p->e->code;
    kv->elem = kv->type;
    kv->n = 1;
    if (kv->type == FO_GGUF_ARRAY) {
        offset = fo_cursor_offset(&p->c);
        if (read_type(p, "element type", &kv->elem)) return (int)p->e->code;
        if (kv->elem == FO_GGUF_ARRAY) {
            fo_fail(p->e, FO_EUNSUPPORTED, "arrays of arrays are not read");
            return at(p, offset, "element type");
        }
        if (read_u64(p, "array length", &kv->n)) return (int)p->e->code;
    }
    kv->data = p->c.p;
    if (read_elements(p, kv)) return (int)p->e->code;
    kv->bytes = (uint64_t)(p->c.p - kv->data);
    return FO_OK;
}

static int read_alignment(struct parser *p) {
    const struct fo_gguf_kv *kv = fo_gguf_find(p->g, "general.alignment");
    p->g->alignment = DEFAULT_ALIGNMENT;
    if (!kv) return FO_OK;
    p->record = "metadata entry";
    p->index = (size_t)(kv - p->g->kv);
    p->label = kv->key;
    uint32_t v = 0;
    if (kv->type == FO_GGUF_U32) memcpy(&v, kv->data, sizeof v);
    if (kv->type != FO_GGUF_U32) fo_fail(p->e, FO_EFORMAT, "must be u32, is %s", types[kv->type].name);
    else if (v == 0 || v % 8 != 0) fo_fail(p->e, FO_EFORMAT, "%u is no multiple of 8", v);
    else {
        p->g->alignment = v;
        return FO_OK;
    }
    return at(p, (size_t)(kv->data - p->g->bytes), "value");
}

/* --- tensors -------------------------------------------------------------------------------------------------------------- */

/* Reads an entry; t->offset stays relative to the data section, which starts only after the last entry. */
static int read_tensor(struct parser *p, size_t i) {
    struct fo_gguf_tensor *t = &p->g->tensors[i];
    size_t offset = fo_cursor_offset(&p->c);
    *p = (struct parser){ p->c, p->g, p->e, p->name, "tensor", i, { "", 0 } };
    if (read_name(p, "name", MAX_NAME_BYTES, &t->name)) return (int)p->e->code;
    p->label = t->name;
    if (names_add(p, &p->g->tensor_names, (uint32_t)i, offset, "name")) return (int)p->e->code;

    uint32_t n_dims = 0, type = 0;
    offset = fo_cursor_offset(&p->c);
    if (read_u32(p, "number of dimensions", &n_dims)) return (int)p->e->code;
    if (n_dims > FO_MAX_DIMS) {
        fo_fail_need(p->e, FO_EFORMAT, n_dims, FO_MAX_DIMS, "%u; at most %d are possible", n_dims, FO_MAX_DIMS);
        return at(p, offset, "number of dimensions");
    }
    int64_t n = 1, rows = 1;
    for (uint32_t d = 0; d < FO_MAX_DIMS; d++) {
        uint64_t ne = 1;
        offset = fo_cursor_offset(&p->c);
        if (d < n_dims && read_u64(p, "dimension", &ne)) return (int)p->e->code;
        if (ne == 0 || ne > INT64_MAX || __builtin_mul_overflow(n, (int64_t)ne, &n)) {
            fo_fail(p->e, FO_EFORMAT, "%llu as dimension %u: %s", (unsigned long long)ne, d, ne ? "the product overflows" : "nothing to hold");
            return at(p, offset, "dimension");
        }
        t->t.ne[d] = (int64_t)ne;
        if (d > 0) rows *= (int64_t)ne;
    }

    offset = fo_cursor_offset(&p->c);
    if (read_u32(p, "type", &type)) return (int)p->e->code;
    const struct fo_dtype_info *info = fo_dtype_info(type);
    if (!info) {
        fo_fail(p->e, FO_EUNSUPPORTED, "%u is no tensor type that is known here", type);
        return at(p, offset, "type");
    }
    t->t.type = (enum fo_dtype)type;
    if (t->t.ne[0] % info->block != 0) {
        fo_fail(p->e, FO_EFORMAT, "%s needs rows of a multiple of %d elements, these have %lld", info->name, info->block, (long long)t->t.ne[0]);
        return at(p, offset, "type");
    }
    uint64_t row = fo_dtype_bytes(type, (uint64_t)t->t.ne[0]);
    if (row == 0 || __builtin_mul_overflow(row, (uint64_t)rows, &t->bytes)) {
        fo_fail(p->e, FO_EFORMAT, "the size in bytes overflows");
        return at(p, offset, "type");
    }

    offset = fo_cursor_offset(&p->c);
    if (read_u64(p, "offset", &t->offset)) return (int)p->e->code;
    if (t->offset % p->g->alignment != 0) {
        fo_fail(p->e, FO_EFORMAT, "%llu is no multiple of the alignment, %llu", (unsigned long long)t->offset,
                (unsigned long long)p->g->alignment);
        return at(p, offset, "offset");
    }
    return FO_OK;
}

/* Turns relative offsets into places in the file, all of them within it. */
static int place_tensors(struct parser *p) {
    struct fo_gguf *g = p->g;
    size_t offset = fo_cursor_offset(&p->c);
    uint64_t pad = (g->alignment - offset % g->alignment) % g->alignment, start = offset + pad; /* both under 2^63 */
    p->record = "tensor";
    for (size_t i = 0; i < g->n_tensors; i++) {
        struct fo_gguf_tensor *t = &g->tensors[i];
        uint64_t from, end;
        if (__builtin_add_overflow(start, t->offset, &from) || __builtin_add_overflow(from, t->bytes, &end) || end > g->n_bytes) {
            p->index = i;
            p->label = t->name;
            uint64_t need = t->bytes > UINT64_MAX - t->offset || t->bytes + t->offset > UINT64_MAX - start ? UINT64_MAX : start + t->offset + t->bytes;
            fo_fail_need(p->e, FO_EFORMAT, need, g->n_bytes, "%llu bytes at %llu of the data, but the file has %llu bytes: truncated?",
                         (unsigned long long)t->bytes, (unsigned long long)t->offset, (unsigned long long)g->n_bytes);
            return at(p, start > g->n_bytes ? (size_t)g->n_bytes : (size_t)start, "data");
        }
        t->offset = from;
        t->t.data = (void *)(uintptr_t)(g->bytes + from);
    }
    return FO_OK;
}

struct place {
    uint64_t offset;
    uint32_t i;
};

static int by_offset(const void *a, const void *b) {
    const struct place *x = a, *y = b;
    return x->offset < y->offset ? -1 : x->offset > y->offset;
}

/* No byte belongs to two tensors. Files are nearly always written in order; if not, a sorted index is made. */
static int refuse_overlap(struct parser *p) {
    const struct fo_gguf *g = p->g;
    size_t i = 1;
    while (i < g->n_tensors && g->tensors[i].offset >= g->tensors[i - 1].offset + g->tensors[i - 1].bytes) i++;
    if (i >= g->n_tensors) return FO_OK;
    struct place *order = malloc(g->n_tensors * sizeof *order);
    if (!order) return (int)fo_fail_need(p->e, FO_ENOMEM, g->n_tensors * sizeof *order, 0, "%s: no memory", p->name);
    for (i = 0; i < g->n_tensors; i++) order[i] = (struct place){ g->tensors[i].offset, (uint32_t)i };
    qsort(order, g->n_tensors, sizeof *order, by_offset);
    int rc = FO_OK;
    for (i = 1; i < g->n_tensors && !rc; i++) {
        const struct fo_gguf_tensor *a = &g->tensors[order[i - 1].i], *b = &g->tensors[order[i].i];
        if (b->offset >= a->offset + a->bytes) continue;
        p->index = order[i].i;
        p->label = b->name;
        fo_fail(p->e, FO_EFORMAT, "overlaps tensor %u '%.*s' (%llu bytes from %llu)", (unsigned)order[i - 1].i, (int)a->name.len, a->name.s,
                (unsigned long long)a->bytes, (unsigned long long)a->offset);
        rc = at(p, (size_t)b->offset, "data");
    }
    free(order);
    return rc;
}

/* --- the object ----------------------------------------------------------------------------------------------------------- */

static int parse(struct fo_gguf *g, const char *name, struct fo_err *e) {
    struct parser p = { .c = fo_cursor_over(g->bytes, (size_t)g->n_bytes), .g = g, .e = e, .name = name };
    if (read_header(&p)) return (int)e->code;
    for (size_t i = 0; i < g->n_kv; i++)
        if (read_kv(&p, i)) return (int)e->code;
    if (read_alignment(&p)) return (int)e->code;
    for (size_t i = 0; i < g->n_tensors; i++)
        if (read_tensor(&p, i)) return (int)e->code;
    if (place_tensors(&p)) return (int)e->code;
    return refuse_overlap(&p);
}

int fo_gguf_parse(const void *bytes, size_t n, const char *name, struct fo_gguf **ret, struct fo_err *e) {
    struct fo_gguf *g = calloc(1, sizeof *g);
    if (!g) return (int)fo_fail_need(e, FO_ENOMEM, sizeof *g, 0, "%s: no memory", name);
    g->bytes = bytes;
    g->n_bytes = g->file_bytes = n;
    g->format = "GGUF";
    g->seed[0] = fo_rng_entropy();
    g->seed[1] = fo_rng_entropy();
    int rc = parse(g, name, e);
    if (rc) fo_gguf_close(g);
    else *ret = g;
    return rc;
}

int fo_gguf_open(const char *path, struct fo_gguf **ret, struct fo_err *e) {
    struct fo_map *map;
    struct fo_gguf *g;
    int rc = fo_map_open(path, &map, e);
    if (rc) return rc;
    rc = fo_gguf_parse(fo_map_data(map), (size_t)fo_map_size(map), path, &g, e);
    if (rc) {
        fo_map_close(map);
        return rc;
    }
    rc = fo_gguf_take_map(g, map, e);
    for (size_t i = 0; i < g->n_tensors && !rc; i++) g->tensors[i].map = map;
    if (!rc) rc = fo_map_state(map, e); /* what was checked must be what is there */
    if (rc) fo_gguf_close(g);
    else *ret = g;
    return rc;
}

void fo_gguf_close(struct fo_gguf *g) {
    if (!g) return;
    free(g->kv);
    free(g->tensors);
    free(g->kv_names.slots);
    free(g->tensor_names.slots);
    for (size_t i = 0; i < g->n_maps; i++) fo_map_close(g->maps[i]);
    free(g->maps);
    fo_region_done(&g->region);
    free(g->meta);
    free(g);
}

/* --- put together from several files: gguf_int.h -------------------------------------------------------------------------- */

int fo_gguf_take_map(struct fo_gguf *g, struct fo_map *map, struct fo_err *e) {
    struct fo_map **more = realloc(g->maps, (g->n_maps + 1) * sizeof *more);
    if (!more) {
        int rc = (int)fo_fail_need(e, FO_ENOMEM, (g->n_maps + 1) * sizeof *more, 0, "%s: no memory", fo_map_path(map));
        fo_map_close(map);
        return rc;
    }
    g->maps = more;
    g->file_bytes = g->n_maps ? g->file_bytes + fo_map_size(map) : fo_map_size(map);
    g->maps[g->n_maps++] = map;
    return FO_OK;
}

struct fo_region *fo_gguf_keep(struct fo_gguf *g, struct fo_region *region, char *meta, const char *format) {
    fo_region_done(&g->region);
    free(g->meta);
    g->region = *region;
    *region = (struct fo_region){ 0 };
    g->meta = meta;
    g->format = format;
    return &g->region;
}

/* Room for n tensors in the list and, at most half full, in the index. */
static int make_room(struct fo_gguf *g, size_t n, const char *where, struct fo_err *e) {
    if (n >= g->tensors_size) {
        size_t size = 2 * n + 1;
        struct fo_gguf_tensor *more = realloc(g->tensors, size * sizeof *more);
        if (!more) return (int)fo_fail_need(e, FO_ENOMEM, size * sizeof *more, 0, "%s: no memory for its directory", where);
        g->tensors = more;
        g->tensors_size = size;
    }
    if (2 * n <= (size_t)g->tensor_names.mask + 1) return FO_OK;
    struct parser p = { .g = g, .e = e, .name = where };
    struct names larger;
    if (names_init(&p, &larger, 2 * n)) return (int)e->code;
    free(g->tensor_names.slots);
    g->tensor_names = larger;
    for (size_t i = 0; i < g->n_tensors; i++) *names_slot(g, &g->tensor_names, g->tensors[i].name) = (uint32_t)i + 1;
    return FO_OK;
}

int fo_gguf_add(struct fo_gguf *g, const struct fo_gguf_tensor *tensors, size_t n, const char *where, struct fo_err *e) {
    if (n > MAX_ENTRIES - g->n_tensors)
        return (int)fo_fail_need(e, FO_ELIMIT, g->n_tensors + n, MAX_ENTRIES, "%s: %zu tensors with those before it, at most %d are read", where,
                                 g->n_tensors + n, MAX_ENTRIES);
    if (make_room(g, g->n_tensors + n, where, e)) return (int)e->code;
    for (size_t i = 0; i < n; i++) {
        uint32_t *slot = names_slot(g, &g->tensor_names, tensors[i].name);
        if (*slot) {
            const struct fo_map *other = g->tensors[*slot - 1].map;
            return (int)fo_fail(e, FO_EFORMAT, "%s: tensor %.*s is in %s too", where, (int)tensors[i].name.len, tensors[i].name.s,
                                other ? fo_map_path(other) : "the model");
        }
        g->tensors[g->n_tensors++] = tensors[i];
        *slot = (uint32_t)g->n_tensors;
    }
    return FO_OK;
}

int fo_gguf_absorb(struct fo_gguf *g, struct fo_gguf *part, struct fo_err *e) {
    int rc = fo_gguf_add(g, part->tensors, part->n_tensors, fo_map_path(part->maps[0]), e);
    while (!rc && part->n_maps) rc = fo_gguf_take_map(g, part->maps[--part->n_maps], e);
    fo_gguf_close(part);
    return rc;
}

int fo_gguf_state(const struct fo_gguf *g, struct fo_err *e) {
    for (size_t i = 0; i < g->n_maps; i++)
        if (fo_map_state(g->maps[i], e)) return (int)e->code;
    return FO_OK;
}

const char *fo_gguf_format(const struct fo_gguf *g) {
    return g->format;
}

size_t fo_gguf_n_files(const struct fo_gguf *g) {
    return g->n_maps;
}

const struct fo_map *fo_gguf_file(const struct fo_gguf *g, size_t i) {
    return g->maps[i];
}

uint32_t fo_gguf_version(const struct fo_gguf *g) {
    return g->version;
}

uint64_t fo_gguf_alignment(const struct fo_gguf *g) {
    return g->alignment;
}

uint64_t fo_gguf_file_bytes(const struct fo_gguf *g) {
    return g->file_bytes;
}

size_t fo_gguf_n_kv(const struct fo_gguf *g) {
    return g->n_kv;
}

const struct fo_gguf_kv *fo_gguf_kv_at(const struct fo_gguf *g, size_t i) {
    return &g->kv[i];
}

const struct fo_gguf_kv *fo_gguf_find(const struct fo_gguf *g, const char *key) {
    uint32_t slot = *names_slot(g, &g->kv_names, (struct fo_str){ key, strlen(key) });
    return slot ? &g->kv[slot - 1] : NULL;
}

size_t fo_gguf_n_tensors(const struct fo_gguf *g) {
    return g->n_tensors;
}

const struct fo_gguf_tensor *fo_gguf_tensor_at(const struct fo_gguf *g, size_t i) {
    return &g->tensors[i];
}

const struct fo_gguf_tensor *fo_gguf_tensor(const struct fo_gguf *g, const char *name) {
    uint32_t slot = *names_slot(g, &g->tensor_names, (struct fo_str){ name, strlen(name) });
    return slot ? &g->tensors[slot - 1] : NULL;
}
