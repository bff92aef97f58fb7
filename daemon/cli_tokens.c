/* `pantheon tokenize`, `detokenize` and `template`: the text side of a model, for comparison with references. */
#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "daemon/cli.h"
#include "engine/chat.h"
#include "engine/jinja.h"
#include "engine/vocab.h"
#include "foundry/base/buf.h"
#include "foundry/base/err.h"

enum { MAX_INPUT = 256 << 20, MAX_JSON = 64 << 20 };

/* Flushes stdout; a full disk or a closed pipe is an error, not silence. */
static int finish(void) {
    return fflush(stdout) == 0 && !ferror(stdout) ? PD_EXIT_OK : pd_cli_failf("writing the output: %s", strerror(errno));
}

int pd_cli_tokenize(const struct pd_cli_args *a) {
    const char *path = pd_cli_model_path(a);
    if (!path) return PD_EXIT_USAGE;
    struct fo_err e;
    struct pn_vocab *v = NULL;
    struct pn_ids ids = { 0 };
    char *text = NULL;
    size_t len;
    int rc = PD_EXIT_FAILURE;
    if (pn_vocab_open(path, &v, &e) || pd_cli_read(NULL, MAX_INPUT, &text, &len, &e) ||
        pn_vocab_encode(v, text, len, !a->no_special, !a->no_bos, &ids, &e)) {
        pd_cli_fail(&e);
        goto out;
    }
    putchar('[');
    for (uint32_t i = 0; i < ids.n; i++) printf(i ? ",%d" : "%d", ids.ids[i]);
    fputs("]\n", stdout);
    rc = finish();
out:
    free(ids.ids);
    free(text);
    pn_vocab_free(v);
    return rc;
}

int pd_cli_detokenize(const struct pd_cli_args *a) {
    const char *path = pd_cli_model_path(a);
    if (!path) return PD_EXIT_USAGE;
    struct fo_err e;
    struct pn_vocab *v = NULL;
    struct fo_buf out;
    fo_buf_init(&out, MAX_INPUT);
    char *text = NULL;
    size_t len;
    int32_t *ids = NULL;
    json_t *j = NULL;
    json_error_t je;
    int rc = PD_EXIT_FAILURE;
    if (pn_vocab_open(path, &v, &e) || pd_cli_read(NULL, MAX_JSON, &text, &len, &e)) {
        pd_cli_fail(&e);
        goto out;
    }
    j = json_loadb(text, len, 0, &je);
    if (!json_is_array(j)) {
        pd_cli_failf("stdin must be a JSON array of token ids%s%s", j ? "" : ": ", j ? "" : je.text);
        goto out;
    }
    size_t n = json_array_size(j);
    ids = calloc(n ? n : 1, sizeof *ids);
    for (size_t i = 0; ids && i < n; i++) {
        json_t *x = json_array_get(j, i);
        json_int_t id = json_integer_value(x);
        if (!json_is_integer(x) || id < 0 || id > INT32_MAX) {
            pd_cli_failf("element %zu is no token id", i);
            goto out;
        }
        ids[i] = (int32_t)id;
    }
    if (!ids) {
        pd_cli_failf("no memory for %zu ids", n);
        goto out;
    }
    if (pn_vocab_decode(v, ids, n, !a->no_special, &out, &e)) {
        pd_cli_fail(&e);
        goto out;
    }
    fwrite(fo_buf_str(&out), 1, out.len, stdout);
    rc = finish();
out:
    json_decref(j);
    free(ids);
    free(text);
    fo_buf_done(&out);
    pn_vocab_free(v);
    return rc;
}

static json_t *load_json(const char *path, const char *what) {
    struct fo_err e;
    char *text;
    size_t len;
    if (pd_cli_read(path, MAX_JSON, &text, &len, &e)) {
        pd_cli_fail(&e);
        return NULL;
    }
    json_error_t je;
    json_t *j = json_loadb(text, len, JSON_ALLOW_NUL, &je);
    free(text);
    if (!j) {
        pd_cli_failf("%s:%d:%d: %s", path, je.line, je.column, je.text);
    } else if (!json_is_object(j)) {
        pd_cli_failf("%s: %s must be a JSON object", path, what);
        json_decref(j);
        j = NULL;
    }
    return j;
}

/* "2025-03-07T09:05:02" as seconds since 1970, read as UTC; -1 = not such a time. */
static int64_t parse_time(const char *s) {
    struct tm t = { 0 };
    const char *end = strptime(s, "%Y-%m-%dT%H:%M:%S", &t);
    return end && !*end ? (int64_t)timegm(&t) : -1;
}

int pd_cli_template(const struct pd_cli_args *a) {
    struct fo_err e;
    int rc = PD_EXIT_FAILURE;
    if (!a->input) {
        pd_cli_failf("which conversation? Give --input CONVERSATION.json");
        return PD_EXIT_USAGE;
    }
    if (!a->template_file == !a->n_models) {
        pd_cli_failf("give either --model M or --template FILE");
        return PD_EXIT_USAGE;
    }
    struct pn_vocab *v = NULL;
    struct pn_chat *bare = NULL;
    struct pn_render r = { 0 };
    struct fo_buf raised;
    fo_buf_init(&raised, PN_RAISED_BYTES);
    char *text = NULL, *messages = NULL, *tools = NULL, *extra = NULL;
    size_t len;
    json_t *settings = NULL, *in = load_json(a->input, "a conversation"), *kwargs = NULL;
    if (!in || (a->settings && !(settings = load_json(a->settings, "settings")))) goto out;
    const char *bos = json_string_value(json_object_get(settings, "bos_token"));
    const char *eos = json_string_value(json_object_get(settings, "eos_token"));
    const char *fixed = json_string_value(json_object_get(settings, "strftime_now_fixed_at"));
    struct pn_chat_input ci = { .now = fixed ? parse_time(fixed) : (int64_t)time(NULL), .as_is = a->template_file != NULL };
    if (ci.now < 0) {
        pd_cli_failf("%s: strftime_now_fixed_at must look like 2025-03-07T09:05:02", a->settings);
        goto out;
    }
    if (a->template_file) {
        if (pd_cli_read(a->template_file, 4 << 20, &text, &len, &e) ||
            pn_chat_open_text(text, len, bos ? bos : "", eos ? eos : "", &bare, &e) || pn_chat_state(bare, &e)) {
            pd_cli_fail(&e);
            goto out;
        }
    } else if (pn_vocab_open(pd_cli_model_path(a), &v, &e)) {
        pd_cli_fail(&e);
        goto out;
    }
    json_t *m = json_object_get(in, "messages"), *t = json_object_get(in, "tools"), *x = json_object_get(in, "extra");
    if (!json_is_array(m) || (t && !json_is_array(t) && !json_is_null(t)) || (x && !json_is_object(x) && !json_is_null(x))) {
        pd_cli_failf("%s: needs `messages` (an array), and may have `tools` (an array) and `extra` (an object)", a->input);
        goto out;
    }
    /* variables that the settings fix for every conversation (documents), then the conversation's own */
    kwargs = json_object();
    if (settings && json_object_get(settings, "documents")) json_object_set(kwargs, "documents", json_object_get(settings, "documents"));
    if (json_is_object(x)) json_object_update(kwargs, x);
    messages = json_dumps(m, JSON_COMPACT | JSON_ENCODE_ANY);
    tools = json_is_array(t) ? json_dumps(t, JSON_COMPACT) : NULL;
    extra = json_object_size(kwargs) ? json_dumps(kwargs, JSON_COMPACT) : NULL;
    ci.raised = &raised;
    ci.messages_json = messages;
    ci.tools_json = tools;
    ci.extra_json = extra;
    ci.add_generation_prompt = json_is_true(json_object_get(in, "add_generation_prompt"));
    if (pn_chat_render(bare ? bare : pn_vocab_chat(v), &ci, &r, &e)) {
        if (raised.len && !raised.failed) {
            fo_text_defuse(raised.data); /* a terminal shows it */
            pd_cli_failf("%s", fo_buf_str(&raised));
        } else {
            pd_cli_fail(&e);
        }
        goto out;
    }
    fwrite(r.text, 1, r.len, stdout);
    rc = finish();
out:
    pn_render_done(&r);
    fo_buf_done(&raised);
    json_decref(kwargs);
    json_decref(in);
    json_decref(settings);
    free(messages);
    free(tools);
    free(extra);
    free(text);
    pn_chat_free(bare);
    pn_vocab_free(v);
    return rc;
}
