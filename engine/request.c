/* A request: see request.h (the reader's side) and request_worker.h (the worker's).
 *
 * Text travels through a ring of records: [length u16][token i32][part u8][bytes], wrapped byte by byte. A record holds text of one part,
 * at most PN_CHUNK_BYTES of it, cut at a character (the name of a call is never cut); the first one of a token carries its id, the others -1. Log-probabilities are records of their own
 * (a struct pn_logprobs as far as it is filled, its length marked), each in front of the text that it came out with. The beginning and
 * the end of a request are flags, not records, so they never wait for room.
 *
 * What the worker has for the reader first stands in `out`. If the ring has no room for all of it, the request is paused: the
 * worker skips it in its steps until the reader has pulled. `out` is bounded because nothing is added to it while it holds
 * something but the rest at the very end. */
#include "engine/request_worker.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "engine/embed.h"
#include "engine/grammar/grammar.h"
#include "engine/loop.h"
#include "engine/stop.h"
#include "engine/wake.h"
#include "foundry/base/clock.h"

enum {
    HEAD_BYTES = 7,
    MAX_OUT_BYTES = 1 << 20,
    PLAIN_OUT_BYTES = 2048, /* the text of a token, with what a stop text held back: taken at admission, so that a running answer needs no memory for it */
    IS_LOGPROBS = 0x8000 /* in a length */
};
_Static_assert(HEAD_BYTES + PN_TEXT_BYTES <= PN_RING_BYTES / 2, "the half that wakes a paused worker holds one full record");
_Static_assert(HEAD_BYTES + sizeof(struct pn_logprobs) <= PN_RING_BYTES / 2, "and one with all log-probabilities");
_Static_assert(PN_CHUNK_BYTES >= 4, "a record holds a character");
_Static_assert((int)PN_CHUNK_BYTES < (int)IS_LOGPROBS && sizeof(struct pn_logprobs) < IS_LOGPROBS, "the length of a record leaves room for the mark");

/* --- making and freeing ---------------------------------------------------------------------- */
static void request_free(struct pn_request *r) {
    pthread_cond_destroy(&r->ready);
    pthread_mutex_destroy(&r->lock);
    pn_sampler_free(r->sampler);
    pn_stop_free(r->stop);
    pn_turn_free(r->turn);
    pn_tools_put(r->tools);
    pn_grammar_put(r->calls);
    free(r->loop);
    pn_grammar_run_free(r->grammar);
    pn_lp_free(r->lp);
    pn_pooled_free(r->pooled);
    fo_buf_done(&r->piece);
    fo_buf_done(&r->parts);
    fo_buf_done(&r->shown);
    fo_buf_done(&r->out);
    pn_wake_unref(r->wake);
    free(r->tokens);
    free(r->tenant);
    free(r->session);
    free(r->id);
    free(r);
}

/* The answer is read by parts. */
static int new_turn(struct pn_request *r, const struct pn_request_opts *o, const struct pn_dialect *dialect, struct fo_err *e) {
    struct pn_turn_opts t = { .dialect = dialect, .tools = o->tools, .in_reasoning = o->in_reasoning, .begin_call = pn_request_begin_call, .ctx = r };
    r->dialect = dialect;
    r->tools = o->tools ? pn_tools_ref(o->tools) : NULL;
    r->calls = o->calls ? pn_grammar_ref(o->calls) : NULL;
    if (pn_dialect_reasoning(dialect) && !(r->loop = calloc(1, sizeof *r->loop))) return fo_fail(e, FO_ENOMEM, "no memory for a request");
    return pn_turn_new(&t, &r->turn, e);
}

int pn_request_new(const struct pn_request_opts *o, uint32_t max_tokens, int32_t n_vocab, const struct pn_dialect *dialect, struct pn_wake *wake,
                   struct pn_request **ret, struct fo_err *e) {
    if (o->n_tokens == 0) return fo_fail(e, FO_EINVAL, "the prompt is empty");
    for (uint32_t i = 0; i < o->n_tokens; i++)
        if (o->tokens[i] < 0 || o->tokens[i] >= n_vocab)
            return fo_fail(e, FO_EINVAL, "token %d at place %u of the prompt does not exist (the vocabulary has %d)", o->tokens[i], i, n_vocab);

    struct pn_request *r = calloc(1, sizeof *r);
    if (!r) return fo_fail(e, FO_ENOMEM, "no memory for a request");
    pthread_mutex_init(&r->lock, NULL);
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&r->ready, &attr);
    pthread_condattr_destroy(&attr);
    fo_buf_init(&r->piece, MAX_OUT_BYTES);
    fo_buf_init(&r->parts, MAX_OUT_BYTES);
    fo_buf_init(&r->shown, MAX_OUT_BYTES);
    fo_buf_init(&r->out, MAX_OUT_BYTES);
    atomic_init(&r->holders, 2);
    atomic_init(&r->cancelled, false);
    r->wake = pn_wake_ref(wake);
    r->max_tokens = max_tokens;
    r->ignore_end = o->ignore_end;
    r->want_text = o->want_text && !o->embed;
    r->goes_on = o->goes_on;
    r->priority = o->priority;
    r->keep_nothing = o->keep_nothing || o->embed;
    r->reasoning_budget = o->reasoning_budget;
    r->out_token = -1;
    r->n_tokens = o->n_tokens;
    r->tokens = malloc((size_t)o->n_tokens * sizeof *r->tokens);
    bool ok = r->tokens != NULL;
    if (ok) memcpy(r->tokens, o->tokens, (size_t)o->n_tokens * sizeof *r->tokens);
    if (ok && !o->embed)
        ok = fo_buf_reserve(&r->piece, PLAIN_OUT_BYTES) && fo_buf_reserve(&r->shown, PLAIN_OUT_BYTES) && fo_buf_reserve(&r->out, PLAIN_OUT_BYTES) &&
             (!o->parts || fo_buf_reserve(&r->parts, PLAIN_OUT_BYTES));
    if (ok && o->tenant) ok = (r->tenant = strdup(o->tenant)) != NULL;
    if (ok && o->session) ok = (r->session = strdup(o->session)) != NULL;
    if (ok && o->id) ok = (r->id = strdup(o->id)) != NULL;
    int rc = ok ? 0 : fo_fail(e, FO_ENOMEM, "no memory for a request of %u tokens", o->n_tokens);
    if (rc == 0 && !o->embed) rc = pn_stop_new(o->stops, o->n_stops, &r->stop, e);
    if (rc == 0 && !o->embed) rc = pn_sampler_new(&o->sampling, n_vocab, &r->sampler, e);
    if (rc == 0 && !o->embed && o->grammar) rc = pn_grammar_run_new(o->grammar, &r->grammar, e);
    if (rc == 0 && r->want_text && o->parts) rc = new_turn(r, o, dialect, e);
    if (rc == 0 && !o->embed && o->logprobs) rc = pn_lp_new(o->n_top_logprobs, n_vocab, o->n_stops > 0, &r->lp, e);
    if (rc != 0) {
        request_free(r);
        return rc;
    }
    *ret = r;
    return 0;
}

void pn_request_discard(struct pn_request *r) {
    request_free(r);
}

static void leave(struct pn_request *r) {
    if (atomic_fetch_sub(&r->holders, 1) == 1) request_free(r);
}

/* --- the ring (under the lock) --------------------------------------------------------------- */
static void ring_write(struct pn_request *r, const void *bytes, size_t n) {
    if (n == 0) return;
    size_t at = (r->ring_at + r->ring_used) % PN_RING_BYTES, first = PN_RING_BYTES - at;
    if (first > n) first = n;
    memcpy(r->ring + at, bytes, first);
    memcpy(r->ring, (const char *)bytes + first, n - first);
    r->ring_used += n;
}

static void ring_read(struct pn_request *r, void *bytes, size_t n) {
    size_t first = PN_RING_BYTES - r->ring_at;
    if (first > n) first = n;
    memcpy(bytes, r->ring + r->ring_at, first);
    memcpy((char *)bytes + first, r->ring, n - first);
    r->ring_at = (r->ring_at + n) % PN_RING_BYTES;
    r->ring_used -= n;
}

/* How much of text[0..len) goes into one record of at most cap bytes: whole characters. Bytes that are no UTF-8 (there are none
 * after detokenisation) are cut anywhere. */
static size_t chunk_len(const char *text, size_t len, size_t cap) {
    if (len <= cap) return len;
    size_t n = cap;
    while (n > 0 && ((unsigned char)text[n] & 0xC0) == 0x80) n--;
    return n > 0 ? n : cap;
}

/* --- the worker's side ----------------------------------------------------------------------- */
bool pn_request_cancelled(const struct pn_request *r) {
    return atomic_load(&r->cancelled);
}

void pn_request_fail_cancelled(struct fo_err *e) {
    fo_fail(e, FO_ECANCELLED, "the request was cancelled");
}

void pn_request_rewire(struct pn_request *r, struct pn_wake *wake) {
    pthread_mutex_lock(&r->lock);
    struct pn_wake *old = r->wake;
    r->wake = pn_wake_ref(wake);
    pthread_mutex_unlock(&r->lock);
    pn_wake_unref(old);
}

void pn_request_settle(struct pn_request *r, void (*leave_home)(void *home), void *home) {
    if (r->leave_home) {
        leave_home(home);
        return;
    }
    r->leave_home = leave_home;
    r->home = home;
}

void pn_request_start(struct pn_request *r) {
    pthread_mutex_lock(&r->lock);
    r->started = true;
    pthread_cond_signal(&r->ready);
    pthread_mutex_unlock(&r->lock);
}

static int out_state(const struct pn_request *r, struct fo_err *e) {
    if (!r->out.failed && !r->piece.failed && !r->parts.failed && !r->shown.failed) return 0;
    return fo_fail(e, FO_ENOMEM, "no memory for the text of an answer");
}

/* What was decoded of content, and what of it may be shown: appended to r->shown, and as a part to r->out. True when a stop string is complete. */
static bool put_content(struct pn_request *r, const char *text, size_t len) {
    size_t before = r->shown.len;
    bool stopped = pn_stop_push(r->stop, text, len, &r->shown);
    if (r->shown.len > before) pn_part_put(&r->out, PN_PART_CONTENT, r->shown.data + before, r->shown.len - before);
    return stopped;
}

/* Content ends here, with what stop matching held back of it. */
static void put_held(struct pn_request *r) {
    size_t before = r->shown.len;
    pn_stop_end(r->stop, &r->shown);
    if (r->shown.len > before) pn_part_put(&r->out, PN_PART_CONTENT, r->shown.data + before, r->shown.len - before);
}

/* The turn's parts of r->parts go to r->out, content through stop matching; r->piece is then what of them is content. True as put_content. */
static bool put_parts(struct pn_request *r) {
    struct pn_part_text p;
    bool stopped = false;
    fo_buf_clear(&r->piece);
    for (size_t at = 0; !stopped && pn_part_next(&r->parts, &at, &p);) {
        if (p.part == PN_PART_CONTENT) {
            fo_buf_append(&r->piece, p.text, p.len);
            stopped = put_content(r, p.text, p.len);
            continue;
        }
        put_held(r);
        pn_part_put(&r->out, p.part, p.text, p.len);
    }
    return stopped;
}

static void out_begin(struct pn_request *r, int32_t id) {
    fo_buf_clear(&r->out);
    fo_buf_clear(&r->piece);
    fo_buf_clear(&r->parts);
    fo_buf_clear(&r->shown);
    r->out_at = r->out_off = 0;
    r->out_token = id;
    r->out_any = true;
}

/* The text of a token, appended to r->piece: whole characters, and control tokens that are marks. */
static void decode(struct pn_request *r, const struct fo_tok *tok, int32_t id) {
    if (!r->turn || !pn_dialect_is_mark(r->dialect, id)) {
        fo_detok_push(&r->detok, tok, id, false, &r->piece);
        return;
    }
    fo_detok_end(&r->detok, &r->piece);
    fo_buf_putc(&r->piece, (char)PN_MARK);
    fo_tok_piece(tok, id, true, &r->piece);
}

int pn_request_put(struct pn_request *r, const struct fo_tok *tok, int32_t id, bool told, bool *ret_stopped, struct fo_err *e) {
    out_begin(r, id);
    bool stopped = false;
    if (tok && (r->want_text || r->stop)) {
        decode(r, tok, id);
        if (r->turn) {
            bool content = pn_turn_in_content(r->turn); /* before it: what ends a call or a thought is none of what follows */
            pn_turn_push(r->turn, fo_buf_str(&r->piece), r->piece.len, &r->parts);
            stopped = put_parts(r);
            told &= r->piece.len > 0 || (content && pn_turn_in_content(r->turn) && pn_turn_n_calls(r->turn) == 0); /* blanks in front of a call's end are none */
        } else {
            stopped = put_content(r, fo_buf_str(&r->piece), r->piece.len);
        }
        if (out_state(r, e) != 0) return e->code;
    }
    if (r->lp && told) pn_lp_add(r->lp, id);
    if (r->lp) pn_lp_text(r->lp, fo_buf_str(&r->piece), r->piece.len, fo_buf_str(&r->shown), r->shown.len, r->detok.n_held > 0, stopped);
    if (!r->want_text) fo_buf_clear(&r->out);
    *ret_stopped = stopped;
    return 0;
}

/* The answer is held to calls and nothing else: what is cut in the head of one is no content. */
static bool only_calls(const struct pn_request *r) {
    return r->grammar && r->calls && (pn_tools_choice(r->tools) != PN_TOOL_AUTO || pn_turn_n_calls(r->turn) > 0);
}

int pn_request_put_rest(struct pn_request *r, struct fo_err *e) {
    size_t before = r->out.len;
    fo_buf_clear(&r->piece);
    fo_buf_clear(&r->parts);
    fo_buf_clear(&r->shown);
    fo_detok_end(&r->detok, &r->piece);
    /* The last bytes may complete a stop string: then they go, and what stood before it stays. */
    bool stopped;
    if (r->turn) {
        pn_turn_push(r->turn, fo_buf_str(&r->piece), r->piece.len, &r->parts);
        size_t held = r->parts.len;
        pn_turn_end(r->turn, &r->parts);
        if (only_calls(r) && r->parts.len > held && r->parts.data[held] == PN_PART_CONTENT) r->parts.len = held;
        stopped = put_parts(r);
    } else {
        stopped = put_content(r, fo_buf_str(&r->piece), r->piece.len);
    }
    if (!stopped) put_held(r);
    if (out_state(r, e) != 0) return e->code;
    if (r->lp) pn_lp_text(r->lp, fo_buf_str(&r->piece), r->piece.len, fo_buf_str(&r->shown), r->shown.len, false, stopped);
    if (!r->want_text) fo_buf_clear(&r->out);
    if (r->out.len > before || (r->lp && pn_lp_due(r->lp))) r->out_any = true;
    return 0;
}

/* One record. */
struct record {
    const void *bytes;
    size_t len;
    int32_t token;
    enum pn_part part;
    bool logprobs;
};

/* The next record of what is on its way; false = nothing left. */
static bool out_next(const struct pn_request *r, struct record *ret) {
    const struct pn_logprobs *due = r->lp ? pn_lp_due(r->lp) : NULL;
    if (!r->out_any) return false;
    if (due) {
        *ret = (struct record){ due, offsetof(struct pn_logprobs, top) + due->n_top * sizeof due->top[0], due->token.id, PN_PART_CONTENT, true };
        return true;
    }
    struct pn_part_text p = { .text = "" };
    size_t at = r->out_at;
    if (pn_part_next(&r->out, &at, &p)) p.text += r->out_off, p.len -= r->out_off;
    *ret = (struct record){ p.text, p.part == PN_PART_CALL ? p.len : chunk_len(p.text, p.len, PN_CHUNK_BYTES), r->out_token, p.part, false };
    return true;
}

static void out_advance(struct pn_request *r, const struct record *taken) {
    if (taken->logprobs) {
        pn_lp_sent(r->lp);
        return;
    }
    struct pn_part_text p;
    size_t at = r->out_at;
    r->out_token = -1;
    r->out_off += taken->len;
    if (pn_part_next(&r->out, &at, &p) && r->out_off == p.len) r->out_at = at, r->out_off = 0;
    if (r->out_at < r->out.len) return;
    fo_buf_clear(&r->out);
    r->out_at = 0;
    r->out_any = false;
}

bool pn_request_flush(struct pn_request *r) {
    struct record rec;
    if (!r->out_any) return true;
    pthread_mutex_lock(&r->lock);
    r->paused = false;
    while (out_next(r, &rec)) {
        if (PN_RING_BYTES - r->ring_used < HEAD_BYTES + rec.len) {
            r->paused = true;
            break;
        }
        uint16_t len16 = (uint16_t)(rec.len | (rec.logprobs ? IS_LOGPROBS : 0));
        ring_write(r, &len16, sizeof len16);
        uint8_t part = (uint8_t)rec.part;
        ring_write(r, &rec.token, sizeof rec.token);
        ring_write(r, &part, sizeof part);
        ring_write(r, rec.bytes, rec.len);
        out_advance(r, &rec);
    }
    pthread_cond_signal(&r->ready);
    bool all = !r->paused;
    pthread_mutex_unlock(&r->lock);
    return all;
}

void pn_request_end(struct pn_request *r, enum pn_finish finish, const struct pn_usage *usage, const struct fo_err *err) {
    pthread_mutex_lock(&r->lock);
    r->finish = finish;
    r->usage = *usage;
    if (err) r->err = *err;
    r->ended = true;
    r->paused = false;
    pthread_cond_signal(&r->ready);
    pthread_mutex_unlock(&r->lock);
    if (r->leave_home) r->leave_home(r->home);
    leave(r);
}

/* --- the reader's side ----------------------------------------------------------------------- */
/* What was copied to r->text, or to r->logprobs, becomes the event. */
static void show(struct pn_request *r, const struct record *rec, struct pn_event *ret) {
    if (rec->logprobs) {
        ret->kind = PN_EV_LOGPROBS;
        ret->logprobs = &r->logprobs;
        return;
    }
    r->text[rec->len] = '\0';
    ret->kind = PN_EV_TEXT;
    ret->part = rec->part;
    ret->text = r->text;
    ret->text_len = rec->len;
    ret->token = rec->token;
}

/* Under the lock: fills *ret with what comes next; false = nothing yet. */
static bool next_event(struct pn_request *r, struct pn_event *ret) {
    if (r->started && !r->started_shown) {
        r->started_shown = true;
        ret->kind = PN_EV_STARTED;
        return true;
    }
    bool gone = r->ended && r->err.code == FO_ECANCELLED; /* who cancelled does not want the rest */
    if (r->ring_used > 0 && !gone) {
        uint16_t len;
        uint8_t part;
        struct record rec = { 0 };
        ring_read(r, &len, sizeof len);
        ring_read(r, &rec.token, sizeof rec.token);
        ring_read(r, &part, sizeof part);
        rec.part = part;
        rec.logprobs = len & IS_LOGPROBS;
        rec.len = len & (IS_LOGPROBS - 1);
        ring_read(r, rec.logprobs ? (void *)&r->logprobs : r->text, rec.len);
        show(r, &rec, ret);
        return true;
    }
    if (!r->ended) return false;
    struct record rec;
    if (!gone && out_next(r, &rec)) {
        memcpy(rec.logprobs ? (void *)&r->logprobs : r->text, rec.bytes, rec.len);
        out_advance(r, &rec);
        show(r, &rec, ret);
        return true;
    }
    ret->kind = r->err.code ? PN_EV_ERROR : PN_EV_DONE;
    ret->err = r->err.code ? &r->err : NULL;
    ret->finish = r->finish;
    ret->usage = r->usage;
    if (r->pooled && !r->err.code) ret->embedding = pn_pooled_vector(r->pooled, &ret->n_embedding);
    return true;
}

/* The bell of the worker that has the request, which may change: so it is held meanwhile. NULL = do not. */
static void ring_once(struct pn_wake *w) {
    if (w) pn_wake_ring(w);
    pn_wake_unref(w);
}

void pn_request_next(struct pn_request *r, int timeout_ms, struct pn_event *ret) {
    struct timespec until = fo_deadline(timeout_ms);

    *ret = (struct pn_event){ .kind = PN_EV_TIMEOUT, .text = "", .token = -1 };
    struct pn_wake *ring = NULL;
    pthread_mutex_lock(&r->lock);
    while (!next_event(r, ret)) {
        if (timeout_ms == 0 || pthread_cond_timedwait(&r->ready, &r->lock, &until) != 0) {
            next_event(r, ret);
            break;
        }
    }
    /* Half a ring at a time: a reader that is just behind does not wake the worker for every record. */
    if (r->paused && r->ring_used <= PN_RING_BYTES / 2) {
        r->paused = false;
        ring = pn_wake_ref(r->wake);
    }
    pthread_mutex_unlock(&r->lock);
    ring_once(ring);
}

void pn_request_cancel(struct pn_request *r) {
    if (atomic_exchange(&r->cancelled, true)) return;
    pthread_mutex_lock(&r->lock);
    struct pn_wake *w = pn_wake_ref(r->wake);
    pthread_mutex_unlock(&r->lock);
    ring_once(w);
}

void pn_request_release(struct pn_request *r) {
    if (!r) return;
    pn_request_cancel(r);
    leave(r);
}
