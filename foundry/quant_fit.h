/* Searches for the scale of a run of weights, for the quantisers of files (quant_k_fit.c, quant_iq.c). Rounding to a grid that spans the
 * values is simple and leaves much of the precision unused: a step somewhat smaller or larger, found by trying, gives less error.
 *
 * The method is weighted least squares. Once every value has been given its quant, the scale (and offset) with the least weighted
 * squared error is a closed formula; so a few steps around the obvious one are tried, each assigns quants by rounding, and the fit with
 * the least error wins. Values of larger magnitude weigh more, since what they are multiplied with adds up to more.
 *
 * Everything is pure, any thread. n is a multiple of 8, at most FO_FIT_MAX. Values are finite: callers look first. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

enum { FO_FIT_MAX = 32 };

/* x[i] ~ d * q, q whole in [-top, top - 1], weighted by x[i]². Returns d, of either sign; 0 when all is zero. */
float fo_fit_whole(const float *x, int n, int top);

/* The same, by changing single quants for as long as that helps: better than trying steps when there are few of them (3 bits). */
float fo_fit_by_turns(const float *x, int n, int top);

/* x[i] ~ d * values[q]: values in ascending order, the first of the largest magnitude. Weighted by x[i]². */
float fo_fit_values(const float *x, int n, const int8_t values[16]);

/* x[i] ~ scale * q - low, q whole in [0, top], scale and low not negative. The steps tried are those of grids of top + first,
 * top + first + 0.1, ... (n_tries of them) intervals over the range of the values. A value's weight is its magnitude, with_rms plus the
 * root mean square of all. `absolute` compares fits by the weighted absolute instead of the squared error, which suits 2 bits better. */
struct fo_fit_grid {
    int top, n_tries;
    float first;
    bool with_rms, absolute;
};
float fo_fit_offset(const struct fo_fit_grid *g, const float *x, int n, float *ret_low);
