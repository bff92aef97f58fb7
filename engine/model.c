/* Models: see model.h. How one opens (and what measuring leaves out):
 *
 *     gguf       the file is mapped and its header checked
 *     describe   name, architecture, types, counts: also of files that cannot be served
 *     probe      the family reads hyperparameters
 *     bind       names become fields, shapes and types checked
 *     lay out    measuring: how many bytes each part takes        <- pn_model_measure ends here
 *     place      the parts are allocated and laid out by the same function; weights are copied unless they stay in the file
 *     stream, tokenizer, chat template
 *
 * Memory, by part, each one block:
 *
 *     weights    device   every tensor, or nothing when the device reads them in the map
 *     kv         device   all pages; touched as sequences grow
 *     compute    device   activations and logits of one step
 *     host       heap     free pages, the rows of a step, and logits where the device's are out of reach
 */
#include "engine/model.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/bind.h"
#include "engine/chat.h"
#include "engine/family.h"
#include "engine/kv.h"
#include "engine/mem/budget.h"
#include "foundry/base/arena.h"
#include "foundry/base/err.h"
#include "foundry/base/file.h"
#include "foundry/device.h"
#include "foundry/gguf.h"
#include "foundry/tok.h"

enum {
    REGION_CAP_BYTES = 16 << 20, /* bound tensors and the family's structs: about 100 bytes a tensor */
    MAX_SESSIONS = 1 << 16,
    MAX_CONCURRENT = 1 << 10,
    MAX_BATCH = 1 << 16,
    DEFAULT_BATCH = 256,
    SHOWN = 128 /* bytes of general.name that are kept */
};

enum { WEIGHTS, KV, COMPUTE, HOST, N_PARTS };

struct part {
    struct fo_arena arena;
    uint64_t bytes;       /* as measured */
    unsigned char *block; /* device address; HOST: aligned into heap_block */
};

struct pn_model {
    struct pn_model_info info;
    char *path;
    char arch[SHOWN], name[SHOWN], tokenizer_error[sizeof ((struct fo_err *)0)->msg];
    struct fo_device *dev;
    struct fo_gguf *gguf;
    struct fo_tok *tok;
    struct pn_chat *chat;
    const struct pn_family *family;
    struct pn_hparams h;
    struct fo_region region;
    struct pn_bind bind;
    void *weights; /* the family's, in the region */
    bool in_place; /* weights are read where the file is mapped */
    struct pn_kv kv;
    struct part part[N_PARTS];
    void *heap_block;
    struct fo_stream *stream;
    uint64_t stream_bytes;
    /* the step under way */
    int32_t *ids, *pos;       /* [max_batch] */
    int32_t *wanted;          /* [logit_rows] */
    struct fo_attn_seq *seqs; /* [max_concurrent] */
    uint32_t *pages_before;   /* [max_concurrent] pages each sequence held, to give back what a failed step took */
    uint32_t logit_rows;
    float *host_logits; /* [logit_rows][n_vocab], or NULL: the device's are host memory */
    struct pn_buffers buf;
};

/* --- describe --- */

static void keep_text(const struct fo_gguf *g, const char *key, char out[SHOWN]) {
    struct fo_str s = { "", 0 };
    struct fo_err ignored; /* absent or no text: an empty name */
    if (fo_gguf_get_str(g, key, &s, &ignored)) s.len = 0;
    snprintf(out, SHOWN, "%.*s", (int)(s.len < SHOWN ? s.len : SHOWN - 1), s.s ? s.s : "");
}

static void describe(struct pn_model *m) {
    uint64_t elements[FO_N_DTYPES] = { 0 }, bytes = 0, all = 0;
    for (size_t i = 0, n = fo_gguf_n_tensors(m->gguf); i < n; i++) {
        const struct fo_gguf_tensor *t = fo_gguf_tensor_at(m->gguf, i);
        uint64_t count = (uint64_t)t->t.ne[0] * (uint64_t)fo_tensor_rows(&t->t);
        bytes += t->bytes;
        all += count;
        if (t->t.ne[1] > 1) elements[t->t.type] += count;
    }
    int most = 0;
    for (int i = 1; i < FO_N_DTYPES; i++)
        if (elements[i] > elements[most]) most = i;
    keep_text(m->gguf, "general.architecture", m->arch);
    keep_text(m->gguf, "general.name", m->name);
    m->info.arch = m->arch;
    m->info.name = m->name;
    m->info.path = m->path;
    m->info.ftype = fo_dtype_info((uint32_t)most)->name;
    m->info.n_params = all;
    m->info.weights_bytes = bytes;
    m->info.file_bytes = fo_gguf_file_bytes(m->gguf);
}

/* --- limits and layout --- */

static int limit(const char *what, uint32_t asked, uint32_t unset, uint32_t max, uint32_t *ret, struct fo_err *e) {
    if (asked > max) return fo_fail_need(e, FO_EINVAL, asked, max, "%s is %u, the most is %u", what, asked, max);
    *ret = asked ? asked : unset;
    return FO_OK;
}

static int choose_limits(struct pn_model *m, const struct pn_model_opts *o, struct fo_err *e) {
    struct pn_model_info *i = &m->info;
    if (pn_budget_ctx_cap(o->ctx_cap, m->h.n_ctx_train, &i->ctx_cap, e) ||
        limit("max_sessions", o->max_sessions, 1, MAX_SESSIONS, &i->max_sessions, e) ||
        limit("max_concurrent", o->max_concurrent, 1, MAX_CONCURRENT, &i->max_concurrent, e) ||
        limit("max_batch", o->max_batch, DEFAULT_BATCH, MAX_BATCH, &i->max_batch, e))
        return e->code;
    if (i->max_batch < i->max_concurrent) i->max_batch = i->max_concurrent; /* every sequence decodes at least one token a step */
    m->logit_rows = o->all_logits ? i->max_batch : i->max_concurrent;

    enum fo_dtype kv_type = !o->kv_default ? o->kv_type : m->dev->exact ? FO_F32 : FO_F16;
    if (kv_type != FO_F32 && kv_type != FO_F16)
        return fo_fail(e, FO_EUNSUPPORTED, "this build keeps KV as F32 or F16, not %s", fo_dtype_name(kv_type));
    m->kv = (struct pn_kv){
        .ctx_cap = i->ctx_cap,
        .geom = {
            .k_type = kv_type,
            .v_type = kv_type,
            .n_layer = (int)m->h.n_layer,
            .n_head = (int)m->h.n_head,
            .n_head_kv = (int)m->h.n_head_kv,
            .head_dim = (int)m->h.head_dim,
            .page_tokens = FO_KV_PAGE_TOKENS,
            .n_pages = pn_budget_pages(i->ctx_cap, i->max_sessions, FO_KV_PAGE_TOKENS),
            .scale = (float)(1.0 / sqrt((double)m->h.head_dim)),
            .window = m->h.window < i->ctx_cap ? (int)m->h.window : 0, /* a window that no sequence outgrows is none */
        },
    };
    m->kv.max_seq_pages = pn_kv_pages(&m->kv, i->ctx_cap);
    return FO_OK;
}

static int take_host(struct pn_model *m, uint64_t n, uint64_t size, void **ret, struct fo_err *e) {
    uint64_t off;
    if (fo_arena_take(&m->part[HOST].arena, n * size, 16, &off, e)) return e->code;
    *ret = fo_arena_ptr(&m->part[HOST].arena, off);
    return FO_OK;
}

/* THE layout: over measuring arenas for the sizes, over the blocks for the addresses. */
static int lay_out(struct pn_model *m, struct fo_err *e) {
    struct part *p = m->part;
    const struct pn_model_info *i = &m->info;
    void *ids = NULL, *pos = NULL, *wanted = NULL, *seqs = NULL, *before = NULL, *logits = NULL;
    if ((!m->in_place && pn_bind_layout(&m->bind, &p[WEIGHTS].arena, e)) ||
        pn_kv_layout(&m->kv, &p[HOST].arena, &p[KV].arena, p[KV].block, e) ||
        m->family->layout(&m->h, (int)i->max_batch, (int)m->logit_rows, &p[COMPUTE].arena, p[COMPUTE].block, &m->buf, e) ||
        take_host(m, i->max_batch, sizeof *m->ids, &ids, e) || take_host(m, i->max_batch, sizeof *m->pos, &pos, e) ||
        take_host(m, m->logit_rows, sizeof *m->wanted, &wanted, e) || take_host(m, i->max_concurrent, sizeof *m->seqs, &seqs, e) ||
        take_host(m, i->max_concurrent, sizeof *m->pages_before, &before, e) ||
        (!m->dev->weights_in_place && take_host(m, (uint64_t)m->logit_rows * m->h.n_vocab, sizeof(float), &logits, e)))
        return e->code;
    m->ids = ids;
    m->pos = pos;
    m->wanted = wanted;
    m->seqs = seqs;
    m->pages_before = before;
    m->host_logits = logits;
    return FO_OK;
}

static int measure(struct pn_model *m, struct fo_err *e) {
    for (int i = 0; i < N_PARTS; i++) fo_arena_init_measure(&m->part[i].arena);
    if (lay_out(m, e)) return e->code;
    for (int i = 0; i < N_PARTS; i++) m->part[i].bytes = m->part[i].arena.used;
    m->stream_bytes = m->dev->stream_bytes(m->dev, (int)m->info.max_batch, m->bind.max_k, m->info.ctx_cap);

    struct pn_model_info *i = &m->info;
    uint64_t page_bytes = fo_kv_page_bytes(&m->kv.geom);
    i->page_tokens = (uint32_t)m->kv.geom.page_tokens;
    i->n_pages = m->kv.geom.n_pages;
    i->kv_bytes = m->part[KV].bytes;
    i->kv_bytes_per_token = (page_bytes + i->page_tokens - 1) / i->page_tokens;
    i->scratch_bytes = m->part[COMPUTE].bytes + m->part[HOST].bytes + m->stream_bytes;
    return FO_OK;
}

/* From the mapped file to the measured layout. m->info is filled as far as this came. */
static int prepare(struct pn_model *m, const struct pn_model_opts *o, struct fo_err *e) {
    describe(m);
    m->family = pn_family_find(m->arch, strlen(m->arch));
    if (!m->family) {
        char list[128];
        if (!m->arch[0]) return fo_fail(e, FO_EFORMAT, "general.architecture is missing: this is no language model");
        return fo_fail(e, FO_EUNSUPPORTED, "architecture \"%s\" is not one that this build serves (%s)", m->arch,
                       pn_family_list(list, sizeof list));
    }
    if (m->family->probe(m->gguf, &m->h, e)) return e->code;
    m->info.n_vocab = m->h.n_vocab;
    m->info.n_ctx_train = m->h.n_ctx_train;
    m->info.n_layer = m->h.n_layer;
    m->info.n_embd = m->h.n_embd;
    m->info.n_head = m->h.n_head;
    m->info.n_head_kv = m->h.n_head_kv;
    if (pn_bind_init(&m->bind, m->gguf, m->dev, &m->region, e) || m->family->bind(&m->bind, &m->h, &m->weights, e) ||
        pn_bind_complete(&m->bind, m->arch, e) || choose_limits(m, o, e) || measure(m, e))
        return e->code;
    return FO_OK;
}

/* --- place --- */

static int allocate(struct pn_model *m, struct fo_err *e) {
    static const char *const names[] = { "weights", "kv", "compute", "host" };
    uint64_t total, have;
    struct pn_need need = { m->part[WEIGHTS].bytes, m->part[KV].bytes, m->part[COMPUTE].bytes + m->stream_bytes };
    if (m->dev->memory(m->dev, &total, &have, e) || pn_budget_fit(&need, have, e)) return e->code;
    for (int i = WEIGHTS; i <= COMPUTE; i++) {
        struct part *p = &m->part[i];
        void *block;
        if (!p->bytes) continue;
        if (m->dev->alloc(m->dev, p->bytes, &block, e)) return fo_wrap(e, "%s", names[i]);
        p->block = block;
        /* Only memory that the host can touch gets redzones (debug builds). */
        if (m->dev->weights_in_place)
            fo_arena_init_host(&p->arena, p->block, p->bytes);
        else
            fo_arena_init_device(&p->arena, p->bytes);
    }
    struct part *host = &m->part[HOST];
    m->heap_block = calloc(1, host->bytes + 64);
    if (!m->heap_block) return fo_fail_need(e, FO_ENOMEM, host->bytes + 64, 0, "host: no memory for the rows of a step");
    host->block = (unsigned char *)(((uintptr_t)m->heap_block + 63) & ~(uintptr_t)63);
    fo_arena_init_host(&host->arena, host->block, host->bytes);

    if (lay_out(m, e)) return e->code;
    for (int i = 0; i < N_PARTS; i++)
        if (m->part[i].bytes && m->part[i].arena.used != m->part[i].bytes)
            return fo_fail_need(e, FO_EINTERNAL, m->part[i].arena.used, m->part[i].bytes, "%s: laid out otherwise than measured", names[i]);
    pn_kv_clear(&m->kv);
    return FO_OK;
}

/* The tokenizer may be one that this build lacks: the model then takes and gives tokens only. */
static int open_text(struct pn_model *m, const char *chat_template, struct fo_err *e) {
    struct fo_err why;
    int32_t n_tokens = 0;
    if (fo_tok_open(m->gguf, &m->tok, &why) == FO_OK) {
        n_tokens = fo_tok_n_vocab(m->tok);
        if ((uint32_t)n_tokens <= m->h.n_vocab) {
            m->info.has_tokenizer = true;
            return pn_chat_open(m->gguf, m->tok, chat_template, &m->chat, e);
        }
        fo_fail(&why, FO_EFORMAT, "the tokenizer has %d tokens, the embedding %u", n_tokens, m->h.n_vocab);
        fo_tok_free(m->tok);
        m->tok = NULL;
    }
    if (why.code == FO_ENOMEM) {
        *e = why;
        return e->code;
    }
    snprintf(m->tokenizer_error, sizeof m->tokenizer_error, "%s", why.msg);
    m->info.tokenizer_error = m->tokenizer_error;
    return FO_OK;
}

static int start(const char *path, const struct pn_model_opts *o, struct pn_model **ret, struct fo_err *e) {
    struct pn_model *m = calloc(1, sizeof *m);
    if (!m || !(m->path = strdup(path))) {
        free(m);
        return fo_fail(e, FO_ENOMEM, "%s: no memory for a model", path);
    }
    m->dev = o->dev;
    m->in_place = o->dev->weights_in_place && !o->no_mmap;
    fo_region_init(&m->region, REGION_CAP_BYTES);
    if (fo_gguf_open(path, &m->gguf, e)) {
        pn_model_free(m);
        return e->code;
    }
    *ret = m;
    return FO_OK;
}

int pn_model_open(const char *path, const struct pn_model_opts *o, struct pn_model **ret, struct fo_err *e) {
    struct pn_model *m;
    if (start(path, o, &m, e)) return e->code;
    if (prepare(m, o, e) || allocate(m, e) || (!m->in_place && pn_bind_upload(&m->bind, m->part[WEIGHTS].block, e)) ||
        m->dev->stream_open(m->dev, (int)m->info.max_batch, m->bind.max_k, m->info.ctx_cap, &m->stream, e) ||
        open_text(m, o->chat_template, e) || pn_model_state(m, e)) {
        pn_model_free(m);
        return fo_wrap(e, "%s", path);
    }
    *ret = m;
    return FO_OK;
}

void pn_model_free(struct pn_model *m) {
    if (!m) return;
    assert(!m->stream || m->kv.n_free == m->kv.geom.n_pages); /* a sequence outlived its model */
    for (int i = 0; i < N_PARTS; i++) assert(!m->stream || fo_arena_check(&m->part[i].arena)); /* a kernel wrote past its buffer */
    pn_chat_free(m->chat);
    fo_tok_free(m->tok);
    if (m->stream) m->dev->stream_close(m->stream);
    for (int i = WEIGHTS; i <= COMPUTE; i++)
        if (m->part[i].block) m->dev->free(m->dev, m->part[i].block, m->part[i].bytes);
    free(m->heap_block);
    fo_region_done(&m->region);
    fo_gguf_close(m->gguf);
    free(m->path);
    free(m);
}

int pn_model_measure(const char *path, const struct pn_model_opts *o, struct pn_model_info *ret, char *ret_why, size_t why_size,
                     struct fo_err *e) {
    static _Thread_local char arch[SHOWN], name[SHOWN];
    struct pn_model *m;
    struct fo_err why;
    if (start(path, o, &m, e)) return e->code;
    int rc = prepare(m, o, &why);
    if (rc == FO_ENOMEM) {
        pn_model_free(m);
        *e = why;
        return fo_wrap(e, "%s", path);
    }
    if (why_size) snprintf(ret_why, why_size, "%s", rc ? why.msg : "");
    *ret = m->info;
    memcpy(arch, m->arch, sizeof arch);
    memcpy(name, m->name, sizeof name);
    ret->path = path;
    ret->arch = arch;
    ret->name = name;
    pn_model_free(m);
    return FO_OK;
}

/* --- questions --- */

const struct pn_model_info *pn_model_info(const struct pn_model *m) {
    return &m->info;
}

const struct fo_gguf *pn_model_gguf(const struct pn_model *m) {
    return m->gguf;
}

const struct fo_tok *pn_model_tok(const struct pn_model *m) {
    return m->tok;
}

const struct pn_chat *pn_model_chat(const struct pn_model *m) {
    return m->chat;
}

int pn_model_state(const struct pn_model *m, struct fo_err *e) {
    return fo_map_state(fo_gguf_map(m->gguf), e);
}

uint64_t pn_model_free_pages(const struct pn_model *m) {
    return m->kv.n_free;
}

int pn_seq_new(struct pn_model *m, struct pn_seq **ret, struct fo_err *e) {
    return pn_kv_seq_new(&m->kv, ret, e);
}

/* --- the forward pass --- */

static int check_batch(const struct pn_model *m, const struct pn_batch_item *items, int n_items, struct fo_err *e) {
    uint64_t rows = 0, wanted = 0;
    if (n_items < 1 || (uint32_t)n_items > m->info.max_concurrent)
        return fo_fail(e, FO_EINVAL, "a step of %d sequences, expected 1 to %u", n_items, m->info.max_concurrent);
    for (int i = 0; i < n_items; i++) {
        const struct pn_batch_item *it = &items[i];
        if (it->seq->kv != &m->kv) return fo_fail(e, FO_EINTERNAL, "sequence %d of a step belongs to another model", i);
        for (int j = 0; j < i; j++)
            if (items[j].seq == it->seq) return fo_fail(e, FO_EINTERNAL, "sequence %d of a step is also its sequence %d", i, j);
        if (it->n == 0) return fo_fail(e, FO_EINVAL, "sequence %d of a step has no tokens", i);
        rows += it->n;
        wanted += it->want == PN_WANT_ALL ? it->n : it->want == PN_WANT_LAST;
    }
    if (rows > m->info.max_batch)
        return fo_fail_need(e, FO_EINVAL, rows, m->info.max_batch, "a step of %llu tokens, the most is %u", (unsigned long long)rows, m->info.max_batch);
    if (wanted > m->logit_rows)
        return fo_fail_need(e, FO_EINVAL, wanted, m->logit_rows, "logits of %llu rows are wanted, the model was opened for %u",
                            (unsigned long long)wanted, m->logit_rows);
    for (int i = 0; i < n_items; i++)
        for (uint32_t j = 0; j < items[i].n; j++)
            if ((uint32_t)items[i].tokens[j] >= m->h.n_vocab)
                return fo_fail(e, FO_EINVAL, "token %d at %u is outside the vocabulary of %u", items[i].tokens[j], j, m->h.n_vocab);
    return FO_OK;
}

/* Rows in item order: ids, positions, and which of them the output is asked for. */
static void fill_rows(struct pn_model *m, const struct pn_batch_item *items, int n_items, struct pn_step *s) {
    int row = 0, wanted = 0;
    for (int i = 0; i < n_items; i++) {
        const struct pn_batch_item *it = &items[i];
        m->seqs[i] = (struct fo_attn_seq){ .row = row, .n = (int)it->n, .pos = (int32_t)it->seq->len, .pages = it->seq->pages };
        for (uint32_t j = 0; j < it->n; j++, row++) {
            m->ids[row] = it->tokens[j];
            m->pos[row] = (int32_t)(it->seq->len + j);
            if (it->want == PN_WANT_ALL || (it->want == PN_WANT_LAST && j + 1 == it->n)) m->wanted[wanted++] = row;
        }
    }
    *s = (struct pn_step){
        .stream = m->stream,
        .h = &m->h,
        .kv = &m->kv.geom,
        .n_rows = row,
        .ids = m->ids,
        .pos = m->pos,
        .batch = { .seqs = m->seqs, .n_seqs = n_items, .n_rows = row },
        .wanted = m->wanted,
        .n_wanted = wanted,
        .buf = m->buf,
    };
}

static int compute(struct pn_model *m, const struct pn_step *s, float **ret_logits, struct fo_err *e) {
    if (m->family->forward(m->weights, s, e) || m->dev->sync(m->stream, e)) return e->code;
    float *logits = s->buf.logits;
    if (m->host_logits && s->n_wanted) {
        uint64_t bytes = (uint64_t)s->n_wanted * m->h.n_vocab * sizeof *logits;
        if (m->dev->download(m->dev, m->host_logits, logits, bytes, e)) return e->code;
        logits = m->host_logits;
    }
    *ret_logits = logits;
    return FO_OK;
}

int pn_model_forward(struct pn_model *m, const struct pn_batch_item *items, int n_items, float **ret_logits, struct fo_err *e) {
    struct pn_step s;
    int reserved = 0;
    if (check_batch(m, items, n_items, e)) return e->code;
    for (; reserved < n_items; reserved++) {
        struct pn_seq *q = items[reserved].seq;
        m->pages_before[reserved] = q->n_pages;
        if (pn_seq_reserve(q, q->len + items[reserved].n, e)) goto undo;
    }
    fill_rows(m, items, n_items, &s);
    if (compute(m, &s, ret_logits, e)) goto undo;
    for (int i = 0; i < n_items; i++) {
        struct pn_seq *q = items[i].seq;
        memcpy(q->tokens + q->len, items[i].tokens, items[i].n * sizeof *q->tokens);
        q->len += items[i].n;
    }
    return FO_OK;
undo:
    while (reserved-- > 0) pn_kv_seq_shrink(items[reserved].seq, m->pages_before[reserved]);
    return e->code;
}
