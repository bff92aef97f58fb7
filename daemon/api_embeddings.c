/* POST /v1/embeddings: each input becomes one vector of unit length (engine/embed.h).
 *
 * The inputs of a request are computed one after the other, so that two thousand take no more of the queue and of the slots than one does; all
 * but the first are part of what was admitted (pn_request_opts.goes_on), and start behind what waits, so that nobody waits for all of them. The
 * longest goes first: when that fits the cap, all do, and nothing was computed in vain. The answer is written when all are there, because an
 * error must still be a status. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "config/manifest.h"
#include "daemon/app.h"
#include "daemon/http.h"
#include "daemon/oai.h"
#include "daemon/params.h"
#include "daemon/pressure.h"
#include "daemon/routes.h"
#include "daemon/whose.h"
#include "engine/embed.h"
#include "engine/engine.h"
#include "engine/text.h"
#include "foundry/base/buf.h"
#include "foundry/base/err.h"

enum {
    LOOK_MS = 250,          /* how often a silent request looks whether its client is still there */
    MAX_ANSWER = 512 << 20,
    NUMBER_BYTES = 16,      /* "-1.23456789e-38," */
    BASE64_BYTES = 6,
    HEAD_BYTES = 64         /* of a vector's object besides its numbers */
};

struct work {
    struct pd_app *app;
    struct pd_call *call;
    struct pn_served *served;
    const struct pd_params *params;
    struct pn_ids *ids; /* [n] of each input; those of texts are ours */
    size_t n;
    float *vectors;     /* [n][n_embd] */
    uint32_t n_embd;
    struct pn_usage usage; /* of all that was computed */
    struct pd_error error;
    struct pn_budget budget; /* the error's numbers */
    bool refused;            /* `error` is set; else a call that did not succeed has no client any more */
};

static bool no_memory(struct work *w) {
    w->refused = true;
    return pd_error_memory(&w->error);
}

/* "input", or "input.3" where a list was given. */
static void name_input(const struct work *w, size_t i, char *out, size_t size) {
    const json_t *input = json_object_get(w->params->root, "input"), *first = json_array_get(input, 0);
    if (first && !json_is_number(first)) snprintf(out, size, "input.%zu", i);
    else snprintf(out, size, "input");
}

/* What the engine says of input i, at the field that is to blame. */
static bool refuse(struct work *w, size_t i, const struct fo_err *e) {
    struct pd_error *x = &w->error;
    pd_app_error(w->app, w->served, e, x);
    w->refused = true;
    if (x->id == PD_ERR_UNSUPPORTED) snprintf(x->param, sizeof x->param, "model");
    else if (pd_error_row(x->id)->status == 400) name_input(w, i, x->param, sizeof x->param);
    return false;
}

/* --- inputs --- */

/* The ids of every input. */
static bool encode(struct work *w) {
    const struct pn_model *m = pn_served_model(w->served);
    for (size_t i = 0; i < w->n; i++) {
        const struct pd_prompt *in = &w->params->prompts[i];
        struct fo_err e;
        if (in->ids) w->ids[i] = (struct pn_ids){ .ids = in->ids, .n = in->n_ids };
        else if (pn_text_encode(m, in->text, in->len, false, true, 0, &w->ids[i], &e)) return refuse(w, i, &e);
    }
    return true;
}

/* What needs the model, before anything is computed. */
static bool check(struct work *w) {
    const struct pn_model_info *info = pn_model_info(pn_served_model(w->served));
    const struct pd_params *p = w->params;
    struct fo_err e;
    uint64_t one = (uint64_t)info->n_embd * (p->base64 ? BASE64_BYTES : NUMBER_BYTES) + HEAD_BYTES;
    w->n = p->n_prompts;
    w->n_embd = info->n_embd;
    if (pn_pooling_check(info->pooling, &e)) return refuse(w, 0, &e);
    w->refused = true;
    if (p->dimensions >= 0 && p->dimensions != info->n_embd)
        return pd_error_set(&w->error, PD_ERR_UNSUPPORTED, "dimensions", "'dimensions' is not honoured by this version: the vectors of '%s' have %u numbers, and no more and no fewer.",
                            pn_served_name(w->served), info->n_embd);
    if (!pd_params_check_ids(p, info->n_vocab, &w->error)) return false;
    if (w->n * one > MAX_ANSWER - 1024) /* at most 2048 inputs of 2^17 numbers: far from an overflow */
        return pd_error_set(&w->error, PD_ERR_VALUE, "input", "'input' has %zu entries; of this model's vectors at most %zu are given in one answer.", w->n,
                            (size_t)((MAX_ANSWER - 1024) / one));
    w->refused = false;
    return true;
}

/* --- one vector --- */

static bool submit(struct work *w, size_t i, bool goes_on, struct pn_request **ret) {
    struct fo_err e;
    struct pn_request_opts o = { .tokens = w->ids[i].ids, .n_tokens = w->ids[i].n, .id = w->call->id, .embed = true, .goes_on = goes_on };
    if (!pd_whose_fill(w->params, w->call, &o, &w->error)) {
        w->refused = true;
        return false;
    }
    if (pd_submit(w->app, &w->served, &o, ret, &w->budget, &e) == FO_OK) {
        pd_pressure_note(w->call, w->served, &w->budget);
        return true;
    }
    refuse(w, i, &e);
    if (w->error.id == PD_ERR_BUDGET) {
        w->error.budget = &w->budget;
        w->error.model = pn_served_name(w->served);
    }
    return false;
}

static void add_usage(struct pn_usage *sum, const struct pn_usage *u) {
    sum->prompt_tokens += u->prompt_tokens;
    sum->queue_ms += u->queue_ms;
    sum->prefill_ms += u->prefill_ms;
}

/* From its admission to its place among the vectors. A client that has left ends it. */
static bool embed(struct work *w, size_t i, bool goes_on) {
    struct pn_request *r = NULL;
    struct pn_event ev;
    if (!submit(w, i, goes_on, &r)) return false;
    do {
        pn_request_next(r, LOOK_MS, &ev);
    } while (ev.kind != PN_EV_DONE && ev.kind != PN_EV_ERROR && !pd_client_gone(w->call));
    bool ok = ev.kind == PN_EV_DONE;
    if (ok) {
        memcpy(w->vectors + i * w->n_embd, ev.embedding, w->n_embd * sizeof *w->vectors);
        add_usage(&w->usage, &ev.usage);
    } else if (ev.kind == PN_EV_ERROR) {
        refuse(w, i, ev.err);
    }
    pn_request_release(r); /* cancels what is not finished */
    return ok;
}

static bool embed_all(struct work *w) {
    size_t longest = 0;
    for (size_t i = 1; i < w->n; i++)
        if (w->ids[i].n > w->ids[longest].n) longest = i;
    if (!embed(w, longest, false)) return false;
    for (size_t i = 0; i < w->n; i++)
        if (i != longest && (pd_client_gone(w->call) || !embed(w, i, true))) return false;
    return true;
}

/* --- the answer --- */

/* Nine significant digits: a float reads back as it was. */
static void put_numbers(struct fo_buf *out, const float *v, uint32_t n) {
    fo_buf_putc(out, '[');
    for (uint32_t i = 0; i < n; i++) {
        char number[32];
        int len = snprintf(number, sizeof number, "%s%.9g", i ? "," : "", (double)v[i]);
        fo_buf_append(out, number, (size_t)len);
    }
    fo_buf_putc(out, ']');
}

/* The bytes of the floats, little endian, in base64 (RFC 4648). */
static void put_base64(struct fo_buf *out, const float *v, uint32_t n) {
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    uint32_t held = 0, bits = 0; /* `bits` low bits of `held` are not written yet */
    char text[8];
    fo_buf_putc(out, '"');
    for (uint32_t i = 0; i < n; i++) {
        uint32_t word;
        size_t len = 0;
        memcpy(&word, &v[i], sizeof word);
        for (int byte = 0; byte < 4; byte++) {
            held = held << 8 | (word >> 8 * byte & 0xFF);
            for (bits += 8; bits >= 6; bits -= 6) text[len++] = digits[held >> (bits - 6) & 63];
        }
        fo_buf_append(out, text, len);
    }
    if (bits) fo_buf_putc(out, digits[held << (6 - bits) & 63]);
    if (bits) fo_buf_puts(out, bits == 2 ? "==" : "=");
    fo_buf_putc(out, '"');
}

static void answer(const struct work *w) {
    struct fo_buf out;
    const char *model = pn_served_name(w->served);
    fo_buf_init(&out, MAX_ANSWER);
    fo_buf_puts(&out, "{\"object\":\"list\",\"data\":[");
    for (size_t i = 0; i < w->n && !out.failed; i++) {
        fo_buf_printf(&out, "%s{\"object\":\"embedding\",\"index\":%zu,\"embedding\":", i ? "," : "", i);
        (w->params->base64 ? put_base64 : put_numbers)(&out, w->vectors + i * w->n_embd, w->n_embd);
        fo_buf_putc(&out, '}');
    }
    fo_buf_puts(&out, "],\"model\":");
    pd_json_text(&out, model, strlen(model));
    fo_buf_printf(&out, ",\"usage\":{\"prompt_tokens\":%u,\"total_tokens\":%u}}", w->usage.prompt_tokens, w->usage.prompt_tokens);
    pd_json_reply(w->call, 200, &out);
    fo_buf_done(&out);
}

/* What the request's line in the log says. */
static void note(const struct work *w, bool ok) {
    struct pd_note *n = &w->call->note;
    n->verdict = ok ? "answered" : w->refused ? "refused" : "client_left";
    n->generates = true;
    snprintf(n->model, sizeof n->model, "%s", pn_served_name(w->served));
    n->prompt_tokens = w->usage.prompt_tokens;
    n->queue_ms = w->usage.queue_ms;
    n->prefill_ms = w->usage.prefill_ms;
}

static void serve(struct work *w) {
    bool ok = check(w);
    if (ok) {
        w->ids = calloc(w->n, sizeof *w->ids);
        w->vectors = calloc(w->n, w->n_embd * sizeof *w->vectors);
        ok = (w->ids && w->vectors) || no_memory(w);
    }
    ok = ok && encode(w) && embed_all(w);
    if (ok) {
        answer(w);
        ok = w->call->status == 200;
        w->refused = !ok; /* no memory for it */
    } else if (w->refused) {
        pd_error_reply(w->call, &w->error);
    }
    note(w, ok);
    for (size_t i = 0; i < w->n && w->ids; i++)
        if (!w->params->prompts[i].ids) free(w->ids[i].ids);
    free(w->ids);
    free(w->vectors);
}

void pd_post_embeddings(struct pd_app *app, struct pd_call *c, const char *param) {
    (void)param;
    struct pd_params p;
    struct pd_error x;
    struct cf_sampling unused;
    struct work w = { .app = app, .call = c, .params = &p };
    if (pd_params_parse(PD_API_EMBED, c->body, c->n_body, &p, &x) && pd_app_find(app, p.model, &w.served, &unused, &x)) serve(&w);
    else pd_error_reply(c, &x);
    pn_served_put(w.served);
    pd_params_done(&p);
}
