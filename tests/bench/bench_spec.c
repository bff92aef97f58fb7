/* What drafts do for answers: a line for each kind of prompt, with speculation off and auto, the runs taking turns.
 *
 *     bench_spec FILE.gguf [RUNS [THREADS]]      a chat model with ChatML's marks; 5 runs each, on one thread unless told
 *
 * Tokens per second of decoding (the median run's), CPU milliseconds per token of answer (the least of all runs, prefill left out by what a
 * run for one token takes), their ratios, tokens drafted per token of answer, and how many of these were right. Texts are compared. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "engine/engine.h"
#include "foundry/base/buf.h"
#include "foundry/base/err.h"
#include "foundry/device.h"
#include "foundry/tok.h"

enum { MAX_RUNS = 101, MAX_TOKENS = 400 };

static const char code[] =
    "import sys\n\n\nclass Stack:\n    def __init__(self):\n        self.items = []\n\n    def push(self, item):\n        self.items.append(item)\n\n"
    "    def pop(self):\n        if len(self.items) == 0:\n            raise IndexError(\"pop from an empty stack\")\n        return self.items.pop()\n\n"
    "    def peek(self):\n        if len(self.items) == 0:\n            return None\n        return self.items[-1]\n\n"
    "    def is_empty(self):\n        return len(self.items) == 0\n\n    def size(self):\n        return len(self.items)\n\n\n"
    "def main():\n    stack = Stack()\n    for line in sys.stdin:\n        stack.push(line.strip())\n    while not stack.is_empty():\n        print(stack.pop())\n\n\n"
    "if __name__ == \"__main__\":\n    main()\n";
static const char people[] =
    "[{\"name\": \"Ada Lovelace\", \"born\": 1815, \"city\": \"London\", \"field\": \"mathematics\"}, {\"name\": \"Emmy Noether\", \"born\": 1882, \"city\": "
    "\"Erlangen\", \"field\": \"algebra\"}, {\"name\": \"Alan Turing\", \"born\": 1912, \"city\": \"London\", \"field\": \"logic\"}, {\"name\": \"Grace Hopper\", "
    "\"born\": 1906, \"city\": \"New York\", \"field\": \"computing\"}]";

#define RENAME "Repeat this Python file, but rename the class Stack to Pile:\n\n```python\n"
static const struct {
    const char *name, *ask, *text, *after;
    float temperature;
    uint32_t max_tokens;
} kinds[] = {
    { "code editing", RENAME, code, "```", 0, 250 },
    { "code, sampled", RENAME, code, "```", 0.7F, 250 },
    { "JSON echo", "Here is some JSON:\n", people, "\nWrite the same JSON again, sorted by the field born.", 0, 180 },
    { "JSON extraction", "Write a JSON list with name and city of each of these people:\n", people, "", 0, 180 },
    { "chat", "Why is the sky blue? Explain it to a child.", "", "", 0, 250 },
    { "chat, sampled", "Tell me a story about a lighthouse keeper and her cat.", "", "", 0.8F, 250 },
    { "prose, hot", "Write about something unusual in many different words.", "", "", 1.4F, 250 },
};

static double cpu_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

static int by_size(const void *x, const void *y) {
    double a = *(const double *)x, b = *(const double *)y;
    return a < b ? -1 : a > b;
}

static double median(double *v, int n) {
    qsort(v, (size_t)n, sizeof *v, by_size);
    return v[n / 2];
}

static double least(const double *v, int n) {
    double m = v[0];
    for (int i = 1; i < n; i++) m = v[i] < m ? v[i] : m;
    return m;
}

static _Noreturn void die(const struct fo_err *e) {
    fprintf(stderr, "%s\n", e->msg);
    exit(1);
}

/* One answer's ids, and what it took. */
struct took {
    int32_t ids[MAX_TOKENS];
    uint32_t n;
    struct pn_usage usage;
    double cpu_ms;
};

static void ask(struct pn_served *s, const struct pn_request_opts *o, struct took *t) {
    struct pn_request *r;
    struct pn_budget b;
    struct pn_event ev;
    struct fo_err e;
    double from = cpu_ms();
    t->n = 0;
    if (pn_submit(s, o, &r, &b, &e)) die(&e);
    do {
        pn_request_next(r, 1000, &ev);
        if (ev.kind == PN_EV_ERROR) die(ev.err);
        if (ev.kind == PN_EV_TEXT && ev.token >= 0 && t->n < MAX_TOKENS) t->ids[t->n++] = ev.token;
    } while (ev.kind != PN_EV_DONE);
    t->usage = ev.usage;
    t->cpu_ms = cpu_ms() - from;
    pn_request_release(r);
}

static struct pn_served *serve(struct pn_engine *en, const char *path, struct fo_device *dev, const char *name, enum pn_speculation how) {
    struct fo_err e;
    struct pn_serve_opts o = { .name = name, .model = { .dev = dev, .ctx_cap = 2048, .draft_rows = PN_DRAFT_MAX, .kv_default = true }, .speculation = how };
    if (pn_engine_load(en, path, &o, &e)) die(&e);
    return pn_engine_get(en, name);
}

static void measure(struct pn_served *const s[2], size_t k, int runs) {
    static struct took t[2], one;
    double rate[2][MAX_RUNS], cpu[2][MAX_RUNS], first[2][MAX_RUNS];
    char prompt[4200];
    struct fo_tok_ids ids;
    struct fo_err e;
    snprintf(prompt, sizeof prompt, "<|im_start|>user\n%s%s%s<|im_end|>\n<|im_start|>assistant\n", kinds[k].ask, kinds[k].text, kinds[k].after);
    if (fo_tok_encode(pn_model_tok(pn_served_model(s[0])), prompt, strlen(prompt), NULL, FO_TOK_SPECIAL, 0, &ids, &e)) die(&e);
    struct pn_request_opts o = { .tokens = ids.ids, .n_tokens = (uint32_t)ids.n, .max_tokens = kinds[k].max_tokens, .sampling = pn_sampling_default };
    o.sampling.temperature = kinds[k].temperature;
    o.sampling.seed = 7;
    for (int i = 0; i < runs; i++)
        for (int j = 0; j < 2; j++) {
            int way = (i + j) % 2;
            o.max_tokens = 1;
            ask(s[way], &o, &one);
            o.max_tokens = kinds[k].max_tokens;
            ask(s[way], &o, &t[way]);
            rate[way][i] = (t[way].n - 1) / t[way].usage.decode_ms * 1e3;
            cpu[way][i] = t[way].cpu_ms;
            first[way][i] = one.cpu_ms;
        }
    bool same = t[0].n == t[1].n && memcmp(t[0].ids, t[1].ids, t[0].n * sizeof *t[0].ids) == 0;
    double n = t[0].n - 1, off = median(rate[0], runs), on = median(rate[1], runs);
    double cpu_off = (least(cpu[0], runs) - least(first[0], runs)) / n, cpu_on = (least(cpu[1], runs) - least(first[1], runs)) / n;
    printf("%-16s %4zu + %3u  %7.1f %7.1f  x %4.2f   %6.2f %6.2f  x %4.2f   %5.2f  %3.0f %%  %s\n", kinds[k].name, ids.n, t[0].n, off, on, on / off, cpu_off, cpu_on,
           cpu_off / cpu_on, t[1].usage.drafted / n, t[1].usage.drafted ? 100.0 * t[1].usage.accepted / t[1].usage.drafted : 0, same ? "same" : "DIFFERENT");
    fflush(stdout);
    free(ids.ids);
}

int main(int argc, char **argv) {
    struct fo_device *dev;
    struct pn_engine *en;
    struct fo_err e;
    int runs = argc > 2 ? atoi(argv[2]) : 5;
    struct fo_device_opts d = { .n_threads = argc > 3 ? atoi(argv[3]) : 1 };
    if (argc < 2 || runs < 1 || runs > MAX_RUNS) return fprintf(stderr, "usage: bench_spec FILE.gguf [RUNS [THREADS]]\n"), 1;
    if (fo_device_open("cpu", "", &d, &dev, &e) || pn_engine_new(&en, &e)) die(&e);
    struct pn_served *s[2] = { serve(en, argv[1], dev, "off", PN_SPECULATION_OFF), serve(en, argv[1], dev, "auto", PN_SPECULATION_AUTO) };
    printf("                   tokens    tok/s off    auto           CPU ms off  auto          drafted, right\n");
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) measure(s, k, runs);
    pn_served_put(s[0]);
    pn_served_put(s[1]);
    pn_engine_free(en);
    fo_device_close(dev);
    return 0;
}
