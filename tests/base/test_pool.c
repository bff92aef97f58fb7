/* The fork-join pool: every unit once, from any caller, awake or asleep; and how many CPUs a process may use. */
#include "foundry/base/pool.h"

#include <limits.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "foundry/base/err.h"
#include "tests/support/alloc.h"

static struct fo_pool *pool_of(int n) {
    struct fo_pool *p;
    struct fo_err e;
    if (fo_pool_new(n, &p, &e)) fail_msg("%s", e.msg);
    assert_int_equal(fo_pool_threads(p), n);
    return p;
}

struct job {
    int hits[257]; /* plain on purpose: each unit belongs to one thread, and the sanitizer would see if it did not */
    int by[257];
    int n_threads;
};

static void hit(void *arg, int lo, int hi, int thread) {
    struct job *j = arg;
    for (int i = lo; i < hi; i++) {
        j->hits[i]++;
        j->by[i] = thread;
    }
}

static void every_unit_runs_once_in_contiguous_ranges(void **state) {
    (void)state;
    static const int units[] = { 1, 2, 3, 4, 5, 7, 64, 257 };
    for (int n = 1; n <= 4; n++) {
        struct fo_pool *p = pool_of(n);
        for (size_t k = 0; k < sizeof units / sizeof *units; k++) {
            struct job j = { .n_threads = n };
            fo_pool_run(p, hit, &j, units[k]);
            for (int i = 0; i < 257; i++) assert_int_equal(j.hits[i], i < units[k]);
            for (int i = 1; i < units[k]; i++) assert_true(j.by[i] >= j.by[i - 1] && j.by[i] < n);
        }
        struct job none = { 0 };
        fo_pool_run(p, hit, &none, 0);
        fo_pool_run(p, hit, &none, -1);
        assert_int_equal(none.hits[0], 0);
        fo_pool_free(p);
    }
}

/* Which of the two ways a job of 100 units ran: 3 = split over three threads, 1 = all by the caller (see solo in pool.c). */
static int ways(const struct job *j) {
    bool split = true, solo = true;
    for (int i = 0; i < 100; i++) {
        split &= j->by[i] == (i < 33 ? 0 : i < 66 ? 1 : 2);
        solo &= j->by[i] == 0;
    }
    return split ? 3 : solo ? 1 : 0;
}

static void the_split_depends_on_nothing_but_the_counts(void **state) {
    (void)state;
    struct fo_pool *p = pool_of(3);
    for (int k = 0; k < 100; k++) {
        struct job j = { 0 };
        fo_pool_run(p, hit, &j, 100);
        assert_int_not_equal(ways(&j), 0);
    }
    fo_pool_free(p);
}

static void sleep_ms(int ms) {
    struct timespec t = { ms / 1000, ms % 1000 * 1000000L };
    nanosleep(&t, NULL);
}

static void held_up(void *arg, int lo, int hi, int thread) {
    if (thread > 0) sleep_ms(3);
    hit(arg, lo, hi, thread);
}

static void a_join_that_was_held_up_sends_the_caller_into_solo_for_a_while(void **state) {
    (void)state;
    struct fo_pool *p = pool_of(3);
    struct job j = { 0 };
    int way = 0;
    for (int k = 0; k < 50 && way != 1; k++) { /* a busy host may let the while pass before the next job */
        fo_pool_run(p, held_up, &j, 100);
        fo_pool_run(p, hit, &j, 100);
        way = ways(&j);
    }
    assert_int_equal(way, 1);
    for (int k = 0; k < 50 && way != 3; k++) {
        sleep_ms(100); /* longer than any solo */
        fo_pool_run(p, hit, &j, 100);
        way = ways(&j);
    }
    assert_int_equal(way, 3);
    fo_pool_free(p);
}

static void add(void *arg, int lo, int hi, int thread) {
    long *sums = arg; /* [8 * n_threads], a cache line each */
    for (int i = lo; i < hi; i++) sums[8 * thread] += i;
}

static void many_jobs_follow_each_other_without_a_gap(void **state) {
    (void)state;
    for (int n = 1; n <= 4; n *= 2) {
        struct fo_pool *p = pool_of(n);
        long sums[32] = { 0 };
        int n_jobs = n > 2 ? 200 : 5000; /* more threads than cores take a slice of the scheduler per join */
        for (int k = 0; k < n_jobs; k++) fo_pool_run(p, add, sums, 10);
        assert_int_equal(sums[0] + sums[8] + sums[16] + sums[24], 45L * n_jobs);
        fo_pool_free(p);
    }
}

/* The other thread holds what it took until all the rest is done. */
struct held {
    struct job j;
    atomic_int done;
};

static void held_back(void *arg, int lo, int hi, int thread) {
    struct held *h = arg;
    for (int ms = 0; thread > 0 && atomic_load(&h->done) < 190 && ms < 10000; ms++) sleep_ms(1);
    hit(&h->j, lo, hi, thread);
    atomic_fetch_add(&h->done, hi - lo);
}

static void shared_units_go_once_each_to_whoever_is_free(void **state) {
    (void)state;
    static const int units[] = { 1, 2, 3, 31, 64, 100, 257 }, grains[] = { 0, 1, 7, 32, 256, INT_MAX };
    for (int n = 1; n <= 4; n++) {
        struct fo_pool *p = pool_of(n);
        for (size_t k = 0; k < sizeof units / sizeof *units; k++)
            for (size_t g = 0; g < sizeof grains / sizeof *grains; g++) {
                struct job j = { .n_threads = n };
                int grain = grains[g] ? grains[g] : 1;
                fo_pool_share(p, hit, &j, units[k], grains[g]);
                for (int i = 0; i < 257; i++) assert_int_equal(j.hits[i], i < units[k]);
                for (int i = 0; i < units[k]; i++) assert_int_equal(j.by[i], j.by[i / grain * grain]);
            }
        struct job none = { 0 };
        fo_pool_share(p, hit, &none, 0, 4);
        assert_int_equal(none.hits[0], 0);
        fo_pool_free(p);
    }
    struct fo_pool *p = pool_of(2);
    struct held h = { 0 };
    fo_pool_share(p, held_back, &h, 200, 10);
    int by_other = 0;
    for (int i = 0; i < 200; i++) assert_int_equal(h.j.hits[i], 1), by_other += h.j.by[i];
    assert_true(by_other <= 10); /* one taking, or none */
    fo_pool_free(p);
}

static void workers_wake_from_sleep(void **state) {
    (void)state;
    struct fo_pool *p = pool_of(4);
    for (int k = 0; k < 30; k++) {
        struct job j = { 0 };
        fo_pool_run(p, hit, &j, 64);
        for (int i = 0; i < 64; i++) assert_int_equal(j.hits[i], 1);
        sleep_ms(k % 3); /* from within the spin to well past it */
    }
    fo_pool_free(p);
}

static double cpu_seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void an_idle_pool_burns_nothing(void **state) {
    (void)state;
    struct fo_pool *p = pool_of(4);
    struct job j = { 0 };
    fo_pool_run(p, hit, &j, 64);
    sleep_ms(50); /* the spin is over long before */
    double before = cpu_seconds();
    sleep_ms(300);
    double used = cpu_seconds() - before;
    if (used > 0.005) fail_msg("%.1f ms of CPU in 300 idle ms", used * 1e3);
    fo_pool_free(p);
}

struct caller {
    struct fo_pool *pool;
    long sums[32];
    atomic_int *inside;
    int bad;
};

static void one_at_a_time(void *arg, int lo, int hi, int thread) {
    struct caller *c = arg;
    if (thread == 0 && atomic_fetch_add(c->inside, 1) != 0) c->bad = 1;
    add(c->sums, lo, hi, thread);
    if (thread == 0) atomic_fetch_sub(c->inside, 1);
}

static void *call_often(void *arg) {
    struct caller *c = arg;
    for (int k = 0; k < 100; k++) fo_pool_run(c->pool, one_at_a_time, c, 10);
    return NULL;
}

static void several_callers_take_turns(void **state) {
    (void)state;
    for (int n = 1; n <= 4; n *= 2) {
        struct fo_pool *p = pool_of(n);
        atomic_int inside = 0;
        struct caller callers[4] = { { 0 } };
        pthread_t threads[4];
        for (int i = 0; i < 4; i++) {
            callers[i].pool = p;
            callers[i].inside = &inside;
            assert_int_equal(pthread_create(&threads[i], NULL, call_often, &callers[i]), 0);
        }
        for (int i = 0; i < 4; i++) {
            pthread_join(threads[i], NULL);
            const long *s = callers[i].sums;
            assert_int_equal(s[0] + s[8] + s[16] + s[24], 45 * 100);
            assert_int_equal(callers[i].bad, 0);
        }
        fo_pool_free(p);
    }
}

static void a_job_allocates_nothing(void **state) {
    (void)state;
    struct fo_pool *p = pool_of(2);
    struct job j = { 0 };
    test_fail_alloc(0);
    fo_pool_run(p, hit, &j, 64);
    assert_int_equal(test_allocs(), 0);
    fo_pool_free(p);
}

static void refuses_counts_that_make_no_sense(void **state) {
    (void)state;
    struct fo_pool *p = NULL;
    struct fo_err e;
    assert_int_equal(fo_pool_new(-1, &p, &e), FO_EINVAL);
    assert_int_equal(fo_pool_new(100000, &p, &e), FO_EINVAL);
    assert_null(p);
    fo_pool_free(NULL);
    assert_int_equal(fo_pool_new(0, &p, &e), 0);
    assert_true(fo_pool_threads(p) >= 1 && fo_pool_threads(p) <= sysconf(_SC_NPROCESSORS_CONF));
    fo_pool_free(p);
}

/* --- CPUs ----------------------------------------------------------------------------------------------------------------- */

static char root[64];

static void put(const char *path, const char *text) {
    char full[256];
    for (const char *p = path + 1; (p = strchr(p, '/')); p++) {
        snprintf(full, sizeof full, "%s%.*s", root, (int)(p - path), path);
        mkdir(full, 0755);
    }
    snprintf(full, sizeof full, "%s%s", root, path);
    FILE *f = fopen(full, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static int new_root(void **state) {
    (void)state;
    strcpy(root, "/tmp/pantheon-cpus-XXXXXX");
    return mkdtemp(root) ? 0 : -1;
}

static int remove_root(void **state) {
    (void)state;
    char command[96];
    snprintf(command, sizeof command, "rm -rf %s", root);
    return system(command);
}

static void without_cgroup_files_there_is_no_quota(void **state) {
    (void)state;
    assert_int_equal(fo_cpu_quota(root), 0);
    put("/proc/self/cgroup", "0::/\n");
    assert_int_equal(fo_cpu_quota(root), 0);
    assert_true(fo_cpu_count() >= 1);
}

static void the_tightest_group_of_v2_counts(void **state) {
    (void)state;
    put("/proc/self/cgroup", "0::/system.slice/pantheond.service\n");
    put("/sys/fs/cgroup/system.slice/pantheond.service/cpu.max", "max 100000\n");
    assert_int_equal(fo_cpu_quota(root), 0);
    put("/sys/fs/cgroup/system.slice/cpu.max", "350000 100000\n");
    assert_int_equal(fo_cpu_quota(root), 4);
    put("/sys/fs/cgroup/system.slice/pantheond.service/cpu.max", "50000 100000\n");
    assert_int_equal(fo_cpu_quota(root), 1);
}

static void in_a_container_the_mounts_root_counts(void **state) {
    (void)state;
    put("/proc/self/cgroup", "0::/docker/0123\n"); /* a path of the host that is not visible here */
    put("/sys/fs/cgroup/cpu.max", "150000 100000\n");
    assert_int_equal(fo_cpu_quota(root), 2);
}

static void the_cpu_hierarchy_of_v1_counts(void **state) {
    (void)state;
    put("/proc/self/cgroup", "12:memory:/a\n4:cpuacct,cpu:/a/b\n3:cpuset:/\n0::/a\n");
    put("/sys/fs/cgroup/cpu/a/b/cpu.cfs_quota_us", "-1\n");
    put("/sys/fs/cgroup/cpu/a/b/cpu.cfs_period_us", "100000\n");
    assert_int_equal(fo_cpu_quota(root), 0);
    put("/sys/fs/cgroup/cpu/a/cpu.cfs_quota_us", "200001\n");
    put("/sys/fs/cgroup/cpu/a/cpu.cfs_period_us", "100000\n");
    assert_int_equal(fo_cpu_quota(root), 3);
}

static void broken_quota_files_are_no_quota(void **state) {
    (void)state;
    static const char *const texts[] = { "", "\n", "abc", "100000", "100000 0", "0 100000", "-5 100000", "99999999999999999999999 1" };
    put("/proc/self/cgroup", "0::/\nnonsense\n:\n");
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        put("/sys/fs/cgroup/cpu.max", texts[i]);
        assert_int_equal(fo_cpu_quota(root), 0);
    }
}

static void siblings(int cpu, const char *list) {
    char path[128];
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/topology/thread_siblings_list", cpu);
    put(path, list);
}

static void hyperthreads_of_one_core_count_once(void **state) {
    (void)state;
    bool allowed[8] = { true, true, true, true, true, true, true, true };
    assert_int_equal(fo_cpu_cores(root, allowed, 8), 8); /* nothing is known of them */
    for (int i = 0; i < 4; i++) {
        siblings(i, i % 2 ? "1,3\n" : "0,2\n");
        siblings(4 + i, i < 2 ? "4-5\n" : "6-7\n");
    }
    assert_int_equal(fo_cpu_cores(root, allowed, 8), 4);
    /* A sibling outside the affinity does not stand for the one within. */
    allowed[0] = allowed[4] = false;
    assert_int_equal(fo_cpu_cores(root, allowed, 8), 4);
    allowed[2] = allowed[5] = false;
    assert_int_equal(fo_cpu_cores(root, allowed, 8), 2);
    memset(allowed, 0, sizeof allowed);
    assert_int_equal(fo_cpu_cores(root, allowed, 8), 0);
}

static void broken_topology_files_name_no_sibling(void **state) {
    (void)state;
    static const char *const texts[] = { "", "\n", "abc", "-", "9-", "0x", "99999999999999999999-1", "5,,0", "1-0" };
    const bool allowed[2] = { true, true };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        siblings(1, texts[i]);
        int n = fo_cpu_cores(root, allowed, 2);
        assert_true(n == 1 || n == 2);
        assert_int_equal(n, strcmp(texts[i], "0x") == 0 ? 1 : 2);
    }
}

int main(void) {
#define WITH_ROOT(test) cmocka_unit_test_setup_teardown(test, new_root, remove_root)
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_unit_runs_once_in_contiguous_ranges),
        cmocka_unit_test(the_split_depends_on_nothing_but_the_counts),
        cmocka_unit_test(a_join_that_was_held_up_sends_the_caller_into_solo_for_a_while),
        cmocka_unit_test(many_jobs_follow_each_other_without_a_gap),
        cmocka_unit_test(shared_units_go_once_each_to_whoever_is_free),
        cmocka_unit_test(workers_wake_from_sleep),
        cmocka_unit_test(an_idle_pool_burns_nothing),
        cmocka_unit_test(several_callers_take_turns),
        cmocka_unit_test(a_job_allocates_nothing),
        cmocka_unit_test(refuses_counts_that_make_no_sense),
        WITH_ROOT(without_cgroup_files_there_is_no_quota),
        WITH_ROOT(the_tightest_group_of_v2_counts),
        WITH_ROOT(in_a_container_the_mounts_root_counts),
        WITH_ROOT(the_cpu_hierarchy_of_v1_counts),
        WITH_ROOT(broken_quota_files_are_no_quota),
        WITH_ROOT(hyperthreads_of_one_core_count_once),
        WITH_ROOT(broken_topology_files_name_no_sibling),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
