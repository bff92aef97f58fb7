/* Runs a fuzzer's inputs as an ordinary test: this main with one fuzz_<name>.o makes the program replay_<name>. Inputs are the files in
 * tests/fuzz/corpus/<name> (what fuzzing found, and small ones that reach far) and in the folder that FUZZ_SEEDS="<name>=<folder> ..." names,
 * which is where the fuzzer starts from; then MUTANTS (default 200) of them, always the same: changed here and there, put together, with words of
 * grammars and schemas thrown in. None may take more than a second of CPU time in a release build, or MUTANT_SECONDS. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "foundry/base/err.h"
#include "foundry/base/file.h"
#include "foundry/base/rng.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MAX_INPUT = 16 << 20, MAX_MUTATED = 64 << 10 };
static const char *fuzzer;
static struct input {
    char *data;
    size_t len;
} *inputs; /* [n_inputs] */
static size_t n_inputs;
static double longest; /* of one input, in seconds of CPU time */

static double cpu_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void run(const char *data, size_t len) {
    uint8_t *exact = malloc(len ? len : 1); /* so that a sanitizer sees a read past the end */
    assert_non_null(exact);
    memcpy(exact, data, len);
    double from = cpu_s();
    LLVMFuzzerTestOneInput(exact, len);
    double took = cpu_s() - from;
    if (took > longest) longest = took;
    free(exact);
}

static int one(const char *path, const struct stat *st, int kind, struct FTW *where) {
    struct fo_err e;
    struct input in;
    (void)st, (void)where;
    if (kind != FTW_F) return 0;
    if (fo_file_read(path, MAX_INPUT, &in.data, &in.len, &e)) fail_msg("%s", e.msg);
    run(in.data, in.len);
    inputs = realloc(inputs, (n_inputs + 1) * sizeof *inputs);
    assert_non_null(inputs);
    inputs[n_inputs++] = in;
    return 0;
}

static void its_corpus_runs_without_a_finding(void **state) {
    (void)state;
    char folder[512];
    snprintf(folder, sizeof folder, "tests/fuzz/corpus/%s", fuzzer);
    if (access(folder, F_OK) == 0) assert_int_equal(nftw(folder, one, 8, FTW_PHYS), 0); /* a fuzzer that found nothing has none */
    const char *seeds = getenv("FUZZ_SEEDS");
    size_t n = strlen(fuzzer);
    for (const char *p = seeds ? seeds : ""; *p; p += strcspn(p, " "), p += strspn(p, " ")) {
        if (strncmp(p, fuzzer, n) != 0 || p[n] != '=') continue;
        snprintf(folder, sizeof folder, "%.*s", (int)strcspn(p + n + 1, " "), p + n + 1);
        if (*folder) assert_int_equal(nftw(folder, one, 8, FTW_PHYS), 0);
    }
    print_message("%s: %zu inputs, %.3f s the longest\n", fuzzer, n_inputs, longest);
    assert_true(n_inputs > 0);
}

/* --- mutants ------------------------------------------------------------------------------------ */
static size_t below(struct fo_rng *r, size_t n) {
    return (size_t)(fo_rng_u64(r) % n);
}

/* Puts src[0..n) into text at `at`, in the place of `gone` bytes; nothing where it does not fit. */
static void put(char *text, size_t *len, size_t at, size_t gone, const char *src, size_t n) {
    char copy[256];
    if (n > sizeof copy || *len - gone + n > MAX_MUTATED) return;
    memcpy(copy, src, n); /* src may be of text */
    memmove(text + at + n, text + at + gone, *len - at - gone);
    memcpy(text + at, copy, n);
    *len += n - gone;
}

static void mutate(struct fo_rng *r, char *text, size_t *len) {
    static const char *const words[] = { "{0,1000000}", "{3,}", "{", "}", "[", "]", "(", ")", "|", "*", "+", "?", "\"", "\\", "^", "-", ".", "\n", " ::= ", "root",
                                         "\\u00e9", "\xf0\x9f\x98\x80", "\xff", "\"maxLength\":1000000,", "\"minItems\":65536,", "\"not\":{", "\"$ref\":\"#\",", "\"anyOf\":[",
                                         "\"pattern\":\"(a*)*$\",", "\"uniqueItems\":true,", "\"contains\":", "\"type\":\"object\",", "1e308", "-0.1", "4294967295", "null", "[^\\x00-\\x7f]" };
    size_t at = below(r, *len + 1), left = *len - at, n = left ? below(r, left < 64 ? left + 1 : 64) : 0;
    const struct input *other = &inputs[below(r, n_inputs)];
    const char *word = words[below(r, sizeof words / sizeof *words)];
    switch (below(r, 7)) {
    case 0:
        if (left) text[at] = (char)fo_rng_u64(r);
        break;
    case 1:
        if (left) text[at] ^= (char)(1u << below(r, 8));
        break;
    case 2: put(text, len, at, n, "", 0); break;
    case 3: put(text, len, at, 0, text + at, n); break;
    case 4:
    case 5: put(text, len, at, below(r, 3) ? 0 : n, word, strlen(word)); break;
    case 6:
        if (other->len) {
            size_t from = below(r, other->len), more = other->len - from;
            put(text, len, at, n, other->data + from, below(r, (more < 200 ? more : 200) + 1));
        }
        break;
    }
}

static void its_mutants_run_without_a_finding(void **state) {
    (void)state;
    const char *many = getenv("MUTANTS"), *seconds = getenv("MUTANT_SECONDS");
    long n = many ? strtol(many, NULL, 10) : 200;
    double most = seconds ? strtod(seconds, NULL) : 1;
    char *text = malloc(MAX_MUTATED), *slowest = malloc(MAX_MUTATED);
    struct fo_rng r;
    size_t n_slowest = 0;
    assert_non_null(text);
    assert_non_null(slowest);
    fo_rng_seed(&r, 8);
    longest = 0;
    for (long i = 0; i < n; i++) {
        const struct input *in = &inputs[below(&r, n_inputs)];
        size_t len = in->len < MAX_MUTATED ? in->len : MAX_MUTATED;
        double before = longest;
        memcpy(text, in->data, len);
        for (size_t k = 1 + below(&r, 3); k > 0; k--) mutate(&r, text, &len);
        run(text, len);
        if (longest <= before) continue;
        memcpy(slowest, text, len);
        n_slowest = len;
    }
    print_message("%s: %ld mutants, %.3f s the longest\n", fuzzer, n, longest);
    const char *keep = getenv("MUTANT_SLOWEST"); /* a file for it, to look at */
    FILE *f = keep ? fopen(keep, "wb") : NULL;
    if (f) {
        fwrite(slowest, 1, n_slowest, f);
        fclose(f);
    }
    free(text);
    free(slowest);
    if (longest > most) fail_msg("one took %.3f s, and %.1f are allowed", longest, most);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = { cmocka_unit_test(its_corpus_runs_without_a_finding), cmocka_unit_test(its_mutants_run_without_a_finding) };
    const char *name = argc > 0 ? strstr(argv[0], "replay_") : NULL;
    if (!name) return 64;
    fuzzer = name + strlen("replay_");
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    for (size_t i = 0; i < n_inputs; i++) free(inputs[i].data);
    free(inputs);
    return failed;
}
