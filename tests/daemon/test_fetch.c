/* What of a download is ours to parse and to keep: the note of a part, headers, URLs, and which files were checked. The transfers themselves
 * are tested end to end (tests/e2e/test_fetch.py). */
#include "daemon/fetch.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "config/manifest.h"
#include "daemon/part.h"
#include "daemon/verified.h"
#include "foundry/base/file.h"

static char folder[] = "/tmp/pd-fetch-XXXXXX";

static char *in_folder(const char *name) {
    static char path[256];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

#define HEAD "pantheon part 1\n"

static void a_note_is_read_as_it_was_written(void **state) {
    (void)state;
    struct pd_part_note n = { .url = "hf:owner/repo/file.gguf", .validator = "\"a tag with spaces\"", .size_bytes = UINT64_MAX, .synced_bytes = 7 }, is;
    struct fo_err e;
    char *part = in_folder("a.part");
    assert_false(pd_part_note_read(part, &is));
    assert_int_equal(pd_part_note_write(part, &n, &e), FO_OK);
    assert_true(pd_part_note_read(part, &is));
    assert_string_equal(is.url, n.url);
    assert_string_equal(is.validator, n.validator);
    assert_true(is.size_bytes == UINT64_MAX && is.synced_bytes == 7);
    pd_part_note_remove(part);
    assert_false(pd_part_note_read(part, &is));
    assert_int_not_equal(pd_part_note_write("/nowhere/at/all", &n, &e), FO_OK);
}

static void refuses_a_note_that_is_none(void **state) {
    (void)state;
    static const char *const bad[] = {
        "", "url x\n", HEAD, HEAD "url x", HEAD "url x\nsize\n", HEAD "url x\nsize -1\n", HEAD "url x\nsize 1x\n", HEAD "url x\nsize 99999999999999999999999\n", HEAD "url x\ncolour red\n", HEAD "url x\nsynced \n",
    };
    struct pd_part_note n = { .url = "untouched" };
    struct fo_err e;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        if (pd_part_note_parse(bad[i], strlen(bad[i]), &n, &e) == FO_OK) fail_msg("taken: %s", bad[i]);
    assert_string_equal(n.url, "untouched");
    static const char good[] = HEAD "url x\nvalidator \nsize 5\nsynced 2\n";
    for (size_t i = 0; i < sizeof good - 1; i++) (void)pd_part_note_parse(good, i, &n, &e); /* cut at every byte */
    assert_int_equal(pd_part_note_parse(good, sizeof good - 1, &n, &e), FO_OK);
    assert_int_equal(pd_part_note_parse(HEAD "url \0\n", sizeof HEAD + 5, &n, &e), FO_EFORMAT);
    char *longest = malloc(PD_MAX_URL + 64);
    int len = snprintf(longest, PD_MAX_URL + 64, HEAD "url %0*d\n", PD_MAX_URL, 0);
    assert_int_equal(pd_part_note_parse(longest, (size_t)len, &n, &e), FO_EFORMAT);
    free(longest);
}

static void content_ranges(void **state) {
    (void)state;
    uint64_t first = 1, size = 1;
    assert_true(pd_content_range("bytes 100-199/200", &first, &size) && first == 100 && size == 200);
    assert_true(pd_content_range("Bytes 0-0/*", &first, &size) && first == 0 && size == 0);
    static const char *const bad[] = { "", "bytes", "bytes */200", "bytes 5-4/200", "bytes 0-200/200", "bytes 0-1/", "bytes 0-1/2 ", "bytes -1-2/3", "bytes 1-2", "pages 0-1/2", "bytes 99999999999999999999999-1/2",
                                       "bytes 18446744073709551616-1/2", "bytes 0x1-2/3", "bytes 0-1/1e9" };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        if (pd_content_range(bad[i], &first, &size)) fail_msg("taken: %s", bad[i]);
}

static bool header(const char *line, const char *name, char *ret, size_t size) {
    return pd_header_value(line, strlen(line), name, ret, size);
}

static void header_values(void **state) {
    (void)state;
    char v[16] = "before";
    assert_true(header("ETag:  \"a b\" \r\n", "etag", v, sizeof v));
    assert_string_equal(v, "\"a b\"");
    assert_true(header("ETAG:\r\n", "ETag", v, sizeof v));
    assert_string_equal(v, "");
    snprintf(v, sizeof v, "kept");
    assert_false(header("ETags: x\r\n", "ETag", v, sizeof v));
    assert_false(header("ETag", "ETag", v, sizeof v));
    assert_false(header("ETag: 0123456789abcdef\r\n", "ETag", v, sizeof v)); /* as long as the buffer: does not fit */
    assert_false(header("ETag: a\tb\r\n", "ETag", v, sizeof v));
    assert_false(header("ETag: caf\xC3\xA9\r\n", "ETag", v, sizeof v)); /* it goes back to the server: nothing that could be a line of its own */
    assert_false(pd_header_value("ETag: a\0b\r\n", 11, "ETag", v, sizeof v));
    assert_string_equal(v, "kept");
}

static void hf_becomes_a_url(void **state) {
    (void)state;
    struct fo_err e;
    char *url;
    bool loopback = true;
    unsetenv("PANTHEON_HF_ENDPOINT");
    assert_int_equal(pd_fetch_url("hf:owner/repo/sub/f.gguf", &url, &loopback, &e), FO_OK);
    assert_string_equal(url, "https://huggingface.co/owner/repo/resolve/main/sub/f.gguf");
    assert_false(loopback);
    free(url);
    setenv("PANTHEON_HF_ENDPOINT", "http://127.0.0.1:80/base//", 1);
    assert_int_equal(pd_fetch_url("hf:owner/repo@v1/f.gguf", &url, &loopback, &e), FO_OK);
    assert_string_equal(url, "http://127.0.0.1:80/base/owner/repo/resolve/v1/f.gguf");
    assert_true(loopback);
    free(url);
    static const char *const bad[] = { "http://mirror.example.org", "hf:owner/repo", "ftp://x", "https://user@host", "mirror" };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        setenv("PANTHEON_HF_ENDPOINT", bad[i], 1);
        if (pd_fetch_url("hf:owner/repo/f.gguf", &url, &loopback, &e) == FO_OK) fail_msg("taken: %s", bad[i]);
        assert_non_null(strstr(e.msg, "PANTHEON_HF_ENDPOINT"));
    }
    unsetenv("PANTHEON_HF_ENDPOINT");
    assert_int_equal(pd_fetch_url("https://h.example.org/f?x=1", &url, &loopback, &e), FO_OK);
    assert_string_equal(url, "https://h.example.org/f?x=1");
    free(url);
}

static void a_checked_file_is_remembered_with_its_sum(void **state) {
    (void)state;
    struct pd_verified v;
    char one[] = "0000000000000000000000000000000000000000000000000000000000000001", two[] = "0000000000000000000000000000000000000000000000000000000000000002";
    char *sums[] = { one, two };
    struct cf_model a = { .source_sha256 = sums, .n_source_sha256 = 1 }, b = { .source_sha256 = sums + 1, .n_source_sha256 = 1 }, both = { .source_sha256 = sums, .n_source_sha256 = 2 };
    const char *why = NULL;
    pd_verified_init(&v, folder);
    pd_verified_note(&v, &a, 77, NULL);
    pd_verified_note(&v, &b, 78, "it is another");
    assert_int_equal(pd_verified_look(&v, &b, 78, &why), PD_FILE_WRONG);
    assert_string_equal(why, "it is another");
    pd_verified_done(&v);
    pd_verified_init(&v, folder);
    assert_int_equal(pd_verified_look(&v, &a, 77, &why), PD_FILE_RIGHT);
    assert_int_equal(pd_verified_look(&v, &a, 78, NULL), PD_FILE_UNKNOWN); /* written to since */
    assert_int_equal(pd_verified_look(&v, &b, 77, NULL), PD_FILE_UNKNOWN); /* another sum */
    assert_int_equal(pd_verified_look(&v, &both, 77, NULL), PD_FILE_UNKNOWN);
    assert_int_equal(pd_verified_look(&v, &b, 78, NULL), PD_FILE_UNKNOWN); /* what was wrong is looked at again by the next process */
    for (uint64_t i = 1000; i < 2100; i++) pd_verified_note(&v, &b, i, NULL); /* more than are kept: the oldest go */
    pd_verified_done(&v);
    pd_verified_init(&v, folder);
    assert_int_equal(pd_verified_look(&v, &a, 77, NULL), PD_FILE_UNKNOWN);
    assert_int_equal(pd_verified_look(&v, &b, 2099, NULL), PD_FILE_RIGHT);
    pd_verified_done(&v);
}

static void a_broken_list_of_checked_files_says_nothing(void **state) {
    (void)state;
    struct pd_verified v;
    struct fo_err e;
    char *text, *path = in_folder("verified");
    size_t len;
    assert_int_equal(fo_file_read(path, 1 << 20, &text, &len, &e), FO_OK);
    for (size_t cut = 0; cut < 300; cut++) { /* at every byte of its first rows */
        FILE *f = fopen(path, "w");
        assert_non_null(f);
        assert_int_equal(fwrite(text, 1, cut, f), cut);
        fclose(f);
        pd_verified_init(&v, folder);
        assert_true(v.n <= 3);
        pd_verified_done(&v);
    }
    free(text);
    pd_verified_init(&v, "/nowhere/at/all");
    assert_int_equal(v.n, 0);
    pd_verified_done(&v);
}

static int clean(void **state) {
    (void)state;
    unlink(in_folder("verified"));
    return rmdir(folder);
}

int main(void) {
    if (!mkdtemp(folder)) return 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_note_is_read_as_it_was_written),
        cmocka_unit_test(refuses_a_note_that_is_none),
        cmocka_unit_test(content_ranges),
        cmocka_unit_test(header_values),
        cmocka_unit_test(hf_becomes_a_url),
        cmocka_unit_test(a_checked_file_is_remembered_with_its_sum),
        cmocka_unit_test(a_broken_list_of_checked_files_says_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, clean);
}
