/* The inside of a chat, for chat*.c only. */
#pragma once
#include "engine/chat.h"
#include "engine/value_impl.h"
#include "foundry/base/err.h"

struct fo_region;
struct pn_jinja;

/* The roles whose content is probed. */
enum { PN_PROBE_USER, PN_PROBE_SYSTEM, PN_PROBE_ASSISTANT, PN_PROBE_TOOL, PN_N_PROBES };

struct pn_chat {
    enum pn_chat_source source;
    struct pn_jinja *jinja; /* NULL: none, or it did not parse */
    struct fo_err state;    /* code FO_OK when it did */
    char *bos, *eos;        /* text; never NULL */
    bool lists[PN_N_PROBES]; /* the template takes parts in this role's content */
    bool objects;           /* it needs a call's arguments as an object */
    bool no_nulls;          /* it cannot take null as the content of an assistant's message */
    bool no_system;         /* it takes no system message */
    bool endless;           /* a probe passed its limits: none was made after it */
    bool wants_tools;       /* it fails where `tools` is None, and not where it is an empty list */
    bool whole_tools;       /* it fails where a function has no description or no parameters */
    bool one_call;          /* it fails where a message has more than one call */
    bool short_ids;         /* it takes only ids of calls of nine letters and digits */
    struct pn_dialect *dialect;
};

/* Makes the conversation *messages, a list of messages as the API has them, one that the template understands: see chat.h. What is new lies in
 * r. Errors of values, and FO_EINVAL for what is no list. */
int pn_chat_fit(const struct pn_chat *c, const struct pn_chat_input *in, struct fo_region *r, struct pn_value *messages, struct fo_err *e);
/* The same for *tools, a list of functions. */
int pn_chat_fit_tools(const struct pn_chat *c, struct fo_region *r, struct pn_value *tools, struct fo_err *e);
