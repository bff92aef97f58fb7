/* Why not more of a prompt was found in what is kept (engine/prefix.h). */
#pragma once

enum pn_cache_miss {
    PN_CACHE_FULL,     /* all but the last token, or but what a page cannot share, was found; or all of a kept text, and the prompt goes on behind it */
    PN_CACHE_OFF,      /* keep_nothing */
    PN_CACHE_EMPTY,    /* nothing is kept for this tenant */
    PN_CACHE_DIVERGED, /* what is kept goes on differently, from the page on in which the first token differs */
    PN_CACHE_EVICTED,  /* more of it was kept once and gave way to others, as far as that is remembered */
    PN_CACHE_WINDOW,   /* the sliding window has let go of what would be seen */
    PN_CACHE_STATE     /* no checkpoint of the recurrent state lies further on */
};
enum { PN_N_CACHE_MISSES = PN_CACHE_STATE + 1 };
