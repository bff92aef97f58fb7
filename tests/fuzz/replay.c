/* Runs a fuzzer's inputs as an ordinary test: this main with one fuzz_<name>.o makes the program replay_<name>. Inputs are the files in
 * tests/fuzz/corpus/<name> (what fuzzing found, and small ones that reach far) and in the folder that FUZZ_SEEDS="<name>=<folder> ..." names,
 * which is where the fuzzer starts from. */
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
#include <unistd.h>

#include "foundry/base/err.h"
#include "foundry/base/file.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MAX_INPUT = 16 << 20 };
static const char *fuzzer;
static size_t n_inputs;

static int one(const char *path, const struct stat *st, int kind, struct FTW *where) {
    struct fo_err e;
    char *data;
    size_t len;
    (void)st, (void)where;
    if (kind != FTW_F) return 0;
    if (fo_file_read(path, MAX_INPUT, &data, &len, &e)) fail_msg("%s", e.msg);
    uint8_t *exact = malloc(len ? len : 1); /* so that a sanitizer sees a read past the end */
    memcpy(exact, data, len);
    LLVMFuzzerTestOneInput(exact, len);
    free(exact);
    free(data);
    n_inputs++;
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
    print_message("%s: %zu inputs\n", fuzzer, n_inputs);
    assert_true(n_inputs > 0);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = { cmocka_unit_test(its_corpus_runs_without_a_finding) };
    const char *name = argc > 0 ? strstr(argv[0], "replay_") : NULL;
    if (!name) return 64;
    fuzzer = name + strlen("replay_");
    return cmocka_run_group_tests(tests, NULL, NULL);
}
