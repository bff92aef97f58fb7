/* Typed reads of GGUF metadata, over the public interface of gguf.h alone. Values are copied out of the map byte by byte: they
 * have no alignment there. */
#include <math.h>
#include <string.h>

#include "foundry/base/err.h"
#include "foundry/gguf.h"

/* A number in the widest form of its kind. */
struct number {
    enum { NONE, SIGNED, UNSIGNED, REAL } kind;
    int64_t i;
    uint64_t u;
    double f;
};

#define CASE(type_id, type, number_kind, field)                      \
    case type_id: {                                                  \
        type v;                                                      \
        memcpy(&v, kv->data + at * sizeof v, sizeof v);              \
        return (struct number){ .kind = number_kind, .field = v };   \
    }

/* Element `at` of a scalar or an array; kind NONE when it is no number or past the end. */
static struct number number_at(const struct fo_gguf_kv *kv, uint64_t at) {
    if (at >= kv->n) return (struct number){ .kind = NONE };
    switch (kv->elem) {
        CASE(FO_GGUF_U8, uint8_t, UNSIGNED, u)
        CASE(FO_GGUF_U16, uint16_t, UNSIGNED, u)
        CASE(FO_GGUF_U32, uint32_t, UNSIGNED, u)
        CASE(FO_GGUF_U64, uint64_t, UNSIGNED, u)
        CASE(FO_GGUF_BOOL, uint8_t, UNSIGNED, u)
        CASE(FO_GGUF_I8, int8_t, SIGNED, i)
        CASE(FO_GGUF_I16, int16_t, SIGNED, i)
        CASE(FO_GGUF_I32, int32_t, SIGNED, i)
        CASE(FO_GGUF_I64, int64_t, SIGNED, i)
        CASE(FO_GGUF_F64, double, REAL, f)
    case FO_GGUF_F32: {
        float v;
        memcpy(&v, kv->data + at * sizeof v, sizeof v);
        return (struct number){ .kind = REAL, .f = (double)v };
    }
    case FO_GGUF_STRING:
    case FO_GGUF_ARRAY:
    case FO_GGUF_N_TYPES: break;
    }
    return (struct number){ .kind = NONE };
}

/* The entry of a key that must hold one value (not an array). */
static const struct fo_gguf_kv *scalar(const struct fo_gguf *g, const char *key, const char *wanted, struct fo_err *e) {
    const struct fo_gguf_kv *kv = fo_gguf_find(g, key);
    if (!kv) fo_fail(e, FO_ENOENT, "metadata key '%s' is missing", key);
    else if (kv->type == FO_GGUF_ARRAY) fo_fail(e, FO_EFORMAT, "metadata key '%s' must be %s, is an array", key, wanted);
    else return kv;
    return NULL;
}

static int mismatch(const struct fo_gguf_kv *kv, const char *key, const char *wanted, struct fo_err *e) {
    return (int)fo_fail(e, FO_EFORMAT, "metadata key '%s' must be %s, is %s", key, wanted, fo_gguf_type_name(kv->type));
}

static int get_unsigned(const struct fo_gguf *g, const char *key, uint64_t max, uint64_t *ret, struct fo_err *e) {
    const struct fo_gguf_kv *kv = scalar(g, key, "an integer", e);
    if (!kv) return (int)e->code;
    struct number v = number_at(kv, 0);
    if (kv->type == FO_GGUF_BOOL || (v.kind != SIGNED && v.kind != UNSIGNED)) return mismatch(kv, key, "an integer", e);
    if (v.kind == SIGNED && v.i < 0) return (int)fo_fail(e, FO_EFORMAT, "metadata key '%s' is negative (%lld)", key, (long long)v.i);
    uint64_t u = v.kind == SIGNED ? (uint64_t)v.i : v.u;
    if (u > max)
        return (int)fo_fail_need(e, FO_EFORMAT, u, max, "metadata key '%s' is too large (%llu, at most %llu)", key, (unsigned long long)u,
                                 (unsigned long long)max);
    *ret = u;
    return FO_OK;
}

int fo_gguf_get_u64(const struct fo_gguf *g, const char *key, uint64_t *ret, struct fo_err *e) {
    return get_unsigned(g, key, UINT64_MAX, ret, e);
}

int fo_gguf_get_u32(const struct fo_gguf *g, const char *key, uint32_t *ret, struct fo_err *e) {
    uint64_t v = 0;
    int rc = get_unsigned(g, key, UINT32_MAX, &v, e);
    if (!rc) *ret = (uint32_t)v;
    return rc;
}

static double real_of(struct number v) {
    return v.kind == REAL ? v.f : v.kind == SIGNED ? (double)v.i : (double)v.u;
}

int fo_gguf_get_f32(const struct fo_gguf *g, const char *key, float *ret, struct fo_err *e) {
    const struct fo_gguf_kv *kv = scalar(g, key, "a number", e);
    if (!kv) return (int)e->code;
    struct number v = number_at(kv, 0);
    if (kv->type == FO_GGUF_BOOL || v.kind == NONE) return mismatch(kv, key, "a number", e);
    float f = (float)real_of(v);
    if (!isfinite(f)) return (int)fo_fail(e, FO_EFORMAT, "metadata key '%s' is no finite float32 (%g)", key, real_of(v));
    *ret = f;
    return FO_OK;
}

int fo_gguf_get_bool(const struct fo_gguf *g, const char *key, bool *ret, struct fo_err *e) {
    const struct fo_gguf_kv *kv = scalar(g, key, "a bool", e);
    if (!kv) return (int)e->code;
    if (kv->type != FO_GGUF_BOOL) return mismatch(kv, key, "a bool", e);
    *ret = *kv->data != 0;
    return FO_OK;
}

int fo_gguf_get_str(const struct fo_gguf *g, const char *key, struct fo_str *ret, struct fo_err *e) {
    const struct fo_gguf_kv *kv = scalar(g, key, "a string", e);
    if (!kv) return (int)e->code;
    if (kv->type != FO_GGUF_STRING) return mismatch(kv, key, "a string", e);
    uint64_t at = 0;
    if (!fo_gguf_array_str(kv, &at, ret)) return (int)fo_fail(e, FO_ELOST, "metadata key '%s' changed in the file under us", key);
    return FO_OK;
}

bool fo_gguf_array_str(const struct fo_gguf_kv *kv, uint64_t *at, struct fo_str *ret) {
    uint64_t len, left = kv->bytes - *at;
    if (kv->elem != FO_GGUF_STRING || *at > kv->bytes || left < sizeof len) return false;
    memcpy(&len, kv->data + *at, sizeof len);
    if (len > left - sizeof len) return false; /* checked at open: somebody writes to the file now */
    *ret = (struct fo_str){ (const char *)kv->data + *at + sizeof len, (size_t)len };
    *at += sizeof len + len;
    return true;
}

double fo_gguf_array_f64(const struct fo_gguf_kv *kv, uint64_t i) {
    return real_of(number_at(kv, i));
}

int64_t fo_gguf_array_i64(const struct fo_gguf_kv *kv, uint64_t i) {
    struct number v = number_at(kv, i);
    if (v.kind == SIGNED) return v.i;
    if (v.kind == UNSIGNED) return v.u > INT64_MAX ? INT64_MAX : (int64_t)v.u;
    if (v.kind == REAL && v.f >= 0x1p63) return INT64_MAX;
    if (v.kind == REAL && v.f >= -0x1p63) return (int64_t)v.f;
    return v.kind == REAL && v.f < 0 ? INT64_MIN : 0;
}
