/* The functions that a request offers: the fields that say so, what an answer is then held to, and how a Response repeats them. What a list of
 * functions must be is the engine's to say (engine/tools.h); here are the two APIs' ways to write it. */
#pragma once
#include <stdbool.h>

struct fo_buf;
struct json_t;
struct pd_error;
struct pd_params;
struct pn_served;

/* Fields of params.c. */
bool pd_tools_list(struct pd_params *p, struct json_t *v, struct pd_error *x);
bool pd_tools_choice(struct pd_params *p, struct json_t *v, struct pd_error *x);

/* What the fields together mean, once all have been read: p->tools and p->tools_json, NULL when no call is wanted. */
bool pd_tools_settle(struct pd_params *p, struct pd_error *x);

/* Compiles what calls are held to for the model that will answer, before anything is computed, and after pd_grammar_compile: p->calls, and
 * p->grammar where it is to hold the whole answer. False with the error, whose param is the place in `tools`. */
bool pd_tools_compile(struct pn_served *s, struct pd_params *p, struct pd_error *x);

/* The list as a Response has it, appended to out. */
void pd_tools_repeat(const struct pd_params *p, struct fo_buf *out);

/* The part of the reference page about them. */
void pd_tools_doc(struct fo_buf *out);
