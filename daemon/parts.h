/* What an answer has, part by part in the order in which the model said it: thoughts, text, calls. For whole answers, and for a Response's stream,
 * whose last events say everything again. One owner: the connection. */
#pragma once
#include <stdbool.h>
#include <stddef.h>

#include "engine/turn.h"
#include "foundry/base/buf.h"

enum { PD_ID_BYTES = 40 };

struct pd_part {
    enum pn_part kind;       /* PN_PART_CONTENT, PN_PART_REASONING or PN_PART_CALL */
    char call[PD_ID_BYTES];  /* of a call: "call_" and 24 digits, made once */
    char item[PD_ID_BYTES];  /* its name as an item of a Response: "msg_...", "rs_..." or "fc_..." */
    struct fo_buf name;      /* of a call */
    struct fo_buf text;      /* of a call its arguments */
    struct fo_buf logprobs;  /* of text: the members of a JSON list */
};

struct pd_parts {
    struct pd_part *list; /* [n] */
    size_t n, size;
    size_t bytes, cap_bytes; /* of all texts and names */
    bool failed;             /* memory was missing, or the cap passed: what is there is not whole */
};

void pd_parts_init(struct pd_parts *p, size_t cap_bytes);
void pd_parts_done(struct pd_parts *p);

/* Text of this kind goes on in the last part or begins the next; PN_PART_CALL always begins one. The part, NULL when it failed. */
struct pd_part *pd_parts_add(struct pd_parts *p, enum pn_part kind, const char *text, size_t len);
/* Whether such text begins a new part. */
bool pd_parts_begins(const struct pd_parts *p, enum pn_part kind);
size_t pd_parts_count(const struct pd_parts *p, enum pn_part kind);

/* "PREFIX" and 24 random hexadecimal digits. */
void pd_answer_id(char *id, size_t size, const char *prefix);
