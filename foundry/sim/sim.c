/* The sim device: see sim.h and README.md.
 *
 * Its memory is the host's, but it is made to behave as a card's: weights are uploaded, a size caps what can be allocated, and an op
 * whose operands do not lie in blocks of this very die fails, so that code which mixes up two dies is caught although the addresses
 * would work.
 *
 *     free = size - used - late - foreign        used: blocks and the scratch of streams, to the byte, as asked for
 *                                                late: freed, and not yet given back by script
 *                                                foreign: another process's, by script
 *
 * Losing the die starts a new generation: what was allocated before stays until it is freed, counts no more, and every op on it fails.
 * One lock guards all of it; time that an op takes by script is slept outside. */
#include "foundry/base/clock.h"
#include "foundry/sim/sim.h"

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "foundry/base/err.h"
#include "foundry/base/file.h"
#include "foundry/device.h"
#include "foundry/ops.h"
#include "foundry/sim/script.h"
#include "foundry/tensor.h"

/* A block; freed and late, it waits in the other list. A stream's scratch has no address. */
struct block {
    struct block *next;
    unsigned char *data;
    uint64_t bytes, generation;
    uint64_t back_ms; /* in the late list: when the memory is there again */
};

struct sim {
    struct fo_device dev;
    struct fo_device *cpu;
    struct fo_sim_script script; /* fixed, as what stands above */
    uint64_t start_ms;

    pthread_mutex_t lock; /* guards the rest */
    uint64_t count[FO_SIM_N_SUBJECTS];
    struct block *blocks, *late;
    uint64_t used, late_bytes, peak;
    uint64_t n_held; /* blocks and streams of any generation */
    uint64_t generation;
    bool lost;
    char lost_why[FO_SIM_MAX_PATH + 64];
    struct {
        bool begun;
        uint64_t until_ms; /* LOST_AT */
    } state[FO_SIM_MAX_CLAUSES];
};

struct sim_stream {
    struct fo_stream base;
    struct fo_stream *cpu;
    struct block *scratch;
};

static struct sim *sim_of(const struct fo_stream *s) {
    return s->dev->priv;
}

/* --- time and loss (under the lock) ---------------------------------------------------------- */

static void sleep_ms(uint64_t ms) {
    struct timespec t = { .tv_sec = (time_t)(ms / 1000), .tv_nsec = (long)(ms % 1000) * 1000000L };
    while (nanosleep(&t, &t) != 0 && errno == EINTR) {}
}

static uint64_t later(uint64_t ms, uint64_t by) {
    uint64_t t;
    return __builtin_add_overflow(ms, by, &t) ? UINT64_MAX : t;
}

static void forget_memory(struct sim *d) {
    d->generation++;
    d->used = d->late_bytes = 0;
}

/* Whether clause i has the die lost now; *ret_begins when that is news. */
static bool lost_by(struct sim *d, int i, uint64_t now, bool *ret_begins) {
    const struct fo_sim_clause *c = &d->script.clause[i];
    bool before = d->state[i].begun;
    *ret_begins = false;
    switch (c->verb) {
    case FO_SIM_LOST_AT: return before && now < d->state[i].until_ms;
    case FO_SIM_LOST_AFTER:
        d->state[i].begun = now >= c->after_ms;
        *ret_begins = d->state[i].begun && !before;
        return d->state[i].begun && now < later(c->after_ms, c->for_ms);
    case FO_SIM_LOST_FILE:
        d->state[i].begun = access(c->path, F_OK) == 0;
        *ret_begins = d->state[i].begun && !before;
        return d->state[i].begun;
    default: return false;
    }
}

static void say_why(struct sim *d, const struct fo_sim_clause *c) {
    if (c->verb == FO_SIM_LOST_FILE)
        snprintf(d->lost_why, sizeof d->lost_why, "%s exists", c->path);
    else if (c->verb == FO_SIM_LOST_AFTER)
        snprintf(d->lost_why, sizeof d->lost_why, "%llu ms have passed", (unsigned long long)c->after_ms);
    else
        snprintf(d->lost_why, sizeof d->lost_why, "%s %llu came", fo_sim_subject_name(c->subject), (unsigned long long)c->first);
}

/* Brings time's effects up to date: memory that is back, the die that is lost or has returned. */
static uint64_t refresh(struct sim *d) {
    uint64_t now = fo_now_ms() - d->start_ms;
    for (struct block **link = &d->late; *link;) {
        struct block *b = *link;
        if (b->generation == d->generation && b->back_ms > now) {
            link = &b->next;
            continue;
        }
        if (b->generation == d->generation) d->late_bytes -= b->bytes;
        *link = b->next;
        free(b);
    }
    d->lost = false;
    for (int i = 0; i < d->script.n; i++) {
        bool begins, by = lost_by(d, i, now, &begins);
        if (begins) forget_memory(d);
        if (!by) continue;
        d->lost = true;
        say_why(d, &d->script.clause[i]);
    }
    return now;
}

static int fail_lost(const struct sim *d, uint64_t generation, const char *what, struct fo_err *e) {
    if (d->lost) return fo_fail(e, FO_ELOST, "%s: die %s is lost: %s", what, d->dev.die.name, d->lost_why);
    if (generation != d->generation) return fo_fail(e, FO_ELOST, "%s: die %s was lost since, and what it held with it", what, d->dev.die.name);
    return FO_OK;
}

/* --- the script ------------------------------------------------------------------------------ */

/* Counts one event of `subject` (an op's, of FO_SIM_OP too), takes the time that the script says, and fails as it says. The lock is
 * held on return. */
static int event(struct sim *d, enum fo_sim_subject subject, uint64_t generation, struct fo_err *e) {
    const char *name = fo_sim_subject_name(subject);
    uint64_t ms = 0, at = 0;
    const struct fo_sim_clause *failed = NULL;
    pthread_mutex_lock(&d->lock);
    uint64_t now = refresh(d);
    d->count[subject]++;
    if (subject > FO_SIM_OP) d->count[FO_SIM_OP]++;
    for (int i = 0; i < d->script.n; i++) {
        const struct fo_sim_clause *c = &d->script.clause[i];
        if (c->verb != FO_SIM_FAILS && c->verb != FO_SIM_TAKES && c->verb != FO_SIM_LOST_AT) continue;
        if (c->subject != subject && !(c->subject == FO_SIM_OP && subject > FO_SIM_OP)) continue;
        uint64_t n = d->count[c->subject];
        if (n < c->first || n > c->last) continue;
        if (c->verb == FO_SIM_TAKES && c->ms > ms) ms = c->ms;
        if (c->verb == FO_SIM_FAILS) {
            failed = c;
            at = n;
        }
        if (c->verb == FO_SIM_LOST_AT && !d->state[i].begun) {
            d->state[i].begun = true;
            d->state[i].until_ms = later(now, c->for_ms);
            forget_memory(d);
        }
    }
    if (ms > 0) {
        pthread_mutex_unlock(&d->lock);
        sleep_ms(ms);
        pthread_mutex_lock(&d->lock);
    }
    refresh(d);
    if (fail_lost(d, generation == UINT64_MAX ? d->generation : generation, name, e)) return e->code;
    if (failed)
        return fo_fail(e, subject == FO_SIM_ALLOC ? FO_ENOMEM : FO_ELOST, "%s: die %s: %s %llu failed, as its script says", name, d->dev.die.name,
                       fo_sim_subject_name(failed->subject), (unsigned long long)at);
    return FO_OK;
}

/* --- memory ---------------------------------------------------------------------------------- */

/* What other processes use, by script. A file that is not there says 0; one that holds no number is an error. */
static int foreign_bytes(const struct sim *d, uint64_t now, uint64_t *ret, struct fo_err *e) {
    uint64_t sum = 0;
    for (int i = 0; i < d->script.n; i++) {
        const struct fo_sim_clause *c = &d->script.clause[i];
        uint64_t bytes = 0;
        if (c->verb == FO_SIM_FOREIGN && now >= c->after_ms && now < later(c->after_ms, c->for_ms)) bytes = c->bytes;
        if (c->verb == FO_SIM_FOREIGN_FILE) {
            char *text;
            size_t len;
            if (fo_file_read(c->path, 64, &text, &len, e)) {
                if (e->code == FO_ENOENT) continue;
                return e->code;
            }
            char *end;
            bytes = strtoull(text, &end, 10);
            bool good = *text >= '0' && *text <= '9' && end[strspn(end, " \n")] == '\0';
            free(text);
            if (!good) return fo_fail(e, FO_EIO, "die %s: %s holds no number of bytes", d->dev.die.name, c->path);
        }
        if (__builtin_add_overflow(sum, bytes, &sum)) sum = UINT64_MAX;
    }
    *ret = sum;
    return FO_OK;
}

static int free_bytes(const struct sim *d, uint64_t now, uint64_t *ret, struct fo_err *e) {
    uint64_t total = d->dev.die.memory_bytes, foreign, ours = d->used + d->late_bytes;
    if (foreign_bytes(d, now, &foreign, e)) return e->code;
    uint64_t left = total > ours ? total - ours : 0;
    *ret = left > foreign ? left - foreign : 0;
    return FO_OK;
}

static int sim_memory(struct fo_device *dev, uint64_t *ret_total, uint64_t *ret_free, struct fo_err *e) {
    struct sim *d = dev->priv;
    pthread_mutex_lock(&d->lock);
    uint64_t now = refresh(d), left = 0;
    int rc = fail_lost(d, d->generation, "memory", e);
    if (!rc) rc = free_bytes(d, now, &left, e);
    pthread_mutex_unlock(&d->lock);
    if (rc) return rc;
    *ret_total = dev->die.memory_bytes;
    *ret_free = left;
    return FO_OK;
}

/* The last clause that holds now says it. */
static void sim_sensors(struct fo_device *dev, struct fo_sensors *ret) {
    struct sim *d = dev->priv;
    pthread_mutex_lock(&d->lock);
    uint64_t now = refresh(d);
    for (int i = 0; i < d->script.n && !d->lost; i++) {
        const struct fo_sim_clause *c = &d->script.clause[i];
        if (c->verb != FO_SIM_READS || now < c->after_ms || now >= later(c->after_ms, c->for_ms)) continue;
        switch (c->reading) {
        case FO_SIM_TEMPERATURE:
            ret->has_temperature = true;
            ret->temperature_celsius = (double)c->value;
            break;
        case FO_SIM_POWER:
            ret->has_power = true;
            ret->power_watts = (double)c->value;
            break;
        case FO_SIM_CORRECTED:
            ret->has_ecc = true;
            ret->ecc_corrected = c->value;
            break;
        case FO_SIM_UNCORRECTED:
            ret->has_ecc = true;
            ret->ecc_uncorrected = c->value;
            break;
        case FO_SIM_N_READINGS:
            break;
        }
    }
    pthread_mutex_unlock(&d->lock);
}

/* Counts `bytes` as held, for `data` (NULL: a stream). */
static int hold(struct sim *d, uint64_t bytes, struct block **ret, struct fo_err *e) {
    struct block *b = calloc(1, sizeof *b);
    if (!b) return fo_fail_need(e, FO_ENOMEM, sizeof *b, 0, "die %s: no memory for a block", d->dev.die.name);
    uint64_t left = 0;
    int rc = event(d, FO_SIM_ALLOC, UINT64_MAX, e); /* locks */
    if (!rc) rc = free_bytes(d, fo_now_ms() - d->start_ms, &left, e);
    if (!rc && bytes > left)
        rc = fo_fail_need(e, FO_ENOMEM, bytes, left, "die %s: asked %llu bytes, free %llu", d->dev.die.name, (unsigned long long)bytes,
                          (unsigned long long)left);
    if (!rc) {
        *b = (struct block){ .next = d->blocks, .bytes = bytes, .generation = d->generation };
        d->blocks = b;
        d->used += bytes;
        if (d->used > d->peak) d->peak = d->used;
        d->n_held++;
    }
    pthread_mutex_unlock(&d->lock);
    if (rc) {
        free(b);
        return rc;
    }
    *ret = b;
    return FO_OK;
}

/* The end of a block: its bytes come back now, or late. */
static void let_go(struct sim *d, struct block *b) {
    struct fo_err ignored; /* a free always succeeds, on a lost die too */
    event(d, FO_SIM_FREE, UINT64_MAX, &ignored);
    uint64_t now = fo_now_ms() - d->start_ms, late = 0, n = d->count[FO_SIM_FREE];
    struct block **link = &d->blocks;
    while (*link != b) link = &(*link)->next;
    *link = b->next;
    d->n_held--;
    for (int i = 0; i < d->script.n; i++) {
        const struct fo_sim_clause *c = &d->script.clause[i];
        if (c->verb == FO_SIM_LATE && n >= c->first && n <= c->last && c->ms > late) late = c->ms;
    }
    bool counts = b->generation == d->generation;
    if (counts) d->used -= b->bytes;
    if (counts && late) {
        d->late_bytes += b->bytes;
        b->back_ms = later(now, late);
        b->next = d->late;
        d->late = b;
    } else {
        free(b);
    }
    pthread_mutex_unlock(&d->lock);
}

static int sim_alloc(struct fo_device *dev, uint64_t bytes, void **ret, struct fo_err *e) {
    struct sim *d = dev->priv;
    struct block *b = NULL;
    void *data;
    if (bytes == 0) return fo_fail(e, FO_EINTERNAL, "die %s: a block of no bytes", dev->die.name);
    if (hold(d, bytes, &b, e)) return e->code;
    int rc = d->cpu->alloc(d->cpu, bytes, &data, e);
    if (rc) {
        let_go(d, b);
        return rc;
    }
    pthread_mutex_lock(&d->lock);
    b->data = data;
    pthread_mutex_unlock(&d->lock);
    *ret = data;
    return FO_OK;
}

static void sim_free(struct fo_device *dev, void *data, uint64_t bytes) {
    struct sim *d = dev->priv;
    if (!data) return;
    pthread_mutex_lock(&d->lock);
    struct block *b = d->blocks;
    while (b && b->data != data) b = b->next;
    pthread_mutex_unlock(&d->lock);
    if (!b) return;
    let_go(d, b);
    d->cpu->free(d->cpu, data, bytes);
}

static uint32_t sim_contexts(struct fo_device *dev) {
    struct sim *d = dev->priv;
    pthread_mutex_lock(&d->lock);
    uint32_t n = d->n_held > 0;
    pthread_mutex_unlock(&d->lock);
    return n;
}

/* --- operands (under the lock) --------------------------------------------------------------- */

struct span {
    const char *what;
    const void *data;
    uint64_t bytes;
};

static struct span floats(const char *what, const float *data, int n, int64_t k) {
    return (struct span){ what, data, (uint64_t)n * (uint64_t)k * sizeof *data };
}

static struct span tensor(const struct fo_tensor *t) {
    return (struct span){ "a tensor", t->data, fo_tensor_bytes(t) };
}

static struct span pool(const struct fo_kv_geom *g) {
    return (struct span){ "the KV pool", g->pool, g->n_pages * fo_kv_page_bytes(g) };
}

static int check_spans(const struct sim *d, const char *op, const struct span *span, int n, struct fo_err *e) {
    for (int i = 0; i < n; i++) {
        uintptr_t lo = (uintptr_t)span[i].data;
        const struct block *b = d->blocks;
        while (b && !(b->data && lo >= (uintptr_t)b->data && span[i].bytes <= b->bytes && lo - (uintptr_t)b->data <= b->bytes - span[i].bytes)) b = b->next;
        if (!b) return fo_fail(e, FO_EINTERNAL, "%s: %s of %llu bytes is not on die %s", op, span[i].what, (unsigned long long)span[i].bytes, d->dev.die.name);
        if (fail_lost(d, b->generation, op, e)) return e->code;
    }
    return FO_OK;
}

/* All that comes before a transfer or an op. */
static int before(struct sim *d, enum fo_sim_subject subject, uint64_t generation, const struct span *span, int n, struct fo_err *e) {
    int rc = event(d, subject, generation, e);
    if (!rc) rc = check_spans(d, fo_sim_subject_name(subject), span, n, e);
    pthread_mutex_unlock(&d->lock);
    return rc;
}

static int sim_upload(struct fo_device *dev, void *dst, const void *host, uint64_t bytes, struct fo_err *e) {
    struct sim *d = dev->priv;
    struct span to = { "the target", dst, bytes };
    int rc = before(d, FO_SIM_UPLOAD, UINT64_MAX, &to, 1, e);
    return rc ? rc : d->cpu->upload(d->cpu, dst, host, bytes, e);
}

static int sim_download(struct fo_device *dev, void *host, const void *src, uint64_t bytes, struct fo_err *e) {
    struct sim *d = dev->priv;
    struct span from = { "the source", src, bytes };
    int rc = before(d, FO_SIM_DOWNLOAD, UINT64_MAX, &from, 1, e);
    return rc ? rc : d->cpu->download(d->cpu, host, src, bytes, e);
}

static bool sim_serves(struct fo_device *dev, uint32_t dtype) {
    struct sim *d = dev->priv;
    return d->cpu->serves(d->cpu, dtype);
}

/* --- streams --------------------------------------------------------------------------------- */

static uint64_t sim_stream_bytes(struct fo_device *dev, int max_rows, int64_t max_k, int64_t max_ctx) {
    struct sim *d = dev->priv;
    return d->cpu->stream_bytes(d->cpu, max_rows, max_k, max_ctx);
}

static int sim_stream_open(struct fo_device *dev, int max_rows, int64_t max_k, int64_t max_ctx, struct fo_stream **ret, struct fo_err *e) {
    struct sim *d = dev->priv;
    struct sim_stream *s = calloc(1, sizeof *s);
    if (!s) return fo_fail_need(e, FO_ENOMEM, sizeof *s, 0, "die %s: no memory for a stream", dev->die.name);
    s->base = (struct fo_stream){ .dev = dev, .max_rows = max_rows, .max_k = max_k, .max_ctx = max_ctx };
    int rc = hold(d, sim_stream_bytes(dev, max_rows, max_k, max_ctx), &s->scratch, e);
    if (!rc) rc = d->cpu->stream_open(d->cpu, max_rows, max_k, max_ctx, &s->cpu, e);
    if (rc) {
        if (s->scratch) let_go(d, s->scratch);
        free(s);
        return rc;
    }
    *ret = &s->base;
    return FO_OK;
}

static void sim_stream_close(struct fo_stream *base) {
    if (!base) return;
    struct sim *d = sim_of(base);
    struct sim_stream *s = (struct sim_stream *)base;
    d->cpu->stream_close(s->cpu);
    let_go(d, s->scratch);
    free(s);
}

static int sim_sync(struct fo_stream *base, struct fo_err *e) {
    struct sim *d = sim_of(base);
    pthread_mutex_lock(&d->lock);
    refresh(d);
    int rc = fail_lost(d, ((struct sim_stream *)base)->scratch->generation, "sync", e);
    pthread_mutex_unlock(&d->lock);
    return rc;
}

/* --- ops: each checked and timed, then the cpu's ---------------------------------------------- */

static int op(struct fo_stream *s, enum fo_sim_subject subject, const struct span *span, int n, struct fo_err *e) {
    return before(sim_of(s), subject, ((struct sim_stream *)s)->scratch->generation, span, n, e);
}

static struct fo_stream *cpu_stream(struct fo_stream *s) {
    return ((struct sim_stream *)s)->cpu;
}

static int sim_get_rows(struct fo_stream *s, const struct fo_tensor *table, const int32_t *ids, int n, float *out, struct fo_err *e) {
    const struct span span[] = { tensor(table), floats("the output", out, n, table->ne[0]) };
    int rc = op(s, FO_SIM_GET_ROWS, span, 2, e);
    return rc ? rc : sim_of(s)->cpu->get_rows(cpu_stream(s), table, ids, n, out, e);
}

static int sim_matmul_many(struct fo_stream *s, const struct fo_tensor *const *w, int n_w, const float *x, int n, float *const *y, struct fo_err *e) {
    struct sim *d = sim_of(s);
    const struct span in = floats("the input", x, n, w[0]->ne[0]);
    int rc = event(d, FO_SIM_MATMUL, ((struct sim_stream *)s)->scratch->generation, e);
    if (!rc) rc = check_spans(d, "matmul", &in, 1, e);
    for (int i = 0; i < n_w && !rc; i++) {
        const struct span span[] = { tensor(w[i]), floats("an output", y[i], n, w[i]->ne[1]) };
        rc = check_spans(d, "matmul", span, 2, e);
    }
    pthread_mutex_unlock(&d->lock);
    return rc ? rc : d->cpu->matmul_many(cpu_stream(s), w, n_w, x, n, y, e);
}

static int sim_rms_norm(struct fo_stream *s, const float *x, const float *weight, int n, int64_t k, float eps, float *out, struct fo_err *e) {
    const struct span span[] = { floats("the input", x, n, k), floats("the weight", weight, 1, k), floats("the output", out, n, k) };
    int rc = op(s, FO_SIM_RMS_NORM, span, 3, e);
    return rc ? rc : sim_of(s)->cpu->rms_norm(cpu_stream(s), x, weight, n, k, eps, out, e);
}

static int sim_add(struct fo_stream *s, const float *a, const float *b, int n, int64_t k, bool broadcast_b, float *out, struct fo_err *e) {
    const struct span span[] = { floats("the first input", a, n, k), floats("the second input", b, broadcast_b ? 1 : n, k), floats("the output", out, n, k) };
    int rc = op(s, FO_SIM_ADD, span, 3, e);
    return rc ? rc : sim_of(s)->cpu->add(cpu_stream(s), a, b, n, k, broadcast_b, out, e);
}

static int sim_add_rows(struct fo_stream *s, const float *a, const int32_t *row, const float *scale, int n, int64_t k, float *out, int n_out,
                        struct fo_err *e) {
    const struct span span[] = { floats("the input", a, n, k), floats("the output", out, n_out, k) };
    int rc = op(s, FO_SIM_ADD_ROWS, span, 2, e);
    return rc ? rc : sim_of(s)->cpu->add_rows(cpu_stream(s), a, row, scale, n, k, out, n_out, e);
}

static int sim_silu_mul(struct fo_stream *s, const float *gate, const float *up, int n, int64_t k, float *out, struct fo_err *e) {
    const struct span span[] = { floats("the gate", gate, n, k), floats("the input", up, n, k), floats("the output", out, n, k) };
    int rc = op(s, FO_SIM_SILU_MUL, span, 3, e);
    return rc ? rc : sim_of(s)->cpu->silu_mul(cpu_stream(s), gate, up, n, k, out, e);
}

static int sim_rope(struct fo_stream *s, const struct fo_rope *r, float *x, const int32_t *pos, int n, int n_head, struct fo_err *e) {
    const struct span span[] = { floats("the input", x, n, (int64_t)n_head * r->head_dim) };
    int rc = op(s, FO_SIM_ROPE, span, 1, e);
    return rc ? rc : sim_of(s)->cpu->rope(cpu_stream(s), r, x, pos, n, n_head, e);
}

static int sim_kv_store(struct fo_stream *s, const struct fo_kv_geom *g, const float *k, const float *v, const struct fo_attn_batch *b, int layer,
                        struct fo_err *e) {
    int64_t row = (int64_t)g->n_head_kv * g->head_dim;
    const struct span span[] = { pool(g), floats("k", k, b->n_rows, row), floats("v", v, b->n_rows, row) };
    int rc = op(s, FO_SIM_KV_STORE, span, 3, e);
    return rc ? rc : sim_of(s)->cpu->kv_store(cpu_stream(s), g, k, v, b, layer, e);
}

static int sim_attend(struct fo_stream *s, const struct fo_kv_geom *g, const float *q, const struct fo_attn_batch *b, int layer, float *out,
                      struct fo_err *e) {
    int64_t row = (int64_t)g->n_head * g->head_dim;
    const struct span span[] = { pool(g), floats("q", q, b->n_rows, row), floats("the output", out, b->n_rows, row) };
    int rc = op(s, FO_SIM_ATTEND, span, 3, e);
    return rc ? rc : sim_of(s)->cpu->attend(cpu_stream(s), g, q, b, layer, out, e);
}

static int sim_kv_requantise(struct fo_stream *s, const struct fo_kv_geom *g, uint32_t from, uint32_t to, struct fo_err *e) {
    const struct span span[] = { pool(g) };
    int rc = op(s, FO_SIM_KV_REQUANTISE, span, 1, e);
    return rc ? rc : sim_of(s)->cpu->kv_requantise(cpu_stream(s), g, from, to, e);
}

/* --- the device ------------------------------------------------------------------------------ */

static void free_list(struct block *b) {
    while (b) {
        struct block *following = b->next;
        free(b);
        b = following;
    }
}

static void sim_close(struct fo_device *dev) {
    struct sim *d = dev->priv;
    free_list(d->blocks);
    free_list(d->late);
    fo_device_close(d->cpu);
    pthread_mutex_destroy(&d->lock);
    free(d);
}

void fo_sim_stats(struct fo_device *dev, struct fo_sim_stats *ret) {
    struct sim *d = dev->priv;
    struct fo_err ignored;
    uint64_t foreign = 0;
    pthread_mutex_lock(&d->lock);
    uint64_t now = refresh(d);
    if (foreign_bytes(d, now, &foreign, &ignored)) foreign = 0;
    *ret = (struct fo_sim_stats){
        .allocs = d->count[FO_SIM_ALLOC],
        .frees = d->count[FO_SIM_FREE],
        .uploads = d->count[FO_SIM_UPLOAD],
        .downloads = d->count[FO_SIM_DOWNLOAD],
        .ops = d->count[FO_SIM_OP],
        .used_bytes = d->used,
        .late_bytes = d->late_bytes,
        .foreign_bytes = foreign,
        .peak_bytes = d->peak,
    };
    pthread_mutex_unlock(&d->lock);
}

static struct fo_die describe(const char *name, uint64_t bytes) {
    struct fo_die die = { .kind = "sim", .model = "simulated die", .memory_bytes = bytes };
    snprintf(die.name, sizeof die.name, "%.*s", (int)sizeof die.name - 1, name);
    snprintf(die.address, sizeof die.address, "%.*s", (int)sizeof die.address - 1, name);
    return die;
}

/* The environment's dies; none when it is not set. */
static int from_environment(struct fo_sim_die ret[FO_SIM_MAX_DIES], int *ret_n, struct fo_err *e) {
    const char *text = getenv("PANTHEON_SIM");
    *ret_n = 0;
    return text ? fo_sim_dies_parse(text, ret, ret_n, e) : FO_OK;
}

int fo_sim_probe(struct fo_die *ret, int cap, char *why, size_t why_size) {
    struct fo_sim_die dies[FO_SIM_MAX_DIES];
    struct fo_err e;
    int n;
    if (from_environment(dies, &n, &e)) {
        if (why && why_size) snprintf(why, why_size, "%.*s", (int)(why_size < sizeof e.msg ? why_size : sizeof e.msg) - 1, e.msg);
        return 0;
    }
    if (n > cap) n = cap;
    for (int i = 0; i < n; i++) ret[i] = describe(dies[i].name, dies[i].bytes);
    return n;
}

/* Size and script: the caller's, or the environment's for this name. */
static int configure(struct sim *d, const char *name, const struct fo_device_opts *o, struct fo_err *e) {
    struct fo_sim_die dies[FO_SIM_MAX_DIES];
    const char *script = o->script ? o->script : "";
    size_t len = strlen(script);
    uint64_t bytes = o->memory_bytes;
    int n, i = 0;
    if (strlen(name) >= FO_SIM_MAX_NAME) return fo_fail(e, FO_EINVAL, "'%.64s' is too long for a sim die's name", name);
    if (!bytes) {
        if (from_environment(dies, &n, e)) return e->code;
        while (i < n && strcmp(dies[i].name, name) != 0) i++;
        if (i == n) return fo_fail(e, FO_ENOENT, "no sim die is called '%s': it needs a size, here or in PANTHEON_SIM", name);
        bytes = dies[i].bytes;
        if (!o->script) {
            script = dies[i].script;
            len = dies[i].script_len;
        }
    }
    d->dev.die = describe(name[0] ? name : "sim", bytes);
    if (fo_sim_script_parse(script, len, &d->script, e)) return fo_wrap(e, "die %s", d->dev.die.name);
    return FO_OK;
}

int fo_sim_open(const char *name, const struct fo_device_opts *opts, struct fo_device **ret, struct fo_err *e) {
    struct sim *d = calloc(1, sizeof *d);
    if (!d) return fo_fail_need(e, FO_ENOMEM, sizeof *d, 0, "no memory for a sim die");
    struct fo_device_opts cpu = { .n_threads = opts->n_threads, .isa = opts->isa, .exact = opts->exact };
    if (configure(d, name, opts, e) || fo_device_open("cpu", "", &cpu, &d->cpu, e)) {
        free(d);
        return e->code;
    }
    struct fo_die die = d->dev.die;
    d->dev = (struct fo_device){
        .kind = "sim",
        .die = die,
        .priv = d,
        .close = sim_close,
        .memory = sim_memory,
        .sensors = sim_sensors,
        .alloc = sim_alloc,
        .free = sim_free,
        .upload = sim_upload,
        .download = sim_download,
        .contexts = sim_contexts,
        .weights_in_place = false,
        .exact = opts->exact,
        .serves = sim_serves,
        .stream_bytes = sim_stream_bytes,
        .stream_open = sim_stream_open,
        .stream_close = sim_stream_close,
        .sync = sim_sync,
        .get_rows = sim_get_rows,
        .matmul_many = sim_matmul_many,
        .rms_norm = sim_rms_norm,
        .add = sim_add,
        .add_rows = sim_add_rows,
        .silu_mul = sim_silu_mul,
        .rope = sim_rope,
        .kv_store = sim_kv_store,
        .attend = sim_attend,
        .kv_requantise = sim_kv_requantise,
    };
    pthread_mutex_init(&d->lock, NULL);
    d->start_ms = fo_now_ms();
    *ret = &d->dev;
    return FO_OK;
}
