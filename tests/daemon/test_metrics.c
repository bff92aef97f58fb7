/* The table of metrics keeps Prometheus' rules for names, so that `promtool check metrics` has nothing to say. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "daemon/metrics.h"

static bool ends(const char *s, const char *with) {
    size_t n = strlen(s), k = strlen(with);
    return n >= k && strcmp(s + n - k, with) == 0;
}

static bool snake(const char *s) {
    return *s >= 'a' && *s <= 'z' && strspn(s, "abcdefghijklmnopqrstuvwxyz0123456789_") == strlen(s) && !strstr(s, "__");
}

static void names_keep_the_rules(void **state) {
    (void)state;
    /* units other than the base ones, types in names, what only histograms and summaries may end in */
    static const char *const banned[] = { "milli", "_ms", "minute", "hour", "kilo", "mega", "kib", "mib", "percent", "gauge", "counter", "histogram", "summary" };
    static const char *const endings[] = { "_count", "_sum", "_bucket" };
    struct pd_metric_doc d;
    size_t n = 0;
    for (; pd_metric_doc(n, &d); n++) {
        bool counter = strcmp(d.type, "counter") == 0;
        if (!snake(d.name)) fail_msg("%s", d.name);
        if (strncmp(d.name, "pantheon_", 9) != 0 && strcmp(d.name, "process_start_time_seconds") != 0) fail_msg("%s is not ours", d.name);
        assert_true(counter || strcmp(d.type, "gauge") == 0);
        if (counter != ends(d.name, "_total")) fail_msg("%s: a counter ends in _total, nothing else does", d.name);
        for (size_t i = 0; i < sizeof banned / sizeof *banned; i++)
            if (strstr(d.name, banned[i])) fail_msg("%s has %s", d.name, banned[i]);
        for (size_t i = 0; i < sizeof endings / sizeof *endings; i++)
            if (ends(d.name, endings[i])) fail_msg("%s ends in %s", d.name, endings[i]);
        if (strstr(d.name, "memory") || strstr(d.name, "kv_cache")) assert_true(ends(d.name, "_bytes"));
        if (d.help) assert_true(*d.help && !strpbrk(d.help, "\\\n") && ends(d.help, "."));
    }
    assert_true(n >= 40);
}

static void rows_of_one_name_stand_together_and_differ_in_their_label(void **state) {
    (void)state;
    struct pd_metric_doc d;
    char seen[64][64], name[64] = "", labels[96] = "", type[16] = "";
    const char *values[16];
    size_t n_seen = 0, n_values = 0;
    for (size_t i = 0; pd_metric_doc(i, &d); i++) {
        if (strcmp(d.name, name) != 0) {
            for (size_t k = 0; k < n_seen; k++)
                if (strcmp(seen[k], d.name) == 0) fail_msg("%s comes back", d.name);
            assert_non_null(d.help); /* the first row of a name has it */
            assert_true(n_seen < 64);
            snprintf(name, sizeof name, "%s", d.name);
            snprintf(seen[n_seen++], sizeof seen[0], "%s", d.name);
            snprintf(labels, sizeof labels, "%s", d.labels);
            snprintf(type, sizeof type, "%s", d.type);
            n_values = 0;
        } else {
            assert_null(d.help);
            assert_non_null(d.value);
        }
        assert_string_equal(d.labels, labels);
        assert_string_equal(d.type, type);
        for (size_t k = 0; k < n_values; k++) assert_string_not_equal(values[k], d.value);
        if (d.value) {
            assert_true(n_values < 16);
            values[n_values++] = d.value;
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_keep_the_rules),
        cmocka_unit_test(rows_of_one_name_stand_together_and_differ_in_their_label),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
