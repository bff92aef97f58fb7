/* A conversation is told by its name where the client gives one (X-Session-Id, session_id, prompt_cache_key, the first that is there), else by how it
 * begins: what stands in front of the first user's message, and that. It grows behind, so it stays where it is; the model and the API
 * key are part of it, because nothing is shared between those. */
#include "daemon/router_ask.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "daemon/head.h"
#include "daemon/oai.h"
#include "foundry/base/hash.h"

enum { BEGINNING_BYTES = 128, BEGINNING_IDS = 32 }; /* of a prompt: short, so that one that grows soon stays the same */

static int feed(const char *bytes, size_t n, void *ctx) {
    uint64_t *h = ctx;
    *h = fo_fnv1a(*h, bytes, n);
    return 0;
}

static void hash_value(const json_t *v, uint64_t *h) {
    json_dump_callback(v, feed, h, JSON_COMPACT | JSON_ENCODE_ANY);
}

/* A text and its end. */
static void hash_text(const char *s, size_t n, uint64_t *h) {
    *h = fo_fnv1a(fo_fnv1a(*h, s, n), "", 1);
}

static void hash_beginning(const json_t *v, uint64_t *h) {
    const json_t *item;
    size_t i, n = json_string_length(v);
    if (json_is_string(v)) hash_text(json_string_value(v), n < BEGINNING_BYTES ? n : BEGINNING_BYTES, h);
    json_array_foreach(v, i, item) {
        if (json_is_object(item) || json_is_number(item)) hash_value(item, h);
        else hash_beginning(json_is_array(item) ? json_array_get(item, 0) : item, h); /* of several prompts, the first */
        const char *role = pd_json_word(json_object_get(item, "role"));
        if (role ? strcmp(role, "user") == 0 : json_is_string(item) || json_is_array(item) || i + 1 == BEGINNING_IDS) break;
    }
}

static bool hash_session(const struct pd_head *head, const json_t *root, uint64_t *h) {
    static const char *const fields[] = { "session_id", "prompt_cache_key" };
    const char *name = pd_head_get(head, "x-session-id");
    size_t n = name ? strlen(name) : 0;
    for (size_t i = 0; n == 0 && i < sizeof fields / sizeof *fields; i++) {
        const json_t *v = json_object_get(root, fields[i]);
        name = json_string_value(v);
        n = json_string_length(v);
    }
    if (n) hash_text(name, n, h);
    return n > 0;
}

bool pd_router_ask(const struct pd_head *head, const char *body, size_t len, const char *whose, struct pd_router_ask *ret, struct pd_error *x) {
    static const char *const parts[] = { "instructions", "messages", "prompt", "input", "content" };
    *ret = (struct pd_router_ask){ .key = FO_FNV_SEED };
    if (!pd_body_parse(body, len, &ret->body, x)) return false;
    const json_t *root = ret->body.root, *model = json_object_get(root, "model");
    ret->model = pd_json_word(model);
    if (!model || json_is_null(model)) return pd_error_set(x, PD_ERR_INVALID, "model", "'model' is missing: it says which backend the request is for.");
    if (!ret->model) return pd_error_set(x, PD_ERR_INVALID, "model", "'model' must be a text.");
    hash_text(ret->model, strlen(ret->model), &ret->key);
    hash_text(whose, strlen(whose), &ret->key);
    if (hash_session(head, root, &ret->key)) return true;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) hash_beginning(json_object_get(root, parts[i]), &ret->key);
    return true;
}
