/* Where the manifest comes from: its file and those that it includes, read as one, and the copy of the last good ones. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include <sys/stat.h>
#include <unistd.h>

#include "config/manifest.h"
#include "daemon/source.h"
#include "foundry/base/err.h"
#include "tests/support/folder.h"

static char folder[64], manifest[96];

static int make_folder(void **state) {
    (void)state;
    if (test_folder_make(folder)) return -1;
    snprintf(manifest, sizeof manifest, "%s/models.yaml", folder);
    char d[96];
    snprintf(d, sizeof d, "%s/models.d", folder);
    return mkdir(d, 0755);
}

static int remove_folder(void **state) {
    (void)state;
    return test_folder_remove(folder);
}

static void put(const char *path, const char *text) {
    test_folder_put(folder, path, text);
}

static void take_away(const char *path) {
    char full[256];
    snprintf(full, sizeof full, "%s/%s", folder, path);
    assert_int_equal(remove(full), 0);
}

/* The reading's models by name, in order: "a b c". */
static void assert_models(const char *want) {
    struct pd_reading r;
    char got[512] = "";
    if (!pd_source_read(manifest, &r)) fail_msg("%s", r.report);
    for (size_t i = 0; i < r.manifest->n_models; i++) snprintf(got + strlen(got), sizeof got - strlen(got), "%s%s", i ? " " : "", r.manifest->models[i].name);
    pd_reading_done(&r);
    assert_string_equal(got, want);
}

/* The report holds each of the texts, where FOLDER is the test's folder. */
static void assert_bad(const char *const *want, size_t n) {
    struct pd_reading r;
    assert_false(pd_source_read(manifest, &r));
    assert_null(r.manifest);
    for (size_t i = 0; i < n; i++) {
        char text[512], *to = text;
        for (const char *p = want[i]; *p;) {
            bool here = strncmp(p, "FOLDER", 6) == 0;
            to += here ? snprintf(to, 128, "%s", folder) : 1;
            if (!here) to[-1] = *p;
            p += here ? 6 : 1;
        }
        *to = '\0';
        if (!strstr(r.report, text)) fail_msg("'%s' is not in\n%s", text, r.report);
    }
    pd_reading_done(&r);
}
#define BAD(...)                                                                   \
    do {                                                                           \
        static const char *const want[] = { __VA_ARGS__ };                         \
        assert_bad(want, sizeof want / sizeof *want);                              \
    } while (0)

#define MODEL(name) "  - { name: " name ", source: { path: " name ".gguf } }\n"
#define HEAD        "version: 1\ninclude: [ \"models.d/*.yaml\" ]\n"

static void a_bad_file_is_reported_whole(void **state) {
    (void)state;
    put("models.yaml", "version: 1\nserver: { lisen: [] }\nmodels:\n  - { nam: a }\n");
    BAD("FOLDER/models.yaml:2:11: error: 'lisen'", "FOLDER/models.yaml:4:7: error: 'nam'");
    take_away("models.yaml");
    BAD("FOLDER/models.yaml");
}

static void included_files_add_models_by_name(void **state) {
    (void)state;
    put("models.yaml", HEAD "defaults: { max_sessions: 3 }\nmodels:\n" MODEL("own"));
    put("models.d/20-b.yaml", "models:\n" MODEL("b2"));
    put("models.d/10-a.yaml", "models:\n" MODEL("a1") MODEL("a0"));
    put("models.d/Z.yaml", "# nothing for now\n");
    put("models.d/.hidden.yaml", "models: nonsense");
    put("models.d/a.yaml.dpkg-old", "models: nonsense");
    assert_models("own a1 a0 b2");
    struct pd_reading r;
    assert_true(pd_source_read(manifest, &r));
    assert_int_equal(r.texts.n, 4);
    for (size_t i = 0; i < r.manifest->n_models; i++) assert_int_equal(r.manifest->models[i].max_sessions, 3); /* its defaults hold for all */
    pd_reading_done(&r);
}

static void nothing_that_fits_a_pattern_is_fine_but_a_name_must_be_there(void **state) {
    (void)state;
    put("models.yaml", "version: 1\ninclude: [ \"models.d/*.yaml\", \"no-such-folder/*.yaml\" ]\n");
    assert_models("");
    put("models.yaml", "version: 1\ninclude: [ extra.yaml ]\n");
    BAD("FOLDER/models.yaml:2:12: error: 'include': FOLDER/extra.yaml: No such file", "FOLDER/models.yaml: 1 error");
    put("extra.yaml", "models:\n" MODEL("x"));
    assert_models("x");
    char text[256];
    snprintf(text, sizeof text, "version: 1\ninclude: [ \"%s/extra.yaml\" ]\n", folder); /* a whole path */
    put("models.yaml", text);
    assert_models("x");
}

static void a_file_counts_once_and_the_manifest_does_not_include_itself(void **state) {
    (void)state;
    put("models.yaml", "version: 1\ninclude: [ \"*.yaml\", \"x*.yaml\", x1.yaml ]\nmodels:\n" MODEL("own"));
    put("x1.yaml", "models:\n" MODEL("x1"));
    assert_models("own x1");
}

static void a_name_taken_twice_names_both_places(void **state) {
    (void)state;
    put("models.yaml", HEAD "models:\n" MODEL("chat"));
    put("models.d/a.yaml", "models:\n" MODEL("other") "  - { name: more, aliases: [ chat ], source: { path: p } }\n");
    put("models.d/b.yaml", "models:\n" MODEL("more"));
    BAD("FOLDER/models.d/a.yaml:3:30: error: 'chat' is taken already: a name in FOLDER/models.yaml, line 4, column 13",
        "FOLDER/models.d/b.yaml:2:13: error: 'more' is taken already: a name in FOLDER/models.d/a.yaml, line 3, column 13", "    2 |   - { name: more,", "FOLDER/models.yaml: 2 errors");
}

static void mistakes_are_told_by_file_and_place(void **state) {
    (void)state;
    put("models.yaml", HEAD "server: { lisen: [] }\ndies: [ { name: cpu, kind: cpu } ]\n");
    put("models.d/a.yaml", "server: { drain: 1s }\nmodels:\n  - { name: a, source: { path: p }, ctx_kap: 1, dies: [ gpu ] }\n");
    put("models.d/b.yaml", "- nothing\n");
    put("models.d/c.yaml", "models: [\n");
    put("models.d/d.yaml", "version: 1\ninclude: [ more.yaml ]\nmodels: []\n");
    BAD("FOLDER/models.yaml:3:11: error: 'lisen'", "FOLDER/models.d/a.yaml:1:1: error: 'server': no such key in an included file; 'server' belongs in the manifest",
        "FOLDER/models.d/a.yaml:3:37: error: 'ctx_kap': no such key in a model; did you mean 'ctx_cap'?", "FOLDER/models.d/a.yaml:3:57: error: 'dies': no die is called 'gpu'",
        "FOLDER/models.d/b.yaml:1:1: error: an included file is a mapping with 'models', not a list", "FOLDER/models.d/c.yaml:2:1: error: ", "FOLDER/models.d/d.yaml:1:1: error: 'version': no such key",
        "FOLDER/models.d/d.yaml:2:1: error: 'include': no such key", "FOLDER/models.yaml: 8 errors");
}

static void files_that_cannot_be_read_are_told(void **state) {
    (void)state;
    char dir[128];
    put("models.yaml", HEAD);
    snprintf(dir, sizeof dir, "%s/models.d/folder.yaml", folder);
    assert_int_equal(mkdir(dir, 0755), 0);
    BAD("FOLDER/models.yaml:2:12: error: 'include': FOLDER/models.d/folder.yaml");
    assert_int_equal(rmdir(dir), 0);
    snprintf(dir, sizeof dir, "%s/models.d/pipe.yaml", folder); /* nobody writes into it: opening it must not wait */
    assert_int_equal(mkfifo(dir, 0600), 0);
    BAD("FOLDER/models.yaml:2:12: error: 'include': FOLDER/models.d/pipe.yaml: not a regular file");
    take_away("models.d/pipe.yaml");
    put("models.d/new\nline.yaml", "models: []\n");
    BAD("FOLDER/models.yaml:2:12: error: 'include': the name of a file with a control character");
    take_away("models.d/new\nline.yaml");
    put("models.d/latin\xE9.yaml", "modles: []\n"); /* as a report would name it, no answer could hold it */
    BAD("FOLDER/models.yaml:2:12: error: 'include': the name of a file with a control character, or that is not UTF-8", "FOLDER/models.yaml: 1 error");
    take_away("models.d/latin\xE9.yaml");
    snprintf(dir, sizeof dir, "%s/models.d/dangling.yaml", folder);
    assert_int_equal(symlink("nowhere", dir), 0);
    BAD("FOLDER/models.yaml:2:12: error: 'include': FOLDER/models.d/dangling.yaml: No such file");
}

static void all_files_together_have_the_limits_of_one(void **state) {
    (void)state;
    char *big = malloc(PD_MAX_MANIFEST_BYTES), name[64];
    assert_non_null(big);
    memset(big, '#', PD_MAX_MANIFEST_BYTES - 1);
    big[PD_MAX_MANIFEST_BYTES - 1] = '\0';
    put("models.yaml", HEAD);
    put("models.d/a.yaml", big);
    BAD("FOLDER/models.yaml:2:12: error: 'include': with FOLDER/models.d/a.yaml the manifest has more than 1048576 bytes");
    big[PD_MAX_MANIFEST_BYTES / 2] = '\0';
    put("models.d/a.yaml", big);
    assert_models("");
    free(big);
    take_away("models.d/a.yaml");
    for (int i = 0; i <= PD_MAX_INCLUDED; i++) {
        snprintf(name, sizeof name, "models.d/f%03d.yaml", i);
        put(name, "");
    }
    BAD("FOLDER/models.yaml:2:12: error: 'include': more than 256 files");
}

/* Whether a reading now is another than the one before. */
static bool changed(struct pd_reading *was) {
    struct pd_reading is;
    if (!pd_source_read(manifest, &is)) fail_msg("%s", is.report);
    bool same = pd_texts_equal(&was->texts, &is.texts);
    pd_reading_done(was);
    *was = is;
    return !same;
}

static void a_change_in_any_file_is_seen(void **state) {
    (void)state;
    struct pd_reading r;
    put("models.yaml", HEAD);
    put("models.d/a.yaml", "models:\n" MODEL("a"));
    assert_true(pd_source_read(manifest, &r));
    assert_false(changed(&r));
    put("models.d/a.yaml", "models:\n" MODEL("b"));
    assert_true(changed(&r));
    put("models.d/b.yaml", "models:\n" MODEL("c"));
    assert_true(changed(&r));
    assert_false(changed(&r));
    take_away("models.d/a.yaml");
    assert_true(changed(&r));
    put("models.yaml", HEAD "\n");
    assert_true(changed(&r));
    pd_reading_done(&r);
}

/* --- the kept copy --- */

static void keeps_the_last_accepted_manifest_and_only_its_own(void **state) {
    (void)state;
    struct fo_err e;
    struct pd_texts kept = { 0 };
    uint64_t generation;
    struct cf_text one[] = { { "/etc/a.yaml", "version: 1\nmodels: []\n", 22 } };
    const struct pd_texts texts = { one, 1 };
    assert_int_equal(pd_source_last(folder, "/etc/a.yaml", &kept, &generation, &e), FO_ENOENT);
    assert_int_equal(pd_source_keep(folder, &texts, 7, &e), FO_OK);
    assert_int_equal(pd_source_last(folder, "/etc/a.yaml", &kept, &generation, &e), FO_OK);
    assert_int_equal(generation, 7);
    assert_true(pd_texts_equal(&kept, &texts));
    pd_texts_done(&kept);
    assert_int_equal(pd_source_last(folder, "/etc/b.yaml", &kept, &generation, &e), FO_ENOENT);
    assert_int_equal(pd_source_last(folder, "/etc/a.yam", &kept, &generation, &e), FO_ENOENT);
    assert_int_equal(pd_source_keep("/nonexistent", &texts, 8, &e), FO_ENOENT);
    assert_non_null(strstr(e.msg, "/nonexistent/last-accepted.yaml"));
}

static void keeps_all_that_was_included(void **state) {
    (void)state;
    struct fo_err e;
    struct pd_reading r, again;
    struct pd_texts kept;
    uint64_t generation;
    put("models.yaml", "# texts: 9\n" HEAD);
    put("models.d/a.yaml", "models:\n" MODEL("a"));
    put("models.d/b.yaml", "");
    put("models.d/c d.yaml", "models:\n" MODEL("c"));
    assert_true(pd_source_read(manifest, &r));
    assert_int_equal(r.texts.n, 4);
    assert_int_equal(pd_source_keep(folder, &r.texts, 3, &e), FO_OK);
    put("models.d/a.yaml", "models: [[[\n"); /* the copy needs none of them */
    take_away("models.d/b.yaml");
    assert_int_equal(pd_source_last(folder, manifest, &kept, &generation, &e), FO_OK);
    assert_int_equal(generation, 3);
    assert_true(pd_texts_equal(&kept, &r.texts));
    assert_true(pd_source_parse(&kept, &again));
    assert_int_equal(again.manifest->n_models, 2);
    assert_string_equal(again.manifest->models[1].name, "c");
    pd_reading_done(&again);
    pd_reading_done(&r);
}

static void a_copy_that_is_damaged_is_none(void **state) {
    (void)state;
    static const struct {
        const char *text;
        size_t n; /* texts; 0 = none */
    } rows[] = {
        { "", 0 },
        { "# accepted from /etc/a.yaml as generation ", 0 },
        { "# accepted from /etc/a.yaml as generation 0\n", 0 },
        { "# accepted from /etc/a.yaml as generation 7\nversion: 1\n", 1 }, /* as it was kept before there were includes */
        { "# accepted from /etc/a.yaml as generation 7\n# texts: 1\n# 11 /etc/a.yaml\nversion: 1\n", 1 },
        { "# accepted from /etc/a.yaml as generation 7\n# texts: 2\n# 11 /etc/a.yaml\n# 0 /etc/b.yaml\nversion: 1\n", 2 },
        { "# accepted from /etc/a.yaml as generation 7\n# texts: 1\n# 12 /etc/a.yaml\nversion: 1\n", 0 },
        { "# accepted from /etc/a.yaml as generation 7\n# texts: 1\n# 10 /etc/a.yaml\nversion: 1\n", 0 },
        { "# accepted from /etc/a.yaml as generation 7\n# texts: 2\n# 11 /etc/a.yaml\nversion: 1\n", 0 },
        { "# accepted from /etc/a.yaml as generation 7\n# texts: 999\n# 11 /etc/a.yaml\nversion: 1\n", 0 },
        { "# accepted from /etc/a.yaml as generation 7\n# texts: 0\nversion: 1\n", 0 },
        { "# accepted from /etc/a.yaml as generation 7\n# texts: 1\n# 99999999999999999999 /etc/a.yaml\nversion: 1\n", 0 },
        { "# accepted from /etc/a.yaml as generation 7\n# texts: 1\n# 11 /etc/a.yaml", 0 },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct pd_texts kept = { 0 };
        struct fo_err e;
        uint64_t generation;
        put("last-accepted.yaml", rows[i].text);
        int rc = pd_source_last(folder, "/etc/a.yaml", &kept, &generation, &e);
        if ((rc == FO_OK) != (rows[i].n > 0) || kept.n != rows[i].n) fail_msg("%s: %d, %zu texts", rows[i].text, rc, kept.n);
        pd_texts_done(&kept);
    }
}

#define EACH(f) cmocka_unit_test_setup_teardown(f, make_folder, remove_folder)
int main(void) {
    const struct CMUnitTest tests[] = {
        EACH(a_bad_file_is_reported_whole),
        EACH(included_files_add_models_by_name),
        EACH(nothing_that_fits_a_pattern_is_fine_but_a_name_must_be_there),
        EACH(a_file_counts_once_and_the_manifest_does_not_include_itself),
        EACH(a_name_taken_twice_names_both_places),
        EACH(mistakes_are_told_by_file_and_place),
        EACH(files_that_cannot_be_read_are_told),
        EACH(all_files_together_have_the_limits_of_one),
        EACH(a_change_in_any_file_is_seen),
        EACH(keeps_the_last_accepted_manifest_and_only_its_own),
        EACH(keeps_all_that_was_included),
        EACH(a_copy_that_is_damaged_is_none),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
