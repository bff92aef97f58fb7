/* Searches for scales: see quant_fit.h. Sums run in eight lanes, so that compilers turn the loops into vector code without being
 * allowed to reorder floating point; the order is fixed, hence the result is the same everywhere. */
#include "foundry/quant_fit.h"

#include <math.h>

#include "foundry/quant.h"

enum { LANES = 8 };

static float total(const float v[LANES]) {
    return ((v[0] + v[1]) + (v[2] + v[3])) + ((v[4] + v[5]) + (v[6] + v[7]));
}

static float clamp(float v, float lo, float hi) {
    v = v < lo ? lo : v;
    return v > hi ? hi : v;
}

/* The values in units of the largest magnitude, and its sign: sums of squares can neither overflow nor vanish. Returns the unit, 0 when
 * there is nothing to fit. */
static float normalise(const float *x, int n, float *y, float *ret_extreme) {
    float extreme = fo_extreme(x, n), unit = fabsf(extreme), inverse = fo_inverse(unit);
    for (int i = 0; i < n; i++) y[i] = x[i] * inverse;
    *ret_extreme = extreme < 0 ? -1.0f : 1.0f;
    return inverse > 0 ? unit : 0;
}

/* What a fit d * q of values is judged by: with sums of w x q and w q q the best d is xq / qq, and it explains xq² / qq of the sum of
 * w x x. */
struct sums {
    float xq, qq;
};

static bool better(struct sums a, struct sums b) {
    return a.qq > 0 && a.xq * a.xq * b.qq > b.xq * b.xq * a.qq;
}

static struct sums assign_whole(const float *x, int n, float inverse, float top) {
    float xq[LANES] = { 0 }, qq[LANES] = { 0 };
    for (int i = 0; i < n; i += LANES)
        for (int k = 0; k < LANES; k++) {
            float v = x[i + k], q = clamp(rintf(v * inverse), -top, top - 1), w = v * v;
            xq[k] += w * v * q;
            qq[k] += w * q * q;
        }
    return (struct sums){ total(xq), total(qq) };
}

float fo_fit_whole(const float *x, int n, int top) {
    float y[FO_FIT_MAX], sign, unit = normalise(x, n, y, &sign);
    if (unit == 0) return 0;
    struct sums best = { 0, 1 };
    for (int k = -9; k <= 9; k++) { /* the extreme value stands at -top, or up to nine tenths of a step beside it */
        struct sums s = assign_whole(y, n, -((float)top + 0.1f * (float)k) * sign, (float)top);
        if (better(s, best)) best = s;
    }
    return unit * (best.xq / best.qq);
}

float fo_fit_by_turns(const float *x, int n, int top) {
    enum { MAX_ROUNDS = 5 };
    float y[FO_FIT_MAX], q[FO_FIT_MAX], sign, unit = normalise(x, n, y, &sign);
    if (unit == 0) return 0;
    struct sums all = { 0, 0 };
    for (int i = 0; i < n; i++) {
        q[i] = clamp(rintf(y[i] * -(float)top * sign), -(float)top, (float)top - 1);
        all.xq += y[i] * y[i] * y[i] * q[i];
        all.qq += y[i] * y[i] * q[i] * q[i];
    }
    bool changed = true;
    for (int round = 0; round < MAX_ROUNDS && changed; round++) {
        changed = false;
        for (int i = 0; i < n; i++) { /* the scale that the others ask for: does another quant suit it better? */
            float w = y[i] * y[i];
            struct sums s = { all.xq - w * y[i] * q[i], all.qq - w * q[i] * q[i] };
            if (s.xq <= 0) continue;
            float other = clamp(rintf(y[i] * s.qq / s.xq), -(float)top, (float)top - 1);
            s.xq += w * y[i] * other;
            s.qq += w * other * other;
            if (other == q[i] || !better(s, all)) continue;
            q[i] = other;
            all = s;
            changed = true;
        }
    }
    return all.qq > 0 ? unit * (all.xq / all.qq) : 0;
}

/* Assigns to each value the nearest of sixteen: the first, and for every boundary passed the distance to the next. */
static struct sums assign_values(const float *x, int n, float inverse, const float middle[15], const float step[15], float first) {
    float xq[LANES] = { 0 }, qq[LANES] = { 0 };
    for (int i = 0; i < n; i += LANES) {
        float v[LANES], q[LANES];
        for (int k = 0; k < LANES; k++) {
            v[k] = x[i + k] * inverse;
            q[k] = first;
        }
        for (int j = 0; j < 15; j++)
            for (int k = 0; k < LANES; k++) q[k] += v[k] > middle[j] ? step[j] : 0.0f;
        for (int k = 0; k < LANES; k++) {
            float w = x[i + k] * x[i + k];
            xq[k] += w * x[i + k] * q[k];
            qq[k] += w * q[k] * q[k];
        }
    }
    return (struct sums){ total(xq), total(qq) };
}

float fo_fit_values(const float *x, int n, const int8_t values[16]) {
    float y[FO_FIT_MAX], middle[15], step[15], sign, unit = normalise(x, n, y, &sign);
    if (unit == 0) return 0;
    for (int j = 0; j < 15; j++) {
        middle[j] = 0.5f * (float)(values[j] + values[j + 1]);
        step[j] = (float)(values[j + 1] - values[j]);
    }
    struct sums best = { 0, 1 };
    for (int k = -7; k <= 11; k++) { /* the extreme value stands at values[0], or up to seven units beside it; or near the other end */
        float at = (float)(k <= 7 ? values[0] + k : values[15] + 5 * (k - 8));
        struct sums s = assign_values(y, n, at * sign, middle, step, values[0]);
        if (better(s, best)) best = s;
    }
    return unit * (best.xq / best.qq);
}

/* One try of fo_fit_offset: quants by rounding, then scale and offset by the normal equations
 *
 *     scale * sum(w q q) - low * sum(w q) = sum(w x q)
 *     scale * sum(w q)   - low * sum(w)   = sum(w x)
 *
 * or the scale alone where the offset would be negative. Returns the error; a negative one where there is no solution. */
static float try_offset(const struct fo_fit_grid *g, const float *x, const float *w, int n, float min, float inverse, float sum_w, float sum_x,
                        float *ret_scale, float *ret_low) {
    float q[FO_FIT_MAX], l_q[LANES] = { 0 }, l_qq[LANES] = { 0 }, l_xq[LANES] = { 0 }, l_err[LANES] = { 0 };
    for (int i = 0; i < n; i += LANES)
        for (int k = 0; k < LANES; k++) {
            float v = clamp(rintf((x[i + k] - min) * inverse), 0, (float)g->top), wq = w[i + k] * v;
            q[i + k] = v;
            l_q[k] += wq;
            l_qq[k] += wq * v;
            l_xq[k] += wq * x[i + k];
        }
    float sum_q = total(l_q), sum_qq = total(l_qq), sum_xq = total(l_xq), det = sum_w * sum_qq - sum_q * sum_q;
    if (!(det > 0)) return -1;
    float scale = (sum_w * sum_xq - sum_x * sum_q) / det, low = (sum_q * sum_xq - sum_qq * sum_x) / det;
    if (low < 0) {
        low = 0;
        scale = sum_xq / sum_qq;
    }
    for (int i = 0; i < n; i += LANES)
        for (int k = 0; k < LANES; k++) {
            float diff = scale * q[i + k] - low - x[i + k];
            l_err[k] += w[i + k] * (g->absolute ? fabsf(diff) : diff * diff);
        }
    *ret_scale = scale;
    *ret_low = low;
    return total(l_err);
}

float fo_fit_offset(const struct fo_fit_grid *g, const float *x, int n, float *ret_low) {
    float y[FO_FIT_MAX], weight[FO_FIT_MAX], sign, unit = normalise(x, n, y, &sign), min = 0, max = y[0], squares = 0, sum_w = 0, sum_x = 0;
    *ret_low = 0;
    if (unit == 0) return 0;
    for (int i = 0; i < n; i++) squares += y[i] * y[i];
    float rms = g->with_rms ? sqrtf(squares / (float)n) : 0;
    for (int i = 0; i < n; i++) {
        min = y[i] < min ? y[i] : min;
        max = y[i] > max ? y[i] : max;
        weight[i] = rms + fabsf(y[i]);
        sum_w += weight[i];
        sum_x += weight[i] * y[i];
    }
    if (max == min) { /* all the same and negative: the offset alone */
        *ret_low = -min * unit;
        return 0;
    }
    float scale = (max - min) / (float)g->top, low = -min, best = 0; /* the grid that spans the values */
    for (int i = 0; i < n; i++) {
        float diff = scale * clamp(rintf((y[i] - min) / scale), 0, (float)g->top) - low - y[i];
        best += weight[i] * (g->absolute ? fabsf(diff) : diff * diff);
    }
    for (int k = 0; k < g->n_tries; k++) {
        float s, l, inverse = ((float)g->top + g->first + 0.1f * (float)k) / (max - min);
        float error = try_offset(g, y, weight, n, -low, inverse, sum_w, sum_x, &s, &l); /* from where the best so far begins */
        if (error < 0 || error >= best) continue;
        best = error;
        scale = s;
        low = l;
    }
    *ret_low = low * unit;
    return scale * unit;
}
