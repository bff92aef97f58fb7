/* Reading files, and maps of files that somebody truncates, rewrites or replaces while they are read. */
#include "foundry/base/file.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "foundry/base/err.h"
#include "foundry/base/pool.h"
#include "tests/support/alloc.h"
#include "tests/support/sigbus.h"

enum { PAGES = 16 };

static char dir[64], path[128];
static size_t page;

static int set_up(void **state) {
    (void)state;
    page = (size_t)sysconf(_SC_PAGESIZE);
    strcpy(dir, "/tmp/pantheon-file-XXXXXX");
    if (!mkdtemp(dir)) return -1;
    snprintf(path, sizeof path, "%s/model", dir);
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    char other[160];
    snprintf(other, sizeof other, "%s.new", path);
    unlink(path);
    unlink(other);
    return rmdir(dir);
}

/* n bytes of value v, last written a while ago (so that a later write shows in the mtime). */
static void put(const char *name, size_t n, int v) {
    char *bytes = malloc(n + 1);
    assert_non_null(bytes);
    memset(bytes, v, n);
    int fd = open(name, O_WRONLY | O_CREAT | O_TRUNC, 0644);
    assert_true(fd >= 0 && write(fd, bytes, n) == (ssize_t)n);
    const struct timespec old[2] = { { 1000000000, 0 }, { 1000000000, 0 } };
    assert_int_equal(futimens(fd, old), 0);
    close(fd);
    free(bytes);
}

static struct fo_map *map_of(size_t n) {
    struct fo_map *m;
    struct fo_err e;
    put(path, n, 'x');
    test_sigbus_guard();
    if (fo_map_open(path, &m, &e)) fail_msg("%s", e.msg);
    assert_int_equal(fo_map_size(m), n);
    assert_int_equal(fo_map_state(m, &e), FO_OK);
    return m;
}

static uint8_t at(const struct fo_map *m, size_t offset) {
    return ((volatile const uint8_t *)fo_map_data(m))[offset];
}

/* --- faults that are not ours -------------------------------------------------------------------------------------------------- */

static void exit_42(int sig) {
    (void)sig;
    _exit(42);
}

static void exit_43(int sig, siginfo_t *info, void *ctx) {
    (void)sig, (void)ctx;
    _exit(info->si_addr ? 43 : 44);
}

/* A process of its own: sets a handler, has the library install its own over it, and faults in a map that is not the library's. */
static int foreign_fault(const char *previous, const char *ours, const char *theirs) {
    struct sigaction sa = { .sa_flags = 0 };
    struct fo_map *m;
    struct fo_err e;
    if (strcmp(previous, "42") == 0) sa.sa_handler = exit_42;
    else if (strcmp(previous, "43") == 0) sa.sa_sigaction = exit_43, sa.sa_flags = SA_SIGINFO;
    else sa.sa_handler = SIG_DFL;
    sigaction(SIGBUS, &sa, NULL);
    if (fo_map_open(ours, &m, &e)) return 1;
    int fd = open(theirs, O_RDWR);
    volatile const uint8_t *p = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE, fd, 0);
    if (ftruncate(fd, 0) == 0) (void)p[0];
    return 0;
}

static int status_of_foreign_fault(const char *previous) {
    char theirs[160];
    snprintf(theirs, sizeof theirs, "%s.new", path);
    put(path, page, 'x');
    put(theirs, page, 'x');
    pid_t child = fork();
    if (child == 0) {
        execl("/proc/self/exe", "test_file", "--foreign", previous, path, theirs, (char *)NULL);
        _exit(1);
    }
    int status = 0;
    assert_true(child > 0 && waitpid(child, &status, 0) == child);
    return status;
}

static void faults_that_are_not_ours_reach_the_handler_that_was_there(void **state) {
    (void)state;
    if (getenv("TEST_EMULATED")) { /* /proc/self/exe is the emulator then */
        print_message("an emulated program cannot start itself again\n");
        skip();
    }
    int status = status_of_foreign_fault("42");
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 42);
    status = status_of_foreign_fault("43");
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 43);
    status = status_of_foreign_fault("default");
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGBUS);
}

/* --- reading ------------------------------------------------------------------------------------------------------------------- */

static void reads_a_file_whole_and_ends_it_with_a_nul(void **state) {
    (void)state;
    static const size_t sizes[] = { 0, 1, 4095, 4096, 4097, 100000 };
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        char *data;
        size_t len;
        struct fo_err e;
        put(path, sizes[i], 'a');
        assert_int_equal(fo_file_read(path, 100000, &data, &len, &e), 0);
        assert_int_equal(len, sizes[i]);
        assert_int_equal(strlen(data), sizes[i]);
        free(data);
    }
}

static void reads_files_that_claim_to_be_empty(void **state) {
    (void)state;
    char *data;
    size_t len;
    struct fo_err e;
    if (fo_file_read("/proc/self/maps", 1 << 20, &data, &len, &e)) fail_msg("%s", e.msg);
    assert_true(len > 500);
    assert_non_null(strstr(data, "test_file"));
    free(data);
    assert_int_equal(fo_file_read("/proc/self/maps", 100, &data, &len, &e), FO_ELIMIT);
    assert_int_equal(e.have, 100);
}

static void refuses_what_it_cannot_read(void **state) {
    (void)state;
    char *data = NULL;
    size_t len = 7;
    struct fo_err e;
    assert_int_equal(fo_file_read(path, 10, &data, &len, &e), FO_ENOENT);
    assert_non_null(strstr(e.msg, path));
    assert_int_equal(fo_file_read(dir, 10, &data, &len, &e), FO_EFORMAT);
    put(path, 11, 'a');
    assert_int_equal(fo_file_read(path, 10, &data, &len, &e), FO_ELIMIT);
    assert_true(e.need == 11 && e.have == 10);
    unlink(path);
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_int_equal(fo_file_read(path, 10, &data, &len, &e), FO_EFORMAT); /* and does not wait for a writer */
    assert_true(data == NULL && len == 7);
}

static void failing_allocations_are_errors(void **state) {
    (void)state;
    char *data;
    size_t len;
    struct fo_map *m;
    struct fo_err e;
    put(path, 10000, 'a');
    test_fail_alloc(1);
    assert_int_equal(fo_file_read(path, 10000, &data, &len, &e), FO_ENOMEM);
    test_fail_alloc(1);
    assert_int_equal(fo_map_open(path, &m, &e), FO_ENOMEM);
    test_alloc_failed();
    for (long n = 1;; n++) {
        test_fail_alloc(n);
        int rc = fo_file_read("/proc/self/status", 1 << 20, &data, &len, &e);
        if (!test_alloc_failed()) break;
        assert_int_equal(rc, FO_ENOMEM);
    }
    free(data);
}

/* --- maps ---------------------------------------------------------------------------------------------------------------------- */

static void maps_only_regular_files_with_something_in_them(void **state) {
    (void)state;
    struct fo_map *m = NULL;
    struct fo_err e;
    assert_int_equal(fo_map_open(path, &m, &e), FO_ENOENT);
    assert_int_equal(fo_map_open(dir, &m, &e), FO_EFORMAT);
    assert_int_equal(fo_map_open("/dev/null", &m, &e), FO_EFORMAT);
    put(path, 0, 0);
    assert_int_equal(fo_map_open(path, &m, &e), FO_EFORMAT);
    assert_non_null(strstr(e.msg, "empty"));
    assert_null(m);
    fo_map_close(NULL);
    m = map_of(10);
    assert_string_equal(fo_map_path(m), path);
    assert_memory_equal(fo_map_data(m), "xxxxxxxxxx", 10);
    assert_false(fo_map_replaced(m));
    fo_map_close(m);
}

static void a_file_truncated_while_it_is_read_loses_the_map_and_not_the_process(void **state) {
    (void)state;
    struct fo_map *m = map_of(PAGES * page);
    struct fo_err e;
    assert_int_equal(at(m, 0), 'x');
    assert_int_equal(truncate(path, (off_t)(2 * page + 100)), 0);
    assert_int_equal(at(m, 2 * page + 99), 'x');
    assert_int_equal(at(m, 2 * page + 100), 0);        /* the rest of the last page */
    assert_int_equal(at(m, 3 * page), 0);              /* faults, and goes on with zeros */
    assert_int_equal(at(m, PAGES * page - 1), 0);      /* does not fault again */
    assert_int_equal(truncate(path, 0), 0);
    assert_int_equal(at(m, 0), 0);                     /* what came before faults now */
    assert_int_equal(fo_map_state(m, &e), FO_ELOST);
    assert_non_null(strstr(e.msg, path));
    assert_non_null(strstr(e.msg, "truncated while in use"));
    assert_true(e.need == PAGES * page && e.have == 0);
    fo_map_close(m);
}

static void a_truncation_is_known_before_anything_faults(void **state) {
    (void)state;
    struct fo_map *m = map_of(PAGES * page);
    struct fo_err e;
    assert_int_equal(truncate(path, (off_t)(PAGES * page - 1)), 0);
    assert_int_equal(fo_map_state(m, &e), FO_ELOST);
    fo_map_close(m);
}

static void a_fault_is_remembered_although_the_file_looks_the_same_again(void **state) {
    (void)state;
    struct fo_map *m = map_of(PAGES * page);
    struct fo_err e;
    assert_int_equal(truncate(path, 0), 0);
    assert_int_equal(at(m, page), 0);
    put(path, PAGES * page, 'x'); /* same size, same mtime */
    assert_int_equal(fo_map_state(m, &e), FO_ELOST);
    assert_non_null(strstr(e.msg, "for a moment"));
    fo_map_close(m);
}

static void a_file_rewritten_or_extended_in_place_is_lost(void **state) {
    (void)state;
    struct fo_map *m = map_of(PAGES * page);
    struct fo_err e;
    int fd = open(path, O_WRONLY);
    assert_true(fd >= 0 && pwrite(fd, "y", 1, 5) == 1);
    assert_int_equal(fo_map_state(m, &e), FO_ELOST);
    assert_non_null(strstr(e.msg, "written to"));
    fo_map_close(m);
    m = map_of(PAGES * page);
    assert_true(pwrite(fd, "y", 1, (off_t)(PAGES * page)) == 1);
    close(fd);
    assert_int_equal(fo_map_state(m, &e), FO_ELOST);
    assert_non_null(strstr(e.msg, "extended"));
    fo_map_close(m);
}

/* Kilobytes of the map that this process holds in memory. */
static long resident(const struct fo_map *m) {
    char line[256], want[32];
    long kb = -1;
    FILE *f = fopen("/proc/self/smaps", "re");
    assert_non_null(f);
    snprintf(want, sizeof want, "%lx-", (unsigned long)(uintptr_t)fo_map_data(m));
    while (fgets(line, sizeof line, f) && strncmp(line, want, strlen(want)) != 0) {}
    while (fgets(line, sizeof line, f) && sscanf(line, "Rss: %ld kB", &kb) != 1) {}
    fclose(f);
    return kb;
}

static void what_is_forgotten_leaves_memory_and_can_be_read_again(void **state) {
    (void)state;
    enum { N = 1 << 20 };
    struct fo_map *m = map_of(N);
    for (size_t i = 0; i < N; i += 4096) assert_int_equal(at(m, i), 'x');
    long before = resident(m);
    assert_true(before > N / 2048); /* not exactly: under pressure the kernel takes pages by itself */
    fo_map_forget(NULL, fo_map_data(m), N);
    fo_map_forget(m, fo_map_data(m) + 1, 4094); /* no whole page */
    assert_true(resident(m) > before / 2);
    fo_map_forget(m, fo_map_data(m) + 1, N - 2);
    long after = resident(m);
    assert_true(after >= 0 && after < before / 4); /* the pages at both ends stay */
    for (size_t i = 0; i < N; i++) assert_int_equal(at(m, i), 'x');
    fo_map_close(m);
}

/* Pages of the map that are in the system's cache. */
static size_t cached(const struct fo_map *m, size_t n) {
    unsigned char in[1 << 10];
    size_t k = 0;
    assert_true(n / page <= sizeof in);
    assert_int_equal(mincore((void *)(uintptr_t)fo_map_data(m), n, in), 0);
    for (size_t i = 0; i < n / page; i++) k += in[i] & 1;
    return k;
}

static void what_is_dropped_leaves_the_cache_too(void **state) {
    (void)state;
    enum { N = 1 << 20 };
    struct fo_map *m = map_of(N);
    struct statfs fs;
    struct fo_err e;
    int fd = open(path, O_RDWR | O_CLOEXEC);
    assert_true(fd >= 0 && fsync(fd) == 0 && fstatfs(fd, &fs) == 0); /* what is not on the disk yet stays */
    close(fd);
    for (size_t i = 0; i < N; i += 4096) assert_int_equal(at(m, i), 'x');
    size_t before = cached(m, N);
    assert_true(before > 0);
    fo_map_forget(m, fo_map_data(m), N);
    assert_int_equal(cached(m, N), before);
    fo_map_drop(m);
    if (fs.f_type != TMPFS_MAGIC) assert_true(cached(m, N) < before / 4); /* what lies there is nowhere else */
    for (size_t i = 0; i < N; i++) assert_int_equal(at(m, i), 'x');
    assert_int_equal(fo_map_state(m, &e), FO_OK);
    fo_map_close(m);
}

static void a_file_replaced_by_rename_or_removed_is_kept_and_known_as_replaced(void **state) {
    (void)state;
    struct fo_map *m = map_of(PAGES * page);
    struct fo_err e;
    char other[160];
    snprintf(other, sizeof other, "%s.new", path);
    put(other, page, 'y');
    assert_int_equal(rename(other, path), 0);
    assert_true(fo_map_replaced(m));
    assert_int_equal(fo_map_state(m, &e), FO_OK);
    assert_int_equal(at(m, PAGES * page - 1), 'x');
    unlink(path);
    assert_true(fo_map_replaced(m));
    assert_int_equal(fo_map_state(m, &e), FO_OK);
    assert_int_equal(at(m, page), 'x');
    fo_map_close(m);
}

static void no_more_maps_than_the_handler_can_know(void **state) {
    (void)state;
    struct fo_map *maps[1024], *m = NULL;
    struct fo_err e;
    put(path, 100, 'x');
    test_sigbus_guard();
    for (int i = 0; i < 1024; i++)
        if (fo_map_open(path, &maps[i], &e)) fail_msg("%d: %s", i, e.msg);
    assert_int_equal(fo_map_open(path, &m, &e), FO_ELIMIT);
    assert_true(e.need == 1025 && e.have == 1024);
    fo_map_close(maps[100]);
    assert_int_equal(fo_map_open(path, &maps[100], &e), 0);
    assert_int_equal(truncate(path, 0), 0);
    for (int i = 0; i < 1024; i++) {
        assert_int_equal(at(maps[i], 0), 0);
        fo_map_close(maps[i]);
    }
}

struct reader {
    const struct fo_map *map;
    atomic_int rounds, stop;
};

static void sum(void *arg, int lo, int hi, int thread) {
    struct reader *r = arg;
    (void)thread;
    for (int i = lo; i < hi; i++) at(r->map, (size_t)i * page);
}

static void *read_all_the_time(void *arg) {
    struct reader *r = arg;
    struct fo_pool *p;
    struct fo_err e;
    if (fo_pool_new(3, &p, &e)) return NULL;
    while (!atomic_load(&r->stop)) {
        fo_pool_run(p, sum, r, PAGES);
        atomic_fetch_add(&r->rounds, 1);
    }
    fo_pool_free(p);
    return NULL;
}

static void compute_threads_survive_a_truncation_under_their_hands(void **state) {
    (void)state;
    for (int k = 0; k < 20; k++) {
        struct reader r = { .map = map_of(PAGES * page) };
        struct fo_err e;
        pthread_t t;
        const struct timespec nap = { 0, 200000 };
        assert_int_equal(pthread_create(&t, NULL, read_all_the_time, &r), 0);
        while (atomic_load(&r.rounds) < 3) nanosleep(&nap, NULL);
        assert_int_equal(truncate(path, 0), 0);
        for (int before = atomic_load(&r.rounds); atomic_load(&r.rounds) < before + 3;) nanosleep(&nap, NULL);
        atomic_store(&r.stop, 1);
        pthread_join(t, NULL);
        assert_int_equal(fo_map_state(r.map, &e), FO_ELOST);
        fo_map_close((struct fo_map *)r.map);
    }
}

int main(int argc, char **argv) {
    if (argc == 5 && strcmp(argv[1], "--foreign") == 0) return foreign_fault(argv[2], argv[3], argv[4]);
    test_sigbus_init();
#define IN_DIR(test) cmocka_unit_test_setup_teardown(test, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        IN_DIR(faults_that_are_not_ours_reach_the_handler_that_was_there),
        IN_DIR(reads_a_file_whole_and_ends_it_with_a_nul),
        IN_DIR(reads_files_that_claim_to_be_empty),
        IN_DIR(refuses_what_it_cannot_read),
        IN_DIR(failing_allocations_are_errors),
        IN_DIR(maps_only_regular_files_with_something_in_them),
        IN_DIR(a_file_truncated_while_it_is_read_loses_the_map_and_not_the_process),
        IN_DIR(a_truncation_is_known_before_anything_faults),
        IN_DIR(a_fault_is_remembered_although_the_file_looks_the_same_again),
        IN_DIR(a_file_rewritten_or_extended_in_place_is_lost),
        IN_DIR(what_is_forgotten_leaves_memory_and_can_be_read_again),
        IN_DIR(what_is_dropped_leaves_the_cache_too),
        IN_DIR(a_file_replaced_by_rename_or_removed_is_kept_and_known_as_replaced),
        IN_DIR(no_more_maps_than_the_handler_can_know),
        IN_DIR(compute_threads_survive_a_truncation_under_their_hands),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
