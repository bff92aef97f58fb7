/* The kept copy is `last-accepted.yaml`: comment lines that say of which file and generation it is, how many texts there are, and of each its bytes and
 * path; then the texts as they were, one behind the other:
 *
 *     # accepted from /etc/pantheon/models.yaml as generation 7
 *     # texts: 2
 *     # 120 /etc/pantheon/models.yaml
 *     # 88 /etc/pantheon/models.d/chat.yaml
 *     version: 1 ... */
#include "daemon/reach.h"
#include "daemon/source.h"

#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "config/manifest.h"
#include "foundry/base/buf.h"
#include "foundry/base/err.h"
#include "foundry/base/file.h"

#define KEPT "last-accepted.yaml"
#define DEFAULT_STATE_DIR "/var/lib/pantheon"
enum { MAX_PATH = 4096, MAX_FAULTS = 100, MAX_KEPT_BYTES = PD_MAX_MANIFEST_BYTES + (PD_MAX_INCLUDED + 2) * (MAX_PATH + 32) };

/* --- texts --- */

void pd_texts_done(struct pd_texts *t) {
    for (size_t i = 0; i < t->n; i++) {
        free((char *)t->list[i].name);
        free((char *)t->list[i].text);
    }
    free(t->list);
    *t = (struct pd_texts){ 0 };
}

bool pd_texts_equal(const struct pd_texts *a, const struct pd_texts *b) {
    if (a->n != b->n) return false;
    for (size_t i = 0; i < a->n; i++)
        if (strcmp(a->list[i].name, b->list[i].name) != 0 || a->list[i].len != b->list[i].len || memcmp(a->list[i].text, b->list[i].text, a->list[i].len) != 0) return false;
    return true;
}

/* Adds a text, taken over; the name is copied. False without memory: `text` is freed then. */
static bool add_text(struct pd_texts *t, const char *name, char *text, size_t len) {
    char *copy = strdup(name);
    struct cf_text *list = copy && text ? realloc(t->list, (t->n + 1) * sizeof *list) : NULL;
    if (!list) {
        free(copy);
        free(text);
        return false;
    }
    t->list = list;
    list[t->n++] = (struct cf_text){ copy, text, len };
    return true;
}

static char *copy_of(const char *p, size_t n) {
    char *copy = malloc(n + 1);
    if (copy) {
        memcpy(copy, p, n);
        copy[n] = '\0';
    }
    return copy;
}

static size_t bytes_of(const struct pd_texts *t) {
    size_t n = 0;
    for (size_t i = 0; i < t->n; i++) n += t->list[i].len;
    return n;
}

/* --- what is included --- */

/* Files that are being gathered, and why some cannot be. */
struct gather {
    const char *path; /* the manifest's */
    struct pd_texts *texts;
    struct stat seen[PD_MAX_INCLUDED + 1]; /* of the texts */
    struct cf_finding faults[MAX_FAULTS];
    size_t n_faults;
    bool full, no_memory;
};

__attribute__((format(printf, 3, 4))) static void fault(struct gather *g, const struct cf_include *at, const char *fmt, ...) {
    va_list ap;
    char *text;
    if (g->n_faults == MAX_FAULTS) return;
    va_start(ap, fmt);
    if (vasprintf(&text, fmt, ap) < 0) g->no_memory = true;
    else g->faults[g->n_faults++] = (struct cf_finding){ .class = CF_MISSING, .line = at->line, .col = at->col, .width = at->width, .text = text };
    va_end(ap);
}

/* A file that two patterns name is one; the manifest itself is none. */
static bool is_there_already(const struct gather *g, const struct stat *st) {
    for (size_t i = 0; i < g->texts->n; i++)
        if (g->seen[i].st_dev == st->st_dev && g->seen[i].st_ino == st->st_ino) return true;
    return false;
}

static bool is_text(const char *s) {
    char *copy = strdup(s);
    if (copy) fo_text_defuse(copy);
    bool same = copy && strcmp(copy, s) == 0;
    free(copy);
    return same;
}

static void include_file(struct gather *g, const struct cf_include *at, const char *file) {
    struct stat st;
    struct fo_err e;
    char *text;
    size_t len, left = PD_MAX_MANIFEST_BYTES - bytes_of(g->texts);
    if (!is_text(file)) { /* it goes into reports and answers, which are UTF-8 */
        fault(g, at, "'include': the name of a file with a control character, or that is not UTF-8; rename it: %s", file);
        return;
    }
    if (stat(file, &st)) {
        fault(g, at, "'include': %s: %s", file, strerror(errno));
    } else if (is_there_already(g, &st)) {
        return;
    } else if (g->texts->n > PD_MAX_INCLUDED) {
        if (!g->full) fault(g, at, "'include': more than %d files", PD_MAX_INCLUDED);
        g->full = true;
    } else if (fo_file_read(file, left, &text, &len, &e)) {
        if (e.code == FO_ELIMIT) fault(g, at, "'include': with %s the manifest has more than %d bytes; that many are read", file, PD_MAX_MANIFEST_BYTES);
        else fault(g, at, "'include': %s", e.msg);
    } else {
        g->seen[g->texts->n] = st;
        if (!add_text(g->texts, file, text, len)) g->no_memory = true;
    }
}

/* What glob cannot look into: nothing fits there where there is no such folder; all else is a fault. */
static int folder_fails(const char *folder, int err) {
    (void)folder;
    return err != ENOENT && err != ENOTDIR;
}

static int by_bytes(const void *a, const void *b) {
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static void include(struct gather *g, const struct cf_include *in) {
    glob_t found = { 0 };
    const char *slash = *in->pattern == '/' ? NULL : strrchr(g->path, '/');
    bool is_pattern = strpbrk(in->pattern, "*?[") != NULL;
    char pattern[2 * MAX_PATH];
    size_t n = 0;
    for (const char *p = g->path; slash && p <= slash && n < MAX_PATH; p++) { /* the folder's own name is meant as it is */
        if (is_pattern && strchr("*?[\\", *p)) pattern[n++] = '\\';
        pattern[n++] = *p;
    }
    int rest = snprintf(pattern + n, sizeof pattern - n, "%s", in->pattern);
    if (n + (size_t)rest >= MAX_PATH) {
        fault(g, in, "'include': the path is too long");
    } else if (!is_pattern) {
        include_file(g, in, pattern);
    } else {
        int rc = glob(pattern, GLOB_NOSORT, folder_fails, &found);
        if (rc == GLOB_NOSPACE) g->no_memory = true;
        if (rc == GLOB_ABORTED) fault(g, in, "'include': a folder of %s cannot be looked into: %s", pattern, strerror(errno));
        if (rc == 0) qsort(found.gl_pathv, found.gl_pathc, sizeof *found.gl_pathv, by_bytes); /* not as a locale sorts */
        for (size_t i = 0; rc == 0 && i < found.gl_pathc; i++) include_file(g, in, found.gl_pathv[i]);
        globfree(&found);
    }
}

/* --- reading --- */

static bool parse(struct pd_texts *texts, const struct cf_finding *faults, size_t n_faults, struct pd_reading *ret) {
    struct cf_report report = { 0 };
    struct fo_err e;
    *ret = (struct pd_reading){ .texts = *texts };
    *texts = (struct pd_texts){ 0 };
    bool ok = cf_manifest_parse_files(ret->texts.list, ret->texts.n, faults, n_faults, &ret->manifest, &report, &e) == FO_OK;
    if (!ok) {
        ret->manifest = NULL;
        ret->report = report.n ? cf_report_format(&report, ret->texts.list) : NULL;
        if (!ret->report && asprintf(&ret->report, "%s: %s\n", ret->texts.list[0].name, e.msg) < 0) ret->report = NULL;
    }
    cf_report_done(&report);
    return ok;
}

bool pd_source_parse(struct pd_texts *texts, struct pd_reading *ret) {
    return parse(texts, NULL, 0, ret);
}

/* Not read: `msg` is all that is said. */
static bool unread(struct pd_reading *ret, const char *msg) {
    *ret = (struct pd_reading){ 0 };
    if (asprintf(&ret->report, "%s\n", msg) < 0) ret->report = NULL;
    return false;
}

bool pd_source_read(const char *path, struct pd_reading *ret) {
    struct fo_err e;
    struct pd_texts texts = { 0 };
    struct cf_includes in;
    char *text;
    size_t len;
    if (fo_file_read(path, PD_MAX_MANIFEST_BYTES, &text, &len, &e)) {
        pd_reach_explain(path, &e);
        return unread(ret, e.msg);
    }
    struct gather *g = calloc(1, sizeof *g);
    if (!g || !add_text(&texts, path, text, len)) {
        free(g);
        return unread(ret, "no memory to read the manifest");
    }
    g->path = path;
    g->texts = &texts;
    if (stat(path, &g->seen[0])) g->seen[0] = (struct stat){ 0 };
    if (cf_manifest_includes(text, len, &in, &e)) g->no_memory = true;
    for (size_t i = 0; i < in.n; i++) include(g, &in.list[i]);
    cf_includes_done(&in);
    bool good = g->no_memory ? unread(ret, "no memory to read the manifest") : parse(&texts, g->faults, g->n_faults, ret);
    for (size_t i = 0; i < g->n_faults; i++) free(g->faults[i].text);
    free(g);
    pd_texts_done(&texts);
    return good;
}

void pd_reading_done(struct pd_reading *r) {
    pd_texts_done(&r->texts);
    free(r->report);
    cf_manifest_free(r->manifest);
    *r = (struct pd_reading){ 0 };
}

const char *pd_source_state_dir(void) {
    static char dir[MAX_PATH];
    struct stat st;
    const char *set = getenv("STATE_DIRECTORY");
    if (set && *set) {
        snprintf(dir, sizeof dir, "%.*s", (int)strcspn(set, ":"), set);
        return dir;
    }
    return stat(DEFAULT_STATE_DIR, &st) == 0 && S_ISDIR(st.st_mode) ? DEFAULT_STATE_DIR : NULL;
}

/* A decimal number and what must follow it; NULL when it is none, 0 or past `most`. */
static const char *number(const char *p, char then, uint64_t most, uint64_t *ret) {
    char *end;
    if (*p < '1' || *p > '9') return NULL;
    errno = 0;
    *ret = strtoull(p, &end, 10);
    return errno == 0 && *end == then && *ret <= most ? end + 1 : NULL;
}

/* The texts behind the head line. False = they are not what a head of theirs says, or no memory. */
static bool split(const char *path, const char *p, const char *end, struct pd_texts *ret) {
    uint64_t n, len[PD_MAX_INCLUDED + 1];
    const char *name[PD_MAX_INCLUDED + 1];
    static const char count[] = "# texts: ";
    if (strncmp(p, count, sizeof count - 1) != 0) return add_text(ret, path, copy_of(p, (size_t)(end - p)), (size_t)(end - p)); /* as versions before this one kept it */
    p = number(p + sizeof count - 1, '\n', PD_MAX_INCLUDED + 1, &n);
    for (uint64_t i = 0; p && i < n; i++) {
        const char *line = p;
        p = strncmp(p, "# ", 2) == 0 ? number(p + 2, ' ', PD_MAX_MANIFEST_BYTES, &len[i]) : NULL;
        if (!p && strncmp(line, "# 0 ", 4) == 0) { /* an included file may be empty */
            p = line + 4;
            len[i] = 0;
        }
        name[i] = p;
        p = p ? strchr(p, '\n') : NULL;
        if (p) p++;
    }
    for (uint64_t i = 0; p && i < n; i++) {
        char *called = copy_of(name[i], strcspn(name[i], "\n"));
        bool ok = called && len[i] <= (uint64_t)(end - p) && add_text(ret, called, copy_of(p, (size_t)len[i]), (size_t)len[i]);
        free(called);
        p = ok ? p + len[i] : NULL;
    }
    return p == end;
}

int pd_source_last(const char *state_dir, const char *path, struct pd_texts *ret, uint64_t *ret_generation, struct fo_err *e) {
    char file[MAX_PATH], head[MAX_PATH + 64];
    char *text;
    size_t len;
    uint64_t generation;
    struct pd_texts texts = { 0 };
    snprintf(file, sizeof file, "%s/" KEPT, state_dir);
    if (fo_file_read(file, MAX_KEPT_BYTES, &text, &len, e)) return e->code;
    size_t n = (size_t)snprintf(head, sizeof head, "# accepted from %s as generation ", path);
    const char *p = n < sizeof head && len > n && memcmp(text, head, n) == 0 ? number(text + n, '\n', UINT64_MAX, &generation) : NULL;
    bool good = p && split(path, p, text + len, &texts);
    free(text);
    if (!good) {
        pd_texts_done(&texts);
        return fo_fail(e, FO_ENOENT, "%s is not of %s", file, path);
    }
    *ret = texts;
    *ret_generation = generation;
    return FO_OK;
}

static bool write_all(int fd, const char *p, size_t n) {
    while (n > 0) {
        ssize_t k = write(fd, p, n);
        if (k < 0 && errno == EINTR) continue;
        if (k < 0) return false;
        p += k;
        n -= (size_t)k;
    }
    return true;
}

int pd_source_keep(const char *state_dir, const struct pd_texts *texts, uint64_t generation, struct fo_err *e) {
    char file[MAX_PATH], temp[MAX_PATH];
    struct fo_buf head;
    snprintf(file, sizeof file, "%s/" KEPT, state_dir);
    snprintf(temp, sizeof temp, "%s/" KEPT ".new", state_dir);
    fo_buf_init(&head, MAX_KEPT_BYTES);
    fo_buf_printf(&head, "# accepted from %s as generation %llu\n", texts->list[0].name, (unsigned long long)generation);
    fo_buf_printf(&head, "# texts: %zu\n", texts->n);
    for (size_t i = 0; i < texts->n; i++) fo_buf_printf(&head, "# %zu %s\n", texts->list[i].len, texts->list[i].name);
    if (head.failed) {
        fo_buf_done(&head);
        return fo_fail(e, FO_ENOMEM, "%s: no memory", file);
    }
    int fd = open(temp, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0640), err = errno;
    bool ok = fd >= 0 && write_all(fd, head.data, head.len);
    for (size_t i = 0; i < texts->n && ok; i++) ok = write_all(fd, texts->list[i].text, texts->list[i].len);
    ok = ok && fsync(fd) == 0;
    fo_buf_done(&head);
    if (fd < 0) return fo_fail_errno(e, err, "%s", temp);
    err = errno;
    if (close(fd) && ok) {
        ok = false;
        err = errno;
    }
    if (ok && rename(temp, file)) {
        ok = false;
        err = errno;
    }
    if (ok) return FO_OK;
    unlink(temp);
    return fo_fail_errno(e, err, "%s", file);
}
