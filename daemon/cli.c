/* What the subcommands of `pantheon` share: see cli.h. */
#include "daemon/cli.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/model.h"
#include "foundry/base/buf.h"
#include "foundry/base/err.h"
#include "foundry/base/file.h"
#include "foundry/base/rng.h"
#include "foundry/device.h"

int pd_cli_fail(const struct fo_err *e) {
    pd_cli_progress(NULL);
    fprintf(stderr, "pantheon: %s\n", e->msg);
    return PD_EXIT_FAILURE;
}

int pd_cli_failf(const char *fmt, ...) {
    pd_cli_progress(NULL);
    fputs("pantheon: ", stderr);
    va_list ap;
    va_start(ap, fmt);
    vfprintf(stderr, fmt, ap);
    va_end(ap);
    fputc('\n', stderr);
    return PD_EXIT_FAILURE;
}

const char *pd_cli_model_path(const struct pd_cli_args *a) {
    if (a->n_models > 1) {
        pd_cli_failf("one --model only; `pantheon serve` takes several");
        return NULL;
    }
    if (a->n_models == 1) return a->models[1].path;
    if (a->n_rest > 0) return a->rest[0];
    pd_cli_failf("which model? Give --model FILE");
    return NULL;
}

int pd_cli_open_device(const struct pd_cli_args *a, struct fo_device **ret, struct fo_err *e) {
    struct fo_device_opts o = { .n_threads = (int)a->threads, .isa = a->isa, .exact = a->exact };
    return fo_device_open("cpu", NULL, &o, ret, e);
}

int pd_cli_kv(const struct pd_cli_args *a, struct pn_model_opts *o, struct fo_err *e) {
    const char *kv = a->models[a->n_models].kv ? a->models[a->n_models].kv : a->models[0].kv;
    o->kv_default = true;
    return kv && pn_kv_type_parse(kv, o, e) ? fo_wrap(e, "--kv") : FO_OK;
}

void pd_cli_progress(const char *fmt, ...) {
    static bool shown;
    if (!isatty(STDERR_FILENO)) return;
    if (shown) fputs("\r\033[K", stderr);
    shown = fmt != NULL;
    if (fmt) {
        va_list ap;
        va_start(ap, fmt);
        vfprintf(stderr, fmt, ap);
        va_end(ap);
    }
    fflush(stderr);
}

int pd_cli_read(const char *path, size_t cap, char **ret, size_t *ret_len, struct fo_err *e) {
    if (path && strcmp(path, "-") != 0) return fo_file_read(path, cap, ret, ret_len, e);
    struct fo_buf b;
    fo_buf_init(&b, cap);
    char part[65536];
    for (;;) {
        ssize_t n = read(STDIN_FILENO, part, sizeof part);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) {
            fo_buf_done(&b);
            return fo_fail_errno(e, errno, "stdin");
        }
        if (n == 0) break;
        if (!fo_buf_append(&b, part, (size_t)n)) {
            fo_buf_done(&b);
            return fo_fail_need(e, FO_ELIMIT, 0, cap, "stdin: more than %zu bytes", cap);
        }
    }
    size_t len = b.len;
    char *data = len ? fo_buf_steal(&b) : calloc(1, 1);
    if (!data) return fo_fail(e, FO_ENOMEM, "stdin: no memory");
    *ret = data;
    *ret_len = len;
    return FO_OK;
}

struct pn_sampling pd_cli_sampling(const struct pd_cli_args *a) {
    struct pn_sampling s = pn_sampling_default;
    s.temperature = a->has_temperature ? (float)a->temperature : 0.7f;
    s.top_p = a->top_p > 0 ? (float)a->top_p : 0.95f;
    s.top_k = (int32_t)a->top_k;
    s.min_p = (float)a->min_p;
    if (a->repeat_penalty > 0) {
        s.repeat_penalty = (float)a->repeat_penalty;
        s.repeat_last_n = 64;
    }
    s.seed = a->has_seed ? a->seed : fo_rng_entropy();
    return s;
}

static volatile sig_atomic_t interrupts;

static void on_interrupt(int sig) {
    (void)sig;
    interrupts = 1;
}

static void catch(int sig) {
    struct sigaction sa = { .sa_handler = on_interrupt }; /* no SA_RESTART: a blocked read must return */
    sigemptyset(&sa.sa_mask);
    sigaction(sig, &sa, NULL);
}

void pd_cli_catch_interrupt(void) {
    catch(SIGINT);
}

void pd_cli_catch_end(void) {
    catch(SIGINT);
    catch(SIGTERM);
    catch(SIGHUP);
}

bool pd_cli_interrupted(void) {
    if (!interrupts) return false;
    interrupts = 0;
    return true;
}
