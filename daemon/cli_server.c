/* What `pantheon serve` and `pantheon router` have in common: flags become the server part of a manifest's own text, parsed by the manifest's own
 * rows, so that keys, certificates, limits and hosts are what they are for pantheond. */
#include <stdlib.h>
#include <string.h>

#include "config/manifest.h"
#include "config/text.h"
#include "daemon/cli.h"
#include "daemon/log.h"
#include "daemon/source.h"
#include "foundry/base/buf.h"
#include "foundry/base/err.h"
#include "foundry/base/log.h"

bool pd_cli_put_text(struct fo_buf *y, const char *flag, const char *text) {
    if (cf_quote(text, y)) return true;
    pd_cli_failf("%s: not valid UTF-8", flag);
    return false;
}

static bool put_hosts(const struct pd_cli_args *a, struct fo_buf *y) {
    if (a->allowed_hosts.n == 0) return true;
    fo_buf_puts(y, "  allowed_hosts: [ ");
    for (size_t i = 0; i < a->allowed_hosts.n; i++) {
        if (i) fo_buf_puts(y, ", ");
        if (!pd_cli_put_text(y, "--allowed-host", a->allowed_hosts.v[i])) return false;
    }
    fo_buf_puts(y, " ]\n");
    return true;
}

static void put_limits(const struct pd_cli_args *a, struct fo_buf *y) {
    const struct {
        const char *key, *unit;
        int64_t value; /* 0 = not given */
    } rows[] = { { "connections", "", a->max_connections }, { "connections_per_address", "", a->max_per_address }, { "body", "MiB", a->max_body_mib } };
    bool any = false;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (!rows[i].value) continue;
        fo_buf_printf(y, "%s%s: %lld%s", any ? ", " : "  limits: { ", rows[i].key, (long long)rows[i].value, rows[i].unit);
        any = true;
    }
    if (any) fo_buf_puts(y, " }\n");
}

bool pd_cli_put_server(const struct pd_cli_args *a, struct fo_buf *y) {
    const char *host = a->host ? a->host : "127.0.0.1";
    long long port = a->port ? (long long)a->port : 8080;
    char listen[300];
    snprintf(listen, sizeof listen, strchr(host, ':') && *host != '[' ? "[%s]:%lld" : "%s:%lld", host, port);
    fo_buf_puts(y, "version: 1\nserver:\n  listen: [ ");
    if (!pd_cli_put_text(y, "--host", listen)) return false;
    fo_buf_puts(y, " ]\n");
    if (a->api_keys_file) {
        fo_buf_puts(y, "  api_keys_file: ");
        if (!pd_cli_put_text(y, "--api-keys-file", a->api_keys_file)) return false;
        fo_buf_putc(y, '\n');
    }
    if (a->tls_cert || a->tls_key) {
        fo_buf_puts(y, "  tls: { ");
        if (a->tls_cert) fo_buf_puts(y, "cert: ");
        if (a->tls_cert && !pd_cli_put_text(y, "--tls-cert", a->tls_cert)) return false;
        if (a->tls_key) fo_buf_puts(y, a->tls_cert ? ", key: " : "key: ");
        if (a->tls_key && !pd_cli_put_text(y, "--tls-key", a->tls_key)) return false;
        fo_buf_puts(y, " }\n");
    }
    if (a->insecure) fo_buf_puts(y, "  insecure: true\n");
    if (a->drain) fo_buf_printf(y, "  drain: %llds\n", (long long)a->drain);
    put_limits(a, y);
    return put_hosts(a, y);
}

/* There is no file to point at: the findings' text names the key, which is the flag's name. Takes `text` over. */
static bool parse(char *text, struct pd_reading *ret) {
    struct cf_report report = { 0 };
    struct fo_err e;
    *ret = (struct pd_reading){ 0 };
    bool ok = cf_manifest_parse(text, strlen(text), &ret->manifest, &report, &e) == FO_OK;
    if (!ok && report.n == 0) pd_cli_fail(&e);
    for (size_t i = 0; i < report.n; i++) pd_cli_failf("%s", report.findings[i].text);
    cf_report_done(&report);
    free(text);
    if (!ok) ret->manifest = NULL;
    return ok;
}

bool pd_cli_parse_manifest(bool written, struct fo_buf *y, struct pd_reading *ret) {
    char *text = written && !y->failed ? fo_buf_steal(y) : NULL;
    if (text) return parse(text, ret);
    if (y->failed) pd_cli_failf("the flags do not fit a manifest of %d bytes", PD_MAX_MANIFEST_BYTES);
    return false; /* what cannot be written was said already */
}

bool pd_cli_log(const struct pd_cli_args *a, struct pd_cli_log *ret) {
    *ret = (struct pd_cli_log){ 0 };
    if (a->log) {
        if (strncmp(a->log, "debug=", 6) != 0) return pd_cli_failf("--log %s: must be debug=AREA,...", a->log), false;
        ret->areas = a->log + 6;
        size_t n;
        const char *unknown = fo_log_unknown_area(ret->areas, &n);
        if (unknown) return pd_cli_failf("--log %s: there is no area '%.*s'; there are %s, and all", a->log, (int)n, unknown, fo_log_areas()), false;
    }
    if (a->log_format && !pd_log_format(a->log_format, &ret->json)) return pd_cli_failf("--log-format %s: text or json", a->log_format), false;
    return true;
}
