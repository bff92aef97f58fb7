/* A change within the same tick of the file system's clock as the one before can look the same: see `young` in watch.h. */
#include "daemon/watch.h"

#include <time.h>

enum { YOUNG_S = 2 };

static void look(const char *path, struct stat *ret) {
    if (stat(path, ret)) *ret = (struct stat){ 0 };
}

static bool same(const struct stat *a, const struct stat *b) {
    return a->st_dev == b->st_dev && a->st_ino == b->st_ino && a->st_size == b->st_size && a->st_mode == b->st_mode && a->st_mtim.tv_sec == b->st_mtim.tv_sec &&
           a->st_mtim.tv_nsec == b->st_mtim.tv_nsec && a->st_ctim.tv_sec == b->st_ctim.tv_sec && a->st_ctim.tv_nsec == b->st_ctim.tv_nsec;
}

void pd_watch_mark(struct pd_watch *w, const char *path) {
    look(path, &w->seen);
    w->young = time(NULL) - w->seen.st_mtim.tv_sec < YOUNG_S || time(NULL) - w->seen.st_ctim.tv_sec < YOUNG_S;
}

bool pd_watch_changed(const struct pd_watch *w, const char *path) {
    struct stat is;
    look(path, &is);
    return w->young || !same(&is, &w->seen);
}
