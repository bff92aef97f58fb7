/* The tables of the API: every route is found and only as it is written, every error row is one that clients understand, and the
 * reference page is what the tables say (UPDATE=1 writes it). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "daemon/oai.h"
#include "daemon/routes.h"
#include "engine/engine.h"
#include "foundry/base/buf.h"
#include "foundry/base/err.h"
#include "foundry/base/file.h"

static void finds_each_route_by_method_and_path(void **state) {
    (void)state;
    static const struct {
        const char *method, *path, *route, *param, *allow; /* route NULL = none */
        bool ok;
    } rows[] = {
        { "GET", "/", "/", "", "GET, HEAD, OPTIONS", true },
        { "HEAD", "/health", "/health", "", "GET, HEAD, OPTIONS", true },
        { "GET", "/health/", "/health", "", "GET, HEAD, OPTIONS", true },
        { "GET", "//", "/", "", "GET, HEAD, OPTIONS", true },
        { "GET", "/v1/models", "/v1/models", "", "GET, HEAD, OPTIONS", true },
        { "GET", "/v1/models///", "/v1/models", "", "GET, HEAD, OPTIONS", true },
        { "GET", "/v1/models/a", "/v1/models/{id}", "a", "GET, HEAD, OPTIONS", true },
        { "GET", "/v1/models/a/", "/v1/models/{id}", "a", "GET, HEAD, OPTIONS", true },
        { "GET", "/v1/models/org%2Fa%3Ab", "/v1/models/{id}", "org/a:b", "GET, HEAD, OPTIONS", true },
        { "GET", "/v1/models/org/a:b", "/v1/models/{id}", "org/a:b", "GET, HEAD, OPTIONS", true },
        { "GET", "/v1/models/%C3%A4", "/v1/models/{id}", "\xc3\xa4", "GET, HEAD, OPTIONS", true },
        { "GET", "/v1/models/%4", "/v1/models/{id}", NULL, "GET, HEAD, OPTIONS", false },
        { "GET", "/v1/models/a%00b", "/v1/models/{id}", NULL, "GET, HEAD, OPTIONS", false },
        { "POST", "/v1/chat/completions", "/v1/chat/completions", "", "POST, OPTIONS", true },
        { "POST", "/v1/completions", "/v1/completions", "", "POST, OPTIONS", true },
        { "POST", "/tokenize", "/tokenize", "", "POST, OPTIONS", true },
        { "POST", "/detokenize/", "/detokenize", "", "POST, OPTIONS", true },
        { "POST", "/apply-template", "/apply-template", "", "POST, OPTIONS", true },
        { "GET", "/tokenize", NULL, "", "POST, OPTIONS", true },
        { "HEAD", "/metrics", "/metrics", "", "GET, HEAD, OPTIONS", true },
        { "GET", "/slots", "/slots", "", "GET, HEAD, OPTIONS", true },
        { "GET", "/openapi.json", "/openapi.json", "", "GET, HEAD, OPTIONS", true },
        { "POST", "/slots", NULL, "", "GET, HEAD, OPTIONS", true },
        { "GET", "/v1/completions", NULL, "", "POST, OPTIONS", true },
        { "HEAD", "/v1/completions", NULL, "", "POST, OPTIONS", true },
        { "DELETE", "/v1/models/a", NULL, "", "GET, HEAD, OPTIONS", true },
        { "GET", "/v1", NULL, "", "", true },
        { "GET", "/v1/model", NULL, "", "", true },
        { "GET", "/v1/modelsx", NULL, "", "", true },
        { "GET", "/V1/models", NULL, "", "", true },
        { "PUT", "/v1/sessions/a%2Fb", "/v1/sessions/{id}", "a/b", "GET, PUT, DELETE, HEAD, OPTIONS", true },
        { "POST", "/v1/sessions/a", NULL, "", "GET, PUT, DELETE, HEAD, OPTIONS", true },
        { "OPTIONS", "*", NULL, "", "GET, POST, PUT, DELETE, HEAD, OPTIONS", true },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char param[64], allow[64];
        bool ok;
        const struct pd_route *r = pd_route_find(pd_routes(), rows[i].method, rows[i].path, param, sizeof param, allow, sizeof allow, &ok);
        if ((r == NULL) != (rows[i].route == NULL) || (r && strcmp(r->path, rows[i].route) != 0)) fail_msg("%s %s", rows[i].method, rows[i].path);
        assert_int_equal(ok, rows[i].ok);
        assert_string_equal(allow, rows[i].allow);
        if (rows[i].param) assert_string_equal(param, rows[i].param);
    }
}

static void every_error_is_one_that_clients_understand(void **state) {
    (void)state;
    for (int i = 0; i < PD_N_ERRORS; i++) {
        const struct pd_error_row *r = pd_error_row((enum pd_error_id)i);
        assert_true(r->status >= 400 && r->status <= 505 && r->type && r->doc);
        if (r->status >= 500 && r->status != 501 && r->status != 505) assert_string_equal(r->type, "server_error");
        if (r->status == 429) assert_string_equal(r->type, "rate_limit_error");
    }
}

static void maps_every_code_of_the_engine(void **state) {
    (void)state;
    static const struct {
        enum fo_code code;
        int status;
        const char *error;
    } rows[] = { { FO_EINVAL, 400, "invalid_value" },         { FO_EFORMAT, 400, NULL },
                 { FO_EUNSUPPORTED, 400, "unsupported_parameter" }, { FO_EBUDGET, 400, "context_length_exceeded" },
                 { FO_EBUSY, 429, "queue_full" },             { FO_ETIMEOUT, 429, "queue_timeout" },
                 { FO_EUNAVAIL, 503, "model_unavailable" },   { FO_ENOMEM, 503, "out_of_memory" },
                 { FO_ELOST, 503, "device_error" },           { FO_EINTERNAL, 500, "internal_error" } };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct fo_err e;
        struct pd_error x;
        fo_fail(&e, rows[i].code, "why");
        pd_error_from(&x, &e, false);
        const struct pd_error_row *r = pd_error_row(x.id);
        assert_int_equal(r->status, rows[i].status);
        assert_true(rows[i].error ? r->code && strcmp(r->code, rows[i].error) == 0 : r->code == NULL);
        assert_string_equal(x.message, "why");
    }
    struct fo_err e;
    struct pd_error x;
    fo_fail(&e, FO_ECANCELLED, "cancelled");
    pd_error_from(&x, &e, true);
    assert_string_equal(pd_error_row(x.id)->code, "draining");
}

static void writes_all_four_members_of_an_error(void **state) {
    (void)state;
    struct pd_error x;
    struct fo_buf out;
    fo_buf_init(&out, 8192);
    pd_error_set(&x, PD_ERR_NO_ROUTE, NULL, "a \"quoted\" %s", "\xc3\xa4");
    pd_error_json(&x, NULL, &out);
    assert_string_equal(fo_buf_str(&out), "{\"error\":{\"message\":\"a \\\"quoted\\\" \xc3\xa4\",\"type\":\"invalid_request_error\",\"param\":null,\"code\":null}}");
    fo_buf_clear(&out);
    struct pn_budget b = { .prompt_tokens = 9, .max_tokens = 1, .ctx_cap = 8, .effective_ctx = 8, .limited_by = "manifest" };
    pd_error_set(&x, PD_ERR_BUDGET, "messages", "text");
    x.budget = &b;
    x.model = "m";
    pd_error_json(&x, "req_1", &out);
    assert_non_null(strstr(fo_buf_str(&out), "\"budget\":{\"model\":\"m\",\"prompt_tokens\":9,\"max_tokens\":1,\"ctx_cap\":8,\"effective_ctx\":8,\"limited_by\":\"manifest\","));
    assert_non_null(strstr(fo_buf_str(&out), "\"request_id\":\"req_1\""));
    /* bytes that are not UTF-8 cannot be JSON: the rest of what is said stays */
    fo_buf_clear(&out);
    pd_error_set(&x, PD_ERR_NO_MODEL, "a.\xc3", "'%.3s' is not here", "a\xc3\xa4\xc3\xa4");
    pd_error_json(&x, NULL, &out);
    assert_non_null(strstr(fo_buf_str(&out), "\"message\":\"'a\xc3\xa4' is not here\","));
    assert_non_null(strstr(fo_buf_str(&out), "\"param\":\"a.\xef\xbf\xbd\",\"code\":\"model_not_found\""));
    fo_buf_clear(&out);
    pd_error_set(&x, PD_ERR_NO_MODEL, NULL, "'%.2s' is not here", "a\xc3\xa4");
    pd_error_json(&x, NULL, &out);
    assert_non_null(strstr(fo_buf_str(&out), "\"message\":\"'a\xef\xbf\xbd' is not here\","));
    fo_buf_done(&out);
}

static void cuts_a_long_message_at_a_character(void **state) {
    (void)state;
    struct pd_error x;
    char text[9000];
    for (size_t i = 0; i + 2 < sizeof text; i += 2) memcpy(text + i, "\xc3\xa4", 3);
    text[8998] = '\0';
    for (int shift = 0; shift < 2; shift++) {
        pd_error_set(&x, PD_ERR_INVALID, NULL, "%s%s", shift ? "x" : "", text);
        size_t n = strlen(x.message);
        assert_true(n > sizeof x.message - 8 && n < sizeof x.message);
        assert_string_equal(x.message + n - 3, "...");
        assert_int_equal((unsigned char)x.message[n - 4], 0xA4);
    }
}

static void the_reference_page_is_what_the_tables_say(void **state) {
    (void)state;
    struct fo_buf page;
    struct fo_err e;
    char *text = NULL;
    size_t len;
    fo_buf_init(&page, 1 << 20);
    pd_routes_doc(&page);
    assert_false(page.failed);
    if (getenv("UPDATE")) {
        FILE *f = fopen("docs/http-api.md", "w");
        assert_non_null(f);
        assert_int_equal(fwrite(page.data, 1, page.len, f), page.len);
        assert_int_equal(fclose(f), 0);
    }
    assert_int_equal(fo_file_read("docs/http-api.md", 1 << 20, &text, &len, &e), FO_OK);
    if (len != page.len || memcmp(text, page.data, len) != 0) fail_msg("docs/http-api.md differs from the tables: run this test with UPDATE=1");
    free(text);
    fo_buf_done(&page);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(finds_each_route_by_method_and_path),
        cmocka_unit_test(every_error_is_one_that_clients_understand),
        cmocka_unit_test(maps_every_code_of_the_engine),
        cmocka_unit_test(writes_all_four_members_of_an_error),
        cmocka_unit_test(cuts_a_long_message_at_a_character),
        cmocka_unit_test(the_reference_page_is_what_the_tables_say),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
