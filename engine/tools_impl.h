/* What is kept of the functions that a request offers: for tools.c, which reads them, and tools_grammar.c. Everyone else: tools.h. */
#pragma once
#include <stdatomic.h>

#include "engine/tools.h"

struct json_t;

struct pn_tool {
    const char *name;
    const struct json_t *parameters; /* an object, the schema of the arguments; NULL = the function takes none */
    bool strict;
};

struct pn_tools {
    atomic_int refs;
    struct json_t *root; /* what the names and schemas belong to: read only, its counts are not touched after pn_tools_new */
    enum pn_tool_choice choice;
    int named; /* with PN_TOOL_NAMED */
    bool one_call;
    int n;
    struct pn_tool list[];
};

/* What reference text "#/..." within a schema stands for, or NULL: not this document's, or there is nothing there. */
const struct json_t *pn_tool_follow(const struct json_t *root, const char *ref);
/* Whether all that the schema allows, in the schema document `root`, is text for certain. */
bool pn_tool_is_text(const struct json_t *root, const struct json_t *schema);
/* The schema of a parameter, NULL = it is not declared. */
const struct json_t *pn_tool_param(const struct pn_tool *t, const char *name, size_t len);
