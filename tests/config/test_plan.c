/* Plans as people read them: every folder of tests/cases/plan is a manifest, facts, and the text and exit status of --plan. UPDATE=1
 * rewrites plan.txt and exit for review. A folder with a file `prune` is planned with --prune. */
#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>
#include <unistd.h>

#include "config/plan.h"
#include "foundry/base/file.h"
#include "tests/support/alloc.h"

#define CASES "tests/cases/plan"

struct one {
    struct cf_manifest *m;
    struct cf_facts *f;
    unsigned flags;
};

static char *slurp(const char *dir, const char *name, size_t *ret_len) {
    char path[512], *text;
    struct fo_err e;
    snprintf(path, sizeof path, CASES "/%s/%s", dir, name);
    return fo_file_read(path, 4 << 20, &text, ret_len, &e) == FO_OK ? text : NULL;
}

static void open_case(const char *dir, struct one *ret) {
    struct cf_report rep;
    struct fo_err e;
    size_t len;
    char path[512], *text = slurp(dir, "manifest.yaml", &len);
    if (!text) fail_msg("%s has no manifest.yaml", dir);
    if (cf_manifest_parse(text, len, &ret->m, &rep, &e)) fail_msg("%s/manifest.yaml: %d:%d %s", dir, e.line, e.col, e.msg);
    cf_report_done(&rep);
    free(text);
    text = slurp(dir, "facts.json", &len);
    if (!text) fail_msg("%s has no facts.json", dir);
    if (cf_facts_parse(text, len, &ret->f, &e)) fail_msg("%s/facts.json: %d:%d %s", dir, e.line, e.col, e.msg);
    free(text);
    snprintf(path, sizeof path, CASES "/%s/prune", dir);
    ret->flags = access(path, F_OK) == 0 ? CF_PLAN_PRUNE : 0;
}

static void close_case(struct one *c) {
    cf_facts_free(c->f);
    cf_manifest_free(c->m);
}

static int is_case(const struct dirent *d) {
    return d->d_name[0] != '.';
}

static void write_file(const char *dir, const char *name, const char *text) {
    char path[512];
    snprintf(path, sizeof path, CASES "/%s/%s", dir, name);
    FILE *out = fopen(path, "w");
    assert_non_null(out);
    fputs(text, out);
    fclose(out);
}

static bool same_file(const char *dir, const char *name, const char *got) {
    size_t len;
    char *expected = slurp(dir, name, &len);
    bool same = expected && strcmp(expected, got) == 0;
    if (!same) print_error("%s/%s: expected\n%s\ngot\n%s\n", dir, name, expected ? expected : "(nothing)", got);
    free(expected);
    return same;
}

static void says_what_each_case_expects(void **state) {
    (void)state;
    struct dirent **list;
    int n = scandir(CASES, &list, is_case, alphasort), n_bad = 0;
    assert_true(n >= 60);
    for (int i = 0; i < n; i++) {
        const char *dir = list[i]->d_name;
        struct one c;
        struct cf_plan *p;
        struct fo_err e;
        char status[8];
        open_case(dir, &c);
        assert_int_equal(cf_plan_make(c.m, c.f, c.flags, &p, &e), FO_OK);
        char *text = cf_plan_text(p, c.f);
        assert_non_null(text);
        snprintf(status, sizeof status, "%d\n", cf_plan_exit(p));
        if (getenv("UPDATE")) {
            write_file(dir, "plan.txt", text);
            write_file(dir, "exit", status);
        } else
            n_bad += !same_file(dir, "plan.txt", text) + !same_file(dir, "exit", status);
        free(text);
        cf_plan_free(p);
        close_case(&c);
        free(list[i]);
    }
    free(list);
    assert_int_equal(n_bad, 0);
}

/* The JSON says what the plan says, and is JSON whatever the names and reasons hold. */
static void prints_every_case_as_json(void **state) {
    (void)state;
    struct dirent **list;
    int n = scandir(CASES, &list, is_case, alphasort);
    for (int i = 0; i < n; i++) {
        struct one c;
        struct cf_plan *p;
        struct fo_err e;
        json_error_t error;
        open_case(list[i]->d_name, &c);
        assert_int_equal(cf_plan_make(c.m, c.f, c.flags, &p, &e), FO_OK);
        char *text = cf_plan_json(p);
        assert_non_null(text);
        json_t *top = json_loads(text, JSON_REJECT_DUPLICATES, &error);
        if (!top) fail_msg("%s: %d:%d %s\n%s", list[i]->d_name, error.line, error.column, error.text, text);
        assert_int_equal(json_integer_value(json_object_get(top, "exit")), cf_plan_exit(p));
        const json_t *steps = json_object_get(top, "steps"), *verdicts = json_object_get(top, "verdicts");
        assert_int_equal(json_array_size(steps), p->n_steps);
        assert_int_equal(json_array_size(verdicts), p->n_verdicts);
        assert_int_equal(json_array_size(json_object_get(top, "dies")), p->n_dies);
        for (size_t j = 0; j < p->n_steps; j++) {
            const json_t *s = json_array_get(steps, j);
            assert_string_equal(json_string_value(json_object_get(s, "model")), p->steps[j].model);
            assert_int_equal(json_array_size(json_object_get(s, "parts")), p->steps[j].n_parts);
        }
        json_decref(top);
        free(text);
        cf_plan_free(p);
        close_case(&c);
        free(list[i]);
    }
    free(list);
}

/* Facts that were saved give the plan that the live ones gave. */
static void plans_the_same_from_saved_facts(void **state) {
    (void)state;
    struct dirent **list;
    int n = scandir(CASES, &list, is_case, alphasort);
    for (int i = 0; i < n; i++) {
        struct one c;
        struct cf_plan *p, *q;
        struct cf_facts *again;
        struct fo_err e;
        open_case(list[i]->d_name, &c);
        char *saved = cf_facts_write(c.f);
        assert_non_null(saved);
        if (cf_facts_parse(saved, strlen(saved), &again, &e)) fail_msg("%s: %s\n%s", list[i]->d_name, e.msg, saved);
        assert_int_equal(cf_plan_make(c.m, c.f, c.flags, &p, &e), FO_OK);
        assert_int_equal(cf_plan_make(c.m, again, c.flags, &q, &e), FO_OK);
        char *a = cf_plan_json(p), *b = cf_plan_json(q);
        assert_string_equal(a, b);
        free(a);
        free(b);
        free(saved);
        cf_plan_free(p);
        cf_plan_free(q);
        cf_facts_free(again);
        close_case(&c);
        free(list[i]);
    }
    free(list);
}

static void survives_every_failed_allocation(void **state) {
    (void)state;
    struct dirent **list;
    int n = scandir(CASES, &list, is_case, alphasort);
    for (int i = 0; i < n; i++) {
        struct one c;
        open_case(list[i]->d_name, &c);
        for (long k = 1;; k++) {
            struct cf_plan *p = NULL;
            struct cf_facts *copy = NULL;
            struct fo_err e;
            char *text = NULL, *json = NULL;
            test_fail_alloc(k);
            int rc = cf_facts_copy(c.f, &copy, &e);
            if (rc == FO_OK) rc = cf_plan_make(c.m, copy, c.flags, &p, &e);
            if (rc == FO_OK) {
                text = cf_plan_text(p, copy);
                json = cf_plan_json(p);
                for (size_t j = 0; j < p->n_steps && rc == FO_OK; j++) rc = cf_plan_apply(p, j, copy, &e);
            }
            bool failed = test_alloc_failed();
            if (!failed) assert_int_equal(rc, FO_OK);
            if (rc) assert_int_equal(e.code, FO_ENOMEM);
            free(text);
            free(json);
            cf_plan_free(p);
            cf_facts_free(copy);
            if (!failed) break;
        }
        close_case(&c);
        free(list[i]);
    }
    free(list);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(says_what_each_case_expects),
        cmocka_unit_test(prints_every_case_as_json),
        cmocka_unit_test(plans_the_same_from_saved_facts),
        cmocka_unit_test(survives_every_failed_allocation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
