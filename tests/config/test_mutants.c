/* A thousand damaged manifests, always the same ones: each is refused with findings or is a manifest still, within one second and 16
 * MB. Under the asan flavour this is also the search for reads and writes out of place. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "config/manifest.h"
#include "foundry/base/buf.h"
#include "foundry/base/file.h"
#include "foundry/base/rng.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SANITIZED 1
#endif
#endif
#ifndef SANITIZED
#define SANITIZED 0
#endif

enum { MUTANTS = 1000, MAX_EDITS = 8, MAX_TEXT = 1 << 16, MOST_BYTES = 16 << 20 };

static const char *const pieces[] = {
    "models:",  "- name: a", "version: 1",  "&a ",
    "*a",       "!!str ",    "---\n",       "...\n",
    "[",        "]",         "{",           "}",
    ": ",       ", ",        "\"",          "'",
    "\\",       "|\n",       ">-\n",        "#",
    "\t",       "\r",        "\n",          "\n  ",
    "? ",       "<<: ",      "%YAML 1.1\n", "\xEF\xBB\xBF",
    "\xC2\x85", "\xFF",      "yes",         "010",
    "1_000",    "12:30:45",  "~",           "99999999999999999999",
    "1e999",    "0x",        "-",
};

static size_t below(struct fo_rng *r, size_t n) {
    return n ? (size_t)(fo_rng_u64(r) % n) : 0;
}

/* Replaces text[at, at + gone) by `piece`. */
static size_t splice(char *text, size_t len, size_t at, size_t gone, const char *piece, size_t n) {
    if (gone > len - at) gone = len - at;
    if (len - gone + n > MAX_TEXT) return len;
    memmove(text + at + n, text + at + gone, len - at - gone);
    memcpy(text + at, piece, n);
    return len - gone + n;
}

static size_t mutate(struct fo_rng *r, char *text, size_t len) {
    char copy[256];
    for (size_t edits = 1 + below(r, MAX_EDITS); edits; edits--) {
        size_t at = below(r, len + 1), n = below(r, sizeof copy);
        switch (below(r, 7)) {
        case 0:
            if (at < len) text[at] = (char)(text[at] ^ (1 << below(r, 8)));
            break;
        case 1:
            if (at < len) text[at] = (char)below(r, 256);
            break;
        case 2:
            len = splice(text, len, at, n, "", 0);
            break;
        case 3: { /* something again, somewhere else */
            size_t from = below(r, len + 1);
            if (n > len - from) n = len - from;
            memcpy(copy, text + from, n);
            len = splice(text, len, at, 0, copy, n);
            break;
        }
        case 4:
            len = at;
            break;
        default: {
            const char *p = pieces[below(r, sizeof pieces / sizeof *pieces)];
            len = splice(text, len, at, below(r, 3), p, strlen(p));
        }
        }
    }
    return len;
}

static double seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Parses one text and checks what must hold for every text. Returns the code. */
static int try_text(const char *text, size_t len) {
    struct cf_manifest *m = NULL;
    struct cf_report rep;
    struct fo_err e;
    int rc = cf_manifest_parse(text, len, &m, &rep, &e);
    assert_true((rc == FO_OK) == (m != NULL));
    assert_true((rc == FO_OK) == (rep.n == 0));
    assert_true(rep.n <= 100);
    for (size_t i = 0; i < rep.n; i++) {
        const struct cf_finding *f = &rep.findings[i];
        assert_true(f->line >= 1 && f->col >= 1 && f->width >= 1 && f->text[0]);
        if (i) assert_true(f[-1].line < f->line || (f[-1].line == f->line && f[-1].col <= f->col));
        char *s = cf_finding_format(f, "m.yaml", text, len);
        assert_non_null(s);
        free(s);
    }
    cf_manifest_free(m);
    cf_report_done(&rep);
    return rc;
}

static int try_mutants(void) {
    static const char *const seeds[] = { "etc/models.yaml", "etc/demo.yaml", "tests/cases/manifest/009-what-happens-anyway.yaml",
                                         "tests/cases/manifest/101-keys-not-yet.yaml" };
    char *text = malloc(MAX_TEXT + 1);
    int counts[FO_N_CODES] = { 0 };
    struct fo_rng r;
    assert_non_null(text);
    fo_rng_seed(&r, 20261129);
    for (int i = 0; i < MUTANTS; i++) {
        char *seed;
        size_t len;
        struct fo_err e;
        assert_int_equal(fo_file_read(seeds[i % 4], MAX_TEXT, &seed, &len, &e), FO_OK);
        memcpy(text, seed, len);
        free(seed);
        len = mutate(&r, text, len);
        double from = seconds();
        int rc = try_text(text, len);
        if (seconds() - from > 1) fail_msg("mutant %d took %.1f s", i, seconds() - from);
        if (rc != FO_OK && rc != FO_EFORMAT && rc != FO_ELIMIT) fail_msg("mutant %d ends with code %d", i, rc);
        counts[rc]++;
    }
    free(text);
    return counts[FO_EFORMAT];
}

static void a_thousand_mutants_are_refused_or_read(void **state) {
    (void)state;
    int n_refused = try_mutants();
    assert_true(n_refused > MUTANTS / 2); /* else the mutants are too tame to say anything */
}

/* The largest text of the costliest shape that is accepted by the caps. */
static void try_largest(void) {
    struct fo_buf b;
    fo_buf_init(&b, 1 << 20);
    fo_buf_puts(&b, "version: 1\nmodels:\n");
    for (int i = 0; i < 1000; i++) {
        fo_buf_printf(&b, "- name: m%d\n  source: { path: p }\n  aliases: [", i);
        for (int j = 0; j < 50; j++) fo_buf_printf(&b, "x%d,", i * 50 + j);
        fo_buf_puts(&b, "]\n");
    }
    while (b.len < (1 << 20) - 64) fo_buf_puts(&b, "# ...........................................................\n");
    assert_false(b.failed);
    int rc = try_text(b.data, b.len);
    assert_int_equal(rc, FO_OK);
    fo_buf_done(&b);
}

static uint64_t data_bytes(void) {
    char line[256];
    unsigned long long kb = 0;
    FILE *f = fopen("/proc/self/status", "r");
    assert_non_null(f);
    while (fgets(line, sizeof line, f))
        if (sscanf(line, "VmData: %llu kB", &kb) == 1) break;
    fclose(f);
    return kb * 1024;
}

/* In a child that may not grow by more than 16 MB; memory that runs out would be an error that the loop does not allow. */
static void none_takes_more_than_sixteen_megabytes(void **state) {
    (void)state;
    if (SANITIZED) skip(); /* a sanitizer's own memory counts there */
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        struct rlimit limit = { data_bytes() + MOST_BYTES, RLIM_INFINITY };
        if (setrlimit(RLIMIT_DATA, &limit)) _exit(2);
        try_mutants();
        try_largest();
        _exit(malloc(2 * MOST_BYTES) ? 3 : 0); /* 3: the limit does not bite, so nothing was shown */
    }
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_thousand_mutants_are_refused_or_read),
        cmocka_unit_test(none_takes_more_than_sixteen_megabytes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
