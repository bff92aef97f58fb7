/* A counted bell: see wake.h. */
#include "engine/wake.h"
#include "foundry/base/clock.h"

#include <pthread.h>
#include <stdlib.h>
#include <time.h>

struct pn_wake {
    pthread_mutex_t lock;
    pthread_cond_t rung;
    uint64_t count;
    unsigned refs;
};

struct pn_wake *pn_wake_new(void) {
    struct pn_wake *w = calloc(1, sizeof *w);
    if (!w) return NULL;
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&w->rung, &attr);
    pthread_condattr_destroy(&attr);
    pthread_mutex_init(&w->lock, NULL);
    w->refs = 1;
    return w;
}

struct pn_wake *pn_wake_ref(struct pn_wake *w) {
    pthread_mutex_lock(&w->lock);
    w->refs++;
    pthread_mutex_unlock(&w->lock);
    return w;
}

void pn_wake_unref(struct pn_wake *w) {
    if (!w) return;
    pthread_mutex_lock(&w->lock);
    unsigned left = --w->refs;
    pthread_mutex_unlock(&w->lock);
    if (left > 0) return;
    pthread_cond_destroy(&w->rung);
    pthread_mutex_destroy(&w->lock);
    free(w);
}

uint64_t pn_wake_count(struct pn_wake *w) {
    pthread_mutex_lock(&w->lock);
    uint64_t n = w->count;
    pthread_mutex_unlock(&w->lock);
    return n;
}

void pn_wake_ring(struct pn_wake *w) {
    pthread_mutex_lock(&w->lock);
    w->count++;
    pthread_cond_broadcast(&w->rung);
    pthread_mutex_unlock(&w->lock);
}

void pn_wake_wait(struct pn_wake *w, uint64_t seen, int timeout_ms) {
    struct timespec until = fo_deadline(timeout_ms);
    pthread_mutex_lock(&w->lock);
    while (w->count == seen && pthread_cond_timedwait(&w->rung, &w->lock, &until) == 0) {}
    pthread_mutex_unlock(&w->lock);
}

double pn_now_ms(void) {
    return (double)fo_now_ns() / 1e6;
}
