/* Arithmetic over logits that gives the same bits on every host: an exponential of additions and multiplications alone (libm's differs
 * between versions and CPUs), and maxima and sums over a fixed number of lanes, which compilers make vectors of. Pure: any thread. */
#pragma once
#include <math.h>
#include <stdint.h>
#include <string.h>

enum { PN_LANES = 8 }; /* sums and maxima that a vector may carry side by side */

static inline uint32_t pn_bits_of(float f) {
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    return bits;
}

static inline float pn_float_of(uint32_t bits) {
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

/* e^x for x <= 0: x = n ln2 + r, |r| <= ln2/2, a Taylor polynomial for e^r (its error is below half a unit in the last place of
 * float), and n put into the exponent. 0 for NaN and below -87, where floats would become subnormal. Only IEEE additions and
 * multiplications, so every host gives the same bits; no branch, so that compilers make vectors of it. */
static inline float pn_exp_fixed(float x) {
    const float shift = 12582912.0F; /* 1.5 * 2^23: adding it rounds to an integer */
    const uint32_t minus_87 = 0xC2AE0000U, bits = pn_bits_of(x);
    uint32_t in = (bits & 0x7FFFFFFFU) < (minus_87 & 0x7FFFFFFFU) ? UINT32_MAX : 0;
    float low = pn_float_of((bits & in) | (minus_87 & ~in));
    float t = low * 1.44269504F + shift;
    float n = t - shift;
    float r = low - n * 0.693359375F; /* ln2 in two parts: the first is exact in few bits */
    r = r + n * 2.12194440e-4F;
    float y = 1.0F / 5040;
    y = y * r + 1.0F / 720;
    y = y * r + 1.0F / 120;
    y = y * r + 1.0F / 24;
    y = y * r + 1.0F / 6;
    y = y * r + 0.5F;
    y = y * r + 1.0F;
    y = y * r + 1.0F;
    float scale = pn_float_of(((uint32_t)((int32_t)n + 127)) << 23);
    return pn_float_of(pn_bits_of(y * scale) & in);
}

static inline double pn_fold(const double sum[PN_LANES]) {
    return ((sum[0] + sum[4]) + (sum[2] + sum[6])) + ((sum[1] + sum[5]) + (sum[3] + sum[7]));
}

/* The largest of x [n], or -infinity; NaN counts as -infinity. */
static inline float pn_largest_of(const float *x, int32_t n) {
    float max[PN_LANES];
    for (int j = 0; j < PN_LANES; j++) max[j] = -INFINITY;
    int32_t i = 0;
    for (; i + PN_LANES <= n; i += PN_LANES)
        for (int j = 0; j < PN_LANES; j++) max[j] = x[i + j] > max[j] ? x[i + j] : max[j];
    for (; i < n; i++) max[0] = x[i] > max[0] ? x[i] : max[0];
    for (int j = 1; j < PN_LANES; j++) max[0] = max[j] > max[0] ? max[j] : max[0];
    return max[0];
}
