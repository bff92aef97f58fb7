/* What the planner makes of one instance: whether it is as declared, and if not, what the smallest change is. Pure; any thread. */
#pragma once
#include <stdbool.h>

struct cf_estimate;
struct cf_facts;
struct cf_instance;
struct cf_model;
struct cf_names;

enum cf_act {
    CF_ACT_KEEP,
    CF_ACT_SET,
    CF_ACT_RELOAD,
    CF_ACT_UNLOAD,
    CF_ACT_WAIT, /* it is being loaded */
    CF_ACT_GOES  /* it is on its way out, or will be when its load is done: its memory comes back without a step */
};

struct cf_judgement {
    enum cf_act act;
    char why[384];
};

/* An instance of a model that is declared (or asked for by hand), and this copy of it too, on `dies`. */
void cf_judge(const struct cf_facts *f, const struct cf_instance *inst, const struct cf_model *m, const struct cf_names *dies,
              struct cf_judgement *ret);

/* One that must not be there, for a reason. */
void cf_judge_surplus(const struct cf_instance *inst, const char *why, struct cf_judgement *ret);

/* One of a name that is neither declared nor asked for. */
void cf_judge_orphan(const struct cf_facts *f, const struct cf_instance *inst, bool prune, struct cf_judgement *ret);

/* Whether two models take the same memory: one file, and every key that an estimate depends on alike. */
bool cf_same_needs(const struct cf_model *a, const struct cf_model *b);
/* Whether the estimate is of what this model needs. */
bool cf_estimate_is_of(const struct cf_estimate *e, const struct cf_model *m);

/* The estimate that was made for this model's file and caps, or NULL. */
const struct cf_estimate *cf_estimate_find(const struct cf_facts *f, const struct cf_model *m);
