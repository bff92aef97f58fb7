/* How much a model thinks before it answers: the fields that say so. */
#pragma once
#include <stdbool.h>

struct fo_buf;
struct json_t;
struct pd_error;
struct pd_params;

enum { PD_BUDGET_UNSET = -2, PD_BUDGET_NONE = -1 /* as many tokens as it likes */ };

/* Fields of params.c: of chat a word, of Responses an object that has it. */
bool pd_reasoning_effort(struct pd_params *p, struct json_t *v, struct pd_error *x);
bool pd_reasoning_object(struct pd_params *p, struct json_t *v, struct pd_error *x);

/* What they mean to the template (p->extra_json) and to the budget, once all fields have been read. What chat_template_kwargs has stands. */
bool pd_reasoning_settle(struct pd_params *p, struct pd_error *x);

/* The part of the reference page about it. */
void pd_reasoning_doc(struct fo_buf *out);
