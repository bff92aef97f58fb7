/* One file: lock its part; for each URL in turn fetch, and look at what came; rename. A part is locked (flock), so that the daemon and
 * `pantheon-reconcile --fetch` never write to the same one.
 *
 * What came is right when its sum is the declared one. Without one it has to be a GGUF file that is all there: a login page and a file that was
 * cut by a server that lied about its length are neither. What is wrong is removed at once; what is only incomplete stays.
 *
 * A part that was gone on with and is wrong in the end may be two files glued together: the same URL is asked once more, from the
 * beginning. */
#include "daemon/fetch.h"

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "config/manifest.h"
#include "config/url.h"
#include "daemon/digest.h"
#include "daemon/part.h"
#include "engine/model.h"
#include "foundry/base/buf.h"
#include "foundry/base/clock.h"
#include "foundry/base/file.h"
#include "foundry/base/log.h"
#include "foundry/base/shard.h"

#define HF_ENDPOINT "https://huggingface.co"
enum { MAX_TOKEN = 4096 };

struct pd_fetcher {
    pthread_t thread;
    pthread_mutex_t lock; /* guards what follows */
    pthread_cond_t work;
    struct pd_fetch_job *todo, *done;
    bool stop;
    int bell;
};

static const struct {
    const char *word;
    bool gives_up; /* no other URL is tried after it */
    bool spoils;   /* what came is of no use */
} ends[PD_N_FETCH_ENDS] = {
    [PD_F_DONE] = { "Present", true, false },
    [PD_F_CANCELLED] = { "Cancelled", true, false },
    [PD_F_UNREACHABLE] = { "Unreachable", false, false },
    [PD_F_NOT_TRUSTED] = { "NotTrusted", false, false },
    [PD_F_STALLED] = { "Stalled", false, false },
    [PD_F_CUT] = { "Cut", false, false },
    [PD_F_NOT_FOUND] = { "NotFound", false, false },
    [PD_F_FORBIDDEN] = { "Forbidden", false, false },
    [PD_F_REFUSED] = { "Refused", false, false },
    [PD_F_REDIRECT] = { "RedirectRefused", false, false },
    [PD_F_DISK_FULL] = { "DiskFull", true, false },
    [PD_F_NOT_WRITABLE] = { "NotWritable", true, false },
    [PD_F_CHECKSUM] = { "ChecksumMismatch", false, true },
    [PD_F_NOT_A_MODEL] = { "NotAModel", false, true },
    [PD_F_BUSY] = { "Busy", true, false },
    [PD_F_WRONG_FILE] = { "ChecksumMismatch", true, false },
    [PD_F_NO_MEMORY] = { "NoMemory", true, false },
};

const char *pd_fetch_end_name(enum pd_fetch_end end) {
    return ends[end].word;
}

/* --- a job --- */

static bool copy_list(char **from, size_t n, char ***ret) {
    *ret = calloc(n + 1, sizeof(char *));
    for (size_t i = 0; *ret && i < n; i++)
        if (!((*ret)[i] = strdup(from[i]))) return false;
    return *ret != NULL;
}

static void free_list(char **list, size_t n) {
    for (size_t i = 0; list && i < n; i++) free(list[i]);
    free(list);
}

size_t pd_fetch_n_files(const char *path) {
    uint32_t no, n;
    return fo_shard_name(path, &no, &n) ? n : 1;
}

char *pd_fetch_file(const char *path, size_t i, size_t n) {
    return n > 1 ? fo_shard_path(path, (uint32_t)i, (uint32_t)n) : strdup(path);
}

struct pd_fetch_job *pd_fetch_job_new(const struct cf_model *m, const char *path) {
    struct pd_fetch_job *j = calloc(1, sizeof *j);
    if (!j) return NULL;
    j->n_files = pd_fetch_n_files(path);
    j->n_sums = m->n_source_sha256;
    j->n_urls = m->source_url ? 1 + m->n_source_mirrors : 0;
    j->model = strdup(m->name);
    j->path = strdup(path);
    char **urls = calloc(j->n_urls + 1, sizeof(char *));
    for (size_t i = 0; urls && i < j->n_urls; i++) urls[i] = i == 0 ? m->source_url : m->source_mirrors[i - 1];
    bool ok = j->model && j->path && urls && copy_list(urls, j->n_urls, &j->urls) && copy_list(m->source_sha256, j->n_sums, &j->sums);
    free(urls);
    if (ok) return j;
    pd_fetch_job_free(j);
    return NULL;
}

void pd_fetch_job_free(struct pd_fetch_job *j) {
    if (!j) return;
    free(j->model);
    free(j->path);
    free_list(j->urls, j->n_urls);
    free_list(j->sums, j->n_sums);
    free(j);
}

/* --- where from --- */

int pd_fetch_url(const char *declared, char **ret, bool *ret_loopback, struct fo_err *e) {
    struct cf_url u, base;
    const char *why = cf_url_parse(declared, &u), *endpoint = getenv("PANTHEON_HF_ENDPOINT");
    char probe[PD_MAX_URL];
    if (why) return fo_fail(e, FO_EINVAL, "%s %s", declared, why);
    if (u.scheme != CF_URL_HF) {
        *ret_loopback = u.loopback;
        return (*ret = strdup(declared)) ? FO_OK : (int)fo_fail(e, FO_ENOMEM, "no memory for a download");
    }
    if (!endpoint || !*endpoint) endpoint = HF_ENDPOINT;
    size_t n = strlen(endpoint);
    while (n && endpoint[n - 1] == '/') n--;
    snprintf(probe, sizeof probe, "%.*s/x", (int)n, endpoint);
    why = n + 3 > sizeof probe ? "is too long" : cf_url_parse(probe, &base);
    if (!why && (base.scheme == CF_URL_HF || (base.scheme == CF_URL_HTTP && !base.loopback))) why = "is neither https://HOST nor on this machine";
    if (why) return fo_fail(e, FO_EINVAL, "PANTHEON_HF_ENDPOINT '%s' %s", endpoint, why);
    if (asprintf(ret, "%.*s/%.*s/%.*s/resolve/%.*s/%.*s", (int)n, endpoint, (int)u.owner.len, u.owner.at, (int)u.repo.len, u.repo.at, u.revision.len ? (int)u.revision.len : 4,
                 u.revision.len ? u.revision.at : "main", (int)u.path.len, u.path.at) < 0)
        return fo_fail(e, FO_ENOMEM, "no memory for a download");
    *ret_loopback = base.loopback;
    return FO_OK;
}

/* HF_TOKEN, or the unit's credential `hf_token`; heap, NULL = none. A token with a character that none has is no token. */
static char *hf_token(void) {
    const char *set = getenv("HF_TOKEN"), *dir = getenv("CREDENTIALS_DIRECTORY");
    char path[PD_MAX_URL], *text = set && *set ? strdup(set) : NULL;
    struct fo_err ignored;
    size_t len;
    if (!text && dir && snprintf(path, sizeof path, "%s/hf_token", dir) < (int)sizeof path && fo_file_read(path, MAX_TOKEN, &text, &len, &ignored)) text = NULL;
    if (!text) return NULL;
    text[strcspn(text, "\r\n")] = '\0';
    bool good = *text != '\0';
    for (const char *p = text; *p; p++) good = good && *p > 0x20 && *p < 0x7F;
    if (good) return text;
    free(text);
    return NULL;
}

/* --- whether it is right --- */

/* What came, before it gets its name. */
static enum pd_fetch_end judge(const char *part, const char *declared, const char *want, struct pd_digest *sum, struct fo_err *e) {
    char is[PD_DIGEST_TEXT], head[33] = "";
    struct fo_err why;
    pd_digest_end(sum, is);
    if (want && strcmp(is, want) == 0) return PD_F_DONE;
    if (want) {
        fo_fail(e, FO_EFORMAT, "%s: what came has the sha256 %s, and %s is declared; it was thrown away", declared, is, want);
        return PD_F_CHECKSUM;
    }
    if (pn_model_check_file(part, &why) == FO_OK) return PD_F_DONE;
    if (why.code == FO_ENOMEM || why.code == FO_EUNSUPPORTED) return PD_F_DONE; /* whole, as far as can be told: its load says what is the matter */
    int fd = open(part, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? 0 : read(fd, head, sizeof head - 1);
    if (fd >= 0) close(fd);
    head[n > 0 ? n : 0] = '\0';
    fo_text_defuse(head);
    fo_fail(e, FO_EFORMAT, "%s: what came is no whole GGUF file and was thrown away (it begins with '%s'): %.160s", declared, head, strncmp(why.msg, part, strlen(part)) == 0 ? why.msg + strlen(part) : why.msg);
    return PD_F_NOT_A_MODEL;
}

/* A file that is in place already: held against its sum, and never touched. */
static enum pd_fetch_end check_there(struct pd_fetch_job *j, const char *path, const char *want) {
    struct pd_digest *sum = pd_digest_new();
    struct stat st;
    char is[PD_DIGEST_TEXT];
    if (!sum) return PD_F_NO_MEMORY;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0 || fstat(fd, &st) || !S_ISREG(st.st_mode)) {
        if (fd < 0) fo_fail_errno(&j->err, errno, "%s", path);
        else fo_fail(&j->err, FO_EINVAL, "%s is no file: a sha256 is of one", path);
        if (fd >= 0) close(fd);
        pd_digest_free(sum);
        return PD_F_NOT_WRITABLE;
    }
    atomic_store(&j->progress.size, (uint64_t)st.st_size);
    atomic_store(&j->progress.done, 0);
    enum pd_fetch_end end = pd_transfer_sum(fd, path, (uint64_t)st.st_size, &j->progress, j->tick, j->ctx, sum, &j->err);
    close(fd);
    pd_digest_end(sum, is);
    pd_digest_free(sum);
    if (end != PD_F_DONE) return end;
    if (strcmp(is, want) == 0) return PD_F_DONE;
    fo_fail(&j->err, FO_EFORMAT, "%s has the sha256 %s, and %s is declared: it is not served; correct sha256, or move the file away%s", path, is, want, j->n_urls ? ": then it is fetched" : "");
    return PD_F_WRONG_FILE;
}

/* --- one file --- */

/* Opens and locks the part. */
static enum pd_fetch_end open_part(const char *path, const char *part, int *ret_fd, struct fo_err *e) {
    char *copy = strdup(path);
    const char *dir = copy ? dirname(copy) : ".";
    struct stat st, now;
    enum pd_fetch_end end = PD_F_DONE;
    int fd = -1;
    for (int tries = 0; tries < 8 && end == PD_F_DONE; tries++) {
        fd = open(part, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644);
        if (fd < 0 && errno == ENOENT) {
            fo_fail(e, FO_ENOENT, "%s: the folder %s does not exist; make it (it is not made by itself: a disk may not be mounted)", path, dir);
            end = PD_F_NOT_WRITABLE;
        } else if (fd < 0 && (errno == ENOSPC || errno == EDQUOT)) {
            fo_fail_errno(e, errno, "%s", part);
            end = PD_F_DISK_FULL;
        } else if (fd < 0) {
            fo_fail_errno(e, errno, "%s cannot be written, and the file is fetched into its folder", part);
            end = PD_F_NOT_WRITABLE;
        } else if (flock(fd, LOCK_EX | LOCK_NB)) {
            fo_fail(e, FO_EBUSY, "%s: another process fetches it now", path);
            end = PD_F_BUSY;
        } else if (fstat(fd, &st) == 0 && stat(part, &now) == 0 && st.st_ino == now.st_ino && st.st_dev == now.st_dev) {
            *ret_fd = fd;
            free(copy);
            return PD_F_DONE;
        }
        if (fd >= 0) close(fd); /* it was renamed between the two: once more */
    }
    if (end == PD_F_DONE) {
        fo_fail(e, FO_EBUSY, "%s: others write it", part);
        end = PD_F_BUSY;
    }
    free(copy);
    return end;
}

/* Gives the part its name, for good. */
static enum pd_fetch_end put_in_place(const char *part, const char *path, int fd, struct fo_err *e) {
    char *copy = strdup(path);
    enum pd_fetch_end end = PD_F_DONE;
    if (fsync(fd) || rename(part, path)) {
        fo_fail_errno(e, errno, "%s cannot be put in place", path);
        end = errno == ENOSPC || errno == EDQUOT ? PD_F_DISK_FULL : PD_F_NOT_WRITABLE;
    } else {
        pd_part_note_remove(part);
        int dir = open(copy ? dirname(copy) : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (dir >= 0 && fsync(dir)) fo_log(FO_LOG_DEBUG, "reconcile", "event=folder_not_synced");
        if (dir >= 0) close(dir);
    }
    free(copy);
    return end;
}

/* From one URL, as declared; of a model in shards the one of file i. */
static enum pd_fetch_end from_url(struct pd_fetch_job *j, size_t i, const char *declared, const char *part, int fd) {
    char *url = NULL, *token = NULL;
    const char *want = j->n_sums ? j->sums[i] : NULL;
    bool loopback;
    if (pd_fetch_url(declared, &url, &loopback, &j->err)) return j->err.code == FO_ENOMEM ? PD_F_NO_MEMORY : PD_F_REFUSED;
    struct pd_digest *sum = pd_digest_new();
    if (!sum) {
        free(url);
        return PD_F_NO_MEMORY;
    }
    if (strncmp(declared, "hf:", 3) == 0) token = hf_token();
    struct pd_transfer t = { .declared = declared, .url = url, .bearer = token, .loopback = loopback, .summed = want != NULL, .part = part, .fd = fd, .sum = sum, .progress = &j->progress, .tick = j->tick, .ctx = j->ctx };
    enum pd_fetch_end end;
    for (bool again = false;; again = true) {
        end = pd_transfer(&t, &j->err);
        if (end == PD_F_DONE) end = judge(part, declared, want, sum, &j->err);
        j->resumed = j->resumed || t.resumed;
        if (!ends[end].spoils) break;
        pd_part_note_remove(part);
        if (ftruncate(fd, 0) || !t.resumed || again) break;
    }
    pd_digest_free(sum);
    if (t.retry_after_s > j->retry_after_s) j->retry_after_s = t.retry_after_s;
    free(url);
    free(token);
    return end;
}

static enum pd_fetch_end fetch_file(struct pd_fetch_job *j, size_t i, const char *path) {
    char *part = NULL;
    struct stat st;
    int fd;
    if (lstat(path, &st) == 0) { /* and what it leads to is not there: somebody chose that place, and its disk may not be mounted */
        fo_fail(&j->err, FO_ENOENT, "%s is a symbolic link to what cannot be reached; mount or make that, or remove the link: then the file is fetched in its place", path);
        return PD_F_NOT_WRITABLE;
    }
    if (asprintf(&part, "%s.part", path) < 0) return PD_F_NO_MEMORY;
    enum pd_fetch_end end = open_part(path, part, &fd, &j->err);
    if (end != PD_F_DONE) {
        free(part);
        return end;
    }
    for (size_t k = 0; k < j->n_urls; k++) {
        struct fo_buf url;
        fo_buf_init(&url, PD_MAX_URL - 1);
        if (j->n_files > 1) cf_url_shard(j->urls[k], (uint32_t)i, &url);
        else fo_buf_puts(&url, j->urls[k]);
        end = url.failed ? PD_F_NO_MEMORY : from_url(j, i, fo_buf_str(&url), part, fd);
        fo_buf_done(&url);
        if (ends[end].gives_up) break;
    }
    if (end == PD_F_DONE) end = put_in_place(part, path, fd, &j->err);
    else if (fstat(fd, &st) == 0 && st.st_size == 0) { /* nothing to go on with */
        unlink(part);
        pd_part_note_remove(part);
    }
    close(fd);
    free(part);
    return end;
}

void pd_fetch_perform(struct pd_fetch_job *j) {
    uint64_t start = fo_now_ms(), identity = 0;
    struct stat st;
    j->end = PD_F_DONE;
    if (j->n_sums && j->n_sums != j->n_files) { /* a manifest is refused for it, and nothing is taken as right by half */
        fo_fail(&j->err, FO_EINVAL, "%s: %zu sums of sha256 for %zu files", j->path, j->n_sums, j->n_files);
        j->end = PD_F_WRONG_FILE;
    }
    for (size_t i = 0; i < j->n_files && j->end == PD_F_DONE; i++) {
        char *path = pd_fetch_file(j->path, i, j->n_files);
        atomic_store(&j->progress.file, (unsigned)i);
        if (!path) {
            fo_fail(&j->err, FO_ENOMEM, "no memory for a download");
            j->end = PD_F_NO_MEMORY;
        } else if (stat(path, &st)) {
            j->end = fetch_file(j, i, path);
        } else if (j->n_sums) {
            identity = pn_model_identity(path);
            j->end = check_there(j, path, j->sums[i]);
            if (j->end == PD_F_DONE && pn_model_identity(path) != identity) { /* somebody writes to it */
                fo_fail(&j->err, FO_EBUSY, "%s changed while it was read", path);
                j->end = PD_F_BUSY;
            }
        }
        free(path);
    }
    if (j->end == PD_F_DONE || j->end == PD_F_WRONG_FILE) j->identity = pn_model_identity(j->path);
    if (j->end == PD_F_NO_MEMORY && !*j->err.msg) fo_fail(&j->err, FO_ENOMEM, "no memory for a download");
    j->took_ms = fo_now_ms() - start;
}

/* --- the thread --- */

static void *fetcher_main(void *arg) {
    struct pd_fetcher *f = arg;
    uint64_t one = 1;
    for (;;) {
        pthread_mutex_lock(&f->lock);
        while (!f->todo && !f->stop) pthread_cond_wait(&f->work, &f->lock);
        struct pd_fetch_job *j = f->stop ? NULL : f->todo;
        pthread_mutex_unlock(&f->lock);
        if (!j) return NULL;
        pd_fetch_perform(j);
        pthread_mutex_lock(&f->lock);
        f->todo = NULL;
        f->done = j;
        pthread_mutex_unlock(&f->lock);
        if (write(f->bell, &one, sizeof one) < 0) fo_log(FO_LOG_WARN, "reconcile", "event=wake_failed");
    }
}

int pd_fetcher_new(int bell, struct pd_fetcher **ret, struct fo_err *e) {
    struct pd_fetcher *f = calloc(1, sizeof *f);
    if (!f) return fo_fail(e, FO_ENOMEM, "no memory for the fetcher");
    f->bell = bell;
    pthread_mutex_init(&f->lock, NULL);
    pthread_cond_init(&f->work, NULL);
    int rc = pthread_create(&f->thread, NULL, fetcher_main, f);
    if (rc) {
        pthread_cond_destroy(&f->work);
        pthread_mutex_destroy(&f->lock);
        free(f);
        return fo_fail_errno(e, rc, "cannot start the fetcher");
    }
    *ret = f;
    return FO_OK;
}

void pd_fetcher_start(struct pd_fetcher *f, struct pd_fetch_job *j) {
    pthread_mutex_lock(&f->lock);
    f->todo = j;
    pthread_cond_signal(&f->work);
    pthread_mutex_unlock(&f->lock);
}

struct pd_fetch_job *pd_fetcher_take(struct pd_fetcher *f) {
    pthread_mutex_lock(&f->lock);
    struct pd_fetch_job *j = f->done;
    f->done = NULL;
    pthread_mutex_unlock(&f->lock);
    return j;
}

void pd_fetcher_free(struct pd_fetcher *f) {
    if (!f) return;
    pthread_mutex_lock(&f->lock);
    f->stop = true;
    if (f->todo) atomic_store(&f->todo->progress.cancel, true);
    pthread_cond_signal(&f->work);
    pthread_mutex_unlock(&f->lock);
    pthread_join(f->thread, NULL);
    pd_fetch_job_free(f->todo);
    pd_fetch_job_free(f->done);
    pthread_cond_destroy(&f->work);
    pthread_mutex_destroy(&f->lock);
    free(f);
}
