/* `pantheon serve`: flags become the manifest's own text, parsed by the manifest's own rows, and run the daemon's own code: whatever
 * holds for pantheond holds here. Flags after a --model belong to it, flags before the first to all. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "config/manifest.h"
#include "config/text.h"
#include "daemon/cli.h"
#include "daemon/log.h"
#include "daemon/serve.h"
#include "engine/version.h"
#include "foundry/base/buf.h"
#include "foundry/base/err.h"
#include "foundry/device.h"

enum { MAX_MANIFEST = 1 << 20 };

static void put_int(struct fo_buf *y, const char *key, int64_t own, int64_t all) {
    int64_t v = own ? own : all;
    if (v) fo_buf_printf(y, "    %s: %lld\n", key, (long long)v);
}

/* `text` quoted; false after a message when YAML cannot say it. */
static bool put_text(struct fo_buf *y, const char *flag, const char *text) {
    if (cf_quote(text, y)) return true;
    pd_cli_failf("%s: not valid UTF-8", flag);
    return false;
}

/* The file's name without folder and .gguf: what people call the model. */
static bool put_name(const char *path, struct fo_buf *y) {
    const char *slash = strrchr(path, '/'), *base = slash ? slash + 1 : path;
    size_t n = strlen(base);
    if (n > 5 && strcmp(base + n - 5, ".gguf") == 0) n -= 5;
    char *name = strndup(base, n);
    bool ok = name && put_text(y, "--model", name);
    if (!name) y->failed = true;
    free(name);
    return ok;
}

static bool write_manifest(const struct pd_cli_args *a, struct fo_buf *y) {
    const char *host = a->host ? a->host : "127.0.0.1";
    long long port = a->port ? (long long)a->port : 8080;
    char listen[300];
    snprintf(listen, sizeof listen, strchr(host, ':') && *host != '[' ? "[%s]:%lld" : "%s:%lld", host, port);
    fo_buf_puts(y, "version: 1\nserver:\n  listen: [ ");
    if (!put_text(y, "--host", listen)) return false;
    fo_buf_puts(y, " ]\n");
    if (a->threads) fo_buf_printf(y, "host:\n  threads: %lld\n", (long long)a->threads);
    fo_buf_puts(y, "models:\n");
    const struct pd_cli_model *all = &a->models[0];
    for (int i = 1; i <= a->n_models; i++) {
        const struct pd_cli_model *m = &a->models[i];
        const char *template = m->chat_template ? m->chat_template : all->chat_template;
        fo_buf_puts(y, "  - name: ");
        if (m->name ? !put_text(y, "--name", m->name) : !put_name(m->path, y)) return false;
        fo_buf_puts(y, "\n    source: { path: ");
        if (!put_text(y, "--model", m->path)) return false;
        fo_buf_puts(y, " }\n");
        put_int(y, "ctx_cap", m->ctx_cap, all->ctx_cap);
        int64_t concurrent = m->max_concurrent ? m->max_concurrent : all->max_concurrent;
        int64_t sessions = m->max_sessions ? m->max_sessions : all->max_sessions;
        /* one of the two is enough on a command line: the other follows */
        if (concurrent && !sessions) sessions = concurrent > 4 ? concurrent : 4;
        if (sessions == 1 && !concurrent) concurrent = 1;
        put_int(y, "max_sessions", sessions, 0);
        put_int(y, "max_concurrent", concurrent, 0);
        if (template) {
            fo_buf_puts(y, "    chat_template: ");
            if (!put_text(y, "--chat-template", template)) return false;
            fo_buf_putc(y, '\n');
        }
    }
    return true;
}

int pd_cli_serve(const struct pd_cli_args *a) {
    if (a->dies) return pd_cli_failf("--dies %s: this build (backend=%s) has no accelerator dies", a->dies, fo_device_build_backend());
    if (a->n_models == 0) {
        pd_cli_failf("which model? Give --model FILE");
        return PD_EXIT_USAGE;
    }
    const char *areas = NULL;
    if (a->log) {
        if (strncmp(a->log, "debug=", 6) != 0) {
            pd_cli_failf("--log %s: must be debug=AREA,...", a->log);
            return PD_EXIT_USAGE;
        }
        areas = a->log + 6;
    }
    if (a->models[0].name && a->n_models > 0) {
        pd_cli_failf("--name %s stands before the first --model: put it after the model it names", a->models[0].name);
        return PD_EXIT_USAGE;
    }
    struct fo_buf y;
    fo_buf_init(&y, MAX_MANIFEST);
    bool written = write_manifest(a, &y);
    struct cf_manifest *m = NULL;
    struct cf_report report = { 0 };
    struct fo_err e;
    int rc = PD_EXIT_USAGE;
    if (!written && !y.failed) {
        rc = PD_EXIT_USAGE; /* said already */
    } else if (y.failed) {
        pd_cli_failf("the flags do not fit a manifest of %d bytes", MAX_MANIFEST);
    } else if (cf_manifest_parse(y.data, y.len, &m, &report, &e)) {
        /* there is no file to point at: the findings' text names the key, which is the flag's name */
        if (report.n == 0) pd_cli_fail(&e);
        for (size_t i = 0; i < report.n; i++) pd_cli_failf("%s", report.findings[i].text);
    } else {
        const char *backend = fo_device_build_backend();
        printf("backend=%s build=%s accelerator=%s\ndies=0\n", backend, pn_build(), strcmp(backend, "cpu") == 0 ? "none" : backend);
        fflush(stdout);
        pd_log_open(areas);
        rc = pd_serve(m, NULL, &(struct pd_serve_opts){ .isa = a->isa, .no_mmap = a->no_mmap });
    }
    cf_report_done(&report);
    cf_manifest_free(m);
    fo_buf_done(&y);
    return rc;
}
