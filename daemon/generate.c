/* The choices of a request are made one after the other, so that a request of several never needs more of the queue than one. A
 * stream's head is sent right after admission: a client's read timeout then does not run while the prompt is computed, and comments
 * keep the line alive until there is text. */
#include "daemon/generate.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "daemon/app.h"
#include "daemon/http.h"
#include "daemon/logprobs.h"
#include "daemon/oai.h"
#include "daemon/params.h"
#include "daemon/pressure.h"
#include "daemon/sse.h"
#include "daemon/whose.h"
#include "engine/engine.h"
#include "foundry/base/buf.h"
#include "foundry/base/clock.h"
#include "foundry/base/err.h"

enum {
    LOOK_MS = 250,            /* how often a silent request looks whether its client is still there */
    MAX_TEXT = 256 << 20
};

struct gen {
    struct pd_app *app;
    struct pd_call *call;
    struct pn_served *served; /* whose vocabulary the prompts are of, */
    struct pn_served *at;     /* and which instance answers; ours */
    const struct pd_params *params;
    struct pn_request_opts whose; /* tenant, session, priority, keep_nothing */
    struct pd_answer answer;
    struct pn_usage usage;  /* of all choices */
    struct pd_timings timings;
    size_t n, kept_bytes;   /* choices; text and log-probabilities of those that are complete, in a whole answer */
    struct fo_buf out;      /* the next piece of a stream */
    uint64_t last_write_ms;
    bool open;              /* the stream's head is sent */
    bool in_content;        /* what the choice had last, or may begin with */
    bool failed;            /* the client was sent an error */
};

static bool push(struct gen *g) {
    bool ok = !g->out.failed && pd_stream_write(g->call, fo_buf_str(&g->out), g->out.len);
    fo_buf_clear(&g->out);
    g->last_write_ms = fo_now_ms();
    return ok;
}

/* Ends the answer with an error: as a status while nothing is sent, else as the last event of the stream. */
static bool fail(struct gen *g, const struct pd_error *x) {
    g->failed = true;
    if (!g->open) {
        pd_error_reply(g->call, x);
        return false;
    }
    pd_error_note(x, g->call);
    fo_buf_clear(&g->out);
    g->answer.writer->error(&g->answer, x, g->call->id, &g->out);
    if (push(g)) pd_stream_close(g->call);
    return false;
}

static bool fail_memory(struct gen *g) {
    struct pd_error x;
    pd_error_set(&x, PD_ERR_MEMORY, NULL, "There is no memory for the answer.");
    return fail(g, &x);
}

/* Sends what is in g->out. */
static bool flush(struct gen *g) {
    return g->out.failed ? fail_memory(g) : push(g);
}

static uint32_t most_tokens(const struct pd_params *p) {
    return !p->has_max_tokens ? 0 : p->max_tokens > UINT32_MAX ? UINT32_MAX : (uint32_t)p->max_tokens;
}

/* A prompt past the cap; `i`: which of several, -1 = there is one. */
static bool fail_budget(struct gen *g, const struct fo_err *e, const struct pn_budget *budget, int64_t i) {
    struct pd_error x;
    pd_error_from(&x, e, false);
    const char *name = pd_params_prompt(g->params);
    if (i < 0) snprintf(x.param, sizeof x.param, "%s", name);
    else snprintf(x.param, sizeof x.param, "%s.%lld", name, (long long)i);
    x.budget = budget;
    x.model = pn_served_name(g->served);
    return fail(g, &x);
}

/* Before anything is computed or sent for the first of several prompts, none of them may be too long. */
static bool check_lengths(struct gen *g, const struct pd_job *jobs, size_t n) {
    for (size_t i = 0; i < n && n > 1 && g->params->max_tokens != 0; i++) {
        struct pn_request_opts o = { .n_tokens = jobs[i].n_ids, .max_tokens = most_tokens(g->params) };
        struct pn_budget budget;
        struct fo_err e;
        if (pn_fits(g->served, &o, &budget, &e)) return fail_budget(g, &e, &budget, (int64_t)i);
    }
    return true;
}

/* Choice k of the job; `goes_on` for all but the first choice of the answer. */
static bool submit(struct gen *g, const struct pd_job *job, int64_t k, bool goes_on, struct pn_request **ret) {
    const struct pd_params *p = g->params;
    struct pn_budget budget = { 0 };
    struct fo_err e;
    struct pn_request_opts o = {
        .tokens = job->ids,
        .n_tokens = job->n_ids,
        .max_tokens = most_tokens(p),
        .sampling = p->sampling,
        .stops = p->stops,
        .n_stops = p->n_stops,
        .grammar = p->grammar,
        .ignore_end = p->ignore_end,
        .id = g->call->id,
        .parts = (p->api & PD_API_TALK) != 0, /* completions are the model's own text, whatever stands in it */
        .in_reasoning = job->in_reasoning,
        .tools = p->tools,
        .calls = p->calls,
        .reasoning_budget = (int32_t)p->reasoning_budget,
        .want_text = true,
        .logprobs = p->n_top >= 0,
        .n_top_logprobs = p->n_top > 0 ? (uint32_t)p->n_top : 0,
        .goes_on = goes_on,
        .tenant = g->whose.tenant,
        .session = g->whose.session,
        .priority = g->whose.priority,
        .keep_nothing = g->whose.keep_nothing,
    };
    o.sampling.seed += (uint64_t)k;
    if (pd_submit(g->app, &g->at, &o, ret, &budget, &e) == FO_OK) {
        pd_pressure_note(g->call, g->at, &budget);
        return true;
    }
    g->call->note.kv_need = budget.kv_bytes_needed;
    g->call->note.kv_have = budget.kv_bytes_available;
    if (e.code == FO_EBUDGET) return fail_budget(g, &e, &budget, -1);
    struct pd_error x;
    pd_app_error(g->app, g->at, &e, &x);
    return fail(g, &x);
}

static void add_usage(struct gen *g, const struct pn_usage *u, bool first_of_prompt) {
    struct pn_usage *sum = &g->usage;
    if (first_of_prompt) { /* the prompt counts once, however many choices are made of it */
        sum->prompt_tokens += u->prompt_tokens;
        sum->cached_tokens += u->cached_tokens;
    }
    sum->completion_tokens += u->completion_tokens;
    sum->reasoning_tokens += u->reasoning_tokens;
    if (u->thought != PN_THOUGHT_FREE) sum->thought = u->thought;
}

/* Of the first choice of a prompt: what kept KV was worth. */
static void add_cache(struct pd_timings *t, const struct pn_usage *u) {
    uint32_t missed = u->prompt_tokens - u->cached_tokens;
    t->cache_hit += u->cached_tokens;
    t->cache_small += u->cached_small;
    t->cache_shared += u->cache_shared;
    if (missed <= t->cache_missed) return;
    t->cache_missed = missed;
    t->cache_reason = u->cache_miss;
}

/* Of a request that is over: what was computed counts, however often. */
static void add_timings(struct pd_timings *t, const struct pn_usage *u) {
    t->cache_n += u->cached_tokens;
    t->prompt_n += u->prompt_tokens - u->cached_tokens;
    t->predicted_n += u->completion_tokens;
    t->draft_n += u->drafted;
    t->draft_n_accepted += u->accepted;
    t->queue_ms += u->queue_ms;
    t->prompt_ms += u->prefill_ms;
    t->predicted_ms += u->decode_ms;
}

/* A piece of the answer's text, into the stream or into `parts`. False = over, for whatever reason. Log-probabilities are of content, and come
 * with it. */
static bool deliver(struct gen *g, const struct pn_event *ev, int64_t index, struct pd_parts *parts, struct pd_logprobs *l) {
    bool content = ev->part == PN_PART_CONTENT;
    g->call->note.calls += ev->part == PN_PART_CALL;
    if (ev->text_len == 0) return true; /* a token that has none is told with what comes */
    g->in_content = content;
    if (g->params->stream) {
        g->answer.writer->part(&g->answer, index, ev->part, ev->text, ev->text_len, content ? l : NULL, &g->out);
        return flush(g);
    }
    struct pd_part *p = pd_parts_add(parts, ev->part, ev->text, ev->text_len);
    if (p && content && g->params->api != PD_API_TEXT) pd_logprobs_join(l, &p->logprobs);
    return p && !p->logprobs.failed ? true : fail_memory(g);
}

/* Pulls one request to its end into the stream or into `parts`. True = the choice is complete, and *ret_last is the engine's; else it has the
 * tokens that came, and their times as they were seen from here. */
static bool pull(struct gen *g, struct pn_request *r, int64_t index, struct pd_parts *parts, struct pd_logprobs *l, struct pn_event *ret_last) {
    bool stream = g->params->stream;
    struct pn_usage *seen = &ret_last->usage;
    uint64_t since = fo_now_ms(); /* what is under way: waiting, the prompt, the answer */
    for (;;) {
        struct pn_event ev;
        uint64_t ping_ms = atomic_load(&g->app->sse_ping_ms);
        pn_request_next(r, ping_ms < LOOK_MS ? (int)ping_ms : LOOK_MS, &ev);
        if (ev.kind != PN_EV_DONE && ev.kind != PN_EV_ERROR && pd_client_gone(g->call)) return false;
        switch (ev.kind) {
        case PN_EV_STARTED:
            seen->queue_ms = (double)(fo_now_ms() - since);
            since = fo_now_ms();
            break;
        case PN_EV_TIMEOUT:
            if (stream && fo_now_ms() - g->last_write_ms >= ping_ms) {
                fo_buf_puts(&g->out, PD_SSE_PING);
                if (!flush(g)) return false;
            }
            break;
        case PN_EV_LOGPROBS:
            pd_logprobs_add(l, ev.logprobs);
            break;
        case PN_EV_TEXT:
            if (seen->completion_tokens > 0) {
                seen->decode_ms = (double)(fo_now_ms() - since);
            } else {
                seen->prefill_ms = (double)(fo_now_ms() - since);
                since = fo_now_ms();
            }
            seen->completion_tokens += ev.token >= 0;
            if (!deliver(g, &ev, index, parts, l)) return false;
            break;
        case PN_EV_DONE:
            *ret_last = ev;
            return true;
        case PN_EV_ERROR: {
            struct pd_error x;
            pd_app_error(g->app, g->at, ev.err, &x);
            return fail(g, &x);
        }
        }
    }
}

static bool begin_choice(struct gen *g, const struct pd_job *job, int64_t index, struct pd_parts *parts) {
    if (!g->params->stream) return !job->echo || pd_parts_add(parts, PN_PART_CONTENT, job->echo, job->n_echo) || fail_memory(g);
    if (!g->open) {
        if (!pd_stream_open(g->call, 200, PD_SSE_TYPE, PD_SSE_HEADERS)) return false;
        g->open = true;
        g->last_write_ms = fo_now_ms();
        g->answer.writer->open(&g->answer, &g->out);
    }
    g->answer.writer->begin(&g->answer, index, job->echo, job->n_echo, &g->out);
    return g->out.len == 0 || flush(g);
}

/* Log-probabilities of tokens without text behind the last that had some: with an empty piece of content, where that goes on. */
static bool deliver_rest(struct gen *g, int64_t index, struct pd_parts *parts, struct pd_logprobs *l) {
    if (l->n == 0 || !g->in_content) return true;
    if (g->params->stream) {
        g->answer.writer->part(&g->answer, index, PN_PART_CONTENT, "", 0, l, &g->out);
        return flush(g);
    }
    if (g->params->api == PD_API_TEXT) return true; /* all of them are taken together */
    struct pd_part *p = pd_parts_add(parts, PN_PART_CONTENT, "", 0);
    if (p) pd_logprobs_join(l, &p->logprobs);
    return p && !p->logprobs.failed ? true : fail_memory(g);
}

/* Those of a chat's content as its choice has them; the parts' own go. */
static void put_logprobs(struct pd_parts *parts, struct fo_buf *out) {
    size_t n = 0;
    fo_buf_puts(out, "{\"content\":[");
    for (size_t i = 0; i < parts->n; i++) {
        struct fo_buf *members = &parts->list[i].logprobs;
        if (members->len && n++ > 0) fo_buf_putc(out, ',');
        fo_buf_append(out, fo_buf_str(members), members->len);
        fo_buf_done(members);
    }
    fo_buf_puts(out, "],\"refusal\":null}");
}

/* One choice, from its admission to its finish_reason. */
static bool make_choice(struct gen *g, const struct pd_job *job, int64_t k, int64_t index, struct pd_choice *ret) {
    struct pn_event last = { .finish = PN_FINISH_LENGTH, .usage = { .prompt_tokens = job->n_ids } };
    struct pn_request *r = NULL;
    struct pd_parts parts;
    struct fo_buf logprobs;
    struct pd_logprobs l;
    bool generates = !g->params->has_max_tokens || g->params->max_tokens > 0; /* echo alone needs no model */
    if (generates && !submit(g, job, k, index > 0, &r)) return false;
    g->in_content = true;
    pd_parts_init(&parts, MAX_TEXT - g->kept_bytes);
    fo_buf_init(&logprobs, MAX_TEXT - g->kept_bytes);
    pd_logprobs_init(&l, g->params->api, g->params->n_top >= 0 ? pn_served_model(g->served) : NULL, MAX_TEXT - g->kept_bytes);
    bool ok = begin_choice(g, job, index, &parts) && (!r || (pull(g, r, index, &parts, &l, &last) && deliver_rest(g, index, &parts, &l)));
    add_usage(g, &last.usage, k == 0); /* also for the log of a client that left */
    if (r) add_timings(&g->timings, &last.usage);
    if (r && k == 0) add_cache(&g->timings, &last.usage);
    pn_request_release(r); /* cancels what is not finished */
    if (ok && g->params->stream) {
        g->answer.writer->finish(&g->answer, index, last.finish, (size_t)index + 1 == g->n ? &g->timings : NULL, &g->out);
        ok = flush(g);
    }
    if (ok && !g->params->stream && l.m && g->params->api == PD_API_TEXT) pd_logprobs_take(&l, &logprobs);
    if (ok && !g->params->stream && l.m && g->params->api == PD_API_CHAT) put_logprobs(&parts, &logprobs);
    if (ok && (logprobs.failed || parts.bytes + logprobs.len > MAX_TEXT - g->kept_bytes)) ok = fail_memory(g);
    if (ok) {
        g->kept_bytes += parts.bytes + logprobs.len;
        ret->parts = parts;
        pd_parts_init(&parts, 0);
        ret->logprobs = fo_buf_steal(&logprobs);
        ret->finish = last.finish;
    }
    pd_parts_done(&parts);
    fo_buf_done(&logprobs);
    pd_logprobs_done(&l);
    return ok;
}

/* False when the client has left or is told of an error instead. */
static bool finish(struct gen *g, const struct pd_choice *choices, size_t n) {
    if (!g->params->stream) {
        g->answer.writer->whole(&g->answer, choices, n, &g->usage, &g->timings, &g->out);
        pd_json_reply(g->call, 200, &g->out);
        g->failed = g->call->status != 200; /* no memory for it */
        return !g->failed;
    }
    g->answer.writer->close(&g->answer, &g->usage, &g->timings, &g->out);
    if (!flush(g)) return false;
    pd_stream_close(g->call);
    return true;
}

void pd_generate(struct pd_app *app, struct pd_call *c, struct pn_served *s, const struct pd_params *p, const struct pd_job *jobs, size_t n_jobs) {
    size_t n = n_jobs * (size_t)p->n;
    struct gen g = { .app = app, .call = c, .served = s, .params = p, .n = n, .timings = { .cache_reason = PN_CACHE_OFF } };
    struct pd_error unfit;
    pd_answer_init(&g.answer, p, pn_served_name(s), MAX_TEXT / 8); /* the last events have it several times */
    fo_buf_init(&g.out, MAX_TEXT);
    bool fits = pd_whose_fill(p, c, &g.whose, &unfit) || fail(&g, &unfit);
    g.answer.priority = g.whose.priority;
    g.at = pn_served_ref(s);
    struct pd_choice *choices = calloc(n, sizeof *choices);
    bool ok = fits && choices;
    if (fits && !ok) {
        struct pd_error x;
        pd_error_memory(&x);
        fail(&g, &x);
    }
    ok = ok && check_lengths(&g, jobs, n_jobs);
    for (size_t i = 0; i < n && ok; i++) ok = make_choice(&g, &jobs[i / (size_t)p->n], (int64_t)(i % (size_t)p->n), (int64_t)i, &choices[i]);
    if (ok) ok = finish(&g, choices, n);
    /* a client may leave because of the error it got */
    c->note.verdict = ok ? "answered" : !g.failed ? "client_left" : g.open ? "failed" : "refused";
    c->note.generates = true;
    c->note.stream = p->stream;
    snprintf(c->note.model, sizeof c->note.model, "%s", g.answer.model);
    c->note.prompt_tokens = g.usage.prompt_tokens;
    c->note.completion_tokens = g.usage.completion_tokens;
    c->note.reasoning_tokens = g.usage.reasoning_tokens;
    c->note.thought = g.usage.thought == PN_THOUGHT_LOOP ? "loop" : g.usage.thought == PN_THOUGHT_BUDGET ? "budget" : NULL;
    c->note.queue_ms = g.timings.queue_ms;
    c->note.prefill_ms = g.timings.prompt_ms;
    c->note.decode_ms = g.timings.predicted_ms;
    for (size_t i = 0; i < n && choices; i++) {
        pd_parts_done(&choices[i].parts);
        free(choices[i].logprobs);
    }
    free(choices);
    pd_answer_done(&g.answer);
    fo_buf_done(&g.out);
    pn_served_put(g.at);
}
