/* The worker: what the rungs in force (mem/ladder.h) ask for between two steps. A little each time, so that no step waits for it.
 *
 * Cold is what nobody used for COLD_MS: a conversation between two turns of somebody who reads and writes. At PN_CRITICAL everything that is kept is. */
#include "engine/sched_impl.h"

#include "engine/kv.h"
#include "engine/mem/relief.h"
#include "engine/model.h"
#include "engine/prefix.h"
#include "engine/wake.h"

enum { COLD_MS = 5000, UNUSED_MS = 10000, LOOK_MS = 250, TEXTS_AT_ONCE = 2, PLACES_AT_ONCE = 64, REQUANTISE_MS = 5 };

struct pn_effective pn_sched_declared(const struct pn_sched *s, const struct pn_sched_limits *l) {
    return (struct pn_effective){ .max_concurrent = pn_least(l->max_concurrent, s->n_slots), .prefill_chunk = s->info->max_batch };
}

/* What was touched before the newest reading of the host is in it. Under the lock. */
static void take_room(struct pn_sched *s) {
    if (s->room_is_new) s->touched_before = pn_model_kv_touched(s->m);
    s->room_is_new = false;
}

/* True when some were given up, and there may be more. */
static bool evict_cold(struct pn_sched *s, double before_ms) {
    uint32_t n = 0;
    while (n < TEXTS_AT_ONCE && pn_prefix_evict_cold(s->idle, before_ms)) n++;
    return n > 0;
}

static int write_small(void *ctx, uint32_t from, uint32_t to) {
    struct pn_sched *s = ctx;
    struct fo_err e;
    int rc = pn_model_requantise(s->m, from, to, &e);
    s->cannot_requantise |= rc == FO_EUNSUPPORTED;
    return rc;
}

/* Pages of cold texts, for as long as a small step takes; when there were none, not before a while. */
static bool requantise_cold(struct pn_sched *s, double before_ms, double now_ms) {
    if (s->cannot_requantise || now_ms < s->requantise_ms) return false;
    uint32_t n = 0;
    while (pn_prefix_requantise(s->idle, before_ms, 1, write_small, s) > 0 && ++n > 0 && pn_now_ms() < now_ms + REQUANTISE_MS) {}
    if (n == 0) s->requantise_ms = now_ms + LOOK_MS;
    return n > 0;
}

bool pn_sched_relieve(struct pn_sched *s) {
    double now = pn_now_ms();
    bool more = false, changed = false;
    pthread_mutex_lock(&s->lock);
    struct pn_effective f = s->ladder.now;
    bool critical = s->level == PN_CRITICAL, waits = s->queue.n > 0;
    take_room(s);
    pthread_mutex_unlock(&s->lock);
    if (s->n_run > 0 || waits) {
        s->busy_ms = now;
        s->cache_dropped = false;
    }
    double cold = now - (critical ? 0 : COLD_MS);
    pn_model_kv(s->m)->floor = f.kv_floor;
    if (f.requantise && requantise_cold(s, cold, now)) more = changed = true;
    if (f.evict && evict_cold(s, cold)) more = changed = true;
    if (f.requantise && pn_model_discard(s->m, PLACES_AT_ONCE) > 0) more = changed = true;
    if (changed) {
        pthread_mutex_lock(&s->lock);
        pn_sched_publish_kv(s);
        pthread_mutex_unlock(&s->lock);
    }
    if (f.drop_cache && !s->cache_dropped && now - s->busy_ms >= UNUSED_MS) {
        pn_model_drop_cache(s->m);
        s->cache_dropped = true;
    }
    return more;
}

bool pn_sched_has_room(struct pn_sched *s) {
    pthread_mutex_lock(&s->lock);
    uint64_t room = s->room_bytes;
    take_room(s);
    pthread_mutex_unlock(&s->lock);
    if (room == UINT64_MAX) return true;
    uint64_t touched = pn_model_kv_touched(s->m), since = touched > s->touched_before ? touched - s->touched_before : 0;
    return (since + pn_model_kv_promised(s->m)) * pn_model_kv_host_bytes(s->m) <= room;
}
