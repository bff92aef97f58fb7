/* Any bytes as a session that comes back: refused with everything as it was, or what it seems to be. The first byte chooses the model (one with pages,
 * one with recurrent state), whether the rest is the blob itself or changes of a good one, and whether checksums are made right again, so that
 * what is behind them is reached. What is taken is gone on from: K and V and states of any bits are numbers. Seeds: tests/fuzz/corpus/blob. */
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/blob.h"
#include "engine/blob_impl.h"
#include "engine/engine_impl.h"
#include "engine/prefix.h"
#include "engine/sched.h"
#include "foundry/base/err.h"
#include "foundry/device.h"
#include "tests/support/blob.h"
#include "tests/support/script.h"
#include "tests/support/tiny.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { CTX = 256, RAW = 2, RESEAL = 4, N_PROMPT = 90 };

static struct world {
    struct pn_served *s;
    struct test_blob good;
} worlds[2];

static void must(int rc, const struct fo_err *e) {
    if (rc == 0) return;
    fprintf(stderr, "%s\n", e->msg);
    abort();
}

/* One token behind a prompt; any end is fine. */
static void ask(struct pn_served *s, const int32_t *ids, uint32_t n, const char *session) {
    struct pn_request_opts o = { .tokens = ids, .n_tokens = n, .max_tokens = 1, .sampling = pn_sampling_default, .session = session, .ignore_end = true };
    struct pn_request *r;
    struct pn_budget b;
    struct pn_event ev;
    struct fo_err e;
    if (pn_submit(s, &o, &r, &b, &e)) return; /* it fills the cap */
    do pn_request_next(r, 1000, &ev);
    while (ev.kind != PN_EV_DONE && ev.kind != PN_EV_ERROR);
    pn_request_release(r);
}

static void open_world(struct pn_engine *en, struct fo_device *dev, int i) {
    char path[64];
    int32_t ids[N_PROMPT];
    struct fo_err e = { 0 };
    struct pn_text_info t;
    struct world *w = &worlds[i];
    snprintf(path, sizeof path, "/tmp/pantheon-fuzz-%d-%d", (int)getpid(), i);
    struct test_tiny tiny = test_tiny_default();
    struct test_script script = test_script_default();
    tiny.n_ctx = script.n_ctx = CTX;
    script.state_bytes = 64;
    must(i ? test_script_write(&script, path, &e) : test_tiny_write(&tiny, path, &e), &e);
    struct pn_serve_opts o = { .name = i ? "state" : "pages", .model = { .dev = dev, .kv_default = true, .max_sessions = 2, .max_concurrent = 1 } };
    must(pn_engine_load(en, path, &o, &e), &e);
    unlink(path);
    w->s = pn_engine_get(en, o.name);
    for (int k = 0; k < N_PROMPT; k++) ids[k] = 3 + k % 90;
    ask(w->s, ids, N_PROMPT, "good");
    test_blob_init(&w->good);
    struct pn_blob_sink to = test_blob_sink(&w->good);
    uint32_t n;
    must(pn_served_text(w->s, NULL, "good", &t, &e), &e);
    must(pn_served_save(w->s, t.id, &to, &n, &e), &e);
}

static void open_worlds(void) {
    struct fo_device *dev;
    struct pn_engine *en;
    struct fo_err e = { 0 };
    must(fo_device_open("cpu", "", &(struct fo_device_opts){ .n_threads = 1 }, &dev, &e), &e);
    must(pn_engine_new(&en, &e), &e);
    for (int i = 0; i < 2; i++) open_world(en, dev, i);
}

/* Six bytes a change: where, what kind, with what. */
static void change(struct fo_buf *b, const uint8_t *p) {
    uint32_t at;
    memcpy(&at, p, sizeof at);
    if (b->len == 0) return;
    size_t i = at % (p[4] & 0x40 ? b->len < 512 ? b->len : 512 : b->len); /* half of them near the head */
    switch (p[4] % 6) {
    case 0: b->data[i] = (char)p[5]; break;
    case 1: b->data[i] ^= (char)(1 << p[5] % 8); break;
    case 2: b->len = i; break;
    case 3: memset(b->data + i, p[5] % 2 ? 0xFF : 0, b->len - i < p[5] ? b->len - i : p[5]); break;
    case 4: memmove(b->data + i, b->data + b->len / 2, b->len / 2 < b->len - i ? b->len / 2 : b->len - i); break;
    default: fo_buf_append(b, p, 6);
    }
}

struct check {
    bool sound;
    uint32_t n;
};

static void look(void *ctx, struct pn_model *m, struct pn_prefix *p) {
    struct check *c = ctx;
    (void)m;
    c->sound = pn_prefix_check(p, NULL, 0);
    c->n = pn_prefix_count(p);
}

static struct check check(struct pn_served *s) {
    struct check c = { 0 };
    struct fo_err e;
    must(pn_sched_errand(s->sched, look, &c, &e), &e);
    if (!c.sound) abort();
    return c;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size == 0) return 0;
    if (!worlds[0].s) open_worlds();
    struct world *w = &worlds[data[0] & 1];
    struct test_blob b;
    struct fo_err e = { 0 };
    uint32_t n = 0, dropped;
    test_blob_init(&b);
    if (data[0] & RAW) {
        fo_buf_append(&b.bytes, data + 1, size - 1);
    } else {
        fo_buf_append(&b.bytes, w->good.bytes.data, w->good.bytes.len);
        for (size_t at = 1; at + 6 <= size; at += 6) change(&b.bytes, data + at);
    }
    if (data[0] & RESEAL) test_blob_reseal(&b);
    bool same = b.bytes.len == w->good.bytes.len && memcmp(b.bytes.data, w->good.bytes.data, b.bytes.len) == 0;
    uint32_t before = check(w->s).n;
    struct pn_blob_source from = test_blob_source(&b);
    int rc = pn_served_restore(w->s, NULL, "t", &from, &n, NULL, &e);
    if (rc != 0 && (same || n != 0 || (rc != FO_EFORMAT && rc != FO_EUNSUPPORTED) || check(w->s).n != before)) abort();
    if (rc == 0) {
        if (n == 0 || (!same && !(data[0] & RESEAL))) abort(); /* altered, and taken */
        int32_t *ids = malloc((n + 1) * sizeof *ids);
        if (!ids) abort();
        memcpy(ids, b.bytes.data + sizeof(struct pn_blob_head) + sizeof(struct pn_section_head), n * sizeof *ids);
        ids[n] = 5;
        ask(w->s, ids, n + 1, "t");
        free(ids);
        check(w->s);
        must(pn_served_drop(w->s, NULL, "t", &dropped, &e), &e);
    }
    test_blob_done(&b);
    return 0;
}
