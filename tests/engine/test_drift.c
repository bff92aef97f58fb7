/* Drift: devices with one wrong op, of which exactly that one must be named; and every model with reference data, where none may be. */
#include "engine/drift.h"

#include <dirent.h>
#include <jansson.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "foundry/base/err.h"
#include "foundry/device.h"
#include "foundry/ops.h"
#include "tests/support/alloc.h"
#include "tests/support/odd.h"

enum { N = 12, N_FF = 512, BAD_LAYER = 1 };

static struct fo_device *open_device(const char *kind, struct fo_device_opts o) {
    struct fo_device *d;
    struct fo_err e;
    if (fo_device_open(kind, strcmp(kind, "sim") == 0 ? "tap" : "", &o, &d, &e)) fail_msg("%s", e.msg);
    return d;
}

static const char *model_path(const struct odd *o) {
    odd_write(odd_path(0), o);
    return odd_path(0);
}

static const struct odd plain = { .n_layer = 3, .n_ff = N_FF, .type = FO_Q8_0, .untied = true };
static const int32_t ids[N] = { 1, 17, 3, 90, 41, 5, 5, 66, 23, 8, 77, 2 };

/* --- a device with one wrong op ------------------------------------------------------------------------------------------------ */

/* A cpu whose `op` is wrong where it is computed for the BAD_LAYER-th time in the first step: one element, by one per cent of the largest; or
 * NaN. */
static struct {
    struct fo_device good;
    const char *op;
    int calls;
    bool nan;
} bent;

static void bend(float *x, int64_t k) {
    float top = 0;
    for (int64_t i = 0; i < k; i++) top = fmaxf(top, fabsf(x[i]));
    x[k / 2] = bent.nan ? NAN : x[k / 2] + 0.01f * top;
}

static bool is_turn(const char *op) {
    return strcmp(bent.op, op) == 0 && bent.calls++ == BAD_LAYER;
}

static int bent_get_rows(struct fo_stream *s, const struct fo_tensor *table, const int32_t *id, int n, float *out, struct fo_err *e) {
    int rc = bent.good.get_rows(s, table, id, n, out, e);
    if (strcmp(bent.op, "get_rows") == 0 && bent.calls++ == 0) bend(out + (n - 1) * table->ne[0], table->ne[0]);
    return rc;
}
static int bent_matmul(struct fo_stream *s, const struct fo_tensor *const *w, int n_w, const float *x, int n, float *const *y, struct fo_err *e) {
    int rc = bent.good.matmul_many(s, w, n_w, x, n, y, e);
    if (w[0]->ne[0] == N_FF && is_turn("matmul")) bend(y[0] + (n - 1) * w[0]->ne[1], w[0]->ne[1]);
    return rc;
}
static int bent_fused(struct fo_stream *s, const struct fo_fused *f, const struct fo_tensor *const *w, int n_w, const float *x, int n, float *const *y,
                      struct fo_err *e) {
    int rc = bent.good.matmul_fused(s, f, w, n_w, x, n, y, e);
    if (w[0]->ne[0] == N_FF && is_turn("matmul_fused")) bend((f->add_to ? f->add_to : y[0]) + (n - 1) * w[0]->ne[1], w[0]->ne[1]);
    return rc;
}
static int bent_rms_norm(struct fo_stream *s, const float *x, const float *weight, int n, int64_t k, float eps, float *out, struct fo_err *e) {
    int rc = bent.good.rms_norm(s, x, weight, n, k, eps, out, e);
    if (is_turn("rms_norm")) bend(out + (n - 1) * k, k);
    return rc;
}
static int bent_add(struct fo_stream *s, const float *a, const float *b, int n, int64_t k, bool broadcast_b, float *out, struct fo_err *e) {
    int rc = bent.good.add(s, a, b, n, k, broadcast_b, out, e);
    if (is_turn("add")) bend(out + (n - 1) * k, k);
    return rc;
}
static int bent_add_rows(struct fo_stream *s, const float *a, const int32_t *row, const float *scale, int n, int64_t k, float *out, int n_out, struct fo_err *e) {
    int rc = bent.good.add_rows(s, a, row, scale, n, k, out, n_out, e);
    if (is_turn("add_rows")) bend(out + row[0] * k, k);
    return rc;
}
static int bent_silu_mul(struct fo_stream *s, const float *gate, const float *up, int n, int64_t k, float *out, struct fo_err *e) {
    int rc = bent.good.silu_mul(s, gate, up, n, k, out, e);
    if (is_turn("silu_mul")) bend(out + (n - 1) * k, k);
    return rc;
}
static int bent_rope(struct fo_stream *s, const struct fo_rope *r, float *x, const int32_t *pos, int n, int n_head, struct fo_err *e) {
    int rc = bent.good.rope(s, r, x, pos, n, n_head, e);
    int64_t k = (int64_t)n_head * r->head_dim;
    if (is_turn("rope")) bend(x + (n - 1) * k, k);
    return rc;
}
static int bent_kv_store(struct fo_stream *s, const struct fo_kv_geom *g, const float *k, const float *v, const struct fo_attn_batch *b, int layer, struct fo_err *e) {
    int64_t row = (int64_t)g->n_head_kv * g->head_dim, all = row * b->n_rows;
    bool bad_v = strcmp(bent.op, "kv_store v") == 0;
    if (layer != BAD_LAYER || strncmp(bent.op, "kv_store", 8) != 0) return bent.good.kv_store(s, g, k, v, b, layer, e);
    float *wrong = malloc((size_t)all * sizeof *wrong);
    assert_non_null(wrong);
    memcpy(wrong, bad_v ? v : k, (size_t)all * sizeof *wrong);
    bend(wrong, row);
    int rc = bent.good.kv_store(s, g, bad_v ? k : wrong, bad_v ? wrong : v, b, layer, e);
    free(wrong);
    return rc;
}
static int bent_attend(struct fo_stream *s, const struct fo_kv_geom *g, const float *q, const struct fo_attn_batch *b, int layer, float *out, struct fo_err *e) {
    int rc = bent.good.attend(s, g, q, b, layer, out, e);
    if (layer == BAD_LAYER && strcmp(bent.op, "attend") == 0) bend(out, (int64_t)g->n_head * g->head_dim);
    return rc;
}

static void run(const char *path, struct fo_device *dev, struct fo_device *against, struct pn_drift *ret) {
    struct fo_err e;
    struct pn_drift_opts o = { .dev = dev, .against = against, .ids = ids, .n = N };
    if (pn_drift(path, &o, ret, &e)) fail_msg("%s", e.msg);
}

static void run_bent(const char *op, bool nan, const struct odd *model, struct pn_drift *ret) {
    struct fo_device *cpu = open_device("cpu", (struct fo_device_opts){ .n_threads = 2 }), *exact = open_device("cpu", (struct fo_device_opts){ .exact = true });
    bent.good = *cpu;
    bent.op = op;
    bent.calls = 0;
    bent.nan = nan;
    struct fo_device wrong = *cpu;
    wrong.get_rows = bent_get_rows;
    wrong.matmul_many = bent_matmul;
    wrong.matmul_fused = strcmp(op, "matmul_fused") == 0 ? bent_fused : NULL; /* the others are then called each by itself */
    wrong.rms_norm = bent_rms_norm;
    wrong.add = bent_add;
    wrong.add_rows = bent_add_rows;
    wrong.silu_mul = bent_silu_mul;
    wrong.rope = bent_rope;
    wrong.kv_store = bent_kv_store;
    wrong.attend = bent_attend;
    run(model_path(model), &wrong, exact, ret);
    fo_device_close(cpu);
    fo_device_close(exact);
}

static void names_the_one_op_that_is_wrong(void **state) {
    (void)state;
    static const struct {
        const char *bend, *op, *weights;
        int layer;
    } rows[] = {
        { "get_rows", "get_rows", "token_embd.weight", -1 },
        { "matmul", "matmul", "blk.1.ffn_down.weight", 1 },
        { "matmul_fused", "matmul_fused", "blk.1.ffn_down.weight", 1 },
        { "rms_norm", "rms_norm", "blk.0.ffn_norm.weight", 0 },
        { "silu_mul", "silu_mul", "", 1 },
        { "add", "add", "", 0 },
        { "rope", "rope", "", 0 },
        { "kv_store k", "attend", "", 1 },
        { "kv_store v", "attend", "", 1 },
        { "attend", "attend", "", 1 },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (int nan = 0; nan < 2; nan++) {
            struct pn_drift d;
            run_bent(rows[i].bend, nan, &plain, &d);
            print_message("  %s%s: %s %s, layer %d, %.3g past %.3g\n", rows[i].bend, nan ? " (NaN)" : "", d.first.op ? d.first.op : "nothing", d.first.name, d.first.layer, d.first.diff, d.first.allowed);
            assert_true(d.past);
            assert_string_equal(d.first.op, rows[i].op);
            assert_string_equal(d.first.name, rows[i].weights);
            assert_int_equal(d.first.layer, rows[i].layer);
            assert_int_equal(d.first.step, 0);
            assert_true(nan ? isinf(d.first.diff) : d.first.diff > d.first.allowed && isfinite(d.first.diff));
            assert_int_equal(d.first.has_truth, strcmp(rows[i].op, "matmul") == 0);
            if (d.first.has_truth && !nan) /* double precision is on the reference's side */
                assert_true(fabs(d.first.truth - (double)d.first.expected) * 10 < fabs(d.first.truth - (double)d.first.value));
            pn_drift_done(&d);
        }
}

static void only_the_wrong_op_is_past_its_tolerance_and_what_follows_adds_up(void **state) {
    (void)state;
    struct pn_drift good, bad;
    run_bent("none", false, &plain, &good);
    run_bent("matmul", false, &plain, &bad);
    assert_false(good.past);
    assert_int_equal(bad.n_past, 1);
    assert_int_equal(bad.first.row, bad.first.n - 1);
    assert_int_equal(bad.first.index, bad.first.k / 2);
    assert_int_equal(bad.n_ops, good.n_ops);
    pn_drift_done(&good);
    pn_drift_done(&bad);

    /* Wrong in every call of the layer: in the second pass too, where it reaches the layers behind and no other. */
    struct pn_drift d;
    run_bent("attend", false, &plain, &d);
    run_bent("none", false, &plain, &good);
    assert_true(d.layers[0] == good.layers[0]);
    assert_true(d.layers[1] > good.layers[1]);
    assert_true(d.logits_share > good.logits_share);
    pn_drift_done(&d);
    pn_drift_done(&good);
}

static void says_whether_v_came_back_as_it_was_stored(void **state) {
    (void)state;
    struct pn_drift d;
    run_bent("kv_store v", false, &plain, &d);
    assert_non_null(strstr(d.first.note, "kv_store"));
    pn_drift_done(&d);
    run_bent("kv_store k", false, &plain, &d);
    assert_non_null(strstr(d.first.note, "V is stored well"));
    pn_drift_done(&d);
}

static void names_an_expert_by_its_number(void **state) {
    (void)state;
    struct odd moe = plain;
    struct pn_drift d;
    moe.n_expert = 4;
    moe.n_expert_used = 2;
    moe.n_layer = 2;
    run_bent("matmul", false, &moe, &d); /* the second product of N_FF columns: the second expert that any row of layer 0 asks */
    assert_true(d.past);
    assert_string_equal(d.first.op, "matmul");
    unsigned expert;
    assert_int_equal(sscanf(d.first.name, "blk.0.ffn_down_exps.weight[%u]", &expert), 1);
    assert_in_range(expert, 1, 3);
    pn_drift_done(&d);
    run_bent("add_rows", false, &moe, &d);
    assert_string_equal(d.first.op, "add_rows");
    assert_int_equal(d.first.layer, 0);
    pn_drift_done(&d);
}

/* --- what is right ------------------------------------------------------------------------------------------------------------- */

static void weights_may_be_on_both_devices(void **state) {
    (void)state;
    static const struct {
        const char *dev, *against;
        bool exact;
    } rows[] = { { "sim", "cpu", true }, { "cpu", "sim", true }, { "sim", "sim", false }, { "cpu", "cpu", false } };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct fo_device *dev = open_device(rows[i].dev, (struct fo_device_opts){ .memory_bytes = 1 << 28, .script = "" });
        struct fo_device *against = open_device(rows[i].against, (struct fo_device_opts){ .memory_bytes = 1 << 28, .script = "", .exact = rows[i].exact, .isa = "scalar" });
        struct pn_drift d;
        run(model_path(&plain), dev, against, &d);
        assert_false(d.past);
        assert_int_equal(d.n_steps, 3);
        assert_int_equal(d.steps[0] + d.steps[1] + d.steps[2], N);
        assert_int_equal(d.n_tokens, N);
        if (!rows[i].exact) assert_true(d.logits_share < 2e-2); /* the same in 8 bits, but for values that rounding takes to another step */
        pn_drift_done(&d);
        fo_device_close(dev);
        fo_device_close(against);
    }
}

static void one_token_and_an_exact_subject_work(void **state) {
    (void)state;
    struct fo_device *exact = open_device("cpu", (struct fo_device_opts){ .exact = true });
    struct pn_drift_opts o = { .dev = exact, .against = exact, .ids = ids, .n = 1 };
    struct pn_drift d;
    struct fo_err e;
    if (pn_drift(model_path(&plain), &o, &d, &e)) fail_msg("%s", e.msg);
    assert_false(d.past);
    assert_int_equal(d.n_steps, 1);
    assert_true(d.logits_max == 0);
    assert_int_equal(d.same_top, 1);
    pn_drift_done(&d);
    fo_device_close(exact);
}

static void a_reference_that_rounds_where_the_subject_does_not_is_said_to(void **state) {
    (void)state;
    struct fo_device *cpu = open_device("cpu", (struct fo_device_opts){ 0 }), *exact = open_device("cpu", (struct fo_device_opts){ .exact = true });
    struct pn_drift d;
    run(model_path(&plain), exact, cpu, &d);
    assert_true(d.past);
    assert_string_equal(d.first.op, "matmul");
    assert_non_null(strstr(d.first.note, "8 bits"));
    pn_drift_done(&d);
    fo_device_close(cpu);
    fo_device_close(exact);
}

static void refuses_tokens_that_the_model_lacks_and_texts_too_long(void **state) {
    (void)state;
    static int32_t many[PN_DRIFT_MAX_TOKENS + 1];
    int32_t bad[] = { 3, 96 }, negative[] = { -1 };
    struct fo_device *cpu = open_device("cpu", (struct fo_device_opts){ 0 });
    const char *path = model_path(&plain);
    const struct {
        const int32_t *ids;
        uint32_t n;
        const char *says;
    } rows[] = {
        { bad, 2, "token 96 (number 2) is out of range: the vocabulary has 96" },
        { negative, 1, "token -1 (number 1) is out of range" },
        { many, 0, "0 tokens, expected 1 to 2048" },
        { many, PN_DRIFT_MAX_TOKENS + 1, "2049 tokens, expected 1 to 2048" },
        { many, 257, "257 tokens are more than the cap of 256" },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct pn_drift_opts o = { .dev = cpu, .against = cpu, .ids = rows[i].ids, .n = rows[i].n };
        struct pn_drift d;
        struct fo_err e;
        assert_int_equal(pn_drift(path, &o, &d, &e), FO_EINVAL);
        assert_non_null(strstr(e.msg, rows[i].says));
    }
    fo_device_close(cpu);
}

static int stop_at_second(void *ctx, uint32_t step, uint32_t n_steps, struct fo_err *e) {
    (void)ctx;
    assert_int_equal(n_steps, 6);
    return step == 1 ? (int)fo_fail(e, FO_ECANCELLED, "enough") : FO_OK;
}

static void can_be_stopped_between_steps(void **state) {
    (void)state;
    struct fo_device *cpu = open_device("cpu", (struct fo_device_opts){ 0 });
    struct pn_drift_opts o = { .dev = cpu, .against = cpu, .ids = ids, .n = N, .progress = stop_at_second };
    struct pn_drift d;
    struct fo_err e;
    assert_int_equal(pn_drift(model_path(&plain), &o, &d, &e), FO_ECANCELLED);
    fo_device_close(cpu);
}

static void every_failing_allocation_is_an_error_and_leaks_nothing(void **state) {
    (void)state;
    struct fo_device *cpu = open_device("cpu", (struct fo_device_opts){ .n_threads = 1 }), *exact = open_device("cpu", (struct fo_device_opts){ .exact = true, .n_threads = 1 });
    const char *path = model_path(&(struct odd){ .n_layer = 1, .type = FO_Q8_0 });
    struct pn_drift_opts o = { .dev = cpu, .against = exact, .ids = ids, .n = 2 };
    int n = 0;
    for (bool failed = true; failed;) {
        struct pn_drift d;
        struct fo_err e;
        test_fail_alloc(++n);
        int rc = pn_drift(path, &o, &d, &e);
        failed = test_alloc_failed();
        test_fail_alloc(0);
        if (rc == FO_OK)
            pn_drift_done(&d);
        else
            assert_int_equal(rc, FO_ENOMEM);
        assert_true(failed || rc == FO_OK);
    }
    assert_true(n > 20);
    fo_device_close(cpu);
    fo_device_close(exact);
}

/* --- the reference models ------------------------------------------------------------------------------------------------------ */

static int shown(const struct dirent *d) {
    return d->d_name[0] != '.' && strcmp(d->d_name, "README") != 0;
}

static int check_file(const char *path, const json_t *golden, struct fo_device *cpu, struct fo_device *exact) {
    int32_t prompt[64];
    const json_t *list = json_object_get(golden, "prompt_ids");
    struct pn_drift_opts o = { .dev = cpu, .against = exact, .ids = prompt };
    struct pn_drift d;
    struct fo_err e;
    for (; o.n < json_array_size(list) && o.n < 64; o.n++) prompt[o.n] = (int32_t)json_integer_value(json_array_get(list, o.n));
    int rc = pn_drift(path, &o, &d, &e);
    if (rc == FO_EUNSUPPORTED) return 0;
    if (rc) fail_msg("%s", e.msg);
    double most = 0;
    for (int i = 0; i < d.n_kinds; i++) most = fmax(most, d.kinds[i].worst.share);
    print_message("  %-60s %4llu ops, the largest share %.3f\n", path, (unsigned long long)d.n_ops, most);
    if (d.past) fail_msg("%s: %s %s of layer %d: %g past %g", path, d.first.op, d.first.name, d.first.layer, d.first.diff, d.first.allowed);
    pn_drift_done(&d);
    return 1;
}

static int check_models(const char *root, struct fo_device *cpu, struct fo_device *exact) {
    struct dirent **found;
    int n = scandir(root, &found, shown, alphasort), ran = 0;
    if (n < 0) fail_msg("%s: no folder of models", root);
    for (int i = 0; i < n; i++) {
        char path[1024];
        snprintf(path, sizeof path, "%s/%s/golden.json", root, found[i]->d_name);
        json_error_t je;
        json_t *golden = json_load_file(path, 0, &je), *entry;
        size_t j;
        if (!golden) fail_msg("%s: %s", path, je.text);
        json_array_foreach(json_object_get(golden, "entries"), j, entry) {
            snprintf(path, sizeof path, "%s/%s/%s", root, found[i]->d_name, json_string_value(json_object_get(entry, "file")));
            if (access(path, R_OK) == 0) ran += check_file(path, golden, cpu, exact);
        }
        json_decref(golden);
        free(found[i]);
    }
    free(found);
    return ran;
}

static void no_op_of_any_reference_model_is_past_its_tolerance(void **state) {
    (void)state;
    struct fo_device *cpu = open_device("cpu", (struct fo_device_opts){ 0 }), *exact = open_device("cpu", (struct fo_device_opts){ .exact = true });
    assert_true(check_models("tests/data/goldens/models", cpu, exact) >= 19);
    const char *root = getenv("GOLDENS");
    if (root) {
        char dir[512];
        snprintf(dir, sizeof dir, "%s/models", root);
        assert_true(check_models(dir, cpu, exact) > 0);
    }
    fo_device_close(cpu);
    fo_device_close(exact);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_the_one_op_that_is_wrong),
        cmocka_unit_test(only_the_wrong_op_is_past_its_tolerance_and_what_follows_adds_up),
        cmocka_unit_test(says_whether_v_came_back_as_it_was_stored),
        cmocka_unit_test(names_an_expert_by_its_number),
        cmocka_unit_test(weights_may_be_on_both_devices),
        cmocka_unit_test(one_token_and_an_exact_subject_work),
        cmocka_unit_test(a_reference_that_rounds_where_the_subject_does_not_is_said_to),
        cmocka_unit_test(refuses_tokens_that_the_model_lacks_and_texts_too_long),
        cmocka_unit_test(can_be_stopped_between_steps),
        cmocka_unit_test(every_failing_allocation_is_an_error_and_leaks_nothing),
        cmocka_unit_test(no_op_of_any_reference_model_is_past_its_tolerance),
    };
    int rc = cmocka_run_group_tests(tests, NULL, NULL);
    unlink(odd_path(0));
    return rc;
}
