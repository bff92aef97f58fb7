/* Sessions as bytes: what comes back goes on as if it had never left, and whatever is wrong with it is refused and changes nothing. Blobs by the
 * ten thousand that were altered are in tests/fuzz/fuzz_blob.c. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/blob.h"
#include "engine/blob_impl.h"
#include "engine/engine_impl.h"
#include "engine/kv.h"
#include "engine/prefix.h"
#include "engine/sched.h"
#include "foundry/ops.h"
#include "tests/support/alloc.h"
#include "tests/support/blob.h"
#include "tests/support/odd.h"
#include "tests/support/script.h"
#include "tests/support/serve.h"

enum { PAGE = FO_KV_PAGE_TOKENS, CTX = 8 * PAGE };

/* --- a world: one model, served ---------------------------------------------------------------- */
struct form {
    const char *label;
    enum fo_dtype kv;
    uint32_t window, state_bytes, split; /* split: layers of the first of two parts; 0 = one */
    bool small;                          /* what is taken is small pages of Q4_0 */
};
static const struct form plain = { "plain", FO_F16, 0, 0, 0, false };
static const struct form forms[] = {
    { "f32", FO_F32, 0, 0, 0, false },
    { "f16", FO_F16, 0, 0, 0, false },
    { "q8_0", FO_Q8_0, 0, 0, 0, false },
    { "q4_0", FO_Q4_0, 0, 0, 0, false },
    { "window", FO_F16, 2 * PAGE + 1, 0, 0, false },
    { "split", FO_F16, 0, 0, 1, false },
    { "state", FO_F16, 0, 200, 0, false },
    { "state, split", FO_F16, 0, 200, 3, false },
    { "small", FO_F16, 0, 0, 0, true },
    { "small, split", FO_F16, 0, 0, 1, true },
    { "small, window", FO_Q8_0, 2 * PAGE + 1, 0, 0, true },
};
enum { N_FORMS = sizeof forms / sizeof *forms };

struct world {
    struct test_die die;
    struct pn_engine *en;
    struct pn_served *s;
};

static void write_model(const struct form *f, const char *path) {
    struct fo_err e;
    if (f->state_bytes) {
        struct test_script t = test_script_default();
        t.n_ctx = CTX;
        t.state_bytes = f->state_bytes;
        t.endless = true;
        t.text = "One after the other.";
        if (test_script_write(&t, path, &e)) fail_msg("%s", e.msg);
    } else {
        odd_write(path, &(struct odd){ .n_layer = 2, .n_embd = 64, .n_ff = 64, .n_head = 2, .n_head_kv = 1, .head_dim = 32, .n_vocab = 96, .n_ctx = CTX, .window = f->window });
    }
}

static void take_small(void *ctx, struct pn_model *m, struct pn_prefix *p) {
    (void)ctx;
    (void)p;
    pn_model_kv(m)->floor = true;
}

static void open_world(struct world *w, const struct form *f, uint32_t sessions) {
    struct fo_err e;
    test_die_open(&w->die);
    if (pn_engine_new(&w->en, &e)) fail_msg("%s", e.msg);
    write_model(f, odd_path(0));
    struct pn_serve_opts o = { .name = "m", .model = { .dev = &w->die.dev, .k_type = f->kv, .v_type = f->kv, .max_sessions = sessions, .max_concurrent = 2, .max_batch = 2 * PAGE } };
    if (f->small) o.model.has_floor = true, o.model.k_floor = o.model.v_floor = FO_Q4_0;
    if (f->split) {
        o.model.n_parts = 2;
        o.model.parts[0] = (struct pn_model_part){ &w->die.dev, 0, f->split };
        o.model.parts[1] = (struct pn_model_part){ &w->die.dev, f->split, (f->state_bytes ? 4 : 2) - f->split };
    }
    if (pn_engine_load(w->en, odd_path(0), &o, &e)) fail_msg("%s: %s", f->label, e.msg);
    unlink(odd_path(0));
    w->s = pn_engine_get(w->en, "m");
    if (f->small && pn_sched_errand(w->s->sched, take_small, NULL, &e)) fail_msg("%s", e.msg);
}

static void look(void *ctx, struct pn_model *m, struct pn_prefix *p) {
    bool *sound = ctx;
    (void)m;
    *sound = pn_prefix_check(p, NULL, 0);
}

static void check(const struct world *w) {
    bool sound = false;
    struct fo_err e;
    assert_int_equal(pn_sched_errand(w->s->sched, look, &sound, &e), 0);
    assert_true(sound);
}

static void close_world(struct world *w) {
    check(w);
    pn_served_put(w->s);
    pn_engine_free(w->en);
    test_die_close(&w->die);
}

static void text_of(int32_t *ids, uint32_t n, uint32_t seed) {
    for (uint32_t i = 0; i < n; i++) ids[i] = (int32_t)(3 + (i * 7 + seed * 13 + i * i % 11) % 90);
}

static struct pn_request_opts ask_of(const int32_t *ids, uint32_t n, uint32_t max_tokens, const char *session) {
    struct pn_request_opts o = test_opts(ids, n, max_tokens);
    o.want_text = false;
    o.session = session;
    return o;
}

/* A turn; the text that is kept of it has n tokens when it answers with one. */
static void turn(struct world *w, const int32_t *ids, uint32_t n, uint32_t max_tokens, const char *session, struct test_answer *a) {
    struct pn_request_opts o = ask_of(ids, n, max_tokens, session);
    test_ask(w->s, &o, a);
    if (a->code) fail_msg("%s", a->msg);
}

static int save(struct world *w, const char *tenant, const char *session, struct test_blob *b, struct fo_err *e) {
    struct pn_text_info t;
    struct pn_blob_sink to = test_blob_sink(b);
    uint32_t n;
    if (pn_served_text(w->s, tenant, session, &t, e)) return (int)e->code;
    int rc = pn_served_save(w->s, t.id, &to, &n, e);
    check(w);
    if (rc) return rc;
    assert_int_equal(n, b->tokens);
    assert_int_equal(b->announced, b->bytes.len);
    assert_true(b->announced <= pn_blob_most_bytes(pn_served_model(w->s)));
    return 0;
}

static int restore(struct world *w, const char *tenant, const char *session, struct test_blob *b, uint32_t *ret_n, const char **ret_field, struct fo_err *e) {
    struct pn_blob_source from = test_blob_source(b);
    const char *field = NULL;
    int rc = pn_served_restore(w->s, tenant, session, &from, ret_n, &field, e);
    if (ret_field) *ret_field = field;
    check(w);
    return rc;
}

static void save_well(struct world *w, const char *session, struct test_blob *b) {
    struct fo_err e;
    if (save(w, NULL, session, b, &e)) fail_msg("%s", e.msg);
}

static uint32_t restore_well(struct world *w, const char *session, struct test_blob *b) {
    struct fo_err e;
    uint32_t n = 0;
    if (restore(w, NULL, session, b, &n, NULL, &e)) fail_msg("%s", e.msg);
    return n;
}

/* --- going on ---------------------------------------------------------------------------------- */
static void a_restored_session_says_what_it_would_have_said(void **state) {
    (void)state;
    static struct test_answer first, unbroken, restored;
    int32_t ids[CTX];
    for (size_t k = 0; k < N_FORMS; k++) {
        for (uint32_t n = 1; n <= 4 * PAGE + 1; n += PAGE > 4 ? n % PAGE == 1 ? PAGE / 2 - 1 : n % PAGE == 0 ? 1 : PAGE / 2 : 1) {
            struct world w;
            struct test_blob b;
            test_blob_init(&b);
            open_world(&w, &forms[k], 2);
            text_of(ids, n, 1);
            turn(&w, ids, n, 2, "s", &first); /* n + 1 tokens are kept */
            save_well(&w, "s", &b);
            assert_int_equal(b.tokens, n + 1);
            ids[n] = first.ids[0];
            for (uint32_t i = n + 1; i < n + 6; i++) ids[i] = 5 + (int32_t)i % 40;
            turn(&w, ids, n + 6, 8, "s", &unbroken);
            assert_int_equal(unbroken.usage.cached_tokens, n + 1);
            close_world(&w);

            open_world(&w, &forms[k], 2);
            assert_int_equal(restore_well(&w, "s", &b), n + 1);
            turn(&w, ids, n + 6, 8, "s", &restored);
            assert_int_equal(restored.usage.cached_tokens, n + 1);
            assert_int_equal(restored.n_ids, unbroken.n_ids);
            assert_memory_equal(restored.ids, unbroken.ids, unbroken.n_ids * sizeof *unbroken.ids);
            close_world(&w);
            test_blob_done(&b);
        }
    }
}

static void a_blob_does_not_depend_on_where_the_layers_lie(void **state) {
    (void)state;
    static const struct form pairs[][2] = { { { "whole", FO_F16, 0, 0, 0, false }, { "split", FO_F16, 0, 0, 1, false } }, { { "whole", FO_F16, 0, 200, 0, false }, { "split", FO_F16, 0, 200, 1, false } } };
    static struct test_answer a, b;
    int32_t ids[CTX];
    const uint32_t n = 2 * PAGE + 3;
    text_of(ids, CTX, 4);
    for (size_t k = 0; k < 2; k++) {
        struct test_blob blob[2];
        for (int i = 0; i < 2; i++) {
            struct world w;
            test_blob_init(&blob[i]);
            open_world(&w, &pairs[k][i], 1);
            turn(&w, ids, n, 1, "s", &a);
            save_well(&w, "s", &blob[i]);
            close_world(&w);
        }
        assert_int_equal(blob[0].bytes.len, blob[1].bytes.len);
        assert_memory_equal(blob[0].bytes.data, blob[1].bytes.data, blob[0].bytes.len);
        for (int i = 0; i < 2; i++) {
            struct world w;
            open_world(&w, &pairs[k][i], 1);
            restore_well(&w, "s", &blob[1 - i]);
            turn(&w, ids, n + 4, 4, "s", i ? &b : &a);
            assert_int_equal((i ? &b : &a)->usage.cached_tokens, n);
            close_world(&w);
        }
        assert_memory_equal(a.ids, b.ids, 4 * sizeof *a.ids);
        for (int i = 0; i < 2; i++) test_blob_done(&blob[i]);
    }
}

/* Pages are used again: what is behind the last token is what another text had there. */
static void nothing_of_another_text_is_in_a_blob(void **state) {
    (void)state;
    static struct test_answer a;
    int32_t mine[CTX], others[CTX];
    text_of(mine, CTX, 1);
    text_of(others, CTX, 2);
    for (size_t k = 0; k < N_FORMS; k++) {
        struct test_blob fresh, used;
        struct world w;
        uint32_t n = 1, dropped;
        struct fo_err e;
        test_blob_init(&fresh);
        test_blob_init(&used);
        open_world(&w, &forms[k], 1);
        turn(&w, mine, n, 1, "s", &a);
        save_well(&w, "s", &fresh);
        close_world(&w);
        open_world(&w, &forms[k], 1);
        turn(&w, others, CTX - 1, 1, "o", &a);
        assert_int_equal(pn_served_drop(w.s, NULL, "o", &dropped, &e), 0);
        assert_int_equal(dropped, 1);
        turn(&w, mine, n, 1, "s", &a);
        save_well(&w, "s", &used);
        close_world(&w);
        assert_int_equal(fresh.bytes.len, used.bytes.len);
        if (!forms[k].state_bytes) assert_memory_equal(fresh.bytes.data, used.bytes.data, fresh.bytes.len);
        test_blob_done(&fresh);
        test_blob_done(&used);
    }
}

struct aside {
    struct world *w;
    int32_t ids[CTX];
    uint32_t n;
    struct test_answer a;
};

static void run_aside(void *ctx) {
    struct aside *x = ctx;
    turn(x->w, x->ids, x->n, 1, "aside", &x->a);
}

static void a_session_that_goes_on_while_it_is_saved_is_saved_as_it_was(void **state) {
    (void)state;
    static struct test_answer a;
    static struct aside x;
    for (size_t k = 0; k < N_FORMS; k++) {
        struct world w;
        struct test_blob quiet, busy;
        open_world(&w, &forms[k], 3);
        test_blob_init(&quiet);
        test_blob_init(&busy);
        text_of(x.ids, CTX, 3);
        turn(&w, x.ids, 2 * PAGE + 2, 1, "s", &a);
        save_well(&w, "s", &quiet);
        x.w = &w;
        x.n = 2 * PAGE + 9;
        busy.pause_at = quiet.bytes.len / 2;
        busy.pause = run_aside;
        busy.ctx = &x;
        save_well(&w, "s", &busy);
        assert_int_equal(busy.pause_at, 0);
        assert_int_equal(quiet.bytes.len, busy.bytes.len);
        assert_memory_equal(quiet.bytes.data, busy.bytes.data, quiet.bytes.len);
        close_world(&w);
        test_blob_done(&quiet);
        test_blob_done(&busy);
    }
}

static void of_a_session_that_runs_its_whole_pages_are_saved(void **state) {
    (void)state;
    static struct test_answer a;
    int32_t ids[CTX];
    struct world w;
    struct test_blob b;
    struct pn_text_info t;
    struct fo_err e;
    uint32_t n;
    open_world(&w, &plain, 2);
    test_blob_init(&b);
    text_of(ids, CTX, 3);
    atomic_store(&w.die.delay_ms, 5);
    struct pn_request_opts o = ask_of(ids, 2 * PAGE + 1, 5 * PAGE, "s");
    struct pn_request *r = test_submit(w.s, &o);
    memset(&a, 0, sizeof a);
    while (a.n_ids == 0) assert_true(test_take(r, 30000, &a, NULL));
    assert_int_equal(pn_served_text(w.s, NULL, "s", &t, &e), 0);
    struct pn_blob_sink to = test_blob_sink(&b);
    if (pn_served_save(w.s, t.id, &to, &n, &e)) fail_msg("%s", e.msg);
    assert_true(n >= 2 * PAGE && n % PAGE == 0);
    while (test_take(r, 30000, &a, NULL)) {}
    pn_request_release(r);
    assert_int_equal(a.code, 0);
    check(&w);
    close_world(&w);
    open_world(&w, &plain, 2);
    assert_int_equal(restore_well(&w, "s", &b), n);
    close_world(&w);
    test_blob_done(&b);
}

/* --- memory ------------------------------------------------------------------------------------ */
static void a_session_gives_way_to_what_runs_and_is_not_half_there(void **state) {
    (void)state;
    static struct test_answer a;
    static struct aside x;
    struct world w;
    struct test_blob b;
    struct fo_err e;
    struct pn_text_info t;
    uint32_t n;
    open_world(&w, &plain, 1); /* pages for one of full length */
    test_blob_init(&b);
    text_of(x.ids, CTX, 3);
    x.w = &w;
    x.n = CTX - 1;
    turn(&w, x.ids, 4 * PAGE, 1, "s", &a);
    save_well(&w, "s", &b);
    for (int i = 0; i < CTX; i++) x.ids[i] = 90 - x.ids[i] % 50; /* another text: it needs all pages */
    b.pause_at = b.bytes.len / 2;
    b.pause = run_aside;
    b.ctx = &x;
    assert_int_equal(save(&w, NULL, "s", &b, &e), FO_ENOMEM);
    assert_int_equal(x.a.code, 0);
    assert_int_equal(pn_served_text(w.s, NULL, "s", &t, &e), FO_ENOENT);

    assert_int_equal(pn_served_drop(w.s, NULL, "aside", &n, &e), 0);
    turn(&w, x.ids, 4 * PAGE, 1, "s", &a);
    b.pause_at = 0;
    save_well(&w, "s", &b);
    b.pause_at = b.bytes.len / 2;
    for (int i = 0; i < CTX; i++) x.ids[i] = 3 + x.ids[i] % 37;
    assert_int_equal(restore(&w, NULL, "t", &b, &n, NULL, &e), FO_ENOMEM);
    assert_int_equal(x.a.code, 0);
    assert_int_equal(pn_served_text(w.s, NULL, "t", &t, &e), FO_ENOENT);
    close_world(&w);
    test_blob_done(&b);
}

static void without_room_a_session_is_refused_with_numbers_and_nothing_is_lost(void **state) {
    (void)state;
    static struct test_answer a, kept;
    int32_t ids[CTX], other[CTX];
    struct world w;
    struct test_blob b;
    struct fo_err e;
    uint32_t n;
    test_blob_init(&b);
    text_of(ids, CTX, 1);
    text_of(other, CTX, 2);
    open_world(&w, &plain, 2);
    turn(&w, ids, 7 * PAGE, 1, "s", &a);
    save_well(&w, "s", &b);
    close_world(&w);

    open_world(&w, &plain, 2); /* 16 pages: 6 are kept, all others are reserved by two that run */
    turn(&w, other, 6 * PAGE, 1, "kept", &kept);
    atomic_store(&w.die.delay_ms, 20);
    struct pn_request_opts o = ask_of(ids, 2, CTX - 2, "runs"), o2 = ask_of(ids + 5, 2, PAGE, "runs too");
    struct pn_request *r = test_submit(w.s, &o), *r2 = test_submit(w.s, &o2);
    memset(&a, 0, sizeof a);
    while (a.n_ids == 0) assert_true(test_take(r, 30000, &a, NULL));
    memset(&a, 0, sizeof a);
    while (a.n_ids == 0) assert_true(test_take(r2, 30000, &a, NULL));
    assert_int_equal(restore(&w, NULL, "s", &b, &n, NULL, &e), FO_ENOMEM);
    assert_int_equal(e.need, 7);
    assert_int_equal(e.have, 6);
    pn_request_release(r);
    pn_request_release(r2);
    test_wait_idle(w.s);
    turn(&w, other, 6 * PAGE + 1, 1, "kept", &kept);
    assert_int_equal(kept.usage.cached_tokens, 6 * PAGE);
    assert_int_equal(restore(&w, NULL, "s", &b, &n, NULL, &e), 0); /* idle ones give way */
    close_world(&w);
    test_blob_done(&b);
}

static void every_failed_allocation_is_an_error_and_leaves_nothing(void **state) {
    (void)state;
    static struct test_answer a;
    int32_t ids[CTX];
    struct world w;
    struct test_blob b;
    struct fo_err e;
    uint32_t n;
    test_blob_init(&b);
    open_world(&w, &plain, 2);
    text_of(ids, CTX, 1);
    turn(&w, ids, 2 * PAGE + 1, 1, "s", &a);
    save_well(&w, "s", &b);
    long k = 1;
    for (bool failed = true; failed; k++) {
        struct pn_text_info t;
        struct pn_blob_sink to = test_blob_sink(&b);
        assert_int_equal(pn_served_text(w.s, NULL, "s", &t, &e), 0);
        test_fail_alloc(k);
        int rc = pn_served_save(w.s, t.id, &to, &n, &e);
        failed = test_alloc_failed();
        assert_int_equal(rc, failed ? FO_ENOMEM : 0);
        check(&w);
    }
    assert_true(k > 3);
    k = 1;
    for (bool failed = true; failed; k++) {
        struct pn_blob_source from = test_blob_source(&b);
        test_fail_alloc(k);
        int rc = pn_served_restore(w.s, NULL, "t", &from, &n, NULL, &e);
        failed = test_alloc_failed();
        assert_int_equal(rc, failed ? FO_ENOMEM : 0);
        check(&w);
    }
    assert_true(k > 3);
    close_world(&w);
    test_blob_done(&b);
}

/* --- refusals ---------------------------------------------------------------------------------- */
/* A world with a blob in it. */
static void open_with_blob(struct world *w, const struct form *f, struct test_blob *b) {
    static struct test_answer a;
    int32_t ids[CTX];
    test_blob_init(b);
    open_world(w, f, 2);
    text_of(ids, CTX, 1);
    turn(w, ids, 2 * PAGE + 2, 2, "s", &a);
    save_well(w, "s", b);
}

static void refused(struct world *w, struct test_blob *b, int code) {
    struct fo_err e;
    struct pn_text_info t;
    uint32_t n = 77;
    int rc = restore(w, NULL, "t", b, &n, NULL, &e);
    if (rc != code) fail_msg("%d, not %d: %s", rc, code, rc ? e.msg : "taken");
    assert_int_equal(n, 77);
    assert_int_equal(pn_served_text(w->s, NULL, "t", &t, &e), FO_ENOENT);
    assert_int_equal(pn_served_text(w->s, NULL, "s", &t, &e), 0); /* what was there is there */
}

static void each_field_of_what_it_goes_with_is_named(void **state) {
    (void)state;
    struct world w;
    struct test_blob b;
    struct fo_err e;
    const char *field;
    uint32_t n;
    open_with_blob(&w, &plain, &b);
    for (int i = 0; i < PN_N_PRINT; i++) {
        struct pn_blob_head *h = (void *)b.bytes.data;
        h->print.field[i] ^= 1;
        test_blob_reseal(&b);
        assert_int_equal(restore(&w, NULL, "t", &b, &n, &field, &e), FO_EUNSUPPORTED);
        assert_string_equal(field, pn_print_name((enum pn_print_field)i));
        assert_non_null(strstr(e.msg, field));
        h->print.field[i] ^= 1;
    }
    test_blob_reseal(&b);
    assert_int_equal(restore(&w, NULL, "t", &b, &n, &field, &e), 0);
    close_world(&w);
    test_blob_done(&b);
}

/* The fields that a manifest, or another file, can change. */
static void another_model_says_what_differs(void **state) {
    (void)state;
    static const struct {
        struct form f;
        const char *field;
    } rows[] = { { { "q8_0", FO_Q8_0, 0, 0, 0, false }, "kv.k" }, { { "window", FO_F16, 2 * PAGE, 0, 0, false }, "weights" }, { { "state", FO_F16, 0, 64, 0, false }, "weights" } };
    struct world w;
    struct test_blob b;
    struct fo_err e;
    const char *field;
    uint32_t n;
    open_with_blob(&w, &plain, &b);
    close_world(&w);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        open_world(&w, &rows[i].f, 1);
        assert_int_equal(restore(&w, NULL, "s", &b, &n, &field, &e), FO_EUNSUPPORTED);
        assert_string_equal(field, rows[i].field);
        close_world(&w);
    }
    test_blob_done(&b);
}

static void one_that_is_cut_anywhere_is_refused(void **state) {
    (void)state;
    static const struct form *const two[] = { &plain, &forms[6] };
    for (int k = 0; k < 2; k++) {
        struct world w;
        struct test_blob b;
        open_with_blob(&w, two[k], &b);
        size_t len = b.bytes.len, at = sizeof(struct pn_blob_head), border = at;
        for (size_t cut = 0; cut < at; cut += 7) {
            b.bytes.len = cut;
            refused(&w, &b, FO_EFORMAT);
        }
        while (border < len) { /* before, at and behind every border */
            struct pn_section_head h;
            memcpy(&h, b.bytes.data + border, sizeof h);
            const size_t cuts[] = { border - 1, border, border + 1, border + sizeof h, border + sizeof h + h.bytes };
            for (size_t i = 0; i < sizeof cuts / sizeof *cuts; i++) {
                b.bytes.len = cuts[i];
                refused(&w, &b, FO_EFORMAT);
            }
            border += sizeof h + h.bytes + sizeof(uint64_t);
        }
        assert_int_equal(border, len);
        b.bytes.len = len;
        assert_true(fo_buf_putc(&b.bytes, 'x'));
        refused(&w, &b, FO_EFORMAT); /* nor may anything follow */
        close_world(&w);
        test_blob_done(&b);
    }
}

static void one_that_was_altered_anywhere_is_refused(void **state) {
    (void)state;
    struct world w;
    struct test_blob b;
    open_with_blob(&w, &plain, &b);
    for (size_t at = 0; at < b.bytes.len; at += at < 400 ? 1 : 97) {
        struct fo_err e;
        uint32_t n;
        b.bytes.data[at] ^= (char)(1 << at % 8);
        int rc = restore(&w, NULL, "t", &b, &n, NULL, &e);
        assert_true(rc == FO_EFORMAT || (rc == FO_EUNSUPPORTED && at >= 8 && at < 12)); /* another version says so */
        b.bytes.data[at] ^= (char)(1 << at % 8);
    }
    close_world(&w);
    test_blob_done(&b);
}

/* Numbers that lie, under checksums that are right. */
static void numbers_that_make_no_sense_are_refused(void **state) {
    (void)state;
    struct world w;
    struct test_blob b;
    const size_t tokens_at = sizeof(struct pn_blob_head) + sizeof(struct pn_section_head);
    static const size_t places[] = { offsetof(struct pn_blob_head, head_bytes), offsetof(struct pn_blob_head, first_page), offsetof(struct pn_blob_head, n_pages), offsetof(struct pn_blob_head, n_blocks), offsetof(struct pn_blob_head, n_marks),
                                     offsetof(struct pn_blob_head, bytes), offsetof(struct pn_blob_head, newest), offsetof(struct pn_blob_head, n_small), offsetof(struct pn_blob_head, zero) };
    static const uint32_t values[] = { 1, 77, INT32_MAX, UINT32_MAX };
    for (int k = 0; k < 2; k++) {
        open_with_blob(&w, k ? &forms[6] : &plain, &b);
        struct pn_blob_head was;
        memcpy(&was, b.bytes.data, sizeof was);
        for (size_t i = 0; i < sizeof places / sizeof *places; i++)
            for (size_t v = 0; v < sizeof values / sizeof *values; v++) {
                if (memcmp(b.bytes.data + places[i], &values[v], 4) == 0) continue;
                memcpy(b.bytes.data + places[i], &values[v], 4);
                test_blob_reseal(&b);
                refused(&w, &b, FO_EFORMAT);
                memcpy(b.bytes.data, &was, sizeof was);
            }
        for (uint32_t i = 0; i < was.n_marks; i++) {
            struct pn_blob_head bad = was;
            bad.marks[i].block ^= 1;
            memcpy(b.bytes.data, &bad, sizeof bad);
            test_blob_reseal(&b);
            refused(&w, &b, FO_EFORMAT);
            bad = was;
            bad.marks[i].len += 1;
            memcpy(b.bytes.data, &bad, sizeof bad);
            test_blob_reseal(&b);
            refused(&w, &b, FO_EFORMAT);
        }
        memcpy(b.bytes.data, &was, sizeof was);
        const uint32_t n_vocab = pn_model_info(pn_served_model(w.s))->n_vocab, ids[] = { n_vocab, UINT32_MAX };
        for (int i = 0; i < 2; i++) {
            memcpy(b.bytes.data + tokens_at + 4, &ids[i], 4);
            test_blob_reseal(&b);
            refused(&w, &b, FO_EFORMAT);
        }
        close_world(&w);
        test_blob_done(&b);
    }
    /* more tokens than the cap: of a blob that is right in itself */
    open_with_blob(&w, &plain, &b);
    struct pn_blob_head *h = (void *)b.bytes.data;
    struct fo_err e;
    const char *field;
    uint32_t n;
    h->n_tokens = CTX + 1;
    test_blob_reseal(&b);
    assert_int_equal(restore(&w, NULL, "t", &b, &n, &field, &e), FO_EUNSUPPORTED);
    assert_string_equal(field, "ctx_cap");
    assert_int_equal(e.need, CTX + 1);
    assert_int_equal(e.have, CTX);
    close_world(&w);
    test_blob_done(&b);
}

static void sessions_are_their_tenants(void **state) {
    (void)state;
    static struct test_answer a;
    int32_t ids[CTX];
    struct world w;
    struct test_blob b;
    struct fo_err e;
    uint32_t n;
    test_blob_init(&b);
    open_world(&w, &plain, 2);
    text_of(ids, CTX, 1);
    struct pn_request_opts o = ask_of(ids, 2 * PAGE, 1, "s");
    o.tenant = "anna";
    test_ask(w.s, &o, &a);
    assert_int_equal(save(&w, NULL, "s", &b, &e), FO_ENOENT);
    assert_int_equal(save(&w, "bert", "s", &b, &e), FO_ENOENT);
    assert_int_equal(save(&w, "anna", NULL, &b, &e), FO_ENOENT);
    assert_int_equal(save(&w, "anna", "s", &b, &e), 0);
    assert_int_equal(restore(&w, "bert", "mine", &b, &n, NULL, &e), 0); /* whoever has the bytes has the session */
    assert_int_equal(pn_served_drop(w.s, "bert", "s", &n, &e), 0);
    assert_int_equal(n, 0);
    assert_int_equal(pn_served_drop(w.s, "bert", "mine", &n, &e), 0);
    assert_int_equal(n, 1);
    assert_int_equal(save(&w, "anna", "s", &b, &e), 0);
    close_world(&w);
    test_blob_done(&b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_restored_session_says_what_it_would_have_said),
        cmocka_unit_test(a_blob_does_not_depend_on_where_the_layers_lie),
        cmocka_unit_test(nothing_of_another_text_is_in_a_blob),
        cmocka_unit_test(a_session_that_goes_on_while_it_is_saved_is_saved_as_it_was),
        cmocka_unit_test(of_a_session_that_runs_its_whole_pages_are_saved),
        cmocka_unit_test(a_session_gives_way_to_what_runs_and_is_not_half_there),
        cmocka_unit_test(without_room_a_session_is_refused_with_numbers_and_nothing_is_lost),
        cmocka_unit_test(every_failed_allocation_is_an_error_and_leaves_nothing),
        cmocka_unit_test(each_field_of_what_it_goes_with_is_named),
        cmocka_unit_test(another_model_says_what_differs),
        cmocka_unit_test(one_that_is_cut_anywhere_is_refused),
        cmocka_unit_test(one_that_was_altered_anywhere_is_refused),
        cmocka_unit_test(numbers_that_make_no_sense_are_refused),
        cmocka_unit_test(sessions_are_their_tenants),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
