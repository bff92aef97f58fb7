/* The safetensors reader on good, hostile and broken files. */
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
#include "foundry/safetensors.h"
#include "tests/fuzz/fuzz_safetensors.c"
#include "tests/support/alloc.h"
#include "tests/support/hf.h"

struct seen {
    int n, stop_at; /* stop_at: a failure at that tensor; 0 = none */
    char names[8][64];
    struct fo_safetensor t[8];
};

static int see(void *ctx, const struct fo_safetensor *t, struct fo_err *e) {
    struct seen *s = ctx;
    if (s->n < 8) {
        snprintf(s->names[s->n], sizeof s->names[0], "%.63s", t->name);
        s->t[s->n] = *t;
    }
    s->n++;
    return s->n == s->stop_at ? (int)fo_fail(e, FO_ELOST, "stopped at %s", t->name) : FO_OK;
}

static const uint16_t halves[] = { 0x3F80, 0x4000, 0x4040, 0x4080, 0x40A0, 0x40C0 };
static const float floats[] = { 1, 2, 3, 4 };

/* Three tensors of 12, 8 and 16 bytes. */
static void sample(struct test_st *w) {
    test_st_init(w);
    test_st_member(w, "\"__metadata__\":{\"format\":\"pt\",\"nested\":\"{[\\\"\"}");
    test_st_add(w, "first", "BF16", (const uint64_t[]){ 2, 3 }, 2, halves, 12);
    test_st_add(w, "second", "F16", (const uint64_t[]){ 4 }, 1, halves, 8);
    test_st_add(w, "third", "F32", (const uint64_t[]){ 1, 2, 1, 2 }, 4, floats, 16);
}

static void reads_names_types_shapes_and_places(void **state) {
    (void)state;
    struct test_st w;
    struct fo_buf b;
    struct fo_err e;
    for (unsigned odd = 0; odd < 4; odd++) {
        struct seen s = { .n = 0 };
        sample(&w);
        w.odd = odd;
        test_st_finish(&w, &b);
        if (fo_safetensors_read(b.data, b.len, "sample", see, &s, &e)) fail_msg("%s", e.msg);
        assert_int_equal(s.n, 3);
        assert_string_equal(s.names[0], "first");
        assert_int_equal(s.t[0].t.type, FO_BF16);
        assert_true(s.t[0].t.ne[0] == 3 && s.t[0].t.ne[1] == 2 && s.t[0].t.ne[2] == 1 && s.t[0].t.ne[3] == 1);
        assert_int_equal(s.t[0].bytes, 12);
        assert_string_equal(s.names[1], "second");
        assert_int_equal(s.t[1].t.type, FO_F16);
        assert_true(s.t[1].t.ne[0] == 4 && s.t[1].t.ne[1] == 1);
        assert_int_equal(s.t[2].t.type, FO_F32);
        assert_true(s.t[2].t.ne[0] == 2 && s.t[2].t.ne[1] == 1 && s.t[2].t.ne[2] == 2 && s.t[2].t.ne[3] == 1);
        assert_memory_equal(s.t[2].t.data, floats, 16);
        for (int i = 0; i < 3; i++) assert_ptr_equal(s.t[i].t.data, b.data + s.t[i].offset);
        assert_int_equal(s.t[2].offset + 16, b.len);
        s = (struct seen){ .stop_at = 2 };
        assert_int_equal(fo_safetensors_read(b.data, b.len, "sample", see, &s, &e), FO_ELOST);
        assert_string_equal(e.msg, "stopped at second");
        assert_int_equal(s.n, 2);
        fo_buf_done(&b);
    }
}

static void a_scalar_and_a_file_without_tensors_are_read(void **state) {
    (void)state;
    struct test_st w;
    struct fo_buf b;
    struct fo_err e;
    struct seen s = { .n = 0 };
    test_st_init(&w);
    test_st_add(&w, "one \\u00e9\\n", "F32", NULL, 0, floats, 4);
    test_st_finish(&w, &b);
    assert_int_equal(fo_safetensors_read(b.data, b.len, "one", see, &s, &e), FO_OK);
    assert_true(s.n == 1 && s.t[0].t.ne[0] == 1 && s.t[0].bytes == 4);
    assert_string_equal(s.names[0], "one \xC3\xA9\n");
    fo_buf_done(&b);
    s.n = 0;
    assert_int_equal(fo_safetensors_read("\x02\0\0\0\0\0\0\0{}", 10, "none", see, &s, &e), FO_OK);
    assert_int_equal(s.n, 0);
}

/* --- hostile --- */

/* Whole headers. `data`: bytes of data behind it. */
static const struct {
    const char *name, *header;
    size_t data;
    enum fo_code code;
    const char *says; /* parts in order, by '|' */
} attacks[] = {
    { "not an object", "[]", 0, FO_EFORMAT, "offset 8|expected an object" },
    { "nothing", "", 0, FO_EFORMAT, "offset 8|expected an object" },
    { "unclosed", "{", 0, FO_EFORMAT, "offset 9|expected a text" },
    { "more behind", "{} x", 0, FO_EFORMAT, "offset 11|more text" },
    { "a trailing comma", "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},}", 4, FO_EFORMAT, "an element is missing" },
    { "a name that is no text", "{a:{}}", 0, FO_EFORMAT, "offset 9|expected a text" },
    { "no name", "{\"\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4, FO_EFORMAT, "a tensor without a name" },
    { "a NUL in a name", "{\"a\\u0000\":{}}", 0, FO_EFORMAT, "a NUL" },
    { "a surrogate in a name", "{\"a\\ud83d\\ude00\":{}}", 0, FO_EFORMAT, "a surrogate" },
    { "a bad escape", "{\"a\\x\":{}}", 0, FO_EFORMAT, "no such escape" },
    { "a control character in a name", "{\"a\n\":{}}", 0, FO_EFORMAT, "a control character" },
    { "an entry that is no object", "{\"a\":7}", 0, FO_EFORMAT, "offset 13|expected an object" },
    { "no type", "{\"a\":{\"shape\":[1],\"data_offsets\":[0,4]}}", 4, FO_EFORMAT, "tensor a|dtype is missing" },
    { "no shape", "{\"a\":{\"dtype\":\"F32\",\"data_offsets\":[0,4]}}", 4, FO_EFORMAT, "tensor a|shape is missing" },
    { "no offsets", "{\"a\":{\"dtype\":\"F32\",\"shape\":[1]}}", 4, FO_EFORMAT, "tensor a|data_offsets are not two" },
    { "one offset", "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4]}}", 4, FO_EFORMAT, "tensor a|data_offsets are not two" },
    { "three offsets", "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4,4]}}", 4, FO_EFORMAT, "tensor a|more than 2 numbers" },
    { "a type twice", "{\"a\":{\"dtype\":\"F32\",\"dtype\":\"F16\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4, FO_EFORMAT, "tensor a|dtype is there twice" },
    { "a shape twice", "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"shape\":[1],\"data_offsets\":[0,4]}}", 4, FO_EFORMAT, "tensor a|shape is there twice" },
    { "five dimensions", "{\"a\":{\"dtype\":\"F32\",\"shape\":[1,1,1,1,1],\"data_offsets\":[0,4]}}", 4, FO_EFORMAT, "tensor a|more than 4 numbers" },
    { "a dimension of 0", "{\"a\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[0,0]}}", 0, FO_EFORMAT, "tensor a|a dimension of 0" },
    { "a negative dimension", "{\"a\":{\"dtype\":\"F32\",\"shape\":[-1],\"data_offsets\":[0,4]}}", 4, FO_EFORMAT, "expected a whole number" },
    { "a fraction", "{\"a\":{\"dtype\":\"F32\",\"shape\":[1.0],\"data_offsets\":[0,4]}}", 4, FO_EFORMAT, "expected a whole number" },
    { "a number past 64 bits", "{\"a\":{\"dtype\":\"F32\",\"shape\":[18446744073709551616],\"data_offsets\":[0,4]}}", 4, FO_EFORMAT, "too large" },
    { "a number with a leading 0", "{\"a\":{\"dtype\":\"F32\",\"shape\":[01],\"data_offsets\":[0,4]}}", 4, FO_EFORMAT, "must not begin with 0" },
    { "dimensions that overflow", "{\"a\":{\"dtype\":\"F32\",\"shape\":[4294967296,4294967296],\"data_offsets\":[0,0]}}", 0, FO_EFORMAT, "tensor a|overflows" },
    { "bytes that overflow", "{\"a\":{\"dtype\":\"F32\",\"shape\":[4611686018427387904],\"data_offsets\":[0,0]}}", 0, FO_EFORMAT, "tensor a|" },
    { "past the end", "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 7, FO_EFORMAT, "tensor a|[0, 8]|7 bytes|truncated?" },
    { "backwards", "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,0]}}", 4, FO_EFORMAT, "tensor a|[4, 0]" },
    { "too many bytes for its shape", "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,8]}}", 8, FO_EFORMAT, "tensor a|needs 4 bytes|give 8" },
    { "an overlap", "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},\"b\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}", 8, FO_EFORMAT,
      "bytes at 4|two tensors" },
    { "a gap", "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},\"b\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[8,12]}}", 12, FO_EFORMAT,
      "bytes at 4|no tensor" },
    { "bytes behind the last", "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 9, FO_EFORMAT, "9 bytes of data|end at 4" },
    { "doubles", "{\"a\":{\"dtype\":\"F64\",\"shape\":[1],\"data_offsets\":[0,8]}}", 8, FO_EUNSUPPORTED, "tensor a has the type F64|F32, F16, BF16" },
    { "eight bits", "{\"w\":{\"dtype\":\"F8_E4M3\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1, FO_EUNSUPPORTED, "tensor w has the type F8_E4M3" },
    { "a type that no terminal should see", "{\"a\":{\"dtype\":\"\\u001b[2J\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1, FO_EFORMAT, "no name of a type" },
    { "brackets without end", "{\"__metadata__\":[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[", 0, FO_EFORMAT, "nested too deeply" },
    { "metadata that is no value", "{\"__metadata__\":x}", 0, FO_EFORMAT, "expected a value" },
    { "metadata that closes otherwise", "{\"__metadata__\":{\"a\":[1}]}", 0, FO_EFORMAT, "expected ',' or ']'" },
    { "metadata without a colon", "{\"__metadata__\":{\"a\" 1}}", 0, FO_EFORMAT, "expected ':'" },
    { "metadata without an end", "{\"__metadata__\":\"a", 0, FO_EFORMAT, "ends within quotes" },
};

static void attack(size_t i, struct fo_buf *b) {
    uint64_t n = strlen(attacks[i].header);
    fo_buf_init(b, 1 << 16);
    fo_buf_append(b, &n, sizeof n);
    fo_buf_puts(b, attacks[i].header);
    for (size_t k = 0; k < attacks[i].data; k++) fo_buf_putc(b, 'd');
}

/* In memory of its own size, so that a sanitizer sees the first byte read past it; within the limits of time and heap. */
static int read_within_limits(const void *bytes, size_t n, const char *name, struct fo_err *e) {
    struct seen s = { .n = 0 };
    struct timespec a, b;
    void *copy = malloc(n ? n : 1);
    assert_non_null(copy);
    if (n) memcpy(copy, bytes, n);
    test_fail_alloc(0);
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &a);
    int rc = fo_safetensors_read(copy, n, name, see, &s, e);
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &b);
    assert_true(test_alloc_bytes() <= 16 << 20);
    assert_true((b.tv_sec - a.tv_sec) + 1e-9 * (double)(b.tv_nsec - a.tv_nsec) < 1.0);
    free(copy);
    return rc;
}

static void every_lie_of_a_header_is_refused_with_its_reason(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof attacks / sizeof *attacks; i++) {
        struct fo_buf b;
        struct fo_err e = { .msg = "" };
        attack(i, &b);
        int rc = read_within_limits(b.data, b.len, "x.safetensors", &e);
        if (rc != (int)attacks[i].code) fail_msg("%s: %s, expected %s", attacks[i].name, rc ? e.msg : "read", fo_code_name(attacks[i].code));
        if (rc && strncmp(e.msg, "x.safetensors: ", 15) != 0) fail_msg("'%s' does not name the file", e.msg);
        char says[128];
        const char *at = e.msg;
        snprintf(says, sizeof says, "%s", attacks[i].says);
        for (char *part = says, *next; part; part = next) {
            next = strchr(part, '|');
            if (next) *next++ = '\0';
            const char *found = strstr(at, part);
            if (!found) fail_msg("%s: '%s' does not say \"%s\" there", attacks[i].name, e.msg, part);
            at = found + strlen(part);
        }
        fo_buf_done(&b);
    }
}

static void a_header_longer_than_its_file_or_the_limit_is_refused(void **state) {
    (void)state;
    struct fo_err e;
    for (size_t n = 0; n < 8; n++) assert_int_equal(read_within_limits("\x02\0\0\0\0\0\0\0", n, "x", &e), FO_EFORMAT);
    assert_non_null(strstr(e.msg, "7 bytes are no safetensors file"));
    assert_int_equal(read_within_limits("\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF{}", 10, "x", &e), FO_EFORMAT);
    assert_non_null(strstr(e.msg, "18446744073709551615 bytes where 2 follow"));
    size_t size = (64 << 20) + 1;
    char *big = calloc(1, size + 8);
    uint64_t claim = size;
    struct seen s = { .n = 0 };
    assert_non_null(big);
    memcpy(big, &claim, 8);
    assert_int_equal(fo_safetensors_read(big, size + 8, "x", see, &s, &e), FO_ELIMIT);
    assert_true(e.need == size && e.have == size - 1);
    free(big);
}

static void the_most_tensors_are_read_within_16_mb_and_one_more_is_refused(void **state) {
    (void)state;
    for (int extra = 0; extra < 2; extra++) {
        struct test_st w;
        struct fo_buf b;
        struct fo_err e;
        char name[32];
        test_st_init(&w);
        for (int i = 0; i < 65536 + extra; i++) {
            snprintf(name, sizeof name, "t%d", i);
            test_st_add(&w, name, "F16", (const uint64_t[]){ 1 }, 1, halves, 2);
        }
        test_st_finish(&w, &b);
        assert_int_equal(read_within_limits(b.data, b.len, "many", &e), extra ? FO_ELIMIT : FO_OK);
        fo_buf_done(&b);
    }
}

static void a_thousand_mutants_are_refused_or_read(void **state) {
    (void)state;
    struct test_st w;
    struct fo_buf good;
    struct fo_err e;
    struct fo_rng rng;
    int n_refused = 0;
    sample(&w);
    test_st_finish(&w, &good);
    fo_rng_seed(&rng, 5);
    char *bytes = malloc(good.len);
    assert_non_null(bytes);
    for (int i = 0; i < 1000; i++) {
        size_t n = good.len;
        memcpy(bytes, good.data, n);
        switch (fo_rng_u64(&rng) % 4) {
        case 0: n = (size_t)(fo_rng_u64(&rng) % n); break;
        case 1: bytes[fo_rng_u64(&rng) % 8] = (char)fo_rng_u64(&rng); break;
        case 2:
            for (int k = 0; k < 3; k++) bytes[8 + fo_rng_u64(&rng) % (n - 44)] = "{}[]\",:0189eF-"[fo_rng_u64(&rng) % 14];
            break;
        default: bytes[fo_rng_u64(&rng) % n] ^= (char)(1 << fo_rng_u64(&rng) % 8); break;
        }
        n_refused += read_within_limits(bytes, n, "mutant", &e) != FO_OK;
    }
    assert_true(n_refused > 500 && n_refused < 1000);
    free(bytes);
    fo_buf_done(&good);
}

static void every_failing_allocation_is_an_error_and_leaks_nothing(void **state) {
    (void)state;
    struct test_st w;
    struct fo_buf b;
    char name[32];
    test_st_init(&w);
    for (int i = 0; i < 600; i++) {
        snprintf(name, sizeof name, "t%d", i);
        test_st_add(&w, name, "F16", (const uint64_t[]){ 1 }, 1, halves, 2);
    }
    test_st_finish(&w, &b);
    long n = 1;
    for (;; n++) {
        struct seen s = { .n = 0 };
        struct fo_err e;
        test_fail_alloc(n);
        int rc = fo_safetensors_read(b.data, b.len, "x", see, &s, &e);
        if (!test_alloc_failed()) {
            assert_int_equal(rc, FO_OK);
            break;
        }
        assert_int_equal(rc, FO_ENOMEM);
    }
    assert_int_equal(n, 4); /* room for 256, 512, 1024 */
    fo_buf_done(&b);
}

/* --- seeds of the fuzzer ---------------------------------------------------------------------------------------------------- */

/* Makes the seeds again: --write tests/data/safetensors; those in JSON are written by test_hf. */
static int write_seeds(const char *dir) {
    struct test_st w;
    char path[512];
    snprintf(path, sizeof path, "%s/whole.safetensors", dir);
    sample(&w);
    test_st_write(&w, path);
    for (size_t i = 0; i < sizeof attacks / sizeof *attacks; i++) {
        struct fo_buf b;
        attack(i, &b);
        snprintf(path, sizeof path, "%s/%s.safetensors", dir, attacks[i].name);
        for (char *c = path; *c; c++)
            if (*c == ' ') *c = '-';
        test_write_bytes(path, b.data, b.len);
        fo_buf_done(&b);
    }
    return 0;
}

static void the_fuzzer_s_seeds_run_clean(void **state) {
    (void)state;
    glob_t found;
    assert_int_equal(glob("tests/data/safetensors/*", 0, NULL, &found), 0);
    assert_true(found.gl_pathc > 80);
    for (size_t i = 0; i < found.gl_pathc; i++) {
        char *bytes;
        size_t n;
        struct fo_err e;
        assert_int_equal(fo_file_read(found.gl_pathv[i], 1 << 20, &bytes, &n, &e), FO_OK);
        char *copy = malloc(n ? n : 1); /* of its own size: fo_file_read's has a byte more */
        assert_non_null(copy);
        memcpy(copy, bytes, n);
        LLVMFuzzerTestOneInput((const uint8_t *)copy, n);
        free(copy);
        free(bytes);
    }
    globfree(&found);
}

int main(int argc, char **argv) {
    if (argc == 3 && strcmp(argv[1], "--write") == 0) return write_seeds(argv[2]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_names_types_shapes_and_places),
        cmocka_unit_test(a_scalar_and_a_file_without_tensors_are_read),
        cmocka_unit_test(every_lie_of_a_header_is_refused_with_its_reason),
        cmocka_unit_test(a_header_longer_than_its_file_or_the_limit_is_refused),
        cmocka_unit_test(the_most_tensors_are_read_within_16_mb_and_one_more_is_refused),
        cmocka_unit_test(a_thousand_mutants_are_refused_or_read),
        cmocka_unit_test(the_fuzzer_s_seeds_run_clean),
        cmocka_unit_test(every_failing_allocation_is_an_error_and_leaks_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
