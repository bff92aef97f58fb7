/* Pages from the key table. UPDATE=1 rewrites docs/manifest.md. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include "config/doc.h"
#include "config/manifest.h"
#include "config/schema.h"
#include "foundry/base/buf.h"
#include "foundry/base/file.h"

#define PAGE "docs/manifest.md"

static void the_reference_page_is_the_tables(void **state) {
    (void)state;
    struct fo_buf out;
    fo_buf_init(&out, 1 << 20);
    cf_doc_markdown(cf_manifest_keys(), &out);
    assert_false(out.failed);
    if (getenv("UPDATE")) {
        FILE *f = fopen(PAGE, "w");
        assert_non_null(f);
        fputs(fo_buf_str(&out), f);
        fclose(f);
    }
    char *text;
    size_t len;
    struct fo_err e;
    if (fo_file_read(PAGE, 1 << 20, &text, &len, &e) != FO_OK) fail_msg("%s", e.msg);
    if (strcmp(text, fo_buf_str(&out)) != 0) fail_msg(PAGE " is not what the key table says: UPDATE=1 rewrites it");
    free(text);
    fo_buf_done(&out);
}

static void every_row_has_its_line_in_the_page(const struct cf_keys *keys, const char *page) {
    for (size_t i = 0; i < keys->n; i++) {
        char line[64];
        snprintf(line, sizeof line, "\n| `%s` | ", keys->rows[i].name);
        if (!strstr(page, line)) fail_msg("%s is not in the page", keys->rows[i].name);
        if (keys->rows[i].keys) every_row_has_its_line_in_the_page(keys->rows[i].keys, page);
    }
}

static void the_page_has_every_key(void **state) {
    (void)state;
    struct fo_buf out;
    fo_buf_init(&out, 1 << 20);
    cf_doc_markdown(cf_manifest_keys(), &out);
    every_row_has_its_line_in_the_page(cf_manifest_keys(), fo_buf_str(&out));
    fo_buf_done(&out);
}

/* The schema mirrors the table: same keys at the same places, but those not honoured. */
static void compare(const struct cf_keys *keys, json_t *schema) {
    size_t n = 0;
    json_t *properties = json_object_get(schema, "properties");
    assert_true(json_is_false(json_object_get(schema, "additionalProperties")));
    for (size_t i = 0; i < keys->n; i++) {
        const struct cf_key *k = &keys->rows[i];
        json_t *p = json_object_get(properties, k->name);
        if (k->later) {
            assert_null(p);
            continue;
        }
        n++;
        assert_non_null(p);
        assert_string_equal(json_string_value(json_object_get(p, "description")), k->help);
        assert_int_equal(json_object_get(p, "default") != NULL, k->def != NULL);
        if (k->kind == CF_GROUP) compare(k->keys, p);
        if (k->kind == CF_LIST && k->keys) compare(k->keys, json_object_get(p, "items"));
    }
    assert_int_equal(json_object_size(properties), n);
}

static void the_schema_is_json_and_has_every_honoured_key(void **state) {
    (void)state;
    struct fo_buf out;
    json_error_t e;
    fo_buf_init(&out, 1 << 20);
    cf_doc_schema(cf_manifest_keys(), &out);
    assert_false(out.failed);
    json_t *schema = json_loadb(out.data, out.len, JSON_REJECT_DUPLICATES, &e);
    if (!schema) fail_msg("%d:%d: %s", e.line, e.column, e.text);
    compare(cf_manifest_keys(), schema);
    json_decref(schema);
    fo_buf_done(&out);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_reference_page_is_the_tables),
        cmocka_unit_test(the_page_has_every_key),
        cmocka_unit_test(the_schema_is_json_and_has_every_honoured_key),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
