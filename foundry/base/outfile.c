/* Files that appear whole or not at all: see outfile.h. */
#include "foundry/base/outfile.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "foundry/base/err.h"
#include "foundry/base/rng.h"
#include "foundry/base/units.h"

struct fo_outfile {
    char *path, *temp; /* the same directory */
    int fd;
    bool replace;
};

void fo_outfile_drop(struct fo_outfile *f) {
    if (!f) return;
    if (f->fd >= 0) {
        close(f->fd);
        unlink(f->temp);
    }
    free(f->path);
    free(f->temp);
    free(f);
}

/* Length of the part of a path up to and including its last slash, 0 without one. */
static size_t directory_len(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? (size_t)(slash - path) + 1 : 0;
}

static int check_room(const struct fo_outfile *f, uint64_t need, struct fo_err *e) {
    struct statvfs v;
    if (need == 0 || fstatvfs(f->fd, &v) != 0 || v.f_blocks == 0) return FO_OK; /* it does not say: writing will */
    uint64_t have = (uint64_t)v.f_bavail * v.f_frsize;
    char want[32], room[32];
    if (need <= have) return FO_OK;
    return (int)fo_fail_need(e, FO_ELIMIT, need, have, "%s needs %s, and its file system has %s left", f->path,
                             fo_format_bytes(need, want, sizeof want), fo_format_bytes(have, room, sizeof room));
}

int fo_outfile_open(const char *path, bool replace, uint64_t need_bytes, struct fo_outfile **ret, struct fo_err *e) {
    struct stat st;
    struct fo_outfile *f = calloc(1, sizeof *f);
    if (!f) return (int)fo_fail(e, FO_ENOMEM, "%s: no memory", path);
    f->fd = -1;
    f->replace = replace;
    bool there = stat(path, &st) == 0;
    if (there && !S_ISREG(st.st_mode)) {
        fo_fail(e, FO_EINVAL, "%s is %s, not a file to write", path, S_ISDIR(st.st_mode) ? "a directory" : "a device or the like");
        goto fail;
    }
    if (there && !replace) {
        fo_fail(e, FO_EINVAL, "%s exists", path);
        goto fail;
    }
    if (path[directory_len(path)] == '\0') {
        fo_fail(e, FO_EINVAL, "'%s' names no file to write", path);
        goto fail;
    }
    f->path = there ? realpath(path, NULL) : strdup(path);
    size_t dir = f->path ? directory_len(f->path) : 0, size = f->path ? strlen(f->path) + 32 : 0;
    f->temp = f->path ? malloc(size) : NULL;
    if (!f->temp) {
        fo_fail(e, FO_ENOMEM, "%s: no memory", path);
        goto fail;
    }
    snprintf(f->temp, size, "%.*s.%s.%08x.part", (int)dir, f->path, f->path + dir, (unsigned)fo_rng_entropy());
    f->fd = open(f->temp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (f->fd < 0) {
        fo_fail_errno(e, errno, "%s", path);
        goto fail;
    }
    if (check_room(f, need_bytes, e)) goto fail;
    *ret = f;
    return FO_OK;
fail:
    fo_outfile_drop(f);
    return (int)e->code;
}

int fo_outfile_write(struct fo_outfile *f, const void *bytes, size_t n, struct fo_err *e) {
    for (const char *p = bytes; n > 0;) {
        ssize_t k = write(f->fd, p, n);
        if (k < 0 && errno == EINTR) continue;
        if (k < 0) return (int)fo_fail_errno(e, errno, "writing %s", f->path);
        p += k;
        n -= (size_t)k;
    }
    return FO_OK;
}

/* Makes the new name last too. A file system that cannot do that has said all it can. */
static void sync_directory(const struct fo_outfile *f) {
    size_t dir = directory_len(f->path);
    char *name = dir ? strndup(f->path, dir) : strdup(".");
    int fd = name ? open(name, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
    if (fd >= 0) {
        fsync(fd);
        close(fd);
    }
    free(name);
}

int fo_outfile_commit(struct fo_outfile *f, struct fo_err *e) {
    int rc = FO_OK;
    if (fsync(f->fd) != 0 && errno != EINVAL) rc = (int)fo_fail_errno(e, errno, "writing %s", f->path);
    if (close(f->fd) != 0 && !rc) rc = (int)fo_fail_errno(e, errno, "writing %s", f->path);
    /* link fails when the name is taken, rename takes it */
    if (!rc && !f->replace) {
        if (link(f->temp, f->path) == 0) unlink(f->temp);
        else if (errno == EEXIST) rc = (int)fo_fail(e, FO_EINVAL, "%s exists", f->path);
        else if (rename(f->temp, f->path) != 0) rc = (int)fo_fail_errno(e, errno, "%s", f->path); /* no hard links there */
    } else if (!rc && rename(f->temp, f->path) != 0) {
        rc = (int)fo_fail_errno(e, errno, "%s", f->path);
    }
    if (rc) unlink(f->temp);
    else sync_directory(f);
    f->fd = -1;
    fo_outfile_drop(f);
    return rc;
}
