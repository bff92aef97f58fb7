/* What an answer is held to: the fields of a request that say so, and the grammar they become. One of them at most. */
#pragma once
#include <stdbool.h>

struct json_t;
struct pd_error;
struct pd_params;
struct pn_served;

/* Fields of params.c. An empty text or list asks for nothing. */
bool pd_grammar_gbnf(struct pd_params *p, const char *field, struct json_t *v, struct pd_error *x);
bool pd_grammar_regex(struct pd_params *p, const char *field, struct json_t *v, struct pd_error *x);
bool pd_grammar_choice(struct pd_params *p, const char *field, struct json_t *v, struct pd_error *x);
/* A schema by itself: an object, true or false, or its text. */
bool pd_grammar_schema(struct pd_params *p, const char *field, struct json_t *v, struct pd_error *x);
/* response_format, and the `format` of a Response's text: an object with a type. `field` is the object's path. */
bool pd_grammar_format(struct pd_params *p, const char *field, struct json_t *v, struct pd_error *x);

/* Compiles it for the model that will answer, before anything is computed: p->grammar, NULL when nothing is asked for. False with the error,
 * whose param is the field, and of a JSON Schema the place in it. */
bool pd_grammar_compile(struct pn_served *s, struct pd_params *p, struct pd_error *ret_error);
