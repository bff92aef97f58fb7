/* The installed manifests as people start from them: each of etc/examples is planned for a machine of its kind, and so is each of the edits that
 * people make next (pains.md 70: the same manifest gives the same plan). tests/cases/examples/NAME has what was observed there
 * (facts.json), the edits, each a few lines in the place of others (edits.txt), and the text of every plan (plans.txt; UPDATE=1 rewrites it). An edit is planned
 * for the machine that runs the example as it is.
 *
 * Kinds of dies that this version does not drive are told as such, and nothing else is wrong; for the plan they are sim dies of the same names:
 * the planner looks at what was observed of a die, not at its kind. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <dirent.h>

#include "config/manifest.h"
#include "config/plan.h"
#include "daemon/source.h"
#include "foundry/base/buf.h"
#include "foundry/base/err.h"
#include "foundry/base/file.h"

#define EXAMPLES "etc/examples"
#define CASES    "tests/cases/examples"

static const char *const names[] = { "cpu", "k80", "many-models", "p150a" };
enum { N_EXAMPLES = sizeof names / sizeof *names, MAX_STEPS = 64 };

static char *slurp(const char *dir, const char *name, const char *file) {
    char path[256], *text;
    size_t len;
    struct fo_err e;
    snprintf(path, sizeof path, "%s/%s%s", dir, name, file);
    if (fo_file_read(path, 1 << 20, &text, &len, &e)) fail_msg("%s", e.msg);
    return text;
}

/* The text with the first `old` behind *at replaced, where *at is set behind it. Frees `text`. */
static char *replace(char *text, size_t *at, const char *old, const char *new) {
    char *found = strstr(text + *at, old), *out;
    if (!found) fail_msg("not in the example:\n%s", old);
    int head = (int)(found - text);
    if (asprintf(&out, "%.*s%s%s", head, text, new, found + strlen(old)) < 0) fail();
    *at = (size_t)head + strlen(new);
    free(text);
    return out;
}

/* Dies that are not driven yet, as sim dies. */
static char *made_drivable(char *text) {
    static const char *const kinds[] = { "kind: cuda", "kind: tt" };
    for (size_t i = 0; i < 2; i++)
        for (char *p; (p = strstr(text, kinds[i]));) {
            char die[128];
            size_t at = 0;
            snprintf(die, sizeof die, "%.*s", (int)(strchr(strstr(p, "pci: \"") + 6, '"') + 1 - p), p);
            text = replace(text, &at, die, "kind: sim, memory: 1GiB");
        }
    return text;
}

static struct cf_manifest *parse(const char *name, const char *text) {
    struct cf_manifest *m = NULL;
    struct cf_report rep;
    struct fo_err e;
    if (cf_manifest_parse(text, strlen(text), &m, &rep, &e)) fail_msg("%s: %d:%d: %s", name, e.line, e.col, e.msg);
    cf_report_done(&rep);
    return m;
}

static void put_plan(const char *title, const struct cf_manifest *m, const struct cf_facts *f, struct fo_buf *out) {
    struct cf_plan *p;
    struct fo_err e;
    assert_int_equal(cf_plan_make(m, f, 0, &p, &e), FO_OK);
    char *text = cf_plan_text(p, f);
    assert_non_null(text);
    fo_buf_printf(out, "=== %s (exit %d) ===\n%s\n", title, cf_plan_exit(p), text);
    free(text);
    cf_plan_free(p);
}

/* Performs the plan as the daemon does, step by step, until there is none. */
static void settle(const struct cf_manifest *m, struct cf_facts *f) {
    struct cf_plan *p;
    struct fo_err e;
    for (int i = 0;; i++) {
        assert_true(i < MAX_STEPS);
        assert_int_equal(cf_plan_make(m, f, 0, &p, &e), FO_OK);
        size_t n = p->n_steps;
        if (n) assert_int_equal(cf_plan_apply(p, 0, f, &e), FO_OK);
        cf_plan_free(p);
        if (n == 0) return;
    }
}

/* Lines that begin with `mark`, without it, up to one that does not; *at is moved behind them. */
static char *lines_of(const char **at, char mark) {
    struct fo_buf b;
    fo_buf_init(&b, 1 << 16);
    while (**at == mark) {
        const char *end = strchr(*at, '\n');
        fo_buf_printf(&b, "%.*s\n", (int)(end - *at - 1), *at + 1);
        *at = end + 1;
    }
    char *s = strdup(fo_buf_str(&b));
    fo_buf_done(&b);
    assert_non_null(s);
    return s;
}

/* One edit after the other, each from the example as it is: "# title", then "-" and "+" lines, then an empty one. */
static size_t plan_edits(const char *name, const char *text, const struct cf_facts *f, struct fo_buf *out) {
    char *edits = slurp(CASES "/", name, "/edits.txt");
    size_t n = 0;
    for (const char *p = edits; *p; n++) {
        char title[128];
        size_t at = 0;
        assert_int_equal(*p, '#');
        snprintf(title, sizeof title, "%.*s", (int)(strcspn(p, "\n") - 2), p + 2);
        p = strchr(p, '\n') + 1;
        char *edited = made_drivable(strdup(text));
        while (*p == '-') {
            char *old = lines_of(&p, '-'), *new = lines_of(&p, '+');
            edited = replace(edited, &at, old, new);
            free(old);
            free(new);
        }
        struct cf_manifest *m = parse(title, edited);
        put_plan(title, m, f, out);
        cf_manifest_free(m);
        free(edited);
        p += *p == '\n';
    }
    free(edits);
    return n;
}

static void test_pain_70_each_example_and_each_edit_of_it_has_its_plan(void **state) {
    (void)state;
    int n_bad = 0;
    for (size_t i = 0; i < N_EXAMPLES; i++) {
        char *text = slurp(EXAMPLES "/", names[i], ".yaml"), *json = slurp(CASES "/", names[i], "/facts.json"), *drivable = made_drivable(strdup(text));
        struct cf_manifest *m = parse(names[i], drivable);
        struct cf_facts *f;
        struct fo_err e;
        struct fo_buf out;
        fo_buf_init(&out, 1 << 20);
        if (cf_facts_parse(json, strlen(json), &f, &e)) fail_msg("%s: %s", names[i], e.msg);
        put_plan("an empty machine", m, f, &out);
        settle(m, f);
        put_plan("running as declared", m, f, &out);
        assert_non_null(strstr(fo_buf_str(&out), "=== running as declared (exit 0) ==="));
        assert_true(plan_edits(names[i], text, f, &out) >= 5);
        char path[128];
        snprintf(path, sizeof path, CASES "/%s/plans.txt", names[i]);
        if (getenv("UPDATE")) {
            FILE *to = fopen(path, "w");
            assert_non_null(to);
            fputs(fo_buf_str(&out), to);
            fclose(to);
        }
        char *want = slurp(CASES "/", names[i], "/plans.txt");
        if (strcmp(want, fo_buf_str(&out)) != 0) {
            print_error("%s: expected\n%s\ngot\n%s\n", path, want, fo_buf_str(&out));
            n_bad++;
        }
        free(want);
        free(text);
        free(json);
        free(drivable);
        fo_buf_done(&out);
        cf_manifest_free(m);
        cf_facts_free(f);
    }
    assert_int_equal(n_bad, 0);
}

/* Read as the daemon reads them. A finding is about the kind of a die that is not driven yet, and there is one for each of those. */
static void nothing_is_wrong_with_an_example_but_what_is_not_there_yet(void **state) {
    (void)state;
    for (size_t i = 0; i < N_EXAMPLES; i++) {
        char path[128], *text = slurp(EXAMPLES "/", names[i], ".yaml");
        size_t n_kinds = 0, n_errors = 0, n_not_yet = 0;
        struct pd_reading r;
        snprintf(path, sizeof path, EXAMPLES "/%s.yaml", names[i]);
        bool good = pd_source_read(path, &r);
        for (const char *p = text; (p = strstr(p, ", kind: ")); p++) n_kinds += strncmp(p, ", kind: cpu", 11) != 0;
        for (const char *p = r.report; p && (p = strstr(p, ": error: ")); p++) {
            const char *end = strchr(p, '\n'), *not_yet = strstr(p, " is known, but this version does only cpu, sim yet\n");
            n_errors++;
            n_not_yet += strncmp(p, ": error: 'kind': '", 18) == 0 && not_yet && not_yet < end;
        }
        if (good != (n_kinds == 0) || n_errors != n_kinds || n_not_yet != n_kinds) fail_msg("%s: %s", path, r.report ? r.report : "good");
        pd_reading_done(&r);
        free(text);
    }
}

static int is_yaml(const struct dirent *d) {
    return strstr(d->d_name, ".yaml") != NULL;
}

static void every_example_is_in_this_test(void **state) {
    (void)state;
    struct dirent **list;
    int n = scandir(EXAMPLES, &list, is_yaml, alphasort);
    assert_int_equal(n, N_EXAMPLES);
    for (int i = 0; i < n; i++) {
        assert_int_equal(strncmp(list[i]->d_name, names[i], strlen(names[i])), 0);
        free(list[i]);
    }
    free(list);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pain_70_each_example_and_each_edit_of_it_has_its_plan),
        cmocka_unit_test(nothing_is_wrong_with_an_example_but_what_is_not_there_yet),
        cmocka_unit_test(every_example_is_in_this_test),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
