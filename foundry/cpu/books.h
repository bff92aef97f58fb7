/* The code books of the IQ1, IQ2 and IQ3 types as kernels want them: an entry is the bytes of its elements, the first lowest, in place of
 * their indices (foundry/quant_iq_grids.c). */
#pragma once
#include <stdint.h>

struct fo_cpu_books {
    uint64_t iq2_xxs[256], iq2_xs[512], iq2_s[1024]; /* magnitudes of eight elements: 8, 25, 43 */
    uint32_t iq3_xxs[256], iq3_s[512];               /* of four: 4..62 by eights, 1..15 */
    uint64_t iq1[2048];                              /* eight elements plus one: 0, 1, 2 */
    uint64_t signs[128];                             /* seven bits of signs as eight bytes, 1 or -1; the eighth makes the minus signs even */
};

/* The same books for every caller, any thread; made when first asked for. */
const struct fo_cpu_books *fo_cpu_books(void);
