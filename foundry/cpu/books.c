/* The books are made from the types' own definitions: a block whose scale is one and whose indices name an entry dequantises to that entry,
 * so that what an index stands for is written down once, in quant_iq.c. */
#include "foundry/cpu/books.h"

#include <pthread.h>
#include <string.h>

#include "foundry/dtype.h"
#include "foundry/quant.h"

static struct fo_cpu_books books;
static pthread_once_t made = PTHREAD_ONCE_INIT;

/* Elements x[n] times `unit` plus `offset`, integers of one byte each. */
static uint64_t bytes_of(const float *x, int n, float unit, int offset) {
    uint64_t bytes = 0;
    for (int i = 0; i < n; i++) bytes |= (uint64_t)(uint8_t)((int)(x[i] * unit) + offset) << 8 * i;
    return bytes;
}

static void make(void) {
    enum { F16_ONE = 0x3C00 };
    float x[FO_QK_K];
    for (unsigned i = 0; i < 2048; i++) { /* in each type the first run of elements, with the least scale that it has */
        if (i < 256) {
            struct fo_block_iq2_xxs b = { .d = F16_ONE, .sub = { { .index = { (uint8_t)i } } } };
            fo_iq2_xxs_to_f32(&b, x, FO_QK_K);
            books.iq2_xxs[i] = bytes_of(x, 8, 8, 0);
            struct fo_block_iq3_xxs b3 = { .d = F16_ONE, .qs = { (uint8_t)i } };
            fo_iq3_xxs_to_f32(&b3, x, FO_QK_K);
            books.iq3_xxs[i] = (uint32_t)bytes_of(x, 4, 4, 0);
        }
        if (i < 512) {
            struct fo_block_iq2_xs b = { .d = F16_ONE, .qs = { (uint16_t)i } };
            fo_iq2_xs_to_f32(&b, x, FO_QK_K);
            books.iq2_xs[i] = bytes_of(x, 8, 8, 0);
            struct fo_block_iq3_s b3 = { .d = F16_ONE, .qs = { (uint8_t)i }, .qh = { (uint8_t)(i >> 8) } };
            fo_iq3_s_to_f32(&b3, x, FO_QK_K);
            books.iq3_s[i] = (uint32_t)bytes_of(x, 4, 1, 0);
        }
        if (i < 1024) {
            struct fo_block_iq2_s b = { .d = F16_ONE, .qs = { (uint8_t)i }, .qh = { (uint8_t)(i >> 8) } };
            fo_iq2_s_to_f32(&b, x, FO_QK_K);
            books.iq2_s[i] = bytes_of(x, 8, 8, 0);
        }
        struct fo_block_iq1_s b = { .d = F16_ONE, .qs = { (uint8_t)i }, .qh = { (uint16_t)(i >> 8) } };
        fo_iq1_s_to_f32(&b, x, FO_QK_K);
        for (int j = 0; j < 8; j++) x[j] -= 0.125f; /* the shift */
        books.iq1[i] = bytes_of(x, 8, 1, 1);
    }
    for (unsigned i = 0; i < 128; i++) {
        struct fo_block_iq2_xxs b = { .d = F16_ONE, .sub = { { .word = { (uint8_t)i } } } };
        fo_iq2_xxs_to_f32(&b, x, FO_QK_K);
        for (int j = 0; j < 8; j++) x[j] = copysignf(1, x[j]);
        books.signs[i] = bytes_of(x, 8, 1, 0);
    }
}

const struct fo_cpu_books *fo_cpu_books(void) {
    pthread_once(&made, make);
    return &books;
}
