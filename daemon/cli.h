/* The command line `pantheon`: one table of subcommands, one table of options, one struct of values. Everything here runs on the
 * main thread of the CLI process. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "engine/sampler.h"

struct fo_device;
struct fo_err;

enum { PD_CLI_MAX_MODELS = 64, PD_CLI_MAX_LIST = 16, PD_CLI_MAX_BATCH = 64, PD_CLI_MAX_TEXTS = 64 };

/* What `serve` is told of one model: flags after a --model belong to it, flags before the first to all. */
struct pd_cli_model {
    const char *path, *name, *chat_template, *dies, *kv, *speculation;
    int64_t ctx_cap, max_sessions, max_concurrent; /* 0 = not given */
    int64_t reasoning_budget;
    bool has_reasoning_budget;
};

struct pd_cli_list {
    int64_t v[PD_CLI_MAX_LIST];
    int n;
};

/* Of an option that may be given several times. */
struct pd_cli_texts {
    const char *v[PD_CLI_MAX_TEXTS];
    size_t n;
};

/* Every value a flag can set; zero = not given. Strings point into argv. */
struct pd_cli_args {
    struct pd_cli_model models[PD_CLI_MAX_MODELS + 1]; /* [0] holds what stands before the first --model */
    int n_models;                                      /* of --model; model i is models[i + 1] */
    const char *prompt, *system, *out, *input, *settings, *tokens, *template_file, *host, *log, *log_format, *api_keys_file, *tls_cert, *tls_key, *isa, *file, *device, *against, *backend_key_file;
    bool chat, raw, exact, no_bos, no_special, json, no_mmap, ignore_eos, has_temperature, has_seed, force, insecure, pass_keys;
    int64_t max_tokens, port, threads, repeat, top_k, window, connect_timeout, head_timeout, idle_timeout, max_connections, max_per_address, max_body_mib, drain;
    struct pd_cli_texts backends, allowed_hosts;
    double temperature, top_p, min_p, repeat_penalty;
    uint64_t seed;
    struct pd_cli_list prefill, decode, depth, sequences, drafts;
    const char *rest[4]; /* positional arguments */
    int n_rest;
};

/* Exit statuses, as sysexits.h and the design have them. */
enum { PD_EXIT_OK = 0, PD_EXIT_FAILURE = 1, PD_EXIT_DIFFERS = 2, PD_EXIT_USAGE = 64, PD_EXIT_INTERRUPTED = 130 };

/* One subcommand each; return the exit status. */
int pd_cli_run(const struct pd_cli_args *a);
int pd_cli_serve(const struct pd_cli_args *a);
int pd_cli_inspect(const struct pd_cli_args *a);
int pd_cli_bench(const struct pd_cli_args *a);
int pd_cli_logits(const struct pd_cli_args *a);
int pd_cli_tokenize(const struct pd_cli_args *a);
int pd_cli_detokenize(const struct pd_cli_args *a);
int pd_cli_template(const struct pd_cli_args *a);
int pd_cli_quantize(const struct pd_cli_args *a);
int pd_cli_perplexity(const struct pd_cli_args *a);
int pd_cli_drift(const struct pd_cli_args *a);
int pd_cli_router(const struct pd_cli_args *a);

/* "TYPE is one of ...": the rest of `pantheon quantize --help`. */
void pd_cli_list_types(FILE *to);

/* --- what subcommands share --- */

/* "pantheon: <message>" on stderr; returns PD_EXIT_FAILURE. */
int pd_cli_fail(const struct fo_err *e);
int pd_cli_failf(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* The model file: --model, or the first positional argument; NULL (after a message) when neither is there. */
const char *pd_cli_model_path(const struct pd_cli_args *a);

/* Opens the cpu device as --threads, --isa and --exact say. */
int pd_cli_open_device(const struct pd_cli_args *a, struct fo_device **ret, struct fo_err *e);

/* The KV type that --kv asks for into *o; kv_default where it does not. */
struct pn_model_opts;
int pd_cli_kv(const struct pd_cli_args *a, struct pn_model_opts *o, struct fo_err *e);

/* "1,2,3" as token ids, [*ret_n] on the heap; NULL after a message. */
int32_t *pd_cli_token_ids(const char *list, size_t *ret_n);

/* A progress note on stderr, when that is a terminal; the next one, or NULL, erases it. */
void pd_cli_progress(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* All of a stream (NULL path or "-" = stdin), at most `cap` bytes; heap, NUL-terminated. */
int pd_cli_read(const char *path, size_t cap, char **ret, size_t *ret_len, struct fo_err *e);

/* Sampling flags over the CLI's defaults (temperature 0.7, top_p 0.95, a fresh seed). */
struct pn_sampling pd_cli_sampling(const struct pd_cli_args *a);

/* Waits for Ctrl-C by flag instead of dying: true once after each press. */
void pd_cli_catch_interrupt(void);
/* The same for everything that asks a process to end (Ctrl-C, SIGTERM, SIGHUP), for work that has something to tidy up. */
void pd_cli_catch_end(void);
bool pd_cli_interrupted(void);

/* --- what servers share (cli_server.c) --- */
struct fo_buf;
struct pd_reading;

/* `text` quoted; false after a message when YAML cannot say it. */
bool pd_cli_put_text(struct fo_buf *y, const char *flag, const char *text);
/* The beginning of a manifest: version and server, as the flags say; false after a message. */
bool pd_cli_put_server(const struct pd_cli_args *a, struct fo_buf *y);
/* What was `written` into y as a reading (pd_reading_done); false after a message, of whoever could not write or of this. */
bool pd_cli_parse_manifest(bool written, struct fo_buf *y, struct pd_reading *ret);

struct pd_cli_log {
    const char *areas; /* as pd_log_open takes them */
    bool json;
};
/* --log and --log-format; false after a message. */
bool pd_cli_log(const struct pd_cli_args *a, struct pd_cli_log *ret);

/* --- line editing for --chat (cli_line.c) --- */
struct pd_line;
struct pd_line *pd_line_new(void); /* NULL without memory */
void pd_line_free(struct pd_line *l);
enum pd_line_result { PD_LINE_OK, PD_LINE_EOF, PD_LINE_INTERRUPT };
/* Reads a line with editing and history when stdin and stdout are terminals, else plainly. *ret_text is valid until the next call. */
enum pd_line_result pd_line_read(struct pd_line *l, const char *prompt, const char **ret_text);
