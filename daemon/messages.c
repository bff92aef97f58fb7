/* Messages: see messages.h. What a template may do with a message is the template's affair; here is only what the API says of its
 * form, so that a client's mistake is named by its path and not by a template's line. */
#include "daemon/messages.h"

#include <jansson.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "daemon/oai.h"

enum { PATH_BYTES = 128 };

static bool wrong(struct pd_error *x, const char *path, const char *want) {
    return pd_error_set(x, PD_ERR_INVALID, path, "'%s' must be %s.", path, want);
}

static void join(char *out, const char *path, const char *key) {
    snprintf(out, PATH_BYTES, "%.100s.%.24s", path, key);
}

/* obj[key] is a text (or absent or null, when it may). */
static bool check_text(const json_t *obj, const char *key, const char *path, bool must, struct pd_error *x) {
    char at[PATH_BYTES];
    const json_t *v = json_object_get(obj, key);
    join(at, path, key);
    if (!v || json_is_null(v)) return must ? wrong(x, at, "a text") : true;
    return json_is_string(v) || wrong(x, at, "a text");
}

static bool check_part(json_t *part, const char *path, struct pd_error *x) {
    char at[PATH_BYTES];
    join(at, path, "type");
    if (!json_is_object(part)) return wrong(x, path, "an object");
    const char *type = pd_json_word(json_object_get(part, "type"));
    if (!type) return wrong(x, at, "a text");
    if (strcmp(type, "text") == 0) return check_text(part, "text", path, true, x);
    if (strcmp(type, "refusal") == 0) {
        if (!check_text(part, "refusal", path, true, x)) return false;
        if (json_object_set(part, "text", json_object_get(part, "refusal")) || json_object_set_new(part, "type", json_string("text")))
            return pd_error_memory(x);
        return true;
    }
    if (strcmp(type, "image_url") == 0 || strcmp(type, "input_audio") == 0 || strcmp(type, "file") == 0)
        return pd_error_set(x, PD_ERR_UNSUPPORTED, at, "'%s': parts of type '%s' are not taken by this version; it reads text.", at, type);
    return pd_error_set(x, PD_ERR_VALUE, at, "'%s' must be text.", at);
}

static bool check_tool_calls(const json_t *calls, const char *path, struct pd_error *x) {
    if (!json_is_array(calls)) return wrong(x, path, "a list");
    for (size_t i = 0; i < json_array_size(calls); i++) {
        char at[PATH_BYTES], key[32], fn[PATH_BYTES];
        snprintf(key, sizeof key, "%zu", i);
        join(at, path, key);
        const json_t *call = json_array_get(calls, i), *function = json_object_get(call, "function");
        if (!json_is_object(call)) return wrong(x, at, "an object");
        if (!check_text(call, "id", at, true, x)) return false;
        join(fn, at, "function");
        if (!json_is_object(function)) return wrong(x, fn, "an object");
        if (!check_text(function, "name", fn, true, x)) return false;
        if (!json_is_object(json_object_get(function, "arguments")) && !check_text(function, "arguments", fn, true, x)) return false;
    }
    return true;
}

/* Other servers call it `reasoning`; templates know one name. */
static bool take_thought(json_t *m, const char *path, struct pd_error *x) {
    json_t *other = json_object_get(m, "reasoning"), *own = json_object_get(m, "reasoning_content");
    if (!check_text(m, "reasoning", path, false, x)) return false;
    if (!json_is_string(other) || json_is_string(own)) return true;
    return json_object_set(m, "reasoning_content", other) == 0 || pd_error_memory(x);
}

static bool check_message(json_t *m, const char *path, struct pd_error *x) {
    char at[PATH_BYTES];
    if (!json_is_object(m)) return wrong(x, path, "an object");
    const char *role = pd_json_word(json_object_get(m, "role"));
    join(at, path, "role");
    if (!role) return wrong(x, at, "a text");
    static const char *const roles[] = { "system", "developer", "user", "assistant", "tool" };
    size_t r = 0;
    while (r < sizeof roles / sizeof *roles && strcmp(role, roles[r]) != 0) r++;
    if (r == sizeof roles / sizeof *roles) return pd_error_set(x, PD_ERR_VALUE, at, "'%s' must be system, developer, user, assistant or tool.", at);
    bool assistant = r == 3, tool = r == 4;
    if (r == 1 && json_object_set_new(m, "role", json_string("system"))) return pd_error_memory(x);

    if (!check_text(m, "name", path, false, x) || !check_text(m, "refusal", path, false, x) || !check_text(m, "reasoning_content", path, false, x)) return false;
    if (!take_thought(m, path, x) || !check_text(m, "tool_call_id", path, tool, x)) return false;
    const json_t *calls = json_object_get(m, "tool_calls");
    if (calls && !json_is_null(calls)) {
        join(at, path, "tool_calls");
        if (!assistant) return pd_error_set(x, PD_ERR_VALUE, at, "'%s': only an assistant's message has tool calls.", at);
        if (!check_tool_calls(calls, at, x)) return false;
    }
    json_t *content = json_object_get(m, "content");
    join(at, path, "content");
    if (!content || json_is_null(content)) {
        /* an assistant's turn may be calls, a refusal or reasoning alone */
        bool other = json_array_size(calls) > 0 || json_is_string(json_object_get(m, "refusal")) || json_is_string(json_object_get(m, "reasoning_content"));
        return (assistant && other) || wrong(x, at, "a text or a list of parts");
    }
    if (json_is_string(content)) return true;
    if (!json_is_array(content)) return wrong(x, at, "a text or a list of parts");
    if (json_array_size(content) == 0) return pd_error_set(x, PD_ERR_VALUE, at, "'%s' is an empty list.", at);
    for (size_t i = 0; i < json_array_size(content); i++) {
        char part[PATH_BYTES], key[32];
        snprintf(key, sizeof key, "%zu", i);
        join(part, at, key);
        if (!check_part(json_array_get(content, i), part, x)) return false;
    }
    return true;
}

bool pd_messages_check(json_t *messages, struct pd_error *x) {
    if (!json_is_array(messages)) return wrong(x, "messages", "a list");
    if (json_array_size(messages) == 0) return pd_error_set(x, PD_ERR_VALUE, "messages", "'messages' is empty; at least one message is needed.");
    for (size_t i = 0; i < json_array_size(messages); i++) {
        char at[PATH_BYTES];
        snprintf(at, sizeof at, "messages.%zu", i);
        if (!check_message(json_array_get(messages, i), at, x)) return false;
    }
    return true;
}
