/* Writes a tiny model: tiny OUT.gguf [--dtype Q4_1] [--layers 2] ... Options are the rows below; what they mean stands in
 * tests/support/tiny.h. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "foundry/base/err.h"
#include "foundry/base/file.h"
#include "foundry/dtype.h"
#include "tests/support/tiny.h"

static struct test_tiny tiny;

static const struct {
    const char *flag;
    uint32_t *value;
} numbers[] = {
    { "--layers", &tiny.n_layer }, { "--embd", &tiny.n_embd },   { "--heads", &tiny.n_head }, { "--kv-heads", &tiny.n_head_kv },
    { "--ff", &tiny.n_ff },        { "--vocab", &tiny.n_vocab }, { "--ctx", &tiny.n_ctx },    { "--version", &tiny.version },   { "--yarn", &tiny.yarn },
};

static int usage(void) {
    fprintf(stderr, "usage: tiny OUT.gguf [--dtype NAME] [--layers N] [--embd N] [--heads N] [--kv-heads N] [--ff N] [--vocab N] [--ctx N]\n"
                    "            [--seed N] [--yarn FACTOR] [--version 2|3] [--untied] [--no-tokenizer | --add-bos] [--chatml | --template FILE]\n");
    return 64;
}

int main(int argc, char **argv) {
    const char *out = NULL;
    char *text = NULL;
    size_t len;
    struct fo_err e;
    bool widened = false;
    tiny = test_tiny_default();
    for (int i = 1; i < argc; i++) {
        const char *a = argv[i], *value = i + 1 < argc ? argv[i + 1] : NULL;
        if (strcmp(a, "--untied") == 0) tiny.tied = false;
        else if (strcmp(a, "--no-tokenizer") == 0) tiny.tokenizer = false;
        else if (strcmp(a, "--add-bos") == 0) tiny.add_bos = true;
        else if (strcmp(a, "--chatml") == 0) tiny.chat_template = test_tiny_chatml();
        else if (a[0] != '-' && !out) out = a;
        else if (a[0] != '-' || !value) return usage();
        else if (i++, strcmp(a, "--template") == 0) {
            free(text);
            if (fo_file_read(value, 1 << 20, &text, &len, &e)) {
                fprintf(stderr, "tiny: %s\n", e.msg);
                return 1;
            }
            tiny.chat_template = text;
        } else if (strcmp(a, "--dtype") == 0) {
            uint32_t d = 0;
            while (d < FO_N_DTYPES && !(fo_dtype_info(d) && strcmp(fo_dtype_info(d)->name, value) == 0)) d++;
            tiny.dtype = d;
        } else if (strcmp(a, "--seed") == 0) {
            tiny.seed = strtoull(value, NULL, 10);
        } else {
            size_t k = 0, n = sizeof numbers / sizeof *numbers;
            while (k < n && strcmp(a, numbers[k].flag) != 0) k++;
            if (k == n) return usage();
            *numbers[k].value = (uint32_t)strtoul(value, NULL, 10);
            widened |= strcmp(a, "--embd") == 0 || strcmp(a, "--ff") == 0;
        }
    }
    if (!out) return usage();
    const struct fo_dtype_info *info = fo_dtype_info(tiny.dtype);
    if (info && info->block == 256 && !widened) tiny.n_embd = tiny.n_ff = 256; /* the least that a K-quant can be */
    int rc = test_tiny_write(&tiny, out, &e);
    if (rc) fprintf(stderr, "tiny: %s\n", e.msg);
    free(text);
    return rc ? 1 : 0;
}
