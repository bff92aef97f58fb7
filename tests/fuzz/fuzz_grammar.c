/* Any bytes as a grammar, then any bytes as its text: the first byte chooses the notation, a byte 0xFF (which no text holds) ends the grammar; one of
 * pieces has it where a control token stands, so its text may be what is left of itself.
 * What is refused says why; what is taken is followed as far as it goes, exactly and by its horizon, and both must agree on what is allowed; and
 * nothing may take long. Seeds: tests/fuzz/corpus/grammar. */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "engine/grammar/gbnf.h"
#include "engine/grammar/ir.h"
#include "engine/grammar/masks.h"
#include "engine/grammar/pda.h"
#include "engine/grammar/pieces.h"
#include "engine/grammar/regex.h"
#include "foundry/base/err.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int build(int kind, struct pn_ir *ir, const char *text, size_t len, struct fo_err *e) {
    return kind == 0 ? pn_gbnf_build(ir, text, len, e) : kind == 1 ? pn_regex_build(ir, text, len, e) : pn_pieces_build(ir, text, len, e);
}

/* A vocabulary of the 256 bytes and of pairs of some. */
static const struct pn_tokens *tokens(void) {
    enum { N_PAIRS = 16 * 16, N = 256 + N_PAIRS };
    static const char some[] = "ab()\"\\{}0\n, x\xc3\xa9.";
    static struct pn_token_node nodes[N];
    static int32_t ids[N];
    static uint64_t below[1][4];
    static struct pn_tokens v = { .n_vocab = N, .nodes = nodes, .below = below, .n_below = 1, .ids = ids, .n_ids = N, .longest = 2 };
    if (v.n_nodes > 0) return &v;
    uint32_t n = 0, id = 256;
    for (uint32_t b = 0; b < 256; b++) {
        struct pn_token_node *first = &nodes[n++];
        *first = (struct pn_token_node){ .id = b, .depth = 1, .byte = (uint8_t)b };
        if (memchr(some, (int)b, 16))
            for (uint32_t k = 0; k < 16; k++, n++) nodes[n] = (struct pn_token_node){ .skip = n + 1, .id = id++, .depth = 2, .byte = (uint8_t)some[k] };
        first->skip = n;
    }
    v.n_nodes = n;
    return &v;
}

/* The mask of a state against each byte tried alone. */
static bool hold_mask(struct pn_masks *m, struct pn_pda *a, uint32_t state, struct fo_err *e) {
    const struct pn_mask *mask;
    if (pn_masks_get(m, a, state, &mask, e)) return false;
    for (int b = 0; b < 256; b++) {
        uint32_t to = pn_pda_step(a, state, (uint8_t)b, e);
        if (to == PN_STATE_NONE) return false;
        if ((to != PN_STATE_DEAD) != (mask->bits[b >> 6] >> (b & 63) & 1)) abort();
    }
    return true;
}

static void follow(const struct pn_program *p, const uint8_t *text, size_t n) {
    struct pn_pda *a;
    struct pn_masks *m;
    struct fo_err e = { 0 };
    if (pn_pda_new(p, UINT32_MAX, 1 << 14, 1 << 22, &a, &e)) abort();
    if (pn_masks_new(p, tokens(), &m, &e)) abort();
    uint32_t s = pn_pda_start(a, &e);
    for (size_t i = 0; i <= n && s != PN_STATE_NONE && s != PN_STATE_DEAD; i++) {
        if (pn_pda_full(a) && pn_pda_keep(a, &s, 1, &e)) s = PN_STATE_NONE;
        if (s != PN_STATE_NONE && i < 8 && !hold_mask(m, a, s, &e)) s = PN_STATE_NONE;
        if (s != PN_STATE_NONE && i < n) s = pn_pda_step(a, s, text[i], &e);
    }
    if (s == PN_STATE_NONE && e.code != FO_ELIMIT) abort();
    pn_masks_free(m);
    pn_pda_free(a);
}

static double cpu_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size == 0) return 0;
    const uint8_t *cut = memchr(data + 1, 0xFF, size - 1);
    size_t len = cut ? (size_t)(cut - data) - 1 : size - 1;
    struct pn_ir *ir;
    struct pn_program *p = NULL;
    struct fo_err e = { 0 };
    double from = cpu_s();
    if (pn_ir_new(&ir, &e)) abort();
    int rc = build(data[0] % 3, ir, (const char *)data + 1, len, &e);
    if (rc == 0) rc = pn_program_new(ir, &p, &e);
    pn_ir_free(ir);
    if (rc != 0 ? p || (int)e.code != rc || e.msg[0] == '\0' : !p) abort();
    if (p) follow(p, cut ? cut + 1 : data, cut ? size - len - 2 : 0);
    pn_program_free(p);
    if (cpu_s() - from > 8) abort(); /* one second in a release build: the sanitizers take their share */
    return 0;
}
