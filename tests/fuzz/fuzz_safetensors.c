/* What a model's directory is read from, as any bytes (make fuzz builds this with libFuzzer; its seeds are tests/data/safetensors, which
 * tests/foundry/test_safetensors.c runs as ordinary tests): a safetensors file (header and data), and, when the input begins with '{', config.json and
 * model.safetensors.index.json too. Every byte that a tensor is said to have is touched, so the sanitizer sees one that is not there. */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "foundry/base/err.h"
#include "foundry/base/region.h"
#include "foundry/gguf_write.h"
#include "foundry/hf.h"
#include "foundry/hf_config.h"
#include "foundry/safetensors.h"

static volatile unsigned sum;

static int see_tensor(void *ctx, const struct fo_safetensor *t, struct fo_err *e) {
    char name[FO_SAFETENSORS_NAME];
    (void)ctx, (void)e;
    fo_hf_tensor_name(t->name, name, sizeof name);
    sum += (unsigned)strlen(name);
    const unsigned char *p = t->t.data;
    for (uint64_t i = 0; i < t->bytes; i++) sum += p[i];
    if (t->bytes != fo_tensor_bytes(&t->t)) abort();
    return 0;
}

static int see_pair(void *ctx, const char *tensor, const char *in, struct fo_err *e) {
    char name[FO_SAFETENSORS_NAME];
    (void)ctx, (void)e;
    fo_hf_tensor_name(tensor, name, sizeof name);
    sum += (unsigned)(strlen(name) + strlen(in));
    return 0;
}

/* What config.json became must be a header that the parser takes. */
static void read_config(const char *text, size_t n) {
    struct fo_gguf_writer w;
    struct fo_region region;
    struct fo_hf_config c;
    struct fo_buf header;
    struct fo_gguf *g;
    struct fo_err e;
    fo_gguf_writer_init(&w, 1 << 24);
    fo_region_init(&region, 1 << 24);
    fo_buf_init(&header, 1 << 24);
    if (fo_hf_config_read(text, n, "config.json", "title", &region, &w, &c, &e) == 0) {
        if (fo_gguf_header(&w, FO_GGUF_VERSION, FO_GGUF_ALIGNMENT, &header, &e) || fo_gguf_parse(header.data, header.len, "config", &g, &e)) abort();
        for (size_t i = 0; c.rope_long && i < c.n_rope; i++)
            if (!(c.rope_long[i] > 0) || !(c.rope_short[i] > 0)) abort();
        for (size_t i = 0; c.rope_freqs && i < c.n_rope; i++)
            if (!(c.rope_freqs[i] > 0)) abort();
        fo_gguf_close(g);
    }
    fo_buf_done(&header);
    fo_region_done(&region);
    fo_gguf_writer_done(&w);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct fo_err e;
    fo_safetensors_read(data, size, "fuzz", see_tensor, NULL, &e);
    if (size == 0 || data[0] != '{') return 0;
    fo_safetensors_index((const char *)data, size, "fuzz", see_pair, NULL, &e);
    read_config((const char *)data, size);
    return 0;
}
