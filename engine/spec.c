/* Drafts: see spec.h.
 *
 * Where to look. Each run of 2, 3 or 4 tokens has a place in one hash table, which holds what came behind the newest such run. When a token
 * comes, the runs that end with it are looked up, longest first, and then entered: a constant number of steps, whatever the text's length.
 * A guess that was right is followed on (`at` moves with the text) until another place shares a longer run with the text's end. The table is
 * bounded; a newer run takes an older one's place, and a guess is only made where the tokens themselves are the same.
 *
 * How far to trust it. The longer the run that two places share, the likelier is the next token the same, and how likely depends on the text:
 * much in code that is being repeated, little in prose. So hits are counted by the length of the run, for every token of the answer that there
 * was a guess for, drafted or not: watching costs nothing, and what was counted does not depend on how fast the machine is. A draft's odds are
 * the product along it, each token making the run one longer.
 *
 * What to pay. Steps of so many rows are timed. A draft's tokens are taken while the tokens that a step gives, by the odds, grow faster than
 * its time. Times fall at once and rise slowly, for others disturb the machine and nobody speeds it up; one that is old counts no more
 * than a plain guess, so that what once looked dear is tried again; and now and then a step goes without drafts, to be compared with. */
#include "engine/spec.h"

#include <stdlib.h>
#include <string.h>

#include "foundry/base/err.h"

enum {
    SHORTEST = 2,
    LONGEST = 4,               /* run that is looked up */
    FAR = 32,                  /* a longer shared run is as good as this one */
    MIN_TABLE = 1 << 8,
    MAX_TABLE = 1 << 17,
    FIRST_TOKENS = 1 << 10,    /* room made at once */
    TRUST = 4,                 /* what is believed beforehand weighs as many tokens as this, */
    MEMORY = 32,               /* and what was seen fades over as many */
    BASE_STEPS = 64,           /* a step without drafts is measured at least so often, */
    OLD_STEPS = 512            /* and what was not for so long counts as old */
};
static const float ROW_SHARE = 0.4F; /* one more row takes this much of a step of one, until it was measured */
static const double GAIN = 1.03;     /* what a draft must promise */

/* The shortest run of each kind, and how often it goes on as it did, in texts at large. */
static const struct {
    uint32_t run;
    float hits;
} kinds[PN_SPEC_KINDS] = { { 2, 0.25F }, { 3, 0.4F }, { 4, 0.5F }, { 6, 0.65F }, { 9, 0.8F }, { 16, 0.92F } };

struct pn_spec {
    int32_t *ids; /* [cap] the text */
    uint32_t n, cap, most;
    uint32_t at;  /* ids[at] is the guess for the next token; 0 = none */
    uint32_t run; /* tokens before it that are as the last of the text, up to FAR */
    float hits[PN_SPEC_KINDS];
    uint32_t seen[PN_SPEC_KINDS];
    bool full;
    uint32_t mask;
    uint32_t table[]; /* [mask + 1] the place behind a run; 0 = none */
};

static uint32_t table_size(uint32_t n_tokens) {
    uint32_t n = MIN_TABLE;
    while (n < MAX_TABLE && n / 2 < n_tokens) n *= 2;
    return n;
}

size_t pn_spec_bytes(uint32_t n_tokens) {
    return sizeof(struct pn_spec) + (size_t)table_size(n_tokens) * sizeof(uint32_t) + (size_t)n_tokens * sizeof(int32_t);
}

int pn_spec_new(uint32_t n_tokens, struct pn_spec **ret, struct fo_err *e) {
    uint32_t n = table_size(n_tokens);
    struct pn_spec *s = calloc(1, sizeof *s + n * sizeof *s->table);
    if (!s) return fo_fail(e, FO_ENOMEM, "no memory for drafts");
    s->mask = n - 1;
    s->most = n_tokens;
    for (int i = 0; i < PN_SPEC_KINDS; i++) s->hits[i] = kinds[i].hits;
    *ret = s;
    return 0;
}

void pn_spec_free(struct pn_spec *s) {
    if (!s) return;
    free(s->ids);
    free(s);
}

/* False: the text is as long as it may be, or there is no memory. Guessing ends, for what is left out would be missing in every run. */
static bool append(struct pn_spec *s, int32_t id) {
    if (s->n == s->cap && !s->full) {
        uint32_t cap = s->cap ? s->cap > s->most / 2 ? s->most : 2 * s->cap : FIRST_TOKENS < s->most ? FIRST_TOKENS : s->most;
        int32_t *ids = cap > s->n ? realloc(s->ids, cap * sizeof *ids) : NULL;
        s->full = !ids;
        if (ids) s->ids = ids, s->cap = cap;
    }
    if (s->full) {
        s->at = 0;
        return false;
    }
    s->ids[s->n++] = id;
    return true;
}

/* The table's place for the last n tokens. */
static uint32_t *place(struct pn_spec *s, uint32_t n) {
    uint64_t h = n;
    for (uint32_t i = s->n - n; i < s->n; i++) h = (h ^ (uint32_t)s->ids[i]) * 0x9E3779B97F4A7C15U, h ^= h >> 29;
    return &s->table[h & s->mask];
}

/* How many tokens before `at` are as the last of the text, up to FAR. */
static uint32_t shared(const struct pn_spec *s, uint32_t at) {
    uint32_t n = 0;
    while (n < FAR && n < at && s->ids[at - 1 - n] == s->ids[s->n - 1 - n]) n++;
    return n;
}

/* Looks the text's end up, if asked to, and enters it. */
static void turn(struct pn_spec *s, bool look) {
    uint32_t longest = s->n < LONGEST ? s->n : LONGEST, *places[LONGEST + 1];
    bool found = !look;
    for (uint32_t n = longest; n >= SHORTEST; n--) {
        places[n] = place(s, n);
        if (found || *places[n] == 0) continue;
        uint32_t run = shared(s, *places[n]);
        found = run >= n; /* else another run's */
        if (found && run > s->run) s->at = *places[n], s->run = run;
    }
    for (uint32_t n = longest; n >= SHORTEST; n--) *places[n] = s->n;
}

void pn_spec_prompt(struct pn_spec *s, const int32_t *ids, uint32_t n) {
    s->at = s->run = 0;
    for (uint32_t i = 0; i < n; i++)
        if (append(s, ids[i])) turn(s, i + 1 == n);
}

static int kind_of(uint32_t run) {
    int k = 0;
    while (k + 1 < PN_SPEC_KINDS && run >= kinds[k + 1].run) k++;
    return k;
}

static void judge(struct pn_spec *s, bool hit) {
    int k = kind_of(s->run);
    if (s->seen[k] < MEMORY - TRUST) s->seen[k]++;
    s->hits[k] += ((hit ? 1.F : 0.F) - s->hits[k]) / (float)(s->seen[k] + TRUST);
}

void pn_spec_add(struct pn_spec *s, int32_t id) {
    if (s->at) {
        bool hit = s->ids[s->at] == id;
        judge(s, hit);
        s->at = hit ? s->at + 1 : 0;
        s->run = !hit ? 0 : s->run < FAR ? s->run + 1 : FAR;
    }
    if (append(s, id)) turn(s, true);
}

uint32_t pn_spec_draft(const struct pn_spec *s, uint32_t cap, int32_t *ret_ids, float *ret_odds) {
    uint32_t n = cap < PN_DRAFT_MAX ? cap : PN_DRAFT_MAX;
    if (!s->at) return 0;
    float odds = 1;
    for (uint32_t i = 0; i < n; i++) {
        odds *= s->hits[kind_of(s->run + i)];
        ret_odds[i] = odds;
        ret_ids[i] = s->at + i < s->n ? s->ids[s->at + i] : ret_ids[s->at + i - s->n]; /* past the end it goes on with itself */
    }
    return n;
}

/* --- what it costs ----------------------------------------------------------------------------- */
void pn_spec_cost_add(struct pn_spec_costs *c, uint32_t n, double ms) {
    if (n == 0 || n > PN_SPEC_MAX_ROWS || !(ms > 0)) return;
    float *v = &c->ms[n], x = (float)ms;
    if (*v == 0 || x < *v) *v = x;
    else *v += ((x < 2 * *v ? x : 2 * *v) - *v) / 16;
    c->seen[n] = ++c->step;
}

/* The nearest measured below n (step -1), or above; 0 = none. */
static uint32_t nearest(const struct pn_spec_costs *c, uint32_t n, int step) {
    while (n > 0 && n <= PN_SPEC_MAX_ROWS && c->ms[n] == 0) n += (uint32_t)step;
    return n <= PN_SPEC_MAX_ROWS ? n : 0;
}

double pn_spec_cost(const struct pn_spec_costs *c, uint32_t n) {
    uint32_t lo = nearest(c, n, -1), hi = nearest(c, n, 1);
    if (!lo && !hi) return 0;
    if (!lo) return (double)c->ms[hi] * n / hi;
    if (!hi) return (double)c->ms[lo] * (1 + (double)ROW_SHARE * (n - lo) / lo);
    if (lo == hi) return (double)c->ms[n];
    return (double)c->ms[lo] + (double)(c->ms[hi] - c->ms[lo]) * (n - lo) / (hi - lo);
}

/* The same beside a step of `base` rows: what was not measured for long is not dearer than a plain guess. */
static double cost_beside(const struct pn_spec_costs *c, uint32_t base, double base_ms, uint32_t n) {
    double ms = pn_spec_cost(c, n), guess = base_ms * (1 + (double)ROW_SHARE * (n - base) / base);
    bool old = n <= PN_SPEC_MAX_ROWS && c->ms[n] > 0 && c->step - c->seen[n] > OLD_STEPS;
    return old && guess < ms ? guess : ms;
}

uint32_t pn_spec_worth(const struct pn_spec_costs *c, uint32_t n_answers, const float *odds, uint32_t n) {
    double base = n_answers <= PN_SPEC_MAX_ROWS ? pn_spec_cost(c, n_answers) : 0, tokens = n_answers, best;
    uint32_t worth = 0;
    if (base == 0 || c->ms[n_answers] == 0 || c->step - c->seen[n_answers] > BASE_STEPS) return 0;
    best = tokens / base * GAIN;
    for (uint32_t k = 1; k <= n; k++) {
        tokens += (double)odds[k - 1];
        double rate = tokens / cost_beside(c, n_answers, base, n_answers + k);
        if (rate > best) best = rate, worth = k;
    }
    return worth;
}
