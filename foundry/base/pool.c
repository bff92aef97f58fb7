/* Fork-join pool: see pool.h. A job is published by raising `gen`; each worker runs its share and counts `left` down; the caller
 * runs share 0 and waits for `left` to reach zero. Since the caller waits for every worker, no worker can miss a generation and the
 * job's fields need no lock: they are written before `gen` is raised and not again before `left` is zero.
 *
 *     caller                                   worker
 *     fn, arg, units = job; left = n - 1
 *     gen++        ---------------------->     sees gen != seen
 *     share 0                                  its share
 *     left == 0 ?  <----------------------     left--
 *
 * Both waits spin first: the jobs of one decode step follow each other within microseconds, while waking a sleeper takes 20 to 40 us
 * (measured), which would be a tenth of a small model's step. The budget of a spin is time, not a count, because a pause takes 10
 * to 140 cycles depending on the CPU. After it they sleep on the word they wait for. A sleeper is announced before the word is
 * checked once more, and the waker changes the word before it looks for sleepers (all sequentially consistent), so that one of
 * the two sees the other.
 *
 * A core that somebody else uses makes every join wait for a slice of the scheduler: a decode step of 150 joins then takes ten times
 * as long as one thread alone would. So a join that waited far longer than the caller's own share took sends the pool into solo:
 * the caller does whole jobs by itself for a while, then tries the others again; each failed try makes the while longer. Nobody's
 * result depends on it.
 *
 * Shared jobs: each thread has a part of the units and a counter of what is taken of it. Who is through with his own part takes from the
 * next thread's, so that a thread that the host slows down holds the join up by one taking, not by half of the difference. */
#include "foundry/base/clock.h"
#include "foundry/base/pool.h"

#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <time.h>
#ifdef __linux__
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include "foundry/base/err.h"
#include "foundry/base/signals.h"

enum {
    MAX_THREADS = 256,
    SPIN_NS = 300000, /* outlasts the longest gap between two jobs of a step, 200 us */
    PAUSES_PER_LOOK = 32,
    STACK_BYTES = 1 << 20,
    STALL_NS = 250000,          /* a join that waits this long, and longer than a share takes, was held up */
    SOLO_FIRST_NS = 5000000,    /* how long the caller then works alone; doubled when it happens again soon */
    SOLO_LONGEST_NS = 80000000,
    SOON_JOBS = 100,
};

/* A word that threads wait on, alone in its cache line. */
struct gate {
    _Alignas(64) atomic_uint word;
    atomic_uint sleepers;
#ifndef __linux__
    pthread_mutex_t lock;
    pthread_cond_t changed;
#endif
};

struct member {
    _Alignas(64) atomic_llong next; /* of its part of a shared job, the first unit that nobody took; beyond the end by a taking a thread */
    int end;
    int id; /* 1 .. n_threads - 1; the caller is 0, and no thread of ours */
    struct fo_pool *pool;
    pthread_t thread;
};

struct fo_pool {
    struct gate gen;  /* generation of the newest job */
    struct gate left; /* workers that have not finished it */
    _Alignas(64) fo_pool_fn *fn;
    void *arg;
    int units, grain; /* grain 0: not shared */
    bool quit;
    int n_threads, n_started;
    pthread_mutex_t callers; /* held for the whole of a job; guards the rest too */
    uint64_t solo_until_ns;  /* 0 = not in solo */
    uint64_t solo_ns;        /* how long the last one was */
    unsigned n_smooth;       /* jobs since then that were not held up */
    struct member members[]; /* [n_threads] */
};

/* --- waiting -------------------------------------------------------------------------------------------------------------- */

static void pause_cpu(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

#ifdef __linux__
static void gate_init(struct gate *g) {
    (void)g;
}

static void gate_done(struct gate *g) {
    (void)g;
}

static void gate_sleep(struct gate *g, unsigned value) {
    syscall(SYS_futex, &g->word, FUTEX_WAIT_PRIVATE, value, NULL, NULL, 0);
}

static void gate_wake(struct gate *g) {
    syscall(SYS_futex, &g->word, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}
#else
static void gate_init(struct gate *g) {
    pthread_mutex_init(&g->lock, NULL);
    pthread_cond_init(&g->changed, NULL);
}

static void gate_done(struct gate *g) {
    pthread_mutex_destroy(&g->lock);
    pthread_cond_destroy(&g->changed);
}

static void gate_sleep(struct gate *g, unsigned value) {
    pthread_mutex_lock(&g->lock);
    while (atomic_load(&g->word) == value) pthread_cond_wait(&g->changed, &g->lock);
    pthread_mutex_unlock(&g->lock);
}

static void gate_wake(struct gate *g) {
    pthread_mutex_lock(&g->lock); /* a sleeper is now either before its check or in the wait */
    pthread_cond_broadcast(&g->changed);
    pthread_mutex_unlock(&g->lock);
}
#endif

/* Returns the word once it is no longer `value`. */
static unsigned gate_await_change(struct gate *g, unsigned value) {
    unsigned v = atomic_load_explicit(&g->word, memory_order_acquire);
    if (v != value) return v;
    for (uint64_t end = fo_now_ns() + SPIN_NS; fo_now_ns() < end;)
        for (int i = 0; i < PAUSES_PER_LOOK; i++) {
            v = atomic_load_explicit(&g->word, memory_order_acquire);
            if (v != value) return v;
            pause_cpu();
        }
    atomic_fetch_add(&g->sleepers, 1);
    while ((v = atomic_load(&g->word)) == value) gate_sleep(g, value);
    atomic_fetch_sub(&g->sleepers, 1);
    return v;
}

/* To be called after the word was changed. */
static void gate_announce(struct gate *g) {
    if (atomic_load(&g->sleepers)) gate_wake(g);
}

/* --- work ----------------------------------------------------------------------------------------------------------------- */

/* The first unit of a thread's part. */
static int part_from(const struct fo_pool *p, int thread) {
    return (int)((int64_t)p->units * thread / p->n_threads);
}

static void run_part(struct fo_pool *p, int thread) {
    if (!p->grain) {
        int lo = part_from(p, thread), hi = part_from(p, thread + 1);
        if (lo < hi) p->fn(p->arg, lo, hi, thread);
        return;
    }
    for (int i = 0; i < p->n_threads; i++) {
        struct member *m = &p->members[(thread + i) % p->n_threads];
        for (long long lo; (lo = atomic_fetch_add_explicit(&m->next, p->grain, memory_order_relaxed)) < m->end;)
            p->fn(p->arg, (int)lo, m->end - lo < p->grain ? m->end : (int)lo + p->grain, thread);
    }
}

/* Parts of whole grains, so that every taking but the last is whole. */
static void deal(struct fo_pool *p) {
    int n_grains = (p->units - 1) / p->grain + 1;
    for (int i = 0; i < p->n_threads; i++) {
        int64_t lo = (int64_t)n_grains * i / p->n_threads * p->grain, hi = (int64_t)n_grains * (i + 1) / p->n_threads * p->grain;
        atomic_store_explicit(&p->members[i].next, lo, memory_order_relaxed);
        p->members[i].end = hi < p->units ? (int)hi : p->units;
    }
}

static void *work(void *arg) {
    struct member *m = arg;
    struct fo_pool *p = m->pool;
    for (unsigned seen = 0;;) {
        seen = gate_await_change(&p->gen, seen);
        if (p->quit) return NULL;
        run_part(p, m->id);
        if (atomic_fetch_sub(&p->left.word, 1) == 1) gate_announce(&p->left);
    }
}

static bool in_solo(struct fo_pool *p) {
    if (!p->solo_until_ns) return false;
    if (fo_now_ns() < p->solo_until_ns) return true;
    p->solo_until_ns = 0;
    return false;
}

/* After a join: decides from what the caller's share took and how long it then waited. */
static void judge_join(struct fo_pool *p, uint64_t share_ns, uint64_t end_ns, uint64_t wait_ns) {
    if (wait_ns < STALL_NS || wait_ns < share_ns) {
        p->n_smooth += p->n_smooth < SOON_JOBS;
        return;
    }
    p->solo_ns = p->n_smooth >= SOON_JOBS || !p->solo_ns ? SOLO_FIRST_NS : p->solo_ns < SOLO_LONGEST_NS / 2 ? p->solo_ns * 2 : SOLO_LONGEST_NS;
    p->solo_until_ns = end_ns + p->solo_ns;
    p->n_smooth = 0;
}

static void run_job(struct fo_pool *p, fo_pool_fn *fn, void *arg, int units, int grain) {
    if (units <= 0) return;
    pthread_mutex_lock(&p->callers);
    if (p->n_threads == 1 || units == 1 || in_solo(p)) {
        fn(arg, 0, units, 0);
    } else {
        p->fn = fn;
        p->arg = arg;
        p->units = units;
        p->grain = grain;
        if (grain) deal(p);
        atomic_store(&p->left.word, (unsigned)p->n_threads - 1);
        uint64_t start = fo_now_ns();
        atomic_fetch_add(&p->gen.word, 1);
        gate_announce(&p->gen);
        run_part(p, 0);
        uint64_t done = fo_now_ns();
        for (unsigned left = atomic_load(&p->left.word); left;) left = gate_await_change(&p->left, left);
        uint64_t end = fo_now_ns();
        judge_join(p, done - start, end, end - done);
    }
    pthread_mutex_unlock(&p->callers);
}

void fo_pool_run(struct fo_pool *p, fo_pool_fn *fn, void *arg, int units) {
    run_job(p, fn, arg, units, 0);
}

void fo_pool_share(struct fo_pool *p, fo_pool_fn *fn, void *arg, int units, int grain) {
    run_job(p, fn, arg, units, grain < 1 ? 1 : grain);
}

/* --- life ----------------------------------------------------------------------------------------------------------------- */

int fo_pool_new(int n_threads, struct fo_pool **ret, struct fo_err *e) {
    if (n_threads == 0) {
        n_threads = fo_cpu_count();
        if (n_threads > MAX_THREADS) n_threads = MAX_THREADS;
    }
    if (n_threads < 0 || n_threads > MAX_THREADS) return (int)fo_fail(e, FO_EINVAL, "%d compute threads; 1 to %d are possible", n_threads, MAX_THREADS);
    size_t size = (sizeof(struct fo_pool) + (size_t)n_threads * sizeof(struct member) + 63) & ~(size_t)63;
    struct fo_pool *p = aligned_alloc(64, size);
    if (!p) return (int)fo_fail_need(e, FO_ENOMEM, size, 0, "no memory for %d compute threads", n_threads);
    *p = (struct fo_pool){ .n_threads = n_threads };
    gate_init(&p->gen);
    gate_init(&p->left);
    pthread_mutex_init(&p->callers, NULL);

    sigset_t block, before;
    pthread_attr_t attr;
    fo_signals_for_threads(&block);
    pthread_sigmask(SIG_SETMASK, &block, &before);
    pthread_attr_init(&attr);
    pthread_attr_setstacksize(&attr, STACK_BYTES);
    int err = 0;
    for (int i = 1; i < n_threads && !err; i++) {
        struct member *m = &p->members[i];
        *m = (struct member){ .pool = p, .id = i };
        err = pthread_create(&m->thread, &attr, work, m);
        if (!err) p->n_started++;
    }
    pthread_attr_destroy(&attr);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (err) {
        fo_fail_errno(e, err, "starting compute thread %d of %d", p->n_started + 1, n_threads);
        fo_pool_free(p);
        return (int)e->code;
    }
    *ret = p;
    return FO_OK;
}

void fo_pool_free(struct fo_pool *p) {
    if (!p) return;
    p->quit = true;
    atomic_fetch_add(&p->gen.word, 1);
    gate_announce(&p->gen);
    for (int i = 1; i <= p->n_started; i++) pthread_join(p->members[i].thread, NULL);
    pthread_mutex_destroy(&p->callers);
    gate_done(&p->left);
    gate_done(&p->gen);
    free(p);
}

int fo_pool_threads(const struct fo_pool *p) {
    return p->n_threads;
}
