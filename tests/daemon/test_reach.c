/* What is said of a path that cannot be reached. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/reach.h"
#include "foundry/base/err.h"

static char folder[64];

static const char *in(const char *name) {
    static char path[2][128];
    static int turn;
    snprintf(path[turn ^= 1], sizeof path[0], "%s/%s", folder, name);
    return path[turn];
}

static int make_folder(void **state) {
    (void)state;
    snprintf(folder, sizeof folder, "/tmp/pd-reach-XXXXXX");
    if (!mkdtemp(folder) || chmod(folder, 0755) || mkdir(in("shut"), 0755)) return -1;
    int fd = open(in("shut/m.gguf"), O_CREAT | O_WRONLY, 0644);
    return fd < 0 || close(fd) || symlink("shut/m.gguf", in("link")) || symlink("../nowhere/x", in("broken")) || symlink("loop", in("loop")) ? -1 : 0;
}

static int remove_folder(void **state) {
    (void)state;
    static const char *const files[] = { "shut/m.gguf", "link", "broken", "loop" };
    for (size_t i = 0; i < 4; i++) unlink(in(files[i]));
    return rmdir(in("shut")) || rmdir(folder);
}

/* What an open of the path says, with its explanation; as somebody who may not do everything. */
static const char *said(const char *path) {
    static struct fo_err e;
    bool root = geteuid() == 0;
    if (root) assert_int_equal(seteuid(65534), 0);
    int fd = open(path, O_RDONLY), err = errno;
    assert_true(fd < 0);
    fo_fail_errno(&e, err, "%s", path);
    assert_int_equal(pd_reach_explain(path, &e), e.code);
    if (root) assert_int_equal(seteuid(0), 0);
    return e.msg;
}

static void assert_says(const char *text, const char *part) {
    if (!strstr(text, part)) fail_msg("'%s' lacks '%s'", text, part);
}

static void names_the_folder_that_may_not_be_passed(void **state) {
    (void)state;
    char want[200];
    assert_int_equal(chmod(in("shut"), 0600), 0);
    snprintf(want, sizeof want, "may not pass the folder %s, mode 0600, owner %u", in("shut"), (unsigned)getuid());
    assert_says(said(in("shut/m.gguf")), want);
    assert_says(said(in("link")), want); /* through a link too */
    assert_says(said(in("shut/../shut/./m.gguf")), want);
    assert_int_equal(chmod(in("shut"), 0755), 0);
}

static void names_a_file_that_may_not_be_read(void **state) {
    (void)state;
    char want[200];
    assert_int_equal(chmod(in("shut/m.gguf"), 0), 0);
    snprintf(want, sizeof want, "may not read %s, mode 0000", in("shut/m.gguf"));
    assert_says(said(in("link")), want);
    assert_int_equal(chmod(in("shut/m.gguf"), 0644), 0);
}

static void names_where_a_link_leads(void **state) {
    (void)state;
    assert_says(said(in("broken")), "a link leads to /tmp/nowhere, which is not there)");
}

static void adds_nothing_where_nothing_is_known(void **state) {
    (void)state;
    assert_null(strchr(said(in("absent")), '('));
    struct fo_err e;
    fo_fail(&e, FO_EFORMAT, "x: not a GGUF");
    assert_int_equal(pd_reach_explain(in("broken"), &e), FO_EFORMAT);
    assert_string_equal(e.msg, "x: not a GGUF");
    fo_fail(&e, FO_ENOENT, "x");
    pd_reach_explain(in("loop"), &e); /* ends */
    assert_string_equal(e.msg, "x");
}

static void a_long_path_keeps_the_reason(void **state) {
    (void)state;
    struct fo_err e;
    char name[300];
    memset(name, 'n', sizeof name);
    name[sizeof name - 1] = '\0';
    fo_fail(&e, FO_ENOENT, "%s: No such file or directory", name);
    pd_reach_explain(in("broken"), &e);
    assert_says(e.msg, "which is not there)");
}

static void sees_what_a_unit_hides(void **state) {
    (void)state;
    static const char yes[] = "21 1 254:0 / / ro,relatime shared:1 - ext4 /dev/vda rw\n"
                              "40 21 0:24 /systemd/inaccessible/dir /home ro,nosuid,nodev - tmpfs tmpfs rw,mode=755\n"
                              "41 21 0:31 / /run/user ro,nosuid,nodev - tmpfs tmpfs ro,mode=755\n"
                              "42 21 0:32 / /home/own rw,relatime - tmpfs tmpfs rw\n"
                              "43 21 254:1 / /root ro,relatime - ext4 /dev/vdb ro\n";
    assert_true(pd_reach_hidden(yes, "/home"));
    assert_true(pd_reach_hidden(yes, "/run/user")); /* ProtectHome=tmpfs */
    assert_false(pd_reach_hidden(yes, "/home/own"));
    assert_false(pd_reach_hidden(yes, "/root")); /* read-only, and to be seen */
    assert_false(pd_reach_hidden(yes, "/hom"));
    assert_false(pd_reach_hidden("", "/home"));
    assert_false(pd_reach_hidden("a line\nof another\nform", "/home"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_the_folder_that_may_not_be_passed),
        cmocka_unit_test(names_a_file_that_may_not_be_read),
        cmocka_unit_test(names_where_a_link_leads),
        cmocka_unit_test(adds_nothing_where_nothing_is_known),
        cmocka_unit_test(a_long_path_keeps_the_reason),
        cmocka_unit_test(sees_what_a_unit_hides),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
