/* Reads lines and says what the grammar of a JSON Schema makes of texts; tests/goldens/schemas.py asks it.
 *     S<TAB>schema   ->  ok | refused<TAB>code<TAB>pointer<TAB>message
 *     T<TAB>text     ->  yes | no: whether the text is one of the last schema's, byte for byte */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/grammar/ir.h"
#include "engine/grammar/pda.h"
#include "engine/grammar/program.h"
#include "engine/grammar/schema.h"
#include "foundry/base/err.h"

static struct pn_ir *ir;
static struct pn_program *program;
static struct pn_pda *pda;

static void drop(void) {
    pn_pda_free(pda);
    pn_program_free(program);
    pn_ir_free(ir);
    pda = NULL;
    program = NULL;
    ir = NULL;
}

static void schema(const char *text, size_t len) {
    char pointer[PN_SCHEMA_POINTER_BYTES] = "";
    struct fo_err e = { 0 };
    drop();
    if (pn_ir_new(&ir, &e) || pn_schema_compile(text, len, ir, pointer, &e) || pn_program_new(ir, &program, &e) ||
        pn_pda_new(program, UINT32_MAX, 8 << 20, 32 << 20, &pda, &e)) {
        printf("refused\t%s\t%s\t%s\n", fo_code_name(e.code), pointer, e.msg);
        drop();
    } else {
        puts("ok");
    }
}

static void text(const char *s, size_t len) {
    struct fo_err e = { 0 };
    uint32_t state = pda ? pn_pda_start(pda, &e) : PN_STATE_DEAD;
    for (size_t i = 0; i < len && state != PN_STATE_DEAD && state != PN_STATE_NONE; i++) {
        if (pn_pda_full(pda) && pn_pda_keep(pda, &state, 1, &e)) state = PN_STATE_NONE;
        if (state != PN_STATE_NONE) state = pn_pda_step(pda, state, (uint8_t)s[i], &e);
    }
    if (state == PN_STATE_NONE)
        printf("error\t%s\n", e.msg);
    else
        puts(state != PN_STATE_DEAD && pn_pda_state(pda, state)->may_end ? "yes" : "no");
}

int main(void) {
    char *line = NULL;
    size_t size = 0;
    ssize_t n;
    while ((n = getline(&line, &size, stdin)) > 2) {
        size_t len = (size_t)n - 2 - (line[n - 1] == '\n');
        if (line[0] == 'S')
            schema(line + 2, len);
        else
            text(line + 2, len);
        fflush(stdout);
    }
    free(line);
    drop();
    return 0;
}
