/* Any bytes as a GGUF file: an error, or a file all of whose parts can be read. make fuzz builds this with libFuzzer; its seeds are
 * tests/data/gguf, which tests/foundry/test_gguf_hostile.c runs as ordinary tests through this same function. */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "foundry/base/err.h"
#include "foundry/gguf.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Touches everything an accessor hands out; the sum keeps the compiler from dropping the reads. */
static uint64_t walk(const struct fo_gguf *g) {
    uint64_t sum = fo_gguf_alignment(g) + fo_gguf_version(g);
    struct fo_err e;
    for (size_t i = 0; i < fo_gguf_n_kv(g); i++) {
        const struct fo_gguf_kv *kv = fo_gguf_kv_at(g, i);
        struct fo_str s = { "", 0 };
        uint64_t at = 0, n = 0, u;
        float f;
        char key[64];
        while (fo_gguf_array_str(kv, &at, &s)) {
            sum += s.len ? (uint8_t)s.s[0] + (uint8_t)s.s[s.len - 1] : 0;
            n++;
        }
        if (kv->elem == FO_GGUF_STRING && n != kv->n) __builtin_trap();
        if (kv->n) sum += (uint64_t)fo_gguf_array_i64(kv, 0) + (uint64_t)fo_gguf_array_i64(kv, kv->n - 1);
        sum += fo_gguf_array_f64(kv, kv->n) != 0;
        if (kv->key.len >= sizeof key) continue;
        memcpy(key, kv->key.s, kv->key.len);
        key[kv->key.len] = '\0';
        if (fo_gguf_find(g, key) != kv) __builtin_trap();
        if (fo_gguf_get_u64(g, key, &u, &e) == 0) sum += u;
        if (fo_gguf_get_f32(g, key, &f, &e) == 0) sum += f > 0;
        if (fo_gguf_get_str(g, key, &s, &e) == 0) sum += s.len;
    }
    for (size_t i = 0; i < fo_gguf_n_tensors(g); i++) {
        const struct fo_gguf_tensor *t = fo_gguf_tensor_at(g, i);
        const uint8_t *bytes = t->t.data;
        if (t->bytes == 0 || t->bytes != fo_tensor_bytes(&t->t)) __builtin_trap();
        sum += (uint64_t)bytes[0] + bytes[t->bytes - 1];
    }
    return sum;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct fo_gguf *g;
    struct fo_err e;
    if (fo_gguf_parse(data, size, "fuzz", &g, &e) == 0) {
        uint64_t sum = walk(g);
        __asm__ volatile("" : : "r"(sum));
        fo_gguf_close(g);
    } else if (e.code == FO_OK || e.msg[0] == '\0') {
        __builtin_trap(); /* a refusal says why */
    }
    return 0;
}
