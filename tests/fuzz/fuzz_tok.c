/* Tokenizer input and metadata. The first byte chooses: a text for one of the committed vocabularies (with special tokens, marks
 * and a limit drawn from the second byte), whose ids are then decoded; or a whole GGUF whose tokenizer is opened and used. */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "foundry/base/buf.h"
#include "foundry/base/err.h"
#include "foundry/gguf.h"
#include "foundry/tok.h"
#include "tests/support/tok_vocab.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static struct fo_tok *vocabulary(unsigned which) {
    static const char *const names[] = { "bpe352-smollm", "bpe352-llama-bpe", "bpe768-gpt-2", "spm352-phi3", "spm768", "bpe352-qwen2" };
    static struct fo_gguf *file[6]; /* stay open, as the tokenizers need them */
    static struct fo_tok *open[6];
    which %= 6;
    if (!open[which]) {
        char path[256];
        struct fo_buf bytes; /* stay too */
        struct fo_err e = { .msg = "no vocabulary" };
        snprintf(path, sizeof path, "tests/data/tokenizers/%s", names[which]);
        if (!test_vocab_load(path, &bytes) || fo_gguf_parse(bytes.data, bytes.len, path, &file[which], &e) || fo_tok_open(file[which], &open[which], &e)) {
            fprintf(stderr, "%s\n(run me in the root of the repository)\n", e.msg);
            abort();
        }
    }
    return open[which];
}

/* `ours`: a sound vocabulary, of which more can be expected. */
static void use(const struct fo_tok *t, const uint8_t *text, size_t n, unsigned how, bool ours) {
    struct fo_tok_ids ids = { 0 };
    struct fo_err e;
    struct fo_detok d = { { 0 }, 0 };
    struct fo_buf out;
    uint8_t *user = malloc(n + 1);
    if (!user) return;
    for (size_t i = 0; i < n; i++) user[i] = (uint8_t)(text[i] >> (how >> 3 & 3) & 1);
    size_t most = how & 32 ? 1 + n / 4 : 0;
    int rc = fo_tok_encode(t, (const char *)text, n, how & 4 ? user : NULL, how & 3, most, &ids, &e);
    free(user);
    if (rc) {
        if (rc != FO_ELIMIT || !most || e.need <= e.have) abort();
        return;
    }
    fo_buf_init(&out, 16 * n + 65536);
    for (size_t i = 0; i < ids.n; i++) {
        if (ids.ids[i] < 0 || ids.ids[i] >= fo_tok_n_vocab(t)) abort();
        if (ours && !(how & 3) && fo_tok_is_control(t, ids.ids[i])) abort(); /* never out of plain text */
        fo_detok_push(&d, t, ids.ids[i], how & 64, &out);
    }
    fo_detok_end(&d, &out);
    fo_buf_done(&out);
    free(ids.ids);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct fo_err e;
    struct fo_gguf *g = NULL;
    struct fo_tok *t = NULL;
    if (size < 2) return 0;
    if (data[0] & 0x80) {
        if (fo_gguf_parse(data + 2, size - 2, "fuzz", &g, &e)) return 0;
        if (!fo_tok_open(g, &t, &e)) use(t, data + 2, size - 2 < 4096 ? size - 2 : 4096, data[1], false);
        fo_tok_free(t);
        fo_gguf_close(g);
    } else {
        use(vocabulary(data[0]), data + 2, size - 2, data[1], true);
    }
    return 0;
}
