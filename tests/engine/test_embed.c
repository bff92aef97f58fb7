/* Embeddings: what HuggingFace transformers makes of a text in each pooling; the same bits however a prompt is cut, on however many
 * threads and dies and beside whatever else; and the rules of admission, which are those of every request. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/embed.h"
#include "engine/request_worker.h"
#include "engine/text.h"
#include "foundry/gguf.h"
#include "include/pantheon.h"
#include "tests/support/alloc.h"
#include "tests/support/odd.h"
#include "tests/support/script.h"
#include "tests/support/serve.h"

enum { CTX = 256, VOCAB = 96, LONGEST = 200, MAX_EMBD = 512 };

static const enum pn_pooling poolings[] = { PN_POOLING_MEAN, PN_POOLING_CLS, PN_POOLING_LAST };

static struct fo_device *open_cpu(int threads, bool exact) {
    struct fo_device *d = NULL;
    struct fo_err e = { 0 };
    struct fo_device_opts o = { .n_threads = threads, .exact = exact };
    if (fo_device_open("cpu", "", &o, &d, &e)) fail_msg("%s", e.msg);
    return d;
}

static struct pn_model *open_model(const char *path, const struct pn_model_opts *o) {
    struct pn_model *m = NULL;
    struct fo_err e = { 0 };
    if (pn_model_open(path, o, &m, &e)) fail_msg("%s", e.msg);
    return m;
}

/* The vector of ids [n], in steps of `chunk` tokens; `mates` other sequences compute beside it, one that wants logits and one that wants states. */
static void embed(struct pn_model *m, enum pn_pooling p, const int32_t *ids, uint32_t n, uint32_t chunk, bool mates, float *ret) {
    struct pn_seq *seq[3] = { NULL };
    struct pn_pooled *v;
    struct fo_err e;
    float *logits;
    uint32_t n_embd = pn_model_info(m)->n_embd, len;
    if (pn_pooled_new(p, n_embd, n, &v, &e)) fail_msg("%s", e.msg);
    for (int i = 0; i < (mates ? 3 : 1); i++) assert_int_equal(pn_seq_new(m, &seq[i], &e), FO_OK);
    for (uint32_t at = 0, k; at < n; at += k) {
        k = n - at < chunk ? n - at : chunk;
        struct pn_batch_item mine = { seq[0], ids + at, k, pn_pooled_want(v, k) }, items[3];
        int n_items = 0, before = 0;
        if (mates) {
            items[n_items++] = (struct pn_batch_item){ seq[1], ids + at % 7, 2, PN_WANT_ALL_STATES };
            before = 2;
        }
        items[n_items++] = mine;
        if (mates) items[n_items++] = (struct pn_batch_item){ seq[2], ids + at % 5, 1, PN_WANT_LAST };
        if (pn_model_forward(m, items, n_items, &logits, &e)) fail_msg("%s", e.msg);
        pn_pooled_add(v, k, pn_model_states(m) + (size_t)before * n_embd);
    }
    if (pn_pooled_finish(v, &e)) fail_msg("%s", e.msg);
    memcpy(ret, pn_pooled_vector(v, &len), n_embd * sizeof *ret);
    assert_int_equal(len, n_embd);
    pn_pooled_free(v);
    for (int i = 0; i < 3; i++) pn_seq_free(seq[i]);
}

static double dot(const float *a, const float *b, uint32_t n) {
    double sum = 0;
    for (uint32_t i = 0; i < n; i++) sum += (double)a[i] * (double)b[i];
    return sum;
}

/* --- the reference --- */

static void equals(const json_t *want, const float *got, uint32_t n, double tolerance, const char *what) {
    double worst = 0, squares = 0;
    assert_int_equal(json_array_size(want), n);
    for (uint32_t i = 0; i < n; i++) {
        worst = fmax(worst, fabs(json_real_value(json_array_get(want, i)) - (double)got[i]));
        squares += (double)got[i] * (double)got[i];
    }
    if (!(worst <= tolerance) || fabs(squares - 1) > 1e-6) fail_msg("%s: off by %g, allowed %g; length %.9f", what, worst, tolerance, sqrt(squares));
}

/* One file on one device. */
static uint32_t check_reference(const char *path, json_t *entries, bool exact, double tolerance) {
    static const char *const names[] = { "mean", "cls", "last" };
    struct fo_device *d = open_cpu(2, exact);
    struct pn_model_opts o = { .dev = d, .kv_default = true, .max_batch = 32 };
    struct pn_model *m = open_model(path, &o);
    float got[MAX_EMBD];
    uint32_t n_checked = 0, n_embd = pn_model_info(m)->n_embd;
    size_t i;
    json_t *entry;
    assert_true(n_embd <= MAX_EMBD);
    json_array_foreach(entries, i, entry) {
        int32_t ids[LONGEST];
        const json_t *list = json_object_get(entry, "ids");
        const char *text = json_string_value(json_object_get(entry, "text"));
        uint32_t n = (uint32_t)json_array_size(list);
        assert_true(n > 0 && n <= LONGEST);
        for (uint32_t k = 0; k < n; k++) ids[k] = (int32_t)json_integer_value(json_array_get(list, k));
        if (text) { /* with what begins and ends a text */
            struct pn_ids mine;
            struct fo_err e;
            if (pn_text_encode(m, text, strlen(text), false, true, 0, &mine, &e)) fail_msg("%s: %s", path, e.msg);
            assert_int_equal(mine.n, n);
            assert_memory_equal(mine.ids, ids, n * sizeof *ids);
            free(mine.ids);
        }
        for (size_t p = 0; p < 3; p++, n_checked++) {
            char what[512];
            snprintf(what, sizeof what, "%s, text %zu, %s%s", path, i, names[p], exact ? ", exact" : "");
            embed(m, poolings[p], ids, n, 32, false, got);
            equals(json_object_get(entry, names[p]), got, n_embd, tolerance, what);
        }
    }
    pn_model_free(m);
    fo_device_close(d);
    return n_checked;
}

static void vectors_are_those_of_transformers_in_every_pooling(void **state) {
    (void)state;
    json_error_t je;
    json_t *all = json_load_file("tests/data/embeddings.json", 0, &je), *entries;
    const char *name;
    uint32_t n = 0, n_models = 0;
    if (!all) fail_msg("%s", je.text);
    json_object_foreach(json_object_get(all, "models"), name, entries) {
        char path[256];
        snprintf(path, sizeof path, "tests/data/goldens/models/%s/hf", name);
        n += check_reference(path, entries, true, 2e-6);
        n += check_reference(path, entries, false, 2e-3);
        snprintf(path, sizeof path, "tests/data/goldens/models/%s/gguf/%s-F16.gguf", name, name);
        n += check_reference(path, entries, true, 2e-6);
        n_models++;
    }
    json_decref(all);
    assert_int_equal(n, n_models * 3 * 3 * 3);
    assert_true(n_models >= 8);
}

/* --- states --- */

static const struct odd families[] = {
    { .biases = true, .untied = true },
    { .window = 20, .n_expert = 4, .n_expert_used = 2, .n_ff = 64 },
    { .arch = "qwen2", .biases = true },
    { .arch = "qwen3", .qk_norm = true, .head_dim = 48 },
    { .arch = "phi3", .fused = true, .untied = true },
};
enum { N_FAMILIES = sizeof families / sizeof *families };

static const char *write_family(int i) {
    struct odd t = families[i];
    t.seed = (uint64_t)i + 1;
    t.type = FO_F32;
    odd_write(odd_path(0), &t);
    return odd_path(0);
}

static void ids_of(int32_t *ids, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) ids[i] = (int32_t)((i * i * 7 + i * 31 + 5) % VOCAB);
}

/* The output matrix makes the logits of them, whatever the family. */
static void a_state_is_what_logits_are_made_of(void **state) {
    (void)state;
    struct fo_device *d = open_cpu(1, true);
    int32_t ids[40];
    ids_of(ids, 40);
    for (int f = 0; f < N_FAMILIES; f++) {
        const char *path = write_family(f);
        struct fo_err e;
        struct fo_gguf *g;
        struct pn_model_opts o = { .dev = d, .kv_default = true, .all_logits = true, .max_concurrent = 2, .max_sessions = 2 };
        struct pn_model *m = open_model(path, &o);
        struct pn_seq *a, *b;
        float *logits;
        uint32_t n_embd = pn_model_info(m)->n_embd;
        assert_int_equal(fo_gguf_open(path, &g, &e), FO_OK);
        const struct fo_gguf_tensor *t = fo_gguf_tensor(g, "output.weight");
        const float *w = (t ? t : fo_gguf_tensor(g, "token_embd.weight"))->t.data;
        assert_int_equal(pn_seq_new(m, &a, &e), FO_OK);
        assert_int_equal(pn_seq_new(m, &b, &e), FO_OK);
        struct pn_batch_item items[] = { { a, ids, 40, PN_WANT_ALL }, { b, ids, 40, PN_WANT_ALL_STATES } };
        if (pn_model_forward(m, items, 2, &logits, &e)) fail_msg("%s", e.msg);
        for (uint32_t r = 0; r < 40; r++)
            for (uint32_t i = 0; i < VOCAB; i++) {
                double want = dot(w + (size_t)i * n_embd, pn_model_states(m) + (size_t)r * n_embd, n_embd), got = (double)logits[r * VOCAB + i];
                if (fabs(want - got) > 1e-4 * (1 + fabs(want))) fail_msg("family %d, row %u, logit %u: %g, not %g", f, r, i, got, want);
            }
        pn_seq_free(a);
        pn_seq_free(b);
        pn_model_free(m);
        fo_gguf_close(g);
        unlink(path);
    }
    fo_device_close(d);
}

static void a_vector_does_not_depend_on_chunks_mates_or_threads(void **state) {
    (void)state;
    enum { N = 50 };
    static const uint32_t chunks[] = { 1, 7, 33 };
    struct fo_device *d[] = { open_cpu(1, false), open_cpu(2, false) };
    int32_t ids[LONGEST];
    float want[MAX_EMBD], got[MAX_EMBD];
    ids_of(ids, LONGEST);
    for (int f = 0; f < N_FAMILIES; f++) {
        const char *path = write_family(f);
        for (size_t p = 0; p < 3; p++)
            for (int t = 0; t < 2; t++) {
                struct pn_model_opts o = { .dev = d[t], .kv_default = true, .max_concurrent = 3, .max_sessions = 3 };
                struct pn_model *m = open_model(path, &o);
                uint32_t n_embd = pn_model_info(m)->n_embd;
                if (t == 0) embed(m, poolings[p], ids, N, N, false, want);
                for (size_t c = 0; c < sizeof chunks / sizeof *chunks; c++)
                    for (int mates = 0; mates < 2; mates++) {
                        embed(m, poolings[p], ids, N, chunks[c], mates, got);
                        assert_memory_equal(want, got, n_embd * sizeof *want);
                    }
                assert_int_equal(pn_model_free_pages(m), pn_model_info(m)->n_pages);
                pn_model_free(m);
            }
        unlink(path);
    }
    for (int t = 0; t < 2; t++) fo_device_close(d[t]);
}

static void a_vector_is_the_same_on_several_dies(void **state) {
    (void)state;
    struct fo_err e = { 0 };
    struct fo_device *cpu = open_cpu(1, false), *dies[2];
    struct fo_device_opts so = { .n_threads = 1, .memory_bytes = 64 << 20 };
    int32_t ids[LONGEST];
    float want[MAX_EMBD], got[MAX_EMBD];
    const char *path = write_family(0);
    ids_of(ids, LONGEST);
    for (int i = 0; i < 2; i++)
        if (fo_device_open("sim", i ? "s1" : "s0", &so, &dies[i], &e)) fail_msg("%s", e.msg);
    for (size_t p = 0; p < 3; p++) {
        struct pn_model_opts whole = { .dev = cpu, .kv_default = true, .max_batch = 40, .max_concurrent = 3, .max_sessions = 3 }, alone = whole, split = whole;
        alone.dev = dies[0];
        split.n_parts = 2;
        split.parts[0] = (struct pn_model_part){ dies[0], 0, 1 };
        split.parts[1] = (struct pn_model_part){ dies[1], 1, 1 };
        const struct pn_model_opts *const opts[] = { &whole, &alone, &split };
        for (size_t i = 0; i < 3; i++) {
            struct pn_model *m = open_model(path, opts[i]);
            embed(m, poolings[p], ids, 90, 35, true, i ? got : want);
            if (i) assert_memory_equal(want, got, pn_model_info(m)->n_embd * sizeof *want);
            pn_model_free(m);
        }
    }
    unlink(path);
    for (int i = 0; i < 2; i++) fo_device_close(dies[i]);
    fo_device_close(cpu);
}

static void a_scripted_model_has_states_too(void **state) {
    (void)state;
    struct fo_err e = { 0 };
    struct fo_device *d = open_cpu(1, false);
    struct test_script t = test_script_default();
    int32_t ids[60];
    float want[MAX_EMBD], got[MAX_EMBD];
    for (int i = 0; i < 60; i++) ids[i] = 5 + i * 3 % 80;
    if (test_script_write(&t, odd_path(0), &e)) fail_msg("%s", e.msg);
    struct pn_model_opts o = { .dev = d, .kv_default = true, .max_concurrent = 3, .max_sessions = 3 };
    struct pn_model *m = open_model(odd_path(0), &o);
    uint32_t n_embd = pn_model_info(m)->n_embd;
    assert_true(n_embd <= MAX_EMBD);
    for (size_t p = 0; p < 3; p++) {
        embed(m, poolings[p], ids, 60, 60, false, want);
        assert_true(fabs(dot(want, want, n_embd) - 1) < 1e-6);
        for (int mates = 0; mates < 2; mates++) {
            embed(m, poolings[p], ids, 60, 11, mates, got);
            assert_memory_equal(want, got, n_embd * sizeof *want);
        }
    }
    pn_model_free(m);
    unlink(odd_path(0));
    fo_device_close(d);
}

/* --- pooling --- */

static void what_has_no_direction_is_an_error_and_no_vector(void **state) {
    (void)state;
    static const float rows[][2] = { { 0, 0 }, { NAN, 1 }, { 1, INFINITY }, { 1, -INFINITY } };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (size_t p = 0; p < 3; p++) {
            struct pn_pooled *v;
            struct fo_err e = { 0 };
            assert_int_equal(pn_pooled_new(poolings[p], 2, 1, &v, &e), FO_OK);
            assert_int_equal(pn_pooled_add(v, 1, rows[i]), 1);
            assert_int_equal(pn_pooled_finish(v, &e), FO_EIO);
            pn_pooled_free(v);
        }
}

static void poolings_take_the_rows_they_are_named_for(void **state) {
    (void)state;
    static const float rows[3][2] = { { 3, 4 }, { 0, -8 }, { 5, 0 } };
    static const float want[][2] = { { (float)(8 / 8.94427190999915856), (float)(-4 / 8.94427190999915856) }, { 0.6F, 0.8F }, { 1, 0 } };
    for (size_t p = 0; p < 3; p++)
        for (uint32_t first = 1; first <= 3; first++) {
            struct pn_pooled *v;
            struct fo_err e = { 0 };
            uint32_t n;
            assert_int_equal(pn_pooled_new(poolings[p], 2, 3, &v, &e), FO_OK);
            for (uint32_t at = 0, k; at < 3; at += k) {
                k = at ? 3 - at : first;
                enum pn_want w = pn_pooled_want(v, k);
                pn_pooled_add(v, k, rows[w == PN_WANT_LAST_STATE ? at + k - 1 : at]);
            }
            assert_int_equal(pn_pooled_finish(v, &e), FO_OK);
            const float *got = pn_pooled_vector(v, &n);
            assert_int_equal(n, 2);
            for (int i = 0; i < 2; i++) assert_true(fabsf(got[i] - want[p][i]) < 1e-7F);
            pn_pooled_free(v);
        }
}

static void write_pooled(const char *key, char kind, double value) {
    const struct odd_key keys[] = { { key, kind, value, NULL }, { NULL, 0, 0, NULL } };
    struct odd t = { .type = FO_F32, .seed = 3, .keys = keys };
    odd_write(odd_path(0), &t);
}

static void the_metadata_says_how_to_pool(void **state) {
    (void)state;
    struct fo_device *d = open_cpu(1, false);
    struct pn_model_opts o = { .dev = d, .kv_default = true };
    struct fo_err e = { 0 };
    struct pn_model *m;
    static const char *const names[] = { "none", "mean", "cls", "last", "rank" };
    for (int p = 0; p <= 5; p++) {
        write_pooled("llama.pooling_type", 'u', p);
        if (p == 5) {
            assert_int_equal(pn_model_open(odd_path(0), &o, &m, &e), FO_EFORMAT);
            assert_non_null(strstr(e.msg, "llama.pooling_type"));
            continue;
        }
        m = open_model(odd_path(0), &o);
        assert_int_equal(pn_model_info(m)->pooling, p);
        assert_string_equal(pn_pooling_name(pn_model_info(m)->pooling), names[p]);
        pn_model_free(m);
    }
    write_pooled("llama.attention.causal", 'b', 1);
    m = open_model(odd_path(0), &o);
    assert_int_equal(pn_model_info(m)->pooling, PN_POOLING_LAST);
    pn_model_free(m);
    write_pooled("llama.attention.causal", 'b', 0);
    assert_int_equal(pn_model_open(odd_path(0), &o, &m, &e), FO_EUNSUPPORTED);
    assert_non_null(strstr(e.msg, "attention.causal"));
    unlink(odd_path(0));
    fo_device_close(d);
}

/* --- served --- */

struct world {
    struct test_die die;
    struct pn_engine *en;
    struct pn_served *s;
};

static void open_world(struct world *w, enum pn_pooling p, uint32_t max_concurrent, uint32_t max_batch, uint32_t queue) {
    struct fo_err e = { 0 };
    test_die_open(&w->die);
    assert_int_equal(pn_engine_new(&w->en, &e), 0);
    write_pooled("llama.pooling_type", 'u', p);
    w->s = test_serve(w->en, &w->die, odd_path(0), "m", max_concurrent, max_concurrent, max_batch, queue, 0);
    unlink(odd_path(0));
}

static void close_world(struct world *w) {
    pn_served_put(w->s);
    pn_engine_free(w->en);
    test_die_close(&w->die);
}

static struct pn_served_status status(const struct world *w) {
    struct pn_served_status st;
    pn_served_status(w->s, &st);
    return st;
}

static struct pn_request_opts embed_opts(const int32_t *ids, uint32_t n) {
    return (struct pn_request_opts){ .tokens = ids, .n_tokens = n, .embed = true };
}

/* Reads to the end: the code, and the vector when that is 0. */
static int read_vector(struct pn_request *r, float *ret, struct pn_usage *ret_usage) {
    struct pn_event ev;
    do {
        pn_request_next(r, 30000, &ev);
        assert_true(ev.kind == PN_EV_STARTED || ev.kind == PN_EV_DONE || ev.kind == PN_EV_ERROR);
        if (ev.kind != PN_EV_DONE) assert_null(ev.embedding);
    } while (ev.kind == PN_EV_STARTED);
    int rc = ev.kind == PN_EV_DONE ? 0 : (int)ev.err->code;
    if (rc == 0) {
        assert_non_null(ev.embedding);
        memcpy(ret, ev.embedding, ev.n_embedding * sizeof *ret);
    }
    if (ret_usage) *ret_usage = ev.usage;
    pn_request_release(r);
    return rc;
}

static void an_embedding_and_an_answer_are_the_same_alone_and_together(void **state) {
    (void)state;
    static struct test_answer alone, beside;
    int32_t ids[LONGEST];
    float want[2][MAX_EMBD], got[2][MAX_EMBD];
    ids_of(ids, LONGEST);
    for (size_t p = 0; p < 3; p++) {
        struct world w;
        struct pn_usage usage;
        open_world(&w, poolings[p], 3, 16, 8);
        uint32_t n_embd = pn_model_info(pn_served_model(w.s))->n_embd;
        uint64_t used = status(&w).kv_bytes_used;
        struct pn_request_opts first = embed_opts(ids, 150), second = embed_opts(ids + 20, 37), talk = test_opts(ids + 3, 30, 60);
        talk.want_text = false; /* no tokenizer */
        talk.keep_nothing = true;
        assert_int_equal(read_vector(test_submit(w.s, &first), want[0], &usage), 0);
        assert_int_equal(usage.prompt_tokens, 150);
        assert_int_equal(usage.completion_tokens, 0);
        assert_int_equal(usage.cached_tokens, 0);
        assert_true(usage.prefill_ms > 0 && usage.decode_ms == 0.0);
        assert_int_equal(read_vector(test_submit(w.s, &second), want[1], NULL), 0);
        struct pn_served_status st = status(&w);
        assert_int_equal(st.completed, 2);
        assert_int_equal(st.tokens_prefilled, 187);
        assert_int_equal(st.tokens_generated + st.tokens_decoded, 0);
        assert_int_equal(st.kv_bytes_used, used);
        test_ask(w.s, &talk, &alone);
        assert_int_equal(alone.code, 0);

        struct pn_request *t = test_submit(w.s, &talk), *a = test_submit(w.s, &first), *b = test_submit(w.s, &second);
        assert_int_equal(read_vector(a, got[0], NULL), 0);
        assert_int_equal(read_vector(b, got[1], NULL), 0);
        test_read_all(t, &beside);
        assert_int_equal(beside.n_ids, 60);
        assert_memory_equal(alone.ids, beside.ids, 60 * sizeof *alone.ids);
        for (int i = 0; i < 2; i++) assert_memory_equal(want[i], got[i], n_embd * sizeof(float));
        assert_true(fabs(dot(got[0], got[0], n_embd) - 1) < 1e-6);
        st = status(&w);
        assert_int_equal(st.tokens_generated, 120);
        assert_int_equal(st.tokens_prefilled, 2 * 187 + 60);
        assert_int_equal(st.kv_bytes_used, used);
        close_world(&w);
    }
}

static void a_prompt_may_fill_the_cap_and_not_pass_it(void **state) {
    (void)state;
    struct world w;
    int32_t ids[CTX + 1];
    float v[MAX_EMBD];
    struct pn_request *r = NULL;
    struct pn_budget b;
    struct fo_err e = { 0 };
    ids_of(ids, CTX + 1);
    open_world(&w, PN_POOLING_MEAN, 1, 64, 8);
    struct pn_request_opts o = embed_opts(ids, CTX);
    assert_int_equal(read_vector(test_submit(w.s, &o), v, NULL), 0);
    o.n_tokens = CTX + 1;
    assert_int_equal(pn_submit(w.s, &o, &r, &b, &e), FO_EBUDGET);
    assert_null(r);
    assert_int_equal(b.prompt_tokens, CTX + 1);
    assert_int_equal(b.max_tokens, 0);
    assert_int_equal(b.ctx_cap, CTX);
    assert_int_equal(e.need, CTX + 1);
    assert_int_equal(e.have, CTX);
    assert_non_null(strstr(e.msg, "maximum context length is 256 tokens"));
    assert_non_null(strstr(e.msg, "exceeds the available context size"));
    assert_null(strstr(e.msg, "max_tokens"));
    o.n_tokens = 0;
    assert_int_equal(pn_submit(w.s, &o, &r, &b, &e), FO_EINVAL);
    o.n_tokens = 1;
    ids[0] = VOCAB;
    assert_int_equal(pn_submit(w.s, &o, &r, &b, &e), FO_EINVAL);
    close_world(&w);
}

static void a_pooling_without_a_vector_refuses_embeddings_and_still_generates(void **state) {
    (void)state;
    static const enum pn_pooling none[] = { PN_POOLING_NONE, PN_POOLING_RANK };
    int32_t ids[10];
    ids_of(ids, 10);
    for (int i = 0; i < 2; i++) {
        struct world w;
        static struct test_answer a;
        struct pn_request *r = NULL;
        struct pn_budget b;
        struct fo_err e = { 0 };
        open_world(&w, none[i], 1, 64, 8);
        struct pn_request_opts o = embed_opts(ids, 10), talk = test_opts(ids, 10, 5);
        assert_int_equal(pn_submit(w.s, &o, &r, &b, &e), FO_EUNSUPPORTED);
        assert_non_null(strstr(e.msg, pn_pooling_name(none[i])));
        talk.want_text = false;
        test_ask(w.s, &talk, &a);
        assert_int_equal(a.n_ids, 5);
        close_world(&w);
    }
}

static void a_cancel_stops_before_the_next_chunk_and_gives_the_pages_back(void **state) {
    (void)state;
    struct world w;
    int32_t ids[LONGEST];
    struct pn_event ev;
    ids_of(ids, LONGEST);
    open_world(&w, PN_POOLING_MEAN, 1, 8, 8);
    uint64_t used = status(&w).kv_bytes_used;
    atomic_store(&w.die.delay_ms, 20);
    struct pn_request_opts o = embed_opts(ids, LONGEST);
    struct pn_request *r = test_submit(w.s, &o), *waits = test_submit(w.s, &o);
    do pn_request_next(r, 30000, &ev);
    while (ev.kind != PN_EV_STARTED);
    assert_true(status(&w).kv_bytes_used > used);
    pn_request_release(waits); /* in the queue: never starts */
    pn_request_cancel(r);
    int before = atomic_load(&w.die.steps);
    assert_int_equal(read_vector(r, NULL, NULL), FO_ECANCELLED);
    test_wait_idle(w.s);
    assert_true(atomic_load(&w.die.steps) <= before + 1);
    assert_int_equal(status(&w).kv_bytes_used, used);
    assert_int_equal(status(&w).cancelled, 2);
    assert_int_equal(status(&w).completed, 0);
    close_world(&w);
}

static void a_full_queue_and_draining_refuse_it_and_one_that_goes_on_is_taken(void **state) {
    (void)state;
    struct world w;
    int32_t ids[LONGEST];
    float v[MAX_EMBD];
    struct pn_request *late = NULL;
    struct pn_budget b = { 0 };
    struct fo_err e = { 0 };
    ids_of(ids, LONGEST);
    open_world(&w, PN_POOLING_LAST, 1, 16, 1);
    atomic_store(&w.die.delay_ms, 20);
    struct pn_request_opts o = embed_opts(ids, LONGEST);
    struct pn_request *runs = test_submit(w.s, &o), *waits = test_submit(w.s, &o);
    assert_int_equal(pn_submit(w.s, &o, &late, &b, &e), FO_EBUSY);
    assert_true(b.retry_after_s >= 1);
    assert_int_equal(status(&w).refused, 1);
    pn_engine_drain(w.en);
    assert_int_equal(pn_submit(w.s, &o, &late, &b, &e), FO_EUNAVAIL);
    o.goes_on = true;
    struct pn_request *next = test_submit(w.s, &o);
    assert_int_equal(read_vector(runs, v, NULL), 0);
    assert_int_equal(read_vector(waits, v, NULL), 0);
    assert_int_equal(read_vector(next, v, NULL), 0);
    close_world(&w);
}

static void the_next_input_lets_those_pass_who_waited(void **state) {
    (void)state;
    struct world w;
    int32_t ids[LONGEST];
    float v[MAX_EMBD];
    struct pn_event ev;
    ids_of(ids, LONGEST);
    open_world(&w, PN_POOLING_LAST, 1, 16, 1);
    atomic_store(&w.die.delay_ms, 10);
    struct pn_request_opts o = embed_opts(ids, 100), more = o;
    more.goes_on = true;
    struct pn_request *runs = test_submit(w.s, &o), *waits = test_submit(w.s, &o), *next = test_submit(w.s, &more);
    assert_int_equal(read_vector(runs, v, NULL), 0);
    assert_int_equal(read_vector(next, v, NULL), 0);
    do pn_request_next(waits, 0, &ev);
    while (ev.kind == PN_EV_STARTED);
    assert_int_equal(ev.kind, PN_EV_DONE); /* it was first */
    pn_request_release(waits);
    close_world(&w);
}

static void a_step_that_fails_for_one_embedding_fails_no_other(void **state) {
    (void)state;
    struct world w;
    int32_t ids[60], bad[60];
    float want[MAX_EMBD], got[MAX_EMBD];
    ids_of(ids, 60);
    for (int i = 0; i < 60; i++) ids[i] %= 90;
    memcpy(bad, ids, sizeof bad);
    bad[25] = 95;
    open_world(&w, PN_POOLING_MEAN, 2, 32, 8);
    struct pn_request_opts o = embed_opts(ids, 60), ob = embed_opts(bad, 60);
    assert_int_equal(read_vector(test_submit(w.s, &o), want, NULL), 0);
    atomic_store(&w.die.poison_code, FO_EIO);
    atomic_store(&w.die.poison, 95);
    struct pn_request *b = test_submit(w.s, &ob), *a = test_submit(w.s, &o);
    assert_int_equal(read_vector(b, got, NULL), FO_EIO);
    assert_int_equal(read_vector(a, got, NULL), 0);
    assert_memory_equal(want, got, pn_model_info(pn_served_model(w.s))->n_embd * sizeof *got);
    close_world(&w);
}

static void without_memory_it_is_refused_and_leaves_nothing(void **state) {
    (void)state;
    struct world w;
    int32_t ids[40];
    float v[MAX_EMBD];
    struct fo_err e = { 0 };
    struct pn_budget b;
    ids_of(ids, 40);
    open_world(&w, PN_POOLING_MEAN, 1, 64, 8);
    struct pn_request_opts o = embed_opts(ids, 40);
    o.id = "req";
    long n = 1;
    for (;; n++) {
        struct pn_request *r = NULL;
        test_fail_alloc(n);
        int rc = pn_submit(w.s, &o, &r, &b, &e);
        if (!test_alloc_failed()) {
            assert_int_equal(rc, 0);
            assert_int_equal(read_vector(r, v, NULL), 0);
            break;
        }
        assert_int_equal(rc, FO_ENOMEM);
        assert_null(r);
    }
    assert_true(n > 4); /* the request, its tokens, its id, the vector, the sums */
    assert_int_equal(status(&w).requests, 1);
    close_world(&w);
}

/* --- the public functions --- */

static void a_program_embeds_texts_and_tokens(void **state) {
    (void)state;
    char path[64];
    struct pn_llm *m;
    struct pn_llm_info info;
    struct pn_error e;
    float a[MAX_EMBD], b[MAX_EMBD];
    int32_t *ids;
    size_t n_ids;
    uint32_t n = 0;
    test_model_file(path, CTX, true, 1);
    if (pn_llm_load(path, NULL, &m, &e) != PN_OK) fail_msg("%s", e.message);
    unlink(path);
    pn_llm_info(m, &info);
    assert_int_equal(info.embedding_length, 64);
    assert_string_equal(info.pooling, "last");
    assert_int_equal(pn_llm_embed(m, "Hello world", 11, a, 64, &n, &e), PN_OK);
    assert_int_equal(pn_llm_tokenize(m, "Hello world", 11, false, true, &ids, &n_ids, &e), PN_OK);
    assert_int_equal(n, n_ids);
    assert_int_equal(pn_llm_embed_tokens(m, ids, n_ids, b, 64, &e), PN_OK);
    assert_memory_equal(a, b, 64 * sizeof *a);
    assert_int_equal(pn_llm_embed_tokens(m, ids, n_ids, b, 63, &e), PN_ERR_INVALID);
    assert_int_equal(e.have, 64);
    assert_int_equal(pn_llm_embed(m, "", 0, b, 64, NULL, &e), PN_ERR_INVALID);
    static char endless[CTX * 8];
    memset(endless, 'q', sizeof endless);
    assert_int_equal(pn_llm_embed(m, endless, sizeof endless, b, 64, NULL, &e), PN_ERR_BUDGET);
    assert_int_equal(e.have, CTX);
    free(ids);
    pn_llm_unload(m);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(vectors_are_those_of_transformers_in_every_pooling),
        cmocka_unit_test(a_state_is_what_logits_are_made_of),
        cmocka_unit_test(a_vector_does_not_depend_on_chunks_mates_or_threads),
        cmocka_unit_test(a_vector_is_the_same_on_several_dies),
        cmocka_unit_test(a_scripted_model_has_states_too),
        cmocka_unit_test(what_has_no_direction_is_an_error_and_no_vector),
        cmocka_unit_test(poolings_take_the_rows_they_are_named_for),
        cmocka_unit_test(the_metadata_says_how_to_pool),
        cmocka_unit_test(an_embedding_and_an_answer_are_the_same_alone_and_together),
        cmocka_unit_test(a_prompt_may_fill_the_cap_and_not_pass_it),
        cmocka_unit_test(a_pooling_without_a_vector_refuses_embeddings_and_still_generates),
        cmocka_unit_test(a_cancel_stops_before_the_next_chunk_and_gives_the_pages_back),
        cmocka_unit_test(a_full_queue_and_draining_refuse_it_and_one_that_goes_on_is_taken),
        cmocka_unit_test(the_next_input_lets_those_pass_who_waited),
        cmocka_unit_test(a_step_that_fails_for_one_embedding_fails_no_other),
        cmocka_unit_test(without_memory_it_is_refused_and_leaves_nothing),
        cmocka_unit_test(a_program_embeds_texts_and_tokens),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
