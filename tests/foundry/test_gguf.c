/* The GGUF reader on well-formed files: small ones made here, and real ones where the goldens are present. Hostile files are in
 * test_gguf_hostile.c. */
#include "foundry/gguf.h"

#include <glob.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "foundry/base/err.h"
#include "foundry/base/file.h"
#include "tests/support/alloc.h"
#include "tests/support/gguf_write.h"

/* One entry of every type, and three tensors. */
static void sample(struct test_gguf *w, uint32_t version) {
    static const char *const words[] = { "one", "", "three" };
    static const int32_t ints[] = { 1, -2, 3 };
    static const float floats[] = { 0.5f, -1.5f };
    static const float ones[64] = { 1, 1, 1, 1 };
    static const uint8_t q8[34] = { 0 };
    test_gguf_init(w, version);
    test_gguf_u8(w, "a.u8", 200);
    test_gguf_i8(w, "a.i8", -100);
    test_gguf_u16(w, "a.u16", 60000);
    test_gguf_i16(w, "a.i16", -30000);
    test_gguf_u32(w, "a.u32", 4000000000u);
    test_gguf_i32(w, "a.i32", -5);
    test_gguf_f32(w, "a.f32", 1.25f);
    test_gguf_bool(w, "a.bool", true);
    test_gguf_str(w, "a.str", "hello");
    test_gguf_u64(w, "a.u64", UINT64_MAX);
    test_gguf_i64(w, "a.i64", INT64_MIN);
    test_gguf_f64(w, "a.f64", 1e300);
    test_gguf_strs(w, "a.strs", words, 3);
    test_gguf_i32s(w, "a.i32s", ints, 3);
    test_gguf_f32s(w, "a.f32s", floats, 2);
    test_gguf_tensor(w, "x", FO_F32, (const uint64_t[]){ 8, 4, 2 }, 3, ones, sizeof ones);
    test_gguf_tensor(w, "y", FO_Q8_0, (const uint64_t[]){ 32 }, 1, q8, sizeof q8);
    test_gguf_tensor(w, "z", FO_F32, (const uint64_t[]){ 1 }, 1, ones, 4);
}

static void check_sample(const struct fo_gguf *g, uint32_t version) {
    struct fo_err e;
    uint64_t u64;
    uint32_t u32;
    float f;
    bool b;
    struct fo_str s;
    assert_int_equal(fo_gguf_version(g), version);
    assert_int_equal(fo_gguf_alignment(g), 32);
    assert_int_equal(fo_gguf_n_kv(g), 15);
    assert_int_equal(fo_gguf_n_tensors(g), 3);
    assert_int_equal(fo_gguf_get_u32(g, "a.u8", &u32, &e), 0);
    assert_int_equal(u32, 200);
    assert_int_equal(fo_gguf_get_u32(g, "a.u32", &u32, &e), 0);
    assert_int_equal(u32, 4000000000u);
    assert_int_equal(fo_gguf_get_u64(g, "a.u64", &u64, &e), 0);
    assert_true(u64 == UINT64_MAX);
    assert_int_equal(fo_gguf_get_f32(g, "a.f32", &f, &e), 0);
    assert_true(f == 1.25f);
    assert_int_equal(fo_gguf_get_f32(g, "a.i16", &f, &e), 0);
    assert_true(f == -30000.0f);
    assert_int_equal(fo_gguf_get_bool(g, "a.bool", &b, &e), 0);
    assert_true(b);
    assert_int_equal(fo_gguf_get_str(g, "a.str", &s, &e), 0);
    assert_int_equal(s.len, 5);
    assert_memory_equal(s.s, "hello", 5);
    const struct fo_gguf_tensor *x = fo_gguf_tensor(g, "x");
    assert_non_null(x);
    assert_ptr_equal(x, fo_gguf_tensor_at(g, 0));
    assert_int_equal(x->t.ne[0], 8);
    assert_int_equal(x->t.ne[1], 4);
    assert_int_equal(x->t.ne[2], 2);
    assert_int_equal(x->t.ne[3], 1);
    assert_int_equal(x->bytes, 256);
    assert_int_equal(x->offset % 32, 0);
    assert_true(((const float *)x->t.data)[0] == 1.0f);
    const struct fo_gguf_tensor *y = fo_gguf_tensor(g, "y");
    assert_int_equal(y->offset, x->offset + 256);
    assert_int_equal(fo_gguf_tensor(g, "z")->offset, y->offset + 64); /* 34 bytes, padded */
    assert_null(fo_gguf_tensor(g, "w"));
    assert_null(fo_gguf_find(g, "a.nothing"));
}

static void reads_every_value_type_in_versions_2_and_3(void **state) {
    (void)state;
    for (uint32_t version = 2; version <= 3; version++) {
        struct test_gguf w;
        struct fo_buf out;
        struct fo_gguf *g;
        struct fo_err e;
        sample(&w, version);
        test_gguf_finish(&w, &out);
        if (fo_gguf_parse(out.data, out.len, "sample", &g, &e)) fail_msg("%s", e.msg);
        check_sample(g, version);
        assert_int_equal(fo_gguf_n_files(g), 0);
        fo_gguf_close(g);
        fo_buf_done(&out);
    }
}

static void opens_a_file_through_the_guarded_map(void **state) {
    (void)state;
    char path[] = "/tmp/pantheon-gguf-XXXXXX";
    struct test_gguf w;
    struct fo_buf out;
    struct fo_gguf *g;
    struct fo_err e;
    sample(&w, 3);
    test_gguf_finish(&w, &out);
    int fd = mkstemp(path);
    assert_true(fd >= 0 && write(fd, out.data, out.len) == (ssize_t)out.len);
    close(fd);
    if (fo_gguf_open(path, &g, &e)) fail_msg("%s", e.msg);
    check_sample(g, 3);
    assert_string_equal(fo_map_path(fo_gguf_file(g, 0)), path);
    assert_int_equal(fo_gguf_file_bytes(g), out.len);
    fo_gguf_close(g);
    unlink(path);
    fo_buf_done(&out);
    assert_int_equal(fo_gguf_open(path, &g, &e), FO_ENOENT);
}

static void walks_arrays_and_stops_at_their_end(void **state) {
    (void)state;
    struct test_gguf w;
    struct fo_buf out;
    struct fo_gguf *g;
    struct fo_err e;
    sample(&w, 3);
    test_gguf_finish(&w, &out);
    assert_int_equal(fo_gguf_parse(out.data, out.len, "sample", &g, &e), 0);
    const struct fo_gguf_kv *strs = fo_gguf_find(g, "a.strs"), *ints = fo_gguf_find(g, "a.i32s"), *floats = fo_gguf_find(g, "a.f32s");
    assert_int_equal(strs->type, FO_GGUF_ARRAY);
    assert_int_equal(strs->elem, FO_GGUF_STRING);
    assert_int_equal(strs->n, 3);
    uint64_t at = 0;
    struct fo_str s;
    assert_true(fo_gguf_array_str(strs, &at, &s) && s.len == 3 && memcmp(s.s, "one", 3) == 0);
    assert_true(fo_gguf_array_str(strs, &at, &s) && s.len == 0);
    assert_true(fo_gguf_array_str(strs, &at, &s) && s.len == 5 && memcmp(s.s, "three", 5) == 0);
    assert_false(fo_gguf_array_str(strs, &at, &s));
    assert_false(fo_gguf_array_str(strs, &at, &s));
    at = 0;
    assert_false(fo_gguf_array_str(ints, &at, &s));
    at = UINT64_MAX;
    assert_false(fo_gguf_array_str(strs, &at, &s));
    assert_int_equal(fo_gguf_array_i64(ints, 1), -2);
    assert_true(fo_gguf_array_f64(ints, 2) == 3);
    assert_int_equal(fo_gguf_array_i64(ints, 3), 0);
    assert_true(fo_gguf_array_f64(floats, 1) == -1.5);
    assert_int_equal(fo_gguf_array_i64(floats, 1), -1);
    assert_int_equal(fo_gguf_array_i64(strs, 0), 0);
    assert_true(fo_gguf_array_f64(strs, 0) == 0);
    assert_true(fo_gguf_array_i64(fo_gguf_find(g, "a.u64"), 0) == INT64_MAX);
    assert_true(fo_gguf_array_i64(fo_gguf_find(g, "a.f64"), 0) == INT64_MAX);
    assert_true(fo_gguf_array_i64(fo_gguf_find(g, "a.i64"), 0) == INT64_MIN);
    fo_gguf_close(g);
    fo_buf_done(&out);
}

static void typed_reads_refuse_what_does_not_fit_and_name_the_key(void **state) {
    (void)state;
    struct test_gguf w;
    struct fo_buf out;
    struct fo_gguf *g;
    struct fo_err e;
    uint32_t u32 = 7;
    uint64_t u64 = 7;
    float f = 7;
    bool b = false;
    struct fo_str s = { "x", 1 };
    sample(&w, 3);
    test_gguf_f32(&w, "a.nan", __builtin_nanf(""));
    test_gguf_finish(&w, &out);
    assert_int_equal(fo_gguf_parse(out.data, out.len, "sample", &g, &e), 0);
    assert_int_equal(fo_gguf_get_u32(g, "a.gone", &u32, &e), FO_ENOENT);
    assert_string_equal(e.msg, "metadata key 'a.gone' is missing");
    assert_int_equal(fo_gguf_get_u32(g, "a.i32", &u32, &e), FO_EFORMAT);
    assert_string_equal(e.msg, "metadata key 'a.i32' is negative (-5)");
    assert_int_equal(fo_gguf_get_u32(g, "a.u64", &u32, &e), FO_EFORMAT);
    assert_non_null(strstr(e.msg, "'a.u64' is too large"));
    assert_true(e.need == UINT64_MAX && e.have == UINT32_MAX);
    assert_int_equal(fo_gguf_get_u32(g, "a.str", &u32, &e), FO_EFORMAT);
    assert_string_equal(e.msg, "metadata key 'a.str' must be an integer, is string");
    assert_int_equal(fo_gguf_get_u32(g, "a.bool", &u32, &e), FO_EFORMAT);
    assert_int_equal(fo_gguf_get_u32(g, "a.f32", &u32, &e), FO_EFORMAT);
    assert_int_equal(fo_gguf_get_u32(g, "a.i32s", &u32, &e), FO_EFORMAT);
    assert_string_equal(e.msg, "metadata key 'a.i32s' must be an integer, is an array");
    assert_int_equal(fo_gguf_get_u64(g, "a.i64", &u64, &e), FO_EFORMAT);
    assert_int_equal(fo_gguf_get_f32(g, "a.f64", &f, &e), FO_EFORMAT);
    assert_int_equal(fo_gguf_get_f32(g, "a.nan", &f, &e), FO_EFORMAT);
    assert_int_equal(fo_gguf_get_f32(g, "a.str", &f, &e), FO_EFORMAT);
    assert_int_equal(fo_gguf_get_bool(g, "a.u8", &b, &e), FO_EFORMAT);
    assert_int_equal(fo_gguf_get_str(g, "a.strs", &s, &e), FO_EFORMAT);
    assert_int_equal(fo_gguf_get_str(g, "a.u8", &s, &e), FO_EFORMAT);
    assert_true(u32 == 7 && u64 == 7 && f == 7 && !b && s.len == 1); /* outputs are untouched on failure */
    fo_gguf_close(g);
    fo_buf_done(&out);
}

static void honours_an_alignment_and_tensors_out_of_order(void **state) {
    (void)state;
    struct test_gguf w;
    struct fo_buf out;
    struct fo_gguf *g;
    struct fo_err e;
    static const float v[2] = { 1, 2 };
    test_gguf_init(&w, 3);
    test_gguf_u32(&w, "general.alignment", 8);
    test_gguf_tensor_at(&w, "second", FO_F32, (const uint64_t[]){ 1 }, 1, 8);
    test_gguf_tensor_at(&w, "first", FO_F32, (const uint64_t[]){ 1 }, 1, 0);
    test_gguf_data(&w, v, 4);
    test_gguf_data(&w, &v[1], 4);
    test_gguf_data(&w, &v[1], 4);
    test_gguf_finish(&w, &out);
    if (fo_gguf_parse(out.data, out.len, "order", &g, &e)) fail_msg("%s", e.msg);
    assert_int_equal(fo_gguf_alignment(g), 8);
    assert_true(*(const float *)fo_gguf_tensor(g, "first")->t.data == 1);
    assert_true(*(const float *)fo_gguf_tensor(g, "second")->t.data == 2);
    fo_gguf_close(g);
    fo_buf_done(&out);
}

static void big_arrays_are_read_where_they_lie(void **state) {
    (void)state;
    enum { N = 1 << 20 };
    static int32_t numbers[N];
    struct test_gguf w;
    struct fo_buf out;
    struct fo_gguf *g;
    struct fo_err e;
    for (int i = 0; i < N; i++) numbers[i] = i * 3 - 7;
    test_gguf_init(&w, 3);
    test_gguf_i32s(&w, "numbers", numbers, N);
    fo_gguf_put_array(&w.w, "texts", FO_GGUF_STRING, N);
    for (int i = 0; i < N; i++) fo_gguf_put_elem(&w.w, (struct fo_str){ "abc", (size_t)i % 4 });
    assert_true(test_gguf_finish(&w, &out));
    test_fail_alloc(0);
    if (fo_gguf_parse(out.data, out.len, "big", &g, &e)) fail_msg("%s", e.msg);
    assert_true(test_alloc_bytes() < 4096); /* of 15 MB */
    const struct fo_gguf_kv *n = fo_gguf_find(g, "numbers"), *t = fo_gguf_find(g, "texts");
    assert_true((const char *)n->data > out.data && (const char *)n->data + n->bytes < out.data + out.len);
    assert_true(n->n == N && n->bytes == 4 * N && fo_gguf_array_i64(n, N - 1) == 3 * (N - 1) - 7);
    uint64_t at = 0, count = 0, bytes = 0;
    for (struct fo_str s; fo_gguf_array_str(t, &at, &s); count++) bytes += s.len;
    assert_true(count == N && bytes == N / 4 * 6);
    assert_true(test_alloc_bytes() < 4096);
    fo_gguf_close(g);
    fo_buf_done(&out);
}

static void a_type_that_is_known_but_not_served_can_be_inspected(void **state) {
    (void)state;
    struct test_gguf w;
    struct fo_buf out;
    struct fo_gguf *g;
    struct fo_err e;
    unsigned char block[36] = { 0 };
    test_gguf_init(&w, 3);
    test_gguf_tensor(&w, "t", FO_Q8_1, (const uint64_t[]){ 32 }, 1, block, sizeof block);
    test_gguf_finish(&w, &out);
    if (fo_gguf_parse(out.data, out.len, "q8_1", &g, &e)) fail_msg("%s", e.msg);
    assert_int_equal(fo_gguf_tensor(g, "t")->t.type, FO_Q8_1);
    fo_gguf_close(g);
    fo_buf_done(&out);
}

static void every_failing_allocation_is_an_error_and_leaks_nothing(void **state) {
    (void)state;
    struct test_gguf w;
    struct fo_buf out;
    struct fo_gguf *g;
    struct fo_err e;
    sample(&w, 3);
    test_gguf_finish(&w, &out);
    int n_failed = 0;
    for (long n = 1;; n++) {
        test_fail_alloc(n);
        int rc = fo_gguf_parse(out.data, out.len, "sample", &g, &e);
        bool failed = test_alloc_failed();
        assert_int_equal(rc, failed ? FO_ENOMEM : FO_OK);
        if (!failed) break;
        n_failed++;
    }
    fo_gguf_close(g);
    fo_gguf_close(NULL);
    assert_int_equal(n_failed, 5);
    fo_buf_done(&out);
}

/* Whoever may write the file may do so after it was checked. */
static void bytes_that_change_after_the_open_lead_no_read_astray(void **state) {
    (void)state;
    struct test_gguf w;
    struct fo_buf out;
    struct fo_gguf *g;
    struct fo_err e;
    struct fo_str s;
    sample(&w, 3);
    test_gguf_finish(&w, &out);
    assert_int_equal(fo_gguf_parse(out.data, out.len, "sample", &g, &e), 0);
    for (int fill = 0; fill < 256; fill += 51) {
        memset(out.data, fill, out.len);
        for (size_t i = 0; i < fo_gguf_n_kv(g); i++) {
            const struct fo_gguf_kv *kv = fo_gguf_kv_at(g, i);
            uint64_t at = 0, n = 0;
            while (fo_gguf_array_str(kv, &at, &s)) {
                assert_true((const uint8_t *)s.s + s.len <= kv->data + kv->bytes);
                n++;
            }
            assert_true(n <= kv->bytes);
            if (kv->n) (void)fo_gguf_array_f64(kv, kv->n - 1);
        }
    }
    memset(out.data, 0xFF, out.len);
    const struct fo_gguf_kv *str = NULL;
    for (size_t i = 0; i < fo_gguf_n_kv(g); i++)
        if (fo_gguf_kv_at(g, i)->type == FO_GGUF_STRING) str = fo_gguf_kv_at(g, i);
    memcpy((char *)(uintptr_t)str->key.s, "a.str", 5); /* the key is whole, the value's length is not */
    assert_int_equal(fo_gguf_get_str(g, "a.str", &s, &e), FO_ELOST);
    fo_gguf_close(g);
    fo_buf_done(&out);
}

/* Real files: every tensor within the file, the architecture readable. */
static void opens_the_golden_files(void **state) {
    (void)state;
    static const char *const patterns[] = { "../shared/goldens/models/*/gguf/*.gguf", "../shared/goldens/tokenizers/*/*.gguf" };
    int n_files = 0;
    for (size_t p = 0; p < sizeof patterns / sizeof *patterns; p++) {
        glob_t found;
        if (glob(patterns[p], 0, NULL, &found) != 0) continue;
        for (size_t i = 0; i < found.gl_pathc; i++, n_files++) {
            struct fo_gguf *g;
            struct fo_err e;
            struct fo_str arch;
            if (fo_gguf_open(found.gl_pathv[i], &g, &e)) fail_msg("%s", e.msg);
            if (fo_gguf_get_str(g, "general.architecture", &arch, &e)) fail_msg("%s: %s", found.gl_pathv[i], e.msg);
            for (size_t t = 0; t < fo_gguf_n_tensors(g); t++) {
                const struct fo_gguf_tensor *x = fo_gguf_tensor_at(g, t);
                assert_true(x->offset + x->bytes <= fo_gguf_file_bytes(g));
                assert_int_equal(fo_tensor_bytes(&x->t), x->bytes);
            }
            assert_int_equal(fo_gguf_state(g, &e), FO_OK);
            fo_gguf_close(g);
        }
        globfree(&found);
    }
    if (n_files == 0) skip(); /* the goldens stand beside the checkout, not in it */
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_every_value_type_in_versions_2_and_3),
        cmocka_unit_test(opens_a_file_through_the_guarded_map),
        cmocka_unit_test(walks_arrays_and_stops_at_their_end),
        cmocka_unit_test(typed_reads_refuse_what_does_not_fit_and_name_the_key),
        cmocka_unit_test(honours_an_alignment_and_tensors_out_of_order),
        cmocka_unit_test(big_arrays_are_read_where_they_lie),
        cmocka_unit_test(a_type_that_is_known_but_not_served_can_be_inspected),
        cmocka_unit_test(every_failing_allocation_is_an_error_and_leaks_nothing),
        cmocka_unit_test(bytes_that_change_after_the_open_lead_no_read_astray),
        cmocka_unit_test(opens_the_golden_files),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
