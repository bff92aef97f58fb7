/* Any bytes as a JSON Schema: an error, or a grammar whose first steps can be taken. */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "engine/grammar/ir.h"
#include "engine/grammar/pda.h"
#include "engine/grammar/program.h"
#include "engine/grammar/schema.h"
#include "foundry/base/err.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    char pointer[PN_SCHEMA_POINTER_BYTES];
    struct pn_ir *ir;
    struct pn_program *p;
    struct pn_pda *a;
    struct fo_err e = { 0 };
    if (pn_ir_new(&ir, &e)) abort();
    int rc = pn_schema_compile((const char *)data, size, ir, pointer, &e);
    if (memchr(pointer, 0, sizeof pointer) == NULL || (rc != 0) != (e.code != FO_OK) || rc == FO_EINTERNAL) abort();
    if (rc == 0 && pn_program_new(ir, &p, &e) == FO_OK) {
        if (pn_pda_new(p, UINT32_MAX, 1 << 18, 1 << 22, &a, &e) == FO_OK) {
            uint32_t s = pn_pda_start(a, &e);
            if (s == PN_STATE_DEAD) abort(); /* a grammar with texts has a beginning */
            static const char probe[] = "{\"a\":[1,\"\\u00e9\",null]}";
            for (const char *t = probe; *t && s != PN_STATE_DEAD && s != PN_STATE_NONE; t++) s = pn_pda_step(a, s, (uint8_t)*t, &e);
            pn_pda_free(a);
        }
        pn_program_free(p);
    }
    pn_ir_free(ir);
    return 0;
}
