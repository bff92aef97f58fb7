/* Renders templates for comparison with Jinja2 (tests/gen/jinja_diff.py): jinja VARS.json < LINES. Each line is a JSON string, a template;
 * each answer is a line {"output": ...} or {"error": message, "code": word}. The clock stands at 2025-03-07 09:05:02 UTC. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/jinja_impl.h"
#include "foundry/base/buf.h"
#include "foundry/base/file.h"

enum { NOW = 1741338302 };

static int render(const char *text, size_t len, const char *vars, struct fo_buf *raised, struct pn_render *ret, struct fo_err *e) {
    struct pn_jinja *j = NULL;
    struct fo_region r;
    struct pn_value *v, clock, all;
    fo_region_init(&r, 64u << 20);
    int rc = pn_jinja_parse(text, len, &j, e);
    if (rc == 0) rc = pn_value_from_json(&r, vars, strlen(vars), &v, e);
    if (rc == 0 && !pn_clock_value(&r, NOW, &clock)) rc = fo_fail(e, FO_ENOMEM, "no clock");
    if (rc == 0) rc = pn_dict_with(&r, *v, "strftime_now", clock, &all, e);
    if (rc == 0) rc = pn_jinja_render(j, &r, &all, NULL, raised, ret, e);
    pn_jinja_free(j);
    fo_region_done(&r);
    return rc;
}

int main(int argc, char **argv) {
    json_error_t why;
    struct fo_err e;
    char *given;
    size_t len;
    if (argc != 2) {
        fprintf(stderr, "usage: jinja VARS.json < LINES\n");
        return 64;
    }
    if (fo_file_read(argv[1], 1 << 20, &given, &len, &e)) {
        fprintf(stderr, "%s\n", e.msg);
        return 1;
    }
    for (json_t *line; (line = json_loadf(stdin, JSON_DISABLE_EOF_CHECK | JSON_DECODE_ANY | JSON_ALLOW_NUL, &why));) {
        struct pn_render out;
        struct fo_buf raised;
        fo_buf_init(&raised, PN_RAISED_BYTES);
        json_t *answer;
        if (render(json_string_value(line), json_string_length(line), given, &raised, &out, &e)) {
            answer = json_pack("{s:s, s:s}", "error", raised.len ? fo_buf_str(&raised) : e.msg, "code", fo_code_name(e.code));
        } else {
            answer = json_pack("{s:s%}", "output", out.text, out.len);
            pn_render_done(&out);
        }
        json_dumpf(answer, stdout, 0);
        putchar('\n');
        fo_buf_done(&raised);
        json_decref(answer);
        json_decref(line);
    }
    free(given);
    return 0;
}
