/* `pantheon router`: flags into the server part of a manifest, and the addresses of the backends. */
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "daemon/cli.h"
#include "daemon/log.h"
#include "daemon/router.h"
#include "daemon/router_serve.h"
#include "daemon/source.h"
#include "foundry/base/buf.h"
#include "foundry/base/err.h"
#include "foundry/base/file.h"

enum { CONNECT_S = 2, HEAD_S = 900, IDLE_S = 300, MAX_KEY_BYTES = 4096 };

/* The one line of a file; heap. False after a message. */
static bool read_key(const char *path, char **ret) {
    struct fo_err e;
    struct stat st;
    char *text;
    size_t n;
    *ret = NULL;
    if (!path) return true;
    if (stat(path, &st) == 0 && S_ISREG(st.st_mode) && (st.st_mode & (S_IROTH | S_IWOTH)))
        return pd_cli_failf("--backend-key-file %s: everybody may read or write it (mode %04o), and with its key the servers; chmod 640 it", path, (unsigned)st.st_mode & 07777), false;
    if (fo_file_read(path, MAX_KEY_BYTES, &text, &n, &e)) return pd_cli_fail(&e), false;
    while (n && strchr(" \t\r\n", text[n - 1])) n--;
    text[n] = '\0';
    bool ok = n > 0;
    for (size_t i = 0; i < n; i++) ok = ok && (unsigned char)text[i] > 0x20 && (unsigned char)text[i] < 0x7F;
    if (!ok) {
        free(text);
        return pd_cli_failf("--backend-key-file %s: it has one line with one key, without blanks", path), false;
    }
    *ret = text;
    return true;
}

static uint64_t ms(int64_t given, int64_t otherwise) {
    return 1000 * (uint64_t)(given ? given : otherwise);
}

int pd_cli_router(const struct pd_cli_args *a) {
    struct pd_cli_log log;
    struct fo_buf y;
    struct pd_reading r = { 0 };
    struct pd_router_opts opts = { .backends = a->backends.v, .n_backends = a->backends.n, .pass_keys = a->pass_keys, .connect_ms = ms(a->connect_timeout, CONNECT_S), .head_ms = ms(a->head_timeout, HEAD_S), .idle_ms = ms(a->idle_timeout, IDLE_S) };
    struct pd_router *router = NULL;
    struct fo_err e;
    int rc = PD_EXIT_USAGE;
    if (a->backends.n == 0) return pd_cli_failf("which servers? Give --backend URL, once for each"), rc;
    if (!pd_cli_log(a, &log) || !read_key(a->backend_key_file, &opts.bearer)) return rc;
    if (pd_router_new(&opts, &router, &e)) return pd_cli_fail(&e), rc;
    fo_buf_init(&y, PD_MAX_MANIFEST_BYTES);
    bool written = pd_cli_put_server(a, &y);
    fo_buf_puts(&y, "models: []\n");
    if (pd_cli_parse_manifest(written, &y, &r)) {
        pd_log_open(log.areas, log.json);
        rc = pd_router_serve(router, &r);
    }
    pd_router_free(router);
    pd_reading_done(&r);
    fo_buf_done(&y);
    return rc;
}
