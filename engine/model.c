/* Models: see model.h; the forward pass is in forward.c. How one opens (and what measuring leaves out):
 *
 *     gguf       the file is mapped and its header checked
 *     describe   name, architecture, types, counts: also of files that cannot be served
 *     probe      the family reads hyperparameters
 *     bind       names become fields, shapes and types checked
 *     lay out    measuring: how many bytes each part takes        <- pn_model_measure ends here
 *     place      the parts are allocated and laid out by the same function; weights are copied unless they stay in the file
 *     stream, tokenizer, chat template
 *
 * Memory, each one block:
 *
 *     weights    die      the tensors of its layers, or, when it reads them in the map, only those that it cannot read there
 *     kv         die      all pages, and blocks of recurrent state, of its layers; touched as sequences grow
 *     compute    die      activations of one step, and logits on the last die
 *     host       heap     free pages and who holds the others, the rows of a step, logits and states where the die's are out of reach, what is carried between dies
 */
#include "engine/model_impl.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "engine/chat.h"
#include "engine/embed.h"
#include "engine/mem/budget.h"
#include "foundry/base/hash.h"
#include "foundry/device.h"
#include "foundry/gguf.h"
#include "foundry/model_file.h"
#include "foundry/tok.h"

enum {
    REGION_CAP_BYTES = 16 << 20, /* bound tensors and the family's structs: about 100 bytes a tensor */
    MAX_SESSIONS = 1 << 16,
    MAX_CONCURRENT = 1 << 10,
    MAX_BATCH = 1 << 16,
    DEFAULT_BATCH = 256
};

/* --- describe --- */

static void keep_text(const struct fo_gguf *g, const char *key, char out[PN_SHOWN]) {
    struct fo_str s = { "", 0 };
    struct fo_err ignored; /* absent or no text: an empty name */
    if (fo_gguf_get_str(g, key, &s, &ignored)) s.len = 0;
    snprintf(out, PN_SHOWN, "%.*s", (int)(s.len < PN_SHOWN ? s.len : PN_SHOWN - 1), s.s ? s.s : "");
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

static int check_kv_type(const struct pn_model *m, enum fo_dtype type, struct fo_err *e) {
    if (type != FO_F32 && type != FO_F16 && type != FO_Q8_0 && type != FO_Q4_0)
        return fo_fail(e, FO_EUNSUPPORTED, "KV is kept as F32, F16, Q8_0 or Q4_0, not %s", fo_dtype_name(type));
    if (m->h.head_dim % fo_dtype_info(type)->block)
        return fo_fail(e, FO_EUNSUPPORTED,
                       "KV of %s needs heads of a multiple of %d dimensions, this model's have %u: keep it as f16 (kv.type in the manifest, --kv)",
                       fo_dtype_name(type), (int)fo_dtype_info(type)->block, m->h.head_dim);
    return FO_OK;
}

/* What KV of a type may be turned into: the floor where that takes less. */
static enum fo_dtype choose_floor(const struct pn_model *m, enum fo_dtype type, enum fo_dtype floor) {
    struct fo_err ignored;
    const struct fo_dtype_info *t = fo_dtype_info(type), *f = fo_dtype_info(floor);
    if (check_kv_type(m, floor, &ignored)) return type;
    return f->block_bytes * t->block < t->block_bytes * f->block ? floor : type;
}

static int choose_kv_types(struct pn_model *m, const struct pn_model_opts *o, struct fo_err *e) {
    struct pn_model_info *i = &m->info;
    i->k_type = i->v_type = m->part[0].dev->exact ? FO_F32 : FO_F16;
    if (!o->kv_default) {
        i->k_type = o->k_type;
        i->v_type = o->v_type;
    }
    if (check_kv_type(m, i->k_type, e) || check_kv_type(m, i->v_type, e)) return e->code;
    i->k_floor = o->has_floor ? choose_floor(m, i->k_type, o->k_floor) : i->k_type;
    i->v_floor = o->has_floor ? choose_floor(m, i->v_type, o->v_floor) : i->v_type;
    return FO_OK;
}

static int choose_limits(struct pn_model *m, const struct pn_model_opts *o, struct fo_err *e) {
    struct pn_model_info *i = &m->info;
    i->ctx_cap = m->h.ctx_cap;
    if (limit("max_sessions", o->max_sessions, 1, MAX_SESSIONS, &i->max_sessions, e) ||
        limit("max_concurrent", o->max_concurrent, 1, MAX_CONCURRENT, &i->max_concurrent, e) ||
        limit("max_batch", o->max_batch, DEFAULT_BATCH, MAX_BATCH, &i->max_batch, e))
        return e->code;
    if (i->max_batch < i->max_concurrent) i->max_batch = i->max_concurrent; /* every sequence decodes at least one token a step */
    if (o->draft_rows > MAX_BATCH)
        return fo_fail_need(e, FO_EINVAL, o->draft_rows, MAX_BATCH, "draft_rows is %u, the most is %u", o->draft_rows, (unsigned)MAX_BATCH);
    m->draft_rows = o->draft_rows;
    m->logit_rows = i->max_concurrent + o->draft_rows;
    if (o->all_logits || m->logit_rows > i->max_batch) m->logit_rows = i->max_batch;
    i->logit_rows = m->logit_rows;

    if (choose_kv_types(m, o, e)) return e->code;
    m->kv = (struct pn_kv){
        .ctx_cap = i->ctx_cap,
        .page_tokens = FO_KV_PAGE_TOKENS,
    };
    uint32_t window = m->h.window < i->ctx_cap ? m->h.window : 0; /* a window that no sequence outgrows is none */
    m->kv.max_seq_pages = pn_kv_pages(&m->kv, i->ctx_cap);
    pn_kv_set_window(&m->kv, window, i->max_batch);
    m->kv.n_pages = (uint64_t)m->kv.held_pages * i->max_sessions;
    if (o->kv_overcommit > 100) m->kv.n_pages = (m->kv.n_pages * 100 + o->kv_overcommit - 1) / o->kv_overcommit;
    if (m->kv.n_pages < m->kv.held_pages) m->kv.n_pages = m->kv.held_pages; /* whoever is alone may have all of ctx_cap */
    if (m->h.state_bytes) m->kv.states = (struct pn_states){ .n_blocks = i->max_concurrent + PN_SEQ_BLOCKS * i->max_sessions, .n_float = i->max_concurrent };
    for (int p = 0; p < m->n_parts; p++)
        m->part[p].kv = (struct fo_kv_geom){
            .k_type = i->k_type,
            .v_type = i->v_type,
            .k_floor = i->k_floor,
            .v_floor = i->v_floor,
            .n_layer = (int)(m->part[p].end_layer - m->part[p].first_layer),
            .n_head = (int)m->h.n_head,
            .n_head_kv = (int)m->h.n_head_kv,
            .head_dim = (int)m->h.head_dim,
            .page_tokens = FO_KV_PAGE_TOKENS,
            .n_pages = m->kv.n_pages,
            .scale = (float)(1.0 / sqrt((double)m->h.head_dim)),
            .window = (int)window,
        };
    m->kv.n_small = fo_kv_small(&m->part[0].kv); /* the same on all dies: it follows from types, heads and pages */
    return FO_OK;
}

const char *pn_kv_type_name(enum fo_dtype type) {
    return type == FO_F32 ? "f32" : type == FO_Q8_0 ? "q8_0" : type == FO_Q4_0 ? "q4_0" : "f16";
}

static bool kv_type_of(const char *name, size_t n, enum fo_dtype *ret) {
    static const enum fo_dtype types[] = { FO_F32, FO_F16, FO_Q8_0, FO_Q4_0 };
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (strncasecmp(name, fo_dtype_name(types[i]), n) == 0 && fo_dtype_name(types[i])[n] == '\0') {
            *ret = types[i];
            return true;
        }
    return false;
}

int pn_kv_type_parse(const char *name, struct pn_model_opts *o, struct fo_err *e) {
    enum fo_dtype type[2]; /* of keys, of values */
    bool has[2] = { false, false };
    if (kv_type_of(name, strlen(name), &type[0])) {
        has[0] = has[1] = true;
        type[1] = type[0];
    }
    for (const char *p = name; !(has[0] && has[1]);) {
        size_t n = strcspn(p, ",");
        int which = strncasecmp(p, "k=", 2) == 0 ? 0 : strncasecmp(p, "v=", 2) == 0 ? 1 : -1;
        if (which < 0 || has[which] || !kv_type_of(p + 2, n - 2, &type[which]) || (p[n] == ',') != !has[!which])
            return fo_fail(e, FO_EINVAL, "'%s' is no type of a KV cache: f32, f16, q8_0 or q4_0, or of keys and values apart, as in k=q8_0,v=q4_0", name);
        has[which] = true;
        p += n + (p[n] == ',');
    }
    o->k_type = type[0];
    o->v_type = type[1];
    o->kv_default = false;
    return FO_OK;
}

/* Which layers go where: the caller's parts are checked, none is one. */
static int choose_parts(struct pn_model *m, const struct pn_model_opts *o, struct fo_err *e) {
    const struct pn_model_part whole = { o->dev, 0, m->h.n_layer }, *parts = o->n_parts ? o->parts : &whole;
    m->n_parts = o->n_parts ? o->n_parts : 1;
    uint64_t at = 0;
    for (int i = 0; i < m->n_parts; i++) {
        const struct pn_model_part *p = &parts[i];
        if (p->first_layer != at || p->n_layers == 0 || p->n_layers > m->h.n_layer)
            return fo_fail(e, FO_EINVAL, "part %d of %d has %u layers from %u on, expected to go on from %llu", i + 1, m->n_parts, p->n_layers,
                           p->first_layer, (unsigned long long)at);
        if (p->dev->exact != parts[0].dev->exact) return fo_fail(e, FO_EINVAL, "part %d is on a die that is exact, or not, unlike the first", i + 1);
        at += p->n_layers;
        m->part[i] = (struct pn_part){ .dev = p->dev, .first_layer = p->first_layer, .end_layer = (uint32_t)at,
                                       .in_place = p->dev->weights_in_place && !o->no_mmap };
        m->bind_dies[i] = (struct pn_bind_die){ p->dev, (int)at };
    }
    if (at != m->h.n_layer)
        return fo_fail_need(e, FO_EINVAL, m->h.n_layer, at, "the parts have %llu layers, the model %u", (unsigned long long)at, m->h.n_layer);
    return FO_OK;
}

static int take_host(struct pn_model *m, uint64_t n, uint64_t size, void **ret, struct fo_err *e) {
    uint64_t off;
    if (fo_arena_take(&m->host, n * size, 16, &off, e)) return e->code;
    *ret = fo_arena_ptr(&m->host, off);
    return FO_OK;
}

/* A million blocks of less than 2^42 bytes stay within 64 bits. */
uint64_t pn_model_state_bytes(const struct pn_model *m, uint32_t n_layers) {
    return (uint64_t)m->h.state_bytes * n_layers;
}

static int lay_out_part(struct pn_model *m, int i, struct fo_err *e) {
    struct pn_part *p = &m->part[i];
    int logit_rows = i + 1 == m->n_parts ? (int)m->logit_rows : 0;
    if (pn_bind_layout(&m->bind, i, p->in_place, &p->block[PN_WEIGHTS].arena, e) ||
        pn_kv_pool_layout(&p->kv, m->kv.states.n_blocks * pn_model_state_bytes(m, p->end_layer - p->first_layer), &p->block[PN_KV].arena,
                          p->block[PN_KV].data, &p->states, e) ||
        m->family->layout(&m->h, (int)m->info.max_batch, logit_rows, &p->block[PN_COMPUTE].arena, p->block[PN_COMPUTE].data, &p->buf, e))
        return e->code;
    return FO_OK;
}

/* THE layout: over measuring arenas for the sizes, over the blocks for the addresses. */
static int lay_out(struct pn_model *m, struct fo_err *e) {
    const struct pn_model_info *i = &m->info;
    void *ids = NULL, *pos = NULL, *wanted = NULL, *stated = NULL, *seqs = NULL, *tokens = NULL, *before = NULL, *logits = NULL, *carried = NULL, *share = NULL, *row = NULL, *scale = NULL, *from = NULL, *to = NULL;
    for (int p = 0; p < m->n_parts; p++)
        if (lay_out_part(m, p, e)) return e->code;
    if (pn_kv_layout(&m->kv, &m->host, e) ||
        take_host(m, i->max_batch, sizeof *m->ids, &ids, e) || take_host(m, i->max_batch, sizeof *m->pos, &pos, e) ||
        take_host(m, m->logit_rows, sizeof *m->wanted, &wanted, e) ||
        take_host(m, i->max_batch, sizeof *m->stated, &stated, e) || take_host(m, i->max_concurrent, sizeof *m->seqs, &seqs, e) ||
        take_host(m, i->max_concurrent, sizeof *m->tokens, &tokens, e) ||
        take_host(m, i->max_concurrent, sizeof *m->pages_before, &before, e) ||
        (m->kv.states.n_blocks && (take_host(m, i->max_concurrent, sizeof *m->states_from, &from, e) || take_host(m, i->max_concurrent, sizeof *m->states_to, &to, e))) ||
        (!m->part[m->n_parts - 1].dev->weights_in_place && take_host(m, (uint64_t)m->logit_rows * m->h.n_vocab, sizeof(float), &logits, e)) ||
        (m->h.n_expert && (take_host(m, (uint64_t)i->max_batch * m->h.n_expert, sizeof(float), &share, e) ||
                           take_host(m, i->max_batch, sizeof *m->routes.row, &row, e) || take_host(m, i->max_batch, sizeof(float), &scale, e))) ||
        ((m->n_parts > 1 || !m->part[0].dev->weights_in_place) && take_host(m, (uint64_t)i->max_batch * m->h.n_embd, sizeof(float), &carried, e)))
        return e->code;
    m->ids = ids;
    m->pos = pos;
    m->wanted = wanted;
    m->stated = stated;
    m->seqs = seqs;
    m->tokens = tokens;
    m->pages_before = before;
    m->states_from = from;
    m->states_to = to;
    m->host_logits = logits;
    m->carried = carried;
    m->routes = (struct pn_routes){ share, row, scale };
    return FO_OK;
}

/* What the weights of a part take, or would take. */
static int weights_bytes(struct pn_model *m, int i, uint64_t *ret, struct fo_err *e) {
    struct fo_arena a;
    fo_arena_init_measure(&a);
    if (pn_bind_layout(&m->bind, i, false, &a, e)) return e->code;
    *ret = a.used;
    return FO_OK;
}

static int measure(struct pn_model *m, struct fo_err *e) {
    struct pn_model_info *i = &m->info;
    fo_arena_init_measure(&m->host);
    for (int p = 0; p < m->n_parts; p++)
        for (int k = 0; k < PN_N_BLOCKS; k++) fo_arena_init_measure(&m->part[p].block[k].arena);
    if (lay_out(m, e)) return e->code;
    m->host_bytes = i->scratch_bytes = i->host_bytes = m->host.used;
    i->page_tokens = m->kv.page_tokens;
    i->seq_pages = m->kv.held_pages;
    i->n_pages = m->kv.n_pages;
    i->n_parts = m->n_parts;
    uint64_t page_bytes = 0;
    for (int n = 0; n < m->n_parts; n++) {
        struct pn_part *p = &m->part[n];
        for (int k = 0; k < PN_N_BLOCKS; k++) p->block[k].bytes = p->block[k].arena.used;
        p->stream_bytes = p->dev->stream_bytes(p->dev, (int)i->max_batch, m->bind.max_k, i->ctx_cap);
        i->parts[n] = (struct pn_part_info){ .dev = p->dev, .first_layer = p->first_layer, .n_layers = p->end_layer - p->first_layer, .mapped = p->in_place,
                                             .kv_bytes = p->block[PN_KV].bytes, .scratch_bytes = p->block[PN_COMPUTE].bytes + p->stream_bytes };
        if (weights_bytes(m, n, &i->parts[n].weights_bytes, e)) return e->code;
        i->kv_bytes += i->parts[n].kv_bytes;
        i->state_bytes += m->kv.states.n_blocks * pn_model_state_bytes(m, i->parts[n].n_layers);
        i->scratch_bytes += i->parts[n].scratch_bytes;
        page_bytes += fo_kv_page_bytes(&p->kv);
    }
    i->kv_bytes_per_token = (page_bytes + i->page_tokens - 1) / i->page_tokens;
    return FO_OK;
}

/* From the mapped file to the measured layout. m->info is filled as far as this came. */
int pn_model_prepare(struct pn_model *m, const struct pn_model_opts *o, struct fo_err *e) {
    describe(m);
    m->family = pn_family_find(m->arch, strlen(m->arch));
    if (!m->family) {
        char list[128];
        if (!m->arch[0]) return fo_fail(e, FO_EFORMAT, "general.architecture is missing: this is no language model");
        return fo_fail(e, FO_EUNSUPPORTED, "architecture \"%s\" is not one that this build serves (%s)", m->arch,
                       pn_family_list(list, sizeof list));
    }
    if (m->family->probe(m->gguf, &m->h, e)) return e->code;
    if (pn_pooling_probe(m->gguf, m->arch, &m->info.pooling, e)) return e->code;
    m->info.n_vocab = m->h.n_vocab;
    m->info.n_ctx_train = m->h.n_ctx_train;
    m->info.n_layer = m->h.n_layer;
    m->info.n_embd = m->h.n_embd;
    m->info.n_head = m->h.n_head;
    m->info.n_head_kv = m->h.n_head_kv;
    uint32_t longest = m->h.n_ctx_train;
    if (o->ctx_cap && m->h.rope.n_ctx_reach > longest) longest = m->h.rope.n_ctx_reach; /* for who asks: the default stays below what was trained */
    if (pn_budget_ctx_cap(o->ctx_cap, longest, &m->h.ctx_cap, e) || choose_parts(m, o, e) ||
        pn_bind_init(&m->bind, m->gguf, m->bind_dies, m->n_parts, &m->region, e) || m->family->bind(&m->bind, &m->h, &m->weights, e) ||
        pn_bind_complete(&m->bind, m->arch, e) || choose_limits(m, o, e) || measure(m, e))
        return e->code;
    return FO_OK;
}

/* --- place --- */

static int allocate_part(struct pn_part *p, struct fo_err *e) {
    static const char *const names[] = { "weights", "kv", "compute" };
    uint64_t total, have;
    struct pn_need need = { p->block[PN_WEIGHTS].bytes, p->block[PN_KV].bytes, p->block[PN_COMPUTE].bytes + p->stream_bytes };
    if (p->dev->memory(p->dev, &total, &have, e)) return e->code;
    if (pn_budget_fit(&need, have, e)) return fo_wrap(e, "die %s", p->dev->die.name);
    for (int i = 0; i < PN_N_BLOCKS; i++) {
        struct pn_block *b = &p->block[i];
        void *data;
        if (!b->bytes) continue;
        if (p->dev->alloc(p->dev, b->bytes, &data, e)) return fo_wrap(e, "%s", names[i]);
        b->data = data;
        /* Only memory that the host can touch gets redzones (debug builds). */
        if (p->dev->weights_in_place)
            fo_arena_init_host(&b->arena, b->data, b->bytes);
        else
            fo_arena_init_device(&b->arena, b->bytes);
    }
    return FO_OK;
}

static int check_measured(uint64_t used, uint64_t measured, const char *what, struct fo_err *e) {
    return used == measured ? FO_OK : fo_fail_need(e, FO_EINTERNAL, used, measured, "%s: laid out otherwise than measured", what);
}

static int allocate(struct pn_model *m, struct fo_err *e) {
    for (int i = 0; i < m->n_parts; i++)
        if (allocate_part(&m->part[i], e)) return e->code;
    m->heap_block = calloc(1, m->host_bytes + 64);
    if (!m->heap_block) return fo_fail_need(e, FO_ENOMEM, m->host_bytes + 64, 0, "host: no memory for the rows of a step");
    fo_arena_init_host(&m->host, (void *)(((uintptr_t)m->heap_block + 63) & ~(uintptr_t)63), m->host_bytes);
    if (lay_out(m, e) || check_measured(m->host.used, m->host_bytes, "host", e)) return e->code;
    for (int i = 0; i < m->n_parts; i++)
        for (int k = 0; k < PN_N_BLOCKS; k++) {
            const struct pn_block *b = &m->part[i].block[k];
            if (b->bytes && check_measured(b->arena.used, b->bytes, m->part[i].dev->die.name, e)) return e->code;
        }
    pn_kv_clear(&m->kv);
    return FO_OK;
}

/* Weights and a stream on each die. */
static int fill(struct pn_model *m, const struct pn_model_opts *o, struct fo_err *e) {
    for (int i = 0; i < m->n_parts; i++) {
        struct pn_part *p = &m->part[i];
        if (pn_bind_upload(&m->bind, i, p->in_place, p->block[PN_WEIGHTS].data, o->go_on, o->go_on_ctx, e) ||
            p->dev->stream_open(p->dev, (int)m->info.max_batch, m->bind.max_k, m->info.ctx_cap, &p->stream, e))
            return fo_wrap(e, "die %s", p->dev->die.name);
    }
    return FO_OK;
}

int pn_model_open_tok(struct pn_model *m, struct fo_err *e) {
    struct fo_err why;
    int32_t n_tokens = 0;
    if (fo_tok_open(m->gguf, &m->tok, &why) == FO_OK) {
        n_tokens = fo_tok_n_vocab(m->tok);
        if ((uint32_t)n_tokens <= m->h.n_vocab) {
            m->info.has_tokenizer = true;
            m->info.text_bytes = fo_tok_bytes(m->tok);
            return FO_OK;
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

static uint64_t template_sum(const struct pn_model *m, const char *chat_template) {
    struct fo_str s = { "", 0 };
    struct fo_err ignored; /* there is none: an empty one */
    if (chat_template) return fo_sum64(0, chat_template, strlen(chat_template));
    return fo_gguf_get_str(m->gguf, "tokenizer.chat_template", &s, &ignored) ? 0 : fo_sum64(0, s.s, s.len);
}

static int open_text(struct pn_model *m, const char *chat_template, struct fo_err *e) {
    m->template_sum = template_sum(m, chat_template);
    if (pn_model_open_tok(m, e)) return e->code;
    return m->tok ? pn_chat_open(m->gguf, m->tok, chat_template, &m->chat, e) : FO_OK;
}

int pn_model_start(const char *path, struct pn_model **ret, struct fo_err *e) {
    struct pn_model *m = calloc(1, sizeof *m);
    if (!m || !(m->path = strdup(path))) {
        free(m);
        return fo_fail(e, FO_ENOMEM, "%s: no memory for a model", path);
    }
    fo_region_init(&m->region, REGION_CAP_BYTES);
    if (fo_model_open(path, &m->gguf, e)) {
        pn_model_free(m);
        return e->code;
    }
    *ret = m;
    return FO_OK;
}

int pn_model_open(const char *path, const struct pn_model_opts *o, struct pn_model **ret, struct fo_err *e) {
    struct pn_model *m = NULL;
    if (pn_model_start(path, &m, e)) return e->code;
    if (pn_model_prepare(m, o, e) || allocate(m, e) || fill(m, o, e) || open_text(m, o->chat_template, e) || pn_model_state(m, e)) {
        pn_model_free(m);
        return fo_wrap(e, "%s", path);
    }
    *ret = m;
    return FO_OK;
}

void pn_model_free(struct pn_model *m) {
    if (!m) return;
    bool whole = m->n_parts && m->part[m->n_parts - 1].stream;
    assert(!whole || m->kv.n_free == m->kv.n_pages);  /* a sequence outlived its model */
    assert(!whole || (m->kv.states.n_free == m->kv.states.n_blocks && m->kv.states.n_promised == 0));
    assert(!whole || fo_arena_check(&m->host));
    pn_chat_free(m->chat);
    fo_tok_free(m->tok);
    for (int i = 0; i < m->n_parts; i++) {
        struct pn_part *p = &m->part[i];
        if (p->stream) p->dev->stream_close(p->stream);
        for (int k = 0; k < PN_N_BLOCKS; k++) {
            assert(!whole || fo_arena_check(&p->block[k].arena)); /* a kernel wrote past its buffer */
            if (p->block[k].data) p->dev->free(p->dev, p->block[k].data, p->block[k].bytes);
        }
    }
    free(m->heap_block);
    fo_region_done(&m->region);
    fo_gguf_close(m->gguf);
    free(m->path);
    free(m);
}

int pn_model_measure(const char *path, const struct pn_model_opts *o, struct pn_model_info *ret, char *ret_why, size_t why_size,
                     struct fo_err *e) {
    static _Thread_local char arch[PN_SHOWN], name[PN_SHOWN];
    struct pn_model *m = NULL;
    struct fo_err why;
    if (pn_model_start(path, &m, e)) return e->code;
    int rc = pn_model_prepare(m, o, &why);
    if (!rc) rc = pn_model_open_tok(m, &why);
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
    ret->tokenizer_error = NULL;
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
    return fo_gguf_state(m->gguf, e);
}

int pn_model_check_file(const char *path, struct fo_err *e) {
    struct fo_gguf *g;
    if (fo_gguf_open(path, &g, e)) return (int)e->code;
    fo_gguf_close(g);
    return FO_OK;
}

uint64_t pn_model_identity(const char *path) {
    return fo_model_identity(path);
}

const char *pn_model_path_name(const char *path, size_t *ret_len) {
    return fo_model_path_name(path, ret_len);
}

int pn_model_check(struct pn_model *m, struct fo_err *e) {
    for (int i = 0; i < m->n_parts; i++)
        if (m->part[i].dev->sync(m->part[i].stream, e)) return e->code;
    return pn_model_state(m, e);
}

uint64_t pn_model_free_pages(const struct pn_model *m) {
    return m->kv.n_free;
}

int pn_seq_new(struct pn_model *m, struct pn_seq **ret, struct fo_err *e) {
    return pn_kv_seq_new(&m->kv, m->kv.ctx_cap, ret, e);
}

struct pn_kv *pn_model_kv(struct pn_model *m) {
    return &m->kv;
}
