/* The report behind `pantheon inspect`: see inspect.h. One struct is filled from the header; two writers show it. Text out of the
 * file is untrusted: control characters are replaced and long texts cut before a terminal sees them. */
#include "engine/inspect.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/chat.h"
#include "engine/dialect.h"
#include "engine/model.h"
#include "engine/vocab.h"
#include "foundry/base/buf.h"
#include "foundry/base/err.h"
#include "foundry/base/units.h"
#include "foundry/gguf.h"
#include "foundry/model_file.h"

enum { MAX_SHOWN = 256 };

struct report {
    const char *path;
    char arch[MAX_SHOWN], name[MAX_SHOWN], license[MAX_SHOWN], tokenizer[MAX_SHOWN], pre[MAX_SHOWN];
    const struct fo_gguf *g;
    struct {
        uint64_t tensors, bytes;
    } types[FO_N_DTYPES];
    uint64_t params, tensor_bytes;
    struct pn_model_info info; /* zero where `why` is set before it was known */
    char why[384];             /* "" = servable */
    char text_why[384];        /* why there is no tokenizer or no usable template; "" = both are there */
    const struct pn_inspect_part *parts; /* [n_parts] */
    size_t n_parts;
    const char *template;      /* where the chat template comes from */
    const char *calls;         /* how it writes calls of functions; NULL = it does not */
    char thought[64];          /* what opens a thought; "" = nothing */
};

/* Copies text of the file for display: control characters and bytes that are no UTF-8 become '?', what is too long is cut. */
static void show(char *out, size_t size, struct fo_str s) {
    size_t n = s.len < size - 1 ? s.len : size - 1;
    memcpy(out, s.s, n);
    while (n > 0 && n < s.len && ((unsigned char)s.s[n] & 0xC0) == 0x80) n--; /* no half character at the cut */
    out[n] = '\0';
    for (size_t i = 0; i < n;) {
        unsigned char c = (unsigned char)out[i];
        size_t len = c >= 0xF0 ? 4 : c >= 0xE0 ? 3 : c >= 0xC0 ? 2 : 1;
        json_t *whole = len > 1 && i + len <= n ? json_stringn(out + i, len) : NULL; /* jansson checks the sequence */
        if (c < 0x20 || c == 0x7F || c >= 0x80) {
            if (!whole) {
                out[i] = '?';
                len = 1;
            }
        }
        json_decref(whole);
        i += len;
    }
}

static void read_str(const struct fo_gguf *g, const char *key, char *out, size_t size) {
    struct fo_err ignore; /* absent or of another type: not shown */
    struct fo_str s;
    if (fo_gguf_get_str(g, key, &s, &ignore) == FO_OK) show(out, size, s);
}

static int fill(struct report *r, const struct pn_model_opts *o, struct fo_err *e) {
    read_str(r->g, "general.architecture", r->arch, sizeof r->arch);
    read_str(r->g, "general.name", r->name, sizeof r->name);
    read_str(r->g, "general.license", r->license, sizeof r->license);
    read_str(r->g, "tokenizer.ggml.model", r->tokenizer, sizeof r->tokenizer);
    read_str(r->g, "tokenizer.ggml.pre", r->pre, sizeof r->pre);
    for (size_t i = 0; i < fo_gguf_n_tensors(r->g); i++) {
        const struct fo_gguf_tensor *t = fo_gguf_tensor_at(r->g, i);
        r->types[t->t.type].tensors++;
        r->types[t->t.type].bytes += t->bytes;
        r->tensor_bytes += t->bytes;
        r->params += (uint64_t)t->t.ne[0] * (uint64_t)fo_tensor_rows(&t->t);
    }
    struct pn_vocab *v = NULL;
    struct fo_err why;
    static const char *const sources[] = { [PN_CHAT_NONE] = "none", [PN_CHAT_FILE] = "in the file", [PN_CHAT_OVERRIDE] = "override", [PN_CHAT_CHATML] = "ChatML (the file has none)" };
    if (pn_vocab_open(r->path, &v, &why)) {
        snprintf(r->text_why, sizeof r->text_why, "%s", why.msg);
        r->template = "none";
    } else {
        r->template = sources[pn_chat_source(pn_vocab_chat(v))];
        const struct pn_dialect *d = pn_chat_dialect(pn_vocab_chat(v));
        if (pn_chat_state(pn_vocab_chat(v), &why)) snprintf(r->text_why, sizeof r->text_why, "%s", why.msg);
        else if (pn_dialect_calls(d)) r->calls = pn_dialect_calls(d)->name; /* a row of a table */
        if (!*r->text_why && pn_dialect_reasoning(d)) snprintf(r->thought, sizeof r->thought, "%s", pn_dialect_reasoning(d)->open);
    }
    pn_vocab_free(v);
    return pn_model_measure(r->path, o, &r->info, r->why, sizeof r->why, e);
}

static void write_text(const struct report *r, struct fo_buf *out) {
    char a[16], b[16], c[16];
    const struct pn_model_info *i = &r->info;
    fo_buf_printf(out, "file            %s\n", r->path);
    const char *size = fo_format_bytes(fo_gguf_file_bytes(r->g), a, sizeof a);
    b[0] = '\0';
    if (fo_gguf_n_files(r->g) > 1) snprintf(b, sizeof b, ", %zu files", fo_gguf_n_files(r->g));
    if (strcmp(fo_gguf_format(r->g), "GGUF") == 0)
        fo_buf_printf(out, "format          GGUF v%u, alignment %llu%s, %s\n", fo_gguf_version(r->g), (unsigned long long)fo_gguf_alignment(r->g), b, size);
    else
        fo_buf_printf(out, "format          %s%s, %s\n", fo_gguf_format(r->g), b, size);
    fo_buf_printf(out, "architecture    %s\n", *r->arch ? r->arch : "(not named)");
    if (*r->name) fo_buf_printf(out, "name            %s\n", r->name);
    if (*r->license) fo_buf_printf(out, "license         %s\n", r->license);
    fo_buf_printf(out, "parameters      %.1f million in %zu tensors\n", (double)r->params / 1e6, fo_gguf_n_tensors(r->g));
    for (int t = 0; t < FO_N_DTYPES; t++)
        if (r->types[t].tensors)
            fo_buf_printf(out, "  %-13s %5llu tensors, %s\n", fo_dtype_name((uint32_t)t), (unsigned long long)r->types[t].tensors,
                          fo_format_bytes(r->types[t].bytes, a, sizeof a));
    if (i->n_layer)
        fo_buf_printf(out, "shape           %u layers, embedding %u, %u heads (%u for KV), vocabulary %u, trained for %u tokens\n", i->n_layer, i->n_embd,
                      i->n_head, i->n_head_kv, i->n_vocab, i->n_ctx_train);
    fo_buf_printf(out, "tokenizer       %s%s%s\n", *r->tokenizer ? r->tokenizer : "none", *r->pre ? ", rule " : "", r->pre);
    fo_buf_printf(out, "chat template   %s\n", r->template);
    if (*r->text_why) fo_buf_printf(out, "                %s\n", r->text_why);
    else fo_buf_printf(out, "tools           %s\nreasoning       %s\n", r->calls ? r->calls : "none", *r->thought ? r->thought : "none");
    if (i->kv_bytes) {
        fo_buf_printf(out, "\nmemory, for %u session%s of %u tokens, %u at a time\n", i->max_sessions, i->max_sessions == 1 ? "" : "s", i->ctx_cap, i->max_concurrent);
        fo_buf_printf(out, "  weights       %s\n", fo_format_bytes(i->weights_bytes, a, sizeof a));
        fo_buf_printf(out, "  KV            %s (%s a token)\n", fo_format_bytes(i->kv_bytes, a, sizeof a), fo_format_bytes(i->kv_bytes_per_token, b, sizeof b));
        fo_buf_printf(out, "  compute       %s\n", fo_format_bytes(i->scratch_bytes, a, sizeof a));
        fo_buf_printf(out, "  together      %s\n", fo_format_bytes(i->weights_bytes + i->kv_bytes + i->scratch_bytes, c, sizeof c));
    }
    if (r->n_parts && !*r->why) {
        fo_buf_printf(out, "\nsplit by layers over %zu equal dies\n  %-12s %-9s %11s %11s %11s %11s\n", r->n_parts, "die", "layers", "weights", "KV", "compute", "together");
        for (size_t k = 0; k < r->n_parts; k++) {
            const struct pn_inspect_part *p = &r->parts[k];
            char layers[32], d[16];
            snprintf(layers, sizeof layers, "%u to %u", p->first_layer, p->first_layer + p->n_layers - 1);
            fo_buf_printf(out, "  %-12s %-9s %11s %11s %11s %11s\n", p->die, layers, fo_format_bytes(p->weights_bytes, a, sizeof a), fo_format_bytes(p->kv_bytes, b, sizeof b),
                          fo_format_bytes(p->scratch_bytes, c, sizeof c), fo_format_bytes(p->weights_bytes + p->kv_bytes + p->scratch_bytes, d, sizeof d));
        }
    }
    fo_buf_printf(out, *r->why ? "\ncannot be served: %s\n" : "\ncan be served\n", r->why);
}

static bool write_json(const struct report *r, struct fo_buf *out) {
    const struct pn_model_info *i = &r->info;
    json_t *types = json_object();
    for (int t = 0; t < FO_N_DTYPES; t++)
        if (r->types[t].tensors)
            json_object_set_new(types, fo_dtype_name((uint32_t)t),
                                json_pack("{s:I, s:I}", "tensors", (json_int_t)r->types[t].tensors, "bytes", (json_int_t)r->types[t].bytes));
    json_t *j = json_pack("{s:s, s:s, s:I, s:i, s:I, s:I, s:s, s:s, s:s, s:I, s:I, s:o}", "path", r->path, "format", fo_gguf_format(r->g), "files",
                          (json_int_t)fo_gguf_n_files(r->g), "gguf_version", (int)fo_gguf_version(r->g), "alignment",
                          (json_int_t)fo_gguf_alignment(r->g), "file_bytes", (json_int_t)fo_gguf_file_bytes(r->g), "architecture", r->arch, "name", r->name,
                          "license", r->license, "parameters", (json_int_t)r->params, "tensor_bytes", (json_int_t)r->tensor_bytes, "types", types);
    json_t *text = json_pack("{s:s, s:s, s:s, s:s?, s:s?, s:s}", "model", r->tokenizer, "rule", r->pre, "chat_template", r->template, "tools", r->calls, "reasoning",
                             *r->thought ? r->thought : NULL, "error", r->text_why);
    json_t *shape = json_pack("{s:I, s:I, s:I, s:I, s:I, s:I}", "layers", (json_int_t)i->n_layer, "embedding", (json_int_t)i->n_embd, "heads",
                              (json_int_t)i->n_head, "heads_kv", (json_int_t)i->n_head_kv, "vocabulary", (json_int_t)i->n_vocab, "trained_tokens",
                              (json_int_t)i->n_ctx_train);
    json_t *memory = json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "ctx_cap", (json_int_t)i->ctx_cap, "max_sessions", (json_int_t)i->max_sessions,
                               "max_concurrent", (json_int_t)i->max_concurrent, "weights_bytes", (json_int_t)i->weights_bytes, "kv_bytes",
                               (json_int_t)i->kv_bytes, "kv_bytes_per_token", (json_int_t)i->kv_bytes_per_token, "scratch_bytes", (json_int_t)i->scratch_bytes);
    json_t *dies = json_array();
    for (size_t k = 0; k < r->n_parts && !*r->why; k++) {
        const struct pn_inspect_part *p = &r->parts[k];
        json_array_append_new(dies, json_pack("{s:s, s:I, s:I, s:I, s:I, s:I, s:I}", "die", p->die, "first_layer", (json_int_t)p->first_layer, "n_layers", (json_int_t)p->n_layers,
                                              "weights_bytes", (json_int_t)p->weights_bytes, "kv_bytes", (json_int_t)p->kv_bytes, "scratch_bytes", (json_int_t)p->scratch_bytes,
                                              "total_bytes", (json_int_t)(p->weights_bytes + p->kv_bytes + p->scratch_bytes)));
    }
    bool bad = json_object_set_new(j, "dies", dies) | json_object_set_new(j, "tokenizer", text) | json_object_set_new(j, "shape", shape) | json_object_set_new(j, "memory", memory) |
               json_object_set_new(j, "servable", json_boolean(!*r->why)) |
               json_object_set_new(j, "reason", *r->why ? json_string(r->why) : json_null());
    char *s = bad ? NULL : json_dumps(j, JSON_INDENT(2));
    json_decref(j);
    if (!s) return false;
    fo_buf_puts(out, s);
    fo_buf_putc(out, '\n');
    free(s);
    return true;
}

int pn_inspect(const char *path, const struct pn_model_opts *o, const struct pn_inspect_part *parts, size_t n_parts, bool json, struct fo_buf *out, bool *ret_servable, struct fo_err *e) {
    struct fo_gguf *g;
    int rc = fo_model_open(path, &g, e);
    if (rc) return rc;
    struct report r = { .path = path, .g = g, .parts = parts, .n_parts = n_parts };
    rc = fill(&r, o, e);
    if (!rc) {
        if (!json) write_text(&r, out);
        if ((json && !write_json(&r, out)) || out->failed) rc = fo_fail(e, FO_ENOMEM, "%s: no memory for the report", path);
        else *ret_servable = !*r.why;
    }
    fo_gguf_close(g);
    return rc;
}
