/* What the gates count is what a load takes: every committed model of a family (and those of $GOLDENS/models, when that is set), with few and many
 * sessions, short and long contexts, each pair of KV types, whole and split. The die is a made-up one, which counts to the byte. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/model.h"
#include "foundry/base/err.h"
#include "foundry/device.h"

enum { MIB = 1 << 20, DIE_BYTES = 512 * MIB };

/* A debug build's redzones: in sums of layers, each part may be counted one of them and its rounding short. */
#ifdef FO_DEBUG
enum { SLACK = 64 };
#else
enum { SLACK = 0 };
#endif

static struct fo_device *sim(const char *name) {
    struct fo_device *d = NULL;
    struct fo_err e;
    if (fo_device_open("sim", name, &(struct fo_device_opts){ .n_threads = 1, .memory_bytes = DIE_BYTES }, &d, &e)) fail_msg("%s", e.msg);
    return d;
}

static uint64_t used(struct fo_device *d) {
    uint64_t total, left;
    struct fo_err e;
    if (d->memory(d, &total, &left, &e)) fail_msg("%s", e.msg);
    return total - left;
}

/* What the estimate says of layers [first, end) of a model, n_layer in all. */
static uint64_t said(const struct pn_estimate *est, uint32_t first, uint32_t end) {
    bool last = end == est->n_layer;
    uint64_t n = est->scratch_bytes + (first == 0 ? est->input_bytes : 0) + (last ? est->output_bytes + est->logits_bytes : 0) + (last && first ? est->tied_bytes : 0);
    for (uint32_t l = first; l < end; l++) n += est->layer_bytes[l] + est->layer_kv_bytes[l];
    return n;
}

static void check(const char *path, const struct pn_model_opts *asked, struct fo_device *const d[2], unsigned *n_checked) {
    struct pn_estimate est;
    struct pn_model *m;
    struct fo_err e = { 0 };
    char why[384];
    struct pn_model_opts o = *asked;
    o.dev = d[0];
    if (pn_model_estimate(path, &o, &est, why, sizeof why, &e)) fail_msg("%s: %s", path, e.msg);
    if (*why) { /* heads that four and eight bits cannot hold, or a family that comes later */
        if (!strstr(why, "multiple of") && !strstr(why, "architecture")) fail_msg("%s: %s", path, why);
        return;
    }
    for (uint32_t first = est.n_layer; first > 0; first = first > 1 ? 1 : 0) { /* whole, and one layer apart from the rest */
        o.n_parts = 0;
        o.parts[o.n_parts++] = (struct pn_model_part){ d[0], 0, first };
        if (first < est.n_layer) o.parts[o.n_parts++] = (struct pn_model_part){ d[1], first, est.n_layer - first };
        if (pn_model_open(path, &o, &m, &e) || pn_model_try(m, &e)) fail_msg("%s: %s", path, e.msg);
        for (int p = 0; p < o.n_parts; p++) {
            uint64_t took = used(d[p]), sum = said(&est, p ? first : 0, p ? est.n_layer : first);
            if (took > sum || sum > took + (uint64_t)SLACK * est.n_layer)
                fail_msg("%s, %u sessions of %u: took %llu bytes and was said to take %llu", path, o.max_sessions, est.ctx_cap, (unsigned long long)took, (unsigned long long)sum);
        }
        pn_model_free(m);
        for (int p = 0; p < 2; p++) assert_int_equal(used(d[p]), 0);
        ++*n_checked;
        if (first == 1) break;
    }
    pn_estimate_done(&est);
}

static void pain_06_every_model_takes_to_the_byte_what_was_estimated(void **state) {
    (void)state;
    static const uint32_t slots[] = { 1, 2, 8 }, contexts[] = { 0, 64, 96 };
    static const enum fo_dtype types[][2] = { { FO_F16, FO_F16 }, { FO_Q8_0, FO_Q8_0 }, { FO_Q4_0, FO_Q4_0 }, { FO_Q8_0, FO_Q4_0 } };
    const char *more = getenv("GOLDENS");
    char pattern[1024];
    struct fo_device *d[2] = { sim("s0"), sim("s1") };
    glob_t files;
    unsigned n = 0;
    assert_int_equal(glob("tests/data/goldens/models/*/gguf/*.gguf", 0, NULL, &files), 0);
    snprintf(pattern, sizeof pattern, "%s/models/*/gguf/*.gguf", more ? more : "");
    if (more) assert_int_equal(glob(pattern, GLOB_APPEND, NULL, &files), 0);
    for (size_t f = 0; f < files.gl_pathc; f++)
        for (size_t s = 0; s < 3; s++)
            for (size_t c = 0; c < 3; c++)
                for (size_t t = 0; t < 4; t++) {
                    struct pn_model_opts o = { .ctx_cap = contexts[c], .max_sessions = slots[s], .max_concurrent = slots[s], .k_type = types[t][0], .v_type = types[t][1],
                                               .has_floor = true, .k_floor = FO_Q4_0, .v_floor = FO_Q4_0 };
                    check(files.gl_pathv[f], &o, d, &n);
                }
    print_message("%zu files, %u loads\n", files.gl_pathc, n);
    assert_true(files.gl_pathc >= 10 && n >= 9 * 2 * files.gl_pathc);
    globfree(&files);
    for (int p = 0; p < 2; p++) fo_device_close(d[p]);
}

int main(void) {
    const struct CMUnitTest tests[] = { cmocka_unit_test(pain_06_every_model_takes_to_the_byte_what_was_estimated) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
