/* The template language: against Jinja2 on the committed cases (tests/cases/chat) and, with GOLDENS=DIR in the environment, on every
 * published template there; who wrote each byte; and that no template hangs, overflows a stack or fills the process. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <jansson.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "engine/jinja_impl.h"
#include "foundry/base/buf.h"
#include "tests/support/alloc.h"

#define CASES "tests/cases/chat/"
enum { NOW = 1741338302 }; /* 2025-03-07 09:05:02 UTC, as the references have it */

/* Renders a template with the variables of a JSON object. Returns 0 or the code; *ret is the text or the message. */
static int render_whole(const char *text, size_t len, const char *vars, const struct pn_jinja_limits *limits, struct fo_buf *raised,
                        struct pn_render *ret, struct fo_err *e) {
    struct pn_jinja *j = NULL;
    struct fo_region r;
    struct pn_value *v, clock, all;
    fo_region_init(&r, 64u << 20);
    memset(e, 0, sizeof *e);
    int rc = pn_jinja_parse(text, len, &j, e);
    if (rc == 0) rc = pn_value_from_json(&r, vars, strlen(vars), &v, e);
    if (rc == 0 && !pn_clock_value(&r, NOW, &clock)) rc = fo_fail(e, FO_ENOMEM, "no clock");
    if (rc == 0) rc = pn_dict_with(&r, *v, "strftime_now", clock, &all, e);
    if (rc == 0) rc = pn_jinja_render(j, &r, &all, limits, raised, ret, e);
    pn_jinja_free(j);
    fo_region_done(&r);
    return rc;
}

static int render_limited(const char *text, size_t len, const char *vars, const struct pn_jinja_limits *limits, struct pn_render *ret,
                          struct fo_err *e) {
    return render_whole(text, len, vars, limits, NULL, ret, e);
}

static int render(const char *text, const char *vars, struct pn_render *ret, struct fo_err *e) {
    return render_limited(text, strlen(text), vars, NULL, ret, e);
}

static void expect(const char *text, const char *vars, const char *want) {
    struct pn_render r;
    struct fo_err e;
    int rc = render(text, vars, &r, &e);
    if (rc) fail_msg("%s: %s", text, e.msg);
    assert_string_equal(r.text, want);
    assert_int_equal(r.len, strlen(want));
    pn_render_done(&r);
}

static void expect_error(const char *text, const char *vars, enum fo_code code, const char *part) {
    struct pn_render r;
    struct fo_err e;
    int rc = render(text, vars, &r, &e);
    if (rc == 0) fail_msg("%s rendered: %s", text, r.text);
    if (rc != (int)code || !strstr(e.msg, part)) fail_msg("%s: code %s: %s", text, fo_code_name((enum fo_code)rc), e.msg);
}

/* --- against Jinja2 ------------------------------------------------------------------------------------------------------ */

/* The objects of a file, one a line, as an array. */
static json_t *load_lines(const char *path) {
    FILE *f = fopen(path, "rb");
    if (!f) fail_msg("%s is missing", path);
    json_t *all = json_array();
    json_error_t why;
    for (json_t *v; (v = json_loadf(f, JSON_DISABLE_EOF_CHECK | JSON_ALLOW_NUL, &why));) json_array_append_new(all, v);
    fclose(f);
    assert_true(json_array_size(all) > 0);
    return all;
}

static char *read_file(const char *path, size_t *ret_len) {
    FILE *f = fopen(path, "rb");
    if (!f) fail_msg("%s is missing", path);
    char *text = malloc(1 << 20);
    *ret_len = fread(text, 1, (1 << 20) - 1, f);
    fclose(f);
    return text;
}

/* One row against the reference; what a template raises itself must have the same text. */
static bool row_holds(const char *label, const char *text, size_t len, const char *vars, const json_t *row) {
    struct pn_render r;
    struct fo_err e;
    const json_t *output = json_object_get(row, "output"), *raised = json_object_get(row, "raised");
    struct fo_buf whole;
    fo_buf_init(&whole, PN_RAISED_BYTES);
    int rc = render_whole(text, len, vars, NULL, &whole, &r, &e);
    if (!raised && json_is_string(json_object_get(row, "error_type")) &&
        !strcmp(json_string_value(json_object_get(row, "error_type")), "TemplateError"))
        raised = json_object_get(row, "error");
    bool ok = rc ? output == NULL : output && r.len == json_string_length(output) && memcmp(r.text, json_string_value(output), r.len) == 0;
    if (ok && raised) ok = rc == FO_EINVAL && strcmp(fo_buf_str(&whole), json_string_value(raised)) == 0;
    if (ok && rc && !raised) ok = rc == FO_EFORMAT || rc == FO_EUNSUPPORTED || rc == FO_ELIMIT;
    if (!ok) print_message("%s: got %s\n  want %s\n", label, rc ? e.msg : r.text, output ? json_string_value(output) : "an error");
    if (rc == 0) pn_render_done(&r);
    fo_buf_done(&whole);
    return ok;
}

static void every_construct_renders_as_jinja2_does(void **state) {
    (void)state;
    json_t *rows = load_lines(CASES "language.jsonl"), *row;
    size_t i, bad = 0, len;
    char *text = read_file(CASES "vars.json", &len);
    text[len] = '\0';
    json_array_foreach(rows, i, row) {
        const json_t *t = json_object_get(row, "template");
        bad += !row_holds(json_string_value(t), json_string_value(t), json_string_length(t), text, row);
    }
    assert_true(json_array_size(rows) > 200);
    assert_int_equal(bad, 0);
    free(text);
    json_decref(rows);
}

/* Every row of renders.jsonl in `folder`. */
static size_t check_renders(const char *folder, const char *templates) {
    char path[4096];
    snprintf(path, sizeof path, "%s/conversations.jsonl", folder);
    json_t *talks = load_lines(path), *row;
    snprintf(path, sizeof path, "%s/renders.jsonl", folder);
    json_t *rows = load_lines(path);
    size_t i, bad = 0, n = json_array_size(rows);
    json_array_foreach(rows, i, row) {
        json_t *talk = NULL, *x, *value;
        size_t k, len;
        const char *id = json_string_value(json_object_get(row, "conversation")),
                   *name = json_string_value(json_object_get(row, "template")), *key;
        json_array_foreach(talks, k, x) if (!strcmp(json_string_value(json_object_get(x, "id")), id)) talk = x;
        assert_non_null(talk);
        json_t *tools = json_object_get(talk, "tools"), *prompt = json_object_get(talk, "add_generation_prompt");
        json_t *vars =
            json_pack("{sO sO? sn ss ss sb}", "messages", json_object_get(talk, "messages"), "tools", tools ? tools : json_null(),
                      "documents", "bos_token", "<s>", "eos_token", "</s>", "add_generation_prompt", prompt ? json_is_true(prompt) : 1);
        assert_non_null(vars);
        json_object_foreach(json_object_get(talk, "extra"), key, value) json_object_set(vars, key, value);
        snprintf(path, sizeof path, "%s/%s/%s", folder, templates, name);
        char *text = read_file(path, &len), *given = json_dumps(vars, 0), label[512];
        snprintf(label, sizeof label, "%s on %s", name, id);
        bad += !row_holds(label, text, len, given, row);
        free(text);
        free(given);
        json_decref(vars);
    }
    json_decref(talks);
    json_decref(rows);
    assert_int_equal(bad, 0);
    return n;
}

static void our_own_templates_render_as_in_jinja2(void **state) {
    (void)state;
    assert_true(check_renders("tests/cases/chat", ".") >= 50);
}

static void every_published_template_of_the_folder_in_GOLDENS_renders_equal(void **state) {
    (void)state;
    const char *goldens = getenv("GOLDENS");
    char folder[2048];
    if (!goldens) {
        print_message("GOLDENS is not set: only the committed templates ran\n");
        skip();
    }
    snprintf(folder, sizeof folder, "%s/templates", goldens);
    size_t n = check_renders(folder, "templates");
    print_message("%zu renders of published templates are equal\n", n);
    assert_true(n >= 690);
}

/* --- errors ----------------------------------------------------------------------------------------------------------------- */

static void an_error_names_the_line_and_the_expression(void **state) {
    (void)state;
    struct pn_render r;
    struct fo_err e;
    assert_int_equal(render("a\n{% if true %}\n  {{ 1 + x.y.z }}\n{% endif %}", "{\"x\":{}}", &r, &e), FO_EFORMAT);
    assert_int_equal(e.line, 3);
    assert_int_equal(e.col, 10);
    assert_non_null(strstr(e.msg, "line 3"));
    assert_non_null(strstr(e.msg, "`x.y.z`"));
    assert_non_null(strstr(e.msg, "'dict object' has no attribute 'y'"));
    assert_int_equal(render("a\n\n{{ 'x' | nope(1) }}", "{}", &r, &e), FO_EFORMAT);
    assert_int_equal(e.line, 3);
    assert_non_null(strstr(e.msg, "nope"));
    assert_int_equal(render("{% for x in y %}\n{{ x }", "{}", &r, &e), FO_EFORMAT);
    assert_int_equal(e.line, 2);
}

static void unknown_filters_and_tests_fail_at_parse_unless_a_condition_guards_them(void **state) {
    (void)state;
    struct pn_jinja *j = NULL;
    struct fo_err e;
    static const char *const bad[] = { "{{ x|from_json }}", "{{ x is odd_looking }}", "{% for y in x|zip %}{% endfor %}", "{% frob x %}" };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) assert_int_equal(pn_jinja_parse(bad[i], strlen(bad[i]), &j, &e), FO_EFORMAT);
    expect("{% if x is string %}{{ x|from_json }}{% endif %}ok", "{}", "ok");
    expect("{{ x|from_json if x is string else 'ok' }}", "{}", "ok");
    expect_error("{% if true %}{{ x|from_json }}{% endif %}", "{}", FO_EFORMAT, "no filter named 'from_json'");
}

static void what_several_files_need_is_unsupported_not_malformed(void **state) {
    (void)state;
    static const char *const tags[] = { "include 'x'", "extends 'x'", "import 'x' as y", "from 'x' import y" };
    for (size_t i = 0; i < sizeof tags / sizeof *tags; i++) {
        struct pn_jinja *j = NULL;
        struct fo_err e;
        char text[64], word[16];
        sscanf(tags[i], "%15s", word);
        snprintf(text, sizeof text, "a\n{%% %s %%}", tags[i]);
        assert_int_equal(pn_jinja_parse(text, strlen(text), &j, &e), FO_EUNSUPPORTED);
        assert_int_equal(e.line, 2);
        assert_non_null(strstr(e.msg, "template line 2: templates made of several files"));
        assert_non_null(strstr(e.msg, word));
    }
}

/* What differs from run to run, and what makes links or Python's listings, which no prompt is made of. */
static void filters_that_are_left_out_are_refused_by_name_and_line(void **state) {
    (void)state;
    static const char *const left_out[] = { "random", "urlize", "pprint" };
    for (size_t i = 0; i < sizeof left_out / sizeof *left_out; i++) {
        struct pn_jinja *j = NULL;
        struct fo_err e;
        char text[64];
        snprintf(text, sizeof text, "a\n{{ x|%s }}", left_out[i]);
        assert_int_equal(pn_jinja_parse(text, strlen(text), &j, &e), FO_EUNSUPPORTED);
        assert_int_equal(e.line, 2);
        assert_non_null(strstr(e.msg, left_out[i]));
        assert_non_null(strstr(e.msg, "is not supported"));
    }
}

static void raise_exception_gives_its_text_alone(void **state) {
    (void)state;
    struct pn_render r;
    struct fo_err e;
    assert_int_equal(render("{{ raise_exception('') }}", "{}", &r, &e), FO_EINVAL);
    assert_non_null(strstr(e.msg, "without a text"));
    assert_int_equal(render("{{ raise_exception('Roles must alternate: ' ~ 3) }}", "{}", &r, &e), FO_EINVAL);
    assert_string_equal(e.msg, "Roles must alternate: 3");
}

static void integers_beyond_64_bits_are_errors_never_wrong_numbers(void **state) {
    (void)state;
    expect("{{ 9223372036854775807 }} {{ -9223372036854775807 - 1 }}", "{}", "9223372036854775807 -9223372036854775808");
    expect_error("{{ 9223372036854775807 + 1 }}", "{}", FO_ELIMIT, "64 bits");
    expect_error("{{ 3037000500 * 3037000500 }}", "{}", FO_ELIMIT, "64 bits");
    expect_error("{{ 2 ** 64 }}", "{}", FO_ELIMIT, "64 bits");
    expect_error("{{ 9223372036854775808 }}", "{}", FO_ELIMIT, "64 bits");
    expect_error("{{ (-9223372036854775807 - 1) // -1 }}", "{}", FO_ELIMIT, "64 bits");
    expect_error("{{ -(-9223372036854775807 - 1) }}", "{}", FO_ELIMIT, "64 bits");
    expect("{{ (-9223372036854775807 - 1) % -1 }}", "{}", "0");
    expect("{{ n|tojson }} {{ n is integer }}", "{\"n\": 18446744073709551616}", "18446744073709551616 True");
    expect_error("{{ n + 1 }}", "{\"n\": 18446744073709551616}", FO_ELIMIT, "64 bits");
}

/* --- who wrote it ----------------------------------------------------------------------------------------------------------------- */

/* `marks` has a letter for each byte of the text: t = the template's, u = a user's. */
static void expect_marks(const char *text, const char *vars, const char *want, const char *marks) {
    struct pn_render r;
    struct fo_err e;
    if (render(text, vars, &r, &e)) fail_msg("%s: %s", text, e.msg);
    assert_string_equal(r.text, want);
    assert_int_equal(r.len, strlen(marks));
    for (size_t i = 0; i < r.len; i++)
        if (r.user[i] != (marks[i] == 'u')) fail_msg("%s: byte %zu of '%s' is marked %d", text, i, r.text, r.user[i]);
    pn_render_done(&r);
}

static void every_byte_keeps_who_wrote_it(void **state) {
    (void)state;
    static const struct {
        const char *text, *want, *marks;
    } cases[] = {
        { "a{{ x }}b", "aUserb", "tuuuut" },
        { "{{ '<' + x + '>' }}", "<User>", "tuuuut" },
        { "{{ '<' ~ x ~ '>' }}", "<User>", "tuuuut" },
        { "{{ ('<' ~ x ~ '>')[1:-1] }}", "User", "uuuu" },
        { "{{ ('<' ~ x ~ '>')[::-1] }}", ">resU<", "tuuuut" },
        { "{{ (' ' ~ x ~ ' ')|trim ~ '!' }}", "User!", "uuuut" },
        { "{{ x|replace('e', '-') }}", "Us-r", "uutu" },
        { "{{ 'aXb'.replace('X', x) }}", "aUserb", "tuuuut" },
        { "{{ x|upper }}{{ x.lower() }}{{ x|title }}{{ x|capitalize }}", "USERuserUserUser", "uuuuuuuuuuuuuuuu" },
        { "{{ ('a,' ~ x).split(',')|join(';') }}", "a;User", "ttuuuu" },
        { "{{ ['a', x]|join(x) }}", "aUserUser", "tuuuuuuuu" },
        { "{{ '-'.join(['a', x]) }}", "a-User", "ttuuuu" },
        { "{{ '%s|%5s' % (x, 'b') }}", "User|    b", "uuuutttttt" },
        { "{{ '{}/{:>6}'.format('a', x) }}", "a/  User", "ttttuuuu" },
        { "{{ x|indent(1, true) }}", " User", "tuuuu" },
        { "{{ x|tojson }}{{ 'a'|tojson }}", "\"User\"\"a\"", "uuuuuuttt" },
        { "{{ {'k': x}|tojson }}", "{\"k\": \"User\"}", "uutuuuuuuuuuu" },
        { "{{ {'k': 1}|tojson }}", "{\"k\": 1}", "tttttttt" },
        { "{{ [x] }}{{ ['a'] }}", "['User']['a']", "uuuuuuuuttttt" },
        { "{% set y = x %}{{ y }}{% set z %}<{{ x }}>{% endset %}{{ z }}", "User<User>", "uuuutuuuut" },
        { "{% macro m(a) %}<{{ a }}>{% endmacro %}{{ m(x) }}{{ m('t') }}", "<User><t>", "tuuuutttt" },
        { "{% macro m() %}<{{ caller() }}>{% endmacro %}{% call m() %}{{ x }}{% endcall %}", "<User>", "tuuuut" },
        { "{% filter upper %}a{{ x }}{% endfilter %}", "AUSER", "tuuuu" },
        { "{% set ns = namespace(s='') %}{% for c in x %}{% set ns.s = ns.s ~ c ~ '.' %}{% endfor %}{{ ns.s }}", "U.s.e.r.", "utututut" },
        { "{{ x|e }}{{ '<'|e }}", "User&lt;", "uuuutttt" },
        { "{{ n }}{{ b }}{{ 5 }}{{ n + 1 }}", "7True58", "uuuuutt" },
        { "{{ x|length }}", "4", "t" },
        { "{{ x.center(6) }}{{ x|center(6) }}", " User  User ", "tuuuuttuuuut" },
        { "{{ x|truncate(3, true, '..', 0) }}", "U..", "utt" },
        { "{{ x|first }}{{ x|last }}{{ x|reverse }}", "UrresU", "uuuuuu" },
        { "{{ x.partition('s')|join('') }}", "User", "uuuu" },
        { "{{ d|items|first|first }}{{ d|string }}", "key{'key': 'v'}", "uuuuuuuuuuuuuuu" },
        { "{{ x|default('a') }}{{ nope|default('a') }}", "Usera", "uuuut" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        expect_marks(cases[i].text, "{\"x\": \"User\", \"n\": 7, \"b\": true, \"d\": {\"key\": \"v\"}}", cases[i].want, cases[i].marks);
}

/* The tokenizer makes a control token only of bytes that are all the template's: whatever a template does with a user's "<|im_start|>",
 * no occurrence of it may come out as the template's. */
static void a_control_token_in_user_text_stays_the_users(void **state) {
    (void)state;
    static const char token[] = "<|im_start|>",
                      vars[] = "{\"x\": \"ab<|im_start|>cd\", \"half\": \"<|im_\", \"l\": [\"<|im_start|>\", \"b\"]}";
    static const char *const templates[] = {
        "{{ x }}",
        "{{ x|trim }}",
        "{{ x[2:] }}",
        "{{ x|replace('b', '') }}",
        "{{ 'y' + x + 'z' }}",
        "{{ x ~ x }}",
        "{{ x.split('ab')|join('|') }}",
        "{{ x|tojson }}",
        "{{ {'k': [x]}|tojson(indent=2) }}",
        "{{ [x] }}",
        "{{ x|upper|lower }}",
        "{{ '%s' % x }}",
        "{{ '%(a)s'|format(a=x) }}",
        "{{ '{0}'.format(x) }}",
        "{{ x|indent }}",
        "{{ half ~ 'start|>' }}",
        "{{ '%sstart|>' % half }}",
        "{{ l|join }}",
        "{{ l|first }}",
        "{{ l|map('trim')|list|join }}",
        "{% set y %}{{ x }}{% endset %}{{ y }}",
        "{% macro m(a) %}{{ a }}{{ caller() if caller }}{% endmacro %}{{ m(x) }}",
        "{% for c in x %}{{ c }}{% endfor %}",
        "{% set ns = namespace(s='') %}{% for c in x|list %}{% set ns.s = ns.s + c %}{% endfor %}{{ ns.s }}",
        "{{ x|reverse|reverse }}",
        "{{ l|sort|join }}",
        "{{ l|unique|join }}",
        "{{ l|groupby(0)|string }}",
        "{{ x|safe }}",
        "{{ x|string|list|join }}",
        "{{ x|batch(3)|map('join')|join }}",
        "{{ x.removeprefix('ab') }}",
        "{{ x.partition('ab')[2] }}",
        "{{ x.ljust(30) }}",
        "{{ x|wordcount }}{{ x|truncate(16, true) }}",
    };
    for (size_t i = 0; i < sizeof templates / sizeof *templates; i++) {
        struct pn_render r;
        struct fo_err e;
        if (render(templates[i], vars, &r, &e)) fail_msg("%s: %s", templates[i], e.msg);
        size_t hits = 0;
        for (const char *p = r.text; (p = strstr(p, token)); p++) {
            bool all_ours = true;
            for (size_t k = 0; k < sizeof token - 1; k++) all_ours &= r.user[p - r.text + (ptrdiff_t)k] == 0;
            if (all_ours) fail_msg("%s: a token became the template's", templates[i]);
            hits++;
        }
        if (!hits) fail_msg("%s: shows nothing: %s", templates[i], r.text);
        pn_render_done(&r);
    }
}

/* --- hostile templates -------------------------------------------------------------------------------------------------------------- */

static char *repeated(const char *before, const char *piece, size_t n, const char *after, size_t *ret_len) {
    size_t a = strlen(before), p = strlen(piece), z = strlen(after);
    char *s = malloc(a + p * n + z + 1), *o = s;
    memcpy(o, before, a);
    o += a;
    for (size_t i = 0; i < n; i++, o += p) memcpy(o, piece, p);
    memcpy(o, after, z + 1);
    *ret_len = a + p * n + z;
    return s;
}

static double seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static const struct {
    const char *before, *piece, *after;
    bool must_fail;
} deep[] = {
    { "{{ ", "(", "", true },
    { "{{ ", "[", "", true },
    { "{{ ", "{1:", "", true },
    { "{{ ", "-", "1 }}", true },
    { "{{ ", "not ", "1 }}", true },
    { "{{ x", "[x", "", true },
    { "{{ ", "f(", "", true },
    { "{{ 1", "|f(1", "", true },
    { "{{ ", "1 if 1 else ", "2 }}", true },
    { "", "{% if 1 %}", "", true },
    { "", "{% for x in y %}", "", true },
    { "", "{% macro m() %}", "", true },
    { "", "{% set x %}", "", true },
    { "", "{% filter upper %}", "", true },
    { "", "{% call f() %}", "", true },
    { "{% for ", "(", "", true },
    { "{{ 1", " + 1", " }}", false },
    { "{{ 1", " ~ 1", " }}", false },
    { "{{ 1", " < 2", " }}", true }, /* 1 < 2 < 2 is false, not an error: see the assertion below */
    { "{{ 1", " or 1", " }}", false },
    { "{{ x", ".a", " }}", true },
    { "{{ x", "|string", " }}", false },
    { "{{ ", "'a' ", " }}", false },
    { "{% if 0 %}", "{% elif 0 %}", "{% endif %}", false },
    { "{{ f(", "1,", ") }}", true },
    { "{{ [", "1,", "] }}", false },
    { "", "{{ x }}{% set x = 1 %}", "", false },
    { "{#", "{#", "#}", false },
    { "{% raw %}", "{% raw %}", "{% endraw %}", false },
    { "", "{%-", "", true },
    { "", "{{ a", "", true },
    { "", "{% raw %}{% endraw %}", "", false },
};

static void depth_and_length_of_a_template_are_bounded(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof deep / sizeof *deep; i++) {
        size_t len;
        char *text = repeated(deep[i].before, deep[i].piece, 100000, deep[i].after, &len);
        struct pn_render r;
        struct fo_err e;
        double start = seconds();
        int rc = render_limited(text, len, "{}", NULL, &r, &e);
        if (seconds() - start > 5) fail_msg("100000 times %s took %.1f s", deep[i].piece, seconds() - start);
        bool chain = strcmp(deep[i].piece, " < 2") == 0;
        if (!chain && (rc != 0) != deep[i].must_fail) fail_msg("100000 times %s: %s", deep[i].piece, rc ? e.msg : "rendered");
        if (chain) assert_string_equal(rc ? "" : r.text, "False");
        if (rc == 0) pn_render_done(&r);
        free(text);
    }
}

/* Nested as deeply as the limits allow. */
static void *render_on_a_small_stack(void *arg) {
    static const char *const pieces[][3] = {
        { "{{ ", "(", ")" }, { "{{ ", "[", "]" }, { "{{ ", "-", "" }, { "{{ ", "[1][", "]" }, { "{{ 1", "|default(1", ")" }
    };
    static const char *const recursive[] = {
        "{% macro m(n) %}{% if true %}{% for x in [1] %}{{ [(m(n + 1))] }}{% endfor %}{% endif %}{% endmacro %}{{ m(0) }}",
        "{% for x in [1] recursive %}{{ ((loop([1]))) }}{% endfor %}",
        "{% macro m() %}{{ caller() }}{% call m() %}x{% endcall %}{% endmacro %}{% call m() %}{% endcall %}",
        "{% macro m() %}{% set x %}{% filter trim %}{{ m() ~ '' }}{% endfilter %}{% endset %}{{ x }}{% endmacro %}{{ m() }}",
        "{% macro m(l) %}{{ l|map('default', 1)|list|sort|join(m(l) + '') }}{% endmacro %}{{ m([2,1]) }}",
    };
    struct pn_render r;
    struct fo_err e;
    bool *ok = arg;
    *ok = true;
    for (size_t i = 0; i < sizeof pieces / sizeof *pieces; i++)
        for (size_t n = PN_DEPTH_PARSE - 10; n < PN_DEPTH_PARSE + 10; n++) {
            size_t len, len2;
            char *open = repeated(pieces[i][0], pieces[i][1], n, "1", &len), *text = repeated(open, pieces[i][2], n, " }}", &len2);
            if (render_limited(text, len2, "{}", NULL, &r, &e) == 0) pn_render_done(&r);
            free(open);
            free(text);
        }
    for (size_t i = 0; i < sizeof recursive / sizeof *recursive; i++)
        if (render(recursive[i], "{}", &r, &e) != FO_ELIMIT) {
            print_message("%s: %s\n", recursive[i], e.msg);
            *ok = false;
        }
    /* values nested as deeply as allowed: printing, comparing and dumping them recurse */
    const char *nested =
        "{% set ns = namespace(a=[], b=[]) %}{% for i in range(126) %}{% set ns.a = [ns.a] %}{% set ns.b = [ns.b] %}{% endfor %}"
        "{{ ns.a == ns.b }}{{ ns.a }}{{ ns.a|tojson }}{{ [ns.a, ns.b]|sort|length }}";
    if (render(nested, "{}", &r, &e))
        *ok = false;
    else
        pn_render_done(&r);
    return NULL;
}

static void the_deepest_templates_fit_a_connections_stack(void **state) {
    (void)state;
#ifdef FO_DEBUG
    size_t stack = 4 << 20; /* unoptimised and instrumented frames are several times larger */
#else
    size_t stack = 256 << 10;
#endif
    pthread_attr_t attr;
    pthread_t thread;
    bool ok = false;
    pthread_attr_init(&attr);
    assert_int_equal(pthread_attr_setstacksize(&attr, stack), 0);
    assert_int_equal(pthread_create(&thread, &attr, render_on_a_small_stack, &ok), 0);
    pthread_join(thread, NULL);
    pthread_attr_destroy(&attr);
    assert_true(ok);
}

static void no_template_hangs_or_fills_the_process(void **state) {
    (void)state;
    static const char *const bombs[] = {
        "{% for a in range(99999) %}{% for b in range(99999) %}{% for c in range(99999) %}{% endfor %}{% endfor %}{% endfor %}",
        "{% for a in range(99999) %}{% for b in range(99999) %}x{% endfor %}{% endfor %}",
        "{% set ns = namespace(s='x') %}{% for i in range(100) %}{% set ns.s = ns.s + ns.s %}{% endfor %}{{ ns.s|length }}",
        "{% set ns = namespace(s='x') %}{% for i in range(100) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
        "{% set ns = namespace(l=[1]) %}{% for i in range(100) %}{% set ns.l = ns.l + ns.l %}{% endfor %}",
        "{% set ns = namespace(l=[1]) %}{% for i in range(100) %}{% set ns.l = [ns.l, ns.l] %}{% endfor %}{{ ns.l }}",
        "{% set ns = namespace(l=[1], m=[1]) %}{% for i in range(100) %}{% set ns.l = [ns.l, ns.l] %}{% set ns.m = [ns.m, ns.m] %}{% "
        "endfor %}{{ ns.l == ns.m }}",
        "{% set ns = namespace(l=[1]) %}{% for i in range(100) %}{% set ns.l = [ns.l, ns.l] %}{% endfor %}{{ ns.l|tojson }}",
        "{% set ns = namespace(l=(1,)) %}{% for i in range(100) %}{% set ns.l = (ns.l, ns.l) %}{% endfor %}{{ {ns.l: 1} }}",
        "{% set ns = namespace(l=[1]) %}{% for i in range(1000) %}{% set ns.l = [ns.l] %}{% endfor %}",
        "{{ 'x' * 999999999999 }}",
        "{{ [1] * 9999999999 }}",
        "{{ '' * 9223372036854775807 }}",
        "{{ range(9223372036854775807) }}",
        "{{ '%99999999s' % 'x' }}",
        "{{ '{:99999999}'.format('x') }}",
        "{{ 'x'.center(999999999999) }}",
        "{{ 'x'.zfill(99999999999) }}",
        "{{ 'x'|indent(99999999999) }}",
        "{{ [1]|tojson(indent=99999999) }}",
        "{{ '%.99999f' % 1.5 }}",
        "{{ [1]|batch(99999999999, 1)|list }}",
        "{% set s = 'ab' * 500000 %}{% for i in range(99999) %}{{ s.rfind('ba' * 200000) }}{% endfor %}",
        "{% set s = 'a' * 1000000 %}{% for i in range(99999) %}{{ s[i] }}{{ s|length }}{% endfor %}",
        "{% set s = 'a' * 1000000 %}{% for i in range(99999) %}{% if s == s + '' %}{% endif %}{% endfor %}",
        "{% set s = 'a' * 1000000 %}{% for i in range(99999) %}{{ s.strip('a' * 100000)|length }}{% endfor %}",
        "{% set l = range(99999)|list %}{% for i in l %}{% if 'x' in l %}{% endif %}{% endfor %}",
        "{% set l = range(99999)|list %}{% for i in l %}{{ l|sort(reverse=true)|first }}{% endfor %}",
        "{% for i in range(99999) %}{{ range(99999)|unique|list|length }}{% endfor %}",
        ("{% macro a() %}{{ b() }}{{ b() }}{% endmacro %}{% macro b() %}{{ c() }}{{ c() }}{% endmacro %}{% macro c() %}{{ d(30) }}{% "
         "endmacro %}"
         "{% macro d(n) %}{% if n %}{{ d(n-1) }}{{ d(n-1) }}{{ d(n-1) }}{% endif %}{% endmacro %}{{ a() }}"),
        "{% macro m(x) %}{{ m(x) }}{% endmacro %}{{ m(1) }}",
        "{{ f(*range(99999)) }}",
        "{{ dict(*[range(5000)]) }}",
        "{{ '{}'.format(*range(9999)) }}",
        "{% for x in range(99999) recursive %}{{ loop(range(99999)) }}{% endfor %}",
        "{% set s = 'ab-' * 300000 %}{% for i in range(99999) %}{{ s|wordwrap(3)|length }}{% endfor %}",
        "{% set s = ('-' * 1000000) ~ 'x' %}{% for i in range(99999) %}{{ s|wordwrap(5)|length }}{% endfor %}",
    };
    for (size_t i = 0; i < sizeof bombs / sizeof *bombs; i++) {
        struct pn_render r;
        struct fo_err e;
        double start = seconds();
        int rc = render(bombs[i], "{}", &r, &e);
        double took = seconds() - start;
        if (rc != FO_ELIMIT && rc != FO_EFORMAT) fail_msg("%s: %s", bombs[i], rc ? e.msg : "rendered");
        if (took > 20) fail_msg("%s took %.1f s", bombs[i], took);
    }
}

static void limits_of_the_caller_hold(void **state) {
    (void)state;
    struct pn_render r;
    struct fo_err e;
    struct pn_jinja_limits limits = { .output_bytes = 100, .region_bytes = 1 << 20, .steps = 1000 };
    static const char text[] = "{% for i in range(20) %}12345{% endfor %}", more[] = "{% for i in range(21) %}12345{% endfor %}";
    assert_int_equal(render_limited(text, strlen(text), "{}", &limits, &r, &e), 0);
    assert_int_equal(r.len, 100);
    pn_render_done(&r);
    assert_int_equal(render_limited(more, strlen(more), "{}", &limits, &r, &e), FO_ELIMIT);
    assert_int_equal(e.have, 100);
    limits.steps = 10;
    assert_int_equal(render_limited(text, strlen(text), "{}", &limits, &r, &e), FO_ELIMIT);
    limits = (struct pn_jinja_limits){ .output_bytes = 1 << 20, .region_bytes = 20000, .steps = 1000000 };
    static const char list[] = "{% set x = range(5000)|list %}";
    assert_int_equal(render_limited(list, strlen(list), "{}", &limits, &r, &e), FO_ELIMIT);
}

/* s = s + x over a long text costs what the text costs, not its square. */
static void building_a_long_text_piece_by_piece_stays_within_the_region(void **state) {
    (void)state;
    static const char text[] = "{% set ns = namespace(s='') %}{% for i in range(4000) %}{% set ns.s = ns.s + x %}{% set ns.s = ns.s ~ "
                               "'\\n' %}{% endfor %}{{ ns.s }}";
    char vars[600] = "{\"x\": \"";
    memset(vars + 7, 'a', 500);
    memcpy(vars + 507, "\"}", 3);
    struct pn_render r;
    struct fo_err e;
    if (render(text, vars, &r, &e)) fail_msg("%s", e.msg);
    assert_int_equal(r.len, 4000 * 501);
    for (size_t i = 0; i < r.len; i++) assert_int_equal(r.user[i], r.text[i] == 'a');
    pn_render_done(&r);
}

static void strings_that_share_a_buffer_do_not_see_each_other(void **state) {
    (void)state;
    struct pn_render r;
    struct fo_err e;
    static const char text[] =
        "{% set a = 'x' * 2000 %}{% set b = a + '1' * 10 %}{% set c = b + '2' %}{% set d = b + '3' %}{% set e = b ~ '4' %}"
        "{{ c[-2:] }}{{ d[-2:] }}{{ e[-2:] }}{{ b[-1:] }}{{ a|length }}{{ (c + c)[-2:] }}";
    if (render(text, "{}", &r, &e)) fail_msg("%s", e.msg);
    assert_string_equal(r.text, "1213141200012");
    pn_render_done(&r);
}

static void every_allocation_may_fail(void **state) {
    (void)state;
    size_t len;
    char *text = read_file(CASES "tools.jinja", &len);
    static const char vars[] =
        "{\"messages\": [{\"role\": \"user\", \"content\": \"hi\"}], \"bos_token\": \"<s>\", \"add_generation_prompt\": true, \"tools\": "
        "[{\"function\": {\"name\": \"f\", \"parameters\": {\"properties\": {\"a\": {}}, \"required\": [\"a\"]}}}]}";
    for (long n = 1;; n++) {
        struct pn_render r = { 0 };
        struct fo_err e;
        test_fail_alloc(n);
        int rc = render_limited(text, len, vars, NULL, &r, &e);
        if (!test_alloc_failed()) {
            assert_int_equal(rc, 0);
            pn_render_done(&r);
            break;
        }
        assert_true(rc == FO_ENOMEM || rc == FO_ELIMIT);
        assert_true(n < 10000);
    }
    free(text);
}

static void bytes_that_are_no_text_are_refused(void **state) {
    (void)state;
    struct pn_jinja *j = NULL;
    struct fo_err e;
    static const char *const bad[] = { "a\xff", "\xc0\x80", "\xed\xa0\x80", "{{ '\xe4\xb8' }}", "\xf4\x90\x80\x80" };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) assert_int_equal(pn_jinja_parse(bad[i], strlen(bad[i]), &j, &e), FO_EFORMAT);
    struct pn_render r;
    assert_int_equal(render_limited("a\0b{{ x }}", 10, "{\"x\": \"c\\u0000d\"}", NULL, &r, &e), 0);
    assert_int_equal(r.len, 6);
    assert_memory_equal(r.text, "a\0bc\0d", 6);
    pn_render_done(&r);
}

static void an_empty_template_renders_an_empty_text(void **state) {
    (void)state;
    expect("", "{}", "");
    expect("\n", "{}", "");
    expect("{# nothing #}", "{}", "");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_construct_renders_as_jinja2_does),
        cmocka_unit_test(our_own_templates_render_as_in_jinja2),
        cmocka_unit_test(every_published_template_of_the_folder_in_GOLDENS_renders_equal),
        cmocka_unit_test(an_error_names_the_line_and_the_expression),
        cmocka_unit_test(unknown_filters_and_tests_fail_at_parse_unless_a_condition_guards_them),
        cmocka_unit_test(what_several_files_need_is_unsupported_not_malformed),
        cmocka_unit_test(filters_that_are_left_out_are_refused_by_name_and_line),
        cmocka_unit_test(raise_exception_gives_its_text_alone),
        cmocka_unit_test(integers_beyond_64_bits_are_errors_never_wrong_numbers),
        cmocka_unit_test(every_byte_keeps_who_wrote_it),
        cmocka_unit_test(a_control_token_in_user_text_stays_the_users),
        cmocka_unit_test(depth_and_length_of_a_template_are_bounded),
        cmocka_unit_test(the_deepest_templates_fit_a_connections_stack),
        cmocka_unit_test(no_template_hangs_or_fills_the_process),
        cmocka_unit_test(limits_of_the_caller_hold),
        cmocka_unit_test(building_a_long_text_piece_by_piece_stays_within_the_region),
        cmocka_unit_test(strings_that_share_a_buffer_do_not_see_each_other),
        cmocka_unit_test(every_allocation_may_fail),
        cmocka_unit_test(bytes_that_are_no_text_are_refused),
        cmocka_unit_test(an_empty_template_renders_an_empty_text),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
