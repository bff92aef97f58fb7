/* `pantheon`: try a model, serve it, look into it, measure it. The tables below are the command line: a subcommand is a row, an
 * option is a row; parsing, bounds, --help and "which command knows this flag" come from them. Without a subcommand it runs a
 * prompt or a chat. */
#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/cli.h"
#include "daemon/std.h"
#include "engine/spec.h"
#include "engine/version.h"
#include "foundry/device.h"

enum {
    RUN = 1, SERVE = 2, INSPECT = 4, BENCH = 8, LOGITS = 16, TOKENIZE = 32, DETOKENIZE = 64, TEMPLATE = 128, QUANTIZE = 256,
    PERPLEXITY = 512, DRIFT = 1024, ROUTER = 2048
};

static const struct command {
    const char *name;
    unsigned bit;
    int (*run)(const struct pd_cli_args *a);
    const char *usage, *help;
    int max_rest;
    void (*more)(FILE *to); /* the end of its help, or NULL */
} commands[] = {
    { "run", RUN, pd_cli_run, "--model M (--prompt T | --chat)", "answer one prompt, or chat (the default: `run` may be left out)", 0, NULL },
    { "serve", SERVE, pd_cli_serve, "--model M [--name N] ... [--port P]", "serve models over the OpenAI-compatible API", 0, NULL },
    { "router", ROUTER, pd_cli_router, "--backend URL [--backend URL ...] [--port P]", "one address in front of several servers: by model, by conversation, around those that are down", 0, NULL },
    { "inspect", INSPECT, pd_cli_inspect, "M", "what a model file holds, what it needs, and why it cannot be served", 1, NULL },
    { "bench", BENCH, pd_cli_bench, "--model M [-p 512] [-n 64]", "tokens per second of prefill and decode", 1, NULL },
    { "logits", LOGITS, pd_cli_logits, "--model M --tokens 1,2,3 --out FILE", "logits of every position, float32 little endian [tokens][vocabulary]", 0, NULL },
    { "tokenize", TOKENIZE, pd_cli_tokenize, "--model M < text", "text on stdin to a JSON array of token ids", 0, NULL },
    { "detokenize", DETOKENIZE, pd_cli_detokenize, "--model M < ids", "a JSON array of token ids on stdin to bytes", 0, NULL },
    { "template", TEMPLATE, pd_cli_template, "(--model M | --template FILE) --input CONVERSATION.json",
      "the exact text a conversation becomes, or exit 1 with the template's error", 0, NULL },
    { "quantize", QUANTIZE, pd_cli_quantize, "IN OUT TYPE", "write a model in another type: F32, F16, Q8_0, Q4_K_M, ...", 3, pd_cli_list_types },
    { "perplexity", PERPLEXITY, pd_cli_perplexity, "--model M --file TEXT", "how well a model predicts a text: lower is better", 0, NULL },
    { "drift", DRIFT, pd_cli_drift, "--model M [--device D] [--against exact|D]", "run two devices side by side and name the first op whose results differ by more than they may (exit 2)", 1, NULL },
};
enum { N_COMMANDS = sizeof commands / sizeof commands[0] };

enum kind { FLAG, STR, INT, REAL, U64, LIST, TEXTS, MODEL_PATH, MODEL_STR, MODEL_INT };
#define AT(field) offsetof(struct pd_cli_args, field)
#define HAS(field) (int)offsetof(struct pd_cli_args, field)
#define IN_MODEL(field) offsetof(struct pd_cli_model, field)
#define MODEL_HAS(field) (int)offsetof(struct pd_cli_model, field)

static const struct option_row {
    const char *name;
    char letter; /* 0 = none */
    enum kind kind;
    size_t at;   /* in pd_cli_args, or in pd_cli_model for MODEL_... */
    int has;     /* where, in the same, a bool says that it was given; -1 = nowhere */
    unsigned commands;
    double min, max;
    const char *arg, *help;
} rows[] = {
    { "model", 'm', MODEL_PATH, IN_MODEL(path), -1, RUN | SERVE | INSPECT | BENCH | LOGITS | TOKENIZE | DETOKENIZE | TEMPLATE | PERPLEXITY | DRIFT, 0, 0, "FILE|DIR", "the model: a GGUF file (of a sharded one any shard), or a directory with safetensors" },
    { "prompt", 'P', STR, AT(prompt), -1, RUN, 0, 0, "TEXT", "what to answer, through the model's chat template" },
    { "chat", 0, FLAG, AT(chat), -1, RUN, 0, 0, NULL, "talk with the model; Ctrl-C stops an answer, Ctrl-D ends" },
    { "system", 0, STR, AT(system), -1, RUN, 0, 0, "TEXT", "system message in front of the conversation" },
    { "raw", 0, FLAG, AT(raw), -1, RUN, 0, 0, NULL, "continue --prompt as it is, without the chat template" },
    { "max-tokens", 0, INT, AT(max_tokens), -1, RUN, 1, 1 << 24, "N", "most tokens to generate (default: what fits)" },
    { "temperature", 0, REAL, AT(temperature), HAS(has_temperature), RUN, 0, 2, "X", "0 = always the likeliest token (default 0.7)" },
    { "top-p", 0, REAL, AT(top_p), -1, RUN, 1e-6, 1, "X", "keep the likeliest tokens of this total probability (default 0.95)" },
    { "top-k", 0, INT, AT(top_k), -1, RUN, 0, 1 << 24, "N", "keep the N likeliest tokens (0 = all, the default)" },
    { "min-p", 0, REAL, AT(min_p), -1, RUN, 0, 0.999999, "X", "drop tokens less likely than X times the likeliest" },
    { "repeat-penalty", 0, REAL, AT(repeat_penalty), -1, RUN, 0.01, 10, "X", "divide the logits of the last 64 tokens by X (default 1)" },
    { "seed", 0, U64, AT(seed), HAS(has_seed), RUN, 0, 0, "N", "same seed, same text (default: a fresh one)" },
    { "ignore-eos", 0, FLAG, AT(ignore_eos), -1, RUN, 0, 0, NULL, "go on past the end token, up to --max-tokens" },
    { "name", 0, MODEL_STR, IN_MODEL(name), -1, SERVE, 0, 0, "N", "id that clients send as `model` (default: the file's name)" },
    { "ctx-cap", 'c', MODEL_INT, IN_MODEL(ctx_cap), -1, RUN | SERVE | INSPECT | BENCH | LOGITS | DRIFT, 1, 1 << 24, "N", "most tokens a session may hold (default: min(8192, trained))" },
    { "max-sessions", 0, MODEL_INT, IN_MODEL(max_sessions), -1, SERVE | INSPECT, 1, 1024, "N", "sessions that may hold KV at once (default 4)" },
    { "max-concurrent", 0, MODEL_INT, IN_MODEL(max_concurrent), -1, SERVE | INSPECT, 1, 64, "N", "requests that run at once (default 2)" },
    { "chat-template", 0, MODEL_STR, IN_MODEL(chat_template), -1, SERVE | RUN, 0, 0, "FILE", "template to use instead of the model's own" },
    { "reasoning-budget", 0, MODEL_INT, IN_MODEL(reasoning_budget), MODEL_HAS(has_reasoning_budget), SERVE, 0, 1 << 20, "N", "most tokens of a thought, for requests that do not say (default: no limit; 0 = no thought)" },
    { "host", 0, STR, AT(host), -1, SERVE | ROUTER, 0, 0, "ADDR", "address to listen on (default 127.0.0.1)" },
    { "port", 0, INT, AT(port), -1, SERVE | ROUTER, 0, 65535, "P", "port to listen on (default 8080)" },
    { "dies", 0, MODEL_STR, IN_MODEL(dies), -1, SERVE | INSPECT, 0, 0, "LIST", "where it runs: 0,1 counts accelerator dies as /admin/dies lists them, names work too; several split it by layers (inspect: over as many equal dies, which need not be there)" },
    { "kv", 0, MODEL_STR, IN_MODEL(kv), -1, RUN | INSPECT | BENCH | LOGITS | PERPLEXITY | DRIFT, 0, 0, "TYPE", "type of the KV cache: f16 (the default), q8_0 or q4_0 for a half or a quarter of its memory, or of keys and values apart: k=q8_0,v=q4_0; f32 (the default of --exact)" },
    { "kv", 0, MODEL_STR, IN_MODEL(kv), -1, SERVE, 0, 0, "TYPE", "type of the KV cache: f16 (the default), q8_0 or q4_0 for a half or a quarter of its memory, or of keys and values apart: k=q8_0,v=q4_0" },
    { "speculation", 0, MODEL_STR, IN_MODEL(speculation), -1, SERVE, 0, 0, "auto|off", "guess tokens that repeat earlier text and check several in a step, while that pays (the default), or not" },
    { "log", 0, STR, AT(log), -1, SERVE | ROUTER, 0, 0, "debug=AREAS", "debug notes of these areas (http,reconcile,sched or all)" },
    { "log-format", 0, STR, AT(log_format), -1, SERVE | ROUTER, 0, 0, "json|text", "the log as one JSON object a line, or as key=value (the default)" },
    { "api-keys-file", 0, STR, AT(api_keys_file), -1, SERVE | ROUTER, 0, 0, "FILE", "ask for one of the API keys whose digests this file has, NAME:SHA256 a line" },
    { "tls-cert", 0, STR, AT(tls_cert), -1, SERVE | ROUTER, 0, 0, "FILE", "speak TLS with this certificate in PEM form, its chain behind it" },
    { "tls-key", 0, STR, AT(tls_key), -1, SERVE | ROUTER, 0, 0, "FILE", "its private key in PEM form" },
    { "allowed-host", 0, TEXTS, AT(allowed_hosts), -1, SERVE | ROUTER, 0, 0, "NAME", "a name that clients may ask for it by, beside loopback and its own address; several times for several" },
    { "insecure", 0, FLAG, AT(insecure), -1, SERVE | ROUTER, 0, 0, NULL, "listen where other machines may reach it although nothing asks for keys" },
    { "max-connections", 0, INT, AT(max_connections), -1, ROUTER, 1, 65536, "N", "connections of clients at one time (default 512)" },
    { "max-connections-per-address", 0, INT, AT(max_per_address), -1, ROUTER, 1, 65536, "N", "of them, those of one address but loopback (default 64)" },
    { "max-body", 0, INT, AT(max_body_mib), -1, ROUTER, 1, 1024, "MIB", "largest body of a request (default 32)" },
    { "drain", 0, INT, AT(drain), -1, ROUTER, 1, 86400, "S", "seconds for running requests when it is told to stop (default 30)" },
    { "backend", 0, TEXTS, AT(backends), -1, ROUTER, 0, 0, "URL", "a server to pass requests to: http://HOST:PORT, https://HOST:PORT or unix:/PATH; as often as there are servers" },
    { "backend-key-file", 0, STR, AT(backend_key_file), -1, ROUTER, 0, 0, "FILE", "the API key that the servers are asked with, on one line (default: each client's own)" },
    { "pass-keys", 0, FLAG, AT(pass_keys), -1, ROUTER, 0, 0, NULL, "pass each client's own key all the same: the one in --backend-key-file is for looking after the servers alone" },
    { "connect-timeout", 0, INT, AT(connect_timeout), -1, ROUTER, 1, 3600, "S", "seconds until a server is connected to (default 2)" },
    { "head-timeout", 0, INT, AT(head_timeout), -1, ROUTER, 1, 86400, "S", "seconds until an answer begins; one that is no stream begins when it is done (default 900)" },
    { "idle-timeout", 0, INT, AT(idle_timeout), -1, ROUTER, 1, 86400, "S", "seconds between two pieces of an answer (default 300)" },
    { "threads", 't', INT, AT(threads), -1, RUN | SERVE | BENCH | LOGITS | QUANTIZE | PERPLEXITY | DRIFT, 1, 1024, "N", "compute threads (default: all this process may use)" },
    { "isa", 0, STR, AT(isa), -1, RUN | SERVE | BENCH | LOGITS | PERPLEXITY, 0, 0, "NAME", "highest instruction set to use: scalar, sse, avx2, avx512; on Arm neon, dotprod" },
    { "no-mmap", 0, FLAG, AT(no_mmap), -1, RUN | SERVE | BENCH | PERPLEXITY, 0, 0, NULL, "read the weights into memory instead of mapping the file" },
    { "json", 0, FLAG, AT(json), -1, BENCH | INSPECT | PERPLEXITY | DRIFT, 0, 0, NULL, "print JSON" },
    { "prefill", 'p', LIST, AT(prefill), -1, BENCH, 0, 1 << 20, "N,...", "prompt lengths to measure (default 512; 0 = none)" },
    { "decode", 'n', LIST, AT(decode), -1, BENCH, 0, 1 << 20, "N", "tokens to generate at each depth (default 64; 0 = none)" },
    { "depth", 'd', LIST, AT(depth), -1, BENCH, 0, 1 << 20, "N,...", "tokens already in the context when decoding (default 0)" },
    { "sequences", 's', LIST, AT(sequences), -1, BENCH, 1, PD_CLI_MAX_BATCH, "N,...", "sequences that decode together, tokens of all counted (default 1)" },
    { "drafts", 0, LIST, AT(drafts), -1, BENCH, 0, PN_DRAFT_MAX, "N,...", "decode with N drafted tokens checked in each step too (speculation)" },
    { "repeat", 'r', INT, AT(repeat), -1, BENCH, 1, 1000, "N", "runs of each; the median counts (default 3)" },
    { "tokens", 0, STR, AT(tokens), -1, LOGITS, 0, 0, "1,2,...", "token ids to feed" },
    { "out", 'o', STR, AT(out), -1, LOGITS, 0, 0, "FILE", "where the logits go (- = stdout)" },
    { "exact", 0, FLAG, AT(exact), -1, RUN | LOGITS | PERPLEXITY, 0, 0, NULL, "the reference path: dequantised weights, float32 throughout" },
    { "file", 'f', STR, AT(file), -1, PERPLEXITY, 0, 0, "TEXT", "the text to predict (- = stdin)" },
    { "ctx", 0, INT, AT(window), -1, PERPLEXITY, 8, 1 << 24, "N", "tokens of a window, of which the second half counts (default 512)" },
    { "device", 0, STR, AT(device), -1, DRIFT, 0, 0, "D", "what is looked at: cpu (the default), cpu:ISA as in cpu:avx2, or another kind with its address as in sim:NAME" },
    { "against", 0, STR, AT(against), -1, DRIFT, 0, 0, "exact|D", "what it is held against: the reference path (the default), or a device as above" },
    { "tokens", 0, STR, AT(tokens), -1, DRIFT, 0, 0, "1,2,...", "token ids to feed (default: those of a short text)" },
    { "text", 0, STR, AT(prompt), -1, DRIFT, 0, 0, "TEXT", "text to feed" },
    { "file", 'f', STR, AT(file), -1, DRIFT, 0, 0, "TEXT", "a file of text to feed (- = stdin)" },
    { "max-tokens", 0, INT, AT(max_tokens), -1, DRIFT, 1, 2048, "N", "most tokens of the text to feed (default 64)" },
    { "force", 0, FLAG, AT(force), -1, QUANTIZE, 0, 0, NULL, "replace OUT if it exists" },
    { "no-bos", 0, FLAG, AT(no_bos), -1, TOKENIZE, 0, 0, NULL, "add no BOS or EOS" },
    { "no-special", 0, FLAG, AT(no_special), -1, TOKENIZE | DETOKENIZE, 0, 0, NULL, "special tokens are plain text (detokenize: leave them out)" },
    { "template", 0, STR, AT(template_file), -1, TEMPLATE, 0, 0, "FILE", "a bare Jinja template instead of a model's" },
    { "input", 0, STR, AT(input), -1, TEMPLATE, 0, 0, "FILE", "{messages, tools, add_generation_prompt, extra} (- = stdin)" },
    { "settings", 0, STR, AT(settings), -1, TEMPLATE, 0, 0, "FILE", "{bos_token, eos_token, strftime_now_fixed_at}" },
};
enum { N_ROWS = sizeof rows / sizeof rows[0] };

static void print_options(FILE *to, const struct command *c) {
    for (int i = 0; i < N_ROWS; i++) {
        const struct option_row *r = &rows[i];
        if (!(r->commands & c->bit)) continue;
        char left[64];
        snprintf(left, sizeof left, "%c%c%s --%s %s", r->letter ? '-' : ' ', r->letter ? r->letter : ' ', r->letter ? "," : " ", r->name,
                 r->arg ? r->arg : "");
        fprintf(to, "  %-30s %s\n", left, r->help);
    }
}

static void help_command(FILE *to, const struct command *c) {
    fprintf(to, "usage: pantheon%s%s %s\n\n%s\n\n", c->bit == RUN ? "" : " ", c->bit == RUN ? "" : c->name, c->usage, c->help);
    print_options(to, c);
    if (c->more) {
        fputc('\n', to);
        c->more(to);
    }
}

static void help_all(FILE *to) {
    fprintf(to, "usage: pantheon --model M --prompt T [--max-tokens N]\n"
                "       pantheon --model M --chat\n"
                "       pantheon COMMAND ...\n\ncommands:\n");
    for (int i = 0; i < N_COMMANDS; i++) fprintf(to, "  %-12s %s\n", commands[i].name, commands[i].help);
    fprintf(to, "\n  --help       this text, or a command's: pantheon COMMAND --help\n"
                "  --version    version, backend and build\n"
                "  --backend    the backend of this build, one token\n\nwithout a command:\n");
    print_options(to, &commands[0]);
}

static bool parse_int(const char *s, int64_t *ret) {
    char *end;
    errno = 0;
    long long v = strtoll(s, &end, 10);
    if (end == s || *end || errno) return false;
    *ret = v;
    return true;
}

static int bad_value(const struct option_row *r, const char *s) {
    if (r->max > 0) {
        fprintf(stderr, "pantheon: --%s %s: must be a number from %.15g to %.15g\n", r->name, s, r->min, r->max);
    } else {
        fprintf(stderr, "pantheon: --%s %s: must be a whole number of at most 64 bits\n", r->name, s);
    }
    return PD_EXIT_USAGE;
}

/* Stores one option's value; 0 or an exit status. */
static int set(struct pd_cli_args *a, const struct option_row *r, const char *s) {
    char *base = (char *)a;
    struct pd_cli_model *m = &a->models[a->n_models];
    if (r->has >= 0) *(bool *)((r->kind == MODEL_INT ? (char *)m : base) + r->has) = true;
    switch (r->kind) {
    case FLAG: *(bool *)(base + r->at) = true; return 0;
    case STR: *(const char **)(base + r->at) = s; return 0;
    case TEXTS: {
        struct pd_cli_texts *l = (struct pd_cli_texts *)(base + r->at);
        if (l->n == PD_CLI_MAX_TEXTS) {
            fprintf(stderr, "pantheon: --%s more than %d times\n", r->name, PD_CLI_MAX_TEXTS);
            return PD_EXIT_USAGE;
        }
        l->v[l->n++] = s;
        return 0;
    }
    case MODEL_PATH:
        if (a->n_models == PD_CLI_MAX_MODELS) {
            fprintf(stderr, "pantheon: more than %d models\n", PD_CLI_MAX_MODELS);
            return PD_EXIT_USAGE;
        }
        a->models[++a->n_models].path = s;
        return 0;
    case MODEL_STR: *(const char **)((char *)m + r->at) = s; return 0;
    case MODEL_INT:
    case INT: {
        int64_t v;
        if (!parse_int(s, &v) || (double)v < r->min || (double)v > r->max) return bad_value(r, s);
        *(int64_t *)((r->kind == INT ? base : (char *)m) + r->at) = v;
        return 0;
    }
    case REAL: {
        char *end;
        double v = strtod(s, &end);
        if (end == s || *end || !(v >= r->min && v <= r->max)) return bad_value(r, s);
        *(double *)(base + r->at) = v;
        return 0;
    }
    case U64: {
        char *end;
        errno = 0;
        unsigned long long v = strtoull(s, &end, 10);
        if (end == s || *end || errno || *s == '-') return bad_value(r, s);
        *(uint64_t *)(base + r->at) = v;
        return 0;
    }
    case LIST: {
        struct pd_cli_list *l = (struct pd_cli_list *)(base + r->at);
        l->n = 0;
        for (const char *p = s; p;) {
            char one[24];
            const char *comma = strchr(p, ',');
            size_t len = comma ? (size_t)(comma - p) : strlen(p);
            if (len >= sizeof one || l->n == PD_CLI_MAX_LIST) return bad_value(r, s);
            memcpy(one, p, len);
            one[len] = '\0';
            if (!parse_int(one, &l->v[l->n]) || (double)l->v[l->n] < r->min || (double)l->v[l->n] > r->max) return bad_value(r, s);
            l->n++;
            p = comma ? comma + 1 : NULL;
        }
        return 0;
    }
    }
    return PD_EXIT_USAGE;
}

static int command_line(int argc, char **argv) {
    const struct command *c = &commands[0];
    int first = 1;
    if (argc < 2) {
        help_all(stderr);
        return PD_EXIT_USAGE;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 || strcmp(argv[1], "help") == 0) {
        help_all(stdout);
        return PD_EXIT_OK;
    }
    if (strcmp(argv[1], "--version") == 0) {
        printf("Pantheon v%s\nbackend=%s build=%s\n", pn_version(), fo_device_build_backend(), pn_build());
        return PD_EXIT_OK;
    }
    if (strcmp(argv[1], "--backend") == 0) {
        printf("%s\n", fo_device_build_backend());
        return PD_EXIT_OK;
    }
    if (argv[1][0] != '-') {
        int i = 0;
        while (i < N_COMMANDS && strcmp(argv[1], commands[i].name) != 0) i++;
        if (i == N_COMMANDS) {
            fprintf(stderr, "pantheon: '%s' is no command; `pantheon --help` lists them\n", argv[1]);
            return PD_EXIT_USAGE;
        }
        c = &commands[i];
        first = 2;
    }

    /* getopt's own tables, from the rows of this command */
    struct option longs[N_ROWS + 2];
    char shorts[3 * N_ROWS + 4] = ":h";
    int n = 0;
    for (int i = 0; i < N_ROWS; i++) {
        if (!(rows[i].commands & c->bit)) continue;
        longs[n++] = (struct option){ rows[i].name, rows[i].kind == FLAG ? no_argument : required_argument, NULL, 256 + i };
        if (rows[i].letter) {
            size_t k = strlen(shorts);
            shorts[k] = rows[i].letter;
            if (rows[i].kind != FLAG) shorts[k + 1] = ':';
        }
    }
    longs[n++] = (struct option){ "help", no_argument, NULL, 'h' };
    longs[n] = (struct option){ 0 };

    static struct pd_cli_args a;
    argv[first - 1] = argv[0];
    opterr = 0;
    for (int k; (k = getopt_long(argc - first + 1, argv + first - 1, shorts, longs, NULL)) != -1;) {
        char **at = argv + first - 1;
        if (k == 'h') {
            help_command(stdout, c);
            return PD_EXIT_OK;
        }
        if (k == '?') {
            fprintf(stderr, "pantheon: %s: no such option here; `pantheon %s --help` lists them\n", at[optind - 1], c->name);
            return PD_EXIT_USAGE;
        }
        if (k == ':') {
            fprintf(stderr, "pantheon: %s needs a value\n", at[optind - 1]);
            return PD_EXIT_USAGE;
        }
        const struct option_row *r = NULL;
        if (k >= 256) {
            r = &rows[k - 256];
        } else {
            for (int i = 0; i < N_ROWS && !r; i++)
                if ((rows[i].commands & c->bit) && rows[i].letter == k) r = &rows[i];
        }
        int rc = set(&a, r, optarg);
        if (rc) return rc;
    }
    for (char **p = argv + first - 1 + optind; *p; p++) {
        if (a.n_rest == c->max_rest) {
            fprintf(stderr, "pantheon: '%s' is one argument too many; usage: pantheon %s %s\n", *p, c->name, c->usage);
            return PD_EXIT_USAGE;
        }
        a.rest[a.n_rest++] = *p;
    }
    return c->run(&a);
}

int main(int argc, char **argv) {
    pd_std_open();
    return pd_std_close("pantheon", command_line(argc, argv));
}
