/* Reasoning: see reasoning.h. Effort is a variable of those templates that know it, and nothing to the others; that there shall be none is kept
 * whatever the template: a thought then ends where it begins. */
#include "daemon/reasoning.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/oai.h"
#include "daemon/params.h"
#include "foundry/base/buf.h"

static bool take_effort(struct pd_params *p, const char *at, const json_t *v, struct pd_error *x) {
    static const char *const words[] = { "none", "minimal", "low", "medium", "high", "xhigh" };
    if (!json_is_string(v)) return pd_error_set(x, PD_ERR_INVALID, at, "'%s' must be a text.", at);
    const char *word = pd_json_word(v);
    for (size_t i = 0; word && i < sizeof words / sizeof *words; i++) {
        if (strcmp(word, words[i]) != 0) continue;
        p->effort = words[i];
        return true;
    }
    return pd_error_set(x, PD_ERR_VALUE, at, "'%s' must be none, minimal, low, medium, high or xhigh.", at);
}

bool pd_reasoning_effort(struct pd_params *p, json_t *v, struct pd_error *x) {
    return take_effort(p, "reasoning_effort", v, x);
}

bool pd_reasoning_object(struct pd_params *p, json_t *v, struct pd_error *x) {
    static const char *const harmless[] = { "summary", "generate_summary", "context" };
    const char *key;
    json_t *member;
    if (!json_is_object(v)) return pd_error_set(x, PD_ERR_INVALID, "reasoning", "'reasoning' must be an object.");
    json_object_foreach(v, key, member) {
        char at[96];
        snprintf(at, sizeof at, "reasoning.%.60s", key);
        if (strcmp(key, "effort") == 0) {
            if (!json_is_null(member) && !take_effort(p, at, member, x)) return false;
            continue;
        }
        size_t k = 0;
        while (k < sizeof harmless / sizeof *harmless && strcmp(key, harmless[k]) != 0) k++;
        if (k == sizeof harmless / sizeof *harmless) return pd_error_set(x, PD_ERR_UNKNOWN_PARAM, at, "'%s' is not known to this server.", at);
    }
    return true;
}

bool pd_reasoning_settle(struct pd_params *p, struct pd_error *x) {
    const json_t *given = json_object_get(p->root, "chat_template_kwargs");
    if (!p->effort) return true;
    bool none = strcmp(p->effort, "none") == 0, own = json_object_get(given, "reasoning_effort") || json_object_get(given, "enable_thinking");
    json_t *all = json_is_object(given) ? json_copy((json_t *)given) : json_object();
    bool ok = all != NULL;
    if (ok && !json_object_get(all, "reasoning_effort")) ok = json_object_set_new(all, "reasoning_effort", json_string(p->effort)) == 0;
    if (ok && none && !json_object_get(all, "enable_thinking")) ok = json_object_set_new(all, "enable_thinking", json_false()) == 0;
    char *text = ok ? json_dumps(all, JSON_COMPACT) : NULL;
    json_decref(all);
    if (!text) return pd_error_memory(x);
    free(p->extra_json);
    p->extra_json = text;
    if (none && !own && p->reasoning_budget == PD_BUDGET_UNSET) p->reasoning_budget = 0;
    return true;
}

void pd_reasoning_doc(struct fo_buf *out) {
    fo_buf_puts(out, "\n## Reasoning\n\nWhat a model thinks stands between marks that its chat template shows ([tools.md](tools.md); `reasoning` of /v1/models, `event=dialect` of the log). It is told apart from the answer, also "
                     "where the template opens it and the model only ends it: `message.reasoning_content`, `delta.reasoning_content`, an item of type reasoning in a Response. `reasoning_tokens` of the usage "
                     "counts it. Messages may bring it back as `reasoning_content` or `reasoning`; what becomes of it is the template's affair. /v1/completions has everything in its text.\n");
    fo_buf_puts(out, "\nA thought of as many tokens as `reasoning_budget` allows is ended by the model's own mark, and so is one that says the same 32 tokens again and again. No grammar holds a thought: "
                     "response_format and the others begin behind it.\n");
}
