/* Listeners: what rows mean, and sockets that another process opened, good ones and every mistake of a socket unit. */
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>
#include <cmocka.h>

#include "daemon/listen.h"
#include "daemon/notify.h"
#include "foundry/base/err.h"

static char folder[64];

static int make_folder(void **state) {
    (void)state;
    snprintf(folder, sizeof folder, "/tmp/pd-listen-XXXXXX");
    return mkdtemp(folder) ? 0 : -1;
}

static int remove_folder(void **state) {
    (void)state;
    return rmdir(folder); /* fails when a socket was left behind */
}

static const char *in_folder(const char *name) {
    static char path[2][108];
    static int turn;
    turn = !turn;
    snprintf(path[turn], sizeof path[turn], "%s/%s", folder, name);
    return path[turn];
}

/* A stream socket at a free port of the address, listening when asked to; its port is in *ret_port. */
static int tcp(const char *ip, bool listens, uint16_t *ret_port) {
    struct sockaddr_in a = { .sin_family = AF_INET };
    socklen_t len = sizeof a;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    inet_pton(AF_INET, ip, &a.sin_addr);
    assert_int_equal(bind(fd, (struct sockaddr *)&a, sizeof a), 0);
    if (listens) assert_int_equal(listen(fd, 5), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&a, &len), 0);
    *ret_port = ntohs(a.sin_port);
    return fd;
}

static int file_socket(const char *path, mode_t mode) {
    struct sockaddr_un a = { .sun_family = AF_UNIX };
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    memcpy(a.sun_path, path, strlen(path));
    assert_int_equal(bind(fd, (struct sockaddr *)&a, sizeof a), 0);
    assert_int_equal(listen(fd, 5), 0);
    assert_int_equal(chmod(path, mode), 0);
    return fd;
}

static bool answers(const char *path) {
    struct sockaddr_un a = { .sun_family = AF_UNIX };
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    memcpy(a.sun_path, path, strlen(path));
    bool yes = connect(fd, (struct sockaddr *)&a, sizeof a) == 0;
    close(fd);
    return yes;
}

/* Opens with one passed socket and one row (NULL = none). */
static int open_both(int fd, const char *row, const char *admin, struct pd_listeners *l, struct fo_err *e) {
    struct pd_passed p = { .n = 1, .list[0] = { .fd = fd, .name = "one" } };
    return pd_listen_open(&(struct pd_listen_opts){ .rows = &row, .n_rows = row ? 1 : 0, .admin_socket = admin, .passed = fd >= 0 ? &p : NULL }, l, e);
}

static void opens_a_unix_socket_for_requests_beside_the_one_for_administration(void **state) {
    (void)state;
    char row[128];
    const char *api = in_folder("api"), *admin = in_folder("admin");
    struct pd_listeners l;
    struct fo_err e;
    struct stat st;
    snprintf(row, sizeof row, "unix:%s", api);
    for (int again = 0; again < 2; again++) {
        assert_int_equal(open_both(-1, row, admin, &l, &e), FO_OK);
        assert_int_equal(l.n, 2);
        assert_true(!l.list[0].admin && l.list[1].admin && answers(api) && answers(admin));
        assert_string_equal(l.list[0].text, row);
        assert_int_equal(stat(api, &st), 0);
        assert_int_equal(st.st_mode & 07777, 0660);
        assert_null(pd_listen_outside(&l));
        /* while it answers it is somebody's: a row that cannot be had ends it, the admin socket alone does not */
        struct pd_listeners other;
        assert_int_equal(open_both(-1, row, NULL, &other, &e), FO_EBUSY);
        assert_non_null(strstr(e.msg, api));
        pd_listen_close(&other);
        assert_int_equal(open_both(-1, NULL, admin, &other, &e), FO_OK);
        assert_int_equal(other.n, 0);
        if (again) break;
        for (int i = 0; i < l.n; i++) close(l.list[i].fd); /* as a process that died leaves them */
    }
    pd_listen_close(&l);
    assert_true(access(api, F_OK) && access(admin, F_OK));
}

static void a_row_says_what_its_socket_speaks(void **state) {
    (void)state;
    static const struct {
        const char *row;
        enum pd_scheme scheme;
    } rows[] = { { "127.0.0.1:0", PD_BARE }, { "http://127.0.0.1:0", PD_HTTP }, { "https://[::1]:0", PD_HTTPS }, { "[::ffff:127.0.0.1]:0", PD_BARE } };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct pd_listeners l;
        struct fo_err e;
        if (open_both(-1, rows[i].row, NULL, &l, &e)) { /* a machine without IPv6 */
            assert_non_null(strchr(rows[i].row, '['));
            continue;
        }
        assert_int_equal(l.list[0].scheme, rows[i].scheme);
        assert_null(pd_listen_outside(&l));
        pd_listen_close(&l);
    }
}

static void a_passed_socket_is_not_bound_again(void **state) {
    (void)state;
    uint16_t port;
    char row[64];
    struct pd_listeners l;
    struct fo_err e;
    int fd = tcp("127.0.0.1", true, &port);
    snprintf(row, sizeof row, "http://127.0.0.1:%u", port);
    assert_int_equal(open_both(fd, row, NULL, &l, &e), FO_OK);
    assert_int_equal(l.n, 1);
    assert_true(l.list[0].fd == fd && l.list[0].passed && l.list[0].scheme == PD_HTTP);
    assert_int_equal(fcntl(fd, F_GETFD), FD_CLOEXEC);
    assert_true(fcntl(fd, F_GETFL) & O_NONBLOCK);
    pd_listen_close(&l);
    /* one for every address takes the row's too, */
    fd = tcp("0.0.0.0", true, &port);
    snprintf(row, sizeof row, "127.0.0.1:%u", port);
    assert_int_equal(open_both(fd, row, NULL, &l, &e), FO_OK);
    assert_int_equal(l.n, 1);
    assert_ptr_equal(pd_listen_outside(&l), &l.list[0]);
    pd_listen_close(&l);
    /* but cannot speak two languages */
    fd = tcp("0.0.0.0", true, &port);
    snprintf(row, sizeof row, "http://127.0.0.1:%u", port);
    assert_int_equal(open_both(fd, row, NULL, &l, &e), FO_EINVAL);
    assert_non_null(strstr(e.msg, row));
    pd_listen_close(&l);
    /* another port is another socket */
    fd = tcp("127.0.0.1", true, &port);
    assert_int_equal(open_both(fd, "127.0.0.1:0", NULL, &l, &e), FO_OK);
    assert_int_equal(l.n, 2);
    pd_listen_close(&l);
}

static void a_passed_socket_for_both_kinds_of_addresses_takes_ipv4_rows(void **state) {
    (void)state;
    struct sockaddr_in6 a = { .sin6_family = AF_INET6, .sin6_addr = IN6ADDR_ANY_INIT };
    socklen_t len = sizeof a;
    int off = 0, fd = socket(AF_INET6, SOCK_STREAM, 0);
    if (fd < 0) skip();
    setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
    if (bind(fd, (struct sockaddr *)&a, sizeof a)) skip();
    listen(fd, 5);
    getsockname(fd, (struct sockaddr *)&a, &len);
    char row[64];
    struct pd_listeners l;
    struct fo_err e;
    snprintf(row, sizeof row, "127.0.0.1:%u", ntohs(a.sin6_port));
    assert_int_equal(open_both(fd, row, NULL, &l, &e), FO_OK);
    assert_int_equal(l.n, 1);
    pd_listen_close(&l);
}

static void a_passed_unix_socket_is_for_administration_unless_a_row_names_it(void **state) {
    (void)state;
    const char *path = in_folder("s");
    char row[128];
    struct pd_listeners l;
    struct fo_err e;
    snprintf(row, sizeof row, "unix:%s", path);
    assert_int_equal(open_both(file_socket(path, 0660), NULL, path, &l, &e), FO_OK);
    assert_true(l.n == 1 && l.list[0].admin);
    pd_listen_close(&l);
    assert_int_equal(access(path, F_OK), 0); /* not ours to remove */
    unlink(path);
    assert_int_equal(open_both(file_socket(path, 0666), row, NULL, &l, &e), FO_OK);
    assert_true(l.n == 1 && !l.list[0].admin);
    pd_listen_close(&l);
    unlink(path);
    /* what systemd makes when nothing is said of its mode */
    assert_int_equal(open_both(file_socket(path, 0666), NULL, NULL, &l, &e), FO_EACCES);
    assert_true(strstr(e.msg, path) && strstr(e.msg, "SocketMode=0660") && strstr(e.msg, "mode 0666"));
    pd_listen_close(&l);
    unlink(path);
    /* nobody guards a name that is no file */
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    struct sockaddr_un a = { .sun_family = AF_UNIX };
    snprintf(a.sun_path + 1, sizeof a.sun_path - 1, "pd-%d", getpid());
    assert_int_equal(bind(fd, (struct sockaddr *)&a, sizeof a), 0);
    listen(fd, 5);
    assert_int_equal(open_both(fd, NULL, NULL, &l, &e), FO_EACCES);
    pd_listen_close(&l);
}

static void tells_what_a_socket_unit_got_wrong(void **state) {
    (void)state;
    struct pd_listeners l;
    struct fo_err e;
    uint16_t port;
    int pipes[2];
    assert_int_equal(open_both(socket(AF_INET, SOCK_DGRAM, 0), NULL, NULL, &l, &e), FO_EINVAL);
    assert_true(strstr(e.msg, "passed socket 1 (descriptor ") && strstr(e.msg, "'one'") && strstr(e.msg, "ListenStream="));
    pd_listen_close(&l);
    assert_int_equal(open_both(tcp("127.0.0.1", false, &port), NULL, NULL, &l, &e), FO_EINVAL);
    assert_non_null(strstr(e.msg, "Accept=no"));
    pd_listen_close(&l);
    assert_int_equal(pipe(pipes), 0);
    assert_int_equal(open_both(pipes[0], NULL, NULL, &l, &e), FO_EINVAL);
    assert_non_null(strstr(e.msg, "no socket"));
    pd_listen_close(&l);
    close(pipes[1]);
    /* all that follow a bad one are closed */
    struct pd_passed p = { .n = 2, .list = { { .fd = socket(AF_INET, SOCK_DGRAM, 0) }, { .fd = tcp("127.0.0.1", true, &port) } } };
    assert_int_equal(pd_listen_open(&(struct pd_listen_opts){ .passed = &p }, &l, &e), FO_EINVAL);
    pd_listen_close(&l);
    assert_true(fcntl(p.list[0].fd, F_GETFD) < 0 && fcntl(p.list[1].fd, F_GETFD) < 0);
}

static void takes_the_variables_out_of_the_environment(void **state) {
    (void)state;
    struct pd_passed p;
    struct fo_err e;
    char pid[32];
    snprintf(pid, sizeof pid, "%d", getpid());
    assert_int_equal(pd_notify_sockets(&p, &e), FO_OK);
    assert_int_equal(p.n, 0);
    static const struct {
        const char *pid, *n, *names;
        int code;
    } rows[] = { { "1", "1", "a", FO_OK },          { NULL, "", "", FO_EINVAL },       { NULL, "-1", "", FO_EINVAL },
                 { NULL, "1000000", "", FO_EINVAL }, { NULL, "99999999999", "", FO_EINVAL }, { NULL, "x", "", FO_EINVAL },
                 { "x", "1", "", FO_EINVAL } };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        setenv("LISTEN_PID", rows[i].pid ? rows[i].pid : pid, 1);
        setenv("LISTEN_FDS", rows[i].n, 1);
        setenv("LISTEN_FDNAMES", rows[i].names, 1);
        int code = pd_notify_sockets(&p, &e);
        if (code != rows[i].code) fail_msg("row %zu: code %d", i, code);
        if (code) assert_non_null(strstr(e.msg, "LISTEN_FDS="));
        assert_int_equal(p.n, 0);
        assert_true(!getenv("LISTEN_PID") && !getenv("LISTEN_FDS") && !getenv("LISTEN_FDNAMES"));
    }
}

static void an_address_that_was_mapped_is_what_it_was(void **state) {
    (void)state;
    struct sockaddr_storage a = { 0 };
    struct sockaddr_in6 v6 = { .sin6_family = AF_INET6, .sin6_port = htons(80) };
    inet_pton(AF_INET6, "::ffff:127.0.0.9", &v6.sin6_addr);
    memcpy(&a, &v6, sizeof v6);
    pd_address_unmap(&a);
    assert_int_equal(a.ss_family, AF_INET);
    assert_true(pd_address_is_loopback(&a));
    assert_int_equal(((struct sockaddr_in *)&a)->sin_port, htons(80));
    inet_pton(AF_INET6, "2001:db8::1", &v6.sin6_addr);
    memcpy(&a, &v6, sizeof v6);
    pd_address_unmap(&a);
    assert_true(a.ss_family == AF_INET6 && !pd_address_is_loopback(&a));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(opens_a_unix_socket_for_requests_beside_the_one_for_administration),
        cmocka_unit_test(a_row_says_what_its_socket_speaks),
        cmocka_unit_test(a_passed_socket_is_not_bound_again),
        cmocka_unit_test(a_passed_socket_for_both_kinds_of_addresses_takes_ipv4_rows),
        cmocka_unit_test(a_passed_unix_socket_is_for_administration_unless_a_row_names_it),
        cmocka_unit_test(tells_what_a_socket_unit_got_wrong),
        cmocka_unit_test(takes_the_variables_out_of_the_environment),
        cmocka_unit_test(an_address_that_was_mapped_is_what_it_was),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
