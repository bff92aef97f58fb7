/* The walk keeps two texts: `at`, the folders that were passed, free of links, and `rest`, what is still to go. A link's target goes in front of
 * the rest, and an absolute one begins anew, as in path_resolution(7). */
#include "daemon/reach.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "foundry/base/err.h"
#include "foundry/base/file.h"

enum { MAX_LINKS = 40, MAX_MOUNTINFO = 1 << 20 };

/* What ProtectHome= takes away. */
static const char *const homes[] = { "/home", "/root", "/run/user" };

struct walk {
    char at[PATH_MAX], rest[2 * PATH_MAX];
    bool linked; /* a link was followed */
    int err;     /* of the place where it ended; 0 = the whole path can be passed */
};

static bool is_below(const char *path, const char *dir) {
    size_t n = strlen(dir);
    return strncmp(path, dir, n) == 0 && (path[n] == '/' || !path[n]);
}

bool pd_reach_hidden(const char *mountinfo, const char *dir) {
    for (const char *line = mountinfo; line && *line; line = strchr(line, '\n') ? strchr(line, '\n') + 1 : NULL) {
        char root[256], point[256], options[256];
        /* number, parent, device, the root within its file system, where it is mounted, how, ... - its type */
        if (sscanf(line, "%*s %*s %*s %255s %255s %255s", root, point, options) != 3 || strcmp(point, dir) != 0) continue;
        const char *end = strchr(line, '\n'), *type = strstr(line, " - ");
        bool tmpfs = type && (!end || type < end) && strncmp(type + 3, "tmpfs ", 6) == 0;
        if (strstr(root, "/systemd/inaccessible/")) return true;                 /* ProtectHome=yes */
        if (tmpfs && strncmp(options, "ro", 2) == 0) return true;                /* ProtectHome=tmpfs: an empty one that nobody can fill */
    }
    return false;
}

static bool hidden(const char *dir) {
    char *text;
    size_t len;
    struct fo_err e;
    if (fo_file_read("/proc/self/mountinfo", MAX_MOUNTINFO, &text, &len, &e)) return false;
    bool yes = pd_reach_hidden(text, dir);
    free(text);
    return yes;
}

/* Goes one component further; false = the end, or an obstacle (w->err, and w->at is its path). */
static bool go(struct walk *w, int *n_links) {
    char name[NAME_MAX + 1], next[PATH_MAX], target[PATH_MAX], rest[sizeof w->rest];
    struct stat st;
    const char *p = w->rest + strspn(w->rest, "/");
    size_t n = strcspn(p, "/");
    if (n == 0) return false;
    if (n > NAME_MAX) return w->err = ENAMETOOLONG, false;
    memcpy(name, p, n);
    name[n] = '\0';
    snprintf(rest, sizeof rest, "%s", p + n);
    if (strcmp(name, "..") == 0) {
        char *slash = strrchr(w->at, '/');
        if (slash) *slash = '\0';
    } else if (strcmp(name, ".") != 0) {
        if (snprintf(next, sizeof next, "%s/%s", w->at, name) >= (int)sizeof next) return w->err = ENAMETOOLONG, false;
        if (lstat(next, &st)) {
            w->err = errno;
            if (w->err != EACCES) memcpy(w->at, next, sizeof w->at); /* else the folder is what may not be passed */
            return false;
        }
        if (S_ISLNK(st.st_mode)) {
            ssize_t k = readlink(next, target, sizeof target - 1);
            if (k < 0 || ++*n_links > MAX_LINKS) return w->err = k < 0 ? errno : ELOOP, false;
            target[k] = '\0';
            w->linked = true;
            if (*target == '/') w->at[0] = '\0';
            return snprintf(w->rest, sizeof w->rest, "%s/%s", target, rest) < (int)sizeof w->rest;
        }
        memcpy(w->at, next, sizeof w->at);
    }
    memcpy(w->rest, rest, sizeof rest);
    return true;
}

static bool walk(const char *path, struct walk *w) {
    int n_links = 0;
    *w = (struct walk){ 0 };
    if (*path != '/' && !getcwd(w->at, sizeof w->at)) return false;
    if (snprintf(w->rest, sizeof w->rest, "%s", path) >= (int)sizeof w->rest) return false;
    while (go(w, &n_links)) continue;
    return true;
}

/* "mode 0700, owner 0, group 0": numbers, as a look-up of names may ask a network. */
static void describe(const char *path, char *out, size_t size) {
    struct stat st;
    *out = '\0';
    if (stat(path, &st) == 0) snprintf(out, size, "mode %04o, owner %u, group %u", (unsigned)st.st_mode & 07777, (unsigned)st.st_uid, (unsigned)st.st_gid);
}

static void append(struct fo_err *e, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void append(struct fo_err *e, const char *fmt, ...) {
    struct fo_err more = *e;
    char text[sizeof e->msg];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    size_t room = sizeof e->msg - 1, n = strlen(text);
    if (n < room / 2 + 64) fo_fail(&more, e->code, "%.*s (%s)", (int)(room - n - 3), e->msg, text);
    memcpy(e->msg, more.msg, sizeof e->msg);
}

/* The home folder of the list that `path` is, or lies in; NULL = none. */
static const char *home_of(const char *path) {
    for (size_t i = 0; i < sizeof homes / sizeof *homes; i++)
        if (is_below(path, homes[i])) return homes[i];
    return NULL;
}

int pd_reach_explain(const char *path, struct fo_err *e) {
    struct walk w;
    char what[64];
    if ((e->code != FO_ENOENT && e->code != FO_EACCES) || !walk(path, &w)) return e->code;
    const char *at = *w.at ? w.at : "/", *home = home_of(at);
    unsigned me = (unsigned)geteuid();
    describe(at, what, sizeof what);
    if (home && hidden(home))
        append(e, "ProtectHome= of the service hides %s: move the file, to /var/lib/pantheon/models say, or allow it with `systemctl edit pantheond`: [Service] ProtectHome=read-only, and a restart", home);
    else if (w.err == EACCES)
        append(e, "user %u may not pass the folder %.100s, %s", me, at, what);
    else if (w.err == ENOENT && w.linked)
        append(e, "a link leads to %.120s, which is not there", at);
    else if (w.err == 0 && faccessat(AT_FDCWD, at, R_OK, AT_EACCESS) && errno == EACCES)
        append(e, "user %u may not read %.100s, %s", me, at, what);
    return e->code;
}
