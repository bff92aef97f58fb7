/* Notices when a model goes round in circles: the newest tokens are a run that was said twice, one time right behind the other. One owner. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

enum {
    PN_LOOP_RUN = 32,  /* a run has this many tokens at least: a shorter one counts when it comes as often as fills them, and one time more */
    PN_LOOP_LAG = 1024 /* and at most this many */
};

/* A value: start with all zero. */
struct pn_loop {
    uint64_t n;               /* tokens so far */
    int32_t ids[PN_LOOP_LAG]; /* the last ones, round */
    uint32_t same[PN_LOOP_LAG]; /* [d - 1]: so many of the newest are what stood d places before */
};

/* One more token. True when a run ends with it that is the PN_LOOP_RUN to PN_LOOP_LAG tokens in front of it once more. PN_LOOP_LAG
 * comparisons. */
bool pn_loop_push(struct pn_loop *l, int32_t id);
