/* One model after the other, by priority as the daemon takes them. A daemon that fetches the same file has its part locked: that is said, and
 * no more is done. Ctrl-C leaves the part for the next time. */
#include "daemon/fetch_cli.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "config/facts.h"
#include "config/manifest.h"
#include "daemon/estimate.h"
#include "daemon/fetch.h"
#include "daemon/files.h"
#include "daemon/source.h"
#include "daemon/verified.h"
#include "foundry/base/clock.h"
#include "foundry/base/units.h"

enum { SHOW_MS = 250 };

struct show {
    const struct pd_fetch_job *job;
    uint64_t shown_ms;
    bool terminal;
};

static void tick(void *ctx) {
    struct show *s = ctx;
    uint64_t now = fo_now_ms();
    const struct pd_progress *p = &s->job->progress;
    uint64_t done = atomic_load(&p->done), all = atomic_load(&p->size), rate = atomic_load(&p->rate);
    char here[32], whole[32], fast[32], left[32], of_files[32] = "";
    if (!s->terminal || now - s->shown_ms < SHOW_MS) return;
    s->shown_ms = now;
    if (s->job->n_files > 1) snprintf(of_files, sizeof of_files, " (%u of %zu)", atomic_load(&p->file) + 1, s->job->n_files);
    printf("\r\033[K%s%s: %s %s", s->job->model, of_files, atomic_load(&p->verifying) ? "checked" : "fetched", fo_format_bytes(done, here, sizeof here));
    if (all) printf(" of %s, %u%%", fo_format_bytes(all, whole, sizeof whole), (unsigned)((double)done * 100 / (double)all));
    if (rate) printf(", %s/s", fo_format_bytes(rate, fast, sizeof fast));
    if (rate && all > done) printf(", about %s left", fo_format_ms((all - done) / rate * 1000, left, sizeof left));
    fflush(stdout);
}

/* Whether the model's file is there and right in the end. */
static bool get(const struct cf_model *m, const char *dir, const struct cf_file *file, struct pd_verified *v) {
    struct show s = { .terminal = isatty(1) };
    char *path = pd_resolve(dir, m->source_path), bytes[32], took[32];
    struct pd_fetch_job *j = path ? pd_fetch_job_new(m, path) : NULL;
    free(path);
    if (!j) {
        fputs("pantheon-reconcile: no memory for a download\n", stderr);
        return false;
    }
    s.job = j;
    j->tick = tick;
    j->ctx = &s;
    if (file->state == CF_FILE_UNVERIFIED) printf("%s: is there, and its sha256 is checked\n", m->name);
    else printf("%s: from %s%s\n", m->name, m->source_url, file->part_bytes ? ", going on where it ended" : "");
    fflush(stdout);
    pd_fetch_perform(j);
    if (s.terminal) fputs("\r\033[K", stdout);
    bool good = j->end == PD_F_DONE;
    if (!good) fprintf(stderr, "%s: %s: %s\n", m->name, pd_fetch_end_name(j->end), j->err.msg);
    else printf("%s: %s after %s\n", m->name, atomic_load(&j->progress.fetched) ? fo_format_bytes(atomic_load(&j->progress.fetched), bytes, sizeof bytes) : "is right", fo_format_ms(j->took_ms, took, sizeof took));
    fflush(stdout);
    if (good && j->n_sums) pd_verified_note(v, m, j->identity, NULL);
    pd_fetch_job_free(j);
    return good;
}

static int by_turn(const void *a, const void *b) {
    const struct cf_model *x = *(struct cf_model *const *)a, *y = *(struct cf_model *const *)b;
    if (x->priority != y->priority) return x->priority > y->priority ? -1 : 1;
    return x < y ? -1 : x > y;
}

int pd_fetch_cli(const struct cf_manifest *m, const char *dir) {
    struct pd_verified v;
    size_t n = 0, n_bad = 0;
    struct cf_model **turn = calloc(m->n_models + 1, sizeof(struct cf_model *));
    if (!turn) {
        fputs("pantheon-reconcile: no memory for a download\n", stderr);
        return 1;
    }
    signal(SIGPIPE, SIG_IGN); /* a server that goes away is an error like any other */
    signal(SIGXFSZ, SIG_IGN); /* and so is a limit on file sizes */
    const char *state = pd_source_state_dir();
    pd_verified_init(&v, state && access(state, W_OK) == 0 ? state : NULL);
    for (size_t i = 0; i < m->n_models; i++) turn[n++] = &m->models[i];
    qsort(turn, n, sizeof(struct cf_model *), by_turn);
    for (size_t i = 0; i < n; i++) {
        struct cf_file file;
        if (turn[i]->state == CF_STATE_ABSENT || !pd_file_look(dir, turn[i], &v, &file)) continue;
        if (file.state == CF_FILE_PRESENT) printf("%s: is there\n", turn[i]->name);
        else n_bad += !get(turn[i], dir, &file, &v);
    }
    pd_verified_done(&v);
    free(turn);
    return n_bad ? 1 : 0;
}
