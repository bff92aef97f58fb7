#include "foundry/base/outfile.h"

#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "foundry/base/err.h"
#include "foundry/base/file.h"
#include "tests/support/alloc.h"
#include "tests/support/folder.h"

static char folder[] = "/tmp/outfile-XXXXXX", path[64], other[64];

static int set_up(void **state) {
    (void)state;
    if (!mkdtemp(folder)) return 1;
    snprintf(path, sizeof path, "%s/file", folder);
    snprintf(other, sizeof other, "%s/other", folder);
    return 0;
}

/* Each test leaves the folder empty. */
static int clean(void **state) {
    (void)state;
    unlink(path);
    unlink(other);
    return test_n_files(folder);
}

static int tear_down(void **state) {
    (void)state;
    return rmdir(folder);
}

static void write_whole(const char *at, const char *text) {
    FILE *f = fopen(at, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static void assert_text(const char *at, const char *want) {
    char *data;
    size_t len;
    struct fo_err e;
    if (fo_file_read(at, 4096, &data, &len, &e)) fail_msg("%s", e.msg);
    assert_string_equal(data, want);
    free(data);
}

static void nothing_is_there_until_all_of_it_is(void **state) {
    (void)state;
    struct fo_outfile *f;
    struct fo_err e;
    struct stat st;
    mode_t mask = umask(027);
    assert_int_equal(fo_outfile_open(path, false, 10, &f, &e), FO_OK);
    umask(mask);
    assert_int_equal(fo_outfile_write(f, "hello ", 6, &e), FO_OK);
    assert_int_equal(fo_outfile_write(f, "world", 5, &e), FO_OK);
    assert_int_equal(access(path, F_OK), -1);
    assert_int_equal(fo_outfile_commit(f, &e), FO_OK);
    assert_text(path, "hello world");
    assert_int_equal(test_n_files(folder), 1);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0640);
    assert_int_equal(st.st_nlink, 1);
}

static void what_is_dropped_leaves_nothing(void **state) {
    (void)state;
    struct fo_outfile *f;
    struct fo_err e;
    assert_int_equal(fo_outfile_open(path, false, 0, &f, &e), FO_OK);
    assert_int_equal(fo_outfile_write(f, "half", 4, &e), FO_OK);
    assert_int_equal(test_n_files(folder), 1);
    fo_outfile_drop(f);
    assert_int_equal(test_n_files(folder), 0);
    fo_outfile_drop(NULL);
}

static void a_file_is_replaced_only_when_told(void **state) {
    (void)state;
    struct fo_outfile *f = NULL;
    struct fo_err e;
    write_whole(path, "old");
    assert_int_equal(fo_outfile_open(path, false, 0, &f, &e), FO_EINVAL);
    assert_non_null(strstr(e.msg, "exists"));
    assert_null(f);
    assert_int_equal(fo_outfile_open(path, true, 0, &f, &e), FO_OK);
    assert_int_equal(fo_outfile_write(f, "new", 3, &e), FO_OK);
    assert_text(path, "old");
    assert_int_equal(fo_outfile_commit(f, &e), FO_OK);
    assert_text(path, "new");
}

static void a_file_that_appears_meanwhile_stays(void **state) {
    (void)state;
    struct fo_outfile *f;
    struct fo_err e;
    assert_int_equal(fo_outfile_open(path, false, 0, &f, &e), FO_OK);
    write_whole(path, "somebody else's");
    assert_int_equal(fo_outfile_commit(f, &e), FO_EINVAL);
    assert_text(path, "somebody else's");
    assert_int_equal(test_n_files(folder), 1);
}

static void a_link_stays_and_its_file_is_replaced(void **state) {
    (void)state;
    struct fo_outfile *f;
    struct fo_err e;
    struct stat st;
    write_whole(other, "old");
    assert_int_equal(symlink("other", path), 0);
    assert_int_equal(fo_outfile_open(path, true, 0, &f, &e), FO_OK);
    assert_int_equal(fo_outfile_write(f, "new", 3, &e), FO_OK);
    assert_int_equal(fo_outfile_commit(f, &e), FO_OK);
    assert_int_equal(lstat(path, &st), 0);
    assert_true(S_ISLNK(st.st_mode));
    assert_text(other, "new");
}

static void devices_and_folders_are_no_files_to_write(void **state) {
    (void)state;
    struct fo_outfile *f = NULL;
    struct fo_err e;
    assert_int_equal(fo_outfile_open("/dev/full", true, 0, &f, &e), FO_EINVAL);
    assert_int_equal(fo_outfile_open(folder, true, 0, &f, &e), FO_EINVAL);
    assert_int_equal(fo_outfile_open("/nowhere/at/all", true, 0, &f, &e), FO_ENOENT);
    assert_non_null(strstr(e.msg, "/nowhere/at/all"));
    char slash[80];
    snprintf(slash, sizeof slash, "%s/", other);
    assert_int_not_equal(fo_outfile_open(slash, true, 0, &f, &e), FO_OK);
    assert_int_not_equal(fo_outfile_open("", true, 0, &f, &e), FO_OK);
    assert_null(f);
}

static void too_little_room_is_said_at_once_with_both_numbers(void **state) {
    (void)state;
    struct fo_outfile *f = NULL;
    struct fo_err e;
    assert_int_equal(fo_outfile_open(path, false, UINT64_MAX / 2, &f, &e), FO_ELIMIT);
    assert_true(e.need == UINT64_MAX / 2 && e.have > 0 && e.have < e.need);
    assert_null(f);
    assert_int_equal(test_n_files(folder), 0);
}

static void a_write_that_fails_is_an_error_and_leaves_nothing(void **state) {
    (void)state;
    struct fo_outfile *f;
    struct fo_err e;
    struct rlimit was, small;
    void (*handler)(int) = signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &was), 0);
    small = (struct rlimit){ 100, was.rlim_max };
    assert_int_equal(fo_outfile_open(path, false, 0, &f, &e), FO_OK);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    char bytes[200] = { 0 };
    int rc = fo_outfile_write(f, bytes, sizeof bytes, &e); /* the first half goes in */
    setrlimit(RLIMIT_FSIZE, &was);
    signal(SIGXFSZ, handler);
    assert_int_equal(rc, FO_EIO);
    assert_non_null(strstr(e.msg, path));
    fo_outfile_drop(f);
    assert_int_equal(test_n_files(folder), 0);
}

static void running_out_of_memory_leaves_nothing(void **state) {
    (void)state;
    struct fo_outfile *f;
    struct fo_err e;
    long n = 0;
    for (bool failed = true; failed;) {
        test_fail_alloc(++n);
        int rc = fo_outfile_open(path, false, 0, &f, &e);
        failed = test_alloc_failed();
        if (failed) assert_int_equal(rc, FO_ENOMEM);
        else assert_int_equal(rc, FO_OK);
        assert_int_equal(test_n_files(folder), !failed);
    }
    assert_true(n > 2);
    fo_outfile_drop(f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(nothing_is_there_until_all_of_it_is, clean),
        cmocka_unit_test_teardown(what_is_dropped_leaves_nothing, clean),
        cmocka_unit_test_teardown(a_file_is_replaced_only_when_told, clean),
        cmocka_unit_test_teardown(a_file_that_appears_meanwhile_stays, clean),
        cmocka_unit_test_teardown(a_link_stays_and_its_file_is_replaced, clean),
        cmocka_unit_test_teardown(devices_and_folders_are_no_files_to_write, clean),
        cmocka_unit_test_teardown(too_little_room_is_said_at_once_with_both_numbers, clean),
        cmocka_unit_test_teardown(a_write_that_fails_is_an_error_and_leaves_nothing, clean),
        cmocka_unit_test_teardown(running_out_of_memory_leaves_nothing, clean),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
