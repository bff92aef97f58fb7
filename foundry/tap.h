/* A device that computes every op twice, on a subject and on a reference, and shows how far apart the results are: what `pantheon drift`
 * and tests of devices stand on. A model opened on a tap runs on the subject, whose results it also gets; the reference follows in memory of
 * its own.
 *
 *   FO_TAP_SAME  the reference computes each op from what the subject had as its input: a difference is that op's own, and is held against the
 *                tolerance of its kind. What an op is meant to round is rounded for the reference too: activations to the 8 bits that the
 *                weights' type takes (a subject that does not round them passes as well), K and V to the type of the KV cache.
 *   FO_TAP_OWN   the reference computes from its own results, so differences add up; nothing is judged. Rows are routed to experts as the
 *                subject's numbers say.
 *
 * What a subject fuses is judged in its parts, which the subject computes once more for that, and then held against them.
 *
 * Addresses of the two devices have nothing to do with each other: all goes through upload and download. Weights are read in place when both
 * devices do that, and are on both otherwise. Beyond these the reference takes as much as the subject, allocated when it is first needed, and
 * the host the rows of one op. One thread; not for serving. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "foundry/dtype.h"

struct fo_device;
struct fo_err;
struct fo_kv_geom;
struct fo_tensor;

enum fo_tap_mode { FO_TAP_SAME, FO_TAP_OWN };

/* What a difference may be, relative to the RMS of the row plus the value itself: the RMS, because an output that is small by cancellation has
 * the error of its terms; the value, because a float's rounding grows with it. A matrix's output may also be as far off as float32 can
 * put a sum of products: FO_TAP_SUM * |row of weights| * |row of activations| (norms; at least the sum of |w * x|, to which kernels.h refers). */
#define FO_TAP_SUM 4e-6
double fo_tap_tolerance(const char *op, enum fo_dtype kv_type); /* kv_type is read for "attend" alone */

/* One op as it was computed; what it points to is valid during the call. One matrix of a call of several is one op. */
struct fo_tap_seen {
    const char *op;             /* the slot: "matmul", "rms_norm", ... */
    const struct fo_tensor *w;  /* the subject's matrix, of matmul and get_rows; else NULL */
    const float *vector;        /* the subject's vector, of rms_norm and a bias' add; else NULL */
    const struct fo_kv_geom *g; /* of kv_store and attend; else NULL */
    int layer;                  /* of the pages, there; else -1 */
    int n;                      /* rows of the result */
    int64_t k_in, k;            /* elements of a row of the input, and of the result */

    bool compared;       /* false: kv_store, whose result only attend shows (where what lies in a page is the device's business) */
    const float *got, *want; /* [n][k] the subject's and the reference's result, on the host */
    double sum2, ref2;   /* of the squares of all differences, and of all the reference's results; finite ones only */
    double max;          /* the largest difference; infinite where one side alone is finite */
    /* The element whose difference is the largest part of what is allowed (as much as is allowed: 1) */
    double share;
    int row;
    int64_t index;
    float sub, ref;
    double diff, allowed;
    bool has_truth; /* matmul past its tolerance: what double precision gives for this element, from what the subject was given */
    double truth;
    const char *note; /* what else is known of a difference past its tolerance, or NULL */
};
/* Called after each op with its context; a code other than 0, with *e set, ends the op with it. */
typedef int fo_tap_fn(void *ctx, const struct fo_tap_seen *seen, struct fo_err *e);

/* Opens a tap over two open devices, which stay the caller's and outlive it. Closed as every device. FO_ENOMEM. */
int fo_tap_open(struct fo_device *subject, struct fo_device *reference, fo_tap_fn *fn, void *ctx, struct fo_device **ret, struct fo_err *e);
/* FO_TAP_SAME until said otherwise. Between passes: the KV of one mode is not the other's, so sequences start anew. */
void fo_tap_set_mode(struct fo_device *tap, enum fo_tap_mode mode);
