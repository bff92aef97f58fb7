/* Sim dies: the grammar of scripts word by word, exact accounting, each scripted fault, loss and return, and that the numbers are the
 * cpu's. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <cmocka.h>

#include "foundry/base/err.h"
#include "foundry/base/rng.h"
#include "foundry/device.h"
#include "foundry/ops.h"
#include "foundry/sim/script.h"
#include "foundry/sim/sim.h"
#include "tests/support/alloc.h"

enum { MIB = 1 << 20 };

static struct fo_device *open_sim(uint64_t bytes, const char *script) {
    struct fo_device *d = NULL;
    struct fo_err e = { 0 };
    struct fo_device_opts o = { .n_threads = 1, .memory_bytes = bytes, .script = script };
    if (fo_device_open("sim", "s0", &o, &d, &e)) fail_msg("%s", e.msg);
    return d;
}

static uint64_t free_now(struct fo_device *d) {
    uint64_t total, left = 0;
    struct fo_err e = { 0 };
    if (d->memory(d, &total, &left, &e)) fail_msg("%s", e.msg);
    assert_int_equal(total, d->die.memory_bytes);
    return left;
}

static void *take(struct fo_device *d, uint64_t bytes) {
    void *p = NULL;
    struct fo_err e = { 0 };
    if (d->alloc(d, bytes, &p, &e)) fail_msg("%s", e.msg);
    return p;
}

static struct fo_stream *open_stream(struct fo_device *d) {
    struct fo_stream *s = NULL;
    struct fo_err e = { 0 };
    if (d->stream_open(d, 8, 64, 64, &s, &e)) fail_msg("%s", e.msg);
    return s;
}

static double now_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

static void sleep_ms(int ms) {
    struct timespec t = { ms / 1000, ms % 1000 * 1000000L };
    nanosleep(&t, NULL);
}

static const char *temp(const char *what) {
    static char path[128];
    const char *dir = getenv("TMPDIR");
    snprintf(path, sizeof path, "%s/pantheon-sim-%d-%s", dir && strlen(dir) < 64 ? dir : "/tmp", (int)getpid(), what);
    return path;
}

static void write_file(const char *path, const char *text) {
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

/* --- scripts --- */

static void understands_every_clause(void **state) {
    (void)state;
    struct fo_sim_script s;
    struct fo_err e = { 0 };
    static const char text[] = "alloc 3 fails, op 5-7 takes 20ms,matmul 2- fails , free late 500ms, foreign 100MiB after 2s for 3s,"
                               "foreign file=/tmp/a, lost at upload 4 for 1s, lost after 1min, lost file=/tmp/b, attend takes 1ms, reads power 55 after 2s for 3s";
    if (fo_sim_script_parse(text, strlen(text), &s, &e)) fail_msg("%s", e.msg);
    assert_int_equal(s.n, 11);
    const struct fo_sim_clause *c = s.clause;
    assert_true(c[0].verb == FO_SIM_FAILS && c[0].subject == FO_SIM_ALLOC && c[0].first == 3 && c[0].last == 3);
    assert_true(c[1].verb == FO_SIM_TAKES && c[1].subject == FO_SIM_OP && c[1].first == 5 && c[1].last == 7 && c[1].ms == 20);
    assert_true(c[2].verb == FO_SIM_FAILS && c[2].subject == FO_SIM_MATMUL && c[2].first == 2 && c[2].last == UINT64_MAX);
    assert_true(c[3].verb == FO_SIM_LATE && c[3].subject == FO_SIM_FREE && c[3].first == 1 && c[3].last == UINT64_MAX && c[3].ms == 500);
    assert_true(c[4].verb == FO_SIM_FOREIGN && c[4].bytes == 100 * MIB && c[4].after_ms == 2000 && c[4].for_ms == 3000);
    assert_true(c[5].verb == FO_SIM_FOREIGN_FILE);
    assert_string_equal(c[5].path, "/tmp/a");
    assert_true(c[6].verb == FO_SIM_LOST_AT && c[6].subject == FO_SIM_UPLOAD && c[6].first == 4 && c[6].for_ms == 1000);
    assert_true(c[7].verb == FO_SIM_LOST_AFTER && c[7].after_ms == 60000 && c[7].for_ms == UINT64_MAX);
    assert_true(c[8].verb == FO_SIM_LOST_FILE);
    assert_string_equal(c[8].path, "/tmp/b");
    assert_true(c[9].subject == FO_SIM_ATTEND && c[9].ms == 1);
    assert_true(c[10].verb == FO_SIM_READS && c[10].reading == FO_SIM_POWER && c[10].value == 55 && c[10].after_ms == 2000 && c[10].for_ms == 3000);
    assert_int_equal(fo_sim_script_parse("  ", 2, &s, &e), FO_OK);
    assert_int_equal(s.n, 0);
}

static void names_the_word_that_it_does_not_understand(void **state) {
    (void)state;
    static const struct {
        const char *text, *word;
    } bad[] = {
        { "aloc 3 fails", "'aloc'" },
        { "alloc 0 fails", "'0'" },
        { "alloc 5-3 fails", "'5-3'" },
        { "alloc 3x fails", "'3x'" },
        { "alloc 99999999999999999999 fails", "'99999999999999999999'" },
        { "alloc 3 fial", "'fial'" },
        { "alloc 3", "ends" },
        { "alloc 3 fails twice", "'twice'" },
        { "op takes 20", "'20'" },
        { "op takes", "ends" },
        { "op late 5ms", "'late'" },
        { "free fails", "'fails'" },
        { "foreign", "ends" },
        { "foreign 100", "'100'" },
        { "foreign file=", "'file='" },
        { "foreign 1MiB after soon", "'soon'" },
        { "foreign 1MiB until 3s", "'until'" },
        { "reads", "ends" },
        { "reads colour 3", "'colour'" },
        { "reads power -3", "'-3'" },
        { "reads power 3 since 1s", "'since'" },
        { "lost", "ends" },
        { "lost when 3s", "'when'" },
        { "lost at noon 3", "'noon'" },
        { "lost at op", "ends" },
        { "lost at op 3-5", "'3-5'" },
        { "lost after 3s for", "ends" },
        { "op 1 fails,", "ends" },
        { ",op 1 fails", "ends" },
        { "op 1 fails,,op 2 fails", "ends" },
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct fo_sim_script s;
        struct fo_err e = { 0 };
        assert_int_equal(fo_sim_script_parse(bad[i].text, strlen(bad[i].text), &s, &e), FO_EINVAL);
        if (!strstr(e.msg, bad[i].word)) fail_msg("%s: %s", bad[i].text, e.msg);
    }
    /* Caps. */
    char text[4096] = "op 1 fails";
    struct fo_sim_script s;
    struct fo_err e = { 0 };
    for (int i = 0; i < FO_SIM_MAX_CLAUSES; i++) strncat(text, ",op 1 fails", sizeof text - strlen(text) - 1);
    assert_int_equal(fo_sim_script_parse(text, strlen(text), &s, &e), FO_ELIMIT);
    snprintf(text, sizeof text, "lost file=/%0300d", 1);
    assert_int_equal(fo_sim_script_parse(text, strlen(text), &s, &e), FO_ELIMIT);
}

/* Words of the grammar in any order, and bytes in between: each text is either taken whole or refused with a reason. */
static void whatever_the_words_a_script_is_taken_or_refused(void **state) {
    (void)state;
    static const char *const words[] = { "alloc", "free", "op", "matmul", "fails", "takes", "late", "foreign", "lost", "at", "after", "for",
                                         "file=/x", "file=", "3", "3-5", "7-", "-", "20ms", "1MiB", ",", ",", ",", ":", ";", "s0:1MiB", "\xff", "" };
    struct fo_rng rng;
    fo_rng_seed(&rng, 11);
    int taken = 0;
    for (int i = 0; i < 100000; i++) {
        char text[256] = "";
        struct fo_sim_script s;
        struct fo_sim_die dies[FO_SIM_MAX_DIES];
        struct fo_err e = { 0 };
        int n = 0;
        for (uint64_t k = fo_rng_u64(&rng) % 8; k > 0; k--) {
            strcat(text, words[fo_rng_u64(&rng) % (sizeof words / sizeof *words)]);
            strcat(text, fo_rng_u64(&rng) % 8 ? " " : "");
        }
        int rc = fo_sim_script_parse(text, strlen(text), &s, &e);
        assert_true(rc == FO_OK ? s.n >= 0 && s.n <= FO_SIM_MAX_CLAUSES : rc == FO_EINVAL && e.msg[0]);
        taken += rc == FO_OK && s.n > 0;
        rc = fo_sim_dies_parse(text, dies, &n, &e);
        assert_true(rc == FO_OK || rc == FO_EINVAL);
    }
    assert_true(taken > 100);
}

static void finds_the_dies_of_the_environment(void **state) {
    (void)state;
    struct fo_die dies[8];
    char why[256];
    setenv("PANTHEON_SIM", "s0:300MiB;card-1:1GiB,alloc 1 fails", 1);
    assert_int_equal(fo_device_probe(dies, 8, why, sizeof why), 3);
    assert_string_equal(dies[0].kind, "cpu");
    assert_string_equal(dies[1].name, "s0");
    assert_string_equal(dies[1].kind, "sim");
    assert_int_equal(dies[1].memory_bytes, 300 * MIB);
    assert_string_equal(dies[2].address, "card-1");
    assert_int_equal(fo_device_probe(dies, 2, why, sizeof why), 2);
    assert_string_equal(fo_device_build_backend(), "cpu"); /* sim is no hardware to name a build for */

    struct fo_device *d = NULL;
    struct fo_err e = { 0 };
    void *p = NULL;
    struct fo_device_opts o = { .n_threads = 1, .name = "mine" };
    assert_int_equal(fo_device_open("sim", "card-1", &o, &d, &e), FO_OK);
    assert_string_equal(d->die.name, "mine");
    assert_string_equal(d->die.address, "card-1");
    assert_int_equal(d->alloc(d, 64, &p, &e), FO_ENOMEM);
    assert_non_null(strstr(e.msg, "mine"));
    assert_non_null(strstr(e.msg, "alloc 1"));
    fo_device_close(d);
    assert_int_equal(fo_device_open("sim", "s9", &o, &d, &e), FO_ENOENT);
    assert_non_null(strstr(e.msg, "s9"));

    static const char *const bad[] = { "s0", "s0:", "s0:300", ":1MiB", "s 0:1MiB", "s0:1MiB;s0:2MiB", "s0:1MiB,op 1 jumps", "s0:0MiB", ";" };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        setenv("PANTHEON_SIM", bad[i], 1);
        if (fo_device_probe(dies, 8, why, sizeof why) != 1) fail_msg("%s was taken", bad[i]);
        if (!strstr(why, "sim: PANTHEON_SIM")) fail_msg("%s: %s", bad[i], why);
        assert_int_equal(fo_device_open("sim", "s0", &o, &d, &e), FO_EINVAL);
    }
    unsetenv("PANTHEON_SIM");
    assert_int_equal(fo_device_probe(dies, 8, why, sizeof why), 1);
    assert_string_equal(why, "");
}

/* --- memory --- */

static void counts_memory_to_the_byte(void **state) {
    (void)state;
    struct fo_device *d = open_sim(MIB, NULL);
    struct fo_err e = { 0 };
    assert_int_equal(free_now(d), MIB);
    assert_int_equal(fo_device_contexts(d), 0);
    void *a = take(d, 1000), *b = take(d, 1), *p = NULL;
    assert_int_equal(free_now(d), MIB - 1001);
    assert_int_equal(fo_device_contexts(d), 1);
    struct fo_stream *s = open_stream(d);
    uint64_t stream = d->stream_bytes(d, 8, 64, 64);
    assert_true(stream > 0);
    assert_int_equal(free_now(d), MIB - 1001 - stream);

    /* One byte too many, then exactly what is left. */
    uint64_t left = free_now(d);
    assert_int_equal(d->alloc(d, left + 1, &p, &e), FO_ENOMEM);
    assert_int_equal(e.need, left + 1);
    assert_int_equal(e.have, left);
    assert_non_null(strstr(e.msg, "s0"));
    assert_non_null(strstr(e.msg, "asked"));
    void *c = take(d, left);
    assert_int_equal(free_now(d), 0);
    d->free(d, c, left);
    d->free(d, a, 1000);
    d->free(d, b, 1);
    d->free(d, NULL, 0);
    assert_int_equal(fo_device_contexts(d), 1);
    d->stream_close(s);
    assert_int_equal(free_now(d), MIB);
    assert_int_equal(fo_device_contexts(d), 0);
    struct fo_sim_stats st;
    fo_sim_stats(d, &st);
    assert_int_equal(st.peak_bytes, MIB);
    assert_int_equal(st.used_bytes, 0);
    assert_int_equal(st.frees, 4);
    fo_device_close(d);
}

static void fails_the_allocations_that_the_script_names(void **state) {
    (void)state;
    struct fo_device *d = open_sim(MIB, "alloc 2-3 fails");
    struct fo_err e = { 0 };
    void *p = NULL, *a = take(d, 16);
    struct fo_stream *s = NULL;
    assert_int_equal(d->alloc(d, 16, &p, &e), FO_ENOMEM);
    assert_int_equal(d->stream_open(d, 8, 64, 64, &s, &e), FO_ENOMEM); /* scratch is an allocation too */
    assert_null(s);
    d->free(d, a, 16);
    s = open_stream(d);
    d->stream_close(s);
    assert_int_equal(free_now(d), MIB);
    fo_device_close(d);
}

static void gives_memory_back_late(void **state) {
    (void)state;
    struct fo_device *d = open_sim(MIB, "free 1 late 200ms");
    struct fo_err e = { 0 };
    void *p = NULL, *a = take(d, 1000), *b = take(d, 500);
    double start = now_ms();
    d->free(d, a, 1000);
    uint64_t soon = free_now(d);
    if (now_ms() - start < 200) assert_int_equal(soon, MIB - 1500);
    assert_int_equal(fo_device_contexts(d), 1); /* b; late memory holds no context */
    if (d->alloc(d, MIB - 600, &p, &e) == FO_OK) assert_true(now_ms() - start >= 200);
    else assert_int_equal(e.code, FO_ENOMEM);
    d->free(d, p, MIB - 600);
    while (free_now(d) != MIB - 500) {
        if (now_ms() - start > 30000) fail_msg("the memory never came back");
        sleep_ms(5);
    }
    assert_true(now_ms() - start >= 199);
    d->free(d, b, 500); /* the second and third free are prompt */
    assert_int_equal(free_now(d), MIB);
    fo_device_close(d);
}

static void another_process_takes_memory_and_gives_it_back(void **state) {
    (void)state;
    char path[128], script[256];
    struct fo_err e = { 0 };
    uint64_t total, left;
    snprintf(path, sizeof path, "%s", temp("foreign"));
    snprintf(script, sizeof script, "foreign file=%s, foreign 100KiB", path);
    struct fo_device *d = open_sim(MIB, script);
    void *p = NULL;
    assert_int_equal(free_now(d), MIB - 102400);
    write_file(path, "1000\n");
    assert_int_equal(free_now(d), MIB - 102400 - 1000);
    write_file(path, "99999999999");
    assert_int_equal(free_now(d), 0);
    assert_int_equal(d->alloc(d, 1, &p, &e), FO_ENOMEM);
    write_file(path, "much");
    assert_int_equal(d->memory(d, &total, &left, &e), FO_EIO);
    assert_non_null(strstr(e.msg, path));
    unlink(path);
    assert_int_equal(free_now(d), MIB - 102400);
    fo_device_close(d);

    d = open_sim(MIB, "foreign 1KiB after 100ms for 200ms");
    double start = now_ms();
    bool seen = false;
    for (uint64_t was = free_now(d), is; now_ms() - start < 30000; was = is, sleep_ms(2)) {
        is = free_now(d);
        seen |= is == MIB - 1024;
        if (was != is && is == MIB) break;
        assert_true(is == MIB || is == MIB - 1024);
        if (!seen && now_ms() - start > 290) break; /* a machine too busy to look in between */
    }
    assert_true(seen || now_ms() - start > 290);
    fo_device_close(d);
}

static void its_driver_says_what_the_script_says_and_nothing_else(void **state) {
    (void)state;
    struct fo_sensors x;
    char path[128], script[256];
    struct fo_device *d = open_sim(MIB, "");
    fo_device_sensors(d, &x);
    assert_false(x.has_temperature || x.has_power || x.has_ecc);
    fo_device_close(d);
    snprintf(path, sizeof path, "%s", temp("hot"));
    snprintf(script, sizeof script, "reads temperature 40, reads temperature 71, reads temperature 90 after 1h, reads corrected 3, lost file=%s", path);
    d = open_sim(MIB, script);
    fo_device_sensors(d, &x);
    assert_true(x.has_temperature && x.temperature_celsius == 71 && !x.has_power && x.has_ecc && x.ecc_corrected == 3 && x.ecc_uncorrected == 0);
    FILE *f = fopen(path, "w");
    assert_true(f && fclose(f) == 0);
    fo_device_sensors(d, &x);
    assert_false(x.has_temperature || x.has_ecc);
    unlink(path);
    fo_device_close(d);
}

/* --- ops --- */

/* A little of each: y = w . x on the die, through upload and download. */
struct rig {
    struct fo_device *d;
    struct fo_stream *s;
    float *block; /* w [4][64] | x [64] | y [4] */
};

static void rig_open(struct rig *r, struct fo_device *d, struct fo_err *e, int expect) {
    float host[5 * 64];
    struct fo_rng rng;
    fo_rng_seed(&rng, 7);
    for (int i = 0; i < 5 * 64; i++) host[i] = (float)fo_rng_unit(&rng) - 0.5f;
    r->d = d;
    r->s = open_stream(d);
    r->block = take(d, (5 * 64 + 4) * sizeof(float));
    assert_int_equal(d->upload(d, r->block, host, sizeof host, e), expect);
}

static int rig_run(struct rig *r, float y[4], struct fo_err *e) {
    struct fo_tensor w = fo_tensor_2d(FO_F32, 64, 4, r->block);
    if (fo_matmul(r->s, &w, r->block + 4 * 64, 1, r->block + 5 * 64, e)) return e->code;
    return r->d->download(r->d, y, r->block + 5 * 64, 4 * sizeof *y, e);
}

static void rig_close(struct rig *r) {
    r->d->stream_close(r->s);
    r->d->free(r->d, r->block, (5 * 64 + 4) * sizeof(float));
    assert_int_equal(fo_device_contexts(r->d), 0);
    fo_device_close(r->d);
}

static void computes_what_the_cpu_computes(void **state) {
    (void)state;
    struct fo_err e = { 0 };
    struct fo_device *cpu = NULL;
    struct rig a, b;
    float on_sim[4], on_cpu[4];
    assert_int_equal(fo_device_open("cpu", "", &(struct fo_device_opts){ .n_threads = 1 }, &cpu, &e), FO_OK);
    assert_int_equal(fo_device_contexts(cpu), 0);
    rig_open(&a, open_sim(MIB, NULL), &e, FO_OK);
    rig_open(&b, cpu, &e, FO_OK);
    assert_int_equal(rig_run(&a, on_sim, &e), FO_OK);
    assert_int_equal(rig_run(&b, on_cpu, &e), FO_OK);
    assert_memory_equal(on_sim, on_cpu, sizeof on_sim);
    rig_close(&a);
    rig_close(&b);
}

static void refuses_operands_of_another_die_and_of_the_host(void **state) {
    (void)state;
    struct fo_err e = { 0 };
    struct rig a, b;
    float host[64] = { 0 };
    rig_open(&a, open_sim(MIB, NULL), &e, FO_OK);
    rig_open(&b, open_sim(MIB, NULL), &e, FO_OK);
    struct fo_tensor w = fo_tensor_2d(FO_F32, 64, 4, a.block);
    float *x = a.block + 4 * 64, *y = x + 64;
    assert_int_equal(fo_matmul(a.s, &w, host, 1, y, &e), FO_EINTERNAL);
    assert_int_equal(fo_matmul(a.s, &w, b.block, 1, y, &e), FO_EINTERNAL);
    assert_int_equal(fo_matmul(b.s, &w, x, 1, y, &e), FO_EINTERNAL);
    assert_int_equal(fo_matmul(a.s, &w, x, 2, y, &e), FO_EINTERNAL); /* past the block's end */
    assert_int_equal(fo_add(a.s, x, x, 1, 64, false, host, &e), FO_EINTERNAL);
    assert_int_equal(a.d->upload(a.d, b.block, host, 64, &e), FO_EINTERNAL);
    assert_int_equal(a.d->download(a.d, host, y, 17, &e), FO_EINTERNAL);
    assert_int_equal(fo_matmul(a.s, &w, x, 1, y, &e), FO_OK);
    rig_close(&a);
    rig_close(&b);
}

static void fails_and_slows_the_ops_that_the_script_names(void **state) {
    (void)state;
    struct fo_err e = { 0 };
    struct rig r;
    float y[4];
    rig_open(&r, open_sim(MIB, "upload 1 fails, op 1 fails, matmul 3 takes 60ms, download 2 fails"), &e, FO_ELOST);
    assert_int_equal(rig_run(&r, y, &e), FO_ELOST);
    assert_non_null(strstr(e.msg, "op 1"));
    assert_int_equal(rig_run(&r, y, &e), FO_OK); /* the die is not lost for it */
    double start = now_ms();
    assert_int_equal(rig_run(&r, y, &e), FO_ELOST);
    assert_non_null(strstr(e.msg, "download 2"));
    assert_true(now_ms() - start >= 59);
    rig_close(&r);
}

/* --- loss --- */

static void a_lost_die_forgets_what_it_held_and_comes_back_empty(void **state) {
    (void)state;
    struct fo_err e = { 0 };
    struct rig r;
    float y[4];
    void *p;
    uint64_t total, left;
    rig_open(&r, open_sim(MIB, "lost at op 2 for 100ms"), &e, FO_OK);
    assert_int_equal(rig_run(&r, y, &e), FO_OK);
    double start = now_ms();
    assert_int_equal(rig_run(&r, y, &e), FO_ELOST);
    assert_non_null(strstr(e.msg, "s0"));
    if (r.d->memory(r.d, &total, &left, &e)) {
        assert_int_equal(e.code, FO_ELOST);
        assert_non_null(strstr(e.msg, "op 2"));
    }
    while (r.d->memory(r.d, &total, &left, &e) != FO_OK) {
        assert_int_equal(e.code, FO_ELOST);
        if (now_ms() - start > 30000) fail_msg("%s", e.msg);
        sleep_ms(5);
    }
    assert_true(now_ms() - start >= 99);
    assert_int_equal(left, MIB);
    /* The old stream and block stay dead; new ones live. */
    assert_int_equal(rig_run(&r, y, &e), FO_ELOST);
    assert_int_equal(r.d->sync(r.s, &e), FO_ELOST);
    assert_int_equal(r.d->upload(r.d, r.block, y, sizeof y, &e), FO_ELOST);
    assert_int_equal(fo_device_contexts(r.d), 1);
    p = take(r.d, 1000);
    struct fo_stream *s = open_stream(r.d);
    assert_int_equal(r.d->sync(s, &e), FO_OK);
    assert_int_equal(r.d->upload(r.d, p, y, sizeof y, &e), FO_OK);
    uint64_t with = free_now(r.d);
    r.d->stream_close(s);
    r.d->free(r.d, p, 1000);
    assert_int_equal(free_now(r.d), MIB);
    assert_true(with < MIB);
    rig_close(&r);
}

static void is_lost_while_a_file_exists_and_after_a_time(void **state) {
    (void)state;
    char script[256], path[128];
    struct fo_err e = { 0 };
    void *p = NULL;
    uint64_t total, left;
    struct fo_stream *s = NULL;
    snprintf(path, sizeof path, "%s", temp("lost"));
    snprintf(script, sizeof script, "lost file=%s", path);
    struct fo_device *d = open_sim(MIB, script);
    void *held = take(d, 100);
    write_file(path, "");
    assert_int_equal(d->alloc(d, 1, &p, &e), FO_ELOST);
    assert_non_null(strstr(e.msg, path));
    assert_int_equal(d->stream_open(d, 8, 64, 64, &s, &e), FO_ELOST);
    assert_int_equal(d->memory(d, &total, &left, &e), FO_ELOST);
    unlink(path);
    assert_int_equal(free_now(d), MIB);
    d->free(d, held, 100);
    assert_int_equal(free_now(d), MIB);
    write_file(path, "");
    assert_int_equal(d->memory(d, &total, &left, &e), FO_ELOST);
    unlink(path);
    fo_device_close(d);

    d = open_sim(MIB, "lost after 50ms");
    sleep_ms(60);
    assert_int_equal(d->memory(d, &total, &left, &e), FO_ELOST);
    fo_device_close(d);
}

static void says_when_it_cannot_be_opened(void **state) {
    (void)state;
    struct fo_device *d = NULL;
    struct fo_err e = { 0 };
    assert_int_equal(fo_device_open("sim", "s0", &(struct fo_device_opts){ .memory_bytes = MIB, .script = "op 1 jumps" }, &d, &e), FO_EINVAL);
    assert_non_null(strstr(e.msg, "s0"));
    assert_non_null(strstr(e.msg, "jumps"));
    assert_int_equal(fo_device_open("sim", "a-name-that-no-die-could-have-so-long-it-is", &(struct fo_device_opts){ .memory_bytes = MIB }, &d, &e), FO_EINVAL);
    assert_int_equal(fo_device_open("sim", "", NULL, &d, &e), FO_ENOENT);
    /* Every allocation of opening and of using it may fail. */
    int n = 0;
    for (;; n++) {
        struct fo_device_opts o = { .n_threads = 1, .memory_bytes = MIB };
        test_fail_alloc(n + 1);
        int rc = fo_device_open("sim", "s0", &o, &d, &e);
        test_fail_alloc(0);
        if (rc == FO_OK) break;
        assert_int_equal(rc, FO_ENOMEM);
    }
    assert_true(n > 1);
    for (n = 1;; n++) {
        struct fo_stream *s = NULL;
        test_fail_alloc(n);
        int rc = d->stream_open(d, 8, 64, 64, &s, &e);
        test_fail_alloc(0);
        assert_int_equal(free_now(d), rc ? MIB : MIB - d->stream_bytes(d, 8, 64, 64));
        if (rc == FO_OK) {
            d->stream_close(s);
            break;
        }
        assert_int_equal(rc, FO_ENOMEM);
    }
    assert_true(n > 2);
    void *p = NULL;
    test_fail_alloc(1);
    assert_int_equal(d->alloc(d, 16, &p, &e), FO_ENOMEM);
    test_fail_alloc(0);
    assert_int_equal(free_now(d), MIB);
    fo_device_close(d);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(understands_every_clause),
        cmocka_unit_test(names_the_word_that_it_does_not_understand),
        cmocka_unit_test(whatever_the_words_a_script_is_taken_or_refused),
        cmocka_unit_test(finds_the_dies_of_the_environment),
        cmocka_unit_test(counts_memory_to_the_byte),
        cmocka_unit_test(fails_the_allocations_that_the_script_names),
        cmocka_unit_test(gives_memory_back_late),
        cmocka_unit_test(another_process_takes_memory_and_gives_it_back),
        cmocka_unit_test(its_driver_says_what_the_script_says_and_nothing_else),
        cmocka_unit_test(computes_what_the_cpu_computes),
        cmocka_unit_test(refuses_operands_of_another_die_and_of_the_host),
        cmocka_unit_test(fails_and_slows_the_ops_that_the_script_names),
        cmocka_unit_test(a_lost_die_forgets_what_it_held_and_comes_back_empty),
        cmocka_unit_test(is_lost_while_a_file_exists_and_after_a_time),
        cmocka_unit_test(says_when_it_cannot_be_opened),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
