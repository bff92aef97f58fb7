/* From a checked request to its answer, for every endpoint that generates: submit, pull events, deliver them whole or as a stream. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct pd_app;
struct pd_call;
struct pd_params;
struct pn_served;

/* One prompt; the request's n choices are made of each. */
struct pd_job {
    const int32_t *ids; /* [n_ids] */
    uint32_t n_ids;
    bool in_reasoning;  /* they end within a thought */
    const char *echo;   /* [n_echo] what the answer begins with, or NULL */
    size_t n_echo;
};

/* Answers the call, whatever happens. Blocks until the answer is sent or the client has left (noticed within a quarter of a second
 * while nothing is generated, and at the next token while something is). */
void pd_generate(struct pd_app *app, struct pd_call *c, struct pn_served *s, const struct pd_params *p, const struct pd_job *jobs, size_t n_jobs);
