#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "engine/model.h"
#include "foundry/base/buf.h"
#include "foundry/base/err.h"
#include "foundry/base/file.h"
#include "foundry/base/rng.h"
#include "foundry/device.h"
#include "foundry/gguf.h"
#include "foundry/ops.h"
#include "tests/support/alloc.h"
#include "tests/support/odd.h"
#include "tests/support/tiny.h"

enum { VOCAB = 96, PROMPT = 23 };

/* The weight types that this build serves: from the dtype table, by what the device says. */
static int served_types(struct fo_device *d, uint32_t out[FO_N_DTYPES]) {
    int n = 0;
    for (uint32_t i = 0; i < FO_N_DTYPES; i++)
        if (fo_dtype_info(i) && fo_dtype_info(i)->to_f32 && d->serves(d, i)) out[n++] = i;
    return n;
}

/* --- a cpu device whose slots can be watched and made to fail --- */

static struct fo_device *dev;
static struct fo_device real; /* its slots as they were */
static uint64_t allocated_bytes, free_bytes;
static int n_uploads, fail_upload, fail_attend, n_attends;

static int watched_alloc(struct fo_device *d, uint64_t bytes, void **ret, struct fo_err *e) {
    allocated_bytes += bytes;
    return real.alloc(d, bytes, ret, e);
}

static void watched_free(struct fo_device *d, void *block, uint64_t bytes) {
    allocated_bytes -= bytes;
    real.free(d, block, bytes);
}

static int watched_upload(struct fo_device *d, void *dst, const void *host, uint64_t bytes, struct fo_err *e) {
    if (++n_uploads == fail_upload) return fo_fail(e, FO_ELOST, "scripted: upload %d fails", n_uploads);
    return real.upload(d, dst, host, bytes, e);
}

static int watched_attend(struct fo_stream *s, const struct fo_kv_geom *g, const float *q, const struct fo_attn_batch *b, int layer, float *out,
                          struct fo_err *e) {
    if (++n_attends == fail_attend) return fo_fail(e, FO_ELOST, "scripted: attend %d fails", n_attends);
    return real.attend(s, g, q, b, layer, out, e);
}

static int scripted_memory(struct fo_device *d, uint64_t *ret_total, uint64_t *ret_free, struct fo_err *e) {
    if (!free_bytes) return real.memory(d, ret_total, ret_free, e);
    *ret_total = *ret_free = free_bytes;
    return FO_OK;
}

static void open_device(struct fo_device_opts o) {
    struct fo_err e;
    if (fo_device_open("cpu", "", &o, &dev, &e)) fail_msg("%s", e.msg);
    real = *dev;
    dev->alloc = watched_alloc;
    dev->free = watched_free;
    dev->upload = watched_upload;
    dev->attend = watched_attend;
    dev->memory = scripted_memory;
    allocated_bytes = free_bytes = 0;
    n_uploads = fail_upload = n_attends = fail_attend = 0;
}

static void close_device(void) {
    fo_device_close(dev);
    dev = NULL;
}

/* --- helpers --- */

static struct pn_model *open_model(const char *path, struct pn_model_opts o) {
    struct pn_model *m;
    struct fo_err e;
    o.dev = dev;
    o.kv_default = true;
    if (pn_model_open(path, &o, &m, &e)) fail_msg("%s", e.msg);
    return m;
}

static struct pn_seq *new_seq(struct pn_model *m) {
    struct pn_seq *s;
    struct fo_err e;
    if (pn_seq_new(m, &s, &e)) fail_msg("%s", e.msg);
    return s;
}

static void random_ids(int32_t *ids, int n, uint64_t seed) {
    struct fo_rng rng;
    fo_rng_seed(&rng, seed);
    for (int i = 0; i < n; i++) ids[i] = (int32_t)(fo_rng_u64(&rng) % VOCAB);
}

/* Feeds n tokens in chunks of `chunk`; logits of the last, [VOCAB]. */
static void feed(struct pn_model *m, struct pn_seq *s, const int32_t *ids, uint32_t n, uint32_t chunk, float *ret_last) {
    float *logits = NULL;
    struct fo_err e;
    for (uint32_t at = 0, k; at < n; at += k) {
        k = n - at < chunk ? n - at : chunk;
        struct pn_batch_item item = { s, ids + at, k, at + k == n ? PN_WANT_LAST : PN_WANT_NONE };
        if (pn_model_forward(m, &item, 1, &logits, &e)) fail_msg("%s", e.msg);
    }
    memcpy(ret_last, logits, VOCAB * sizeof *ret_last);
}

/* --- memory --- */

static void measured_bytes_are_those_allocated_for_every_type(void **state) {
    (void)state;
    open_device((struct fo_device_opts){ .n_threads = 1 });
    uint32_t types[FO_N_DTYPES];
    int n = served_types(dev, types);
    assert_true(n >= 9);
    for (int i = 0; i < n; i++) {
        odd_write(odd_path(0), &(struct odd){ .type = (enum fo_dtype)types[i], .n_vocab = VOCAB, .untied = i % 2, .biases = i % 3 == 0 });
        for (int copied = 0; copied < 2; copied++) {
            struct pn_model_opts o = { .dev = dev, .max_sessions = 3, .max_concurrent = 2, .max_batch = 40, .ctx_cap = 200, .kv_default = true, .no_mmap = copied };
            struct pn_model_info measured;
            struct fo_err e;
            char why[200];
            allocated_bytes = 0;
            assert_int_equal(pn_model_measure(odd_path(0), &o, &measured, why, sizeof why, &e), FO_OK);
            assert_string_equal(why, "");
            assert_int_equal(allocated_bytes, 0);

            struct pn_model *m = open_model(odd_path(0), o);
            const struct pn_model_info *used = pn_model_info(m);
            assert_int_equal(used->kv_bytes, measured.kv_bytes);
            assert_int_equal(used->scratch_bytes, measured.scratch_bytes);
            assert_int_equal(used->weights_bytes, measured.weights_bytes);
            assert_int_equal(used->n_pages, 3 * ((200 + FO_KV_PAGE_TOKENS - 1) / FO_KV_PAGE_TOKENS));
            assert_int_equal(used->kv_bytes_per_token, measured.kv_bytes_per_token);
            assert_string_equal(used->ftype, fo_dtype_name(types[i]));
            /* The device gave KV and compute, and the weights only when they are copied; the rest of the scratch is the host's. */
            uint64_t stream = dev->stream_bytes(dev, 40, 256, 200), device = used->kv_bytes + used->scratch_bytes;
            assert_true(allocated_bytes >= used->kv_bytes + (copied ? used->weights_bytes : 0));
            assert_true(allocated_bytes <= device - stream + (copied ? used->weights_bytes + 64 * 64 : 0));
            pn_model_free(m);
            assert_int_equal(allocated_bytes, 0);
        }
        unlink(odd_path(0));
    }
    close_device();
}

static void kv_is_f16_and_on_an_exact_device_f32(void **state) {
    (void)state;
    odd_write(odd_path(0), &(struct odd){ .type = FO_F32 });
    open_device((struct fo_device_opts){ .n_threads = 1 });
    struct pn_model *m = open_model(odd_path(0), (struct pn_model_opts){ .ctx_cap = 64 });
    uint64_t f16 = pn_model_info(m)->kv_bytes_per_token;
    assert_int_equal(f16, 2u * 2 * 2 * 32 * 2); /* 2 layers, k and v, 2 heads of 32, 2 bytes */
    pn_model_free(m);
    close_device();
    open_device((struct fo_device_opts){ .n_threads = 1, .exact = true });
    m = open_model(odd_path(0), (struct pn_model_opts){ .ctx_cap = 64 });
    assert_int_equal(pn_model_info(m)->kv_bytes_per_token, 2 * f16);
    pn_model_free(m);
    close_device();
    unlink(odd_path(0));
}

static void a_model_that_does_not_fit_names_the_part_with_need_and_have(void **state) {
    (void)state;
    odd_write(odd_path(0), &(struct odd){ .type = FO_Q8_0 });
    open_device((struct fo_device_opts){ .n_threads = 1 });
    struct pn_model_opts o = { .dev = dev, .kv_default = true, .no_mmap = true };
    struct pn_model_info need;
    struct pn_model *m = NULL;
    struct fo_err e;
    char why[200];
    assert_int_equal(pn_model_measure(odd_path(0), &o, &need, why, sizeof why, &e), FO_OK);
    const struct {
        uint64_t have;
        const char *part;
    } cases[] = { { need.weights_bytes - 1, "weights" }, { need.weights_bytes + need.kv_bytes, "kv" }, { need.weights_bytes + need.kv_bytes + 8192, "compute" } };
    for (int i = 0; i < 3; i++) {
        free_bytes = cases[i].have;
        if (i == 1) free_bytes -= 8192; /* weights are padded a little on the device */
        assert_int_equal(pn_model_open(odd_path(0), &o, &m, &e), FO_ENOMEM);
        if (!strstr(e.msg, cases[i].part)) fail_msg("%s: %s", cases[i].part, e.msg);
        assert_true(e.need > e.have && e.need > 0);
        assert_int_equal(allocated_bytes, 0);
        assert_null(m);
    }
    close_device();
    unlink(odd_path(0));
}

/* Fails allocation n = 1, 2, ... of opening and of measuring `path` until both get through. Opening a chat template tries it out, and a
 * trial that finds no memory only counts as a no. */
static void fail_every_allocation(const char *path, bool has_template) {
    struct pn_model_opts o = { .dev = dev, .kv_default = true };
    for (int measuring = 0; measuring < 2; measuring++) {
        long n = 0;
        for (bool failed = true; failed;) {
            struct pn_model *m = NULL;
            struct pn_model_info info;
            struct fo_err e = { 0 };
            char why[200];
            test_fail_alloc(++n);
            int rc = measuring ? pn_model_measure(path, &o, &info, why, sizeof why, &e) : pn_model_open(path, &o, &m, &e);
            failed = test_alloc_failed();
            if (rc != (failed ? FO_ENOMEM : FO_OK) && !(has_template && rc == FO_OK)) fail_msg("allocation %ld of %s: %d %s", n, path, rc, e.msg);
            if (rc) assert_null(m);
            pn_model_free(m);
            assert_int_equal(allocated_bytes, 0);
            assert_true(n < 10000);
        }
        assert_true(n > 4);
    }
}

static void an_allocation_that_fails_is_an_error_and_leaks_nothing(void **state) {
    (void)state;
    struct fo_err e;
    struct test_tiny t = test_tiny_default();
    t.chat_template = test_tiny_chatml();
    if (test_tiny_write(&t, odd_path(1), &e)) fail_msg("%s", e.msg);
    odd_write(odd_path(0), &(struct odd){ .type = FO_F32, .n_embd = 64, .n_ff = 64, .n_head = 2, .n_head_kv = 1, .n_vocab = 32 });
    open_device((struct fo_device_opts){ .n_threads = 1 });
    fail_every_allocation(odd_path(0), false);
    fail_every_allocation(odd_path(1), true);
    close_device();
    unlink(odd_path(0));
    unlink(odd_path(1));
}

/* --- results --- */

static void a_result_does_not_depend_on_chunks_mates_or_threads(void **state) {
    (void)state;
    int32_t ids[PROMPT], mate[3][PROMPT];
    random_ids(ids, PROMPT, 1);
    for (int i = 0; i < 3; i++) random_ids(mate[i], PROMPT, 10 + (uint64_t)i);
    for (int exact = 0; exact < 2; exact++) {
        open_device((struct fo_device_opts){ .n_threads = 1 });
        uint32_t types[FO_N_DTYPES];
        int n = served_types(dev, types);
        close_device();
        for (int t = 0; t < n; t += exact ? 3 : 1) { /* the exact path is slow, and the same for every type once its rows are f32 */
            float want[VOCAB], got[VOCAB], *logits;
            struct fo_err e;
            odd_write(odd_path(0), &(struct odd){ .type = (enum fo_dtype)types[t], .n_vocab = VOCAB, .seed = 3 });
            for (int threads = 1; threads <= 3; threads += 1 + exact) {
                open_device((struct fo_device_opts){ .n_threads = threads, .exact = exact });
                struct pn_model *m = open_model(odd_path(0), (struct pn_model_opts){ .max_sessions = 4, .max_concurrent = 4, .max_batch = 160 });
                static const uint32_t chunks[] = { PROMPT, 5, 1, 2, 16 };
                for (size_t c = 0; c < (threads > 1 ? 1 : exact ? 2 : sizeof chunks / sizeof chunks[0]); c++) {
                    struct pn_seq *s = new_seq(m);
                    feed(m, s, ids, PROMPT, chunks[c], threads == 1 && c == 0 ? want : got);
                    if (threads + c > 1 && memcmp(want, got, sizeof want))
                        fail_msg("%s, %d threads: chunks of %u differ", fo_dtype_name(types[t]), threads, chunks[c]);
                    pn_seq_free(s);
                }
                /* The last 5 tokens among three others that are prefilling, and one decoding. */
                struct pn_seq *s[4];
                for (int i = 0; i < 4; i++) s[i] = new_seq(m);
                feed(m, s[2], ids, PROMPT - 5, 7, got);
                feed(m, s[0], mate[0], 12, 12, got);
                struct pn_batch_item items[] = {
                    { s[0], mate[0] + 12, 1, PN_WANT_LAST },
                    { s[1], mate[1], PROMPT, PN_WANT_NONE },
                    { s[2], ids + PROMPT - 5, 5, PN_WANT_LAST },
                    { s[3], mate[2], 9, PN_WANT_LAST },
                };
                if (pn_model_forward(m, items, 4, &logits, &e)) fail_msg("%s", e.msg);
                if (memcmp(want, logits + VOCAB, sizeof want)) fail_msg("%s, %d threads: differs among mates", fo_dtype_name(types[t]), threads);
                for (int i = 0; i < 4; i++) pn_seq_free(s[i]);
                pn_model_free(m);
                close_device();
            }
            unlink(odd_path(0));
        }
    }
}

static void weights_in_the_map_in_memory_and_uploaded_give_the_same_logits(void **state) {
    (void)state;
    int32_t ids[PROMPT];
    float want[VOCAB], got[VOCAB];
    random_ids(ids, PROMPT, 2);
    odd_write(odd_path(0), &(struct odd){ .type = FO_Q4_K, .n_vocab = VOCAB, .untied = true, .biases = true });
    for (int way = 0; way < 3; way++) {
        open_device((struct fo_device_opts){ .n_threads = 1 });
        if (way == 2) dev->weights_in_place = false; /* as a card: everything is copied, logits come back by download */
        struct pn_model *m = open_model(odd_path(0), (struct pn_model_opts){ .no_mmap = way == 1 });
        assert_int_equal(n_uploads > 0, way > 0);
        struct pn_seq *s = new_seq(m);
        feed(m, s, ids, PROMPT, 16, way ? got : want);
        if (way) assert_memory_equal(got, want, sizeof want);
        pn_seq_free(s);
        pn_model_free(m);
        close_device();
    }
    unlink(odd_path(0));
}

static void truncating_and_going_on_equals_never_having_said_it(void **state) {
    (void)state;
    int32_t ids[PROMPT], other[PROMPT];
    float want[VOCAB], got[VOCAB];
    random_ids(ids, PROMPT, 3);
    random_ids(other, PROMPT, 4);
    odd_write(odd_path(0), &(struct odd){ .type = FO_F16, .n_vocab = VOCAB });
    open_device((struct fo_device_opts){ .n_threads = 1 });
    struct pn_model *m = open_model(odd_path(0), (struct pn_model_opts){ 0 });
    struct pn_seq *s = new_seq(m);
    feed(m, s, ids, PROMPT, PROMPT, want);
    assert_int_equal(pn_seq_truncate(s, 11), 11);
    feed(m, s, other, 20, 20, got);
    assert_int_equal(pn_seq_len(s), 31);
    assert_int_equal(pn_seq_tokens(s)[12], other[1]);
    assert_int_equal(pn_seq_truncate(s, 11), 11);
    feed(m, s, ids + 11, PROMPT - 11, 5, got);
    assert_memory_equal(got, want, sizeof want);
    pn_seq_free(s);
    pn_model_free(m);
    close_device();
    unlink(odd_path(0));
}

/* A window that slides over many pages gives what a model with room for everything gives, from a few pages; what fell out of it cannot be
 * gone back to. */
static void a_sliding_window_keeps_only_its_pages(void **state) {
    (void)state;
    enum { LONG = 6 * FO_KV_PAGE_TOKENS + 7, WINDOW = FO_KV_PAGE_TOKENS + 5 };
    int32_t ids[LONG];
    float want[VOCAB], got[VOCAB];
    random_ids(ids, LONG, 21);
    odd_write(odd_path(0), &(struct odd){ .type = FO_F16, .n_vocab = VOCAB, .window = WINDOW, .n_ctx = LONG });
    open_device((struct fo_device_opts){ .n_threads = 1 });
    for (int chunk = 1; chunk <= 17; chunk += 16) {
        struct pn_model *m = open_model(odd_path(0), (struct pn_model_opts){ .ctx_cap = LONG, .max_batch = (uint32_t)chunk });
        const struct pn_model_info *i = pn_model_info(m);
        assert_int_equal(i->seq_pages, (WINDOW + chunk - 1 + FO_KV_PAGE_TOKENS - 2) / FO_KV_PAGE_TOKENS + 1);
        assert_int_equal(i->n_pages, i->seq_pages);
        assert_in_range(i->kv_bytes, 1, (uint64_t)i->seq_pages * i->page_tokens * i->kv_bytes_per_token + 64);
        struct pn_seq *s = new_seq(m);
        feed(m, s, ids, LONG, (uint32_t)chunk, got);
        if (chunk > 1) assert_memory_equal(got, want, sizeof want);
        memcpy(want, got, sizeof want);
        assert_int_equal(pn_seq_len(s), LONG);
        assert_true(pn_seq_pages(s) <= i->seq_pages);
        assert_int_equal(pn_seq_truncate(s, LONG - 2), LONG - 2);
        feed(m, s, ids + LONG - 2, 2, 1, got);
        assert_memory_equal(got, want, sizeof want);
        assert_int_equal(pn_seq_truncate(s, 9), 0);
        assert_int_equal(pn_model_free_pages(m), i->n_pages);
        pn_seq_free(s);
        pn_model_free(m);
    }
    close_device();
    unlink(odd_path(0));
}

static void only_the_rows_that_are_wanted_come_back_in_order(void **state) {
    (void)state;
    int32_t ids[PROMPT];
    float *logits, all[2][PROMPT * VOCAB];
    struct fo_err e;
    random_ids(ids, PROMPT, 5);
    odd_write(odd_path(0), &(struct odd){ .type = FO_Q8_0, .n_vocab = VOCAB });
    open_device((struct fo_device_opts){ .n_threads = 1 });
    struct pn_model *m = open_model(odd_path(0), (struct pn_model_opts){ .max_sessions = 3, .max_concurrent = 3, .max_batch = 3 * PROMPT, .all_logits = true });
    struct pn_seq *s[3] = { new_seq(m), new_seq(m), new_seq(m) };
    for (int i = 0; i < 2; i++) {
        struct pn_batch_item one = { s[0], ids + i, (uint32_t)(PROMPT - i), PN_WANT_ALL };
        assert_int_equal(pn_model_forward(m, &one, 1, &logits, &e), FO_OK);
        memcpy(all[i], logits, sizeof(float) * VOCAB * (size_t)(PROMPT - i));
        pn_seq_truncate(s[0], 0);
    }
    struct pn_batch_item items[] = { { s[0], ids, PROMPT, PN_WANT_LAST }, { s[1], ids, 8, PN_WANT_NONE }, { s[2], ids + 1, 4, PN_WANT_ALL } };
    assert_int_equal(pn_model_forward(m, items, 3, &logits, &e), FO_OK);
    assert_memory_equal(logits, all[0] + (PROMPT - 1) * VOCAB, VOCAB * sizeof(float));
    assert_memory_equal(logits + VOCAB, all[1], 4 * VOCAB * sizeof(float));
    for (int i = 0; i < 3; i++) pn_seq_free(s[i]);
    pn_model_free(m);
    close_device();
    unlink(odd_path(0));
}

static void a_step_allocates_nothing(void **state) {
    (void)state;
    int32_t ids[PROMPT];
    float *logits;
    struct fo_err e;
    random_ids(ids, PROMPT, 6);
    odd_write(odd_path(0), &(struct odd){ .type = FO_Q4_0, .n_vocab = VOCAB });
    open_device((struct fo_device_opts){ .n_threads = 2 });
    struct pn_model *m = open_model(odd_path(0), (struct pn_model_opts){ .max_batch = 64 });
    struct pn_seq *s = new_seq(m);
    uint64_t device = allocated_bytes;
    test_fail_alloc(0);
    struct pn_batch_item prompt = { s, ids, PROMPT, PN_WANT_LAST }, next = { s, ids, 1, PN_WANT_LAST };
    assert_int_equal(pn_model_forward(m, &prompt, 1, &logits, &e), FO_OK);
    for (int i = 0; i < 3; i++) assert_int_equal(pn_model_forward(m, &next, 1, &logits, &e), FO_OK);
    assert_int_equal(test_allocs(), 0);
    assert_int_equal(allocated_bytes, device);
    pn_seq_free(s);
    pn_model_free(m);
    close_device();
    unlink(odd_path(0));
}

/* --- failures of a step --- */

static void a_step_that_fails_leaves_every_sequence_as_it_was(void **state) {
    (void)state;
    int32_t ids[PROMPT];
    float want[VOCAB], got[VOCAB], *logits;
    struct fo_err e;
    random_ids(ids, PROMPT, 7);
    odd_write(odd_path(0), &(struct odd){ .type = FO_Q4_1, .n_vocab = VOCAB });
    open_device((struct fo_device_opts){ .n_threads = 1 });
    struct pn_model *m = open_model(odd_path(0), (struct pn_model_opts){ .max_sessions = 2, .max_concurrent = 2, .max_batch = 64 });
    struct pn_seq *a = new_seq(m), *b = new_seq(m);
    feed(m, a, ids, PROMPT, PROMPT, want);
    pn_seq_truncate(a, 0);
    feed(m, a, ids, 20, 20, got);
    uint64_t pages = pn_model_free_pages(m);
    struct pn_batch_item items[] = { { a, ids + 20, PROMPT - 20, PN_WANT_LAST }, { b, ids, 9, PN_WANT_NONE } };
    for (int layer = 1; layer <= 2; layer++) {
        n_attends = 0;
        fail_attend = layer;
        assert_int_equal(pn_model_forward(m, items, 2, &logits, &e), FO_ELOST);
        assert_non_null(strstr(e.msg, "scripted"));
        assert_int_equal(pn_seq_len(a), 20);
        assert_int_equal(pn_seq_len(b), 0);
        assert_int_equal(pn_model_free_pages(m), pages);
    }
    fail_attend = 0;
    assert_int_equal(pn_model_forward(m, items, 2, &logits, &e), FO_OK);
    assert_memory_equal(logits, want, sizeof want);
    pn_seq_free(a);
    pn_seq_free(b);
    pn_model_free(m);
    close_device();
    unlink(odd_path(0));
}

static void a_batch_without_pages_for_all_takes_none(void **state) {
    (void)state;
    enum { CAP = 2 * FO_KV_PAGE_TOKENS };
    int32_t ids[CAP];
    float *logits;
    struct fo_err e;
    random_ids(ids, CAP, 8);
    odd_write(odd_path(0), &(struct odd){ .type = FO_F32, .n_vocab = VOCAB });
    open_device((struct fo_device_opts){ .n_threads = 1 });
    struct pn_model *m = open_model(odd_path(0), (struct pn_model_opts){ .ctx_cap = CAP, .max_sessions = 2, .max_concurrent = 3, .max_batch = 3 * CAP });
    struct pn_seq *s[3] = { new_seq(m), new_seq(m), new_seq(m) };
    struct pn_batch_item items[] = { { s[0], ids, CAP, PN_WANT_LAST }, { s[1], ids, CAP, PN_WANT_LAST }, { s[2], ids, 1, PN_WANT_LAST } };
    assert_int_equal(pn_model_forward(m, items, 3, &logits, &e), FO_ENOMEM);
    assert_int_equal(e.need, 1);
    assert_int_equal(e.have, 0);
    assert_int_equal(pn_model_free_pages(m), 4);
    assert_int_equal(pn_model_forward(m, items, 2, &logits, &e), FO_OK);
    assert_int_equal(pn_model_forward(m, items, 1, &logits, &e), FO_EBUDGET); /* past the cap now */
    assert_int_equal(pn_seq_len(s[0]), CAP);
    for (int i = 0; i < 3; i++) pn_seq_free(s[i]);
    pn_model_free(m);
    close_device();
    unlink(odd_path(0));
}

static void refuses_batches_that_make_no_sense(void **state) {
    (void)state;
    int32_t ids[40] = { 0 }, bad[] = { 1, VOCAB }, negative[] = { -1 };
    float *logits;
    struct fo_err e;
    odd_write(odd_path(0), &(struct odd){ .type = FO_F32, .n_vocab = VOCAB });
    open_device((struct fo_device_opts){ .n_threads = 1 });
    struct pn_model_opts o = { .max_concurrent = 2, .max_sessions = 3, .max_batch = 32 };
    struct pn_model *m = open_model(odd_path(0), o), *other = open_model(odd_path(0), o);
    struct pn_seq *a = new_seq(m), *b = new_seq(m), *c = new_seq(m), *foreign = new_seq(other);
    const struct {
        struct pn_batch_item items[3];
        int n;
        int code;
    } cases[] = {
        { { { a, ids, 1, PN_WANT_LAST } }, 0, FO_EINVAL },
        { { { a, ids, 1, PN_WANT_LAST }, { b, ids, 1, PN_WANT_LAST }, { c, ids, 1, PN_WANT_LAST } }, 3, FO_EINVAL },
        { { { a, ids, 0, PN_WANT_LAST } }, 1, FO_EINVAL },
        { { { a, ids, 33, PN_WANT_LAST } }, 1, FO_EINVAL },
        { { { a, ids, 3, PN_WANT_ALL } }, 1, FO_EINVAL }, /* opened without all_logits */
        { { { a, bad, 2, PN_WANT_LAST } }, 1, FO_EINVAL },
        { { { a, negative, 1, PN_WANT_LAST } }, 1, FO_EINVAL },
        { { { a, ids, 1, PN_WANT_LAST }, { a, ids, 1, PN_WANT_LAST } }, 2, FO_EINTERNAL },
        { { { foreign, ids, 1, PN_WANT_LAST } }, 1, FO_EINTERNAL },
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        int rc = pn_model_forward(m, cases[i].items, cases[i].n, &logits, &e);
        if (rc != cases[i].code) fail_msg("case %zu: %d %s", i, rc, e.msg);
        assert_int_equal(pn_seq_len(a), 0);
    }
    assert_int_equal(pn_model_free_pages(m), pn_model_info(m)->n_pages);
    pn_seq_free(a);
    pn_seq_free(b);
    pn_seq_free(c);
    pn_seq_free(foreign);
    pn_model_free(m);
    pn_model_free(other);
    close_device();
    unlink(odd_path(0));
}

/* --- files that cannot be served --- */

struct bad_file {
    const char *what;
    struct odd file;
    int code;
    const char *text[3]; /* all in the message */
};

static const struct bad_file bad_files[] = {
    { "another architecture", { .keys = (const struct odd_key[]){ { "general.architecture", 's', 0, "mamba" }, { 0 } } }, FO_EUNSUPPORTED, { "\"mamba\"", "llama" } },
    { "no architecture", { .keys = (const struct odd_key[]){ { "general.architecture", '-', 0, 0 }, { 0 } } }, FO_EFORMAT, { "general.architecture" } },
    { "experts without a number of those asked", { .keys = (const struct odd_key[]){ { "llama.expert_count", 'u', 8, 0 }, { 0 } } }, FO_EFORMAT, { "llama.expert_used_count", "missing" } },
    { "more experts than believed", { .keys = (const struct odd_key[]){ { "llama.expert_count", 'u', 4000000, 0 }, { 0 } } }, FO_EFORMAT, { "llama.expert_count", "4000000", "512" } },
    { "more experts asked than there are", { .n_expert = 4, .n_expert_used = 5 }, FO_EFORMAT, { "llama.expert_used_count", "5", "1 to 4" } },
    { "no expert asked", { .n_expert = 4 }, FO_EFORMAT, { "llama.expert_used_count", "0", "1 to 4" } },
    { "a shared expert", { .n_expert = 4, .n_expert_used = 2, .keys = (const struct odd_key[]){ { "llama.expert_shared_count", 'u', 2, 0 }, { 0 } } }, FO_EUNSUPPORTED, { "llama.expert_shared_count", "2" } },
    { "experts that are flat", { .n_expert = 4, .n_expert_used = 2, .tensors = (const struct odd_tensor[]){ { "blk.1.ffn_up_exps.weight", 256, 1024, FO_F32 }, { 0 } } }, FO_EFORMAT, { "blk.1.ffn_up_exps.weight", "[256, 1024]", "[256, 256, 4]" } },
    { "a narrow router", { .n_expert = 4, .n_expert_used = 2, .tensors = (const struct odd_tensor[]){ { "blk.0.ffn_gate_inp.weight", 256, 3, FO_F32 }, { 0 } } }, FO_EFORMAT, { "blk.0.ffn_gate_inp.weight", "[256, 3]", "[256, 4]" } },
    { "no experts", { .n_expert = 4, .n_expert_used = 2, .tensors = (const struct odd_tensor[]){ { "blk.0.ffn_down_exps.weight", 0, 0, 0 }, { 0 } } }, FO_EFORMAT, { "blk.0.ffn_down_exps.weight", "missing" } },
    { "an unknown scaling", { .keys = (const struct odd_key[]){ { "llama.rope.scaling.type", 's', 0, "dynamic" }, { 0 } } }, FO_EUNSUPPORTED, { "llama.rope.scaling.type", "dynamic" } },
    { "half of yarn", { .keys = (const struct odd_key[]){ { "llama.rope.scaling.yarn_ext_factor", 'f', 0.5, 0 }, { 0 } } }, FO_EUNSUPPORTED, { "llama.rope.scaling.yarn_ext_factor", "0.5" } },
    { "a negative scale", { .keys = (const struct odd_key[]){ { "llama.rope.scaling.factor", 'f', -4, 0 }, { 0 } } }, FO_EFORMAT, { "llama.rope.scaling.factor", "-4" } },
    { "a scale past belief", { .keys = (const struct odd_key[]){ { "llama.rope.scaling.factor", 'f', 1e9, 0 }, { 0 } } }, FO_EFORMAT, { "llama.rope.scaling.factor", "1e+09" } },
    { "no original context", { .keys = (const struct odd_key[]){ { "llama.rope.scaling.original_context_length", 'u', 0, 0 }, { 0 } } }, FO_EFORMAT, { "original_context_length", "0" } },
    { "longrope without its factors", { .keys = (const struct odd_key[]){ { "llama.rope.scaling.type", 's', 0, "longrope" }, { 0 } } }, FO_EFORMAT, { "rope_factors_long.weight" } },
    { "long factors alone", { .rope_long = (const float[16]){ 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1 } }, FO_EFORMAT, { "rope_factors_short.weight" } },
    { "qwen3 without a norm of q", { .arch = "qwen3" }, FO_EFORMAT, { "blk.0.attn_q_norm.weight" } },
    { "phi3 with matrices of its own", { .arch = "phi3" }, FO_EFORMAT, { "blk.0.attn_qkv.weight" } },
    { "phi3 with a narrow ffn_up", { .arch = "phi3", .fused = true, .tensors = (const struct odd_tensor[]){ { "blk.0.ffn_up.weight", 256, 256, FO_F32 }, { 0 } } }, FO_EFORMAT, { "blk.0.ffn_up.weight", "[256, 256]", "[256, 512]" } },
    { "phi3 with a long attn_qkv", { .arch = "phi3", .fused = true, .tensors = (const struct odd_tensor[]){ { "blk.0.attn_qkv.weight", 256, 400, FO_F32 }, { 0 } } }, FO_EFORMAT, { "blk.0.attn_qkv.weight", "[256, 400]", "[256, 384]" } },
    { "an old scale key", { .keys = (const struct odd_key[]){ { "llama.rope.scale_linear", 's', 0, "4" }, { 0 } } }, FO_EFORMAT, { "llama.rope.scale_linear" } },
    { "a missing key", { .keys = (const struct odd_key[]){ { "llama.block_count", '-', 0, 0 }, { 0 } } }, FO_EFORMAT, { "llama.block_count", "missing" } },
    { "no layers", { .keys = (const struct odd_key[]){ { "llama.block_count", 'u', 0, 0 }, { 0 } } }, FO_EFORMAT, { "llama.block_count", "0", "1024" } },
    { "four billion layers", { .keys = (const struct odd_key[]){ { "llama.block_count", 'u', 4294967295, 0 }, { 0 } } }, FO_EFORMAT, { "4294967295" } },
    { "more layers than tensors", { .keys = (const struct odd_key[]){ { "llama.block_count", 'u', 1000, 0 }, { 0 } } }, FO_EFORMAT, { "blk.2.attn_norm.weight", "missing" } },
    { "fewer layers than tensors", { .keys = (const struct odd_key[]){ { "llama.block_count", 'u', 1, 0 }, { 0 } } }, FO_EUNSUPPORTED, { "blk.1." } },
    { "a key of another type", { .keys = (const struct odd_key[]){ { "llama.embedding_length", 's', 0, "256" }, { 0 } } }, FO_EFORMAT, { "llama.embedding_length" } },
    { "a huge embedding", { .keys = (const struct odd_key[]){ { "llama.embedding_length", 'u', 1e9, 0 }, { 0 } } }, FO_EFORMAT, { "llama.embedding_length", "1000000000" } },
    { "heads that do not divide", { .keys = (const struct odd_key[]){ { "llama.attention.head_count_kv", 'u', 3, 0 }, { 0 } } }, FO_EFORMAT, { "head_count_kv, 3" } },
    { "more kv heads than heads", { .keys = (const struct odd_key[]){ { "llama.attention.head_count_kv", 'u', 16, 0 }, { 0 } } }, FO_EFORMAT, { "head_count_kv", "16" } },
    { "heads wider than the embedding", { .keys = (const struct odd_key[]){ { "llama.attention.head_count", 'u', 4096, 0 }, { 0 } } }, FO_EFORMAT, { "4096" } },
    { "unequal key and value", { .keys = (const struct odd_key[]){ { "llama.attention.value_length", 'u', 64, 0 }, { 0 } } }, FO_EUNSUPPORTED, { "value_length", "64", "32" } },
    { "an odd rotation", { .keys = (const struct odd_key[]){ { "llama.rope.dimension_count", 'u', 31, 0 }, { 0 } } }, FO_EFORMAT, { "rope.dimension_count", "31" } },
    { "a rotation past the head", { .keys = (const struct odd_key[]){ { "llama.rope.dimension_count", 'u', 64, 0 }, { 0 } } }, FO_EFORMAT, { "rope.dimension_count", "64", "32" } },
    { "an epsilon that is no number", { .keys = (const struct odd_key[]){ { "llama.attention.layer_norm_rms_epsilon", 'f', (double)__builtin_nanf(""), 0 }, { 0 } } }, FO_EFORMAT, { "layer_norm_rms_epsilon" } },
    { "a rope base of zero", { .keys = (const struct odd_key[]){ { "llama.rope.freq_base", 'f', 0, 0 }, { 0 } } }, FO_EFORMAT, { "llama.rope.freq_base" } },
    { "no context", { .keys = (const struct odd_key[]){ { "llama.context_length", 'u', 0, 0 }, { 0 } } }, FO_EFORMAT, { "llama.context_length" } },
    { "another vocabulary", { .keys = (const struct odd_key[]){ { "llama.vocab_size", 'u', 97, 0 }, { 0 } } }, FO_EFORMAT, { "llama.vocab_size", "97", "96" } },
    { "no embedding", { .tensors = (const struct odd_tensor[]){ { "token_embd.weight", 0, 0, 0 }, { 0 } } }, FO_EFORMAT, { "token_embd.weight", "missing" } },
    { "a missing tensor", { .tensors = (const struct odd_tensor[]){ { "blk.1.ffn_up.weight", 0, 0, 0 }, { 0 } } }, FO_EFORMAT, { "blk.1.ffn_up.weight", "missing" } },
    { "a tensor of another shape", { .tensors = (const struct odd_tensor[]){ { "blk.1.ffn_up.weight", 256, 255, FO_F32 }, { 0 } } }, FO_EFORMAT, { "blk.1.ffn_up.weight", "[256, 255]", "[256, 256]" } },
    { "a transposed tensor", { .tensors = (const struct odd_tensor[]){ { "blk.0.attn_k.weight", 64, 256, FO_F32 }, { 0 } } }, FO_EFORMAT, { "blk.0.attn_k.weight", "[64, 256]", "[256, 64]" } },
    { "a norm that is no plain number", { .tensors = (const struct odd_tensor[]){ { "blk.0.ffn_norm.weight", 256, 1, FO_Q8_0 }, { 0 } } }, FO_EUNSUPPORTED, { "blk.0.ffn_norm.weight", "Q8_0", "F32" } },
    { "a bias of another length", { .tensors = (const struct odd_tensor[]){ { "blk.0.attn_q.bias", 128, 1, FO_F32 }, { 0 } } }, FO_EFORMAT, { "blk.0.attn_q.bias", "[128", "[256" } },
    { "a weight that is no weight type", { .tensors = (const struct odd_tensor[]){ { "blk.0.attn_q.weight", 256, 256, FO_I32 }, { 0 } } }, FO_EUNSUPPORTED, { "blk.0.attn_q.weight", "I32" } },
    { "a tensor that nothing uses", { .tensors = (const struct odd_tensor[]){ { "blk.0.attn_q_norm.weight", 32, 1, FO_F32 }, { 0 } } }, FO_EUNSUPPORTED, { "blk.0.attn_q_norm.weight" } },
    { "a frequency divisor of zero", { .rope_freqs = (const float[16]){ 1, 0 } }, FO_EFORMAT, { "rope_freqs.weight", "0 at 1" } },
};

static void a_file_that_cannot_be_served_says_why_at_load_and_when_measured(void **state) {
    (void)state;
    open_device((struct fo_device_opts){ .n_threads = 1 });
    for (size_t i = 0; i < sizeof bad_files / sizeof bad_files[0]; i++) {
        const struct bad_file *b = &bad_files[i];
        struct pn_model_opts o = { .dev = dev, .kv_default = true };
        struct pn_model *m = NULL;
        struct pn_model_info info;
        struct fo_err e;
        char why[384];
        odd_write(odd_path(0), &b->file);
        int rc = pn_model_open(odd_path(0), &o, &m, &e);
        if (rc != b->code) fail_msg("%s: %d %s", b->what, rc, rc ? e.msg : "");
        assert_null(m);
        assert_int_equal(allocated_bytes, 0);
        assert_non_null(strstr(e.msg, odd_path(0)));
        for (int k = 0; k < 3 && b->text[k]; k++)
            if (!strstr(e.msg, b->text[k])) fail_msg("%s: '%s' is not in: %s", b->what, b->text[k], e.msg);
        assert_int_equal(pn_model_measure(odd_path(0), &o, &info, why, sizeof why, &e), FO_OK);
        for (int k = 0; k < 3 && b->text[k]; k++)
            if (!strstr(why, b->text[k])) fail_msg("%s: '%s' is not in: %s", b->what, b->text[k], why);
        assert_true(info.n_params > 0 && info.file_bytes > 0);
        unlink(odd_path(0));
    }
    close_device();
}

static void refuses_limits_that_make_no_sense(void **state) {
    (void)state;
    odd_write(odd_path(0), &(struct odd){ .type = FO_F32 });
    open_device((struct fo_device_opts){ .n_threads = 1 });
    const struct {
        struct pn_model_opts o;
        int code;
        const char *text[2];
    } cases[] = {
        { { .ctx_cap = 257, .kv_default = true }, FO_EINVAL, { "257", "256" } },
        { { .max_sessions = 1u << 20, .kv_default = true }, FO_EINVAL, { "max_sessions", "1048576" } },
        { { .max_concurrent = 1u << 20, .kv_default = true }, FO_EINVAL, { "max_concurrent", "1048576" } },
        { { .max_batch = 1u << 20, .kv_default = true }, FO_EINVAL, { "max_batch", "1048576" } },
        { { .k_type = FO_Q4_1, .v_type = FO_Q4_1 }, FO_EUNSUPPORTED, { "Q4_1", "F16" } },
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct pn_model_opts o = cases[i].o;
        struct pn_model *m = NULL;
        struct fo_err e;
        o.dev = dev;
        assert_int_equal(pn_model_open(odd_path(0), &o, &m, &e), cases[i].code);
        for (int k = 0; k < 2; k++)
            if (!strstr(e.msg, cases[i].text[k])) fail_msg("'%s' is not in: %s", cases[i].text[k], e.msg);
    }
    struct pn_model *m = open_model(odd_path(0), (struct pn_model_opts){ .max_concurrent = 9, .max_batch = 4 });
    assert_int_equal(pn_model_info(m)->max_batch, 9); /* every sequence can decode */
    assert_int_equal(pn_model_info(m)->ctx_cap, 256);
    pn_model_free(m);
    close_device();
    unlink(odd_path(0));
}

/* Heads of 32 dimensions fit the blocks of the quantised types, those of 16 do not. */
static void keeps_quantised_kv_where_heads_fit(void **state) {
    (void)state;
    static const enum fo_dtype types[] = { FO_Q8_0, FO_Q4_0 };
    for (int i = 0; i < 2; i++)
        for (uint32_t head_dim = 16; head_dim <= 32; head_dim += 16) {
            odd_write(odd_path(0), &(struct odd){ .type = FO_F32, .head_dim = head_dim });
            open_device((struct fo_device_opts){ .n_threads = 1 });
            struct pn_model *m = NULL;
            struct fo_err e;
            struct pn_model_opts o = { .dev = dev, .k_type = types[i], .v_type = types[i] };
            int rc = pn_model_open(odd_path(0), &o, &m, &e);
            if (head_dim == 16) {
                assert_int_equal(rc, FO_EUNSUPPORTED);
                assert_true(strstr(e.msg, fo_dtype_name(types[i])) && strstr(e.msg, "multiple of 32") && strstr(e.msg, "16"));
            } else {
                assert_int_equal(rc, FO_OK);
                uint64_t row = fo_dtype_bytes(types[i], head_dim), tokens = fo_kv_block_tokens(types[i], FO_KV_PAGE_TOKENS);
                uint64_t pages = pn_model_info(m)->n_pages * ((2 * 2 * 2 * row * tokens + 63) / 64 * 64); /* K and V of two heads in two layers */
                assert_in_range(pn_model_info(m)->kv_bytes, pages, pages + 63); /* debug builds put a redzone behind them */
                pn_model_free(m);
            }
            close_device();
            unlink(odd_path(0));
        }
}

/* Pages for fewer sessions than are promised, but never for less than one; estimate, measure and open agree on all of it. */
static void overcommit_and_types_of_keys_and_values_count_in_every_figure(void **state) {
    (void)state;
    static const struct {
        struct pn_model_opts o;
        uint64_t sessions_10;                   /* ten times the sessions that there are pages for */
        enum fo_dtype k, v, k_floor, v_floor;
    } cases[] = {
        { { .k_type = FO_F16, .v_type = FO_F16 }, 40, FO_F16, FO_F16, FO_F16, FO_F16 },
        { { .k_type = FO_Q8_0, .v_type = FO_Q4_0, .kv_overcommit = 100 }, 40, FO_Q8_0, FO_Q4_0, FO_Q8_0, FO_Q4_0 },
        { { .k_type = FO_F16, .v_type = FO_Q8_0, .has_floor = true, .k_floor = FO_Q4_0, .v_floor = FO_Q4_0, .kv_overcommit = 200 }, 20, FO_F16, FO_Q8_0, FO_Q4_0, FO_Q4_0 },
        { { .k_type = FO_Q4_0, .v_type = FO_Q8_0, .has_floor = true, .k_floor = FO_Q8_0, .v_floor = FO_Q8_0, .kv_overcommit = 160 }, 25, FO_Q4_0, FO_Q8_0, FO_Q4_0, FO_Q8_0 },
        { { .kv_default = true, .has_floor = true, .k_floor = FO_F32, .v_floor = FO_F16, .kv_overcommit = 1000 }, 10, FO_F16, FO_F16, FO_F16, FO_F16 },
    };
    odd_write(odd_path(0), &(struct odd){ .type = FO_F32, .head_dim = 32 });
    open_device((struct fo_device_opts){ .n_threads = 1 });
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct pn_model_opts o = cases[i].o;
        struct pn_model_info measured;
        struct pn_estimate est;
        struct pn_model *m = NULL;
        struct fo_err e;
        char why[200];
        o.dev = dev;
        o.max_sessions = 4;
        o.ctx_cap = 200;
        assert_int_equal(pn_model_measure(odd_path(0), &o, &measured, why, sizeof why, &e), FO_OK);
        assert_int_equal(pn_model_estimate(odd_path(0), &o, &est, why, sizeof why, &e), FO_OK);
        if (pn_model_open(odd_path(0), &o, &m, &e)) fail_msg("%s", e.msg);
        const struct pn_model_info *used = pn_model_info(m);
        uint64_t seq_pages = (200 + FO_KV_PAGE_TOKENS - 1) / FO_KV_PAGE_TOKENS;
        assert_int_equal(used->n_pages, (seq_pages * cases[i].sessions_10 + 9) / 10);
        assert_true(used->k_type == cases[i].k && used->v_type == cases[i].v && used->k_floor == cases[i].k_floor && used->v_floor == cases[i].v_floor);
        assert_true(measured.k_floor == used->k_floor && measured.v_type == used->v_type && measured.n_pages == used->n_pages);
        assert_int_equal(used->kv_bytes, measured.kv_bytes);
        uint64_t kv = 0;
        for (uint32_t l = 0; l < est.n_layer; l++) kv += est.layer_kv_bytes[l];
#ifdef FO_DEBUG /* a redzone behind them; and small pages, which each layer alone rounds up */
        assert_in_range(used->kv_bytes, kv - 63 * est.n_layer * used->n_pages, kv + 63);
#else
        assert_int_equal(used->kv_bytes, kv);
#endif
        pn_estimate_done(&est);
        pn_model_free(m);
    }
    close_device();
    unlink(odd_path(0));
}

/* Heads of 16 dimensions cannot be kept in blocks of 32: as a floor that is none, not an error. */
static void a_floor_that_the_heads_do_not_fit_is_none(void **state) {
    (void)state;
    odd_write(odd_path(0), &(struct odd){ .type = FO_F32, .head_dim = 16 });
    open_device((struct fo_device_opts){ .n_threads = 1 });
    struct pn_model *m = open_model(odd_path(0), (struct pn_model_opts){ .has_floor = true, .k_floor = FO_Q4_0, .v_floor = FO_Q8_0 });
    assert_true(pn_model_info(m)->k_floor == FO_F16 && pn_model_info(m)->v_floor == FO_F16);
    pn_model_free(m);
    close_device();
    unlink(odd_path(0));
}

static void reads_types_of_kv_by_name(void **state) {
    (void)state;
    static const struct {
        const char *name;
        enum fo_dtype k, v;
    } good[] = { { "q8_0", FO_Q8_0, FO_Q8_0 }, { "F32", FO_F32, FO_F32 }, { "k=q8_0,v=q4_0", FO_Q8_0, FO_Q4_0 }, { "V=F16,K=Q4_0", FO_Q4_0, FO_F16 } };
    static const char *const bad[] = { "", "q8", "q8_0x", "q5_0", "k=q8_0", "k=q8_0,", "v=q8_0", "k=,v=q8_0", "k=q8_0,k=q8_0", "k=q8_0,v=q4_0,", "k=q8_0,v=q4_0,v=f16", "k=q8_0;v=f16", ",", "k", "f16,q8_0" };
    struct fo_err e;
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        struct pn_model_opts o = { .kv_default = true };
        assert_int_equal(pn_kv_type_parse(good[i].name, &o, &e), FO_OK);
        assert_true(!o.kv_default && o.k_type == good[i].k && o.v_type == good[i].v);
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct pn_model_opts o = { .kv_default = true };
        if (pn_kv_type_parse(bad[i], &o, &e) != FO_EINVAL) fail_msg("'%s' was taken", bad[i]);
        assert_true(o.kv_default && strstr(e.msg, "k=q8_0,v=q4_0"));
    }
}

static void a_model_without_a_tokenizer_takes_tokens_only_and_says_why(void **state) {
    (void)state;
    odd_write(odd_path(0), &(struct odd){ .type = FO_F32 });
    open_device((struct fo_device_opts){ .n_threads = 1 });
    struct pn_model *m = open_model(odd_path(0), (struct pn_model_opts){ 0 });
    const struct pn_model_info *i = pn_model_info(m);
    assert_false(i->has_tokenizer);
    assert_non_null(i->tokenizer_error);
    assert_true(i->tokenizer_error[0]);
    assert_null(pn_model_tok(m));
    assert_null(pn_model_chat(m));
    assert_string_equal(i->arch, "llama");
    assert_string_equal(i->name, "tiny");
    pn_model_free(m);
    close_device();
    unlink(odd_path(0));
}

static struct sigaction sigbus_guard; /* of foundry/base/file.c; cmocka puts its own handler over it before each test */

static void a_file_changed_under_the_model_is_lost(void **state) {
    (void)state;
    assert_int_equal(sigaction(SIGBUS, &sigbus_guard, NULL), 0);
    int32_t ids[PROMPT];
    float *logits;
    struct fo_err e;
    random_ids(ids, PROMPT, 9);
    for (int way = 0; way < 2; way++) {
        odd_write(odd_path(0), &(struct odd){ .type = FO_F32, .n_vocab = VOCAB });
        open_device((struct fo_device_opts){ .n_threads = 2 });
        struct pn_model *m = open_model(odd_path(0), (struct pn_model_opts){ 0 });
        struct pn_seq *s = new_seq(m);
        struct pn_batch_item item = { s, ids, PROMPT, PN_WANT_LAST };
        assert_int_equal(pn_model_state(m, &e), FO_OK);
        if (way == 0) {
            assert_int_equal(truncate(odd_path(0), 5000), 0);
            (void)pn_model_forward(m, &item, 1, &logits, &e); /* zeros are read where the file ended; the step survives */
        } else {
            FILE *f = fopen(odd_path(0), "ab");
            assert_non_null(f);
            assert_int_equal(fputc('x', f), 'x');
            assert_int_equal(fclose(f), 0);
        }
        assert_int_equal(pn_model_state(m, &e), FO_ELOST);
        pn_seq_free(s);
        pn_model_free(m);
        close_device();
        unlink(odd_path(0));
    }
}

static void an_upload_that_fails_releases_everything(void **state) {
    (void)state;
    odd_write(odd_path(0), &(struct odd){ .type = FO_F32 });
    open_device((struct fo_device_opts){ .n_threads = 1 });
    struct pn_model_opts o = { .dev = dev, .kv_default = true, .no_mmap = true };
    struct pn_model *m = NULL;
    struct fo_err e;
    fail_upload = 5;
    assert_int_equal(pn_model_open(odd_path(0), &o, &m, &e), FO_ELOST);
    assert_null(m);
    assert_int_equal(allocated_bytes, 0);
    close_device();
    unlink(odd_path(0));
}

static void a_file_that_is_no_model_is_an_error_of_open_and_measure(void **state) {
    (void)state;
    open_device((struct fo_device_opts){ .n_threads = 1 });
    struct pn_model_opts o = { .dev = dev, .kv_default = true };
    struct pn_model *m = NULL;
    struct pn_model_info info;
    struct fo_err e;
    char why[8];
    assert_int_equal(pn_model_open("tests/data/no-such.gguf", &o, &m, &e), FO_ENOENT);
    assert_int_equal(pn_model_measure("tests/data/no-such.gguf", &o, &info, why, sizeof why, &e), FO_ENOENT);
    assert_non_null(strstr(e.msg, "no-such.gguf"));
    assert_int_equal(pn_model_open("Makefile", &o, &m, &e), FO_EFORMAT);
    assert_non_null(strstr(e.msg, "Makefile"));
    assert_null(m);
    pn_model_free(NULL);
    close_device();
}

/* --- mutants --- */

static double seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void a_thousand_mutants_are_refused_or_run(void **state) {
    (void)state;
    enum { MUTANTS = 1000 };
    struct test_tiny t = test_tiny_default();
    struct fo_buf good;
    struct fo_err e;
    struct fo_rng rng;
    int n_refused = 0;
    t.n_layer = 1;
    t.n_vocab = 300;
    t.n_ctx = 64;
    t.dtype = FO_Q8_0;
    if (test_tiny_build(&t, &good, &e)) fail_msg("%s", e.msg);
    open_device((struct fo_device_opts){ .n_threads = 1 });
    fo_rng_seed(&rng, 11);
    unsigned char *bytes = malloc(good.len);
    assert_non_null(bytes);
    for (int i = 0; i < MUTANTS; i++) {
        memcpy(bytes, good.data, good.len);
        size_t span = i % 2 ? good.len : good.len / 8, len = i % 10 == 9 ? fo_rng_u64(&rng) % good.len : good.len;
        for (int k = 0, n = 1 + (int)(fo_rng_u64(&rng) % 8); k < n; k++) {
            size_t at = fo_rng_u64(&rng) % span;
            /* a flipped bit, a random byte, or a 32-bit number at its limit */
            uint32_t limit = fo_rng_u64(&rng) % 2 ? UINT32_MAX : 0x7FFFFFFF;
            if (k % 3 == 0) bytes[at] ^= (unsigned char)(1u << fo_rng_u64(&rng) % 8);
            if (k % 3 == 1) bytes[at] = (unsigned char)fo_rng_u64(&rng);
            if (k % 3 == 2 && at + sizeof limit <= good.len) memcpy(bytes + at, &limit, sizeof limit);
        }
        FILE *f = fopen(odd_path(0), "wb");
        assert_non_null(f);
        assert_int_equal(fwrite(bytes, 1, len, f), len);
        assert_int_equal(fclose(f), 0);

        double from = seconds();
        struct pn_model_opts o = { .dev = dev, .kv_default = true, .max_batch = 8 };
        struct pn_model *m;
        if (pn_model_open(odd_path(0), &o, &m, &e)) {
            n_refused++;
            if (e.code != FO_EFORMAT && e.code != FO_EUNSUPPORTED && e.code != FO_ELIMIT) fail_msg("mutant %d: %d %s", i, e.code, e.msg);
        } else {
            struct pn_seq *s = new_seq(m);
            struct pn_batch_item item = { s, (const int32_t[]){ 5, 6, 7, 8 }, 4, PN_WANT_LAST };
            float *logits;
            if (pn_model_forward(m, &item, 1, &logits, &e)) fail_msg("mutant %d: %s", i, e.msg);
            pn_seq_free(s);
            pn_model_free(m);
        }
        if (seconds() - from > 1) fail_msg("mutant %d took %.1f s", i, seconds() - from);
        assert_int_equal(allocated_bytes, 0);
    }
    print_message("  %d of %d refused\n", n_refused, MUTANTS);
    assert_true(n_refused > MUTANTS / 4);
    free(bytes);
    fo_buf_done(&good);
    close_device();
    unlink(odd_path(0));
}

int main(void) {
    struct fo_map *map;
    struct fo_err e;
    if (fo_map_open("Makefile", &map, &e) || sigaction(SIGBUS, NULL, &sigbus_guard)) return 1;
    fo_map_close(map);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(measured_bytes_are_those_allocated_for_every_type),
        cmocka_unit_test(kv_is_f16_and_on_an_exact_device_f32),
        cmocka_unit_test(a_model_that_does_not_fit_names_the_part_with_need_and_have),
        cmocka_unit_test(an_allocation_that_fails_is_an_error_and_leaks_nothing),
        cmocka_unit_test(a_result_does_not_depend_on_chunks_mates_or_threads),
        cmocka_unit_test(weights_in_the_map_in_memory_and_uploaded_give_the_same_logits),
        cmocka_unit_test(truncating_and_going_on_equals_never_having_said_it),
        cmocka_unit_test(a_sliding_window_keeps_only_its_pages),
        cmocka_unit_test(only_the_rows_that_are_wanted_come_back_in_order),
        cmocka_unit_test(a_step_allocates_nothing),
        cmocka_unit_test(a_step_that_fails_leaves_every_sequence_as_it_was),
        cmocka_unit_test(a_batch_without_pages_for_all_takes_none),
        cmocka_unit_test(refuses_batches_that_make_no_sense),
        cmocka_unit_test(a_file_that_cannot_be_served_says_why_at_load_and_when_measured),
        cmocka_unit_test(refuses_limits_that_make_no_sense),
        cmocka_unit_test(keeps_quantised_kv_where_heads_fit),
        cmocka_unit_test(overcommit_and_types_of_keys_and_values_count_in_every_figure),
        cmocka_unit_test(a_floor_that_the_heads_do_not_fit_is_none),
        cmocka_unit_test(reads_types_of_kv_by_name),
        cmocka_unit_test(a_model_without_a_tokenizer_takes_tokens_only_and_says_why),
        cmocka_unit_test(a_file_changed_under_the_model_is_lost),
        cmocka_unit_test(an_upload_that_fails_releases_everything),
        cmocka_unit_test(a_file_that_is_no_model_is_an_error_of_open_and_measure),
        cmocka_unit_test(a_thousand_mutants_are_refused_or_run),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
