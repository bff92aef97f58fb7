/* Items: see items.h. A chat has one message a turn where Responses have an item for each part of it: what an assistant thought, said and
 * called are put together again, because templates know only the turn.
 *
 *     message                 its role and its content; of any role
 *     reasoning               reasoning_content of the turn that it begins; its summary is for people and is left out
 *     function_call           one of the turn's tool_calls
 *     function_call_output    a message of role tool */
#include "daemon/items.h"

#include <jansson.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "daemon/oai.h"
#include "foundry/base/buf.h"

enum { PATH_BYTES = 128 };

static bool wrong(struct pd_error *x, const char *path, const char *want) {
    return pd_error_set(x, PD_ERR_INVALID, path, "'%s' must be %s.", path, want);
}

static void join(char *out, const char *path, const char *key) {
    snprintf(out, PATH_BYTES, "%.100s.%.24s", path, key);
}

static void join_index(char *out, const char *path, size_t i) {
    snprintf(out, PATH_BYTES, "%.100s.%zu", path, i);
}

/* obj[key], a text; NULL with the error. */
static json_t *text_of(const json_t *obj, const char *key, const char *path, struct pd_error *x) {
    char at[PATH_BYTES];
    json_t *v = json_object_get(obj, key);
    join(at, path, key);
    if (json_is_string(v)) return v;
    wrong(x, at, "a text");
    return NULL;
}

/* One part of a content as a part of a chat's, appended to `to`. */
static bool add_part(const json_t *part, const char *path, json_t *to, struct pd_error *x) {
    static const struct {
        const char *type, *key;
    } texts[] = { { "input_text", "text" }, { "output_text", "text" }, { "refusal", "refusal" } };
    char at[PATH_BYTES];
    join(at, path, "type");
    if (!json_is_object(part)) return wrong(x, path, "an object");
    const char *type = pd_json_word(json_object_get(part, "type"));
    if (!type) return wrong(x, at, "a text");
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        if (strcmp(type, texts[i].type) != 0) continue;
        json_t *text = text_of(part, texts[i].key, path, x);
        if (!text) return false;
        return json_array_append_new(to, json_pack("{s:s, s:O}", "type", "text", "text", text)) == 0 || pd_error_memory(x);
    }
    if (strcmp(type, "input_image") == 0 || strcmp(type, "input_file") == 0 || strcmp(type, "input_audio") == 0)
        return pd_error_set(x, PD_ERR_UNSUPPORTED, at, "'%s': parts of type '%s' are not taken by this version; it reads text.", at, type);
    return pd_error_set(x, PD_ERR_VALUE, at, "'%s' must be input_text, output_text or refusal.", at);
}

/* obj[key], a text or a list of parts, as a chat's content: a new reference, NULL with the error. */
static json_t *content_of(const json_t *obj, const char *key, const char *path, struct pd_error *x) {
    char at[PATH_BYTES];
    json_t *v = json_object_get(obj, key);
    join(at, path, key);
    if (json_is_string(v)) return json_incref(v);
    if (!json_is_array(v)) {
        wrong(x, at, "a text or a list of parts");
        return NULL;
    }
    if (json_array_size(v) == 0) {
        pd_error_set(x, PD_ERR_VALUE, at, "'%s' is an empty list.", at);
        return NULL;
    }
    json_t *parts = json_array();
    bool ok = parts || pd_error_memory(x);
    for (size_t i = 0; i < json_array_size(v) && ok; i++) {
        char part[PATH_BYTES];
        join_index(part, at, i);
        ok = add_part(json_array_get(v, i), part, parts, x);
    }
    if (ok) return parts;
    json_decref(parts);
    return NULL;
}

/* --- the turn of an assistant --- */

struct reader {
    json_t *messages;
    struct fo_buf thought; /* of a turn that has said and called nothing yet */
    struct pd_error *x;
};

static bool append(struct reader *r, json_t *m) {
    return json_array_append_new(r->messages, m) == 0 || pd_error_memory(r->x);
}

/* A turn of what was thought, if anything was; *ret is then its message. */
static bool end_thought(struct reader *r, json_t **ret) {
    *ret = NULL;
    if (r->thought.failed) return pd_error_memory(r->x);
    if (r->thought.len == 0) return true;
    *ret = json_pack("{s:s, s:s%}", "role", "assistant", "reasoning_content", r->thought.data, r->thought.len);
    fo_buf_clear(&r->thought);
    return append(r, *ret);
}

static bool add_message(struct reader *r, const json_t *item, const char *path) {
    static const char *const roles[] = { "assistant", "user", "system", "developer" };
    char at[PATH_BYTES];
    const char *role = pd_json_word(json_object_get(item, "role"));
    join(at, path, "role");
    if (!role) return wrong(r->x, at, "a text");
    size_t k = 0;
    while (k < sizeof roles / sizeof *roles && strcmp(role, roles[k]) != 0) k++;
    if (k == sizeof roles / sizeof *roles) return pd_error_set(r->x, PD_ERR_VALUE, at, "'%s' must be user, assistant, system or developer.", at);
    json_t *content = content_of(item, "content", path, r->x), *thought = NULL;
    if (!content) return false;
    if (!end_thought(r, &thought)) {
        json_decref(content);
        return false;
    }
    if (k == 0 && thought) return json_object_set_new(thought, "content", content) == 0 || pd_error_memory(r->x);
    return append(r, json_pack("{s:s, s:o}", "role", k == 3 ? "system" : role, "content", content)); /* templates know no developer */
}

static bool add_reasoning(struct reader *r, const json_t *item, const char *path) {
    char at[PATH_BYTES];
    const json_t *sealed = json_object_get(item, "encrypted_content"), *content = json_object_get(item, "content");
    join(at, path, "encrypted_content");
    if (sealed && !json_is_null(sealed)) return pd_error_set(r->x, PD_ERR_UNSUPPORTED, at, "'%s': this server encrypts no reasoning and cannot read another's.", at);
    join(at, path, "content");
    if (!content || json_is_null(content)) return true;
    if (!json_is_array(content)) return wrong(r->x, at, "a list of parts");
    for (size_t i = 0; i < json_array_size(content); i++) {
        char part[PATH_BYTES], type_at[PATH_BYTES];
        const json_t *p = json_array_get(content, i);
        join_index(part, at, i);
        join(type_at, part, "type");
        if (!json_is_object(p)) return wrong(r->x, part, "an object");
        const char *type = pd_json_word(json_object_get(p, "type"));
        if (!type) return wrong(r->x, type_at, "a text");
        if (strcmp(type, "reasoning_text") != 0) return pd_error_set(r->x, PD_ERR_VALUE, type_at, "'%s' must be reasoning_text.", type_at);
        const json_t *text = text_of(p, "text", part, r->x);
        if (!text) return false;
        fo_buf_append(&r->thought, json_string_value(text), json_string_length(text));
    }
    return true;
}

/* The list of calls of the turn that is under way, or of a new one. NULL with the error. */
static json_t *calls_of_turn(struct reader *r) {
    json_t *m;
    if (!end_thought(r, &m)) return NULL;
    size_t n = json_array_size(r->messages);
    if (!m && n) {
        json_t *last = json_array_get(r->messages, n - 1);
        if (strcmp(json_string_value(json_object_get(last, "role")), "assistant") == 0) m = last;
    }
    if (!m && !append(r, m = json_pack("{s:s}", "role", "assistant"))) return NULL;
    json_t *calls = json_object_get(m, "tool_calls");
    if (calls) return calls;
    calls = json_array();
    if (json_object_set_new(m, "tool_calls", calls) == 0 && (json_object_get(m, "content") || json_object_set_new(m, "content", json_null()) == 0)) return calls;
    pd_error_memory(r->x);
    return NULL;
}

static bool add_call(struct reader *r, const json_t *item, const char *path) {
    json_t *id = text_of(item, "call_id", path, r->x);
    json_t *name = id ? text_of(item, "name", path, r->x) : NULL;
    json_t *arguments = name ? text_of(item, "arguments", path, r->x) : NULL;
    json_t *calls = arguments ? calls_of_turn(r) : NULL;
    if (!calls) return false;
    json_t *call = json_pack("{s:O, s:s, s:{s:O, s:O}}", "id", id, "type", "function", "function", "name", name, "arguments", arguments);
    return json_array_append_new(calls, call) == 0 || pd_error_memory(r->x);
}

static bool add_output(struct reader *r, const json_t *item, const char *path) {
    json_t *unused, *id = text_of(item, "call_id", path, r->x);
    if (!id || !end_thought(r, &unused)) return false;
    json_t *content = content_of(item, "output", path, r->x);
    return content && append(r, json_pack("{s:s, s:O, s:o}", "role", "tool", "tool_call_id", id, "content", content));
}

/* --- all of them --- */

static bool add_item(struct reader *r, const json_t *item, const char *path) {
    static const struct {
        const char *type;
        bool (*add)(struct reader *r, const json_t *item, const char *path);
    } kinds[] = { { "message", add_message }, { "reasoning", add_reasoning }, { "function_call", add_call }, { "function_call_output", add_output } };
    char at[PATH_BYTES];
    if (!json_is_object(item)) return wrong(r->x, path, "an object");
    const json_t *v = json_object_get(item, "type");
    const char *type = v && !json_is_null(v) ? pd_json_word(v) : "message"; /* the short form of a message has none */
    join(at, path, "type");
    if (!type) return wrong(r->x, at, "a text");
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (strcmp(type, kinds[i].type) == 0) return kinds[i].add(r, item, path);
    if (strcmp(type, "item_reference") == 0) return pd_error_set(r->x, PD_ERR_UNSUPPORTED, at, "'%s': this server stores no items that could be meant.", at);
    return pd_error_set(r->x, PD_ERR_UNSUPPORTED, at, "'%s': items of type '%.60s' are not taken by this version; it reads message, reasoning, function_call and function_call_output.", at, type);
}

static bool add_text(struct reader *r, const char *role, json_t *text) {
    return append(r, json_pack("{s:s, s:O}", "role", role, "content", text));
}

static bool add_input(struct reader *r, json_t *input) {
    if (json_is_string(input)) return add_text(r, "user", input);
    if (!json_is_array(input)) return wrong(r->x, "input", "a text or a list of items");
    if (json_array_size(input) == 0) return pd_error_set(r->x, PD_ERR_VALUE, "input", "'input' is an empty list; at least one item is needed.");
    for (size_t i = 0; i < json_array_size(input); i++) {
        char at[PATH_BYTES];
        join_index(at, "input", i);
        if (!add_item(r, json_array_get(input, i), at)) return false;
    }
    json_t *unused;
    if (!end_thought(r, &unused)) return false;
    if (json_array_size(r->messages) == 0) return pd_error_set(r->x, PD_ERR_VALUE, "input", "'input' has nothing that a model could read.");
    return true;
}

json_t *pd_items_messages(json_t *instructions, json_t *input, struct pd_error *x) {
    struct reader r = { .messages = json_array(), .x = x };
    fo_buf_init(&r.thought, SIZE_MAX / 2);
    bool ok = r.messages || pd_error_memory(x);
    if (ok && instructions) ok = add_text(&r, "system", instructions);
    ok = ok && add_input(&r, input);
    fo_buf_done(&r.thought);
    if (ok) return r.messages;
    json_decref(r.messages);
    return NULL;
}
