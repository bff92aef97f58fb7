/* Circles: see loop.h. For every distance d it counts how many of the newest tokens equal what stood d places before them; d of those are a
 * run said twice. */
#include "engine/loop.h"

bool pn_loop_push(struct pn_loop *l, int32_t id) {
    uint32_t n = l->n < PN_LOOP_LAG ? (uint32_t)l->n : PN_LOOP_LAG, at = (uint32_t)(l->n % PN_LOOP_LAG);
    bool found = false;
    for (uint32_t d = 1; d <= n; d++) {
        uint32_t *same = &l->same[d - 1];
        *same = l->ids[(at + PN_LOOP_LAG - d) % PN_LOOP_LAG] == id ? *same + 1 : 0;
        found |= *same >= (d > PN_LOOP_RUN ? d : PN_LOOP_RUN);
    }
    l->ids[at] = id;
    l->n++;
    return found;
}
