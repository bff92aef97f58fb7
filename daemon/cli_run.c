/* `pantheon --prompt` and `--chat`: one model, one reader, the same engine path that the daemon serves from (submit, pull events).
 * A chat sends the whole conversation each turn; the engine keeps its KV under one session key, so only what is new is computed.
 * stdout carries the answer and nothing else. */
#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "daemon/cli.h"
#include "engine/chat.h"
#include "engine/engine.h"
#include "engine/text.h"
#include "foundry/base/buf.h"
#include "foundry/base/err.h"
#include "foundry/device.h"

enum { MAX_TEXT = 8 << 20 };

/* Prints one answer as it comes. `ret_answer` gets its text. Returns an exit status; PD_EXIT_INTERRUPTED when Ctrl-C stopped it. */
static int answer(struct pn_served *served, const struct pd_cli_args *a, const struct pn_ids *ids, const struct pn_sampling *sampling,
                  struct fo_buf *ret_answer) {
    struct fo_err e;
    struct pn_budget budget;
    struct pn_request *r;
    struct pn_request_opts o = {
        .tokens = ids->ids,
        .n_tokens = ids->n,
        .max_tokens = (uint32_t)a->max_tokens,
        .sampling = *sampling,
        .ignore_end = a->ignore_eos,
        .session = a->chat ? "chat" : NULL,
        .id = "cli",
        .want_text = true,
    };
    if (pn_submit(served, &o, &r, &budget, &e)) return pd_cli_fail(&e);
    int rc = PD_EXIT_OK;
    for (struct pn_event ev;;) {
        pn_request_next(r, 100, &ev);
        if (pd_cli_interrupted()) {
            pn_request_cancel(r);
            rc = PD_EXIT_INTERRUPTED;
        }
        if (ev.kind == PN_EV_TEXT) {
            fo_buf_append(ret_answer, ev.text, ev.text_len);
            if (fwrite(ev.text, 1, ev.text_len, stdout) != ev.text_len || fflush(stdout) != 0) {
                rc = errno == EPIPE ? PD_EXIT_FAILURE : pd_cli_failf("writing the answer: %s", strerror(errno));
                pn_request_cancel(r);
                break;
            }
        } else if (ev.kind == PN_EV_DONE) {
            if (isatty(STDERR_FILENO) && isatty(STDOUT_FILENO)) {
                const struct pn_usage *u = &ev.usage;
                fprintf(stderr, "\n[%u prompt tokens (%u cached) in %.0f ms, %u generated at %.1f tok/s%s]", u->prompt_tokens, u->cached_tokens,
                        u->prefill_ms, u->completion_tokens, u->decode_ms > 0 ? u->completion_tokens * 1000.0 / u->decode_ms : 0.0,
                        ev.finish == PN_FINISH_LENGTH ? ", stopped at the token limit" : "");
            }
            break;
        } else if (ev.kind == PN_EV_ERROR) {
            if (rc == PD_EXIT_OK) rc = pd_cli_fail(ev.err);
            break;
        }
    }
    pn_request_release(r);
    if (!a->raw || isatty(STDOUT_FILENO)) putchar('\n');
    fflush(stdout);
    return rc;
}

static int encode_chat(const struct pn_model *m, json_t *messages, struct pn_ids *ret, struct fo_err *e) {
    char *text = json_dumps(messages, JSON_COMPACT);
    if (!text) return fo_fail(e, FO_ENOMEM, "no memory for the conversation");
    struct pn_chat_input in = { .messages_json = text, .add_generation_prompt = true, .now = (int64_t)time(NULL) };
    int rc = pn_text_encode_chat(m, &in, 0, ret, e);
    free(text);
    return rc;
}

static void add_message(json_t *messages, const char *role, const char *text, size_t len) {
    json_t *content = json_stringn(text, len);
    if (!content) content = json_string("(not valid UTF-8)"); /* arguments and lines come from a terminal in any encoding */
    json_array_append_new(messages, json_pack("{s:s, s:o}", "role", role, "content", content));
}

static int one_prompt(struct pn_served *served, const struct pd_cli_args *a) {
    const struct pn_model *m = pn_served_model(served);
    struct fo_err e;
    struct pn_ids ids = { 0 };
    int rc;
    json_t *messages = json_array();
    if (a->system) add_message(messages, "system", a->system, strlen(a->system));
    add_message(messages, "user", a->prompt, strlen(a->prompt));
    rc = a->raw ? pn_text_encode(m, a->prompt, strlen(a->prompt), false, true, 0, &ids, &e) : encode_chat(m, messages, &ids, &e);
    json_decref(messages);
    if (rc) return pd_cli_fail(&e);
    struct fo_buf text;
    fo_buf_init(&text, MAX_TEXT);
    struct pn_sampling s = pd_cli_sampling(a);
    if (a->raw) fputs(a->prompt, stdout);
    rc = answer(served, a, &ids, &s, &text);
    fo_buf_done(&text);
    free(ids.ids);
    return rc;
}

static int chat(struct pn_served *served, const struct pd_cli_args *a) {
    struct pd_line *line = pd_line_new();
    if (!line) return pd_cli_failf("no memory");
    json_t *messages = json_array();
    if (a->system) add_message(messages, "system", a->system, strlen(a->system));
    if (isatty(STDIN_FILENO)) fprintf(stderr, "Chat with %s. Ctrl-C stops an answer, Ctrl-D ends.\n", pn_served_name(served));
    int rc = PD_EXIT_OK;
    struct pn_sampling s = pd_cli_sampling(a);
    for (const char *text;;) {
        enum pd_line_result got = pd_line_read(line, "> ", &text);
        if (got == PD_LINE_EOF) break;
        if (got == PD_LINE_INTERRUPT || !*text) continue;
        add_message(messages, "user", text, strlen(text));
        struct fo_err e;
        struct pn_ids ids = { 0 };
        if (encode_chat(pn_served_model(served), messages, &ids, &e)) {
            pd_cli_fail(&e); /* the turn is taken back, the conversation goes on */
            json_array_remove(messages, json_array_size(messages) - 1);
            rc = PD_EXIT_FAILURE;
            continue;
        }
        struct fo_buf said;
        fo_buf_init(&said, MAX_TEXT);
        pd_cli_interrupted(); /* forget a press from before */
        rc = answer(served, a, &ids, &s, &said);
        free(ids.ids);
        if (rc == PD_EXIT_OK || rc == PD_EXIT_INTERRUPTED) {
            add_message(messages, "assistant", fo_buf_str(&said), said.len); /* what was said stays said, also when cut short */
            rc = PD_EXIT_OK;
        } else {
            json_array_remove(messages, json_array_size(messages) - 1);
        }
        fo_buf_done(&said);
        if (ferror(stdout)) break;
    }
    json_decref(messages);
    pd_line_free(line);
    return rc;
}

int pd_cli_run(const struct pd_cli_args *a) {
    const char *path = pd_cli_model_path(a);
    if (!path) return PD_EXIT_USAGE;
    if (!a->chat == !a->prompt) {
        pd_cli_failf("give either --prompt TEXT or --chat");
        return PD_EXIT_USAGE;
    }
    struct fo_err e;
    struct fo_device *dev = NULL;
    struct pn_engine *engine = NULL;
    struct pn_served *served = NULL;
    char *override = NULL;
    size_t n;
    int rc = PD_EXIT_FAILURE;
    const char *tf = a->models[1].chat_template ? a->models[1].chat_template : a->models[0].chat_template;
    int64_t cap = a->models[1].ctx_cap ? a->models[1].ctx_cap : a->models[0].ctx_cap;
    if (tf && pd_cli_read(tf, 1 << 20, &override, &n, &e)) return pd_cli_fail(&e);
    pd_cli_progress("loading %s ...", path);
    struct pn_serve_opts o = {
        .name = path,
        .model = { .ctx_cap = (uint32_t)cap, .max_sessions = 1, .max_concurrent = 1, .draft_rows = PN_DRAFT_MAX, .no_mmap = a->no_mmap, .chat_template = override },
    };
    if (pd_cli_kv(a, &o.model, &e) || pd_cli_open_device(a, &dev, &e) || pn_engine_new(&engine, &e)) {
        rc = pd_cli_fail(&e);
        goto out;
    }
    o.model.dev = dev;
    if (pn_engine_load(engine, path, &o, &e)) {
        rc = pd_cli_fail(&e);
        goto out;
    }
    pd_cli_progress(NULL);
    served = pn_engine_get(engine, path);
    pd_cli_catch_interrupt();
    rc = a->chat ? chat(served, a) : one_prompt(served, a);
out:
    pn_served_put(served);
    pn_engine_free(engine);
    fo_device_close(dev);
    free(override);
    return rc;
}
