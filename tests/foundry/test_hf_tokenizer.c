/* tokenizer.json files made here: every form of what they say, what is refused, hostile ones, running out of memory. References are in
 * test_tok_golden.c. */
#include "foundry/hf_tokenizer.h"

#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include "foundry/base/buf.h"
#include "foundry/base/err.h"
#include "foundry/gguf_write.h"
#include "foundry/tok.h"
#include "tests/support/alloc.h"
#include "tests/support/tok_vocab.h"

struct made {
    struct fo_buf file;
    struct fo_gguf *g;
    struct fo_tok *t;
};

static struct fo_str str(const char *s) {
    return (struct fo_str){ s, s ? strlen(s) : 0 };
}

static int make(const struct fo_hf_files *files, struct made *m, struct fo_err *e) {
    struct fo_gguf_writer w;
    *m = (struct made){ .g = NULL };
    fo_buf_init(&m->file, 1 << 26);
    fo_gguf_writer_init(&w, 1 << 26);
    int rc = fo_hf_tokenizer_parse(files, &w, e);
    if (rc) assert_int_equal(w.n_kv + w.kv.len, 0); /* nothing is left behind */
    if (!rc) rc = fo_gguf_header(&w, FO_GGUF_VERSION, FO_GGUF_ALIGNMENT, &m->file, e);
    fo_gguf_writer_done(&w);
    if (!rc) rc = fo_gguf_parse(m->file.data, m->file.len, "made", &m->g, e);
    return rc ? rc : fo_tok_open(m->g, &m->t, e);
}

static void made_done(struct made *m) {
    fo_tok_free(m->t);
    fo_gguf_close(m->g);
    fo_buf_done(&m->file);
}

/* The parts of a byte-level tokenizer.json; NULL = the usual one. */
struct parts {
    const char *model, *vocab, *merges, *normalizer, *pre, *post, *added;
};

/* a..e and the space are tokens 0..5, then "ab" and "abc". */
#define VOCAB "\"a\":0,\"b\":1,\"c\":2,\"d\":3,\"e\":4,\"\xC4\xA0\":5,\"ab\":6,\"abc\":7"
#define BYTE_LEVEL "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":false}"

static const char *json_of(const struct parts *p) {
    static char text[1 << 16];
    snprintf(text, sizeof text,
             "{\"version\":\"1.0\",\"added_tokens\":[%s],\"normalizer\":%s,\"pre_tokenizer\":%s,\"post_processor\":%s,\"decoder\":null,"
             "\"model\":{%s\"vocab\":{%s},\"merges\":[%s]}}",
             p->added ? p->added : "{\"id\":8,\"content\":\"<s>\",\"special\":true},{\"id\":9,\"content\":\"</s>\",\"special\":true}",
             p->normalizer ? p->normalizer : "null", p->pre ? p->pre : BYTE_LEVEL, p->post ? p->post : "null",
             p->model ? p->model : "\"type\":\"BPE\",", p->vocab ? p->vocab : VOCAB, p->merges ? p->merges : "\"a b\",\"ab c\"");
    return text;
}

static void open_parts(const struct parts *p, const char *config, struct made *m) {
    struct fo_err e;
    struct fo_hf_files f = { .tokenizer = str(json_of(p)), .tokenizer_config = str(config) };
    if (make(&f, m, &e)) fail_msg("%s", e.msg);
}

/* The ids of a text, a space behind each. */
static const char *ids_of(const struct made *m, const char *s, unsigned flags) {
    static char out[1024];
    struct fo_tok_ids ids = { 0 };
    struct fo_err e;
    size_t len = 0;
    if (fo_tok_encode(m->t, s, strlen(s), NULL, flags, 0, &ids, &e)) fail_msg("%s", e.msg);
    out[0] = '\0';
    for (size_t i = 0; i < ids.n; i++) len += (size_t)snprintf(out + len, sizeof out - len, "%d ", ids.ids[i]);
    free(ids.ids);
    return out;
}

static void reads_merges_as_texts_and_as_pairs(void **state) {
    (void)state;
    struct made m;
    open_parts(&(struct parts){ .merges = "\"a b\",\"ab c\"" }, NULL, &m);
    assert_string_equal(ids_of(&m, "abcd ab", 0), "7 3 5 6 ");
    made_done(&m);
    open_parts(&(struct parts){ .merges = "[\"a\",\"b\"],[\"ab\",\"c\"],[\"x y\",\"z\"],[\"a\"],[],7" }, NULL, &m);
    assert_string_equal(ids_of(&m, "abcd ab", 0), "7 3 5 6 ");
    made_done(&m);
}

static void a_word_that_is_a_token_is_taken_whole_where_merges_are_ignored(void **state) {
    (void)state;
    struct made m;
    open_parts(&(struct parts){ .merges = "\"b c\"" }, NULL, &m);
    assert_string_equal(ids_of(&m, "abc", 0), "0 1 2 ");
    made_done(&m);
    open_parts(&(struct parts){ .merges = "\"b c\"", .model = "\"type\":\"BPE\",\"ignore_merges\":true," }, NULL, &m);
    assert_string_equal(ids_of(&m, "abc", 0), "7 ");
    made_done(&m);
}

static void fills_gaps_and_the_embeddings_padding_with_unused_tokens(void **state) {
    (void)state;
    struct made m;
    struct fo_err e;
    struct fo_hf_files f = { .tokenizer = str(json_of(&(struct parts){ .vocab = VOCAB ",\"dd\":12" })), .config = str("{\"vocab_size\":16}") };
    if (make(&f, &m, &e)) fail_msg("%s", e.msg);
    assert_int_equal(fo_tok_n_vocab(m.t), 16);
    assert_int_equal(fo_tok_find(m.t, "[PAD10]", 7), 10);
    assert_int_equal(fo_tok_find(m.t, "[PAD15]", 7), 15);
    struct fo_buf out;
    fo_buf_init(&out, 64);
    fo_tok_piece(m.t, 15, true, &out);
    assert_int_equal(out.len, 0);
    fo_buf_done(&out);
    made_done(&m);
    f.config = str("{\"text_config\":{\"vocab_size\":9}}"); /* the last token has no embedding */
    if (make(&f, &m, &e)) fail_msg("%s", e.msg);
    assert_int_equal(fo_tok_n_vocab(m.t), 9);
    assert_int_equal(fo_tok_find(m.t, "</s>", 4), -1);
    made_done(&m);
}

static void every_end_that_a_file_names_ends_a_generation(void **state) {
    (void)state;
    struct made m;
    struct fo_err e;
    struct fo_hf_files f = { .tokenizer = str(json_of(&(struct parts){
                                 .added = "{\"id\":8,\"content\":\"<one>\",\"special\":true},{\"id\":9,\"content\":\"<two>\",\"special\":false},"
                                          "{\"id\":10,\"content\":\"<three>\",\"special\":true},{\"id\":11,\"content\":\"<four>\",\"special\":true}" })),
                             .tokenizer_config = str("{\"eos_token\":{\"content\":\"<one>\"},\"bos_token\":null}"),
                             .generation_config = str("{\"eos_token_id\":[9,999,-1,\"x\"]}"),
                             .config = str("{\"eos_token_id\":10}") };
    if (make(&f, &m, &e)) fail_msg("%s", e.msg);
    assert_int_equal(fo_tok_eos(m.t), 8);
    assert_int_equal(fo_tok_bos(m.t), -1);
    for (int32_t id = 0; id < 12; id++) assert_int_equal(fo_tok_is_end(m.t, id), id >= 8 && id <= 10);
    assert_true(fo_tok_is_control(m.t, 9)); /* a user must not end the turn by writing it */
    made_done(&m);
}

static void bos_and_eos_come_from_the_post_processor_unless_the_config_says_otherwise(void **state) {
    (void)state;
    static const char both[] = "{\"type\":\"Sequence\",\"processors\":[{\"type\":\"ByteLevel\"},{\"type\":\"TemplateProcessing\",\"single\":["
                               "{\"SpecialToken\":{\"id\":\"<s>\"}},{\"Sequence\":{\"id\":\"A\"}},{\"SpecialToken\":{\"id\":\"</s>\"}}],"
                               "\"special_tokens\":{\"<s>\":{\"ids\":[8]},\"</s>\":{\"ids\":[9]}}}]}";
    static const char names[] = "{\"bos_token\":\"<s>\",\"eos_token\":\"</s>\"%s}";
    static const struct {
        const char *post, *more, *ids;
    } cases[] = {
        { NULL, "", "0 " },
        { both, "", "8 0 9 " },
        { both, ",\"add_bos_token\":false", "0 9 " },
        { both, ",\"add_eos_token\":false", "8 0 " },
        { NULL, ",\"add_bos_token\":true,\"add_eos_token\":true", "8 0 9 " },
        { NULL, ",\"tokenizer_class\":\"LlamaTokenizerFast\"", "8 0 " },
        { NULL, ",\"tokenizer_class\":\"LlamaTokenizerFast\",\"add_bos_token\":false", "0 " },
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char config[256];
        struct made m;
        snprintf(config, sizeof config, names, cases[i].more);
        open_parts(&(struct parts){ .post = cases[i].post }, config, &m);
        assert_string_equal(ids_of(&m, "a", FO_TOK_ADD), cases[i].ids);
        made_done(&m);
    }
}

static void added_tokens_swallow_white_space_as_their_flags_say(void **state) {
    (void)state;
    struct made m;
    open_parts(&(struct parts){ .added = "{\"id\":8,\"content\":\"<l>\",\"special\":true,\"lstrip\":true},{\"id\":9,\"content\":\"<r>\",\"special\":true,"
                                         "\"rstrip\":true},{\"id\":10,\"content\":\"<n>\",\"special\":true}" },
               NULL, &m);
    assert_string_equal(ids_of(&m, "a \xC2\xA0\xE3\x80\x80<l> a", FO_TOK_SPECIAL), "0 8 5 0 ");
    assert_string_equal(ids_of(&m, "a <r>\n \xE2\x80\xA8 a", FO_TOK_SPECIAL), "0 5 9 0 ");
    assert_string_equal(ids_of(&m, "a <n> a", FO_TOK_SPECIAL), "0 5 10 5 0 ");
    assert_string_equal(ids_of(&m, "  <r>  <l>", FO_TOK_SPECIAL), "5 5 9 8 ");
    made_done(&m);
}

static void text_is_normalised_where_the_file_says_so(void **state) {
    (void)state;
    struct made m;
    /* e with an acute accent is one character of two bytes, U+00C3 U+00A9 in the vocabulary */
    static const char vocab[] = VOCAB ",\"\xC3\x83\":10,\"\xC2\xA9\":11,\"\xC3\x8C\":12,\"\xC4\xA3\":13";
    open_parts(&(struct parts){ .vocab = vocab }, NULL, &m);
    assert_string_equal(ids_of(&m, "e\xCC\x81", 0), "4 12 13 ");
    made_done(&m);
    open_parts(&(struct parts){ .vocab = vocab, .normalizer = "{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFC\"}]}" }, NULL, &m);
    assert_string_equal(ids_of(&m, "e\xCC\x81" "a e\xCC\x81", 0), "10 11 0 5 10 11 ");
    assert_string_equal(ids_of(&m, "\xC3\xA9", 0), "10 11 ");
    made_done(&m);
}

static const char *template_of(const struct made *m, const char *key) {
    static char out[64];
    struct fo_str s;
    struct fo_err e;
    if (fo_gguf_get_str(m->g, key, &s, &e)) return NULL;
    snprintf(out, sizeof out, "%.*s", (int)s.len, s.s);
    return out;
}

static void takes_the_chat_template_from_the_first_place_that_has_one(void **state) {
    (void)state;
    struct made m;
    struct fo_err e;
    struct fo_hf_files f = { .tokenizer = str(json_of(&(struct parts){ 0 })),
                             .tokenizer_config = str("{\"chat_template\":[{\"name\":\"tool_use\",\"template\":\"tools\"},{\"name\":\"default\",\"template\":\"plain\"}]}") };
    if (make(&f, &m, &e)) fail_msg("%s", e.msg);
    assert_string_equal(template_of(&m, "tokenizer.chat_template"), "plain");
    assert_string_equal(template_of(&m, "tokenizer.chat_template.tool_use"), "tools");
    made_done(&m);
    f.template_json = str("{\"chat_template\":\"json\"}");
    if (make(&f, &m, &e)) fail_msg("%s", e.msg);
    assert_string_equal(template_of(&m, "tokenizer.chat_template"), "json");
    made_done(&m);
    f.jinja = str("jinja");
    f.tool_use_jinja = str("jinja tools");
    if (make(&f, &m, &e)) fail_msg("%s", e.msg);
    assert_string_equal(template_of(&m, "tokenizer.chat_template"), "jinja");
    assert_string_equal(template_of(&m, "tokenizer.chat_template.tool_use"), "jinja tools");
    made_done(&m);
    f = (struct fo_hf_files){ .tokenizer = f.tokenizer, .tokenizer_config = str("{\"chat_template\":[{\"name\":\"a\",\"template\":\"x\"},{\"name\":\"a\",\"template\":\"y\"}]}") };
    assert_int_equal(make(&f, &m, &e), FO_EFORMAT);
    made_done(&m);
}

static void knows_published_pre_tokenizers_by_name_and_compiles_others(void **state) {
    (void)state;
    static const struct {
        const char *pre, *name;
    } cases[] = {
        { "{\"type\":\"ByteLevel\",\"use_regex\":true}", "gpt-2" },
        { "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Digits\",\"individual_digits\":true},{\"type\":\"ByteLevel\"}]}", "smollm" },
        { "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":{\"Regex\":\"a|b+\"},\"behavior\":\"Isolated\"}," BYTE_LEVEL "]}", "custom" },
        { BYTE_LEVEL, "custom" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct made m;
        open_parts(&(struct parts){ .pre = cases[i].pre }, NULL, &m);
        assert_string_equal(template_of(&m, "tokenizer.ggml.pre"), cases[i].name);
        made_done(&m);
    }
}

#define SPLIT(re) "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"pattern\":{\"Regex\":\"" re "\"},\"behavior\":\"Isolated\"}," BYTE_LEVEL "]}"

static void refuses_by_name_what_it_cannot_serve(void **state) {
    (void)state;
    static const struct {
        struct parts p;
        const char *named;
    } cases[] = {
        { { .model = "\"type\":\"WordPiece\"," }, "WordPiece" },
        { { .model = "\"type\":\"Unigram\"," }, "Unigram" },
        { { .model = "\"type\":\"BPE\",\"dropout\":0.1," }, "dropout" },
        { { .model = "\"type\":\"BPE\",\"end_of_word_suffix\":\"</w>\"," }, "end_of_word_suffix" },
        { { .normalizer = "{\"type\":\"Lowercase\"}" }, "Lowercase" },
        { { .normalizer = "{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFC\"},{\"type\":\"NFKC\"}]}" }, "NFKC" },
        { { .normalizer = "{\"type\":\"Replace\",\"pattern\":{\"Regex\":\"x\"},\"content\":\"y\"}" }, "Replace" },
        { { .pre = "{\"type\":\"BertPreTokenizer\"}" }, "BertPreTokenizer" },
        { { .pre = "null" }, "neither byte-level" },
        { { .pre = "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"x\"},\"behavior\":\"MergedWithNext\"}" }, "MergedWithNext" },
        { { .pre = SPLIT("(?<=a)b") }, "(?<=a)b" },
        { { .pre = SPLIT("a++") }, "a++" },
        { { .pre = SPLIT("\\\\p{Han}") }, "\\p{Han}" },
        { { .pre = SPLIT("(?:(?:(?:(?:(?:){500}){500}){500}){500}){500}") }, "takes too long" },
        { { .pre = SPLIT("((a{1,50}b{1,50}){1,40}|a*b)*c") }, "too long" },
        { { .post = "{\"type\":\"RobertaProcessing\"}" }, "RobertaProcessing" },
        { { .added = "{\"id\":8,\"content\":\"<w>\",\"single_word\":true}" }, "<w>" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct made m;
        struct fo_err e = { 0 };
        struct fo_hf_files f = { .tokenizer = str(json_of(&cases[i].p)) };
        if (make(&f, &m, &e) != FO_EUNSUPPORTED || !strstr(e.msg, cases[i].named)) fail_msg("%zu: '%s' instead of one on '%s'", i, e.msg, cases[i].named);
        made_done(&m);
    }
}

static void refuses_what_is_broken_or_too_much(void **state) {
    (void)state;
    static const struct {
        const char *text;
        int code;
    } cases[] = {
        { "", FO_EFORMAT },
        { "[]", FO_EFORMAT },
        { "{\"model\":{\"type\":\"BPE\"}}", FO_EFORMAT },
        { "{\"model\":{\"type\":\"BPE\",\"vocab\":{},\"merges\":[]},\"pre_tokenizer\":" BYTE_LEVEL "}", FO_EFORMAT },
        { "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":-1},\"merges\":[]},\"pre_tokenizer\":" BYTE_LEVEL "}", FO_EFORMAT },
        { "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":1.5},\"merges\":[]},\"pre_tokenizer\":" BYTE_LEVEL "}", FO_EFORMAT },
        { "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":2000000000},\"merges\":[]},\"pre_tokenizer\":" BYTE_LEVEL "}", FO_ELIMIT },
        { "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":99999999999},\"merges\":[]},\"pre_tokenizer\":" BYTE_LEVEL "}", FO_EFORMAT },
        { "{\"added_tokens\":[{\"id\":3}],\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[]},\"pre_tokenizer\":" BYTE_LEVEL "}", FO_EFORMAT },
    };
    struct made m;
    struct fo_err e;
    struct fo_hf_files f = { .tokenizer = { NULL, 0 } };
    assert_int_equal(make(&f, &m, &e), FO_ENOENT);
    made_done(&m);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        f.tokenizer = str(cases[i].text);
        int rc = make(&f, &m, &e);
        if (rc != cases[i].code) fail_msg("%zu: %d %s", i, rc, e.msg);
        made_done(&m);
    }
    f = (struct fo_hf_files){ .tokenizer = str(json_of(&(struct parts){ 0 })), .config = str("{\"vocab_size\":2000000000}") };
    assert_int_equal(make(&f, &m, &e), FO_ELIMIT);
    made_done(&m);
    size_t n = 9000000;
    char *deep = malloc(n);
    memset(deep, '[', n);
    f = (struct fo_hf_files){ .tokenizer = { deep, n } };
    test_fail_alloc(0);
    assert_int_equal(make(&f, &m, &e), FO_ELIMIT);
    for (size_t i = 0; i < n; i++) deep[i] = i % 2 ? ',' : '0';
    deep[0] = '[';
    f.tokenizer.len = n;
    assert_int_equal(make(&f, &m, &e), FO_EFORMAT); /* half as many values as allowed, but no object */
    memset(deep, ',', n);
    assert_int_equal(make(&f, &m, &e), FO_ELIMIT);
    made_done(&m);
    free(deep);
}

static void survives_a_file_cut_anywhere(void **state) {
    (void)state;
    static const char *const folders[] = { "bpe352-smollm", "spm352-phi3" };
    for (size_t k = 0; k < sizeof folders / sizeof folders[0]; k++) {
        char path[256];
        struct fo_buf file;
        snprintf(path, sizeof path, "tests/data/tokenizers/%s/tokenizer.json", folders[k]);
        assert_true(test_file_load(path, &file));
        for (size_t n = 0; n < file.len; n++) {
            struct made m;
            struct fo_err e;
            char *exact = malloc(n + !n); /* so that a sanitizer sees a read past the end */
            memcpy(exact, file.data, n);
            struct fo_hf_files f = { .tokenizer = { exact, n } };
            int rc = make(&f, &m, &e);
            if (rc != FO_EFORMAT && n + 2 < file.len) fail_msg("cut at %zu: %d", n, rc);
            made_done(&m);
            free(exact);
        }
        fo_buf_done(&file);
    }
}

/* Fails each allocation in turn: ours all matter; the parser does without some of its own, and may take others for a broken text. */
static void run_out(const char *folder, bool in_parser) {
    char path[256];
    bool failed = true;
    snprintf(path, sizeof path, "tests/data/tokenizers/%s", folder);
    for (long n = 1; failed; n += in_parser && n > 100 ? 7 : 1) {
        struct fo_gguf_writer w;
        struct fo_err e = { 0 };
        fo_gguf_writer_init(&w, 1 << 26);
        test_fail_alloc(n);
        int rc = fo_hf_tokenizer(path, &w, &e);
        failed = test_alloc_failed();
        bool right = !failed ? !rc : in_parser ? !rc || rc == FO_ENOMEM || rc == FO_EFORMAT : rc == FO_ENOMEM;
        if (!right || (rc != 0) != (w.n_kv == 0)) fail_msg("%s: allocation %ld: %d %s", folder, n, rc, e.msg);
        fo_gguf_writer_done(&w);
    }
}

static void survives_running_out_of_memory_at_any_point(void **state) {
    (void)state;
    run_out("bpe352-qwen2", false);
    run_out("spm352", false);
    json_set_alloc_funcs(malloc, free); /* the parser's too */
    run_out("bpe352-qwen2", true);
    run_out("spm352", true);
}

/* The fuzzer's inputs: tokenizer.json, tokenizer_config.json, config.json and a text, a NUL byte between them. */
static void takes_or_refuses_every_input_of_the_fuzzer(void **state) {
    (void)state;
    static const char folder[] = "tests/cases/hf_tokenizer";
    DIR *d = opendir(folder);
    unsigned n = 0, n_taken = 0;
    assert_non_null(d);
    for (struct dirent *entry; (entry = readdir(d));) {
        char path[512];
        struct fo_buf file;
        struct fo_str part[4] = { { NULL, 0 } };
        struct made m;
        struct fo_err e;
        if (entry->d_name[0] == '.') continue;
        snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
        assert_true(test_file_load(path, &file));
        const char *from = file.data, *end = file.data + file.len;
        for (size_t i = 0; i < 4 && from < end; i++) {
            const char *nul = memchr(from, 0, (size_t)(end - from));
            part[i] = (struct fo_str){ from, (size_t)((nul ? nul : end) - from) };
            from = nul ? nul + 1 : end;
        }
        struct fo_hf_files f = { .tokenizer = part[0], .tokenizer_config = part[1], .config = part[2] };
        int rc = make(&f, &m, &e);
        if (!rc) ids_of(&m, "the <s> ab\n\n  [T] e\xCC\x81 123", FO_TOK_SPECIAL | FO_TOK_ADD);
        n++;
        n_taken += rc == 0;
        made_done(&m);
        fo_buf_done(&file);
    }
    closedir(d);
    assert_true(n_taken >= 9 && n >= n_taken);
}

int main(void) {
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_merges_as_texts_and_as_pairs),
        cmocka_unit_test(a_word_that_is_a_token_is_taken_whole_where_merges_are_ignored),
        cmocka_unit_test(fills_gaps_and_the_embeddings_padding_with_unused_tokens),
        cmocka_unit_test(every_end_that_a_file_names_ends_a_generation),
        cmocka_unit_test(bos_and_eos_come_from_the_post_processor_unless_the_config_says_otherwise),
        cmocka_unit_test(added_tokens_swallow_white_space_as_their_flags_say),
        cmocka_unit_test(text_is_normalised_where_the_file_says_so),
        cmocka_unit_test(takes_the_chat_template_from_the_first_place_that_has_one),
        cmocka_unit_test(knows_published_pre_tokenizers_by_name_and_compiles_others),
        cmocka_unit_test(refuses_by_name_what_it_cannot_serve),
        cmocka_unit_test(refuses_what_is_broken_or_too_much),
        cmocka_unit_test(takes_or_refuses_every_input_of_the_fuzzer),
        cmocka_unit_test(survives_a_file_cut_anywhere),
        cmocka_unit_test(survives_running_out_of_memory_at_any_point),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
