/* The admission verdict: the edges of the cap, the numbers, and the wording that agents match on. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <regex.h>
#include <string.h>

#include "engine/engine.h"
#include "engine/mem/admit.h"
#include "foundry/base/err.h"

static const struct pn_admit_facts facts = { .ctx_cap = 8192, .limited_by = "manifest", .kv_bytes_per_token = 46080, .kv_bytes_available = 1000000 };

static int ask(uint64_t prompt, uint64_t max_tokens, struct pn_budget *b, struct fo_err *e) {
    *e = (struct fo_err){ 0 };
    return pn_admit(&facts, prompt, max_tokens, b, e);
}

static void accepts_a_prompt_of_the_cap_less_one_with_one_token_and_no_more(void **state) {
    (void)state;
    struct pn_budget b;
    struct fo_err e;
    assert_int_equal(ask(8191, 1, &b, &e), 0);
    assert_int_equal(b.max_tokens, 1);
    assert_int_equal(ask(8191, 2, &b, &e), FO_EBUDGET);
    assert_int_equal(b.max_tokens_that_fit, 1);
    assert_int_equal(ask(8192, 1, &b, &e), FO_EBUDGET);
    assert_int_equal(ask(8192, 0, &b, &e), FO_EBUDGET);
    assert_int_equal(b.max_tokens_that_fit, 0);
    assert_int_equal(e.need, 8193);
    assert_int_equal(e.have, 8192);
    assert_int_equal(ask(1, 8191, &b, &e), 0);
    assert_int_equal(ask(1, 8192, &b, &e), FO_EBUDGET);
}

static void unset_max_tokens_is_what_is_left_or_the_default(void **state) {
    (void)state;
    struct pn_budget b;
    struct fo_err e;
    assert_int_equal(ask(100, 0, &b, &e), 0);
    assert_int_equal(b.max_tokens, 8092);
    struct pn_admit_facts f = facts;
    f.max_tokens_default = 500;
    assert_int_equal(pn_admit(&f, 100, 0, &b, &e), 0);
    assert_int_equal(b.max_tokens, 500);
    assert_int_equal(pn_admit(&f, 8000, 0, &b, &e), 0); /* the default never refuses */
    assert_int_equal(b.max_tokens, 192);
    assert_int_equal(pn_admit(&f, 100, 700, &b, &e), 0);
    assert_int_equal(b.max_tokens, 700);
}

static void the_budget_carries_every_number_whatever_the_verdict(void **state) {
    (void)state;
    struct pn_budget b;
    struct fo_err e;
    for (int over = 0; over < 2; over++) {
        uint64_t max = over ? 8192 : 412;
        assert_int_equal(ask(100, max, &b, &e), over ? FO_EBUDGET : 0);
        assert_int_equal(b.prompt_tokens, 100);
        assert_int_equal(b.max_tokens, max);
        assert_int_equal(b.ctx_cap, 8192);
        assert_int_equal(b.effective_ctx, 8192);
        assert_string_equal(b.limited_by, "manifest");
        assert_int_equal(b.kv_bytes_per_token, 46080);
        assert_int_equal(b.kv_bytes_needed, (100 + max) * 46080);
        assert_int_equal(b.kv_bytes_available, 1000000);
        assert_int_equal(b.max_tokens_that_fit, 8092);
    }
}

static void the_message_is_the_one_that_clients_match(void **state) {
    (void)state;
    struct pn_budget b;
    struct fo_err e;
    assert_int_equal(ask(8488, 512, &b, &e), FO_EBUDGET);
    assert_string_equal(e.msg, "This model's maximum context length is 8192 tokens. However, your request has 9000 tokens (8488 in the prompt, 512 for "
                               "the completion) and exceeds the available context size. Reduce the messages or max_tokens.");
    static const char *const match[] = { "exceeds the available context size", "maximum context length is [0-9]+ tokens" };
    static const char *const never[] = { "rate limit", "too many requests", "too many tokens", "exceeds the limit of [0-9]+", "too many images" };
    for (size_t i = 0; i < 2 + 5; i++) {
        regex_t re;
        assert_int_equal(regcomp(&re, i < 2 ? match[i] : never[i - 2], REG_EXTENDED | REG_ICASE | REG_NOSUB), 0);
        assert_int_equal(regexec(&re, e.msg, 0, NULL, 0) == 0, i < 2);
        regfree(&re);
    }
}

static void huge_numbers_do_not_wrap(void **state) {
    (void)state;
    struct pn_budget b;
    struct fo_err e;
    assert_int_equal(ask(UINT64_MAX, UINT64_MAX, &b, &e), FO_EBUDGET);
    assert_int_equal(ask(2, UINT64_MAX, &b, &e), FO_EBUDGET);
    assert_int_equal(b.kv_bytes_needed, UINT64_MAX);
    assert_int_equal(ask(UINT64_MAX, 0, &b, &e), FO_EBUDGET);
}

/* An embedding generates nothing: no default fills it up, and its message speaks of no completion. */
static void a_prompt_alone_may_fill_the_cap(void **state) {
    (void)state;
    struct pn_budget b;
    struct fo_err e = { 0 };
    struct pn_admit_facts f = facts;
    f.prompt_only = true;
    f.max_tokens_default = 500;
    assert_int_equal(pn_admit(&f, 8192, 0, &b, &e), 0);
    assert_int_equal(b.max_tokens, 0);
    assert_int_equal(b.kv_bytes_needed, 8192 * 46080LL);
    assert_int_equal(pn_admit(&f, 8193, 0, &b, &e), FO_EBUDGET);
    assert_int_equal(e.need, 8193);
    assert_int_equal(e.have, 8192);
    assert_string_equal(e.msg, "This model's maximum context length is 8192 tokens. However, your input has 8193 tokens and exceeds the available context size. "
                               "Shorten it, or send it in parts.");
    assert_int_equal(pn_admit(&f, UINT64_MAX, 0, &b, &e), FO_EBUDGET);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(accepts_a_prompt_of_the_cap_less_one_with_one_token_and_no_more),
        cmocka_unit_test(unset_max_tokens_is_what_is_left_or_the_default),
        cmocka_unit_test(the_budget_carries_every_number_whatever_the_verdict),
        cmocka_unit_test(the_message_is_the_one_that_clients_match),
        cmocka_unit_test(huge_numbers_do_not_wrap),
        cmocka_unit_test(a_prompt_alone_may_fill_the_cap),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
