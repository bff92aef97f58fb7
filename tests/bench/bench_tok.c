/* Tokenizer speed: one line per vocabulary and text, in MB of text per second of one CPU, and what opening costs.
 *
 *     bench_tok [FILE.gguf ...]      without files: the vocabularies under tests/data/tokenizers
 *
 * For comparisons (tokenizers_peer.py): TEXTS=DIR in the environment writes the texts to DIR/NAME.txt; IDS_OF=FILE prints the ids of that
 * text and measures nothing.
 *
 * The texts: the licence (English), the tokenizer's own source (code), words strung together at random without spaces (Chinese;
 * each run of characters is new, as in real text), and hostile ones that are a single word. */
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "foundry/base/buf.h"
#include "foundry/base/err.h"
#include "foundry/base/rng.h"
#include "foundry/tok.h"
#include "tests/support/tok_vocab.h"

enum { SIZE = 1 << 20, LONG_SIZE = 10 << 20, ROUNDS = 5 };
#define COUNT(a) (sizeof(a) / sizeof(a)[0])

struct text {
    const char *name;
    int rounds;
    struct fo_buf b;
};

static double now_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void fill_files(struct fo_buf *out, const char *const *paths, size_t n_paths) {
    struct fo_buf file;
    for (size_t before = 1; out->len < SIZE && out->len != before;) {
        before = out->len;
        for (size_t i = 0; i < n_paths; i++) {
            if (test_file_load(paths[i], &file)) fo_buf_append(out, file.data, file.len);
            fo_buf_done(&file);
        }
    }
}

static void fill_chinese(struct fo_buf *out) {
    static const char *const words[] = {
        "我们", "今天", "时间", "问题", "世界", "国家", "学习", "工作", "语言", "模型", "计算", "机器", "城市", "天气", "朋友", "孩子",
        "老师", "历史", "文化", "经济", "发展", "研究", "科学", "技术", "生活", "社会", "可以", "没有", "因为", "所以", "但是", "如果",
        "已经", "非常", "重要", "需要", "认为", "开始", "继续", "以及", "的",   "是",   "在",   "和",   "了",   "不",   "也",   "都",
    };
    struct fo_rng r;
    fo_rng_seed(&r, 1);
    while (out->len < SIZE) {
        for (uint64_t n = 5 + fo_rng_u64(&r) % 15; n > 0; n--) fo_buf_puts(out, words[fo_rng_u64(&r) % COUNT(words)]);
        fo_buf_puts(out, fo_rng_u64(&r) % 3 ? "，" : "。\n");
    }
}

static void fill_repeat(struct fo_buf *out, const char *s) {
    while (out->len < LONG_SIZE) fo_buf_puts(out, s);
}

static void bench_text(const char *name, const struct fo_tok *t, const struct text *x) {
    struct fo_err e;
    struct fo_tok_ids ids = { 0 };
    double best = 1e9;
    for (int i = 0; i < x->rounds; i++) {
        free(ids.ids);
        double start = now_s();
        if (fo_tok_encode(t, x->b.data, x->b.len, NULL, FO_TOK_SPECIAL, 0, &ids, &e)) {
            printf("tok %s %s: %s\n", name, x->name, e.msg);
            return;
        }
        double s = now_s() - start;
        if (s < best) best = s;
    }
    printf("tok %-26s %-8s %8.2f MB/s %9zu bytes %9zu tokens\n", name, x->name, (double)x->b.len / best / 1e6, x->b.len, ids.n);
    free(ids.ids);
}

static void print_ids(const struct fo_tok *t, const char *path) {
    struct fo_buf text;
    struct fo_tok_ids ids = { 0 };
    struct fo_err e;
    if (test_file_load(path, &text) && !fo_tok_encode(t, text.data, text.len, NULL, FO_TOK_SPECIAL, 0, &ids, &e)) {
        for (size_t i = 0; i < ids.n; i++) printf("%d ", ids.ids[i]);
    }
    free(ids.ids);
    fo_buf_done(&text);
}

static void write_text(const struct text *x, const char *folder) {
    char path[4096];
    snprintf(path, sizeof path, "%s/%s.txt", folder, x->name);
    FILE *f = fopen(path, "w");
    if (!f || fwrite(x->b.data, 1, x->b.len, f) != x->b.len) printf("%s: cannot be written\n", path);
    if (f) fclose(f);
}

static void bench_vocab(const char *name, const struct fo_buf *file, const struct text *texts, size_t n_texts) {
    struct fo_err e;
    struct fo_gguf *g = NULL;
    struct fo_tok *t = NULL;
    if (fo_gguf_parse(file->data, file->len, name, &g, &e)) {
        printf("tok %s: %s\n", name, e.msg);
        return;
    }
    struct mallinfo2 before = mallinfo2();
    double start = now_s();
    int rc = fo_tok_open(g, &t, &e);
    double open_ms = (now_s() - start) * 1e3;
    struct mallinfo2 after = mallinfo2();
    size_t heap = after.uordblks + after.hblkhd - before.uordblks - before.hblkhd;
    if (!rc && getenv("IDS_OF")) {
        print_ids(t, getenv("IDS_OF"));
        n_texts = 0;
    } else if (rc) printf("tok %s: %s\n", name, e.msg);
    else printf("tok %-26s open     %8.2f ms   %9zu bytes\n", name, open_ms, heap);
    for (size_t i = 0; i < n_texts && !rc; i++) bench_text(name, t, &texts[i]);
    fo_tok_free(t);
    fo_gguf_close(g);
}

int main(int argc, char **argv) {
    static const char *const english[] = { "LICENSE" };
    static const char *const code[] = { "foundry/tok.c", "foundry/tok_re.c", "foundry/tok_bpe.c", "foundry/gguf.c" };
    static const char *const committed[] = { "smollm2-real", "bpe352-llama-bpe", "spm768" };
    struct text texts[] = { { .name = "english", .rounds = ROUNDS }, { .name = "code", .rounds = ROUNDS }, { .name = "chinese", .rounds = ROUNDS },
                            { .name = "letters", .rounds = 1 },      { .name = "spaces", .rounds = 1 },    { .name = "marks", .rounds = 1 } };
    for (size_t i = 0; i < COUNT(texts); i++) fo_buf_init(&texts[i].b, (size_t)1 << 28);
    fill_files(&texts[0].b, english, COUNT(english));
    fill_files(&texts[1].b, code, COUNT(code));
    fill_chinese(&texts[2].b);
    fill_repeat(&texts[3].b, "a");
    fill_repeat(&texts[4].b, " ");
    fill_repeat(&texts[5].b, "\xCC\x81");
    for (size_t i = 0; i < COUNT(texts) && getenv("TEXTS"); i++) write_text(&texts[i], getenv("TEXTS"));
    size_t n = argc > 1 ? (size_t)argc - 1 : COUNT(committed);
    for (size_t i = 0; i < n; i++) {
        char folder[256];
        struct fo_buf file;
        const char *name = argc > 1 ? argv[i + 1] : committed[i];
        snprintf(folder, sizeof folder, "tests/data/tokenizers/%s", name);
        bool ok = argc > 1 ? test_file_load(name, &file) : test_vocab_load(folder, &file);
        if (ok) bench_vocab(strrchr(name, '/') ? strrchr(name, '/') + 1 : name, &file, texts, COUNT(texts));
        else printf("tok %s: cannot be read\n", name);
        fo_buf_done(&file);
    }
    for (size_t i = 0; i < COUNT(texts); i++) fo_buf_done(&texts[i].b);
    return 0;
}
