/* From what the loop knows to what pages show: a state and conditions for each model, and for the server. Pure but for the wall clock:
 * no engine, no files. Main thread. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

struct cf_facts;
struct cf_plan;
struct pd_counted_manifest;
struct pd_file_state;
struct pd_step;
struct pd_view;
struct pd_world;

struct pd_status_input {
    struct pd_world *world;
    struct pd_counted_manifest *manifest; /* a reference is taken */
    struct cf_facts *facts;               /* taken over */
    const struct cf_plan *plan;           /* NULL = none yet */
    const struct pd_step *step;           /* at work; NULL = none */
    const struct pd_view *before;         /* whose times go on; NULL */
    uint64_t asked, now_ms, step_started_ms;
    bool settled, first_pass_over, manifest_ok, from_kept, draining;
    const char *report;  /* of a bad manifest; "" */
    const char *restart; /* what takes effect only after a restart; "" */
    const struct pd_file_state *keys, *tls; /* of pd_gate_keys and pd_cert_state */
};

/* NULL without memory (the facts are freed then too). */
struct pd_view *pd_status_view(const struct pd_status_input *in);
