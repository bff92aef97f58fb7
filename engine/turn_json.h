/* JSON read byte by byte, strictly: where a value ends and where text stops being one, without keeping any of it. A plain value. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

enum { PN_JSON_DEPTH = 4096 }; /* what is nested deeper is refused; what a grammar follows (PN_PDA_MAX_FRAMES of grammar/pda.h) never is */

struct pn_json_scan {
    uint8_t state, literal, at, key, surrogate;
    uint16_t depth, unit;
    uint64_t lists[PN_JSON_DEPTH / 64]; /* a bit for each level: 1 = a list, 0 = an object */
};

enum pn_json_step {
    PN_JSON_MORE,  /* taken */
    PN_JSON_DONE,  /* taken, and the value ends with it */
    PN_JSON_AFTER, /* not taken: the value (a number) has ended in front of it */
    PN_JSON_BREAK  /* not taken: no JSON goes on so */
};

/* Begins in front of a value; blanks may come before it. */
void pn_json_scan_init(struct pn_json_scan *s);
enum pn_json_step pn_json_scan_step(struct pn_json_scan *s, uint8_t c);
/* Whether what was read is a whole value. */
bool pn_json_scan_is_whole(const struct pn_json_scan *s);
/* Within a string, where bytes other than '"', '\\' and those below 0x20 are taken one and all and change nothing. */
bool pn_json_scan_in_text(const struct pn_json_scan *s);
