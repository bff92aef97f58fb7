/* The public embedding API (include/pantheon.h) over the registry and its requests: handles, options and errors are translated, nothing
 * is computed here.
 *
 * An llm is a registry with one model in it. Sessions and gens hold a reference to their llm, so handles outlive pn_llm_unload; the
 * device is closed with the last reference, after the model. */
#include "include/pantheon.h"

#include <errno.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "engine/blob.h"
#include "engine/chat.h"
#include "engine/embed.h"
#include "engine/engine.h"
#include "engine/text.h"
#include "foundry/base/buf.h"
#include "foundry/base/err.h"
#include "foundry/base/outfile.h"
#include "foundry/device.h"

/* The public codes are ours by another name. */
_Static_assert((int)PN_OK == FO_OK && (int)PN_ERR_INVALID == FO_EINVAL && (int)PN_ERR_FORMAT == FO_EFORMAT &&
                   (int)PN_ERR_UNSUPPORTED == FO_EUNSUPPORTED && (int)PN_ERR_NOT_FOUND == FO_ENOENT && (int)PN_ERR_ACCESS == FO_EACCES &&
                   (int)PN_ERR_IO == FO_EIO && (int)PN_ERR_NO_MEMORY == FO_ENOMEM && (int)PN_ERR_LIMIT == FO_ELIMIT &&
                   (int)PN_ERR_BUDGET == FO_EBUDGET && (int)PN_ERR_BUSY == FO_EBUSY && (int)PN_ERR_UNAVAILABLE == FO_EUNAVAIL &&
                   (int)PN_ERR_CANCELLED == FO_ECANCELLED && (int)PN_ERR_TIMEOUT == FO_ETIMEOUT && (int)PN_ERR_LOST == FO_ELOST &&
                   (int)PN_ERR_INTERNAL == FO_EINTERNAL && (int)PN_ERR_INTERNAL + 1 == FO_N_CODES,
               "enum pn_error_code and enum fo_code say the same");

static const char name[] = "model";

struct pn_llm {
    atomic_int refs;
    atomic_uint_fast64_t n_sessions;
    struct fo_device *dev;
    struct pn_engine *en;
    struct pn_served *served;
};

struct pn_session {
    struct pn_llm *m;
    char key[24];
};

struct pn_gen {
    struct pn_llm *m;
    struct pn_request *r;
};

static int give(const struct fo_err *from, struct pn_error *e) {
    e->code = (enum pn_error_code)from->code;
    e->need = from->need;
    e->have = from->have;
    _Static_assert(sizeof e->message >= sizeof from->msg, "a message fits");
    memcpy(e->message, from->msg, sizeof from->msg);
    return (int)from->code;
}

static int no_memory(struct pn_error *e) {
    struct fo_err f;
    fo_fail(&f, FO_ENOMEM, "no memory for a handle");
    return give(&f, e);
}

/* --- models ---------------------------------------------------------------------------------- */
void pn_llm_options_init(struct pn_llm_options *o) {
    *o = (struct pn_llm_options){ 0 };
}

static struct pn_llm *llm_ref(struct pn_llm *m) {
    atomic_fetch_add(&m->refs, 1);
    return m;
}

static void llm_unref(struct pn_llm *m) {
    if (atomic_fetch_sub(&m->refs, 1) != 1) return;
    pn_served_put(m->served);
    pn_engine_free(m->en);
    fo_device_close(m->dev);
    free(m);
}

int pn_llm_load(const char *path, const struct pn_llm_options *options, struct pn_llm **ret, struct pn_error *e) {
    struct pn_llm_options o;
    struct fo_err f;
    pn_llm_options_init(&o);
    if (options) o = *options;
    struct pn_llm *m = calloc(1, sizeof *m);
    if (!m) return no_memory(e);
    atomic_init(&m->refs, 1);
    atomic_init(&m->n_sessions, 0);
    struct fo_device_opts dev = { .n_threads = o.threads, .exact = o.exact };
    int rc = o.threads < 0 ? fo_fail(&f, FO_EINVAL, "threads must be at least 0") : 0;
    if (rc == 0) rc = fo_device_open("cpu", "", &dev, &m->dev, &f);
    if (rc == 0) rc = pn_engine_new(&m->en, &f);
    if (rc == 0) {
        struct pn_serve_opts serve = { .name = name,
                                       .model = { .dev = m->dev,
                                                  .ctx_cap = o.ctx_cap,
                                                  .max_sessions = o.max_sessions,
                                                  .max_concurrent = o.max_concurrent,
                                                  .max_batch = o.max_batch,
                                                  .draft_rows = PN_DRAFT_MAX,
                                                  .kv_default = true,
                                                  .no_mmap = o.no_mmap,
                                                  .chat_template = o.chat_template },
                                       .queue_depth = o.queue_depth,
                                       .queue_timeout_ms = o.queue_timeout_ms };
        rc = pn_engine_load(m->en, path, &serve, &f);
    }
    if (rc != 0) {
        llm_unref(m);
        return give(&f, e);
    }
    m->served = pn_engine_get(m->en, name);
    *ret = m;
    return PN_OK;
}

void pn_llm_unload(struct pn_llm *m) {
    if (!m) return;
    struct fo_err f;
    (void)pn_engine_unload(m->en, name, 0, &f); /* it is there: only this call takes it out */
    llm_unref(m);
}

void pn_llm_info(const struct pn_llm *m, struct pn_llm_info *ret) {
    const struct pn_model_info *i = pn_model_info(pn_served_model(m->served));
    *ret = (struct pn_llm_info){ .architecture = i->arch,
                                 .name = i->name,
                                 .weight_type = i->ftype,
                                 .parameters = i->n_params,
                                 .file_bytes = i->file_bytes,
                                 .weight_bytes = i->weights_bytes,
                                 .kv_bytes = i->kv_bytes,
                                 .scratch_bytes = i->scratch_bytes,
                                 .vocabulary = i->n_vocab,
                                 .ctx_trained = i->n_ctx_train,
                                 .ctx_cap = i->ctx_cap,
                                 .max_sessions = i->max_sessions,
                                 .max_concurrent = i->max_concurrent,
                                 .has_tokenizer = i->has_tokenizer,
                                 .embedding_length = i->n_embd,
                                 .pooling = pn_pooling_name(i->pooling) };
}

int pn_llm_tokenize(const struct pn_llm *m, const char *text, size_t len, bool special, bool add, int32_t **ret_ids, size_t *ret_n,
                    struct pn_error *e) {
    struct pn_ids ids;
    struct fo_err f;
    if (pn_text_encode(pn_served_model(m->served), text, len, special, add, 0, &ids, &f) != 0) return give(&f, e);
    *ret_ids = ids.ids;
    *ret_n = ids.n;
    return PN_OK;
}

int pn_llm_detokenize(const struct pn_llm *m, const int32_t *ids, size_t n, bool special, char **ret_text, size_t *ret_len,
                      struct pn_error *e) {
    struct fo_buf out;
    struct fo_err f;
    fo_buf_init(&out, SIZE_MAX / 4);
    int rc = pn_text_decode(pn_served_model(m->served), ids, n, special, &out, &f);
    if (rc == 0 && !fo_buf_append(&out, "", 0)) rc = fo_fail(&f, FO_ENOMEM, "no memory for a text");
    if (rc != 0) {
        fo_buf_done(&out);
        return give(&f, e);
    }
    *ret_len = out.len;
    *ret_text = fo_buf_steal(&out);
    return PN_OK;
}

/* --- sessions -------------------------------------------------------------------------------- */
int pn_session_open(struct pn_llm *m, struct pn_session **ret, struct pn_error *e) {
    struct pn_session *s = calloc(1, sizeof *s);
    if (!s) return no_memory(e);
    s->m = llm_ref(m);
    snprintf(s->key, sizeof s->key, "%" PRIuFAST64, atomic_fetch_add(&m->n_sessions, 1));
    *ret = s;
    return PN_OK;
}

void pn_session_close(struct pn_session *s) {
    if (!s) return;
    pn_served_forget(s->m->served, s->key);
    llm_unref(s->m);
    free(s);
}

/* A caller's functions, or a file. */
struct stream {
    pn_write_fn *write;
    pn_read_fn *read;
    void *ctx;
    struct fo_outfile *out;
    FILE *in;
};

static int stream_write(void *ctx, const void *bytes, size_t n, struct fo_err *f) {
    const struct stream *x = ctx;
    if (x->out) return fo_outfile_write(x->out, bytes, n, f);
    return x->write(x->ctx, bytes, n) ? (int)fo_fail(f, FO_ECANCELLED, "the function that writes ended it") : 0;
}

static ptrdiff_t read_some(const struct stream *x, void *bytes, size_t n, struct fo_err *f) {
    if (!x->in) {
        ptrdiff_t k = x->read(x->ctx, bytes, n);
        if (k < 0 || (size_t)k > n) fo_fail(f, k < 0 ? FO_ECANCELLED : FO_EINVAL, k < 0 ? "the function that reads ended it" : "the function that reads gave more than it was asked for");
        return k < 0 || (size_t)k > n ? -1 : k;
    }
    size_t k = fread(bytes, 1, n, x->in);
    if (k == 0 && ferror(x->in)) {
        fo_fail_errno(f, errno, "cannot read a session");
        return -1;
    }
    return (ptrdiff_t)k;
}

static int stream_read(void *ctx, void *bytes, size_t n, struct fo_err *f) {
    for (unsigned char *p = bytes; n > 0;) {
        ptrdiff_t k = read_some(ctx, p, n, f);
        if (k < 0) return f->code;
        if (k == 0) return fo_fail(f, FO_EFORMAT, "the session is cut");
        p += k;
        n -= (size_t)k;
    }
    return 0;
}

static int stream_end(void *ctx, struct fo_err *f) {
    unsigned char more;
    ptrdiff_t k = read_some(ctx, &more, 1, f);
    return k < 0 ? (int)f->code : k > 0 ? (int)fo_fail(f, FO_EFORMAT, "something follows the session") : 0;
}

static int save(struct pn_session *s, struct stream *x, uint32_t *ret_tokens, struct fo_err *f) {
    const struct pn_blob_sink to = { .write = stream_write, .ctx = x };
    struct pn_text_info text;
    uint32_t n;
    int rc = pn_served_text(s->m->served, NULL, s->key, &text, f);
    if (rc == 0) rc = pn_served_save(s->m->served, text.id, &to, &n, f);
    if (rc == 0 && ret_tokens) *ret_tokens = n;
    return rc;
}

static int restore(struct pn_session *s, struct stream *x, uint32_t *ret_tokens, struct fo_err *f) {
    const struct pn_blob_source from = { .read = stream_read, .end = stream_end, .ctx = x };
    uint32_t n;
    int rc = pn_served_restore(s->m->served, NULL, s->key, &from, &n, NULL, f);
    if (rc == 0 && ret_tokens) *ret_tokens = n;
    return rc;
}

int pn_session_save(struct pn_session *s, pn_write_fn *write, void *ctx, uint32_t *ret_tokens, struct pn_error *e) {
    struct stream x = { .write = write, .ctx = ctx };
    struct fo_err f;
    return save(s, &x, ret_tokens, &f) ? give(&f, e) : PN_OK;
}

int pn_session_restore(struct pn_session *s, pn_read_fn *read, void *ctx, uint32_t *ret_tokens, struct pn_error *e) {
    struct stream x = { .read = read, .ctx = ctx };
    struct fo_err f;
    return restore(s, &x, ret_tokens, &f) ? give(&f, e) : PN_OK;
}

int pn_session_save_file(struct pn_session *s, const char *path, uint32_t *ret_tokens, struct pn_error *e) {
    struct stream x = { 0 };
    struct fo_err f;
    uint32_t n = 0;
    if (fo_outfile_open(path, true, 0, &x.out, &f)) return give(&f, e);
    if (save(s, &x, &n, &f)) {
        fo_outfile_drop(x.out);
        return give(&f, e);
    }
    if (fo_outfile_commit(x.out, &f)) return give(&f, e);
    if (ret_tokens) *ret_tokens = n;
    return PN_OK;
}

int pn_session_restore_file(struct pn_session *s, const char *path, uint32_t *ret_tokens, struct pn_error *e) {
    struct stream x = { .in = fopen(path, "rbe") };
    struct fo_err f;
    if (!x.in) {
        fo_fail_errno(&f, errno, "%s", path);
        return give(&f, e);
    }
    int rc = restore(s, &x, ret_tokens, &f);
    fclose(x.in);
    return rc ? give(&f, e) : PN_OK;
}

/* --- answers --------------------------------------------------------------------------------- */
void pn_gen_options_init(struct pn_gen_options *o) {
    *o = (struct pn_gen_options){ .temperature = pn_sampling_default.temperature,
                                  .top_p = pn_sampling_default.top_p,
                                  .repeat_penalty = pn_sampling_default.repeat_penalty,
                                  .repeat_last_n = 64 };
}

/* The prompt's tokens, on the heap. */
static int prompt_tokens(const struct pn_llm *m, const struct pn_gen_options *o, struct pn_ids *ret, struct fo_err *f) {
    const struct pn_model *model = pn_served_model(m->served);
    if ((o->prompt != NULL) + (o->messages_json != NULL) + (o->tokens != NULL) != 1)
        return fo_fail(f, FO_EINVAL, "exactly one of prompt, messages_json and tokens must be set");
    if (o->prompt) return pn_text_encode(model, o->prompt, strlen(o->prompt), false, true, 0, ret, f);
    if (o->messages_json) {
        struct pn_chat_input in = {
            .messages_json = o->messages_json, .tools_json = o->tools_json, .add_generation_prompt = true, .now = (int64_t)time(NULL)
        };
        return pn_text_encode_chat(model, &in, 0, ret, f);
    }
    if (o->n_tokens > UINT32_MAX) return fo_fail(f, FO_EINVAL, "n_tokens is too large");
    int32_t *ids = malloc(o->n_tokens ? o->n_tokens * sizeof *ids : 1);
    if (!ids) return fo_fail(f, FO_ENOMEM, "no memory for %zu tokens", o->n_tokens);
    memcpy(ids, o->tokens, o->n_tokens * sizeof *ids);
    *ret = (struct pn_ids){ .ids = ids, .n = (uint32_t)o->n_tokens };
    return 0;
}

int pn_gen_start(struct pn_session *s, const struct pn_gen_options *o, struct pn_gen **ret, struct pn_error *e) {
    struct fo_err f;
    struct pn_ids ids;
    struct pn_budget budget;
    struct pn_gen *g = calloc(1, sizeof *g);
    if (!g) return no_memory(e);
    if (prompt_tokens(s->m, o, &ids, &f) != 0) {
        free(g);
        return give(&f, e);
    }
    struct pn_request_opts r = { .tokens = ids.ids,
                                 .n_tokens = ids.n,
                                 .max_tokens = o->max_tokens,
                                 .sampling = { .temperature = o->temperature,
                                               .top_k = o->top_k,
                                               .top_p = o->top_p,
                                               .min_p = o->min_p,
                                               .repeat_penalty = o->repeat_penalty,
                                               .repeat_last_n = o->repeat_last_n,
                                               .presence_penalty = o->presence_penalty,
                                               .frequency_penalty = o->frequency_penalty,
                                               .seed = o->seed },
                                 .stops = o->stop,
                                 .n_stops = o->n_stop,
                                 .ignore_end = o->ignore_end,
                                 .session = s->key,
                                 .want_text = pn_model_info(pn_served_model(s->m->served))->has_tokenizer };
    int rc = pn_submit(s->m->served, &r, &g->r, &budget, &f);
    free(ids.ids);
    if (rc != 0) {
        free(g);
        return give(&f, e);
    }
    g->m = llm_ref(s->m);
    *ret = g;
    return PN_OK;
}

static struct pn_result result_of(const struct pn_event *ev) {
    return (struct pn_result){ .end = ev->finish == PN_FINISH_LENGTH ? PN_END_LENGTH : PN_END_STOP,
                               .prompt_tokens = ev->usage.prompt_tokens,
                               .cached_tokens = ev->usage.cached_tokens,
                               .completion_tokens = ev->usage.completion_tokens,
                               .queue_ms = ev->usage.queue_ms,
                               .prefill_ms = ev->usage.prefill_ms,
                               .decode_ms = ev->usage.decode_ms };
}

int pn_gen_next(struct pn_gen *g, int timeout_ms, struct pn_chunk *ret, struct pn_error *e) {
    struct pn_event ev;
    do {
        pn_request_next(g->r, timeout_ms, &ev);
    } while (ev.kind == PN_EV_STARTED);
    if (ev.kind == PN_EV_ERROR) return give(ev.err, e);
    *ret = (struct pn_chunk){ .kind = ev.kind == PN_EV_TEXT   ? PN_CHUNK_TEXT
                                      : ev.kind == PN_EV_DONE ? PN_CHUNK_END
                                                              : PN_CHUNK_NONE,
                              .text = ev.text,
                              .len = ev.text_len,
                              .token = ev.token,
                              .result = result_of(&ev) };
    return PN_OK;
}

void pn_gen_cancel(struct pn_gen *g) {
    pn_request_cancel(g->r);
}

void pn_gen_free(struct pn_gen *g) {
    if (!g) return;
    pn_request_release(g->r);
    llm_unref(g->m);
    free(g);
}

enum { WAIT_MS = 60000 };

/* The caller has heard enough: stops the answer and waits until it has, for its numbers. */
static struct pn_result cut_short(struct pn_gen *g) {
    struct pn_event ev;
    pn_request_cancel(g->r);
    do {
        pn_request_next(g->r, WAIT_MS, &ev);
    } while (ev.kind != PN_EV_DONE && ev.kind != PN_EV_ERROR);
    struct pn_result result = result_of(&ev);
    result.end = PN_END_CANCELLED;
    return result;
}

int pn_generate(struct pn_session *s, const struct pn_gen_options *o, pn_text_fn *fn, void *ctx, struct pn_result *ret, struct pn_error *e) {
    struct pn_gen *g;
    struct pn_chunk c;
    int rc = pn_gen_start(s, o, &g, e);
    if (rc != PN_OK) return rc;
    do {
        rc = pn_gen_next(g, WAIT_MS, &c, e);
        if (rc != PN_OK) break;
        if (c.kind == PN_CHUNK_TEXT && fn && fn(ctx, c.text, c.len, c.token) != 0) {
            c.result = cut_short(g);
            break;
        }
    } while (c.kind != PN_CHUNK_END);
    pn_gen_free(g);
    if (rc == PN_OK && ret) *ret = c.result;
    return rc;
}

/* --- embeddings ------------------------------------------------------------------------------ */
static int embed(struct pn_llm *m, const int32_t *tokens, size_t n_tokens, float *ret, size_t n, struct fo_err *f) {
    struct pn_budget budget;
    struct pn_request *r;
    struct pn_event ev;
    uint32_t length = pn_model_info(pn_served_model(m->served))->n_embd;
    if (n != length) return fo_fail_need(f, FO_EINVAL, n, length, "n is %zu, this model's vectors have %u numbers", n, length);
    if (n_tokens > UINT32_MAX) return fo_fail(f, FO_EINVAL, "n_tokens is too large");
    struct pn_request_opts o = { .tokens = tokens, .n_tokens = (uint32_t)n_tokens, .embed = true };
    if (pn_submit(m->served, &o, &r, &budget, f) != 0) return f->code;
    do {
        pn_request_next(r, WAIT_MS, &ev);
    } while (ev.kind != PN_EV_DONE && ev.kind != PN_EV_ERROR);
    int rc = ev.kind == PN_EV_DONE ? 0 : (int)ev.err->code;
    if (rc == 0) memcpy(ret, ev.embedding, n * sizeof *ret);
    else *f = *ev.err;
    pn_request_release(r);
    return rc;
}

int pn_llm_embed_tokens(struct pn_llm *m, const int32_t *tokens, size_t n_tokens, float *ret, size_t n, struct pn_error *e) {
    struct fo_err f;
    return embed(m, tokens, n_tokens, ret, n, &f) == 0 ? PN_OK : give(&f, e);
}

int pn_llm_embed(struct pn_llm *m, const char *text, size_t len, float *ret, size_t n, uint32_t *ret_tokens, struct pn_error *e) {
    struct fo_err f;
    struct pn_ids ids;
    if (pn_text_encode(pn_served_model(m->served), text, len, false, true, 0, &ids, &f) != 0) return give(&f, e);
    int rc = embed(m, ids.ids, ids.n, ret, n, &f);
    free(ids.ids);
    if (rc != 0) return give(&f, e);
    if (ret_tokens) *ret_tokens = ids.n;
    return PN_OK;
}
