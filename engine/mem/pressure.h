/* How short memory is: from readings of a die or of the host to one of four levels. Pure: the clock is an argument. One thread at a time.
 *
 * Up at once: a reading that reaches a level's threshold is that level. Down one level at a time, when what was read has stayed `leave`
 * percent points below that level's own threshold for `hold_ms`: what was given back must not bring back at once what took it.
 *
 * Two things are read, and whichever says more binds: the share of memory in use, against the thresholds of the manifest; and, of the host, how
 * long tasks stalled for memory (PSI, avg10 in percent of time), against the table in pressure.c. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

enum pn_level { PN_NORMAL, PN_WATCH, PN_TIGHT, PN_CRITICAL, PN_N_LEVELS };
const char *pn_level_name(enum pn_level level); /* "normal", "watch", "tight", "critical" */

struct pn_reading {
    uint64_t total, available;  /* bytes; total 0 = not known: then use says nothing */
    double psi_some, psi_full;  /* percent of the last ten seconds in which some, all tasks waited for memory; 0 = none, or not known */
};

struct pn_thresholds {
    double at[PN_N_LEVELS]; /* percent of memory in use from which on it is this level; ascending, at[PN_NORMAL] is not read */
    double leave;           /* percent points */
    uint64_t hold_ms;
};

/* Zeroed: normal. */
struct pn_pressure {
    enum pn_level level;
    bool falling;      /* readings are below this level since then */
    uint64_t since_ms;
};

/* Percent of memory in use. */
double pn_reading_use(const struct pn_reading *r);
/* The level of one reading alone. */
enum pn_level pn_pressure_of(const struct pn_thresholds *t, const struct pn_reading *r);
/* Takes a reading at now_ms (never earlier than the one before); true when the level is another one. */
bool pn_pressure_take(struct pn_pressure *p, const struct pn_thresholds *t, const struct pn_reading *r, uint64_t now_ms);
