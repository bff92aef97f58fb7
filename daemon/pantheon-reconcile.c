/* pantheon-reconcile: check a manifest, see what it would change, apply it, look at what runs. It reads the file itself and plans with the
 * daemon's own planner, over facts from the daemon or from a file; only the daemon changes anything. The option table below is the command
 * line: parsing and --help come from it. */
#include <getopt.h>
#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "config/doc.h"
#include "config/facts.h"
#include "config/judge.h"
#include "config/manifest.h"
#include "config/plan.h"
#include "daemon/client.h"
#include "daemon/estimate.h"
#include "daemon/fetch_cli.h"
#include "daemon/files.h"
#include "daemon/source.h"
#include "daemon/verified.h"
#include "engine/version.h"
#include "foundry/base/buf.h"
#include "foundry/base/err.h"
#include "foundry/base/file.h"
#include "foundry/base/units.h"
#include "foundry/device.h"

#define DEFAULT_MANIFEST "/etc/pantheon/models.yaml"
#define DEFAULT_SOCKET "/run/pantheon/admin.sock"
enum { IN_SYNC = 0, DONE = 0, FAILED = 1, SOME_REFUSED = 3, TIMED_OUT = 4, USAGE = 64, MAX_ANSWER = 64 << 20, MAX_SCHEMA = 1 << 20, WATCH_S = 1 };

struct args {
    const char *manifest, *socket, *url, *facts, *save_facts, *if_generation, *timeout;
    bool check, plan, prune, status, watch, reload, wait, json, schema, fetch;
};

static const struct row {
    const char *name, *arg;
    size_t at; /* in struct args: a bool, or a text when there is an argument */
    const char *help;
} rows[] = {
    { "check", NULL, offsetof(struct args, check), "check the manifest alone, print every mistake, exit 0 or 1" },
    { "fetch", NULL, offsetof(struct args, fetch), "fetch the files that are absent and have a url, check those that have a sha256, and no more; no daemon is asked; exit 0 all there, or 1" },
    { "schema", NULL, offsetof(struct args, schema), "print the JSON Schema of manifests, for editors" },
    { "plan", NULL, offsetof(struct args, plan), "print what applying would do, change nothing; exit 0 in sync, 2 changes, 3 some refused, 1 error" },
    { "prune", NULL, offsetof(struct args, prune), "unload models that were loaded over the admin API too" },
    { "reload", NULL, offsetof(struct args, reload), "ask the daemon to read its manifest again, and no more" },
    { "wait", NULL, offsetof(struct args, wait), "with --reload: until it is accepted or refused; exit 0 or 1" },
    { "status", NULL, offsetof(struct args, status), "print what runs, and how it is" },
    { "watch", NULL, offsetof(struct args, watch), "with --status: again every second" },
    { "json", NULL, offsetof(struct args, json), "print JSON" },
    { "socket", "PATH", offsetof(struct args, socket), "the daemon's admin socket (default: server.admin_socket of the manifest)" },
    { "url", "URL", offsetof(struct args, url), "reach the daemon there instead: http://127.0.0.1:8080, or https://; with PANTHEON_API_KEY in the environment under that key; SSL_CERT_FILE names certificates to trust" },
    { "facts", "FILE", offsetof(struct args, facts), "with --plan: plan for what this file observed (from --save-facts); no daemon is asked" },
    { "save-facts", "FILE", offsetof(struct args, save_facts), "write what the daemon observes to FILE" },
    { "if-generation", "N", offsetof(struct args, if_generation), "change nothing unless generation N is in force" },
    { "timeout", "TIME", offsetof(struct args, timeout), "longest wait for applying, as 90s or 10min (default 1h); exit 4 when it passes" },
};
enum { N_ROWS = sizeof rows / sizeof *rows, OPT_HELP = 1000, OPT_VERSION };

static void help(FILE *to) {
    fputs("usage: pantheon-reconcile [OPTIONS] [MANIFEST]\n\n"
          "Makes the daemon run what MANIFEST (default " DEFAULT_MANIFEST ") declares: asks it to read the file\n"
          "again, shows each step, and waits until all is done.\n\n",
          to);
    for (int i = 0; i < N_ROWS; i++) {
        char left[40];
        snprintf(left, sizeof left, "--%s%s%s", rows[i].name, rows[i].arg ? " " : "", rows[i].arg ? rows[i].arg : "");
        fprintf(to, "  %-20s %s\n", left, rows[i].help);
    }
    fputs("  --version            version and build\n  --help               this text\n\n"
          "Exit status of applying: 0 done, 3 some models refused, 4 timed out waiting, 1 error; 64 usage.\n",
          to);
}

static int usage(const char *why, const char *what) {
    fprintf(stderr, "pantheon-reconcile: %s%s\n", what, why);
    return USAGE;
}

static int fail(const struct fo_err *e) {
    fprintf(stderr, "pantheon-reconcile: %s\n", e->msg);
    return e->code == FO_ETIMEOUT ? TIMED_OUT : FAILED;
}

/* --- what is read --- */

static bool read_manifest(const struct args *a, struct pd_reading *r) {
    if (pd_source_read(a->manifest, r)) return true;
    fputs(r->report ? r->report : "pantheon-reconcile: no memory to read the manifest\n", stderr);
    return false;
}

static struct pd_client client_of(const struct args *a, const struct pd_reading *r, uint64_t timeout_ms) {
    const char *declared = r && r->manifest ? r->manifest->server.admin_socket : NULL;
    return (struct pd_client){ .socket = a->url ? NULL : a->socket ? a->socket : declared ? declared : DEFAULT_SOCKET, .url = a->url, .key = a->url ? getenv("PANTHEON_API_KEY") : NULL, .timeout_ms = timeout_ms };
}

/* The error object's message, or the status. */
static int fail_answer(long status, const struct fo_buf *out) {
    json_t *o = json_loadb(fo_buf_str(out), out->len, 0, NULL);
    const char *report = json_string_value(json_object_get(o, "report"));
    const char *message = json_string_value(json_object_get(json_object_get(o, "error"), "message"));
    if (report && *report) fputs(report, stderr);
    else fprintf(stderr, "pantheon-reconcile: %s (status %ld)\n", message ? message : "the daemon's answer cannot be read", status);
    json_decref(o);
    return FAILED;
}

/* A GET whose body is JSON. */
static int get(const struct pd_client *c, const char *path, struct fo_buf *out) {
    struct fo_err e;
    long status;
    if (pd_client_call(c, "GET", path, NULL, NULL, &status, out, &e)) return fail(&e);
    return status == 200 ? 0 : fail_answer(status, out);
}

static int get_facts(const struct args *a, const struct pd_reading *r, struct cf_facts **ret) {
    struct fo_err e;
    struct fo_buf out;
    int rc = 0;
    fo_buf_init(&out, CF_MAX_FACTS_BYTES);
    if (a->facts) {
        char *text;
        size_t len;
        if (fo_file_read(a->facts, CF_MAX_FACTS_BYTES, &text, &len, &e)) return fail(&e);
        rc = cf_facts_parse(text, len, ret, &e) ? fo_wrap(&e, "%s", a->facts), fail(&e) : 0;
        free(text);
        return rc;
    }
    struct pd_client c = client_of(a, r, 30 * 1000);
    rc = get(&c, "/admin/facts", &out);
    if (rc == 0 && cf_facts_parse(fo_buf_str(&out), out.len, ret, &e)) rc = fail(&e);
    fo_buf_done(&out);
    return rc;
}

static int save_facts(const char *path, const struct cf_facts *f) {
    char *text = cf_facts_write(f);
    FILE *to = text ? fopen(path, "w") : NULL;
    bool ok = to && fputs(text, to) >= 0;
    if (to && fclose(to)) ok = false;
    free(text);
    if (ok) return 0;
    fprintf(stderr, "pantheon-reconcile: %s cannot be written\n", path);
    return FAILED;
}

/* --- plan --- */

/* What relative paths start at; heap, NULL = the working directory. */
static char *folder_of(const struct args *a) {
    char *dir = strdup(a->manifest), *slash = dir ? strrchr(dir, '/') : NULL;
    if (slash) slash[slash == dir] = '\0';
    else free(dir);
    return slash ? dir : NULL;
}

static int do_fetch(const struct args *a) {
    struct pd_reading r;
    char *dir = folder_of(a);
    int rc = read_manifest(a, &r) ? pd_fetch_cli(r.manifest, dir) : FAILED;
    free(dir);
    pd_reading_done(&r);
    return rc;
}

/* Also the files of those that the daemon has not looked at; what it observed, or --facts says, stays. */
static void add_files(const struct args *a, const struct cf_manifest *m, const char *dir, const struct cf_facts *f, struct cf_facts *ret) {
    struct pd_verified v;
    ret->files = calloc(f->n_files + m->n_models + 1, sizeof *ret->files);
    ret->n_files = 0;
    if (!ret->files) return; /* the plan then says that they are not there */
    pd_verified_init(&v, pd_source_state_dir());
    for (size_t i = 0; i < f->n_files; i++) ret->files[ret->n_files++] = f->files[i];
    for (size_t i = 0; i < m->n_models && !a->facts; i++)
        if (!cf_file_find(f, &m->models[i])) ret->n_files += pd_file_look(dir, &m->models[i], &v, &ret->files[ret->n_files]);
    pd_verified_done(&v);
}

/* Facts with an estimate for each model of the manifest: those that the daemon does not know yet are measured here. */
static int add_estimates(const struct args *a, const struct cf_manifest *m, const struct cf_facts *f, struct cf_facts *ret, struct pd_estimate **own) {
    struct fo_err e;
    struct fo_device *dev = NULL;
    char *dir = folder_of(a);
    *ret = *f;
    add_files(a, m, dir, f, ret);
    ret->estimates = calloc(f->n_estimates + m->n_models + 1, sizeof *ret->estimates);
    int code = ret->estimates ? FO_OK : fo_fail(&e, FO_ENOMEM, "no memory for estimates");
    for (size_t i = 0; i < f->n_estimates && code == FO_OK; i++) ret->estimates[i] = f->estimates[i];
    for (size_t i = 0; i < m->n_models && code == FO_OK; i++) {
        if (cf_estimate_find(ret, &m->models[i])) continue;
        if (!dev) code = fo_device_open("cpu", "", &(struct fo_device_opts){ 0 }, &dev, &e);
        if (code == FO_OK) code = pd_estimate_make(dir, &m->models[i], dev, &own[i], &e);
        if (code == FO_OK) ret->estimates[ret->n_estimates++] = own[i]->v;
    }
    fo_device_close(dev);
    free(dir);
    return code ? fail(&e) : 0;
}

static int print_plan(const struct args *a, const struct cf_manifest *m, const struct cf_facts *f) {
    struct cf_plan *p;
    struct fo_err e;
    if (cf_plan_make(m, f, a->prune ? CF_PLAN_PRUNE : 0, &p, &e)) return fail(&e);
    char *text = a->json ? cf_plan_json(p) : cf_plan_text(p, f);
    int rc = text ? cf_plan_exit(p) : FAILED;
    if (text) fputs(text, stdout);
    else fprintf(stderr, "pantheon-reconcile: no memory to print the plan\n");
    free(text);
    cf_plan_free(p);
    return rc;
}

static int do_plan(const struct args *a) {
    struct pd_reading r;
    struct cf_facts *f = NULL, all = { 0 };
    struct pd_estimate **own = NULL;
    int rc = read_manifest(a, &r) ? 0 : FAILED;
    size_t n = rc == 0 ? r.manifest->n_models : 0;
    if (rc == 0) rc = get_facts(a, &r, &f);
    if (rc == 0 && !(own = calloc(n + 1, sizeof(struct pd_estimate *)))) rc = FAILED;
    if (rc == 0) rc = add_estimates(a, r.manifest, f, &all, own);
    if (rc == 0 && a->save_facts) rc = save_facts(a->save_facts, &all);
    if (rc == 0) rc = print_plan(a, r.manifest, &all);
    for (size_t i = 0; own && i < n; i++) pd_estimate_free(own[i]);
    free(own);
    free(all.estimates);
    free(all.files);
    cf_facts_free(f);
    pd_reading_done(&r);
    return rc;
}

/* --- apply --- */

struct steps {
    const struct args *a;
    json_t *result; /* the last line */
};

static const char *text_of(const json_t *o, const char *key) {
    const char *s = json_string_value(json_object_get(o, key));
    return s ? s : "";
}

static bool take_line(void *ctx, const char *line, size_t n) {
    struct steps *s = ctx;
    json_t *o = json_loadb(line, n, 0, NULL);
    if (s->a->json) {
        printf("%.*s\n", (int)n, line);
    } else if (o && !json_object_get(o, "result")) {
        const char *model = text_of(o, "model");
        printf("%-18s %s%s%s\n", text_of(o, "event"), model, *model ? ": " : "", text_of(o, "text"));
    }
    fflush(stdout);
    if (o && json_object_get(o, "result")) {
        json_decref(s->result);
        s->result = o;
    } else {
        json_decref(o);
    }
    return true;
}

/* What is said at the end, and the exit status. */
static int conclude(const struct args *a, const json_t *result) {
    const char *word = text_of(result, "result");
    if (strcmp(word, "manifest_invalid") == 0) {
        fputs(text_of(result, "report"), stderr);
        return FAILED;
    }
    if (strcmp(word, "applied") != 0) {
        fprintf(stderr, "pantheon-reconcile: the daemon %s before all was done\n", strcmp(word, "draining") == 0 ? "began to stop" : "went away");
        return FAILED;
    }
    size_t i, serving = 0, declared = 0;
    const json_t *m;
    long long refused = json_integer_value(json_object_get(result, "refused")), failing = json_integer_value(json_object_get(result, "failing"));
    json_array_foreach(json_object_get(result, "models"), i, m) {
        bool ready = strcmp(text_of(m, "status"), "ready") == 0;
        declared += json_is_true(json_object_get(m, "declared"));
        serving += ready && json_is_true(json_object_get(m, "declared"));
        if (!ready && !a->json && strcmp(text_of(m, "status"), "absent") != 0) printf("%-18s %s: %s\n", text_of(m, "status"), text_of(m, "name"), text_of(m, "reason"));
    }
    if (!a->json) printf("generation %lld: %zu of %zu models serve\n", (long long)json_integer_value(json_object_get(result, "generation")), serving, declared);
    return refused ? SOME_REFUSED : failing ? FAILED : DONE;
}

static bool timeout_of(const struct args *a, uint64_t *ret_ms) {
    *ret_ms = 3600 * 1000;
    return !a->timeout || (fo_parse_ms(a->timeout, ret_ms) && *ret_ms > 0); /* 0 would be none at all */
}

/* The daemon reads its own file: applying another one would do nothing and say that it did. */
static int check_same_file(const struct args *a, const struct pd_client *c) {
    struct fo_buf out;
    fo_buf_init(&out, MAX_ANSWER);
    int rc = get(c, "/admin/models", &out);
    json_t *o = rc == 0 ? json_loadb(fo_buf_str(&out), out.len, 0, NULL) : NULL;
    const char *theirs = text_of(o, "config");
    char *mine = realpath(a->manifest, NULL), *real = *theirs ? realpath(theirs, NULL) : NULL;
    if (rc == 0 && mine && real && strcmp(mine, real) != 0) {
        fprintf(stderr, "pantheon-reconcile: the daemon reads %s, not %s: copy the file there, or see what it would do with --plan\n", real, mine);
        rc = FAILED;
    }
    free(mine);
    free(real);
    json_decref(o);
    fo_buf_done(&out);
    return rc;
}

static int do_apply(const struct args *a) {
    struct pd_reading r;
    struct fo_buf out;
    struct fo_err e;
    struct steps s = { .a = a };
    char path[256];
    long status = 0;
    uint64_t timeout_ms;
    if (!timeout_of(a, &timeout_ms)) return usage(": not a time (90s, 10min)", a->timeout);
    fo_buf_init(&out, MAX_ANSWER);
    int rc = read_manifest(a, &r) ? 0 : FAILED;
    struct pd_client c = client_of(a, &r, timeout_ms);
    if (rc == 0) rc = check_same_file(a, &c);
    snprintf(path, sizeof path, "/admin/reconcile?stream=1%s%s%.40s", a->prune ? "&prune=1" : "", a->if_generation ? "&if_generation=" : "", a->if_generation ? a->if_generation : "");
    if (rc == 0 && pd_client_call(&c, "POST", path, take_line, &s, &status, &out, &e)) rc = fail(&e);
    else if (rc == 0 && status != 200) rc = fail_answer(status, &out);
    else if (rc == 0) rc = conclude(a, s.result);
    json_decref(s.result);
    fo_buf_done(&out);
    pd_reading_done(&r);
    return rc;
}

static int do_reload(const struct args *a) {
    struct fo_buf out;
    struct fo_err e;
    char path[256];
    long status = 0;
    struct pd_reading r;
    bool good = pd_source_read(a->manifest, &r); /* only for where the socket is: the daemon says what is wrong with the file */
    struct pd_client c = client_of(a, good ? &r : NULL, 60 * 1000);
    fo_buf_init(&out, MAX_ANSWER);
    snprintf(path, sizeof path, "/admin/reconcile?%s%s%.40s", a->wait ? "wait=1" : "", a->if_generation ? "&if_generation=" : "", a->if_generation ? a->if_generation : "");
    int rc = pd_client_call(&c, "POST", path, NULL, NULL, &status, &out, &e) ? fail(&e) : status / 100 == 2 ? DONE : fail_answer(status, &out);
    if (rc == DONE && a->json) puts(fo_buf_str(&out));
    fo_buf_done(&out);
    pd_reading_done(&r);
    return rc;
}

/* --- status --- */

static const json_t *condition(const json_t *o, const char *type) {
    size_t i;
    const json_t *c;
    json_array_foreach(json_object_get(o, "conditions"), i, c)
        if (strcmp(text_of(c, "type"), type) == 0) return c;
    return NULL;
}

static void print_model(const json_t *m) {
    char dies[64] = "", bytes[16], bad[96] = "";
    size_t i, k, n = 0;
    long long sum = 0;
    const json_t *inst, *part;
    json_array_foreach(json_object_get(m, "placement"), i, inst) {
        json_array_foreach(json_object_get(inst, "estimated"), k, part) {
            if (n < sizeof dies) n += (size_t)snprintf(dies + n, sizeof dies - n, "%s%s", k ? "+" : i ? "," : "", text_of(part, "die"));
            sum += json_integer_value(json_object_get(part, "weights_bytes")) + json_integer_value(json_object_get(part, "kv_bytes")) + json_integer_value(json_object_get(part, "scratch_bytes"));
        }
    }
    if (json_is_true(json_object_get(m, "declared")) && strcmp(text_of(condition(m, "Current"), "status"), "True") != 0) snprintf(bad, sizeof bad, " %s", text_of(condition(m, "Current"), "reason"));
    const json_t *chat = condition(m, "Chat");
    if (strcmp(text_of(chat, "reason"), "TemplateInvalid") == 0) snprintf(bad + strlen(bad), sizeof bad - strlen(bad), " %s", text_of(chat, "reason"));
    const json_t *counters = json_object_get(m, "counters");
    printf("%-20s %-8s %-18s %10s %5lld/%-5lld %4lld%s%s%s\n", text_of(m, "name"), text_of(m, "status"), *dies ? dies : "-", sum ? fo_format_bytes((uint64_t)sum, bytes, sizeof bytes) : "-",
           (long long)json_integer_value(json_object_get(counters, "running")), (long long)json_integer_value(json_object_get(counters, "queued")),
           (long long)json_integer_value(json_object_get(m, "observed_generation")), bad, *text_of(m, "reason") ? "  " : "", text_of(m, "reason"));
}

static void print_status(const json_t *o) {
    size_t i;
    const json_t *m;
    printf("generation %lld", (long long)json_integer_value(json_object_get(o, "generation")));
    static const char *const types[] = { "ManifestValid", "Reconciled", "Draining", "KeysValid", "TlsValid" };
    for (i = 0; i < sizeof types / sizeof *types; i++) {
        const json_t *c = condition(o, types[i]);
        printf("  %s=%s (%s)", types[i], text_of(c, "status"), text_of(c, "reason"));
    }
    printf("\n%-20s %-8s %-18s %10s %5s/%-5s %4s\n", "MODEL", "STATUS", "DIES", "BYTES", "RUN", "WAIT", "GEN");
    json_array_foreach(json_object_get(o, "models"), i, m) print_model(m);
    if (*text_of(o, "report")) printf("\nthe manifest's file is bad:\n%s", text_of(o, "report"));
}

/* A number that the driver may not say. */
static const char *reading(const json_t *die, const char *key, const char *unit, char *out, size_t size) {
    const json_t *v = json_object_get(die, key);
    if (!v) return "-";
    snprintf(out, size, "%.0f%s", json_number_value(v), unit);
    return out;
}

static uint64_t count_of(const json_t *o, const char *key) {
    json_int_t n = json_integer_value(json_object_get(o, key));
    return n < 0 ? 0 : (uint64_t)n;
}

static void print_dies(const json_t *o) {
    size_t i;
    const json_t *d;
    printf("\n%-20s %-6s %-6s %10s %10s %10s %10s %8s %8s %8s\n", "DIE", "KIND", "HEALTH", "BUDGET", "RESERVE", "OURS", "OTHERS", "TEMP", "POWER", "ECC");
    json_array_foreach(json_object_get(o, "dies"), i, d) {
        char total[16], reserve[16], ours[16], others[16], temperature[24], power[24], ecc[48] = "-";
        if (json_object_get(d, "ecc_corrected")) snprintf(ecc, sizeof ecc, "%llu/%llu", (unsigned long long)count_of(d, "ecc_corrected"), (unsigned long long)count_of(d, "ecc_uncorrected"));
        printf("%-20s %-6s %-6s %10s %10s %10s %10s %8s %8s %8s%s%s\n", text_of(d, "name"), text_of(d, "kind"), text_of(d, "health"), fo_format_bytes(count_of(d, "total_bytes"), total, sizeof total),
               fo_format_bytes(count_of(d, "reserve_bytes"), reserve, sizeof reserve), fo_format_bytes(count_of(d, "ours_bytes"), ours, sizeof ours),
               fo_format_bytes(count_of(d, "foreign_bytes"), others, sizeof others), reading(d, "temperature_celsius", " C", temperature, sizeof temperature), reading(d, "power_watts", " W", power, sizeof power), ecc,
               *text_of(d, "reason") ? "  " : "", text_of(d, "reason"));
    }
}

/* The dies below the models; an answer that cannot be had is said. */
static int show_dies(struct pd_client *c) {
    struct fo_buf out;
    fo_buf_init(&out, MAX_ANSWER);
    int rc = get(c, "/admin/dies", &out);
    json_t *o = rc == 0 ? json_loadb(fo_buf_str(&out), out.len, 0, NULL) : NULL;
    if (o) print_dies(o);
    json_decref(o);
    fo_buf_done(&out);
    return rc;
}

static int do_status(const struct args *a) {
    struct pd_reading r;
    struct fo_buf out;
    bool good = pd_source_read(a->manifest, &r);
    struct pd_client c = client_of(a, good ? &r : NULL, 10 * 1000);
    int rc;
    do {
        fo_buf_init(&out, MAX_ANSWER);
        rc = get(&c, "/admin/models", &out);
        json_t *o = rc == 0 ? json_loadb(fo_buf_str(&out), out.len, 0, NULL) : NULL;
        if (a->watch && isatty(1)) fputs("\033[H\033[2J", stdout);
        if (o && a->json) puts(fo_buf_str(&out));
        else if (o) {
            print_status(o);
            rc = show_dies(&c);
        }
        fflush(stdout);
        json_decref(o);
        fo_buf_done(&out);
        if (a->watch) sleep(WATCH_S);
    } while (a->watch && !ferror(stdout));
    pd_reading_done(&r);
    return rc;
}

/* --- the command line --- */

static void print_check(const struct args *a, bool good, const struct pd_reading *r) {
    json_t *o = json_pack("{s:s, s:b, s:I, s:s}", "manifest", a->manifest, "good", good, "models", (json_int_t)(good ? r->manifest->n_models : 0), "report", r->report ? r->report : "");
    if (o) json_dumpf(o, stdout, JSON_COMPACT);
    json_decref(o);
    putchar('\n');
}

static int print_schema(void) {
    struct fo_buf out;
    fo_buf_init(&out, MAX_SCHEMA);
    cf_doc_schema(cf_manifest_keys(), &out);
    bool ok = !out.failed;
    if (ok) fputs(fo_buf_str(&out), stdout);
    else fprintf(stderr, "pantheon-reconcile: no memory to print the schema\n");
    fo_buf_done(&out);
    return ok ? DONE : FAILED;
}

static int run(const struct args *a) {
    struct pd_reading r;
    if (a->schema) return print_schema();
    if (a->fetch) return do_fetch(a);
    if (a->check) {
        bool good = a->json ? pd_source_read(a->manifest, &r) : read_manifest(a, &r);
        if (a->json) print_check(a, good, &r);
        else if (good) printf("%s: good, %zu model%s\n", a->manifest, r.manifest->n_models, r.manifest->n_models == 1 ? "" : "s");
        pd_reading_done(&r);
        return good ? 0 : FAILED;
    }
    if (a->plan) return do_plan(a);
    if (a->status) return do_status(a);
    if (a->reload) return do_reload(a);
    if (a->save_facts) {
        struct cf_facts *f = NULL;
        bool good = pd_source_read(a->manifest, &r);
        int rc = get_facts(a, good ? &r : NULL, &f);
        if (rc == 0) rc = save_facts(a->save_facts, f);
        cf_facts_free(f);
        pd_reading_done(&r);
        return rc;
    }
    return do_apply(a);
}

/* What does not go together. NULL = all is well. */
static const char *conflict(const struct args *a) {
    int modes = a->check + a->plan + a->status + a->reload + a->schema + a->fetch;
    if (modes > 1) return "--check, --schema, --fetch, --plan, --status and --reload: one of them";
    if (a->wait && !a->reload) return "--wait belongs to --reload (applying waits by itself)";
    if (a->watch && !a->status) return "--watch belongs to --status";
    if (a->facts && !a->plan) return "--facts belongs to --plan";
    if (a->socket && a->url) return "--socket and --url: one of them";
    if (a->save_facts && (a->check || a->status || a->reload)) return "--save-facts goes with --plan or alone";
    if (a->prune && (a->check || a->status || a->reload)) return "--prune goes with --plan or with applying";
    if (a->if_generation && (a->check || a->status || a->plan)) return "--if-generation goes with applying or --reload";
    if (a->if_generation && (!*a->if_generation || strspn(a->if_generation, "0123456789") != strlen(a->if_generation))) return "--if-generation takes a number";
    return NULL;
}

int main(int argc, char **argv) {
    struct option options[N_ROWS + 3] = { { 0 } };
    struct args a = { .manifest = DEFAULT_MANIFEST };
    for (int i = 0; i < N_ROWS; i++) options[i] = (struct option){ rows[i].name, rows[i].arg ? required_argument : no_argument, NULL, i + 1 };
    options[N_ROWS] = (struct option){ "help", no_argument, NULL, OPT_HELP };
    options[N_ROWS + 1] = (struct option){ "version", no_argument, NULL, OPT_VERSION };
    for (int c; (c = getopt_long(argc, argv, "", options, NULL)) != -1;) {
        if (c == OPT_HELP) {
            help(stdout);
            return 0;
        }
        if (c == OPT_VERSION) {
            printf("Pantheon v%s\nbuild=%s\n", pn_version(), pn_build());
            return 0;
        }
        if (c < 1 || c > N_ROWS) {
            help(stderr);
            return USAGE;
        }
        char *field = (char *)&a + rows[c - 1].at;
        if (rows[c - 1].arg) *(const char **)(void *)field = optarg;
        else *(bool *)(void *)field = true;
    }
    if (optind < argc) a.manifest = argv[optind++];
    if (optind < argc) return usage(": one manifest at a time", argv[optind]);
    const char *why = conflict(&a);
    int rc = why ? usage(why, "") : run(&a);
    if (fflush(stdout) == 0 && !ferror(stdout)) return rc;
    fputs("pantheon-reconcile: the output cannot be written\n", stderr);
    return FAILED;
}
