/* What tests of serving share: a cpu die that can be slowed down and made to fail, tiny models on disk, and a reader that collects a
 * whole answer. */
#pragma once
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "engine/engine.h"
#include "foundry/base/err.h"
#include "foundry/device.h"

/* The cpu device with a hook where each step begins. Fields may be set at any time from any thread. */
struct test_die {
    struct fo_device dev;   /* first: what the model is given */
    struct fo_device *real;
    atomic_int delay_ms;    /* every step takes at least this long */
    atomic_int poison;      /* a step that holds this token id fails; -1 = none */
    atomic_int poison_code; /* with this code */
    atomic_int steps, most_rows, seen; /* steps so far; most rows in one; steps that held token id `watch` */
    atomic_int watch;
};
void test_die_open(struct test_die *d);
void test_die_close(struct test_die *d);

/* cmocka takes SIGBUS for itself in every test, and with it the guard over mapped files (foundry/base/file.h). main calls _keep before
 * the tests, a test that truncates a mapped file calls _use. */
void test_guard_keep(const char *any_file);
void test_guard_use(void);

/* A tiny model (tests/support/tiny.h) of n_ctx positions in a new file under TMPDIR or /tmp; the name is written to path (at least 64
 * bytes). With a ChatML template. */
void test_model_file(char *path, uint32_t n_ctx, bool tokenizer, uint64_t seed);

/* Loads it under `name`; the file may be removed afterwards. */
struct pn_served *test_serve(struct pn_engine *en, struct test_die *d, const char *path, const char *name, uint32_t max_concurrent,
                             uint32_t max_sessions, uint32_t max_batch, uint32_t queue_depth, uint32_t queue_timeout_ms);

/* One die, engine and tiny model, served as "m": what a test of serving opens and closes. */
struct test_world {
    struct test_die die;
    struct pn_engine *en;
    struct pn_served *s;
};
void test_world_open(struct test_world *w, uint32_t n_ctx, uint32_t max_concurrent, uint32_t max_sessions, uint32_t max_batch, uint32_t queue_depth, uint32_t queue_timeout_ms);
void test_world_close(struct test_world *w);

/* A prompt of n ids, random but the same for the same seed, no control tokens. */
void test_prompt(int32_t *ids, uint32_t n, uint64_t seed);

/* Greedy, text wanted, the end token ignored. */
struct pn_request_opts test_opts(const int32_t *ids, uint32_t n, uint32_t max_tokens);

/* Submits and must succeed. */
struct pn_request *test_submit(struct pn_served *s, const struct pn_request_opts *o);

struct test_answer {
    char text[16384];
    size_t len;
    int32_t ids[4096];
    uint32_t n_ids;
    bool started;
    int code; /* 0 = a good end */
    char msg[384];
    enum pn_finish finish;
    struct pn_usage usage;
};
/* One event into *a; false = it was the last. Waits at most timeout_ms; *ret_kind (may be NULL) says what came. */
bool test_take(struct pn_request *r, int timeout_ms, struct test_answer *a, enum pn_event_kind *ret_kind);
/* Reads to the end and releases. */
void test_read_all(struct pn_request *r, struct test_answer *a);
/* The same request from submit to end. */
void test_ask(struct pn_served *s, const struct pn_request_opts *o, struct test_answer *a);
/* Waits until the status says that nothing runs or waits. */
void test_wait_idle(struct pn_served *s);
