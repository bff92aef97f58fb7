/* Writes a scripted model: script OUT.gguf [--text TEXT] [--case N TEXT] ... What the options mean stands in tests/support/script.h. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "foundry/base/err.h"
#include "foundry/base/file.h"
#include "foundry/base/units.h"
#include "tests/support/script.h"

static struct test_script script;

static int usage(void) {
    fprintf(stderr, "usage: script OUT.gguf [--text TEXT | --text-file FILE] [--case DIGIT TEXT]... [--special TEXT]... [--control TEXT]... [--endless]\n"
                    "              [--pace-us N] [--row-us N] [--layers N] [--ctx N] [--weights SIZE] [--kv-per-token SIZE] [--state-bytes N]\n"
                    "              [--no-template | --template FILE]\n"
                    "SIZE is such as 120MiB\n");
    return 64;
}

static const struct {
    const char *flag;
    uint32_t *value;
} numbers[] = { { "--pace-us", &script.pace_us }, { "--row-us", &script.row_us }, { "--layers", &script.n_layer }, { "--ctx", &script.n_ctx },
              { "--state-bytes", &script.state_bytes } };

static const struct {
    const char *flag;
    uint64_t *value;
} sizes[] = { { "--weights", &script.weights_bytes }, { "--kv-per-token", &script.kv_bytes_per_token } };

static const struct {
    const char *flag;
    const char **value;
} files[] = { { "--text-file", &script.text }, { "--template", &script.chat_template } };

static bool take_number(const char *flag, const char *value) {
    char *end;
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (strcmp(flag, numbers[i].flag) == 0) {
            *numbers[i].value = (uint32_t)strtoul(value, &end, 10);
            return *value && !*end;
        }
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        if (strcmp(flag, sizes[i].flag) == 0) return fo_parse_bytes(value, sizes[i].value);
    return false;
}

int main(int argc, char **argv) {
    const char *out = NULL;
    char *read[2] = { NULL, NULL };
    struct fo_err e;
    script = test_script_default();
    for (int i = 1; i < argc; i++) {
        const char *a = argv[i], *value = i + 1 < argc ? argv[i + 1] : NULL;
        size_t len, f = 0, n_files = sizeof files / sizeof *files;
        while (f < n_files && strcmp(a, files[f].flag) != 0) f++;
        if (strcmp(a, "--endless") == 0) script.endless = true;
        else if (strcmp(a, "--no-template") == 0) script.chat_template = NULL;
        else if (a[0] != '-' && !out) out = a;
        else if (a[0] != '-' || !value) return usage();
        else if (i++, strcmp(a, "--text") == 0) script.text = value;
        else if (strcmp(a, "--special") == 0 && script.n_specials < TEST_SCRIPT_SPECIALS) script.specials[script.n_specials++] = value;
        else if (strcmp(a, "--control") == 0 && script.n_specials < TEST_SCRIPT_SPECIALS) { /* these come first */
            script.specials[script.n_specials++] = script.specials[script.n_controls];
            script.specials[script.n_controls++] = value;
        }
        else if (strcmp(a, "--case") == 0 && i + 1 < argc && value[0] >= '0' && value[0] <= '9' && !value[1]) script.cases[value[0] - '0'] = argv[++i];
        else if (f < n_files) {
            if (fo_file_read(value, 1 << 20, &read[f], &len, &e)) {
                fprintf(stderr, "script: %s\n", e.msg);
                return 1;
            }
            *files[f].value = read[f];
        } else if (!take_number(a, value)) return usage();
    }
    if (!out) return usage();
    int rc = test_script_write(&script, out, &e);
    if (rc) fprintf(stderr, "script: %s\n", e.msg);
    free(read[0]);
    free(read[1]);
    return rc ? 1 : 0;
}
