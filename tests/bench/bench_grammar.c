/* What holding an answer to a grammar costs: one line per grammar, over the tokens of a text of that grammar.
 *
 *     bench_grammar [FILE.gguf]      without a file: the vocabulary under tests/data/tokenizers/smollm2-real
 *
 * compile: text to automaton. memory: of its code, then of masks and states behind the last token. Per token, in microseconds of CPU: mask
 * (finding it and putting it over the logits) and accept; `cold` is the first answer of a grammar, whose masks are found by walks, `warm` the
 * fifth. For comparison: a step of decoding SmolLM2-135M takes 4,000 to 7,000 microseconds on two cores. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "engine/grammar/grammar.h"
#include "engine/grammar/pieces.h"
#include "foundry/base/buf.h"
#include "foundry/base/err.h"
#include "foundry/tok.h"
#include "tests/support/tok_vocab.h"

enum { MAX_TOKENS = 100000 };

static const char records[] =
    "root ::= \"[\" record ( \",\" record )* \"]\"\n"
    "record ::= \"{\\\"name\\\": \" string \", \\\"age\\\": \" int \", \\\"tags\\\": [\" ( string ( \", \" string )* )? \"]}\"\n"
    "string ::= \"\\\"\" ( [^\"\\\\\\x00-\\x1f] | \"\\\\\" [\"\\\\/bfnrt] ){0,1000} \"\\\"\"\n"
    "int ::= \"0\" | [1-9] [0-9]{0,9}\n";
static const char sums[] = "root ::= expr \"\\n\"\nexpr ::= term ( [-+] term )*\nterm ::= factor ( [*/] factor )*\nfactor ::= [0-9]{1,12} | \"(\" expr \")\"\n";

static double now_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

static int by_size(const void *x, const void *y) {
    double a = *(const double *)x, b = *(const double *)y;
    return a < b ? -1 : a > b;
}

static _Noreturn void die(const struct fo_err *e) {
    fprintf(stderr, "%s\n", e->msg);
    exit(1);
}

/* One answer; cost of each mask in us. Returns how many tokens, and the accept's sum. */
static size_t answer(struct pn_grammar *g, const struct fo_tok_ids *ids, float *logits, uint32_t n_vocab, double *us, double *ret_accept) {
    struct pn_grammar_run *r;
    struct fo_err e;
    bool over = false;
    size_t n = 0;
    if (pn_grammar_run_new(g, &r, &e)) die(&e);
    for (; n < ids->n && n < MAX_TOKENS && !over; n++) {
        for (uint32_t i = 0; i < n_vocab; i++) logits[i] = 0;
        double from = now_us();
        if (pn_grammar_run_mask(r, false, logits, n_vocab, &over, &e)) die(&e);
        us[n] = now_us() - from;
        if (!(logits[ids->ids[n]] == 0)) {
            fprintf(stderr, "token %zu of the text is not allowed\n", n);
            exit(1);
        }
        from = now_us();
        if (pn_grammar_run_accept(r, ids->ids[n], &over, &e)) die(&e);
        *ret_accept += now_us() - from;
    }
    pn_grammar_run_free(r);
    return n;
}

static void measure(struct pn_grammars *all, const struct fo_tok *tok, const char *name, enum pn_grammar_kind kind, const struct fo_buf *pieces, const char *grammar, const char *text) {
    size_t n_grammar = pieces ? pieces->len : strlen(grammar);
    static double us[MAX_TOKENS];
    struct fo_tok_ids ids;
    struct pn_grammar *g;
    struct pn_grammar_info info;
    struct fo_err e;
    uint32_t n_vocab = (uint32_t)fo_tok_n_vocab(tok);
    float *logits = malloc(n_vocab * sizeof *logits);
    if (!logits) exit(1);
    if (fo_tok_encode(tok, text, strlen(text), NULL, 0, 0, &ids, &e) || pn_grammars_get(all, kind, pieces ? pieces->data : grammar, n_grammar, &g, &e)) die(&e);
    pn_grammar_info(g, &info);
    printf("%-16s %6.2f ms compile, %4zu KiB code;", name, info.compile_ms, info.program_bytes >> 10);
    for (int round = 0; round < 5; round++) {
        double accept = 0;
        size_t n = answer(g, &ids, logits, n_vocab, us, &accept);
        qsort(us, n, sizeof *us, by_size);
        if (round == 0) printf(" %5zu tokens; cold: median %6.1f p90 %6.1f p99 %6.1f max %6.1f us, accept %4.1f;", n, us[n / 2], us[n * 9 / 10], us[n * 99 / 100], us[n - 1], accept / (double)n);
        if (round == 4) printf(" warm: median %5.1f p99 %5.1f us", us[n / 2], us[n * 99 / 100]);
    }
    pn_grammar_info(g, &info);
    printf("; %zu KiB, %llu walks\n", info.masks_bytes >> 10, (unsigned long long)info.mask_walks);
    pn_grammar_put(g);
    free(ids.ids);
    free(logits);
}

/* Objects as people and tools write them. */
static void fill_json(struct fo_buf *b, bool pretty, int n) {
    fo_buf_puts(b, pretty ? "{\n  \"items\": [" : "{\"items\":[");
    for (int i = 0; i < n; i++)
        fo_buf_printf(b, pretty ? "%s\n    {\n      \"id\": %d,\n      \"title\": \"The %dth thing: caf\xc3\xa9 \\\"%d\\\" \xe2\x82\xac\",\n      \"done\": %s,\n      \"price\": %d.%02d,\n      \"nested\": {\n        \"a\": [1, 2, [3, null]],\n        \"text\": \"A somewhat longer sentence, such as models like to write.\"\n      }\n    }"
                                : "%s{\"id\":%d,\"title\":\"The %dth thing: caf\xc3\xa9 \\\"%d\\\" \xe2\x82\xac\",\"done\":%s,\"price\":%d.%02d,\"nested\":{\"a\":[1,2,[3,null]],\"text\":\"A somewhat longer sentence, such as models like to write.\"}}",
                      i ? "," : "", i, i, i * 7, i % 2 ? "true" : "false", i * 13, i % 100);
    fo_buf_puts(b, pretty ? "\n  ]\n}" : "]}");
}

int main(int argc, char **argv) {
    struct fo_buf file, text;
    struct fo_gguf *g = NULL;
    struct fo_tok *tok;
    struct pn_grammars *all;
    struct fo_err e;
    if (argc > 1 ? fo_gguf_open(argv[1], &g, &e) : !test_vocab_load("tests/data/tokenizers/smollm2-real", &file) || fo_gguf_parse(file.data, file.len, "vocabulary", &g, &e)) die(&e);
    if (fo_tok_open(g, &tok, &e) || pn_grammars_new(tok, &all, &e)) die(&e);
    double from = now_us();
    struct pn_grammar *first;
    struct pn_grammar_info info;
    if (pn_grammars_get(all, PN_GRAMMAR_GBNF, "root ::= \"a\"", 12, &first, &e)) die(&e);
    pn_grammar_info(first, &info);
    printf("vocabulary of %d: trie of %zu KiB in %.1f ms\n", fo_tok_n_vocab(tok), info.tokens_bytes >> 10, (now_us() - from) / 1e3);
    pn_grammar_put(first);
    fo_buf_init(&text, 64 << 20);
    for (int pretty = 0; pretty < 2; pretty++) {
        fo_buf_clear(&text);
        fill_json(&text, pretty, 40);
        measure(all, tok, pretty ? "json pretty" : "json", PN_GRAMMAR_JSON_OBJECT, NULL, "", fo_buf_str(&text));
    }
    fo_buf_clear(&text);
    for (int i = 0; i < 60; i++)
        fo_buf_printf(&text, "%s{\"name\": \"Person Number %d of all\", \"age\": %d, \"tags\": [\"x\", \"tall and handsome %d\"]}", i ? "," : "[", i, i, i);
    fo_buf_puts(&text, "]");
    measure(all, tok, "records", PN_GRAMMAR_GBNF, NULL, records, fo_buf_str(&text));
    fo_buf_clear(&text);
    for (int i = 0; i < 200; i++) fo_buf_printf(&text, "(%d+%d)*", i * 77, i);
    fo_buf_puts(&text, "1\n");
    measure(all, tok, "sums", PN_GRAMMAR_GBNF, NULL, sums, fo_buf_str(&text));
    fo_buf_clear(&text);
    for (int i = 0; i < 4000; i++) fo_buf_printf(&text, "word%d ", i % 91);
    measure(all, tok, "long string", PN_GRAMMAR_GBNF, NULL, "root ::= [^\\n]{0,1000000}", fo_buf_str(&text));
    measure(all, tok, "near its end", PN_GRAMMAR_GBNF, NULL, "root ::= [^\\n]{0,200}", "A text that ends within two hundred characters, so that each of its places has a mask of its own towards the end of it: the counter is exact there, and so are they.");
    measure(all, tok, "regex", PN_GRAMMAR_REGEX, NULL, "(\\d{4}-\\d\\d-\\d\\dT\\d\\d:\\d\\d:\\d\\dZ (INFO|WARN|ERROR) [\\w ]{1,80}\\n)+",
            "2026-11-30T13:37:00Z INFO the server has started\n2026-11-30T13:38:10Z ERROR something went wrong with it\n2026-11-30T13:39:12Z WARN nobody knows what\n");
    struct fo_buf pieces; /* as calls of functions are written: text in tags, ended by the first end tag; and an object of a schema */
    fo_buf_init(&pieces, 1 << 16);
    static const char any_text[] = "{\"type\":\"string\"}", todo[] = "{\"type\":\"object\",\"required\":[\"todos\"],\"properties\":{\"todos\":{\"type\":\"array\",\"items\":{\"type\":\"object\","
                             "\"required\":[\"content\",\"status\"],\"properties\":{\"content\":{\"type\":\"string\",\"minLength\":1},\"status\":{\"enum\":[\"pending\",\"done\"]}}}}}}";
    for (int tags = 0; tags < 2; tags++) {
        fo_buf_clear(&pieces);
        fo_buf_clear(&text);
        pn_piece_document(&pieces, tags ? any_text : todo, tags ? sizeof any_text - 1 : sizeof todo - 1, '\0');
        pn_piece_list(&pieces);
        pn_piece_seq(&pieces, 3);
        static const char in_tags[] = "<parameter=a>\n", in_object[] = "<tool_call>\n{\"name\": \"f\", \"arguments\": ";
        pn_piece_literal(&pieces, tags ? in_tags : in_object, tags ? sizeof in_tags - 1 : sizeof in_object - 1);
        if (tags) {
            pn_piece_schema(&pieces, &(struct pn_piece_schema){ .form = PN_SCHEMA_TEXT, .mark = "</parameter>", .end = "\n</parameter>" });
        } else {
            pn_piece_schema(&pieces, &(struct pn_piece_schema){ .form = PN_SCHEMA_OBJECT });
        }
        pn_piece_literal(&pieces, tags ? "" : "}\n</tool_call>", tags ? 0 : 14);
        pn_piece_literal(&pieces, "\n", 1);
        for (int i = 0; i < 40; i++)
            fo_buf_printf(&text, tags ? "%s<parameter=a>\nint main(void) {\n    if (a < %d) return </b>;\n}\n\n</parameter>"
                                      : "%s<tool_call>\n{\"name\": \"f\", \"arguments\": {\"todos\": [{\"content\": \"Write the %dth thing down\", \"status\": \"pending\"}]}}\n</tool_call>", i ? "\n" : "", i);
        measure(all, tok, tags ? "call in tags" : "call", PN_GRAMMAR_PIECES, &pieces, NULL, fo_buf_str(&text));
    }
    fo_buf_done(&pieces);
    pn_grammars_free(all);
    fo_tok_free(tok);
    fo_gguf_close(g);
    fo_buf_done(&text);
    if (argc < 2) fo_buf_done(&file);
    return 0;
}
