/* Scripts of sim dies: see script.h and README.md. A clause is a handful of words between commas; each rule below takes the words it
 * knows from the front and says what it expected when the next one is another. */
#include "foundry/sim/script.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "foundry/base/err.h"
#include "foundry/base/units.h"

static const char *const subjects[FO_SIM_N_SUBJECTS] = {
    "alloc", "free", "upload", "download", "op", "get_rows", "matmul", "rms_norm", "add", "add_rows", "silu_mul", "rope", "kv_store", "attend",
    "kv_requantise",
};

const char *fo_sim_subject_name(enum fo_sim_subject s) {
    return subjects[s];
}

/* The words of one clause, cut at blanks. */
struct words {
    const char *at, *end;
    char word[FO_SIM_MAX_PATH + 8]; /* the next one; "" at the end */
};

static bool is_blank(char c) {
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

static int next(struct words *w, struct fo_err *e) {
    while (w->at < w->end && is_blank(*w->at)) w->at++;
    const char *from = w->at;
    while (w->at < w->end && !is_blank(*w->at)) w->at++;
    size_t n = (size_t)(w->at - from);
    if (n >= sizeof w->word) return fo_fail(e, FO_ELIMIT, "sim script: a word of %zu bytes, the most is %zu", n, sizeof w->word - 1);
    memcpy(w->word, from, n);
    w->word[n] = '\0';
    return FO_OK;
}

static bool is(const struct words *w, const char *word) {
    return strcmp(w->word, word) == 0;
}

static int expected(const struct words *w, const char *what, struct fo_err *e) {
    if (!w->word[0]) return fo_fail(e, FO_EINVAL, "sim script: the clause ends where %s should stand", what);
    return fo_fail(e, FO_EINVAL, "sim script: '%s' is not %s", w->word, what);
}

static int take_ms(struct words *w, uint64_t *ret, struct fo_err *e) {
    if (!fo_parse_ms(w->word, ret)) return expected(w, "a time such as 500ms", e);
    return next(w, e);
}

/* Digits from *p on. */
static bool number(const char **p, uint64_t *ret) {
    const char *start = *p;
    uint64_t n = 0;
    for (; **p >= '0' && **p <= '9'; ++*p)
        if (__builtin_mul_overflow(n, 10u, &n) || __builtin_add_overflow(n, (uint64_t)(**p - '0'), &n)) return false;
    *ret = n;
    return *p > start;
}

/* "3", "3-5", "3-"; anything that does not begin with a digit is another word: all of them. */
static int take_range(struct words *w, struct fo_sim_clause *c, struct fo_err *e) {
    const char *p = w->word;
    c->first = 1;
    c->last = UINT64_MAX;
    if (*p < '0' || *p > '9') return FO_OK;
    bool good = number(&p, &c->first);
    c->last = c->first;
    if (good && *p == '-') {
        c->last = UINT64_MAX;
        if (*++p) good = number(&p, &c->last);
    }
    if (!good || *p || c->first == 0 || c->last < c->first) return expected(w, "a count from 1 such as 3, 3-5 or 3-", e);
    return next(w, e);
}

static int take_for(struct words *w, struct fo_sim_clause *c, struct fo_err *e) {
    c->for_ms = UINT64_MAX;
    if (!is(w, "for")) return FO_OK;
    if (next(w, e)) return e->code;
    return take_ms(w, &c->for_ms, e);
}

static int take_file(struct words *w, struct fo_sim_clause *c, struct fo_err *e) {
    const char *path = w->word + strlen("file=");
    if (!*path) return expected(w, "file=PATH", e);
    if (strlen(path) >= sizeof c->path) return fo_fail(e, FO_ELIMIT, "sim script: a path of %zu bytes, the most is %zu", strlen(path), sizeof c->path - 1);
    snprintf(c->path, sizeof c->path, "%.*s", (int)sizeof c->path - 1, path);
    return next(w, e);
}

static bool is_file(const struct words *w) {
    return strncmp(w->word, "file=", 5) == 0;
}

static int take_subject(struct words *w, enum fo_sim_subject *ret, const char *what, struct fo_err *e) {
    int i = 0;
    while (i < FO_SIM_N_SUBJECTS && !is(w, subjects[i])) i++;
    if (i == FO_SIM_N_SUBJECTS) return expected(w, what, e);
    *ret = (enum fo_sim_subject)i;
    return next(w, e);
}

/* foreign SIZE [after T] [for T] | foreign file=PATH */
static int foreign(struct words *w, struct fo_sim_clause *c, struct fo_err *e) {
    if (is_file(w)) {
        c->verb = FO_SIM_FOREIGN_FILE;
        return take_file(w, c, e);
    }
    c->verb = FO_SIM_FOREIGN;
    if (!fo_parse_bytes(w->word, &c->bytes)) return expected(w, "a size such as 100MiB, or file=PATH", e);
    if (next(w, e)) return e->code;
    if (is(w, "after") && (next(w, e) || take_ms(w, &c->after_ms, e))) return e->code;
    return take_for(w, c, e);
}

/* lost at SUBJECT N [for T] | lost after T [for T] | lost file=PATH */
static int lost(struct words *w, struct fo_sim_clause *c, struct fo_err *e) {
    if (is_file(w)) {
        c->verb = FO_SIM_LOST_FILE;
        return take_file(w, c, e);
    }
    if (is(w, "after")) {
        c->verb = FO_SIM_LOST_AFTER;
        if (next(w, e) || take_ms(w, &c->after_ms, e)) return e->code;
        return take_for(w, c, e);
    }
    if (!is(w, "at")) return expected(w, "'at', 'after' or file=PATH", e);
    c->verb = FO_SIM_LOST_AT;
    if (next(w, e) || take_subject(w, &c->subject, "what is counted, such as op or alloc", e)) return e->code;
    const char *p = w->word;
    if (!number(&p, &c->first) || *p || c->first == 0) return expected(w, "a count from 1", e);
    c->last = c->first;
    if (next(w, e)) return e->code;
    return take_for(w, c, e);
}

/* reads WHAT N [after T] [for T] */
static int reads(struct words *w, struct fo_sim_clause *c, struct fo_err *e) {
    static const char *const names[FO_SIM_N_READINGS] = { "temperature", "power", "corrected", "uncorrected" };
    int i = 0;
    while (i < FO_SIM_N_READINGS && !is(w, names[i])) i++;
    if (i == FO_SIM_N_READINGS) return expected(w, "a reading: temperature, power, corrected or uncorrected", e);
    c->verb = FO_SIM_READS;
    c->reading = (enum fo_sim_reading)i;
    if (next(w, e)) return e->code;
    const char *p = w->word;
    if (!number(&p, &c->value) || *p) return expected(w, "a whole number", e);
    if (next(w, e)) return e->code;
    if (is(w, "after") && (next(w, e) || take_ms(w, &c->after_ms, e))) return e->code;
    return take_for(w, c, e);
}

/* SUBJECT [RANGE] fails | takes T | late T */
static int counted(struct words *w, struct fo_sim_clause *c, struct fo_err *e) {
    if (take_subject(w, &c->subject, "the start of a clause: alloc, free, upload, download, op, an op's name, foreign, lost or reads", e) ||
        take_range(w, c, e))
        return e->code;
    bool is_free = c->subject == FO_SIM_FREE;
    if (is(w, "fails") && !is_free) {
        c->verb = FO_SIM_FAILS;
        return next(w, e);
    }
    if (is(w, "late") && is_free)
        c->verb = FO_SIM_LATE;
    else if (is(w, "takes"))
        c->verb = FO_SIM_TAKES;
    else
        return expected(w, is_free ? "'late' or 'takes'" : "'fails' or 'takes'", e);
    if (next(w, e)) return e->code;
    return take_ms(w, &c->ms, e);
}

static int clause(const char *from, const char *end, struct fo_sim_clause *c, struct fo_err *e) {
    struct words w = { .at = from, .end = end };
    *c = (struct fo_sim_clause){ .for_ms = UINT64_MAX };
    if (next(&w, e)) return e->code;
    int (*rule)(struct words *, struct fo_sim_clause *, struct fo_err *) = is(&w, "foreign") ? foreign : is(&w, "lost") ? lost : is(&w, "reads") ? reads : counted;
    if (rule != counted && next(&w, e)) return e->code;
    if (rule(&w, c, e)) return e->code;
    return w.word[0] ? expected(&w, "the end of the clause", e) : FO_OK;
}

int fo_sim_script_parse(const char *text, size_t len, struct fo_sim_script *ret, struct fo_err *e) {
    const char *end = text + len, *at = text;
    int n = 0;
    while (at < end && is_blank(*at)) at++;
    if (at < end)
        for (;; at++) {
            const char *stop = memchr(at, ',', (size_t)(end - at));
            if (!stop) stop = end;
            if (n == FO_SIM_MAX_CLAUSES) return fo_fail(e, FO_ELIMIT, "sim script: more than %d clauses", FO_SIM_MAX_CLAUSES);
            if (clause(at, stop, &ret->clause[n++], e)) return e->code;
            at = stop;
            if (at == end) break;
        }
    ret->n = n;
    return FO_OK;
}

/* --- PANTHEON_SIM --- */

static bool good_name(const char *s, size_t n) {
    static const char chars[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
    for (size_t i = 0; i < n; i++)
        if (!memchr(chars, s[i], sizeof chars - 1)) return false;
    return n > 0 && n < FO_SIM_MAX_NAME;
}

/* "NAME:SIZE[,SCRIPT]" */
static int die(const char *from, const char *end, struct fo_sim_die *ret, struct fo_err *e) {
    const char *colon = memchr(from, ':', (size_t)(end - from));
    if (!colon) return fo_fail(e, FO_EINVAL, "PANTHEON_SIM: '%.*s' is no die, expected NAME:SIZE[,SCRIPT]", (int)(end - from < 64 ? end - from : 64), from);
    if (!good_name(from, (size_t)(colon - from)))
        return fo_fail(e, FO_EINVAL, "PANTHEON_SIM: '%.*s' is no name: 1 to %d letters, digits, '.', '_' or '-'",
                       (int)(colon - from < 64 ? colon - from : 64), from, FO_SIM_MAX_NAME - 1);
    const char *comma = memchr(colon, ',', (size_t)(end - colon)), *stop = comma ? comma : end;
    char size[40];
    snprintf(size, sizeof size, "%.*s", (int)(stop - colon - 1 < 32 ? stop - colon - 1 : 32), colon + 1);
    struct fo_sim_die d = { .script = comma ? comma + 1 : end, .script_len = comma ? (size_t)(end - comma - 1) : 0 };
    memcpy(d.name, from, (size_t)(colon - from));
    if (!fo_parse_bytes(size, &d.bytes) || d.bytes == 0)
        return fo_fail(e, FO_EINVAL, "PANTHEON_SIM: die %s: '%s' is no size such as 300MiB", d.name, size);
    struct fo_sim_script checked;
    if (fo_sim_script_parse(d.script, d.script_len, &checked, e)) return fo_wrap(e, "PANTHEON_SIM: die %s", d.name);
    *ret = d;
    return FO_OK;
}

int fo_sim_dies_parse(const char *text, struct fo_sim_die ret[FO_SIM_MAX_DIES], int *ret_n, struct fo_err *e) {
    int n = 0;
    for (const char *at = text, *stop; *at; at = *stop ? stop + 1 : stop) {
        stop = at + strcspn(at, ";");
        if (n == FO_SIM_MAX_DIES) return fo_fail(e, FO_ELIMIT, "PANTHEON_SIM: more than %d dies", FO_SIM_MAX_DIES);
        if (die(at, stop, &ret[n], e)) return e->code;
        for (int i = 0; i < n; i++)
            if (strcmp(ret[i].name, ret[n].name) == 0) return fo_fail(e, FO_EINVAL, "PANTHEON_SIM: two dies are called %s", ret[i].name);
        n++;
    }
    *ret_n = n;
    return FO_OK;
}
