/* Reference dots of the types that ref.c has none for, out of the types' own definitions (foundry/quant_*.c), so that no layout is written
 * down twice: with its scale set to one a block dequantises to integers, or to a fixed fraction of integers, exactly; they and the
 * activations are then summed in integers, and scales apply to sums. A min (Q5_1, Q2_K) is the same again, with the scale at zero and the
 * min at one. As in ref.c each block is one float product added to the running sum of its row, in order. */
#include <string.h>

#include "foundry/cpu/kernels.h"
#include "foundry/quant.h"

enum { F16_ONE = 0x3C00, E8M0_ONE = 128, E4M3_TWO = 0x40, SPANS = 4 };

/* A block of weights as integers. */
struct lifted {
    int16_t q[FO_QK_K], m[FO_QK_K];
    float d[SPANS], d_min; /* a scale for each `span` elements of the block */
};

/* How a type is lifted: with scale 1 its elements are multiples of 1 / unit; the places of d and of the min (0: none) if they are halves, or a
 * function that puts the block's scales into d and ones in their place. */
struct rule {
    int unit, d_at, min_at;
    void (*take)(const unsigned char *block, unsigned char *one, float d[SPANS]);
};

static void take_iq1_m(const unsigned char *block, unsigned char *one, float d[SPANS]) {
    struct fo_block_iq1_m from, *to = (void *)one;
    unsigned bits = 0;
    memcpy(&from, block, sizeof from);
    for (int i = 0; i < 4; i++) {
        bits |= (unsigned)(from.scales[i] >> 12) << 4 * i;
        to->scales[i] = (uint16_t)((from.scales[i] & 0xFFF) | (F16_ONE >> 4 * i & 15) << 12);
    }
    d[0] = fo_f16_to_f32((uint16_t)bits);
}

static void take_mxfp4(const unsigned char *block, unsigned char *one, float d[SPANS]) {
    d[0] = ldexpf(1.0f, block[0] - E8M0_ONE);
    one[0] = E8M0_ONE;
}

static void take_nvfp4(const unsigned char *block, unsigned char *one, float d[SPANS]) {
    struct fo_block_nvfp4 probe = { .qs = { 0 } };
    float line[64];
    memcpy(probe.d, block, sizeof probe.d);
    for (int j = 0; j < SPANS; j++) probe.qs[8 * j] = 1; /* the element of value 1: what comes out is the scale */
    fo_nvfp4_to_f32(&probe, line, 64);
    for (int j = 0; j < SPANS; j++) d[j] = line[16 * j], one[j] = E4M3_TWO;
}

/* clang-format off */
static const struct rule rules[FO_N_DTYPES] = {
    [FO_Q5_0]    = { 1, 0, 0, NULL },
    [FO_Q5_1]    = { 1, 0, 2, NULL },
    [FO_IQ4_NL]  = { 1, 0, 0, NULL },
    [FO_MXFP4]   = { 1, 0, 0, take_mxfp4 },
    [FO_NVFP4]   = { 1, 0, 0, take_nvfp4 },
    [FO_Q2_K]    = { 1, offsetof(struct fo_block_q2_k, d), offsetof(struct fo_block_q2_k, dmin), NULL },
    [FO_Q3_K]    = { 1, offsetof(struct fo_block_q3_k, d), 0, NULL },
    [FO_IQ4_XS]  = { 1, 0, 0, NULL },
    [FO_TQ1_0]   = { 1, offsetof(struct fo_block_tq1_0, d), 0, NULL },
    [FO_TQ2_0]   = { 1, offsetof(struct fo_block_tq2_0, d), 0, NULL },
    [FO_IQ2_XXS] = { 8, 0, 0, NULL },
    [FO_IQ2_XS]  = { 8, 0, 0, NULL },
    [FO_IQ2_S]   = { 8, 0, 0, NULL },
    [FO_IQ3_XXS] = { 4, 0, 0, NULL },
    [FO_IQ3_S]   = { 1, 0, 0, NULL },
    [FO_IQ1_S]   = { 8, 0, 0, NULL },
    [FO_IQ1_M]   = { 8, 0, 0, take_iq1_m },
};
/* clang-format on */

static void integers(const struct fo_dtype_info *info, const unsigned char *block, int unit, int16_t *ret) {
    float line[FO_QK_K];
    info->to_f32(block, line, info->block);
    for (int i = 0; i < info->block; i++) ret[i] = (int16_t)(line[i] * (float)unit);
}

static uint16_t swap_half(unsigned char *p, uint16_t to) {
    uint16_t was;
    memcpy(&was, p, sizeof was);
    memcpy(p, &to, sizeof to);
    return was;
}

static void lift(const struct fo_dtype_info *info, const struct rule *rule, const unsigned char *block, struct lifted *ret) {
    _Alignas(4) unsigned char one[256];
    memcpy(one, block, info->block_bytes);
    if (rule->take)
        rule->take(block, one, ret->d);
    else
        ret->d[0] = fo_f16_to_f32(swap_half(one + rule->d_at, F16_ONE));
    if (rule->min_at) ret->d_min = fo_f16_to_f32(swap_half(one + rule->min_at, 0));
    integers(info, one, rule->unit, ret->q);
    if (rule->min_at) {
        swap_half(one + rule->d_at, 0), swap_half(one + rule->min_at, F16_ONE);
        integers(info, one, 1, ret->m);
    }
    for (int j = 0; j < SPANS; j++) ret->d[j] /= (float)rule->unit;
}

static int sum_of(const int16_t *q, const int8_t *x, int n) {
    int sum = 0;
    for (int i = 0; i < n; i++) sum += q[i] * x[i];
    return sum;
}

static void dot_rows(enum fo_dtype type, const unsigned char *w, size_t w_row_bytes, int64_t n_rows, const struct fo_act *a, int64_t t, int n_t,
                     float *y, size_t y_stride) {
    const struct fo_dtype_info *info = fo_dtype_info(type);
    const struct rule *rule = &rules[type];
    int span = type == FO_NVFP4 ? info->block / SPANS : info->block, act_block = a->type == FO_Q8_0 ? FO_QK : FO_QK_K;
    const int8_t *x[FO_TILE];
    const float *x_d[FO_TILE];
    for (int j = 0; j < n_t; j++) {
        x[j] = a->type == FO_Q8_0 ? fo_act_q8_0(a, t + j).q : fo_act_q8_k(a, t + j).q;
        x_d[j] = a->type == FO_Q8_0 ? fo_act_q8_0(a, t + j).d : fo_act_q8_k(a, t + j).d;
    }
    for (int64_t r = 0; r < n_rows; r++, w += w_row_bytes) {
        float sum[FO_TILE] = { 0 };
        for (int64_t b = 0; b < a->k / info->block; b++) {
            struct lifted u = { .d_min = 0 };
            lift(info, rule, w + (size_t)b * info->block_bytes, &u);
            for (int j = 0; j < n_t; j++)
                for (int s = 0; s < info->block; s += span) {
                    int64_t at = b * info->block + s;
                    float by = x_d[j][at / act_block];
                    sum[j] += u.d[s / span] * ((float)sum_of(u.q + s, x[j] + at, span) * by);
                    if (rule->min_at) sum[j] += u.d_min * ((float)sum_of(u.m + s, x[j] + at, span) * by);
                }
        }
        for (int j = 0; j < n_t; j++) y[(size_t)j * y_stride + (size_t)r] = sum[j];
    }
}

#define EACH_TYPE(X)                                                                                                                     \
    X(Q5_0) X(Q5_1) X(IQ4_NL) X(MXFP4) X(NVFP4) X(Q2_K) X(Q3_K) X(IQ4_XS) X(TQ1_0) X(TQ2_0) X(IQ2_XXS) X(IQ2_XS) X(IQ2_S) X(IQ3_XXS)       \
    X(IQ3_S) X(IQ1_S) X(IQ1_M)

#define SLOT(type)                                                                                                                       \
    static void dot_##type(const unsigned char *w, size_t w_row_bytes, int64_t n_rows, const struct fo_act *a, int64_t t, int n_t, float *y, \
                           size_t y_stride) {                                                                                            \
        dot_rows(FO_##type, w, w_row_bytes, n_rows, a, t, n_t, y, y_stride);                                                             \
    }
EACH_TYPE(SLOT)

void fo_cpu_ref_dots(struct fo_cpu_kernels *k) {
#define FILL(type) k->dot[FO_##type] = dot_##type;
    EACH_TYPE(FILL)
}
