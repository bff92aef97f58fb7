/* Prints what is made from the manifest's key table: docs/manifest.md, or with --schema its JSON Schema. */
#include <stdio.h>
#include <string.h>

#include "config/doc.h"
#include "config/manifest.h"
#include "foundry/base/buf.h"

int main(int argc, char **argv) {
    struct fo_buf out;
    fo_buf_init(&out, 1 << 20);
    if (argc == 2 && strcmp(argv[1], "--schema") == 0)
        cf_doc_schema(cf_manifest_keys(), &out);
    else if (argc == 1)
        cf_doc_markdown(cf_manifest_keys(), &out);
    else {
        fprintf(stderr, "usage: manifest_doc [--schema]\n");
        return 64;
    }
    bool ok = !out.failed && fputs(fo_buf_str(&out), stdout) >= 0 && fflush(stdout) == 0;
    fo_buf_done(&out);
    return ok ? 0 : 1;
}
