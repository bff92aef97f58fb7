/* Sessions on disk: see sessions.h.
 *
 *     <16 digits of the model>-<32 of model, key and session>-<16 of the tokens>.session
 *
 *     { char magic[8]; u32 bytes of model, tenant, session (~0 = there is none); u32 0 } the three, one after the other { u64 checksum } the blob
 *
 * A file appears whole or not at all; parts of files that a killed daemon left are removed when the folder is next used. Its time of change is when
 * its text was last used. */
#include "daemon/sessions.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "config/manifest.h"
#include "daemon/app.h"
#include "daemon/estimate.h"
#include "daemon/notify.h"
#include "daemon/source.h"
#include "engine/blob.h"
#include "engine/engine.h"
#include "foundry/base/clock.h"
#include "foundry/base/err.h"
#include "foundry/base/hash.h"
#include "foundry/base/outfile.h"
#include "foundry/base/sha256.h"
#include "foundry/base/units.h"

enum { PART_S = 60 /* of rest: nobody writes to it any more */, RESTORE_MS = 10000, MAX_NAME_BYTES = 4096, NAME_BYTES = 96, MODEL_DIGITS = 16, OWNER_DIGITS = 32 };
#define RESTORE_BYTES (UINT64_C(2) << 30) /* most that is read back: what RESTORE_MS are enough for */
static const char magic[8] = "pdsess1\n", suffix[] = ".session";

struct head {
    char magic[8];
    uint32_t n_model, n_tenant, n_session, zero; /* UINT32_MAX = there is none */
};

/* --- the folder ------------------------------------------------------------------------------ */
struct folder {
    char path[PATH_MAX];
    uint64_t quota;
};

/* The manifest's folder. */
static void manifest_dir(const struct pd_app *app, char dir[PATH_MAX]) {
    const char *slash = app->config ? strrchr(app->config, '/') : NULL;
    snprintf(dir, PATH_MAX, "%.*s", slash ? (int)(slash - app->config) : 1, slash ? app->config : ".");
}

static int find_folder(struct pd_app *app, struct folder *ret, struct fo_err *e) {
    char dir[PATH_MAX];
    const char *state = pd_source_state_dir();
    struct pd_view *v = pd_app_view(app);
    const struct cf_sessions *s = &v->manifest->m->sessions;
    manifest_dir(app, dir);
    char *path = s->path ? pd_resolve(dir, s->path) : state ? pd_resolve(state, "sessions") : NULL;
    int rc = FO_OK;
    if (!path) rc = fo_fail(e, FO_ENOENT, "there is no state directory: name a folder (sessions.path)");
    else if ((size_t)snprintf(ret->path, sizeof ret->path, "%s", path) >= sizeof ret->path - 2 * NAME_BYTES) rc = fo_fail(e, FO_EINVAL, "sessions.path is too long");
    ret->quota = s->quota_bytes;
    free(path);
    pd_view_put(v);
    return rc;
}

/* Conversations lie in it: it is ours alone, or it is not used. */
static int check_folder(const struct folder *d, struct fo_err *e) {
    struct stat st;
    int fd = open(d->path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0) return fo_fail_errno(e, errno, "%s", d->path);
    int rc = fstat(fd, &st) ? (int)fo_fail_errno(e, errno, "%s", d->path) : FO_OK;
    close(fd);
    if (rc == FO_OK && (st.st_uid != geteuid() || (st.st_mode & 077)))
        rc = fo_fail(e, FO_EACCES, "%s: others may look into it, or it is another user's: it must be ours, with mode 0700", d->path);
    return rc;
}

struct file {
    char name[NAME_BYTES];
    uint64_t bytes;
    int64_t used_ms; /* since 1970 */
};
struct files {
    struct file *list; /* [n] */
    size_t n;
};

static bool ends(const char *name, const char *with) {
    size_t n = strlen(name), k = strlen(with);
    return n >= k && strcmp(name + n - k, with) == 0;
}

static int newest_first(const void *a, const void *b) {
    int64_t x = ((const struct file *)a)->used_ms, y = ((const struct file *)b)->used_ms;
    return x < y ? 1 : x > y ? -1 : 0;
}

/* Those whose names begin so, most recently used first; parts of files are removed. */
static int look(const struct folder *d, const char *prefix, struct files *ret, struct fo_err *e) {
    struct stat st;
    struct dirent *entry;
    DIR *dir = opendir(d->path);
    *ret = (struct files){ 0 };
    if (!dir) return fo_fail_errno(e, errno, "%s", d->path);
    int rc = FO_OK;
    while (rc == FO_OK && (entry = readdir(dir))) {
        const char *name = entry->d_name;
        if (fstatat(dirfd(dir), name, &st, AT_SYMLINK_NOFOLLOW) || !S_ISREG(st.st_mode)) continue;
        if (ends(name, ".part") && time(NULL) - st.st_mtim.tv_sec > PART_S) unlinkat(dirfd(dir), name, 0);
        if (!ends(name, suffix) || strncmp(name, prefix, strlen(prefix)) != 0 || strlen(name) >= NAME_BYTES) continue;
        struct file *list = realloc(ret->list, (ret->n + 1) * sizeof *list);
        if (!list) {
            rc = fo_fail(e, FO_ENOMEM, "no memory for a list of sessions");
            break;
        }
        ret->list = list;
        struct file *f = &list[ret->n++];
        *f = (struct file){ .bytes = (uint64_t)st.st_size, .used_ms = (int64_t)st.st_mtim.tv_sec * 1000 + st.st_mtim.tv_nsec / 1000000 };
        memcpy(f->name, name, strlen(name) + 1);
    }
    closedir(dir);
    if (rc) {
        free(ret->list);
        *ret = (struct files){ 0 };
    } else if (ret->n) {
        qsort(ret->list, ret->n, sizeof *ret->list, newest_first);
    }
    return rc;
}

static void path_of(const struct folder *d, const char *name, char path[PATH_MAX]) {
    size_t n = strlen(d->path);
    memcpy(path, d->path, n);
    snprintf(path + n, PATH_MAX - n, "/%s", name);
}

static void drop_file(const struct folder *d, const char *name) {
    char path[PATH_MAX];
    path_of(d, name, path);
    unlink(path);
}

/* --- names ----------------------------------------------------------------------------------- */
static void digits(const void *bytes, size_t n, char *ret, size_t n_digits) {
    uint8_t sum[FO_SHA256_BYTES];
    fo_sha256(bytes, n, sum);
    for (size_t i = 0; i < n_digits / 2; i++) snprintf(ret + 2 * i, 3, "%02x", sum[i]);
}

/* "<model>-<owner>-", NUL-terminated. */
static bool prefix_of(const char *model, const char *tenant, const char *session, char ret[NAME_BYTES]) {
    size_t n = strlen(model) + (tenant ? strlen(tenant) : 0) + (session ? strlen(session) : 0) + 8;
    char *all = malloc(n);
    if (!all) return false;
    /* what a NUL ends, and what is not there, is told from what is empty */
    size_t k = (size_t)snprintf(all, n, "%s%c%c%s%c%c%s", model, 0, tenant ? 't' : '-', tenant ? tenant : "", 0, session ? 's' : '-', session ? session : "");
    digits(model, strlen(model), ret, MODEL_DIGITS);
    ret[MODEL_DIGITS] = '-';
    digits(all, k, ret + MODEL_DIGITS + 1, OWNER_DIGITS);
    memcpy(ret + MODEL_DIGITS + 1 + OWNER_DIGITS, "-", 2);
    free(all);
    return true;
}

/* A file's name, from that prefix and the sum of its text's tokens. */
static void name_of(const char prefix[NAME_BYTES], uint64_t sum, char ret[NAME_BYTES]) {
    snprintf(ret, NAME_BYTES, "%.*s%016" PRIx64 "%s", MODEL_DIGITS + OWNER_DIGITS + 2, prefix, sum, suffix);
}

/* --- saving ---------------------------------------------------------------------------------- */
struct saving {
    const struct folder *folder;
    const char *model;
    const struct pn_text_info *text;
    char name[NAME_BYTES], path[PATH_MAX];
    int64_t used_ms; /* since 1970 */
    uint64_t deadline_ms;
    struct fo_outfile *out;
    uint64_t bytes; /* written */
};

static int64_t wall_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

/* Older ones go until there is room for so many bytes. FO_ELIMIT: all that is there is newer. */
static int make_room(const struct saving *x, uint64_t bytes, struct fo_err *e) {
    struct files all;
    uint64_t total = 0, quota = x->folder->quota;
    if (bytes > quota) return fo_fail_need(e, FO_ELIMIT, bytes, quota, "one session takes more than sessions.quota");
    if (look(x->folder, "", &all, e)) return e->code;
    for (size_t i = 0; i < all.n; i++) total += strcmp(all.list[i].name, x->name) == 0 ? 0 : all.list[i].bytes;
    int rc = FO_OK;
    for (size_t i = all.n; i-- > 0 && rc == FO_OK && total + bytes > quota;) {
        if (strcmp(all.list[i].name, x->name) == 0) continue;
        if (all.list[i].used_ms >= x->used_ms) {
            rc = fo_fail_need(e, FO_ELIMIT, total + bytes, quota, "sessions.quota is taken by sessions that were used later");
        } else {
            drop_file(x->folder, all.list[i].name);
            total -= all.list[i].bytes;
        }
    }
    free(all.list);
    return rc;
}

static uint32_t length(const char *s) {
    return s ? (uint32_t)strlen(s) : UINT32_MAX;
}

static int put(struct saving *x, const void *bytes, size_t n, struct fo_err *e) {
    if (fo_now_ms() >= x->deadline_ms) return fo_fail(e, FO_ETIMEOUT, "the time for saving is over");
    x->bytes += n;
    return n ? fo_outfile_write(x->out, bytes, n, e) : FO_OK;
}

static int save_begin(void *ctx, uint64_t bytes, uint32_t tokens, struct fo_err *e) {
    struct saving *x = ctx;
    const char *const names[] = { x->model, x->text->tenant, x->text->session };
    struct head head = { .n_model = length(names[0]), .n_tenant = length(names[1]), .n_session = length(names[2]) };
    (void)tokens;
    memcpy(head.magic, magic, sizeof magic);
    uint64_t all = bytes + sizeof head + sizeof(uint64_t), sum = fo_sum64(0, &head, sizeof head);
    for (size_t i = 0; i < 3; i++) all += names[i] ? strlen(names[i]) : 0;
    if (make_room(x, all, e) || fo_outfile_open(x->path, true, all, &x->out, e) || put(x, &head, sizeof head, e)) return e->code;
    for (size_t i = 0; i < 3; i++) {
        size_t n = names[i] ? strlen(names[i]) : 0;
        sum = fo_sum64(sum, names[i] ? names[i] : "", n);
        if (put(x, names[i], n, e)) return e->code;
    }
    return put(x, &sum, sizeof sum, e);
}

static int save_write(void *ctx, const void *bytes, size_t n, struct fo_err *e) {
    return put(ctx, bytes, n, e);
}

static int save_one(struct saving *x, struct pn_served *s, struct fo_err *e) {
    const struct pn_blob_sink to = { save_begin, save_write, x };
    uint32_t tokens;
    char prefix[NAME_BYTES];
    if (!prefix_of(x->model, x->text->tenant, x->text->session, prefix)) return fo_fail(e, FO_ENOMEM, "no memory for a name");
    name_of(prefix, x->text->sum, x->name);
    path_of(x->folder, x->name, x->path);
    x->used_ms = wall_ms() - ((int64_t)fo_now_ms() - (int64_t)x->text->used_ms);
    if (pn_served_save(s, x->text->id, &to, &tokens, e)) {
        fo_outfile_drop(x->out);
        return e->code;
    }
    if (fo_outfile_commit(x->out, e)) return e->code;
    struct timespec t = { .tv_sec = x->used_ms / 1000, .tv_nsec = x->used_ms % 1000 * 1000000 }, both[2] = { t, t };
    utimensat(AT_FDCWD, x->path, both, AT_SYMLINK_NOFOLLOW);
    return FO_OK;
}

/* What a session has said before goes, now that what it says since is there. Of texts without a session nobody knows which became which. */
static void drop_older(const struct folder *d, const char *model, const struct pn_text_info *texts, size_t n, size_t at) {
    char prefix[NAME_BYTES], name[NAME_BYTES];
    struct files all;
    struct fo_err ignored; /* they go by age */
    const struct pn_text_info *t = &texts[at];
    if (!t->session || !prefix_of(model, t->tenant, t->session, prefix) || look(d, prefix, &all, &ignored)) return;
    for (size_t i = 0; i < all.n; i++) {
        bool known = false;
        for (size_t k = 0; k < n && !known; k++) {
            name_of(prefix, texts[k].sum, name);
            known = strcmp(name, all.list[i].name) == 0;
        }
        if (!known) drop_file(d, all.list[i].name);
    }
    free(all.list);
}

static bool wanted(struct pd_app *app, const char *model) {
    struct pd_view *v = pd_app_view(app);
    const struct pd_entry *entry = v ? pd_view_find(v, model) : NULL;
    bool yes = entry && entry->decl->save_on_unload;
    pd_view_put(v);
    return yes;
}

void pd_sessions_save(struct pd_app *app, struct pn_served *s, uint64_t deadline_ms) {
    const char *model = pn_served_name(s);
    struct pn_text_info *texts = NULL;
    struct folder d;
    struct fo_err e = { 0 }, why = { 0 };
    size_t n = 0, saved = 0;
    uint64_t bytes = 0, start = fo_now_ms();
    char size[32];
    if (!wanted(app, model) || pn_served_texts(s, &texts, &n, &e) || n == 0) return; /* one that failed keeps nothing */
    int rc = find_folder(app, &d, &why);
    if (rc == FO_OK && mkdir(d.path, 0700) && errno != EEXIST) rc = fo_fail_errno(&why, errno, "%s", d.path);
    if (rc == FO_OK) rc = check_folder(&d, &why);
    for (size_t i = 0; rc == FO_OK && i < n; i++) {
        struct saving x = { .folder = &d, .model = model, .text = &texts[i], .deadline_ms = deadline_ms };
        if (save_one(&x, s, &e) == FO_OK) {
            saved++;
            bytes += x.bytes;
            drop_older(&d, model, texts, n, i);
        } else {
            why = e;
            if (e.code != FO_ENOENT && e.code != FO_ENOMEM) rc = (int)e.code; /* the next would fare no better */
        }
    }
    if (saved == n) pd_app_event(app, PD_EV_SESSIONS_SAVED, model, "%zu, %s, in %llu ms", n, fo_format_bytes(bytes, size, sizeof size), (unsigned long long)(fo_now_ms() - start));
    else pd_app_event(app, PD_EV_SESSIONS_NOT_SAVED, model, "%zu of %zu: %s", n - saved, n, why.msg);
    pn_texts_free(texts, n);
}

void pd_sessions_leave(void *app, struct pn_served *s) {
    pd_sessions_save(app, s, fo_now_ms() + PD_SESSIONS_SAVE_MS);
}

struct leaving {
    struct pn_served *list[256];
    size_t n;
};

static void collect(void *ctx, struct pn_served *s) {
    struct leaving *all = ctx;
    if (all->n < sizeof all->list / sizeof *all->list) all->list[all->n++] = pn_served_ref(s);
}

void pd_sessions_save_all(struct pd_app *app) {
    struct leaving all = { .n = 0 };
    uint64_t deadline = fo_now_ms() + PD_SESSIONS_SAVE_MS;
    pd_notify_extend((PD_SESSIONS_SAVE_MS + 5000) * 1000ull);
    pn_engine_each(app->engine, collect, &all);
    for (size_t i = 0; i < all.n; i++) {
        pd_sessions_save(app, all.list[i], deadline);
        pn_served_put(all.list[i]);
    }
}

/* --- reading back ---------------------------------------------------------------------------- */
struct reading {
    FILE *f;
    char *names[3]; /* model, tenant, session; NULL = none */
};

static int read_bytes(void *ctx, void *bytes, size_t n, struct fo_err *e) {
    struct reading *x = ctx;
    if (fread(bytes, 1, n, x->f) == n) return FO_OK;
    return ferror(x->f) ? fo_fail_errno(e, errno, "cannot read a session") : fo_fail(e, FO_EFORMAT, "it is cut");
}

static int read_end(void *ctx, struct fo_err *e) {
    const struct reading *x = ctx;
    return fgetc(x->f) == EOF ? FO_OK : (int)fo_fail(e, FO_EFORMAT, "something follows it");
}

static int read_head(struct reading *x, const char *model, struct fo_err *e) {
    struct head h;
    uint64_t sum, want;
    if (read_bytes(x, &h, sizeof h, e)) return e->code;
    const uint32_t n[] = { h.n_model, h.n_tenant, h.n_session };
    want = fo_sum64(0, &h, sizeof h);
    if (memcmp(h.magic, magic, sizeof magic) != 0) return fo_fail(e, FO_EFORMAT, "it is no session");
    for (int i = 0; i < 3; i++) {
        if (n[i] > MAX_NAME_BYTES && n[i] != UINT32_MAX) return fo_fail(e, FO_EFORMAT, "its names are too long");
        uint32_t k = n[i] == UINT32_MAX ? 0 : n[i];
        if (n[i] != UINT32_MAX && !(x->names[i] = calloc(1, k + 1))) return fo_fail(e, FO_ENOMEM, "no memory for a name");
        if (k > 0 && read_bytes(x, x->names[i], k, e)) return e->code;
        want = fo_sum64(want, k > 0 ? x->names[i] : "", k);
    }
    if (read_bytes(x, &sum, sizeof sum, e)) return e->code;
    return sum == want && x->names[0] && strcmp(x->names[0], model) == 0 ? FO_OK : (int)fo_fail(e, FO_EFORMAT, "its head was altered");
}

static int restore_one(const char *path, struct pn_served *s, struct fo_err *e) {
    struct reading x = { .f = fopen(path, "rbe") };
    const struct pn_blob_source from = { .read = read_bytes, .end = read_end, .ctx = &x, .spare = true };
    uint32_t tokens;
    if (!x.f) return fo_fail_errno(e, errno, "%s", path);
    int rc = read_head(&x, pn_served_name(s), e);
    if (rc == FO_OK) rc = pn_served_restore(s, x.names[1], x.names[2], &from, &tokens, NULL, e);
    for (int i = 0; i < 3; i++) free(x.names[i]);
    fclose(x.f);
    return rc;
}

void pd_sessions_restore(struct pd_app *app, struct pn_served *s, bool wants) {
    const char *model = pn_served_name(s);
    const struct pn_model_info *info = pn_model_info(pn_served_model(s));
    struct folder d;
    struct files all;
    struct fo_err e;
    char prefix[NAME_BYTES] = "", path[PATH_MAX];
    size_t n = 0, restored = 0, gone = 0;
    uint64_t bytes = 0, start = fo_now_ms();
    if (!wants) return;
    digits(model, strlen(model), prefix, MODEL_DIGITS);
    prefix[MODEL_DIGITS] = '-';
    if (find_folder(app, &d, &e) || access(d.path, F_OK) != 0) return; /* nothing was ever saved */
    if (check_folder(&d, &e) || look(&d, prefix, &all, &e)) {
        pd_app_event(app, PD_EV_SESSIONS_NOT_RESTORED, model, "%s", e.msg);
        return;
    }
    while (n < all.n && bytes + all.list[n].bytes <= info->kv_bytes + info->kv_bytes / 8 && bytes + all.list[n].bytes <= RESTORE_BYTES) bytes += all.list[n++].bytes;
    for (size_t i = n; i-- > 0 && fo_now_ms() - start < RESTORE_MS;) { /* the most recent one last: it is the last that gives way */
        path_of(&d, all.list[i].name, path);
        int rc = restore_one(path, s, &e);
        restored += rc == FO_OK;
        if (rc != FO_EUNSUPPORTED && rc != FO_EFORMAT) continue; /* else it is of no use any more */
        pd_app_event(app, rc == FO_EFORMAT ? PD_EV_SESSION_DROPPED : PD_EV_SESSION_OUTDATED, model, "%s", e.msg);
        drop_file(&d, all.list[i].name);
        gone++;
    }
    if (all.n > 0) pd_app_event(app, PD_EV_SESSIONS_RESTORED, model, "%zu of %zu in %llu ms, %zu dropped", restored, all.n, (unsigned long long)(fo_now_ms() - start), gone);
    free(all.list);
}

bool pd_sessions_forget(struct pd_app *app, const char *model, const char *tenant, const char *session) {
    char prefix[NAME_BYTES];
    struct folder d;
    struct files all;
    struct fo_err e;
    if (find_folder(app, &d, &e) || access(d.path, F_OK) != 0 || !prefix_of(model, tenant, session, prefix) || check_folder(&d, &e) || look(&d, prefix, &all, &e)) return false;
    for (size_t i = 0; i < all.n; i++) drop_file(&d, all.list[i].name);
    free(all.list);
    return all.n > 0;
}
