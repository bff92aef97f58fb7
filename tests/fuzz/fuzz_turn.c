/* Any text as the answer of a model in any dialect: the first byte chooses the row of calls, the second how it is read (marks as control tokens, a thought
 * that the prompt opened or that was cut, one call, none), the third where it is cut. Cut there, and into bytes, it gives what it gives whole; names are of functions that were
 * offered, arguments begin JSON; no mark comes out. Seeds: tests/fuzz/corpus/turn. */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "engine/tools.h"
#include "engine/turn.h"
#include "engine/turn_json.h"
#include "foundry/base/buf.h"
#include "foundry/base/err.h"
#include "tests/support/dialects.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MAX_ROWS = 32, MARKS = 1, OPENED = 2, ONE = 4, REFUSES = 8, CUT = 16, NO_CALLS = 32 };

static struct pn_tools *functions(bool one) {
    static const char json[] = "[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"type\":\"object\",\"properties\":{\"s\":{\"type\":\"string\"}}}}},"
                               "{\"type\":\"function\",\"function\":{\"name\":\"g\"}}]";
    static struct pn_tools *made[2];
    const struct pn_tools_opts o = { .json = json, .len = sizeof json - 1, .one_call = one };
    char where[128];
    struct fo_err e;
    if (!made[one] && pn_tools_new(&o, &made[one], where, &e)) abort();
    return made[one];
}

static const struct pn_dialect *dialect(size_t row, bool marks) {
    static struct test_dialect made[MAX_ROWS][2];
    size_t n = 0, n_reasoning = 0;
    while (pn_call_format_row(n) && n < MAX_ROWS) n++;
    while (pn_reasoning_row(n_reasoning)) n_reasoning++;
    row %= n;
    if (!made[row][marks].d) test_dialect_open(&made[row][marks], pn_call_format_row(row), pn_reasoning_row(row % n_reasoning), marks);
    return made[row][marks].d;
}

static bool refuses(void *ctx, int function, const char *rest, size_t n) {
    (void)ctx, (void)rest, (void)n;
    return function == 0;
}

/* One run of text for each run of parts of a kind; a byte for the kind in front. */
static void gather(const struct fo_buf *parts, struct fo_buf *out) {
    struct pn_part_text p;
    struct pn_json_scan scan;
    int last = -1;
    pn_json_scan_init(&scan);
    for (size_t at = 0; pn_part_next(parts, &at, &p);) {
        if (p.len == 0 || memchr(p.text, PN_MARK, p.len)) abort();
        if ((int)p.part != last || p.part == PN_PART_CALL) fo_buf_printf(out, "\n%d:", (int)p.part);
        fo_buf_append(out, p.text, p.len);
        if (p.part == PN_PART_CALL) {
            if (p.len != 1 || (*p.text != 'f' && *p.text != 'g')) abort();
            pn_json_scan_init(&scan);
        }
        if (p.part == PN_PART_ARGUMENTS && last != PN_PART_CALL && last != PN_PART_ARGUMENTS) abort();
        for (size_t i = 0; p.part == PN_PART_ARGUMENTS && i < p.len; i++) {
            enum pn_json_step s = pn_json_scan_step(&scan, (uint8_t)p.text[i]);
            if (s == PN_JSON_BREAK || s == PN_JSON_AFTER) abort();
        }
        if (p.part == PN_PART_CALL && last == PN_PART_CALL) abort(); /* a call has arguments, if only "{}" */
        last = (int)p.part;
    }
}

static void run(const struct pn_turn_opts *o, bool was_cut, const char *text, size_t n, size_t cut, bool bytes, struct fo_buf *out) {
    struct pn_turn *t;
    struct fo_err e;
    struct fo_buf parts;
    if (pn_turn_new(o, &t, &e)) abort();
    if (was_cut) pn_turn_cut(t);
    fo_buf_init(&parts, 16 * n + 4096);
    fo_buf_init(out, 16 * n + 4096);
    if (bytes) {
        for (size_t i = 0; i < n; i++) pn_turn_push(t, text + i, 1, &parts);
    } else {
        pn_turn_push(t, text, cut, &parts);
        pn_turn_push(t, text + cut, n - cut, &parts);
    }
    uint32_t calls = pn_turn_n_calls(t);
    if (pn_turn_is_over(t) && (!o->tools || !pn_tools_one_call(o->tools) || calls == 0)) abort();
    pn_turn_end(t, &parts);
    if (parts.failed) abort();
    gather(&parts, out);
    if (out->failed) abort();
    pn_turn_free(t);
    fo_buf_done(&parts);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size < 3 || size > 1 << 16) return 0;
    const struct pn_turn_opts o = { .dialect = dialect(data[0], data[1] & MARKS), .tools = data[1] & NO_CALLS ? NULL : functions(data[1] & ONE), .in_reasoning = data[1] & OPENED,
                                    .begin_call = data[1] & REFUSES ? refuses : NULL };
    struct fo_buf text, whole, cut, bytes;
    fo_buf_init(&text, 1 << 20);
    if (data[1] & MARKS) test_dialect_mark(o.dialect, (const char *)data + 3, size - 3, &text);
    else fo_buf_append(&text, data + 3, size - 3);
    size_t n = text.len, at = n * data[2] / 255;
    run(&o, data[1] & CUT, fo_buf_str(&text), n, n, false, &whole);
    run(&o, data[1] & CUT, fo_buf_str(&text), n, at, false, &cut);
    run(&o, data[1] & CUT, fo_buf_str(&text), n, n, true, &bytes);
    if (whole.len != cut.len || whole.len != bytes.len || memcmp(fo_buf_str(&whole), fo_buf_str(&cut), whole.len) != 0) abort();
    if (memcmp(fo_buf_str(&whole), fo_buf_str(&bytes), whole.len) != 0) abort();
    fo_buf_done(&text);
    fo_buf_done(&whole);
    fo_buf_done(&cut);
    fo_buf_done(&bytes);
    return 0;
}
