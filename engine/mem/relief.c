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
