/* Pre-tokenizer rules: see tok_pre.h. The expressions are those of the models' own tokenizer.json files, in the passes and under
 * the names that GGUF converters write.
 *
 * A rule is up to eight passes. Each pass cuts the pieces of the pass before: every match becomes a piece, and so does what lies
 * between matches. Look-ahead ends at the piece. A pass is linear when its expression never reads far and then gives up; the one
 * that would (spaces up to the end of the text) says in `skip` what to pass over when it has. */
#include "foundry/tok_pre.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "foundry/base/err.h"
#include "foundry/tok_int.h"
#include "foundry/tok_re.h"

enum { MAX_PASSES = FO_PRE_MAX_PASSES };

struct pass {
    const char *re;
    const char *skip; /* text to leave uncut where `re` does not match; NULL = one character */
    bool one_line;    /* pieces with a line break stay whole */
};

enum rule {
    R_DEFAULT, R_GPT2, R_SMOLLM, R_LLAMA3, R_MINICPM5, R_QWEN2, R_QWEN35, R_TEKKEN, R_GPT4O, R_DEEPSEEK_LLM,
    R_DEEPSEEK_CODER, R_DEEPSEEK_V3, R_SPARK, R_YOUTU, R_FALCON, R_JAIS2, R_BLOOM, R_VIKING, R_CHAMELEON, R_BAILING, R_SEED_CODER,
    R_UFAKZEKA, R_LAGUNA, R_EXAONE_MOE, N_RULES
};

#define SPACES "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define GPT2 "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"
#define SHORT_FORMS "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define WORD "[^\\r\\n\\p{L}\\p{N}]?\\p{L}+"
#define SIGNS " ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*"
#define QWEN2 SHORT_FORMS "|" WORD "|\\p{N}|" SIGNS "|" SPACES
/* Words of camel case: capitals, then small letters, either part possibly absent. */
#define CAMEL(upper, lower, tail)                                                                                          \
    "[^\\r\\n\\p{L}\\p{N}]?[" upper "]*[" lower "]+" tail "|[^\\r\\n\\p{L}\\p{N}]?[" upper "]+[" lower "]*" tail
#define UPPER "\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}"
#define LOWER "\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}"
#define SIGNS_SLASH " ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*"
#define CJK_KANA "[\u4E00-\u9FA5\u3040-\u309F\u30A0-\u30FF]+"
#define DEEPSEEK3(signs, spaces)                                                                                           \
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+" signs "|" spaces
#define CJK_HANGUL "[\u4E00-\u9FA5\u0800-\u4E00\uAC00-\uD7FF]+"
#define DEEPSEEK_LETTERS \
    "A-Za-z\u00B5\u00C0-\u00D6\u00D8-\u00F6\u00F8-\u01BA\u01BC-\u01BF\u01C4-\u0293\u0295-\u02AF\u0370-\u0373\u0376" \
    "\u0377\u037B-\u037D\u037F\u0386\u0388-\u038A\u038C\u038E-\u03A1\u03A3-\u03F5\u03F7-\u0481\u048A-\u052F\u0531-\u0556" \
    "\u10A0-\u10C5\u13A0-\u13F5\u13F8-\u13FD\u1C90-\u1CBA\u1CBD-\u1CBF\u1D00-\u1D2B\u1D6B-\u1D77\u1D79-\u1D9A\u1E00-\u1F15" \
    "\u1F18-\u1F1D\u1F20-\u1F45\u1F48-\u1F4D\u1F50-\u1F57\u1F59\u1F5B\u1F5D\u1F5F-\u1F7D\u1F80-\u1FB4\u1FB6-\u1FBC" \
    "\u1FBE\u1FC2-\u1FC4\u1FC6-\u1FCC\u1FD0-\u1FD3\u1FD6-\u1FDB\u1FE0-\u1FEC\u1FF2-\u1FF4\u1FF6-\u1FFC\u2102\u2107" \
    "\u210A-\u2113\u2115\u2119-\u211D\u2124\u2126\u2128\u212A-\u212D\u212F-\u2134\u2139\u213C-\u213F\u2145-\u2149" \
    "\u214E\u2183\u2184\u2C00-\u2C7B\u2C7E-\u2CE4\u2CEB-\u2CEE\u2CF2\u2CF3\uA640-\uA66D\uA680-\uA69B\uA722-\uA76F" \
    "\uA771-\uA787\uA78B-\uA78E\uAB70-\uABBF\uFB00-\uFB06\uFB13-\uFB17\uFF21-\uFF3A\uFF41-\uFF5A\U00010400-\U0001044F" \
    "\U000104B0-\U000104D3\U000104D8-\U000104FB\U00010C80-\U00010CB2\U00010CC0-\U00010CF2\U000118A0-\U000118DF\U0001E900-\U0001E943"
#define NOT_PUNCTUATION " ?[^(\\s|.,!?\u2026\u3002\uFF0C\u3001\u0964\u06D4\u060C)]+"

static const struct pass rules[N_RULES][MAX_PASSES] = {
    [R_DEFAULT] = { { .re = "[\\p{P}\\$\\+<=>\\^~\\|]+" }, { .re = GPT2 }, { .re = "\\p{N}+" }, { .re = "[0-9][0-9][0-9]" } },
    [R_GPT2] = { { .re = GPT2 } },
    [R_SMOLLM] = { { .re = "\\p{N}" }, { .re = GPT2 } },
    [R_LLAMA3] = { { .re = SHORT_FORMS "|" WORD "|\\p{N}{1,3}|" SIGNS "|" SPACES } },
    [R_MINICPM5] = { { .re = "\\p{N}{1,3}" }, { .re = SHORT_FORMS "|" WORD "|\\p{N}+|" SIGNS "|" SPACES } },
    [R_QWEN2] = { { .re = QWEN2 } },
    [R_QWEN35] = { { .re = SHORT_FORMS "|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}| ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|" SPACES } },
    [R_TEKKEN] = { { .re = CAMEL(UPPER, LOWER, "") "|\\p{N}|" SIGNS_SLASH "|" SPACES } },
    [R_GPT4O] = { { .re = CAMEL(UPPER, LOWER, SHORT_FORMS "?") "|\\p{N}{1,3}|" SIGNS_SLASH "|" SPACES } },
    [R_DEEPSEEK_LLM] = { { .re = "[\\r\\n]" },
                         { .re = "\\s?[" DEEPSEEK_LETTERS "]+" },
                         { .re = "\\s?[!-/:-~\uFF01-\uFF0F\uFF1A-\uFF5E\u2018-\u201F\u3000-\u3002]+" },
                         { .re = "\\s+$", .skip = "\\s+" },
                         { .re = CJK_HANGUL },
                         { .re = "\\p{N}+" } },
    [R_DEEPSEEK_CODER] = { { .re = "[\\r\\n]" }, { .re = "\\s?\\p{L}+" }, { .re = "\\s?\\p{P}+" }, { .re = CJK_HANGUL }, { .re = "\\p{N}" } },
    [R_DEEPSEEK_V3] = { { .re = "\\p{N}{1,3}" }, { .re = CJK_KANA }, { .re = DEEPSEEK3("[\\r\\n]*", SPACES) } },
    [R_SPARK] = { { .re = "\\p{N}{1,3}" }, { .re = CJK_KANA }, { .re = DEEPSEEK3("", "[\\r\\n]|\\s+(?!\\S)|\\s+") }, { .re = "\\p{N}" } },
    [R_YOUTU] = { { .re = "[\uAC00-\uD7A3\u3131-\u318E]+|[\uFF01\u2026\u201C\u201D\u2018\u2019\u2014\uFF1A\uFF1B\uFF0C\u3001-\u303F\uFE30-\uFE4F]+|[\u3105-\u312F]+|" CJK_KANA },
                  { .re = CAMEL(UPPER, LOWER, SHORT_FORMS "?") "|\\p{N}|" SIGNS_SLASH "|" SPACES } },
    [R_FALCON] = { { .re = "[\\p{P}\\$\\+<=>\\^~\\|`]+" }, { .re = GPT2 }, { .re = "[0-9][0-9][0-9]" } },
    /* In one expression the runs of spaces would be read to their end for a line break, again for every 512 spaces. */
    [R_JAIS2] = { { .re = SHORT_FORMS "|" WORD "|\\p{N}{1,3}|" SIGNS "|" SPACES },
                  { .re = "\\s?\\S+|\\s{512}|\\s{256}|\\s{128}|\\s{64}|\\s{32}|\\s{16}|\\s{8}|\\s{4}|\\s{1,2}", .one_line = true } },
    [R_BLOOM] = { { .re = NOT_PUNCTUATION } },
    [R_VIKING] = { { .re = NOT_PUNCTUATION }, { .re = "\\p{N}" } },
    [R_CHAMELEON] = { { .re = "<sentinel:[0-9]+>" },
                      { .re = "IMGIMG[A-I]{1,4}Z" },
                      { .re = "[\\t\\n]|    |  " },
                      { .re = "\\p{N}" },
                      { .re = "[\\p{P}!-/:-@\\[-`{-~]" },
                      { .re = GPT2 } },
    [R_BAILING] = { { .re = "'(?i:s|d|m|t|ll|ve|re)|" WORD "|\\p{N}|" SIGNS "|\\s*[\\r\\n]|\\s+(?!\\S)|\\s+" } },
    [R_SEED_CODER] = { { .re = SHORT_FORMS "|" WORD "|\\p{N}| ?[^\\s\\p{L}\\p{N}\\r\\n]+|" SPACES } },
    [R_UFAKZEKA] = { { .re = WORD "|\\p{N}|" SIGNS "|" SPACES } },
    [R_LAGUNA] = { { .re = "[^\\n]+|[\\n]+" }, { .re = QWEN2 } },
    [R_EXAONE_MOE] = { { .re = SHORT_FORMS "|[^\\r\\n\\p{L}\\p{N}]?(?:\\p{L}\\p{M}*(?: \\p{L}\\p{M}*)*)+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]?|"
                         "\\s*[\\r\\n]|\\s+(?!\\S)|\\s+" } },
};

enum { WHOLE = FO_PRE_WHOLE_WORDS, BOS = FO_PRE_ADD_BOS };

static const struct row {
    const char *name;
    enum rule rule;
    unsigned flags;
} rows[] = {
    { "default", R_DEFAULT, 0 },
    { "gpt-2", R_GPT2, 0 },
    { "phi-2", R_GPT2, 0 },
    { "jina-es", R_GPT2, 0 },
    { "jina-de", R_GPT2, 0 },
    { "jina-v2-es", R_GPT2, 0 },
    { "jina-v2-de", R_GPT2, 0 },
    { "gigachat", R_GPT2, 0 },
    { "a.x-4.0", R_GPT2, 0 },
    { "mellum", R_GPT2, 0 },
    { "modern-bert", R_GPT2, 0 },
    { "mpt", R_GPT2, 0 },
    { "olmo", R_GPT2, 0 },
    { "jais", R_GPT2, 0 },
    { "trillion", R_GPT2, 0 },
    { "granite-docling", R_GPT2, 0 },
    { "exaone4", R_GPT2, 0 },
    { "smollm", R_SMOLLM, 0 },
    { "starcoder", R_SMOLLM, 0 },
    { "refact", R_SMOLLM, 0 },
    { "command-r", R_SMOLLM, 0 },
    { "codeshell", R_SMOLLM, 0 },
    { "exaone", R_SMOLLM, 0 },
    { "minerva-7b", R_SMOLLM, 0 },
    { "mellum2", R_SMOLLM, 0 },
    { "llama-bpe", R_LLAMA3, WHOLE | BOS },
    { "llama3", R_LLAMA3, WHOLE | BOS },
    { "llama-v3", R_LLAMA3, WHOLE | BOS },
    { "falcon3", R_LLAMA3, WHOLE | BOS },
    { "falcon-h1", R_LLAMA3, WHOLE | BOS },
    { "pixtral", R_LLAMA3, WHOLE | BOS },
    { "midm-2.0", R_LLAMA3, WHOLE | BOS },
    { "lfm2", R_LLAMA3, WHOLE | BOS },
    { "jina-v5-nano", R_LLAMA3, WHOLE | BOS },
    { "dbrx", R_LLAMA3, 0 },
    { "smaug-bpe", R_LLAMA3, 0 },
    { "glm4", R_LLAMA3, 0 },
    { "chatglm-bpe", R_LLAMA3, 0 },
    { "minicpm5", R_MINICPM5, WHOLE },
    { "qwen2", R_QWEN2, 0 },
    { "deepseek-r1-qwen", R_QWEN2, 0 },
    { "kormo", R_QWEN2, 0 },
    { "f2llmv2", R_QWEN2, 0 },
    { "megrez", R_QWEN2, 0 },
    { "stablelm2", R_QWEN2, 0 },
    { "hunyuan", R_QWEN2, 0 },
    { "solar-open", R_QWEN2, 0 },
    { "grok-2", R_QWEN2, 0 },
    { "qwen35", R_QWEN35, 0 },
    { "tekken", R_TEKKEN, WHOLE | BOS },
    { "gpt-4o", R_GPT4O, 0 },
    { "llama4", R_GPT4O, 0 },
    { "kanana2", R_GPT4O, 0 },
    { "talkie", R_GPT4O, 0 },
    { "minimax-m2", R_GPT4O, 0 },
    { "granite-embed-multi-97m", R_GPT4O, WHOLE },
    { "deepseek-llm", R_DEEPSEEK_LLM, 0 },
    { "deepseek-coder", R_DEEPSEEK_CODER, 0 },
    { "deepseek-v3", R_DEEPSEEK_V3, 0 },
    { "hunyuan-dense", R_DEEPSEEK_V3, 0 },
    { "joyai-llm", R_DEEPSEEK_V3, 0 },
    { "hy_v4", R_DEEPSEEK_V3, 0 },
    { "spark2_5", R_SPARK, 0 },
    { "youtu", R_YOUTU, WHOLE },
    { "falcon", R_FALCON, 0 },
    { "jais-2", R_JAIS2, 0 },
    { "bloom", R_BLOOM, 0 },
    { "poro-chat", R_BLOOM, 0 },
    { "gpt3-finnish", R_BLOOM, 0 },
    { "viking", R_VIKING, 0 },
    { "chameleon", R_CHAMELEON, BOS },
    { "bailingmoe", R_BAILING, 0 },
    { "bailingmoe2", R_BAILING, 0 },
    { "llada-moe", R_BAILING, 0 },
    { "seed-coder", R_SEED_CODER, 0 },
    { "ufakzeka", R_UFAKZEKA, 0 },
    { "laguna", R_LAGUNA, 0 },
    { "exaone-moe", R_EXAONE_MOE, 0 },
};
enum { N_ROWS = sizeof rows / sizeof rows[0] };

struct fo_pre {
    struct {
        struct fo_re *re;
        bool one_line, drop;
    } pass[MAX_PASSES];
    int n_passes;
    bool foreign; /* not a row of the table: how often it reads a text is not known */
};

const char *fo_pre_name(size_t i) {
    return i < N_ROWS ? rows[i].name : NULL;
}

int fo_pre_open(const char *name, size_t len, struct fo_pre **ret, unsigned *ret_flags, struct fo_err *e) {
    size_t at = 0;
    while (at < N_ROWS && (strlen(rows[at].name) != len || memcmp(rows[at].name, name, len))) at++;
    if (at == N_ROWS) {
        return fo_fail(e, FO_EUNSUPPORTED, "the pre-tokenizer '%.*s' (tokenizer.ggml.pre) is not known", len < 64 ? (int)len : 64, name);
    }
    struct fo_pre *p = calloc(1, sizeof *p);
    if (!p) return fo_fail(e, FO_ENOMEM, "no memory for a pre-tokenizer");
    const struct pass *pass = rules[rows[at].rule];
    while (p->n_passes < MAX_PASSES && pass[p->n_passes].re) {
        p->pass[p->n_passes].one_line = pass[p->n_passes].one_line;
        int rc = fo_re_compile(pass[p->n_passes].re, pass[p->n_passes].skip, &p->pass[p->n_passes].re, e);
        if (rc) {
            fo_wrap(e, "pre-tokenizer '%s', pass %d", rows[at].name, p->n_passes + 1);
            fo_pre_free(p);
            return rc;
        }
        p->n_passes++;
    }
    *ret = p;
    *ret_flags = rows[at].flags;
    return 0;
}

/* What a rule of the table says may be passed over where this expression does not match. */
static const char *skip_of(const char *re) {
    for (int rule = 0; rule < N_RULES; rule++) {
        for (int i = 0; i < MAX_PASSES && rules[rule][i].re; i++) {
            if (rules[rule][i].skip && !strcmp(rules[rule][i].re, re)) return rules[rule][i].skip;
        }
    }
    return NULL;
}

int fo_pre_open_passes(const struct fo_pre_pass *pass, size_t n, struct fo_pre **ret, struct fo_err *e) {
    if (n > MAX_PASSES) return fo_fail_need(e, FO_EUNSUPPORTED, n, MAX_PASSES, "a pre-tokenizer has %zu passes", n);
    struct fo_pre *p = calloc(1, sizeof *p);
    if (!p) return fo_fail(e, FO_ENOMEM, "no memory for a pre-tokenizer");
    p->foreign = true;
    for (size_t i = 0; i < n; i++) {
        char *re = strndup(pass[i].re, pass[i].len);
        int rc = !re ? fo_fail(e, FO_ENOMEM, "no memory for a pre-tokenizer") : 0;
        if (!rc) rc = fo_re_compile(re, skip_of(re), &p->pass[i].re, e);
        free(re);
        if (rc) {
            fo_wrap(e, "pre-tokenizer expression '%.*s'", pass[i].len < 200 ? (int)pass[i].len : 200, pass[i].re);
            fo_pre_free(p);
            return rc;
        }
        p->n_passes++;
        p->pass[i].drop = pass[i].flags & FO_PASS_DROP;
        if (pass[i].flags & FO_PASS_BYTES) fo_re_map_bytes(p->pass[i].re, fo_tok_byte_char);
    }
    *ret = p;
    return 0;
}

const char *fo_pre_recognise(const struct fo_pre_pass *pass, size_t n, bool whole_words) {
    for (size_t at = 0; at < N_ROWS; at++) {
        const struct pass *row = rules[rows[at].rule];
        size_t i = 0;
        while (i < MAX_PASSES && i < n && row[i].re && !pass[i].flags && strlen(row[i].re) == pass[i].len &&
               !memcmp(row[i].re, pass[i].re, pass[i].len)) {
            i++;
        }
        if (i && i == n && (i == MAX_PASSES || !row[i].re) && whole_words == ((rows[at].flags & FO_PRE_WHOLE_WORDS) != 0)) return rows[at].name;
    }
    return NULL;
}

void fo_pre_free(struct fo_pre *p) {
    if (!p) return;
    for (int i = 0; i < MAX_PASSES; i++) fo_re_free(p->pass[i].re);
    free(p);
}

size_t fo_pre_bytes(const struct fo_pre *p) {
    size_t n = p ? sizeof *p : 0;
    for (int i = 0; p && i < p->n_passes; i++) n += fo_re_bytes(p->pass[i].re);
    return n;
}

struct split {
    const struct fo_pre *p;
    int (*word)(void *ctx, const char *s, size_t n);
    void *ctx;
    size_t read, most; /* bytes looked at; more than `most` are too many */
};

static int split_pass(struct split *sp, int pass, const char *s, size_t n) {
    if (pass == sp->p->n_passes) return sp->word(sp->ctx, s, n);
    if (sp->p->pass[pass].one_line && (memchr(s, '\n', n) || memchr(s, '\r', n))) return split_pass(sp, pass + 1, s, n);
    size_t from = 0, at = 0; /* s[from..at) is unmatched so far */
    int rc = 0;
    while (at < n && !rc) {
        size_t skip, read;
        size_t match = fo_re_match(sp->p->pass[pass].re, s + at, n - at, &skip, &read);
        sp->read += read;
        if (sp->read > sp->most) return FO_ELIMIT;
        if (!match) {
            at += skip;
            continue;
        }
        if (from < at && !sp->p->pass[pass].drop) rc = split_pass(sp, pass + 1, s + from, at - from);
        if (!rc) rc = split_pass(sp, pass + 1, s + at, match);
        at += match;
        from = at;
    }
    return rc || from == n || sp->p->pass[pass].drop ? rc : split_pass(sp, pass + 1, s + from, n - from);
}

int fo_pre_split(const struct fo_pre *p, const char *s, size_t n, int (*word)(void *ctx, const char *s, size_t n), void *ctx,
                 size_t *ret_read) {
    struct split sp = { .p = p, .word = word, .ctx = ctx, .most = p->foreign ? 65536 + 64 * n : SIZE_MAX };
    int rc = n ? split_pass(&sp, 0, s, n) : 0;
    if (ret_read) *ret_read = sp.read;
    return rc;
}
