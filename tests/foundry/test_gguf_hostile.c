/* The GGUF reader on hostile and broken files: one file for each kind of attack that other readers were caught by (pains.md 78:
 * unbounded allocation; a file of 4 bytes; lengths, array types, dimensions, offsets and alignments that are not checked or
 * overflow; a file of a few bytes that hangs), seeded mutants, and every truncation. Each must be an error that names the offset and
 * the field, or a clean open, within 1 s and 16 MB. */
#include <glob.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "foundry/base/err.h"
#include "foundry/base/file.h"
#include "foundry/base/rng.h"
#include "foundry/gguf.h"
#include "tests/fuzz/fuzz_gguf.c"
#include "tests/support/alloc.h"
#include "tests/support/gguf_write.h"
#include "tests/support/tiny.h"

enum { MAX_HEAP_BYTES = 16 << 20 };

/* --- one file a kind of attack ---------------------------------------------------------------------------------------------- */

static void header(struct fo_buf *b, uint32_t version, uint64_t n_tensors, uint64_t n_kv) {
    fo_buf_puts(b, "GGUF");
    test_put_u32(b, version);
    test_put_u64(b, n_tensors);
    test_put_u64(b, n_kv);
}

static void zeros(struct fo_buf *b, size_t n) {
    while (n--) fo_buf_putc(b, 0);
}

static void key(struct fo_buf *b, const char *name, uint32_t type) {
    test_put_str(b, name);
    test_put_u32(b, type);
}

static void array(struct fo_buf *b, const char *name, uint32_t elem, uint64_t n) {
    key(b, name, FO_GGUF_ARRAY);
    test_put_u32(b, elem);
    test_put_u64(b, n);
}

static void tensor(struct fo_buf *b, const char *name, uint32_t n_dims, const uint64_t *dims, uint32_t type, uint64_t offset) {
    test_put_str(b, name);
    test_put_u32(b, n_dims);
    for (uint32_t i = 0; i < n_dims; i++) test_put_u64(b, dims[i]);
    test_put_u32(b, type);
    test_put_u64(b, offset);
}

#define D(...) ((const uint64_t[]){ __VA_ARGS__ })

static void empty(struct fo_buf *b) {
    (void)b;
}
static void four_bytes(struct fo_buf *b) {
    fo_buf_puts(b, "GGUF");
}
static void three_bytes(struct fo_buf *b) {
    fo_buf_puts(b, "GGU");
}
static void not_gguf(struct fo_buf *b) {
    fo_buf_puts(b, "ggml\x03");
    zeros(b, 60);
}
static void version_1(struct fo_buf *b) {
    header(b, 1, 0, 0);
}
static void version_4(struct fo_buf *b) {
    header(b, 4, 0, 0);
}
static void big_endian(struct fo_buf *b) {
    header(b, 0x03000000, 0, 0);
}
static void many_tensors(struct fo_buf *b) {
    header(b, 3, UINT64_MAX, 0);
    zeros(b, 64);
}
static void many_keys(struct fo_buf *b) {
    header(b, 3, 0, (uint64_t)1 << 60);
    zeros(b, 64);
}
static void forty_three_bytes(struct fo_buf *b) { /* as many keys as could be, all empty */
    header(b, 3, 0, 0x7FFFFFFFFFFFFFFF);
    zeros(b, 43 - 24);
}
static void key_past_the_end(struct fo_buf *b) {
    header(b, 3, 0, 1);
    test_put_u64(b, 1000);
    zeros(b, 64);
}
static void key_length_overflows(struct fo_buf *b) {
    header(b, 3, 0, 1);
    test_put_u64(b, UINT64_MAX - 7);
    zeros(b, 64);
}
static void empty_key(struct fo_buf *b) {
    header(b, 3, 0, 1);
    key(b, "", FO_GGUF_U8);
    zeros(b, 8);
}
static void key_with_nul(struct fo_buf *b) {
    header(b, 3, 0, 1);
    test_put_u64(b, 4);
    fo_buf_append(b, "a\0bc", 4);
    test_put_u32(b, FO_GGUF_U8);
    zeros(b, 8);
}
static void key_too_long(struct fo_buf *b) {
    header(b, 3, 0, 1);
    test_put_u64(b, 65536);
    for (int i = 0; i < 65536; i++) fo_buf_putc(b, 'k');
    test_put_u32(b, FO_GGUF_U8);
    zeros(b, 8);
}
static void key_twice(struct fo_buf *b) {
    header(b, 3, 0, 3);
    key(b, "first", FO_GGUF_U8), zeros(b, 1);
    key(b, "other", FO_GGUF_U8), zeros(b, 1);
    key(b, "first", FO_GGUF_U8), zeros(b, 1);
}
static void value_type(struct fo_buf *b) {
    header(b, 3, 0, 1);
    key(b, "k", 13);
    zeros(b, 64);
}
static void array_type(struct fo_buf *b) {
    header(b, 3, 0, 1);
    array(b, "k", 0xFFFFFFFF, 1);
    zeros(b, 64);
}
static void nested_array(struct fo_buf *b) {
    header(b, 3, 0, 1);
    array(b, "k", FO_GGUF_ARRAY, 1);
    zeros(b, 64);
}
static void array_past_the_end(struct fo_buf *b) {
    header(b, 3, 0, 1);
    array(b, "k", FO_GGUF_U32, (uint64_t)1 << 40);
    zeros(b, 64);
}
static void array_bytes_overflow(struct fo_buf *b) {
    header(b, 3, 0, 1);
    array(b, "k", FO_GGUF_U64, ((uint64_t)1 << 61) + 1); /* times 8 is 8 */
    zeros(b, 64);
}
static void strings_past_the_end(struct fo_buf *b) {
    header(b, 3, 0, 1);
    array(b, "tokenizer.ggml.tokens", FO_GGUF_STRING, (uint64_t)1 << 32);
    zeros(b, 64);
}
static void string_in_array_past_the_end(struct fo_buf *b) {
    header(b, 3, 0, 1);
    array(b, "tokenizer.ggml.tokens", FO_GGUF_STRING, 2);
    test_put_str(b, "ok");
    test_put_u64(b, 0x80000005); /* negative, had it been read as an int */
    zeros(b, 64);
}
static void string_value_past_the_end(struct fo_buf *b) {
    header(b, 3, 0, 1);
    key(b, "k", FO_GGUF_STRING);
    test_put_u64(b, 65);
    zeros(b, 64);
}
static void bool_of_2(struct fo_buf *b) {
    header(b, 3, 0, 1);
    key(b, "k", FO_GGUF_BOOL);
    fo_buf_putc(b, 2);
}
static void bools_of_255(struct fo_buf *b) {
    header(b, 3, 0, 1);
    array(b, "k", FO_GGUF_BOOL, 3);
    fo_buf_append(b, "\0\1\xFF", 3);
}
static void value_cut(struct fo_buf *b) {
    header(b, 3, 0, 1);
    key(b, "kkkk", FO_GGUF_U64);
    zeros(b, 3);
}
static void alignment_type(struct fo_buf *b) {
    header(b, 3, 0, 1);
    key(b, "general.alignment", FO_GGUF_STRING);
    test_put_str(b, "32");
}
static void alignment_is_an_array(struct fo_buf *b) {
    header(b, 3, 0, 1);
    array(b, "general.alignment", FO_GGUF_U32, 0);
}
static void alignment_0(struct fo_buf *b) {
    header(b, 3, 0, 1);
    key(b, "general.alignment", FO_GGUF_U32);
    test_put_u32(b, 0);
}
static void alignment_odd(struct fo_buf *b) {
    header(b, 3, 0, 1);
    key(b, "general.alignment", FO_GGUF_U32);
    test_put_u32(b, 12);
}
static void alignment_past_the_end(struct fo_buf *b) {
    header(b, 3, 1, 1);
    key(b, "general.alignment", FO_GGUF_U32);
    test_put_u32(b, 0xFFFFFFF8);
    tensor(b, "t", 1, D(4), FO_F32, 0);
    zeros(b, 64);
}
static void tensor_name_too_long(struct fo_buf *b) {
    header(b, 3, 1, 0);
    tensor(b, "12345678901234567890123456789012345678901234567890123456789012345", 1, D(4), FO_F32, 0);
    zeros(b, 64);
}
static void tensor_without_a_name(struct fo_buf *b) {
    header(b, 3, 1, 0);
    tensor(b, "", 1, D(4), FO_F32, 0);
    zeros(b, 64);
}
static void tensor_twice(struct fo_buf *b) {
    header(b, 3, 2, 0);
    tensor(b, "t", 1, D(4), FO_F32, 0);
    tensor(b, "t", 1, D(4), FO_F32, 32);
    zeros(b, 128);
}
static void five_dimensions(struct fo_buf *b) {
    header(b, 3, 1, 0);
    tensor(b, "t", 5, D(1, 1, 1, 1, 1), FO_F32, 0);
    zeros(b, 64);
}
static void many_dimensions(struct fo_buf *b) {
    header(b, 3, 1, 0);
    test_put_str(b, "t");
    test_put_u32(b, 0xFFFFFFFF);
    zeros(b, 64);
}
static void dimension_0(struct fo_buf *b) {
    header(b, 3, 1, 0);
    tensor(b, "t", 2, D(4, 0), FO_F32, 0);
    zeros(b, 64);
}
static void dimension_negative(struct fo_buf *b) {
    header(b, 3, 1, 0);
    tensor(b, "t", 2, D(4, (uint64_t)INT64_MIN), FO_F32, 0);
    zeros(b, 64);
}
static void dimensions_overflow(struct fo_buf *b) { /* 2^32 * 2^32 = 2^64, which wraps to 0 */
    header(b, 3, 1, 0);
    tensor(b, "t", 2, D((uint64_t)1 << 32, (uint64_t)1 << 32), FO_F32, 0);
    zeros(b, 64);
}
static void bytes_overflow(struct fo_buf *b) {
    header(b, 3, 1, 0);
    tensor(b, "t", 1, D((uint64_t)1 << 62), FO_F32, 0);
    zeros(b, 64);
}
static void tensor_type(struct fo_buf *b) {
    header(b, 3, 1, 0);
    tensor(b, "t", 1, D(4), 77, 0);
    zeros(b, 64);
}
static void tensor_type_withdrawn(struct fo_buf *b) {
    header(b, 3, 1, 0);
    tensor(b, "t", 1, D(32), 4, 0);
    zeros(b, 64);
}
static void row_not_of_whole_blocks(struct fo_buf *b) {
    header(b, 3, 1, 0);
    tensor(b, "t", 2, D(16, 2), FO_Q4_0, 0);
    zeros(b, 64);
}
static void offset_not_aligned(struct fo_buf *b) {
    header(b, 3, 1, 0);
    tensor(b, "t", 1, D(4), FO_F32, 8);
    zeros(b, 128);
}
static void offset_past_the_end(struct fo_buf *b) {
    header(b, 3, 1, 0);
    tensor(b, "t", 1, D(4), FO_F32, 1 << 20);
    zeros(b, 128);
}
static void offset_overflows(struct fo_buf *b) {
    header(b, 3, 1, 0);
    tensor(b, "t", 1, D(4), FO_F32, UINT64_MAX - 31);
    zeros(b, 128);
}
static void data_past_the_end(struct fo_buf *b) {
    header(b, 3, 1, 0);
    tensor(b, "t", 1, D(1024), FO_F32, 0);
    zeros(b, 128);
}
static void no_data_at_all(struct fo_buf *b) {
    header(b, 3, 1, 0);
    tensor(b, "t", 1, D(4), FO_F32, 0);
}
static void tensors_overlap(struct fo_buf *b) {
    header(b, 3, 3, 0);
    tensor(b, "c", 1, D(4), FO_F32, 96);
    tensor(b, "a", 1, D(24), FO_F32, 0);
    tensor(b, "b", 1, D(4), FO_F32, 64);
    zeros(b, 256);
}

static const struct {
    const char *name;
    void (*make)(struct fo_buf *b);
    enum fo_code code;
    const char *says; /* all of "a|b|c" stand in the message, in this order */
} attacks[] = {
    { "empty", empty, FO_EFORMAT, "offset 0|magic|ends here" },
    { "three bytes", three_bytes, FO_EFORMAT, "offset 0|magic|ends here" },
    { "four bytes", four_bytes, FO_EFORMAT, "offset 4|version|ends here, at 4" },
    { "not gguf", not_gguf, FO_EFORMAT, "offset 0|magic|67 67 6d 6c|no GGUF" },
    { "version 1", version_1, FO_EUNSUPPORTED, "offset 4|version|1" },
    { "version 4", version_4, FO_EUNSUPPORTED, "offset 4|version|4" },
    { "big endian", big_endian, FO_EUNSUPPORTED, "offset 4|version|big-endian" },
    { "many tensors", many_tensors, FO_EFORMAT, "offset 8|tensor count|18446744073709551615" },
    { "many keys", many_keys, FO_EFORMAT, "offset 16|metadata count|1152921504606846976" },
    { "43 bytes", forty_three_bytes, FO_EFORMAT, "offset 16|metadata count" },
    { "key past the end", key_past_the_end, FO_EFORMAT, "offset 24|metadata entry 0|key|1000 bytes where 64" },
    { "key length overflows", key_length_overflows, FO_EFORMAT, "offset 24|metadata entry 0|key" },
    { "empty key", empty_key, FO_EFORMAT, "offset 24|key|empty" },
    { "key with NUL", key_with_nul, FO_EFORMAT, "offset 24|key|NUL" },
    { "key too long", key_too_long, FO_EFORMAT, "offset 24|key|65536 bytes" },
    { "key twice", key_twice, FO_EFORMAT, "offset 60|metadata entry 2 'first'|metadata entry 0" },
    { "value type", value_type, FO_EFORMAT, "offset 33|'k'|type|13" },
    { "array type", array_type, FO_EFORMAT, "offset 37|'k'|element type|4294967295" },
    { "nested array", nested_array, FO_EUNSUPPORTED, "offset 37|'k'|element type|arrays of arrays" },
    { "array past the end", array_past_the_end, FO_EFORMAT, "offset 49|'k'|value|1099511627776 elements" },
    { "array bytes overflow", array_bytes_overflow, FO_EFORMAT, "offset 49|'k'|value|2305843009213693953 elements" },
    { "strings past the end", strings_past_the_end, FO_EFORMAT, "offset 69|tokens'|value|4294967296 strings" },
    { "string in array past the end", string_in_array_past_the_end, FO_EFORMAT, "offset 79|tokens'|string|2147483653 bytes" },
    { "string value past the end", string_value_past_the_end, FO_EFORMAT, "offset 37|'k'|65 bytes where 64" },
    { "bool of 2", bool_of_2, FO_EFORMAT, "offset 37|'k'|value|2 is no bool" },
    { "bools of 255", bools_of_255, FO_EFORMAT, "offset 51|'k'|value|255 is no bool" },
    { "value cut", value_cut, FO_EFORMAT, "offset 40|'kkkk'|value|1 elements of type u64 where 3" },
    { "alignment's type", alignment_type, FO_EFORMAT, "offset 53|general.alignment|must be u32, is string" },
    { "alignment is an array", alignment_is_an_array, FO_EFORMAT, "general.alignment|must be u32, is array" },
    { "alignment 0", alignment_0, FO_EFORMAT, "offset 53|general.alignment|0 is no multiple of 8" },
    { "alignment odd", alignment_odd, FO_EFORMAT, "offset 53|general.alignment|12 is no multiple of 8" },
    { "alignment past the end", alignment_past_the_end, FO_EFORMAT, "tensor 0 't'|data|truncated" },
    { "tensor name too long", tensor_name_too_long, FO_EFORMAT, "offset 24|tensor 0|name|65 bytes" },
    { "tensor without a name", tensor_without_a_name, FO_EFORMAT, "offset 24|tensor 0|name|empty" },
    { "tensor twice", tensor_twice, FO_EFORMAT, "offset 57|tensor 1 't'|tensor 0" },
    { "five dimensions", five_dimensions, FO_EFORMAT, "offset 33|tensor 0 't'|dimensions|5; at most 4" },
    { "many dimensions", many_dimensions, FO_EFORMAT, "offset 33|tensor 0 't'|dimensions|4294967295" },
    { "dimension 0", dimension_0, FO_EFORMAT, "offset 45|tensor 0 't'|dimension|0 as dimension 1" },
    { "dimension negative", dimension_negative, FO_EFORMAT, "offset 45|tensor 0 't'|dimension" },
    { "dimensions overflow", dimensions_overflow, FO_EFORMAT, "offset 45|tensor 0 't'|dimension|overflows" },
    { "bytes overflow", bytes_overflow, FO_EFORMAT, "offset 45|tensor 0 't'|type|overflows" },
    { "tensor type", tensor_type, FO_EUNSUPPORTED, "offset 45|tensor 0 't'|type|77" },
    { "tensor type withdrawn", tensor_type_withdrawn, FO_EUNSUPPORTED, "offset 45|tensor 0 't'|type|4" },
    { "row not of whole blocks", row_not_of_whole_blocks, FO_EFORMAT, "offset 53|tensor 0 't'|type|Q4_0|32|16" },
    { "offset not aligned", offset_not_aligned, FO_EFORMAT, "offset 49|tensor 0 't'|offset|8 is no multiple of the alignment, 32" },
    { "offset past the end", offset_past_the_end, FO_EFORMAT, "offset 64|tensor 0 't'|data|1048576|truncated" },
    { "offset overflows", offset_overflows, FO_EFORMAT, "offset 64|tensor 0 't'|data|truncated" },
    { "data past the end", data_past_the_end, FO_EFORMAT, "offset 64|tensor 0 't'|data|4096 bytes|truncated" },
    { "no data at all", no_data_at_all, FO_EFORMAT, "tensor 0 't'|data|16 bytes|truncated" },
    { "tensors overlap", tensors_overlap, FO_EFORMAT, "tensor 2 'b'|overlaps tensor 1 'a'" },
};

static double seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* Parses a copy of exactly that size (the sanitizer sees a read past it) within the limits; walks what opens. */
static int parse_within_limits(const void *bytes, size_t n, const char *name, struct fo_err *e) {
    uint8_t *copy = malloc(n ? n : 1);
    struct fo_gguf *g;
    assert_non_null(copy);
    if (n) memcpy(copy, bytes, n);
    e->code = FO_OK;
    test_fail_alloc(0);
    double start = seconds();
    int rc = fo_gguf_parse(copy, n, name, &g, e);
    double took = seconds() - start;
    size_t heap = test_alloc_bytes();
    if (took > 1) fail_msg("%s took %.2f s", name, took);
    if (heap > MAX_HEAP_BYTES) fail_msg("%s took %zu bytes of heap", name, heap);
    if (rc == 0) {
        uint64_t sum = walk(g);
        __asm__ volatile("" : : "r"(sum));
        fo_gguf_close(g);
    } else if (e->code != (enum fo_code)rc || !strstr(e->msg, "offset ")) {
        fail_msg("%s: the refusal lacks its offset: %s", name, e->msg);
    }
    free(copy);
    return rc;
}

static void every_kind_of_attack_is_refused_with_offset_and_field(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof attacks / sizeof *attacks; i++) {
        struct fo_buf b;
        struct fo_err e;
        fo_buf_init(&b, 1 << 20);
        attacks[i].make(&b);
        assert_false(b.failed);
        int rc = parse_within_limits(b.data, b.len, attacks[i].name, &e);
        if (rc != (int)attacks[i].code) fail_msg("%s: %s, expected %s", attacks[i].name, rc ? e.msg : "opened", fo_code_name(attacks[i].code));
        const char *at = e.msg + strlen(attacks[i].name);
        char says[128];
        snprintf(says, sizeof says, "%s", attacks[i].says);
        for (char *part = says, *next; part; part = next) {
            next = strchr(part, '|');
            if (next) *next++ = '\0';
            const char *found = strstr(at, part);
            if (!found) fail_msg("'%s' does not say \"%s\" there", e.msg, part);
            at = found + strlen(part);
        }
        fo_buf_done(&b);
    }
}

/* --- limits ----------------------------------------------------------------------------------------------------------------- */

static void the_most_entries_open_within_16_mb_and_one_more_is_refused(void **state) {
    (void)state;
    for (uint64_t extra = 0; extra < 2; extra++) {
        uint64_t n = 65536 + extra;
        struct fo_buf b;
        struct fo_err e;
        fo_buf_init(&b, 16 << 20);
        header(&b, 3, 65536, n);
        for (uint64_t i = 0; i < n; i++) {
            char name[32];
            snprintf(name, sizeof name, "k%llu", (unsigned long long)i);
            key(&b, name, FO_GGUF_U8);
            fo_buf_putc(&b, 1);
        }
        for (uint64_t i = 0; i < 65536; i++) { /* in reverse order, so that the index is made */
            char name[32];
            snprintf(name, sizeof name, "t%llu", (unsigned long long)i);
            tensor(&b, name, 1, D(8), FO_F32, (65535 - i) * 32);
        }
        zeros(&b, 65536 * 32 + 32);
        assert_false(b.failed);
        int rc = parse_within_limits(b.data, b.len, "many", &e);
        assert_int_equal(rc, extra ? FO_ELIMIT : FO_OK);
        if (extra) assert_true(e.need == 65537 && e.have == 65536);
        fo_buf_done(&b);
    }
}

static void a_long_path_and_a_hostile_name_leave_the_reason_in_the_message(void **state) {
    (void)state;
    struct fo_buf b;
    struct fo_err e;
    char path[1200];
    memset(path, 'p', sizeof path);
    memcpy(path + sizeof path - 6, ".gguf", 6);
    fo_buf_init(&b, 1 << 10);
    header(&b, 3, 1, 0);
    tensor(&b, "\x1b[31m\n\xFF\xC3", 1, D(4), 77, 0);
    zeros(&b, 64);
    assert_int_equal(parse_within_limits(b.data, b.len, path, &e), FO_EUNSUPPORTED);
    assert_non_null(strstr(e.msg, "pp.gguf: offset 52: tensor 0 '?[31m?" "?" "?': type: 77 is no tensor type"));
    fo_buf_done(&b);
}

/* --- truncation and mutants --------------------------------------------------------------------------------------------------- */

/* A small file with every kind of field. */
static void sample(struct fo_buf *ret) {
    static const char *const words[] = { "a", "", "ccc" };
    static const int32_t ints[] = { 1, 2, 3 };
    static const float data[64] = { 1 };
    struct test_gguf w;
    test_gguf_init(&w, 3);
    test_gguf_u32(&w, "general.alignment", 64);
    test_gguf_str(&w, "general.architecture", "llama");
    test_gguf_strs(&w, "words", words, 3);
    test_gguf_i32s(&w, "ints", ints, 3);
    test_gguf_bool(&w, "yes", true);
    test_gguf_f64(&w, "pi", 3.14);
    test_gguf_tensor(&w, "t", FO_F32, D(8, 8), 2, data, sizeof data);
    test_gguf_tensor(&w, "u", FO_Q8_0, D(32), 1, data, 34);
    assert_true(test_gguf_finish(&w, ret));
}

static void every_truncation_is_an_error(void **state) {
    (void)state;
    struct fo_buf b;
    struct fo_err e;
    sample(&b);
    assert_int_equal(parse_within_limits(b.data, b.len, "whole", &e), 0);
    for (size_t n = 0; n < b.len; n++)
        if (parse_within_limits(b.data, n, "cut", &e) != FO_EFORMAT) fail_msg("cut to %zu of %zu bytes it opens", n, b.len);
    fo_buf_done(&b);
}

static const uint64_t interesting[] = {
    0, 1, 2, 7, 8, 9, 31, 32, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 0x10000, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, (uint64_t)1 << 32,
    (uint64_t)1 << 60, (uint64_t)1 << 61, INT64_MAX, (uint64_t)1 << 63, UINT64_MAX - 7, UINT64_MAX,
};

/* Changes `file` in one to four ways, all at `from` or later. */
static void mutate(struct fo_rng *r, uint8_t *file, size_t *len, size_t from, size_t to) {
    int n = 1 + (int)(fo_rng_u64(r) % 4);
    for (int i = 0; i < n && *len > from + 16; i++) {
        size_t end = to < *len ? to : *len, at = from + (size_t)(fo_rng_u64(r) % (end - from));
        uint64_t v = interesting[fo_rng_u64(r) % (sizeof interesting / sizeof *interesting)];
        size_t room = *len - at, k = 1 + (size_t)(fo_rng_u64(r) % 16);
        switch (fo_rng_u64(r) % 7) {
        case 0: file[at] ^= (uint8_t)(1u << fo_rng_u64(r) % 8); break;
        case 1: file[at] = (uint8_t)fo_rng_u64(r); break;
        case 2: memcpy(file + at, &v, room < 4 ? room : 4); break;
        case 3: memcpy(file + at, &v, room < 8 ? room : 8); break;
        case 4: *len = at; break; /* cut */
        case 5:                   /* a piece is missing */
            k = k < room ? k : room;
            memmove(file + at, file + at + k, room - k);
            *len -= k;
            break;
        case 6: /* a piece stands where another was */
            k = k < room ? k : room;
            memmove(file + at, file + from + (size_t)(fo_rng_u64(r) % (*len - from - k + 1)), k);
            break;
        }
    }
}

/* Half of the mutants keep the first 24 bytes, so that what comes after them is reached. */
static void a_thousand_mutants_are_refused_or_open_cleanly(void **state) {
    (void)state;
    struct test_tiny t = test_tiny_default();
    struct fo_buf small, model;
    struct fo_err e;
    struct fo_rng r;
    int n_refused = 0, n_opened = 0;
    sample(&small);
    t.n_embd = 32;
    t.n_ff = 32;
    t.n_head = 2;
    t.n_head_kv = 1;
    t.chat_template = test_tiny_chatml();
    assert_int_equal(test_tiny_build(&t, &model, &e), 0);
    fo_rng_seed(&r, 78);
    uint8_t *file = malloc(model.len);
    assert_non_null(file);
    for (int i = 0; i < 1000; i++) {
        const struct fo_buf *from = i % 4 < 2 ? &small : &model;
        size_t len = from->len, data_at = i % 4 < 2 ? 400 : 16000; /* mostly the directory: data has nothing to parse */
        char name[32];
        memcpy(file, from->data, len);
        mutate(&r, file, &len, i % 2 ? 24 : 0, data_at);
        snprintf(name, sizeof name, "mutant %d", i);
        if (parse_within_limits(file, len, name, &e)) n_refused++;
        else n_opened++;
    }
    free(file);
    fo_buf_done(&small);
    fo_buf_done(&model);
    if (n_refused < 400 || n_opened < 50) fail_msg("%d refused, %d opened: these mutants prove little", n_refused, n_opened);
}

static void the_fuzzers_seeds_pass(void **state) {
    (void)state;
    glob_t found;
    assert_int_equal(glob("tests/data/gguf/*.gguf", 0, NULL, &found), 0);
    assert_true(found.gl_pathc >= 5);
    for (size_t i = 0; i < found.gl_pathc; i++) {
        char *data;
        size_t len;
        struct fo_err e;
        if (fo_file_read(found.gl_pathv[i], 1 << 20, &data, &len, &e)) fail_msg("%s", e.msg);
        LLVMFuzzerTestOneInput((const uint8_t *)data, len);
        parse_within_limits(data, len, found.gl_pathv[i], &e);
        free(data);
    }
    globfree(&found);
}

int main(int argc, char **argv) {
    if (argc == 3 && strcmp(argv[1], "--write") == 0) { /* makes the seeds again: --write tests/data/gguf */
        for (size_t i = 0; i <= sizeof attacks / sizeof *attacks; i++) {
            struct fo_buf b;
            char path[256];
            bool whole = i == sizeof attacks / sizeof *attacks;
            fo_buf_init(&b, 1 << 20);
            if (whole) sample(&b);
            else attacks[i].make(&b);
            snprintf(path, sizeof path, "%s/%s.gguf", argv[2], whole ? "whole" : attacks[i].name);
            for (char *p = path + strlen(argv[2]); *p; p++)
                if (*p == ' ' || *p == '\'') *p = '-';
            FILE *f = b.len <= 4096 ? fopen(path, "wb") : NULL;
            if (f) fwrite(fo_buf_str(&b), 1, b.len, f), fclose(f);
            fo_buf_done(&b);
        }
        return 0;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_kind_of_attack_is_refused_with_offset_and_field),
        cmocka_unit_test(the_most_entries_open_within_16_mb_and_one_more_is_refused),
        cmocka_unit_test(a_long_path_and_a_hostile_name_leave_the_reason_in_the_message),
        cmocka_unit_test(every_truncation_is_an_error),
        cmocka_unit_test(a_thousand_mutants_are_refused_or_open_cleanly),
        cmocka_unit_test(the_fuzzers_seeds_pass),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
