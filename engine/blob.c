/* The form of a blob, and what it goes with: see blob_impl.h. */
#include "engine/blob_impl.h"

#include <stdlib.h>
#include <string.h>

#include "engine/model_impl.h"
#include "engine/prefix.h"
#include "foundry/base/hash.h"
#include "foundry/device.h"
#include "foundry/gguf.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "a blob is little endian and so must the host be");
_Static_assert(sizeof(struct pn_blob_head) == 24 + sizeof(struct pn_print) + 32 + sizeof(struct pn_mark) * PN_MAX_MARKS + 8, "a head has no holes");

enum { SAMPLES = 4, SAMPLE_BYTES = 64 }; /* of each tensor: from its first bytes to its last */

/* --- what it goes with ----------------------------------------------------------------------- */
static uint64_t add_str(uint64_t h, struct fo_str s) {
    return fo_sum64(h, s.s, s.len);
}

/* Gigabytes are not read for it: what tells one file from another is where everything lies, and what stands there in some places. A fine-tuned
 * model differs from what it was made of in nearly every one of them. */
static uint64_t weights(const struct pn_model *m) {
    uint64_t h = fo_sum64(0, m->arch, strlen(m->arch)), bytes = fo_gguf_file_bytes(m->gguf);
    h = fo_sum64(h, &bytes, sizeof bytes);
    for (size_t i = 0, n = fo_gguf_n_tensors(m->gguf); i < n; i++) {
        const struct fo_gguf_tensor *t = fo_gguf_tensor_at(m->gguf, i);
        const uint64_t place[] = { t->t.type, t->bytes, t->offset };
        h = add_str(h, t->name);
        h = fo_sum64(h, place, sizeof place);
        h = fo_sum64(h, t->t.ne, sizeof t->t.ne);
        uint64_t n_sample = t->bytes < SAMPLE_BYTES ? t->bytes : SAMPLE_BYTES, step = (t->bytes - n_sample) / (SAMPLES - 1);
        for (uint64_t k = 0; k < SAMPLES && t->t.data; k++) h = fo_sum64(h, (const unsigned char *)t->t.data + k * step, n_sample);
    }
    return h;
}

static bool begins(struct fo_str s, const char *with) {
    return s.len >= strlen(with) && memcmp(s.s, with, strlen(with)) == 0;
}

/* Of all that a file says of it but the template. */
static uint64_t tokenizer(const struct pn_model *m) {
    static const char chat[] = "tokenizer.chat_template";
    uint64_t h = 0;
    for (size_t i = 0, n = fo_gguf_n_kv(m->gguf); i < n; i++) {
        const struct fo_gguf_kv *kv = fo_gguf_kv_at(m->gguf, i);
        if (begins(kv->key, "tokenizer.") && !begins(kv->key, chat)) h = fo_sum64(add_str(h, kv->key), kv->data, kv->bytes);
    }
    return h;
}

static uint64_t chat_template(const struct pn_model *m) {
    return m->template_sum;
}

/* Which of two tables of divisors is used depends on the cap (rope.h). */
static uint64_t rope(const struct pn_model *m) {
    const struct pn_hparams *h = &m->h;
    const double all[] = { h->n_rot, (double)h->rope_base, h->rope.kind, (double)h->rope.factor, (double)h->rope.attn_factor, (double)h->rope.beta_fast, (double)h->rope.beta_slow,
                           h->rope.n_ctx_orig, h->rope.n_ctx_orig > 0 && h->ctx_cap > h->rope.n_ctx_orig };
    return fo_sum64(0, all, sizeof all);
}

static uint64_t vocabulary(const struct pn_model *m) {
    return m->h.n_vocab;
}

static uint64_t layers(const struct pn_model *m) {
    return m->h.n_layer;
}

static uint64_t heads(const struct pn_model *m) {
    return (uint64_t)m->h.n_head << 40 | (uint64_t)m->h.n_head_kv << 20 | m->h.head_dim;
}

static uint64_t window(const struct pn_model *m) {
    return m->h.window;
}

static uint64_t state(const struct pn_model *m) {
    return m->h.state_bytes;
}

static uint64_t kv_k(const struct pn_model *m) {
    return m->part[0].kv.k_type;
}

static uint64_t kv_v(const struct pn_model *m) {
    return m->part[0].kv.v_type;
}

static uint64_t floor_k(const struct pn_model *m) {
    return m->part[0].kv.k_floor;
}

static uint64_t floor_v(const struct pn_model *m) {
    return m->part[0].kv.v_floor;
}

static uint64_t page_tokens(const struct pn_model *m) {
    return m->kv.page_tokens;
}

static uint64_t page_layout(const struct pn_model *m) {
    (void)m;
    return FO_KV_LAYOUT;
}

/* Named as people name them: in the manifest where they can be set there. */
static const struct {
    const char *name;
    uint64_t (*value)(const struct pn_model *m);
} fields[PN_N_PRINT] = {
    [PN_PRINT_WEIGHTS] = { "weights", weights },
    [PN_PRINT_TOKENIZER] = { "tokenizer", tokenizer },
    [PN_PRINT_TEMPLATE] = { "chat_template", chat_template },
    [PN_PRINT_ROPE] = { "rope", rope },
    [PN_PRINT_VOCABULARY] = { "vocabulary", vocabulary },
    [PN_PRINT_LAYERS] = { "layers", layers },
    [PN_PRINT_HEADS] = { "heads", heads },
    [PN_PRINT_WINDOW] = { "window", window },
    [PN_PRINT_STATE] = { "state", state },
    [PN_PRINT_KV_K] = { "kv.k", kv_k },
    [PN_PRINT_KV_V] = { "kv.v", kv_v },
    [PN_PRINT_FLOOR_K] = { "kv.floor of K", floor_k },
    [PN_PRINT_FLOOR_V] = { "kv.floor of V", floor_v },
    [PN_PRINT_PAGE_TOKENS] = { "page_tokens", page_tokens },
    [PN_PRINT_PAGE_LAYOUT] = { "page_layout", page_layout },
};

void pn_print_of(const struct pn_model *m, struct pn_print *ret) {
    for (int i = 0; i < PN_N_PRINT; i++) ret->field[i] = fields[i].value(m);
}

const char *pn_print_name(enum pn_print_field f) {
    return fields[f].name;
}

/* --- how long it is -------------------------------------------------------------------------- */
/* K and V of a page in one layer. */
static uint64_t layer_bytes(const struct pn_model *m, bool small) {
    const struct fo_kv_geom *g = &m->part[0].kv;
    enum fo_dtype k = small ? g->k_floor : g->k_type, v = small ? g->v_floor : g->v_type;
    return (uint64_t)g->n_head_kv * (fo_kv_block_bytes(k, g->head_dim, g->page_tokens) + fo_kv_block_bytes(v, g->head_dim, g->page_tokens));
}

uint64_t pn_blob_page_bytes(const struct pn_model *m, bool small) {
    return m->h.n_layer * layer_bytes(m, small);
}

uint64_t pn_blob_state_bytes(const struct pn_model *m) {
    return pn_model_state_bytes(m, m->h.n_layer);
}

static uint64_t section_bytes(uint64_t payload) {
    return sizeof(struct pn_section_head) + payload + sizeof(uint64_t);
}

uint64_t pn_blob_bytes(const struct pn_model *m, const struct pn_blob_head *h) {
    return sizeof *h + section_bytes((uint64_t)h->n_tokens * sizeof(int32_t)) + (h->n_pages > 0 ? section_bytes(h->n_pages) : 0) +
           h->n_blocks * section_bytes(pn_blob_state_bytes(m)) + (h->n_pages - h->n_small) * section_bytes(pn_blob_page_bytes(m, false)) + h->n_small * section_bytes(pn_blob_page_bytes(m, true));
}

uint64_t pn_blob_most_bytes(const struct pn_model *m) {
    const struct pn_blob_head most = { .n_tokens = m->kv.ctx_cap, .n_pages = m->kv.max_seq_pages, .n_blocks = m->kv.states.n_blocks ? PN_MAX_MARKS + 1 : 0 };
    return pn_blob_bytes(m, &most);
}

uint64_t pn_blob_work_bytes(const struct pn_model *m) {
    uint64_t page = pn_blob_page_bytes(m, false), block = pn_blob_state_bytes(m);
    return m->kv.ctx_cap * sizeof(int32_t) + m->kv.max_seq_pages + 2 * (page > block ? page : block);
}

/* --- checks ---------------------------------------------------------------------------------- */
uint64_t pn_section_sum(const struct pn_section_head *h, const void *payload) {
    return fo_sum64(fo_sum64(PN_BLOB_VERSION, h, sizeof *h), payload, h->bytes);
}

void pn_blob_seal(struct pn_blob_head *h) {
    h->sum = fo_sum64(PN_BLOB_VERSION, h, offsetof(struct pn_blob_head, sum));
}

static int check_print(const struct pn_model *m, const struct pn_blob_head *h, const char **ret_field, struct fo_err *e) {
    struct pn_print own;
    pn_print_of(m, &own);
    for (int i = 0; i < PN_N_PRINT; i++) {
        if (own.field[i] == h->print.field[i]) continue;
        if (ret_field) *ret_field = fields[i].name;
        return fo_fail(e, FO_EUNSUPPORTED, "the session does not go with this model: %s differs", fields[i].name);
    }
    return FO_OK;
}

static int check_state(const struct pn_model *m, const struct pn_blob_head *h, struct fo_err *e) {
    bool used[PN_MAX_MARKS + 1] = { false };
    uint32_t page = m->kv.page_tokens, before = 0;
    if (m->kv.states.n_blocks == 0) return h->n_blocks || h->n_marks || h->newest ? fo_fail(e, FO_EFORMAT, "it has recurrent state, and the model none") : FO_OK;
    if (h->n_blocks == 0 || h->n_blocks > PN_MAX_MARKS + 1 || h->n_marks > PN_MAX_MARKS || h->newest >= h->n_blocks)
        return fo_fail(e, FO_EFORMAT, "%u blocks of state and %u checkpoints make no sense", h->n_blocks, h->n_marks);
    used[h->newest] = true;
    for (uint32_t i = 0; i < h->n_marks; i++) {
        const struct pn_mark *k = &h->marks[i];
        if (k->len <= before || k->len > h->n_tokens || k->len % page || k->block >= h->n_blocks) return fo_fail(e, FO_EFORMAT, "checkpoint %u is none", i);
        if (k->block == h->newest && k->len != h->n_tokens) return fo_fail(e, FO_EFORMAT, "checkpoint %u has the state of the end", i);
        if (used[k->block] && k->block != h->newest) return fo_fail(e, FO_EFORMAT, "two checkpoints have one state");
        used[k->block] = true;
        before = k->len;
    }
    for (uint32_t i = 0; i < h->n_blocks; i++)
        if (!used[i]) return fo_fail(e, FO_EFORMAT, "block %u of state is nobody's", i);
    return FO_OK;
}

int pn_blob_check(const struct pn_model *m, const struct pn_blob_head *h, const char **ret_field, struct fo_err *e) {
    if (memcmp(h->magic, PN_BLOB_MAGIC, sizeof h->magic) != 0) return fo_fail(e, FO_EFORMAT, "these bytes are no session");
    if (h->version != PN_BLOB_VERSION) {
        if (ret_field) *ret_field = "version";
        return fo_fail(e, FO_EUNSUPPORTED, "the session is of version %u of its form, and this build reads version %d", h->version, PN_BLOB_VERSION);
    }
    if (h->head_bytes != sizeof *h || h->sum != fo_sum64(PN_BLOB_VERSION, h, offsetof(struct pn_blob_head, sum))) return fo_fail(e, FO_EFORMAT, "its head was altered");
    if (check_print(m, h, ret_field, e)) return e->code;
    if (h->n_tokens > m->kv.ctx_cap) {
        if (ret_field) *ret_field = "ctx_cap";
        return fo_fail_need(e, FO_EUNSUPPORTED, h->n_tokens, m->kv.ctx_cap, "the session has %u tokens, and this model takes %u (ctx_cap)", h->n_tokens, m->kv.ctx_cap);
    }
    if (h->n_tokens == 0) return fo_fail(e, FO_EFORMAT, "it has no tokens");
    uint32_t pages = pn_kv_pages(&m->kv, h->n_tokens);
    if (h->first_page > pn_kv_first_seen(&m->kv, h->n_tokens) / m->kv.page_tokens || h->first_page > pages || h->n_pages != pages - h->first_page)
        return fo_fail(e, FO_EFORMAT, "%u pages from %u on are not those of %u tokens", h->n_pages, h->first_page, h->n_tokens);
    if (h->n_small > h->n_pages || (h->n_small > 0 && fo_kv_small(&m->part[0].kv) == 0) || h->zero)
        return fo_fail(e, FO_EFORMAT, "%u small pages of %u make no sense", h->n_small, h->n_pages);
    if (check_state(m, h, e)) return e->code;
    if (h->bytes != pn_blob_bytes(m, h)) return fo_fail(e, FO_EFORMAT, "its length is not that of what is in it");
    return FO_OK;
}

/* --- pages and states ------------------------------------------------------------------------ */
static int move(struct fo_device *d, enum pn_blob_way way, unsigned char *device, unsigned char *host, uint64_t bytes, struct fo_err *e) {
    if (bytes == 0) return FO_OK;
    return way == PN_BLOB_IN ? d->upload(d, device, host, bytes, e) : d->download(d, host, device, bytes, e);
}

int pn_blob_move_page(struct pn_model *m, uint32_t page, enum pn_blob_way way, unsigned char *host, struct fo_err *e) {
    uint64_t layer = layer_bytes(m, page >= m->kv.n_pages);
    for (int i = 0; i < m->n_parts; i++) {
        struct pn_part *p = &m->part[i];
        unsigned char *at = p->kv.pool + fo_kv_place(&p->kv, page).off;
        if (move(p->dev, way, at, host + p->first_layer * layer, (p->end_layer - p->first_layer) * layer, e)) return fo_wrap(e, "die %s", p->dev->die.name);
    }
    return FO_OK;
}

/* Rows of K and V, which are scratch between steps, become zeros and are stored. A family that has none keeps no KV. */
static int clear_part(struct pn_part *p, uint32_t page, int from, int max_rows, const float *zeros, struct fo_err *e) {
    const struct fo_kv_geom *g = &p->kv;
    int rows = g->page_tokens - from < max_rows ? g->page_tokens - from : max_rows;
    uint64_t bytes = (uint64_t)rows * (uint64_t)g->n_head_kv * (uint64_t)g->head_dim * sizeof *zeros;
    if (!p->buf.k || !p->buf.v) return FO_OK;
    if (p->dev->upload(p->dev, p->buf.k, zeros, bytes, e) || p->dev->upload(p->dev, p->buf.v, zeros, bytes, e)) return e->code;
    for (int at = from, n; at < g->page_tokens; at += n) {
        n = g->page_tokens - at < rows ? g->page_tokens - at : rows;
        const struct fo_attn_seq seq = { .row = 0, .n = n, .pos = at, .pages = &page };
        const struct fo_attn_batch b = { &seq, 1, n };
        for (int layer = 0; layer < g->n_layer; layer++)
            if (fo_kv_store(p->stream, g, p->buf.k, p->buf.v, &b, layer, e)) return e->code;
    }
    return p->dev->sync(p->stream, e);
}

int pn_blob_clear(struct pn_model *m, uint32_t page, uint32_t from, struct fo_err *e) {
    const struct fo_kv_geom *g = &m->part[0].kv;
    float *zeros = calloc((size_t)g->page_tokens * (size_t)g->n_head_kv * (size_t)g->head_dim, sizeof *zeros);
    int rc = zeros ? FO_OK : (int)fo_fail(e, FO_ENOMEM, "no memory to clear a page");
    for (int i = 0; i < m->n_parts && rc == FO_OK; i++) rc = clear_part(&m->part[i], page, (int)from, (int)m->info.max_batch, zeros, e);
    free(zeros);
    return rc;
}

int pn_blob_move_state(struct pn_model *m, uint32_t block, enum pn_blob_way way, unsigned char *host, struct fo_err *e) {
    for (int i = 0; i < m->n_parts; i++) {
        struct pn_part *p = &m->part[i];
        uint64_t bytes = pn_model_state_bytes(m, p->end_layer - p->first_layer);
        if (move(p->dev, way, p->states + block * bytes, host + pn_model_state_bytes(m, p->first_layer), bytes, e)) return fo_wrap(e, "die %s", p->dev->die.name);
    }
    return FO_OK;
}

/* --- errands --------------------------------------------------------------------------------- */
int pn_transfer_run(struct pn_sched *s, pn_sched_errand_fn *fn, struct pn_transfer *x, struct fo_err *e) {
    if (pn_sched_errand(s, fn, x, e)) return e->code;
    if (x->rc) *e = x->err;
    return x->rc;
}

int pn_transfer_gave_way(struct pn_transfer *x) {
    return x->rc = fo_fail(&x->err, FO_ENOMEM, "the session had to give way to running requests");
}

struct pn_seq *pn_transfer_seq(struct pn_transfer *x, struct pn_prefix *p) {
    struct pn_seq *held = pn_prefix_held(p, x->hidden);
    if (!held) pn_transfer_gave_way(x);
    return held;
}

static void let_go(void *ctx, struct pn_model *m, struct pn_prefix *p) {
    const struct pn_transfer *x = ctx;
    (void)m;
    pn_prefix_let_go(p, x->hidden);
}

void pn_transfer_end(struct pn_sched *s, struct pn_transfer *x) {
    struct fo_err ignored; /* a worker that is gone holds nothing */
    if (x->hidden) (void)pn_sched_errand(s, let_go, x, &ignored);
}
