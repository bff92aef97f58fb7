/* The kept copy is `last-accepted.yaml`: one comment line that says of which file and generation it is, then the text as it was. */
#include "daemon/source.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "config/manifest.h"
#include "foundry/base/err.h"
#include "foundry/base/file.h"

#define KEPT "last-accepted.yaml"
#define DEFAULT_STATE_DIR "/var/lib/pantheon"
enum { MAX_PATH = 4096 };

bool pd_source_parse(const char *path, char *text, size_t len, struct pd_reading *ret) {
    struct cf_report report = { 0 };
    struct fo_err e;
    *ret = (struct pd_reading){ .text = text, .len = len };
    bool ok = cf_manifest_parse(text, len, &ret->manifest, &report, &e) == FO_OK;
    if (!ok) {
        ret->manifest = NULL;
        ret->report = report.n ? cf_report_format(&report, path, text, len) : NULL;
        if (!ret->report && asprintf(&ret->report, "%s: %s\n", path, e.msg) < 0) ret->report = NULL;
    }
    cf_report_done(&report);
    return ok;
}

bool pd_source_read(const char *path, struct pd_reading *ret) {
    struct fo_err e;
    char *text;
    size_t len;
    if (fo_file_read(path, PD_MAX_MANIFEST_BYTES, &text, &len, &e)) {
        *ret = (struct pd_reading){ 0 };
        if (asprintf(&ret->report, "%s\n", e.msg) < 0) ret->report = NULL;
        return false;
    }
    return pd_source_parse(path, text, len, ret);
}

void pd_reading_done(struct pd_reading *r) {
    free(r->text);
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

int pd_source_last(const char *state_dir, const char *path, char **ret_text, size_t *ret_len, uint64_t *ret_generation, struct fo_err *e) {
    char file[MAX_PATH], head[MAX_PATH + 64];
    char *text;
    size_t len;
    snprintf(file, sizeof file, "%s/" KEPT, state_dir);
    if (fo_file_read(file, PD_MAX_MANIFEST_BYTES + MAX_PATH, &text, &len, e)) return e->code;
    size_t n = (size_t)snprintf(head, sizeof head, "# accepted from %s as generation ", path);
    char *end = NULL;
    uint64_t generation = n < sizeof head && len > n && memcmp(text, head, n) == 0 ? strtoull(text + n, &end, 10) : 0;
    if (!end || *end != '\n' || generation == 0) {
        free(text);
        return fo_fail(e, FO_ENOENT, "%s is not of %s", file, path);
    }
    n = (size_t)(end + 1 - text);
    memmove(text, text + n, len - n + 1);
    *ret_text = text;
    *ret_len = len - n;
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

int pd_source_keep(const char *state_dir, const char *path, const char *text, size_t len, uint64_t generation, struct fo_err *e) {
    char file[MAX_PATH], temp[MAX_PATH], head[MAX_PATH + 64];
    snprintf(file, sizeof file, "%s/" KEPT, state_dir);
    snprintf(temp, sizeof temp, "%s/" KEPT ".new", state_dir);
    int n = snprintf(head, sizeof head, "# accepted from %s as generation %llu\n", path, (unsigned long long)generation);
    if (n < 0 || (size_t)n >= sizeof head) return fo_fail(e, FO_ELIMIT, "%s: the path is too long", path);
    int fd = open(temp, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0640);
    if (fd < 0) return fo_fail_errno(e, errno, "%s", temp);
    bool ok = write_all(fd, head, (size_t)n) && write_all(fd, text, len) && fsync(fd) == 0;
    int err = errno;
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
