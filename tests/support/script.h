/* Writes models that say what they are told (engine/families/script.c), with a byte-level vocabulary: a token a byte, and a token each
 * for ChatML's marks and for whatever else is declared special. The weights are a hole in the file: a model of gigabytes takes no room
 * on disk. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

struct fo_err;

enum { TEST_SCRIPT_CASES = 10, TEST_SCRIPT_SPECIALS = 32 };

struct test_script {
    const char *text;                     /* what it says; special tokens in it are found */
    const char *cases[TEST_SCRIPT_CASES]; /* said instead when the last digit of the prompt is this one; NULL = none */
    const char *specials[TEST_SCRIPT_SPECIALS]; /* [n_specials] */
    int n_specials;
    int n_controls; /* so many of the first of them are control tokens, the others are told as text */
    bool endless;                         /* no <|im_end|> behind the texts: the last token repeats */
    uint32_t pace_us, row_us;             /* a step; each of its tokens */
    uint32_t n_layer, n_ctx;
    uint32_t state_bytes;                 /* of recurrent state, of each layer; 0 = none */
    uint64_t weights_bytes;               /* of all layers, rounded up to 256 bytes each; 0 = almost none */
    uint64_t kv_bytes_per_token;          /* of all layers, rounded up to what heads allow */
    const char *chat_template;            /* NULL = none */
};

/* "Hello from a script." in 4 layers, ChatML, 4096 positions, KV of 64 bytes a token, no pace. */
struct test_script test_script_default(void);

/* Writes to path.part, then renames. FO_EINVAL names what does not go. */
int test_script_write(const struct test_script *t, const char *path, struct fo_err *e);
