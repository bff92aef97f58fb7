/* What the files of the turn parser share: turn.c (what is read where), turn_marks.c (symbols, marks, what is held back and what comes out),
 * turn_call.c (the inside of calls). */
#pragma once
#include "engine/blank.h"
#include "engine/tools.h"
#include "engine/turn.h"
#include "engine/turn_json.h"

/* Text is read as symbols: bytes, and control tokens as one each. */
enum { SYM_MARK = 0x100 /* and the number of the mark */, SYM_BLANKS = 0xFFFF /* in a pattern: any number of blanks */ };
enum { PATTERN_SYMS = 128, HELD_SYMS = 64 << 10, KEY_SYMS = 256, N_CANDIDATES = 3, N_SCANNED = 4 };

/* A text of the dialect, without the blanks at its ends. */
struct pattern {
    uint16_t n, first; /* symbols; those of its first word */
    uint16_t sym[PATTERN_SYMS];
    uint16_t back[PATTERN_SYMS]; /* [first] Knuth-Morris-Pratt: the longest proper prefix that sym[0..=i] ends with */
};
enum { P_OPEN_THOUGHT = PN_N_CALL_TEXTS, P_CLOSE_THOUGHT, N_PATTERNS };

/* A pattern that is followed from where the text stands. */
struct candidate {
    int pattern;
    uint16_t at;
    bool alive;
};

enum turn_state {
    ST_ANCHOR, /* behind blanks, a candidate or content begins */
    ST_SCAN,   /* content */
    ST_THOUGHT,
    ST_OPENED, /* a thought that the prompt has opened, before anything was said: some models open it once more */
    ST_MARKS,  /* a call has begun with the first word of a mark; the rest of it */
    ST_OBJECT, /* the object of a call, up to its arguments and behind them */
    ST_NAME,   /* a name that stands alone, up to the arguments */
    ST_ARGS,   /* arguments: an object */
    ST_TEXT,   /* arguments: an object within a string */
    ST_NEXT,   /* in a list of calls, behind one */
    ST_TAGS,   /* arguments in tags */
    ST_OVER    /* nothing more is read: a call was enough */
};

struct pn_turn {
    struct pn_turn_opts o;
    const struct pn_call_format *f; /* NULL = calls are not looked for */
    struct pattern pattern[N_PATTERNS];
    bool stop[256], stop_thought[256]; /* bytes of content, of a thought, that may be more than that */
    enum turn_state state;

    /* What is being read: the rest of the piece, and a control token that is not whole. */
    const char *cur, *end;
    bool in_mark;
    size_t n_mark;
    char mark[256];

    /* What is held back: in a scan n_blank blanks and a beginning of a mark, in a head all of it. */
    uint16_t *held;
    size_t n_held, size_held, n_blank;
    size_t from; /* where the mark that is followed begins in it */
    uint16_t q[N_SCANNED];
    struct candidate candidate[N_CANDIDATES];

    bool drops_blanks, bare_ok, in_group, is_over;
    bool was_cut; /* pn_turn_cut */
    bool dead; /* there was no memory: nothing is right any more */
    uint32_t n_calls;

    /* A call. */
    int sub; /* the state within ST_OBJECT, ST_NAME, ST_TEXT, ST_TAGS */
    int function; /* -1 = not known yet */
    bool begun, in_list, first_key;
    int key;  /* of the object's members, which */
    int kind; /* of arguments that were met */
    size_t args_from;
    uint32_t n_args;
    struct pn_json_scan scan;
    char name[PN_TOOL_NAME_BYTES + 1];
    size_t n_name;
    uint32_t unit, high;
    int n_digits;
    bool skips_newline, first_of_value, inner;

    struct fo_buf *parts;
    size_t last; /* where the head of the last part of this push stands, SIZE_MAX = none yet */
};

void pn_turn_step(struct pn_turn *t, unsigned sym);
void pn_turn_give_up(struct pn_turn *t);

/* turn_marks.c */
void pn_turn_compile(struct pn_turn *t);
void pn_turn_byte(struct pn_turn *t, uint8_t c);
void pn_turn_flush_mark(struct pn_turn *t);
void pn_turn_put(struct pn_turn *t, enum pn_part part, const char *text, size_t n);
void pn_turn_put_sym(struct pn_turn *t, enum pn_part part, unsigned sym);
void pn_turn_hold(struct pn_turn *t, unsigned sym);
void pn_turn_release(struct pn_turn *t, enum pn_part part, size_t n);
void pn_turn_replay(struct pn_turn *t, size_t from);
void pn_turn_rest(const struct pn_turn *t, size_t from, struct fo_buf *ret);
int pn_turn_scan_step(struct pn_turn *t, int k, int pattern, unsigned sym);
void pn_turn_candidates(struct pn_turn *t, int a, int b, int c);
int pn_turn_follow(struct pn_turn *t, unsigned sym);

/* turn.c */
void pn_turn_scan_from(struct pn_turn *t);
void pn_turn_fail(struct pn_turn *t, unsigned sym);
void pn_turn_fail_mark(struct pn_turn *t);
void pn_turn_call_done(struct pn_turn *t, bool end_word_seen);

/* turn_call.c */
void pn_turn_call_start(struct pn_turn *t, bool bare);
void pn_turn_call_step(struct pn_turn *t, unsigned sym);
