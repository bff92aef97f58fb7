/* See whose.h. A name of a session is any text that is not too long: nothing is looked up by it but an account of tokens and what is saved
 * of a conversation, within one tenant. One that would have to be cut is refused, because two conversations would become one. */
#include "daemon/whose.h"

#include <jansson.h>
#include <string.h>

#include "daemon/head.h"
#include "daemon/http.h"
#include "daemon/oai.h"
#include "daemon/params.h"
#include "daemon/text.h"
#include "foundry/base/buf.h"

static const struct {
    const char *name;
    enum pn_priority priority;
} tiers[] = { { "auto", PN_PRIORITY_NORMAL }, { "default", PN_PRIORITY_NORMAL }, { "scale", PN_PRIORITY_NORMAL }, { "flex", PN_PRIORITY_LOW }, { "priority", PN_PRIORITY_HIGH } };

bool pd_whose_tier(struct pd_params *p, struct json_t *v, struct pd_error *x) {
    const char *s = pd_json_word(v);
    for (size_t i = 0; s && i < sizeof tiers / sizeof *tiers; i++) {
        if (strcmp(s, tiers[i].name) != 0) continue;
        p->priority = tiers[i].priority;
        p->has_tier = true;
        return true;
    }
    return pd_error_set(x, s ? PD_ERR_VALUE : PD_ERR_INVALID, "service_tier", "'service_tier' must be auto, default, flex, priority or scale.");
}

static bool too_long(struct pd_error *x, const char *field) {
    return pd_error_set(x, PD_ERR_VALUE, field, "'%s' has more than %d bytes.", field, PD_MAX_SESSION_BYTES);
}

bool pd_whose_session(struct pd_params *p, const char *field, struct json_t *v, struct pd_error *x) {
    if (!json_is_string(v)) return pd_error_set(x, PD_ERR_INVALID, field, "'%s' must be a text.", field);
    const char *s = json_string_value(v);
    size_t n = json_string_length(v);
    if (n > PD_MAX_SESSION_BYTES) return too_long(x, field);
    if (memchr(s, '\0', n)) return pd_error_set(x, PD_ERR_VALUE, field, "'%s' has a NUL character.", field);
    if (n == 0) return true; /* as good as none */
    if (strcmp(field, "session_id") == 0) p->session = s;
    else p->cache_key = s;
    return true;
}

const char *pd_whose_tier_name(enum pn_priority p) {
    return p < PN_PRIORITY_NORMAL ? "flex" : p > PN_PRIORITY_NORMAL ? "priority" : "default";
}

bool pd_whose_fill(const struct pd_params *p, const struct pd_call *c, struct pn_request_opts *o, struct pd_error *x) {
    const char *header = c->head ? pd_head_get(c->head, "x-session-id") : NULL;
    size_t n = header ? strlen(header) : 0;
    if (n > PD_MAX_SESSION_BYTES) return too_long(x, "X-Session-Id");
    if (n > 0 && !pd_utf8_ok(header, n)) return pd_error_set(x, PD_ERR_VALUE, "X-Session-Id", "'X-Session-Id' is not UTF-8.");
    o->tenant = c->note.key[0] ? c->note.key : NULL;
    o->session = n > 0 ? header : p->session ? p->session : p->cache_key;
    o->priority = p->priority < c->most_priority ? p->priority : c->most_priority;
    o->keep_nothing = !p->cache_prompt;
    return true;
}

void pd_whose_doc(struct fo_buf *out) {
    fo_buf_printf(out, "\n## Whose turn it is\n\nRequests that wait are served by tokens, not by who came first: those of the API key that has had least, and of that the session that has had "
                       "least, start next, and in a step their prompts are computed first. A token of a prompt that is computed and one of an answer count alike; what is found in kept KV "
                       "costs nothing. Who was away is not owed anything for it. A request's session is the header `X-Session-Id`, else `session_id`, else `prompt_cache_key`, of at most %d bytes "
                       "(more is 400; an empty one is none); without one it shares its key's unnamed session. The name is a hint for taking turns and for where a conversation goes, and what /v1/sessions/{id} calls it, never what a prompt finds KV by.\n\n"
                       "`service_tier` is a priority: `flex` is low, `auto`, `default` and `scale` are normal, `priority` is high. A key's word `priority=` in the file of keys is the highest that it gets "
                       "(normal where it has none; without keys anybody gets what they ask for). What is asked beyond that counts as that. A request that gives the field is told in its answer what it got: flex, default or priority. "
                       "What is more urgent starts first; each quarter of `queue.timeout` that a request has waited makes it one priority more urgent, so that nothing waits for ever. What runs is "
                       "never stopped for another.\n\n"
                       "A model's queue has `queue.depth` places for each priority, which only that one and higher ones fill: nobody who waits is thrown out for somebody more urgent, and a flood of flex "
                       "requests keeps nothing else out. A key of which nothing waits has a place even then. Everything else is 429 with Retry-After, 1 to 120 seconds: what the tokens that are left of all "
                       "that runs and waits take at the measured rates, over the slots.\n",
                  PD_MAX_SESSION_BYTES);
}
