/* A thousand conversations that branch at random, several at a time, of several tenants, over few pages: what is kept of them changes no answer, no
 * page is lost or held by whom it should not be after any step, and nothing of one tenant's is found by another. On the worker's side of the
 * cache, with a tiny model; test_sched.c asks the same of the scheduler. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/kv.h"
#include "engine/mem/relief.h"
#include "engine/model.h"
#include "engine/prefix.h"
#include "foundry/base/err.h"
#include "foundry/base/rng.h"
#include "foundry/device.h"
#include "tests/support/odd.h"
#include "tests/support/script.h"

enum {
    PAGE = FO_KV_PAGE_TOKENS,
    CTX = PAGE > 16 ? 8 * PAGE : 24 * PAGE,
    SLOTS = 3,
    TENANTS = 3,
    ANSWER = 10, /* most tokens of one */
    TREE = 64,   /* texts that others branch off */
    VOCAB = 96,
    MOST_VOCAB = 259 /* the scripted model's */
};

struct text {
    int32_t tokens[CTX];
    uint32_t n;
    int tenant; /* whose KV it may be in */
};

struct slot {
    struct pn_seq *seq; /* NULL = free */
    struct text text;   /* the prompt, then the answer behind it */
    uint32_t n_prompt, n_answer, done; /* tokens of the answer that were chosen */
    int32_t answer[ANSWER];            /* as it should be, */
    float logits[ANSWER][MOST_VOCAB];  /* and the bits it was chosen by */
    bool alone;                        /* not begun in the cache */
};

struct world {
    struct pn_model *m, *plain; /* with the cache, and without */
    struct pn_prefix *cache;
    struct fo_rng rng;
    struct slot slot[SLOTS];
    struct text tree[TREE];
    uint32_t n_tree;
    enum { FREE, SQUEEZED, SAME_BITS } memory; /* rungs come and go at random; and the answers' bits are the same even so */
    uint64_t made_small, discarded;
    uint64_t cached, prompts, waits, cancelled, shared_at_once, misses[PN_CACHE_STATE + 1];
};

static const char *const tenants[TENANTS] = { NULL, "a", "b" };
static const char *const sessions[] = { NULL, "s", "t" };
static struct fo_device *dev;

static uint32_t below(struct world *w, uint32_t n) {
    return (uint32_t)(fo_rng_u64(&w->rng) % n);
}

static int32_t best(const float *logits, uint32_t n) {
    int32_t at = 0;
    for (uint32_t i = 1; i < n; i++)
        if (logits[i] > logits[at]) at = (int32_t)i;
    return at;
}

static void check(struct world *w) {
    struct pn_seq *others[SLOTS];
    uint32_t n = 0;
    for (int i = 0; i < SLOTS; i++)
        if (w->slot[i].seq && w->slot[i].alone) others[n++] = w->slot[i].seq;
    if (!pn_prefix_check(w->cache, others, n)) fail_msg("the counts are wrong");
}

/* The answer without a cache: the whole prompt at once, then a token a step. */
static void expect(struct world *w, struct slot *s) {
    struct fo_err e;
    struct pn_seq *seq;
    float *logits;
    uint32_t n_vocab = pn_model_info(w->plain)->n_vocab;
    assert_true(n_vocab <= MOST_VOCAB);
    struct pn_batch_item it = { NULL, s->text.tokens, s->n_prompt, PN_WANT_LAST };
    if (pn_seq_new(w->plain, &seq, &e)) fail_msg("%s", e.msg);
    it.seq = seq;
    for (uint32_t i = 0; i < s->n_answer; i++) {
        if (pn_model_forward(w->plain, &it, 1, &logits, &e)) fail_msg("%s", e.msg);
        s->answer[i] = best(logits, n_vocab);
        memcpy(s->logits[i], logits, n_vocab * sizeof *logits);
        it = (struct pn_batch_item){ seq, &s->answer[i], 1, PN_WANT_LAST };
    }
    pn_seq_free(seq);
}

/* A prompt: what some text begins with, cut anywhere, at a page's edge, near its end, or whole, and something new. */
static void branch(struct world *w, struct slot *s) {
    struct text *t = &s->text;
    uint32_t n_vocab = pn_model_info(w->m)->n_vocab;
    t->n = 0;
    t->tenant = (int)below(w, TENANTS);
    if (w->n_tree > 0 && below(w, 8) > 0) {
        *t = w->tree[below(w, w->n_tree < TREE ? w->n_tree : TREE)];
        if (below(w, 4) == 0) t->tenant = (int)below(w, TENANTS); /* somebody else says the same */
        uint32_t how = below(w, 4), less = below(w, PAGE + 2);
        if (how == 0) t->n = below(w, t->n + 1);
        if (how == 1) t->n = below(w, t->n / PAGE + 1) * PAGE;
        if (how == 2) t->n -= less < t->n ? less : 0;
    }
    uint32_t more = below(w, 4) == 0 ? 0 : below(w, 8) == 0 ? CTX : below(w, 2 * PAGE + 2), most = CTX - ANSWER;
    if (t->n > most) t->n = most;
    if (t->n + more > most) more = most - t->n;
    if (t->n + more == 0) more = 1;
    while (more-- > 0) t->tokens[t->n++] = (int32_t)(3 + below(w, n_vocab - 3));
    s->n_prompt = t->n;
    s->n_answer = 1 + below(w, ANSWER);
    s->done = 0;
    s->alone = below(w, 12) == 0;
    expect(w, s);
}

/* The most that any text this tenant has ever been told or asked has in common with s. */
static uint32_t known(const struct world *w, const struct slot *s) {
    uint32_t most = 0;
    for (uint32_t i = 0; i < w->n_tree && i < TREE; i++) {
        uint32_t k = 0;
        if (w->tree[i].tenant != s->text.tenant) continue;
        while (k < s->n_prompt && k < w->tree[i].n && w->tree[i].tokens[k] == s->text.tokens[k]) k++;
        if (k > most) most = k;
    }
    for (int i = 0; i < SLOTS; i++) {
        const struct slot *o = &w->slot[i];
        uint32_t k = 0;
        if (!o->seq || o == s || o->text.tenant != s->text.tenant) continue;
        while (k < s->n_prompt && k < o->text.n && o->text.tokens[k] == s->text.tokens[k]) k++;
        if (k > most) most = k;
    }
    return most;
}

static void begin(struct world *w, struct slot *s) {
    struct fo_err e;
    enum pn_cache_miss miss = PN_CACHE_OFF;
    uint32_t shared = 0, n = s->n_prompt + s->n_answer - 1, running = 0;
    const char *tenant = tenants[s->text.tenant];
    uint32_t hint = pn_prefix_kept(w->cache, tenant, s->text.tokens, s->n_prompt);
    for (int i = 0; i < SLOTS; i++) running += w->slot[i].seq != NULL;
    if (s->alone) {
        if (pn_seq_new(w->m, &s->seq, &e)) fail_msg("%s", e.msg);
    } else if (pn_prefix_begin(w->cache, tenant, s->text.tokens, s->n_prompt, &s->seq, &miss, &shared, &e)) {
        fail_msg("%s", e.msg);
    }
    check(w);
    uint32_t cached = pn_seq_len(s->seq);
    assert_true(cached < s->n_prompt && cached <= shared);
    assert_memory_equal(pn_seq_tokens(s->seq), s->text.tokens, cached * sizeof *s->text.tokens);
    if (!s->alone && w->n_tree <= TREE) assert_true(shared <= known(w, s));
    const struct pn_kv *kv = pn_model_kv(w->m);
    bool anywhere = kv->window == 0 && kv->states.n_blocks == 0;
    if (!s->alone && anywhere) {
        assert_true(hint <= cached);
        assert_true(cached >= shared / PAGE * PAGE || cached >= (s->n_prompt - 1) / PAGE * PAGE);
        if (running == 0) assert_int_equal(hint, cached / PAGE * PAGE);
    }
    if (pn_prefix_reserve(w->cache, s->seq, n, &e)) {
        assert_int_equal(e.code, FO_ENOMEM);
        assert_true(running > 0); /* alone there is room for everything */
        if (s->alone) pn_seq_free(s->seq);
        else pn_prefix_put(w->cache, NULL, s->seq);
        s->seq = NULL;
        w->waits++;
        check(w);
        return;
    }
    check(w);
    w->prompts += s->n_prompt;
    w->cached += cached;
    w->shared_at_once += running > 0 && cached > 0;
    w->misses[miss]++;
}

static void end(struct world *w, struct slot *s, bool keep) {
    if (s->alone) pn_seq_free(s->seq);
    else if (keep) pn_prefix_put(w->cache, sessions[below(w, 3)], s->seq);
    else pn_prefix_drop(w->cache, s->seq);
    if (keep && !s->alone) w->tree[w->n_tree++ % TREE] = s->text;
    s->seq = NULL;
    check(w);
}

/* One more token of the answer, from the same numbers, bit for bit. */
static void chosen(const struct world *w, struct slot *s, const float *logits, uint32_t n_vocab) {
    int32_t id = best(logits, n_vocab);
    if (w->memory != SQUEEZED && memcmp(logits, s->logits[s->done], n_vocab * sizeof *logits) != 0) fail_msg("token %u of an answer is %d by other logits; without a cache it was %d", s->done, id, s->answer[s->done]);
    s->text.tokens[s->text.n++] = id;
    s->done++;
}

/* A step of some of what runs: a chunk of a prompt, or a token with drafts behind it, some of them right. */
static void step(struct world *w) {
    struct pn_batch_item items[SLOTS];
    struct slot *of[SLOTS];
    int32_t fed[SLOTS][4];
    int n = 0;
    uint32_t left = pn_model_info(w->m)->max_batch, n_vocab = pn_model_info(w->m)->n_vocab;
    for (int i = 0; i < SLOTS; i++) {
        struct slot *s = &w->slot[i];
        if (!s->seq || below(w, 4) == 0) continue;
        uint32_t len = pn_seq_len(s->seq), take;
        if (len < s->n_prompt) {
            take = 1 + below(w, left - 4 * (SLOTS - 1 - (uint32_t)i)); /* the others have a token and drafts */
            if (take > s->n_prompt - len) take = s->n_prompt - len;
            take = pn_seq_chunk(s->seq, take);
            items[n] = (struct pn_batch_item){ s->seq, s->text.tokens + len, take, len + take == s->n_prompt ? PN_WANT_LAST : PN_WANT_NONE };
        } else {
            uint32_t drafts = below(w, 4);
            if (drafts > s->n_answer - s->done - 1) drafts = s->n_answer - s->done - 1;
            if (drafts > 0) drafts = pn_seq_drafts(s->seq, drafts);
            fed[n][0] = s->text.tokens[s->text.n - 1];
            for (uint32_t k = 1; k <= drafts; k++) fed[n][k] = below(w, 3) > 0 ? s->answer[s->done + k - 1] : 5;
            take = 1 + drafts;
            items[n] = (struct pn_batch_item){ s->seq, fed[n], take, PN_WANT_ALL };
        }
        left -= take;
        of[n++] = s;
    }
    if (n == 0) return;
    struct fo_err e;
    float *logits;
    if (pn_model_forward(w->m, items, n, &logits, &e)) fail_msg("%s", e.msg);
    for (int i = 0; i < n; i++) {
        struct slot *s = of[i];
        if (items[i].want == PN_WANT_NONE) continue;
        uint32_t rows = items[i].want == PN_WANT_ALL ? items[i].n : 1, first = pn_seq_len(s->seq) - (rows - 1), k = 0;
        do chosen(w, s, logits + k++ * n_vocab, n_vocab);
        while (k < rows && items[i].tokens[k] == s->answer[s->done - 1]);
        if (k < rows) pn_seq_take_back(s->seq, first + k - 1);
        logits += rows * n_vocab;
    }
    check(w);
}

static int write_small(void *ctx, uint32_t from, uint32_t to) {
    struct world *w = ctx;
    struct fo_err e;
    if (pn_model_requantise(w->m, from, to, &e)) fail_msg("%s", e.msg);
    return 0;
}

/* What the scheduler does between steps while memory is short, whenever it comes. */
static void squeeze(struct world *w) {
    if (below(w, 10) == 0) pn_model_kv(w->m)->floor ^= true;
    if (below(w, 3) == 0) w->made_small += pn_prefix_requantise(w->cache, INFINITY, 1 + below(w, 4), write_small, w);
    check(w);
    if (below(w, 5) == 0) w->discarded += pn_model_discard(w->m, 1 + below(w, 3));
    if (below(w, 50) == 0) pn_prefix_evict_cold(w->cache, INFINITY);
    check(w);
}

static void run(struct world *w, uint32_t conversations) {
    uint32_t begun = 0, running = 0;
    do {
        struct slot *s = &w->slot[below(w, SLOTS)];
        uint32_t what = below(w, 40);
        if (!s->seq && begun < conversations) {
            branch(w, s);
            begin(w, s);
            begun += s->seq != NULL;
        } else if (s->seq && what == 0) { /* it is cancelled, or fails */
            w->cancelled++;
            end(w, s, below(w, 3) > 0);
        } else if (what == 1) {
            pn_prefix_forget(w->cache, tenants[below(w, TENANTS)], sessions[below(w, 3)]);
            check(w);
        }
        if (w->memory != FREE) squeeze(w);
        step(w);
        running = 0;
        for (int i = 0; i < SLOTS; i++) {
            if (w->slot[i].seq && w->slot[i].done == w->slot[i].n_answer) end(w, &w->slot[i], true);
            running += w->slot[i].seq != NULL;
        }
    } while (begun < conversations || running > 0);
}

/* Returns how many prompts were found by fewer tokens for the window's, or the state's, sake. */
static uint64_t talk_squeezed(const char *path, enum fo_dtype kv, enum fo_dtype floor, int memory, uint32_t sessions_kept, uint32_t conversations, uint64_t seed) {
    static struct world w;
    struct fo_err e;
    memset(&w, 0, sizeof w);
    w.memory = memory;
    fo_rng_seed(&w.rng, seed);
    struct pn_model_opts o = { .dev = dev, .k_type = kv, .v_type = kv, .has_floor = true, .k_floor = floor, .v_floor = floor, .max_sessions = sessions_kept, .max_concurrent = SLOTS, .max_batch = 24, .all_logits = true }, plain = o;
    plain.max_batch = CTX;
    plain.max_sessions = plain.max_concurrent = 1;
    if (pn_model_open(path, &o, &w.m, &e) || pn_model_open(path, &plain, &w.plain, &e) || pn_prefix_new(w.m, sessions_kept, &w.cache, &e)) fail_msg("%s", e.msg);
    run(&w, conversations);
    print_message("    %s: %u conversations, %llu of %llu tokens of their prompts were kept, %llu cancelled, %llu waited, %llu began beside others; "
                  "misses: empty %llu diverged %llu evicted %llu window %llu state %llu\n",
                  fo_dtype_name(kv), conversations, (unsigned long long)w.cached, (unsigned long long)w.prompts, (unsigned long long)w.cancelled,
                  (unsigned long long)w.waits, (unsigned long long)w.shared_at_once, (unsigned long long)w.misses[PN_CACHE_EMPTY],
                  (unsigned long long)w.misses[PN_CACHE_DIVERGED], (unsigned long long)w.misses[PN_CACHE_EVICTED],
                  (unsigned long long)w.misses[PN_CACHE_WINDOW], (unsigned long long)w.misses[PN_CACHE_STATE]);
    assert_true(w.cached > 0 && w.misses[PN_CACHE_EVICTED] > 0 && w.misses[PN_CACHE_DIVERGED] > 0);
    assert_true(pn_model_kv(w.m)->window > 0 || w.shared_at_once > 0);
    assert_true(w.misses[PN_CACHE_WINDOW] == 0 || pn_model_kv(w.m)->window > 0);
    assert_true(w.misses[PN_CACHE_STATE] == 0 || pn_model_kv(w.m)->states.n_blocks > 0);
    if (memory != FREE) {
        bool small = pn_model_kv(w.m)->n_small > 0;
        print_message("        %llu pages were made small (%u in a place), %llu places given back\n", (unsigned long long)w.made_small, pn_model_kv(w.m)->n_small, (unsigned long long)w.discarded);
        assert_true(small == (w.made_small > 0) && w.discarded > 0);
    }
    while (pn_prefix_evict(w.cache)) {}
    check(&w); /* the index is empty too */
    pn_prefix_free(w.cache);
    assert_int_equal(pn_model_free_pages(w.m), pn_model_info(w.m)->n_pages);
    pn_model_free(w.m);
    pn_model_free(w.plain);
    return w.misses[PN_CACHE_WINDOW] + w.misses[PN_CACHE_STATE];
}

static uint64_t talk(const char *path, enum fo_dtype kv, uint32_t sessions_kept, uint32_t conversations, uint64_t seed) {
    return talk_squeezed(path, kv, kv, FREE, sessions_kept, conversations, seed);
}

static const struct odd tiny = { .type = FO_F32, .n_layer = 2, .n_embd = 64, .n_ff = 64, .n_head = 2, .n_head_kv = 1, .n_vocab = VOCAB, .n_ctx = CTX };

static void a_thousand_conversations_say_what_they_would_without_a_cache(void **state) {
    (void)state;
    odd_write(odd_path(0), &tiny);
    talk(odd_path(0), FO_F16, SLOTS, 1000, 1);
    unlink(odd_path(0));
}

static void whatever_the_type_of_the_kv(void **state) {
    (void)state;
    static const enum fo_dtype types[] = { FO_F32, FO_Q8_0, FO_Q4_0 };
    odd_write(odd_path(0), &tiny);
    for (uint64_t i = 0; i < sizeof types / sizeof *types; i++) talk(odd_path(0), types[i], SLOTS, 200, 10 + i);
    unlink(odd_path(0));
}

static void under_a_sliding_window(void **state) {
    (void)state;
    uint64_t fewer = 0;
    for (uint32_t i = 0; i < 3; i++) {
        struct odd t = tiny;
        t.window = 2 + i * (PAGE / 2 + 3);
        odd_write(odd_path(0), &t);
        fewer += talk(odd_path(0), i == 1 ? FO_Q8_0 : FO_F16, 2 * SLOTS, 300, 20 + i); /* sequences of a few pages each */
    }
    assert_true(fewer > 0);
    unlink(odd_path(0));
}

static void with_recurrent_state(void **state) {
    (void)state;
    struct fo_err e;
    struct test_script t = test_script_default();
    uint64_t fewer = 0;
    t.text = "The quick brown fox jumps over the lazy dog, again and again and again.";
    t.n_ctx = CTX;
    for (uint32_t i = 0; i < 2; i++) {
        t.state_bytes = 16 + 100 * i;
        if (test_script_write(&t, odd_path(0), &e)) fail_msg("%s", e.msg);
        fewer += talk(odd_path(0), FO_F16, SLOTS, 500, 30 + i);
    }
    assert_true(fewer > 0);
    unlink(odd_path(0));
}

/* Whatever the rungs do to a text's pages, and whenever: nothing is lost, and what does not look at KV says the same. */
static void while_pages_are_made_small(void **state) {
    (void)state;
    struct fo_err e;
    struct test_script t = test_script_default();
    t.text = "Jackdaws love my big sphinx of quartz, says the one who reads it aloud.";
    t.n_ctx = CTX;
    t.kv_bytes_per_token = 4 * 2 * 32 * 2; /* a head of 32 dimensions in each of 4 layers */
    if (test_script_write(&t, odd_path(0), &e)) fail_msg("%s", e.msg);
    talk_squeezed(odd_path(0), FO_F16, FO_Q4_0, SAME_BITS, SLOTS, 400, 40);
    talk_squeezed(odd_path(0), FO_F16, FO_Q8_0, SAME_BITS, SLOTS, 200, 41); /* one in a place */
    t.state_bytes = 48;
    if (test_script_write(&t, odd_path(0), &e)) fail_msg("%s", e.msg);
    talk_squeezed(odd_path(0), FO_F32, FO_Q8_0, SAME_BITS, SLOTS, 300, 42);
    odd_write(odd_path(0), &tiny);
    talk_squeezed(odd_path(0), FO_F16, FO_Q4_0, SQUEEZED, SLOTS, 300, 43);
    talk_squeezed(odd_path(0), FO_F16, FO_F16, SAME_BITS, SLOTS, 200, 44); /* there is nothing smaller: no rung touches an answer */
    struct odd windowed = tiny;
    windowed.window = PAGE / 2 + 5;
    odd_write(odd_path(0), &windowed);
    talk_squeezed(odd_path(0), FO_F16, FO_Q4_0, SQUEEZED, 2 * SLOTS, 300, 45);
    unlink(odd_path(0));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_thousand_conversations_say_what_they_would_without_a_cache),
        cmocka_unit_test(whatever_the_type_of_the_kv),
        cmocka_unit_test(under_a_sliding_window),
        cmocka_unit_test(with_recurrent_state),
        cmocka_unit_test(while_pages_are_made_small),
    };
    struct fo_err e = { 0 };
    if (fo_device_open("cpu", "", &(struct fo_device_opts){ .n_threads = 1 }, &dev, &e)) return 1;
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    fo_device_close(dev);
    return failed;
}
