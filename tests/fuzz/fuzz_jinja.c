/* Any bytes as a template, rendered over a small conversation under tight limits. After a byte 0xFF (which no template holds) the rest
 * is JSON for the variable `x`. Whatever the template does, a character that only the user wrote must come out as the user's.
 * Seeds: tests/cases/chat/<name>.jinja. */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "engine/jinja_impl.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define MARK "\xee\x84\xa3" /* U+E123 */

static const char vars[] =
    "{\"messages\":[{\"role\":\"system\",\"content\":\"s" MARK "\"},{\"role\":\"user\",\"content\":\" a" MARK "b \"},"
    "{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"function\":{\"name\":\"f" MARK "\",\"arguments\":{\"k" MARK
    "\":[1,2.5,true,{\"z\":\"" MARK "\"}]}}}]},{\"role\":\"tool\",\"content\":\"" MARK "\"}],"
    "\"tools\":[{\"function\":{\"name\":\"f\",\"parameters\":{\"properties\":{\"k\":{\"type\":\"string\"}}}}}],"
    "\"s\":\"" MARK "abc\",\"l\":[3,1,2],\"d\":{\"a\":1,\"b\":\"" MARK "\"},\"n\":null,\"i\":7,\"t\":true}";

/* Whether the template itself can make the character, by an escape or by its number. */
static bool may_make_it(const uint8_t *data, size_t size) {
    return memchr(data, '\\', size) || memmem(data, size, MARK, 3) || memmem(data, size, "57635", 5);
}

static void check(const struct pn_render *r, bool must_be_users) {
    if (r->text[r->len] != '\0') abort();
    for (size_t i = 0; i < r->len; i++) {
        if (r->user[i] > 1) abort();
        if (must_be_users && i + 3 <= r->len && memcmp(r->text + i, MARK, 3) == 0 && !(r->user[i] & r->user[i + 1] & r->user[i + 2]))
            abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const struct pn_jinja_limits limits = { .output_bytes = 1 << 16, .region_bytes = 1 << 21, .steps = 200000 };
    const uint8_t *cut = memchr(data, 0xFF, size);
    size_t len = cut ? (size_t)(cut - data) : size;
    struct pn_jinja *j = NULL;
    struct fo_region r;
    struct fo_err e = { 0 };
    struct pn_value *v, *x, all;
    struct pn_render out;
    if (pn_jinja_parse((const char *)data, len, &j, &e)) {
        if (j || e.code == FO_OK) abort();
        return 0;
    }
    fo_region_init(&r, 1 << 21);
    if (pn_value_from_json(&r, vars, sizeof vars - 1, &v, &e)) abort();
    all = *v;
    if (cut && pn_value_from_json(&r, (const char *)cut + 1, size - len - 1, &x, &e) == 0 && pn_dict_with(&r, *v, "x", *x, &all, &e))
        abort();
    if (pn_jinja_render(j, &r, &all, &limits, NULL, &out, &e) == 0) {
        check(&out, !may_make_it(data, len));
        pn_render_done(&out);
    } else if (e.code == FO_OK || e.msg[0] == '\0') {
        abort();
    }
    fo_region_done(&r);
    pn_jinja_free(j);
    return 0;
}
