/* See relief.h. A pool of KV is taken as a whole when the model is loaded, but a page of the host is not before it is written to: so what matters to the
 * host is which places were. */
#include "engine/mem/relief.h"

#include "engine/model_impl.h"
#include "foundry/base/file.h"
#include "foundry/device.h"
#include "foundry/gguf.h"

void pn_model_drop_cache(struct pn_model *m) {
    for (size_t i = 0; i < fo_gguf_n_files(m->gguf); i++) fo_map_drop(fo_gguf_file(m->gguf, i));
}

/* [off, off + bytes) of a die's pool is of no use any more. */
static void discard(struct pn_part *p, uint64_t off, uint64_t bytes) {
    if (p->dev->discard) p->dev->discard(p->dev, p->kv.pool + off, bytes);
}

int pn_model_requantise(struct pn_model *m, uint32_t from, uint32_t to, struct fo_err *e) {
    for (int i = 0; i < m->n_parts; i++) /* before anything is written over */
        if (!m->part[i].dev->kv_requantise) return fo_fail(e, FO_EUNSUPPORTED, "die %s writes no page of KV again", m->part[i].dev->die.name);
    for (int i = 0; i < m->n_parts; i++)
        if (fo_kv_requantise(m->part[i].stream, &m->part[i].kv, from, to, e) || m->part[i].dev->sync(m->part[i].stream, e)) return e->code;
    for (int i = 0; i < m->n_parts && m->kv.n_small == 1 && pn_kv_place(&m->kv, to) == from; i++) { /* nothing else comes into its place */
        const struct fo_kv_geom *g = &m->part[i].kv;
        uint64_t small = fo_kv_small_bytes(g);
        discard(&m->part[i], from * fo_kv_page_bytes(g) + small, fo_kv_page_bytes(g) - small);
    }
    return FO_OK;
}

uint32_t pn_model_discard(struct pn_model *m, uint32_t most) {
    struct pn_kv *kv = &m->kv;
    uint32_t n = 0;
    for (uint32_t i = kv->n_free; i-- > 0 && n < most && kv->n_free_touched > 0;) {
        uint32_t place = kv->free_pages[i];
        if (!kv->touched[place]) continue;
        for (int k = 0; k < m->n_parts; k++) discard(&m->part[k], place * fo_kv_page_bytes(&m->part[k].kv), fo_kv_page_bytes(&m->part[k].kv));
        kv->touched[place] = false;
        kv->n_touched--;
        kv->n_free_touched--;
        n++;
    }
    return n;
}

uint64_t pn_model_kv_touched(const struct pn_model *m) {
    return m->kv.n_touched;
}

uint64_t pn_model_kv_promised(const struct pn_model *m) {
    uint64_t held = m->kv.n_pages - m->kv.n_free;
    return held - (m->kv.n_touched - m->kv.n_free_touched);
}

uint64_t pn_model_kv_host_bytes(const struct pn_model *m) {
    uint64_t n = 0;
    for (int i = 0; i < m->n_parts; i++)
        if (m->part[i].dev->weights_in_place) n += fo_kv_page_bytes(&m->part[i].kv);
    return n;
}
