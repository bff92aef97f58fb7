/* The queue: see queue.h. */
#include "engine/queue.h"

#include "engine/request_worker.h"
#include "engine/wake.h"
#include "foundry/base/err.h"

void pn_queue_init(struct pn_queue *q) {
    *q = (struct pn_queue){ .tail = &q->head };
}

void pn_queue_done(struct pn_queue *q) {
    pn_fair_done(&q->fair);
}

void pn_queue_push(struct pn_queue *q, struct pn_request *r, bool first) {
    struct pn_request **link = first ? &q->head : q->tail;
    r->first = first;
    r->next = *link;
    *link = r;
    if (!r->next) q->tail = &r->next;
    q->n++;
}

/* Unlinks *link. */
static struct pn_request *take(struct pn_queue *q, struct pn_request **link) {
    struct pn_request *r = *link;
    *link = r->next;
    if (q->tail == &r->next) q->tail = link;
    q->n--;
    r->next = NULL;
    return r;
}

struct pn_request *pn_queue_pop(struct pn_queue *q, double now_ms, uint32_t timeout_ms) {
    double step_ms = timeout_ms / 4.0;
    uint32_t most = 0;
    if (q->head && q->head->first) return take(q, &q->head);
    for (const struct pn_request *r = q->head; r; r = r->next)
        if (pn_fair_urgency(r->priority) > most) most = pn_fair_urgency(r->priority);
    struct pn_request **best = NULL;
    for (struct pn_request **link = &q->head; *link; link = &(*link)->next) {
        const struct pn_request *r = *link;
        if (pn_fair_reach(r->priority, now_ms - r->submitted_ms, step_ms) < most) continue;
        if (!best || pn_fair_before(r->account, (*best)->account, true)) best = link;
    }
    return best ? take(q, best) : NULL;
}

uint32_t pn_queue_ahead(const struct pn_queue *q, enum pn_priority priority) {
    uint32_t n = 0;
    for (const struct pn_request *r = q->head; r; r = r->next) n += pn_fair_urgency(r->priority) >= pn_fair_urgency(priority);
    return n;
}

/* Free slots count as places: a burst that comes before the worker has woken is not refused for it. */
bool pn_queue_takes(const struct pn_queue *q, const char *tenant, enum pn_priority priority, uint32_t n_running, uint32_t slots, uint32_t depth) {
    if (pn_queue_ahead(q, priority) + n_running < slots + depth) return true;
    return depth > 0 && q->n > 0 && pn_fair_waiting(&q->fair, tenant) == 0;
}

/* Out of the accounts too. */
static void leave(struct pn_queue *q, struct pn_request *r) {
    pn_fair_drop(&q->fair, r->account);
    r->account = NULL;
}

struct pn_request *pn_queue_sweep(struct pn_queue *q, bool all, uint32_t *ret_cancelled, uint32_t *ret_others) {
    struct pn_request *out = NULL, **end = &out;
    uint32_t cancelled = 0, others = 0;
    for (struct pn_request **link = &q->head; *link;) {
        if (!all && !pn_request_cancelled(*link)) {
            link = &(*link)->next;
            continue;
        }
        struct pn_request *r = take(q, link);
        leave(q, r);
        *end = r;
        end = &r->next;
        if (pn_request_cancelled(r)) cancelled++;
        else others++;
    }
    *ret_cancelled = cancelled;
    *ret_others = others;
    return out;
}

struct pn_request *pn_queue_expire(struct pn_queue *q, double now_ms, uint32_t timeout_ms, uint32_t *ret_n) {
    struct pn_request *out = NULL, **end = &out;
    uint32_t n = 0;
    for (struct pn_request **link = &q->head; *link;) {
        if ((*link)->goes_on || now_ms - (*link)->submitted_ms < timeout_ms) {
            link = &(*link)->next;
            continue;
        }
        struct pn_request *r = take(q, link);
        leave(q, r);
        *end = r;
        end = &r->next;
        n++;
    }
    *ret_n = n;
    return out;
}

double pn_queue_expires_ms(const struct pn_queue *q, uint32_t timeout_ms) {
    double first = 0;
    for (const struct pn_request *r = q->head; r; r = r->next)
        if (!r->goes_on && (first == 0 || r->submitted_ms + timeout_ms < first)) first = r->submitted_ms + timeout_ms;
    return first;
}

void pn_queue_end(struct pn_request *list, const struct fo_err *why) {
    struct fo_err gone;
    pn_request_fail_cancelled(&gone);
    double now = pn_now_ms();
    while (list) {
        struct pn_request *r = list;
        list = r->next;
        struct pn_usage usage = { .prompt_tokens = r->n_tokens, .queue_ms = now - r->submitted_ms };
        pn_request_end(r, PN_FINISH_STOP, &usage, pn_request_cancelled(r) || !why ? &gone : why);
    }
}
