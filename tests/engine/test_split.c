/* Models split by layers over several dies: the logits of one device bit for bit, memory that is measured, estimated and used alike on
 * each die, and nothing left behind when a die has too little, fails or is lost. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "engine/model.h"
#include "foundry/base/err.h"
#include "foundry/base/rng.h"
#include "foundry/device.h"
#include "foundry/ops.h"
#include "foundry/sim/sim.h"
#include "tests/support/alloc.h"
#include "tests/support/odd.h"
#include "tests/support/script.h"
#include "tests/support/tiny.h"

enum { MIB = 1 << 20, LAYERS = 4, VOCAB = 512, PROMPT = 150, CHUNK = 40 };

static struct fo_device *open_die(const char *kind, const char *name, uint64_t bytes, const char *script) {
    struct fo_device *d = NULL;
    struct fo_err e = { 0 };
    struct fo_device_opts o = { .n_threads = 1, .memory_bytes = bytes, .script = script };
    if (fo_device_open(kind, name, &o, &d, &e)) fail_msg("%s", e.msg);
    return d;
}

static struct fo_device *sim(const char *name, uint64_t bytes, const char *script) {
    return open_die("sim", name, bytes, script);
}

static uint64_t free_now(struct fo_device *d) {
    uint64_t total, left = 0;
    struct fo_err e = { 0 };
    if (d->memory(d, &total, &left, &e)) fail_msg("%s", e.msg);
    return left;
}

static const char *write_tiny(uint32_t dtype, bool tied) {
    struct fo_err e = { 0 };
    struct test_tiny t = test_tiny_default();
    t.dtype = dtype;
    t.n_layer = LAYERS;
    t.tied = tied;
    t.n_vocab = VOCAB;
    if (test_tiny_write(&t, odd_path(0), &e)) fail_msg("%s", e.msg);
    return odd_path(0);
}

static struct pn_model_opts opts(void) {
    return (struct pn_model_opts){ .max_sessions = 3, .max_concurrent = 2, .max_batch = CHUNK, .kv_default = true };
}

static void add_part(struct pn_model_opts *o, struct fo_device *d, uint32_t n_layers) {
    const struct pn_model_part *before = o->n_parts ? &o->parts[o->n_parts - 1] : NULL;
    o->parts[o->n_parts++] = (struct pn_model_part){ d, before ? before->first_layer + before->n_layers : 0, n_layers };
}

static struct pn_model *open_model(const char *path, const struct pn_model_opts *o) {
    struct pn_model *m = NULL;
    struct fo_err e = { 0 };
    if (pn_model_open(path, o, &m, &e)) fail_msg("%s", e.msg);
    return m;
}

/* Two sequences, one in chunks beside the other's decoding; all logits of it, [N_ROWS][VOCAB]. */
enum { DECODES = 3, N_ROWS = 2 * (PROMPT / CHUNK + 1) + DECODES };

static void run(struct pn_model *m, float *out) {
    int32_t ids[PROMPT];
    struct fo_rng rng;
    struct pn_seq *a, *b;
    struct fo_err e = { 0 };
    float *logits;
    fo_rng_seed(&rng, 5);
    for (int i = 0; i < PROMPT; i++) ids[i] = (int32_t)(fo_rng_u64(&rng) % VOCAB);
    assert_int_equal(pn_seq_new(m, &a, &e), FO_OK);
    assert_int_equal(pn_seq_new(m, &b, &e), FO_OK);
    int row = 0;
    for (uint32_t at = 0, n; at < PROMPT; at += n) {
        n = PROMPT - at < CHUNK - 1 ? PROMPT - at : CHUNK - 1;
        struct pn_batch_item items[] = { { a, ids + at, n, PN_WANT_LAST }, { b, ids + at, 1, PN_WANT_LAST } };
        if (pn_model_forward(m, items, 2, &logits, &e)) fail_msg("%s", e.msg);
        memcpy(out + row * VOCAB, logits, 2 * VOCAB * sizeof *logits);
        row += 2;
    }
    for (int i = 0; i < DECODES; i++, row++) {
        struct pn_batch_item item = { a, ids + i, 1, PN_WANT_LAST };
        if (pn_model_forward(m, &item, 1, &logits, &e)) fail_msg("%s", e.msg);
        memcpy(out + row * VOCAB, logits, VOCAB * sizeof *logits);
    }
    assert_int_equal(row, N_ROWS);
    assert_int_equal(pn_seq_len(a), PROMPT + DECODES);
    pn_seq_free(a);
    pn_seq_free(b);
}

static void logits_are_those_of_one_device_bit_for_bit(void **state) {
    (void)state;
    static const uint32_t types[] = { FO_F32, FO_F16, FO_Q8_0, FO_Q4_0 };
    static const uint32_t splits[][4] = { { 4 }, { 1, 3 }, { 2, 2 }, { 1, 1, 1, 1 } };
    struct fo_device *cpu = open_die("cpu", "", 0, NULL);
    struct fo_device *dies[4] = { sim("s0", 64 * MIB, NULL), sim("s1", 64 * MIB, NULL), cpu, sim("s2", 64 * MIB, NULL) };
    float *want = malloc(N_ROWS * VOCAB * sizeof *want), *got = malloc(N_ROWS * VOCAB * sizeof *got);
    assert_true(want && got);
    for (size_t t = 0; t < sizeof types / sizeof *types; t++) {
        const char *path = write_tiny(types[t], t % 2 == 0);
        struct pn_model_opts o = opts();
        o.dev = cpu;
        struct pn_model *m = open_model(path, &o);
        run(m, want);
        pn_model_free(m);
        for (size_t s = 0; s < sizeof splits / sizeof *splits; s++) {
            o = opts();
            for (int i = 0; i < 4 && splits[s][i]; i++) add_part(&o, dies[i], splits[s][i]);
            m = open_model(path, &o);
            assert_int_equal(pn_model_info(m)->n_parts, o.n_parts);
            memset(got, 0, N_ROWS * VOCAB * sizeof *got);
            run(m, got);
            assert_memory_equal(want, got, N_ROWS * VOCAB * sizeof *got);
            pn_model_free(m);
        }
        unlink(path);
    }
    for (int i = 0; i < 4; i++) {
        assert_int_equal(fo_device_contexts(dies[i]), 0);
        fo_device_close(dies[i]);
    }
    free(want);
    free(got);
}

static void every_family_is_the_same_on_dies_and_threads(void **state) {
    (void)state;
    static const float longer[16] = { 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16 };
    static const struct odd families[] = {
        { .n_expert = 4, .n_expert_used = 2 },
        { .arch = "qwen2", .biases = true },
        { .arch = "qwen3", .qk_norm = true, .untied = true },
        { .arch = "phi3", .fused = true, .untied = true, .rope_long = longer, .rope_short = longer },
    };
    struct fo_err e = { 0 };
    struct fo_device_opts more_threads = { .n_threads = 3 };
    struct fo_device *dies[] = { sim("s0", 64 * MIB, NULL), open_die("cpu", "", 0, NULL) }, *threads;
    if (fo_device_open("cpu", "", &more_threads, &threads, &e)) fail_msg("%s", e.msg);
    float *want = malloc(N_ROWS * VOCAB * sizeof *want), *got = malloc(N_ROWS * VOCAB * sizeof *got);
    assert_true(want && got);
    for (size_t i = 0; i < sizeof families / sizeof *families; i++) {
        struct odd t = families[i];
        t.n_layer = LAYERS;
        t.n_vocab = VOCAB;
        t.type = FO_Q8_0;
        odd_write(odd_path(0), &t);
        for (int how = 0; how < 3; how++) {
            struct pn_model_opts o = opts();
            o.dev = how == 1 ? threads : dies[1];
            for (int p = 0; how == 2 && p < 2; p++) add_part(&o, dies[p], p ? LAYERS - 1 : 1);
            struct pn_model *m = open_model(odd_path(0), &o);
            run(m, how ? got : want);
            if (how) assert_memory_equal(want, got, N_ROWS * VOCAB * sizeof *got);
            pn_model_free(m);
        }
        unlink(odd_path(0));
    }
    free(want);
    free(got);
    fo_device_close(threads);
    for (int p = 0; p < 2; p++) fo_device_close(dies[p]);
}

/* A debug build's redzones: in sums of layers, each part may be counted one of them and its rounding short. */
#ifdef FO_DEBUG
enum { SLACK = 64 };
#else
enum { SLACK = 0 };
#endif

static void measured_and_used_are_equal_on_each_die_and_estimates_add_up_to_them(void **state) {
    (void)state;
    struct fo_device *d[2] = { sim("s0", 64 * MIB, NULL), sim("s1", 64 * MIB, NULL) };
    for (int kind = 0; kind < 4; kind++) {
        struct fo_err e = { 0 };
        struct test_script script = test_script_default();
        script.state_bytes = kind == 3 ? 1000 : 0;
        script.n_layer = LAYERS;
        script.weights_bytes = 20 * MIB;
        script.kv_bytes_per_token = 4096;
        script.n_ctx = 300;
        const char *path = odd_path(0);
        if (kind < 2) write_tiny(FO_Q8_0, kind == 0);
        else if (test_script_write(&script, path, &e)) fail_msg("%s", e.msg);

        struct pn_estimate est;
        struct pn_model_opts whole = opts();
        char why[200];
        whole.dev = d[0];
        if (pn_model_estimate(path, &whole, &est, why, sizeof why, &e)) fail_msg("%s", e.msg);
        assert_string_equal(why, "");
        assert_int_equal(est.n_layer, LAYERS);
        assert_true((est.tied_bytes > 0) == (kind == 0));
        assert_true(est.logits_bytes >= 2 * 256 * sizeof(float));

        for (uint32_t first = 1; first <= LAYERS; first++) {
            struct pn_model_opts o = opts();
            struct pn_model_info measured;
            add_part(&o, d[0], first);
            if (first < LAYERS) add_part(&o, d[1], LAYERS - first);
            assert_int_equal(pn_model_measure(path, &o, &measured, why, sizeof why, &e), FO_OK);
            assert_string_equal(why, "");
            assert_int_equal(fo_device_contexts(d[0]), 0);
            struct pn_model *m = open_model(path, &o);
            const struct pn_model_info *info = pn_model_info(m);
            uint64_t kv = 0, scratch = info->host_bytes;
            for (int i = 0; i < o.n_parts; i++) {
                const struct pn_part_info *p = &measured.parts[i], *q = &info->parts[i];
                uint64_t used = 64 * MIB - free_now(d[i]), all = p->weights_bytes + p->kv_bytes + p->scratch_bytes;
                assert_int_equal(used, all);
                assert_int_equal(used, q->weights_bytes + q->kv_bytes + q->scratch_bytes);
                assert_ptr_equal(p->dev, d[i]);
                kv += p->kv_bytes;
                scratch += p->scratch_bytes;
                /* The same from the estimate. */
                bool last = i + 1 == o.n_parts;
                uint64_t sum = est.scratch_bytes + (i == 0 ? est.input_bytes : 0) + (last ? est.output_bytes + est.logits_bytes : 0) + (last && i ? est.tied_bytes : 0);
                for (uint32_t l = p->first_layer; l < p->first_layer + p->n_layers; l++) sum += est.layer_bytes[l] + est.layer_kv_bytes[l];
                assert_true(sum >= all && sum <= all + SLACK * LAYERS);
            }
            assert_int_equal(info->kv_bytes, kv);
            assert_int_equal(info->scratch_bytes, scratch);
            assert_int_equal(info->state_bytes > 0, kind == 3);
            assert_int_equal(info->state_bytes, measured.state_bytes);
            pn_model_free(m);
            for (int i = 0; i < 2; i++) assert_int_equal(free_now(d[i]), 64 * MIB);
        }
        pn_estimate_done(&est);
        unlink(path);
    }
    fo_device_close(d[0]);
    fo_device_close(d[1]);
}

static void a_die_of_exactly_the_size_that_is_needed_is_enough(void **state) {
    (void)state;
    const char *path = write_tiny(FO_Q8_0, true);
    struct fo_device *big = sim("s0", 64 * MIB, NULL);
    struct pn_model_opts o = opts();
    struct pn_model_info need;
    struct pn_model *m;
    struct fo_err e = { 0 };
    char why[200];
    add_part(&o, big, 3);
    add_part(&o, big, 1); /* two parts may share a die */
    assert_int_equal(pn_model_measure(path, &o, &need, why, sizeof why, &e), FO_OK);
    m = open_model(path, &o);
    pn_model_free(m);
    for (int spare = 0; spare >= -1; spare--) {
        struct fo_device *d[2];
        o.n_parts = 0;
        for (int i = 0; i < 2; i++) {
            uint64_t bytes = need.parts[i].weights_bytes + need.parts[i].kv_bytes + need.parts[i].scratch_bytes;
            d[i] = sim(i ? "tight" : "s0", bytes + (uint64_t)(i ? spare : 0), NULL);
            add_part(&o, d[i], i ? 1 : 3);
        }
        int rc = pn_model_open(path, &o, &m, &e);
        if (spare == 0) {
            if (rc) fail_msg("%s", e.msg);
            assert_int_equal(free_now(d[0]), 0);
            assert_int_equal(free_now(d[1]), 0);
            pn_model_free(m);
        } else { /* named: the die, the part of the memory, need and have */
            assert_int_equal(rc, FO_ENOMEM);
            assert_non_null(strstr(e.msg, "die tight"));
            assert_non_null(strstr(e.msg, "compute"));
            assert_true(e.need > e.have);
            assert_int_equal(fo_device_contexts(d[0]), 0); /* what the first die gave was given back */
        }
        fo_device_close(d[0]);
        fo_device_close(d[1]);
    }
    fo_device_close(big);
    unlink(path);
}

static void refuses_parts_that_are_no_split(void **state) {
    (void)state;
    const char *path = write_tiny(FO_F32, true);
    struct fo_device *d = sim("s0", 64 * MIB, NULL), *exact = NULL;
    struct fo_err e = { 0 };
    struct pn_model *m = NULL;
    assert_int_equal(fo_device_open("sim", "x", &(struct fo_device_opts){ .n_threads = 1, .memory_bytes = 64 * MIB, .exact = true }, &exact, &e), FO_OK);
    static const struct {
        uint32_t first[2], n[2];
        const char *says;
    } bad[] = {
        { { 0, 2 }, { 2, 1 }, "the parts have 3 layers" }, { { 0, 3 }, { 2, 2 }, "from 3 on" }, { { 0, 2 }, { 2, 3 }, "5 layers" },
        { { 1, 2 }, { 1, 2 }, "from 1 on" },               { { 0, 4 }, { 4, 0 }, "0 layers" },  { { 0, 1 }, { 1, UINT32_MAX }, "layers from 1" },
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct pn_model_opts o = opts();
        o.n_parts = 2;
        for (int k = 0; k < 2; k++) o.parts[k] = (struct pn_model_part){ d, bad[i].first[k], bad[i].n[k] };
        assert_int_equal(pn_model_open(path, &o, &m, &e), FO_EINVAL);
        if (!strstr(e.msg, bad[i].says)) fail_msg("%zu: %s", i, e.msg);
    }
    struct pn_model_opts o = opts();
    add_part(&o, d, 2);
    add_part(&o, exact, 2);
    assert_int_equal(pn_model_open(path, &o, &m, &e), FO_EINVAL);
    assert_non_null(strstr(e.msg, "exact"));
    fo_device_close(d);
    fo_device_close(exact);
    unlink(path);
}

static void whatever_fails_while_loading_leaves_nothing_behind(void **state) {
    (void)state;
    const char *path = write_tiny(FO_Q8_0, true);
    static const char *const what[] = { "alloc", "upload" };
    for (int k = 0; k < 2; k++) {
        int n = 1;
        for (;; n++) {
            char script[64];
            struct fo_err e = { 0 };
            struct pn_model *m = NULL;
            snprintf(script, sizeof script, "%s %d fails", what[k], n);
            struct fo_device *d[2] = { sim("s0", 64 * MIB, NULL), sim("s1", 64 * MIB, script) };
            struct pn_model_opts o = opts();
            add_part(&o, d[0], 2);
            add_part(&o, d[1], 2);
            int rc = pn_model_open(path, &o, &m, &e);
            if (rc) {
                assert_int_equal(rc, k ? FO_ELOST : FO_ENOMEM);
                assert_non_null(strstr(e.msg, "s1"));
                assert_null(m);
                for (int i = 0; i < 2; i++) {
                    assert_int_equal(fo_device_contexts(d[i]), 0);
                    assert_int_equal(free_now(d[i]), 64 * MIB);
                }
                m = NULL;
                if (n == 1) { /* and the next attempt works */
                    m = open_model(path, &o);
                    pn_model_free(m);
                }
            } else {
                pn_model_free(m);
            }
            fo_device_close(d[0]);
            fo_device_close(d[1]);
            if (!rc) break;
        }
        assert_int_equal(n, k ? 21 : 5); /* upload: 2 layers of 9 tensors, the norm, and the tied embedding; alloc: three blocks and a stream */
    }
    unlink(path);
}

static void every_allocation_of_the_host_may_fail(void **state) {
    (void)state;
    const char *path = write_tiny(FO_F32, true);
    struct fo_device *d[2] = { sim("s0", 64 * MIB, NULL), sim("s1", 64 * MIB, NULL) };
    struct pn_model_opts o = opts();
    struct fo_err e = { 0 };
    add_part(&o, d[0], 2);
    add_part(&o, d[1], 2);
    o.dev = d[0];
    long n = 1;
    for (;; n++) {
        struct pn_model *m = NULL;
        test_fail_alloc(n);
        int rc = pn_model_open(path, &o, &m, &e);
        bool failed = test_alloc_failed();
        if (!rc) pn_model_free(m);
        for (int i = 0; i < 2; i++) assert_int_equal(fo_device_contexts(d[i]), 0);
        if (!failed) {
            assert_int_equal(rc, FO_OK);
            break;
        }
        if (rc) assert_int_equal(rc, FO_ENOMEM);
    }
    assert_true(n > 10);
    for (n = 1;; n++) {
        struct pn_estimate est = { 0 };
        char why[200];
        test_fail_alloc(n);
        int rc = pn_model_estimate(path, &o, &est, why, sizeof why, &e);
        bool failed = test_alloc_failed();
        if (!rc) pn_estimate_done(&est);
        if (!failed) break;
        if (rc) assert_int_equal(rc, FO_ENOMEM);
    }
    assert_true(n > 5);
    fo_device_close(d[0]);
    fo_device_close(d[1]);
    unlink(path);
}

static void an_estimate_of_a_file_that_cannot_be_served_says_why(void **state) {
    (void)state;
    struct fo_device *d = sim("s0", 64 * MIB, NULL);
    const char *path = write_tiny(FO_F32, true);
    struct pn_model_opts o = opts();
    struct pn_estimate est = { 0 };
    struct fo_err e = { 0 };
    char why[200];
    o.dev = d;
    o.ctx_cap = 100000; /* above the trained length */
    assert_int_equal(pn_model_estimate(path, &o, &est, why, sizeof why, &e), FO_OK);
    assert_non_null(strstr(why, "100000"));
    assert_null(est.layer_bytes);
    assert_int_equal(pn_model_estimate("/nonexistent", &o, &est, why, sizeof why, &e), FO_ENOENT);
    fo_device_close(d);
    unlink(path);
}

static void a_die_lost_in_a_step_leaves_the_sequences_as_they_were(void **state) {
    (void)state;
    const char *path = write_tiny(FO_F32, true);
    struct fo_err e = { 0 };
    struct fo_device *d[2] = { sim("s0", 64 * MIB, NULL), sim("s1", 64 * MIB, "op 40 fails, lost at op 80") };
    struct pn_model_opts o = opts();
    add_part(&o, d[0], 2);
    add_part(&o, d[1], 2);
    struct pn_model *m = open_model(path, &o);
    struct pn_seq *s;
    float *logits = NULL;
    assert_int_equal(pn_seq_new(m, &s, &e), FO_OK);
    uint32_t n = 0;
    int failed = 0;
    for (int step = 0; step < 50; step++) {
        int32_t id = step % VOCAB;
        struct pn_batch_item item = { s, &id, 1, PN_WANT_LAST };
        uint64_t pages = pn_model_free_pages(m);
        if (pn_model_forward(m, &item, 1, &logits, &e) == FO_OK) {
            n++;
            continue;
        }
        assert_int_equal(e.code, FO_ELOST);
        assert_int_equal(pn_seq_len(s), n);
        assert_int_equal(pn_model_free_pages(m), pages);
        if (failed++ == 0) assert_int_equal(pn_model_check(m, &e), FO_OK); /* an op failed, the die is there */
    }
    assert_true(n > 1 && failed > 2);
    assert_int_equal(pn_model_check(m, &e), FO_ELOST);
    assert_non_null(strstr(e.msg, "s1"));
    pn_seq_free(s);
    pn_model_free(m);
    assert_int_equal(fo_device_contexts(d[1]), 0);
    fo_device_close(d[0]);
    fo_device_close(d[1]);
    unlink(path);
}

/* What a die was asked for at most, in the steps before a model serves. */
static struct fo_device seen; /* its slots as they were */
static int seen_rows, seen_seqs;
static int64_t seen_end;

static int seen_attend(struct fo_stream *s, const struct fo_kv_geom *g, const float *q, const struct fo_attn_batch *b, int layer, float *out, struct fo_err *e) {
    if (b->n_rows > seen_rows) seen_rows = b->n_rows;
    if (b->n_seqs > seen_seqs) seen_seqs = b->n_seqs;
    for (int i = 0; i < b->n_seqs; i++)
        if (b->seqs[i].pos + b->seqs[i].n > seen_end) seen_end = b->seqs[i].pos + b->seqs[i].n;
    return seen.attend(s, g, q, b, layer, out, e);
}

static void the_largest_steps_are_tried_before_a_model_serves(void **state) {
    (void)state;
    static const struct odd families[] = { { 0 }, { .window = 40 }, { .n_expert = 4, .n_expert_used = 2 }, { .n_head = 4, .n_head_kv = 4 } };
    for (size_t i = 0; i < sizeof families / sizeof *families; i++) {
        struct fo_device *d = sim("s0", 64 * MIB, NULL);
        struct odd t = families[i];
        struct fo_err e = { 0 };
        struct pn_model_opts o = opts();
        t.type = FO_Q8_0;
        odd_write(odd_path(0), &t);
        o.dev = d;
        o.draft_rows = 4;
        seen = *d;
        seen_rows = seen_seqs = 0;
        seen_end = 0;
        d->attend = seen_attend;
        struct pn_model *m = open_model(odd_path(0), &o);
        const struct pn_model_info *info = pn_model_info(m);
        uint64_t left = free_now(d);
        if (pn_model_try(m, &e)) fail_msg("%s", e.msg);
        assert_int_equal(seen_rows, info->max_batch);
        assert_int_equal(seen_seqs, info->max_concurrent);
        assert_int_equal(seen_end, info->ctx_cap);
        assert_int_equal(pn_model_free_pages(m), info->n_pages);
        assert_int_equal(free_now(d), left);
        pn_model_free(m);
        fo_device_close(d);
        unlink(odd_path(0));
    }
    /* and with recurrent state, whose blocks come back too (pn_model_free looks) */
    struct test_script script = test_script_default();
    struct fo_err e = { 0 };
    struct pn_model_opts o = opts();
    script.state_bytes = 1000;
    if (test_script_write(&script, odd_path(0), &e)) fail_msg("%s", e.msg);
    o.dev = sim("s0", 64 * MIB, NULL);
    struct pn_model *m = open_model(odd_path(0), &o);
    if (pn_model_try(m, &e)) fail_msg("%s", e.msg);
    pn_model_free(m);
    fo_device_close(o.dev);
    unlink(odd_path(0));
}

static void a_die_that_cannot_compute_the_largest_step_is_found_out_by_the_load(void **state) {
    (void)state;
    const char *path = write_tiny(FO_Q8_0, true);
    for (int n = 1; n <= 2 * LAYERS; n++) {
        char script[64];
        struct fo_err e = { 0 };
        struct pn_model_opts o = opts();
        snprintf(script, sizeof script, "attend %d fails", n);
        o.dev = sim("s0", 64 * MIB, script);
        struct pn_model *m = open_model(path, &o);
        assert_int_equal(pn_model_try(m, &e), FO_ELOST);
        if (!strstr(e.msg, "tokens of 2 sequences")) fail_msg("%s", e.msg);
        assert_int_equal(pn_model_free_pages(m), pn_model_info(m)->n_pages);
        pn_model_free(m);
        fo_device_close(o.dev);
    }
    unlink(path);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_largest_steps_are_tried_before_a_model_serves),
        cmocka_unit_test(a_die_that_cannot_compute_the_largest_step_is_found_out_by_the_load),
        cmocka_unit_test(logits_are_those_of_one_device_bit_for_bit),
        cmocka_unit_test(every_family_is_the_same_on_dies_and_threads),
        cmocka_unit_test(measured_and_used_are_equal_on_each_die_and_estimates_add_up_to_them),
        cmocka_unit_test(a_die_of_exactly_the_size_that_is_needed_is_enough),
        cmocka_unit_test(refuses_parts_that_are_no_split),
        cmocka_unit_test(whatever_fails_while_loading_leaves_nothing_behind),
        cmocka_unit_test(every_allocation_of_the_host_may_fail),
        cmocka_unit_test(an_estimate_of_a_file_that_cannot_be_served_says_why),
        cmocka_unit_test(a_die_lost_in_a_step_leaves_the_sequences_as_they_were),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
