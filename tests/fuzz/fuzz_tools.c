/* Any bytes as a list of tools: an error with a place, or a grammar of their calls that compiles. The first byte chooses the form of calls, and what
 * is asked for. Seeds: tests/fuzz/corpus/tools. */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "engine/grammar/ir.h"
#include "engine/grammar/pda.h"
#include "engine/grammar/pieces.h"
#include "engine/grammar/program.h"
#include "engine/tools.h"
#include "foundry/base/err.h"
#include "tests/support/dialects.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char *const rows[] = { "hermes", "qwen3-xml", "mistral", "mistral-args", "glm", "minimax" };
enum { N_ROWS = sizeof rows / sizeof *rows };

static const struct pn_dialect *dialect(unsigned row) {
    static struct test_dialect all[N_ROWS];
    if (!all[row].d) test_dialect_open(&all[row], test_call_row(rows[row]), NULL, row % 2);
    return all[row].d;
}

/* The head of each function that may be called must begin a text of the grammar. */
static void hold_heads(const struct pn_program *p, const struct pn_tools *t, const struct pn_dialect *d) {
    struct pn_pda *a;
    struct fo_err e = { 0 };
    if (pn_pda_new(p, UINT32_MAX, 1 << 18, 1 << 24, &a, &e)) abort();
    for (int i = 0; i < pn_tools_n(t); i++) {
        struct fo_buf head;
        const char *name = pn_tools_name(t, i);
        if (pn_tools_find(t, name, strlen(name)) != i) continue;
        fo_buf_init(&head, 1 << 16);
        pn_tools_head(t, d, i, &head);
        uint32_t s = PN_STATE_NONE;
        if (!pn_pda_full(a) || pn_pda_keep(a, NULL, 0, &e) == 0) s = pn_pda_start(a, &e);
        for (size_t k = 0; k < head.len && s != PN_STATE_NONE && s != PN_STATE_DEAD; k++) s = pn_pda_step(a, s, (uint8_t)head.data[k], &e);
        if (s == PN_STATE_DEAD || (s == PN_STATE_NONE && e.code != FO_ELIMIT)) abort();
        fo_buf_done(&head);
    }
    pn_pda_free(a);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size == 0) return 0;
    const struct pn_dialect *d = dialect(data[0] % N_ROWS);
    unsigned choice = data[0] / N_ROWS % 3;
    struct pn_tools_opts o = { .json = (const char *)data + 1, .len = size - 1, .choice = (enum pn_tool_choice)choice, .named = "f", .one_call = data[0] & 0x80 };
    struct pn_tools *t = NULL;
    struct pn_ir *ir = NULL;
    struct pn_program *p = NULL;
    struct fo_buf b;
    char where[128];
    struct fo_err e = { 0 };
    memset(where, 'x', sizeof where);
    fo_buf_init(&b, 4 << 20);
    int rc = pn_tools_new(&o, &t, where, &e);
    if (rc == 0 && pn_tools_n(t) > 0) {
        rc = pn_tools_grammar(t, d, NULL, 0, &b, where, &e);
        if (rc != 0 && b.len > 0) abort();
        if (rc == 0) {
            if (pn_ir_new(&ir, &e)) abort();
            rc = pn_pieces_build(ir, b.data, b.len, &e);
            if (rc == 0) rc = pn_program_new(ir, &p, &e);
            if (rc != 0 && rc != FO_ELIMIT) abort(); /* what is wrong with it was told before */
        }
    }
    if (!memchr(where, 0, sizeof where) || (rc != 0 && (!e.msg[0] || rc == FO_EINTERNAL))) abort();
    if (p) hold_heads(p, t, d);
    pn_program_free(p);
    pn_ir_free(ir);
    fo_buf_done(&b);
    pn_tools_put(t);
    return 0;
}
