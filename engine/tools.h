/* The functions that a request offers, and the grammar that calls of them are held to. Counted references, immutable: any thread. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct fo_buf;
struct fo_err;
struct pn_dialect;
struct pn_tools;

enum { PN_MAX_TOOLS = 128, PN_TOOL_NAME_BYTES = 64 };

enum pn_tool_choice { PN_TOOL_AUTO, PN_TOOL_REQUIRED /* at least one call, and nothing else */, PN_TOOL_NAMED /* one call of one function: clients that name one read one */ };

struct pn_tools_opts {
    const char *json; /* [len] a list of {"type": "function", "function": {"name", "description", "parameters", "strict"}}, as the API has it */
    size_t len;
    enum pn_tool_choice choice;
    const char *named; /* with PN_TOOL_NAMED */
    bool one_call;     /* parallel_tool_calls: false */
};

/* Checks and keeps what is needed. On failure the path of what is at fault, below the list, stands in `where` ("0.function.name"). FO_EINVAL: a
 * wrong type, a name that is none (1 to 64 of letters, digits, '_', '-') or comes twice, more than PN_MAX_TOOLS, `named` that is not offered;
 * FO_EUNSUPPORTED: a tool that is no function; FO_ENOMEM. */
int pn_tools_new(const struct pn_tools_opts *o, struct pn_tools **ret, char where[128], struct fo_err *e);
struct pn_tools *pn_tools_ref(struct pn_tools *t);
void pn_tools_put(struct pn_tools *t); /* NULL is allowed */

int pn_tools_n(const struct pn_tools *t);
const char *pn_tools_name(const struct pn_tools *t, int i);
/* The function of that name that may be called (with PN_TOOL_NAMED that one alone), -1 = none. */
int pn_tools_find(const struct pn_tools *t, const char *name, size_t len);
bool pn_tools_is_strict(const struct pn_tools *t, int i);
bool pn_tools_one_call(const struct pn_tools *t);
enum pn_tool_choice pn_tools_choice(const struct pn_tools *t);
/* Whether a parameter of function i is to be text for certain (its schema is of type string, or an enumeration of texts): in dialects whose
 * arguments are plain text it is not read as JSON then. False for what the schema does not know. */
bool pn_tools_param_is_text(const struct pn_tools *t, int i, const char *name, size_t len);

/* The grammar of an answer that is calls of these functions, as the text of a PN_GRAMMAR_PIECES (grammar/pieces.h): one call at least, more where
 * more are allowed. Arguments of strict functions, and of all functions where the choice demands a call, are held to the schema of their
 * parameters, in tags (PN_CALL_TAGS) in its order; others are any object. A schema that cannot be held is an error for a strict function, with
 * its path in `where`, and any object for another. content_schema [n_content]: a JSON Schema to which content is held that may come in the place
 * of calls, NULL = none may; of a failure in it `where` is the JSON pointer ("" or "/..."). FO_EUNSUPPORTED, FO_EINVAL, FO_ELIMIT as
 * pn_schema_compile says, the first also with where "" when the dialect has no calls; FO_ENOMEM. */
int pn_tools_grammar(const struct pn_tools *t, const struct pn_dialect *d, const char *content_schema, size_t n_content, struct fo_buf *ret, char where[128],
                     struct fo_err *e);
/* How that grammar spells the head of a call of function i, up to where its arguments begin: a run that is fed it and then the arguments as they
 * were written follows the rest of the answer. */
void pn_tools_head(const struct pn_tools *t, const struct pn_dialect *d, int i, struct fo_buf *ret);
