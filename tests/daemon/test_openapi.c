/* The document of /openapi.json: it has every route, field and error of the tables and nothing else, its references lead somewhere, and its
 * schemas are well-formed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include <jansson.h>

#include "daemon/oai.h"
#include "daemon/openapi.h"
#include "daemon/params.h"
#include "daemon/routes.h"

static json_t *doc;

static json_t *at(json_t *o, const char *path) {
    char key[64];
    for (; *path && o; path += strcspn(path, "|"), path += *path == '|') {
        size_t n = strcspn(path, "|");
        assert_true(n < sizeof key);
        memcpy(key, path, n);
        key[n] = '\0';
        o = json_object_get(o, key);
    }
    return o;
}

static bool has(json_t *list, const char *text) {
    for (size_t i = 0; i < json_array_size(list); i++)
        if (json_is_string(json_array_get(list, i)) && strcmp(json_string_value(json_array_get(list, i)), text) == 0) return true;
    return false;
}

static json_t *operation_of(const struct pd_route *r) {
    json_t *item = json_object_get(at(doc, "paths"), r->path);
    char method[16];
    size_t n = (size_t)snprintf(method, sizeof method, "%s", r->method);
    for (size_t i = 0; i < n; i++) method[i] |= 0x20;
    return json_object_get(item, method);
}

static json_t *body_of(json_t *op) {
    return at(op, "requestBody|content|application/json|schema");
}

/* "#/components/schemas/Error" */
static void leads_somewhere(json_t *ref) {
    const char *s = json_string_value(ref);
    char path[128];
    assert_non_null(s);
    assert_true(strncmp(s, "#/", 2) == 0 && strlen(s) < sizeof path);
    strcpy(path, s + 2);
    for (char *c = path; *c; c++)
        if (*c == '/') *c = '|';
    if (!json_is_object(at(doc, path))) fail_msg("%s leads nowhere", s);
}

static void every_reference_leads_somewhere_below(json_t *v) {
    const char *key;
    json_t *sub;
    if (json_is_array(v))
        for (size_t i = 0; i < json_array_size(v); i++) every_reference_leads_somewhere_below(json_array_get(v, i));
    if (json_is_object(v)) json_object_foreach(v, key, sub) {
            if (strcmp(key, "$ref") == 0) leads_somewhere(sub);
            else every_reference_leads_somewhere_below(sub);
        }
}

static void is_schema(json_t *s);

static void are_schemas(json_t *list) {
    assert_true(json_is_array(list) && json_array_size(list) > 0);
    for (size_t i = 0; i < json_array_size(list); i++) is_schema(json_array_get(list, i));
}

static void is_type(json_t *t) {
    static const char *const types[] = { "null", "boolean", "object", "array", "number", "string", "integer" };
    bool ok = false;
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) ok = ok || strcmp(types[i], json_string_value(t)) == 0;
    if (!ok) fail_msg("no type: %s", json_string_value(t));
}

/* A keyword that is not among these is a slip of the pen. */
static void is_schema(json_t *s) {
    const char *key, *name;
    json_t *v, *sub;
    assert_true(json_is_object(s));
    json_object_foreach(s, key, v) {
        if (strcmp(key, "type") == 0) {
            if (json_is_string(v)) is_type(v);
            for (size_t i = 0; i < json_array_size(v); i++) is_type(json_array_get(v, i));
        } else if (strcmp(key, "properties") == 0) {
            json_object_foreach(v, name, sub) is_schema(sub);
        } else if (strcmp(key, "items") == 0 || strcmp(key, "propertyNames") == 0 || (strcmp(key, "additionalProperties") == 0 && !json_is_boolean(v))) {
            is_schema(v);
        } else if (strcmp(key, "anyOf") == 0 || strcmp(key, "oneOf") == 0) {
            are_schemas(v);
        } else if (strcmp(key, "required") == 0) {
            json_t *properties = json_object_get(s, "properties");
            assert_true(json_array_size(v) > 0);
            for (size_t i = 0; i < json_array_size(v) && properties; i++)
                if (!json_object_get(properties, json_string_value(json_array_get(v, i)))) fail_msg("needs %s, which it does not have", json_string_value(json_array_get(v, i)));
        } else if (strcmp(key, "enum") == 0) {
            assert_true(json_array_size(v) > 0);
        } else if (strcmp(key, "minimum") == 0 || strcmp(key, "maximum") == 0 || strcmp(key, "exclusiveMinimum") == 0 || strcmp(key, "exclusiveMaximum") == 0) {
            assert_true(json_is_number(v));
        } else if (strncmp(key, "min", 3) == 0 || strncmp(key, "max", 3) == 0) {
            assert_true(json_is_integer(v));
        } else if (strcmp(key, "const") != 0 && strcmp(key, "additionalProperties") != 0) {
            static const char *const texts[] = { "$ref", "description", "pattern" };
            bool known = false;
            for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) known = known || strcmp(texts[i], key) == 0;
            if (!known || !json_is_string(v)) fail_msg("no keyword: %s", key);
        }
    }
}

static void has_every_route_and_no_other(void **state) {
    (void)state;
    const struct pd_route *r;
    const char *path, *method;
    json_t *item, *op, *ids = json_object();
    size_t n = 0, found = 0;
    assert_string_equal(json_string_value(at(doc, "openapi")), "3.1.0");
    assert_true(json_is_string(at(doc, "info|title")) && json_is_string(at(doc, "info|version")));
    for (; (r = pd_route_at(n)); n++) {
        op = operation_of(r);
        if (!op) fail_msg("%s %s is missing", r->method, r->path);
        assert_string_equal(json_string_value(at(op, "description")), r->doc);
        assert_int_equal(json_object_set_new(ids, json_string_value(at(op, "operationId")), json_true()), 0);
        const char *type = r->type ? r->type : "application/json";
        assert_non_null(json_object_get(at(op, "responses|200|content"), type));
        assert_non_null(at(op, "responses|default|$ref"));
        json_t *parameter = json_array_get(at(op, "parameters"), 0);
        if (strchr(r->path, '{')) assert_true(strcmp(json_string_value(at(parameter, "in")), "path") == 0 && json_is_true(at(parameter, "required")));
        else assert_true(!parameter || strcmp(json_string_value(at(parameter, "in")), r->query ? "query" : "header") == 0);
        assert_int_equal(op && at(op, "requestBody") != NULL, strcmp(r->method, "POST") == 0 || r->takes);
        if (r->takes) assert_non_null(json_object_get(at(op, "requestBody|content"), r->takes));
    }
    json_object_foreach(at(doc, "paths"), path, item) json_object_foreach(item, method, op) {
        assert_true(strcmp(method, "get") == 0 || strcmp(method, "post") == 0 || strcmp(method, "put") == 0 || strcmp(method, "delete") == 0);
        found++;
    }
    assert_int_equal(found, n);
    assert_int_equal(json_object_size(ids), n);
    json_decref(ids);
}

static void a_body_has_the_fields_of_its_endpoint(void **state) {
    (void)state;
    const struct pd_route *r;
    struct pd_param_doc d;
    size_t bodies = 0;
    for (size_t i = 0; (r = pd_route_at(i)); i++) {
        if (!r->fields) continue;
        json_t *schema = body_of(operation_of(r)), *properties = at(schema, "properties"), *names = json_object();
        bodies++;
        assert_true(json_is_false(at(schema, "additionalProperties")));
        for (size_t k = 0; pd_param_doc(k, &d); k++) {
            if (!(d.api & r->fields)) continue;
            json_t *field = json_object_get(properties, d.name);
            if (!field) fail_msg("%s: %s is missing", r->path, d.name);
            if (d.verdict == PD_HONOURED && json_object_size(field) < 2) fail_msg("%s: of %s it says nothing (a row of shapes in openapi.c)", r->path, d.name);
            json_object_set_new(names, d.name, json_true());
        }
        assert_int_equal(json_object_size(properties), json_object_size(names));
        json_decref(names);
    }
    assert_true(bodies >= 5);
}

static void bounds_and_needs_are_those_of_the_table(void **state) {
    (void)state;
    json_t *chat = at(doc, "paths|/v1/chat/completions|post|requestBody|content|application/json|schema");
    assert_true(has(at(chat, "required"), "model") && has(at(chat, "required"), "messages") && json_array_size(at(chat, "required")) == 2);
    assert_true(json_number_value(at(chat, "properties|temperature|maximum")) == 2 && json_number_value(at(chat, "properties|temperature|minimum")) == 0);
    assert_true(json_number_value(at(chat, "properties|min_p|exclusiveMaximum")) == 1 && !at(chat, "properties|min_p|maximum"));
    assert_true(json_integer_value(at(chat, "properties|n|maximum")) == PD_MAX_CHOICES);
    assert_true(has(at(chat, "properties|stream|type"), "boolean") && has(at(chat, "properties|stream|type"), "null"));
    assert_true(has(at(chat, "properties|function_call|enum"), "none"));
    json_t *template = at(doc, "paths|/apply-template|post|requestBody|content|application/json|schema");
    assert_true(json_array_size(at(template, "required")) == 1 && has(at(template, "required"), "messages"));
    assert_non_null(at(template, "properties|temperature"));
    assert_non_null(at(template, "properties|with_tokens"));
    json_t *tokenize = at(doc, "paths|/tokenize|post|requestBody|content|application/json|schema");
    assert_int_equal(json_array_size(at(tokenize, "oneOf")), 3);
    assert_null(at(tokenize, "required"));
    json_t *ids = at(doc, "paths|/detokenize|post|requestBody|content|application/json|schema|properties|tokens");
    assert_int_equal(json_integer_value(at(ids, "maxItems")), PD_MAX_IDS);
}

static void errors_are_those_of_the_table(void **state) {
    (void)state;
    json_t *error = at(doc, "components|schemas|Error|properties|error"), *list = at(doc, "components|responses|Error|x-errors");
    static const char *const four[] = { "message", "type", "param", "code" };
    for (size_t i = 0; i < 4; i++) assert_true(has(at(error, "required"), four[i]));
    assert_int_equal(json_array_size(list), PD_N_ERRORS);
    for (int i = 0; i < PD_N_ERRORS; i++) {
        const struct pd_error_row *row = pd_error_row((enum pd_error_id)i);
        json_t *said = json_array_get(list, (size_t)i);
        assert_true(has(at(error, "properties|type|enum"), row->type));
        assert_true(!row->code || has(at(error, "properties|code|enum"), row->code));
        assert_int_equal(json_integer_value(at(said, "status")), row->status);
        if (row->code) assert_string_equal(json_string_value(at(said, "code")), row->code);
        else assert_true(json_is_null(at(said, "code")));
    }
}

static void schemas_are_well_formed_and_references_lead_somewhere(void **state) {
    (void)state;
    const char *key, *type;
    json_t *v, *content;
    const struct pd_route *r;
    every_reference_leads_somewhere_below(doc);
    json_object_foreach(at(doc, "components|schemas"), key, v) is_schema(v);
    for (size_t i = 0; (r = pd_route_at(i)); i++) {
        json_t *op = operation_of(r);
        if (body_of(op)) is_schema(body_of(op));
        json_object_foreach(at(op, "responses|200|content"), type, content) is_schema(json_object_get(content, "schema"));
        bool computes = r->fields & (PD_API_ANSWERS | PD_API_EMBED) && !(r->fields & PD_API_NO_ANSWER), has_session = false;
        for (size_t k = 0; k < json_array_size(at(op, "parameters")); k++) {
            json_t *parameter = json_array_get(at(op, "parameters"), k);
            is_schema(at(parameter, "schema"));
            if (strcmp(json_string_value(at(parameter, "name")), "X-Session-Id") == 0) has_session = true;
        }
        assert_int_equal(has_session, computes);
    }
}

static void says_nothing_of_what_is_not_there(void **state) {
    (void)state;
    const char *what;
    unsigned api;
    for (size_t i = 0; (what = pd_openapi_said(i, &api)); i++) {
        bool found = false;
        struct pd_param_doc d;
        const struct pd_route *r;
        for (size_t k = 0; api && pd_param_doc(k, &d); k++) found = found || ((d.api & api) && d.type == PD_OWN_SHAPE && strcmp(d.name, what) == 0);
        for (size_t k = 0; !api && (r = pd_route_at(k)); k++) found = found || strcmp(r->path, what) == 0;
        if (!found) fail_msg("'%s' is no field of its own shape and no path", what);
    }
}

static int make(void **state) {
    (void)state;
    doc = pd_openapi();
    return doc ? 0 : -1;
}

static int drop(void **state) {
    (void)state;
    json_decref(doc);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(has_every_route_and_no_other),
        cmocka_unit_test(a_body_has_the_fields_of_its_endpoint),
        cmocka_unit_test(bounds_and_needs_are_those_of_the_table),
        cmocka_unit_test(errors_are_those_of_the_table),
        cmocka_unit_test(schemas_are_well_formed_and_references_lead_somewhere),
        cmocka_unit_test(says_nothing_of_what_is_not_there),
    };
    return cmocka_run_group_tests(tests, make, drop);
}
