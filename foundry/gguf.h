/* A model's description: its metadata and the directory of its tensors, wherever they came from (foundry/model_file.h opens any of the
 * forms). This header reads one file of GGUF v2 or v3 (the specification is docs/gguf.md of the ggml project): mapped and wholly checked
 * before use. After a successful open every offset, count, type, alignment, name and string length has been checked against the file's
 * size, so accessors cannot fail on bounds. At most 65,536 metadata entries and as many tensors are read (FO_ELIMIT); nested arrays are
 * not (FO_EUNSUPPORTED). Errors name the byte offset and the field. Opening costs time and memory linear in the header (at most 16 MB of
 * heap), never in a number the file claims. Immutable after open: any thread. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "foundry/tensor.h"

struct fo_err;
struct fo_map;
struct fo_gguf;

/* Value types as the format numbers them. */
enum fo_gguf_type {
    FO_GGUF_U8, FO_GGUF_I8, FO_GGUF_U16, FO_GGUF_I16, FO_GGUF_U32, FO_GGUF_I32, FO_GGUF_F32, FO_GGUF_BOOL,
    FO_GGUF_STRING, FO_GGUF_ARRAY, FO_GGUF_U64, FO_GGUF_I64, FO_GGUF_F64, FO_GGUF_N_TYPES
};

/* Text in the map: not NUL-terminated, not necessarily UTF-8. */
struct fo_str {
    const char *s;
    size_t len;
};

/* "u32", "array", ...: for messages. */
const char *fo_gguf_type_name(enum fo_gguf_type type);
/* Of one value; 0 where values have no fixed size (string, array). */
size_t fo_gguf_type_bytes(enum fo_gguf_type type);

/* A metadata entry, in file order. For an array `elem` is its element type, `n` its length, and `data` the first element in the
 * map (strings: a u64 length, then bytes, one after the other; walk them with fo_gguf_array_str). Any other type reads as an array
 * of one: elem is type, n is 1. */
struct fo_gguf_kv {
    struct fo_str key;
    enum fo_gguf_type type, elem;
    uint64_t n;
    const uint8_t *data;
    uint64_t bytes; /* of all elements together */
};

struct fo_gguf_tensor {
    struct fo_str name;
    struct fo_tensor t; /* data points into the map */
    uint64_t offset;    /* from the start of the file */
    uint64_t bytes;
    const struct fo_map *map; /* the file it lies in; NULL: memory of the fo_gguf's own, or of fo_gguf_parse's caller */
};

/* Takes a path. The file stays mapped until close. FO_EFORMAT (hostile or broken), FO_EUNSUPPORTED (version, a tensor type that
 * is no type), and what fo_map_open says. A type this build knows but cannot serve is NOT an error here (inspect must work):
 * the model's open refuses it. */
int fo_gguf_open(const char *path, struct fo_gguf **ret, struct fo_err *e);
/* Over bytes that the caller keeps (tests, fuzzers). `name` stands in errors. */
int fo_gguf_parse(const void *bytes, size_t n, const char *name, struct fo_gguf **ret, struct fo_err *e);
void fo_gguf_close(struct fo_gguf *g); /* NULL is allowed */

uint32_t fo_gguf_version(const struct fo_gguf *g);
uint64_t fo_gguf_alignment(const struct fo_gguf *g);
uint64_t fo_gguf_file_bytes(const struct fo_gguf *g); /* of all files together */
/* What the model was read from: "GGUF" or "safetensors" (foundry/model_file.h). */
const char *fo_gguf_format(const struct fo_gguf *g);
/* The guarded maps, i < n_files; none after fo_gguf_parse. */
size_t fo_gguf_n_files(const struct fo_gguf *g);
const struct fo_map *fo_gguf_file(const struct fo_gguf *g, size_t i);
/* fo_map_state of every one of them. */
int fo_gguf_state(const struct fo_gguf *g, struct fo_err *e);

size_t fo_gguf_n_kv(const struct fo_gguf *g);
const struct fo_gguf_kv *fo_gguf_kv_at(const struct fo_gguf *g, size_t i);
const struct fo_gguf_kv *fo_gguf_find(const struct fo_gguf *g, const char *key); /* NULL when absent; hashed */

size_t fo_gguf_n_tensors(const struct fo_gguf *g);
const struct fo_gguf_tensor *fo_gguf_tensor_at(const struct fo_gguf *g, size_t i);
const struct fo_gguf_tensor *fo_gguf_tensor(const struct fo_gguf *g, const char *name); /* NULL when absent; hashed */

/* Typed reads. Return FO_ENOENT when the key is absent, FO_EFORMAT when it has another type or the value does not fit (an integer
 * that is negative or too large, a float that is not finite); both name the key. Any integer type serves an integer read, any
 * number a float read. */
int fo_gguf_get_u64(const struct fo_gguf *g, const char *key, uint64_t *ret, struct fo_err *e);
int fo_gguf_get_u32(const struct fo_gguf *g, const char *key, uint32_t *ret, struct fo_err *e);
int fo_gguf_get_f32(const struct fo_gguf *g, const char *key, float *ret, struct fo_err *e);
int fo_gguf_get_bool(const struct fo_gguf *g, const char *key, bool *ret, struct fo_err *e);
int fo_gguf_get_str(const struct fo_gguf *g, const char *key, struct fo_str *ret, struct fo_err *e);

/* Walks an array of strings: *at is an opaque position, 0 at the start; false at the end. O(1) a step. */
bool fo_gguf_array_str(const struct fo_gguf_kv *kv, uint64_t *at, struct fo_str *ret);
/* Element i of a numeric array as a double or an integer (floats lose their fraction, what does not fit is clamped). 0 when i is
 * past the end or the element is no number, so a hostile type cannot lead astray; who must know looks at kv->elem. */
double fo_gguf_array_f64(const struct fo_gguf_kv *kv, uint64_t i);
int64_t fo_gguf_array_i64(const struct fo_gguf_kv *kv, uint64_t i);
