/* Files and guarded maps: see file.h. */
#include "foundry/base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "foundry/base/err.h"

#ifdef __APPLE__
#define MTIME(st) ((st).st_mtimespec)
#else
#define MTIME(st) ((st).st_mtim)
#endif

int fo_file_read(const char *path, size_t cap_bytes, char **ret_data, size_t *ret_len, struct fo_err *e) {
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK), rc;
    if (fd < 0) return fo_fail_errno(e, errno, "%s", path);
    char *data = NULL;
    size_t len = 0;
    struct stat st;
    if (fstat(fd, &st) != 0) {
        rc = fo_fail_errno(e, errno, "%s", path);
        goto out;
    }
    if (!S_ISREG(st.st_mode)) {
        rc = fo_fail(e, FO_EFORMAT, "%s: not a regular file", path);
        goto out;
    }
    if ((uint64_t)st.st_size > cap_bytes) {
        rc = fo_fail_need(e, FO_ELIMIT, (uint64_t)st.st_size, cap_bytes, "%s: %llu bytes, more than the %zu allowed", path,
                          (unsigned long long)st.st_size, cap_bytes);
        goto out;
    }
    /* Files of /proc and /sys say 0 bytes, and any file may grow or shrink while we read: what read gives is the file. */
    for (size_t size = (size_t)st.st_size + 1;;) {
        if (len == size || !data) {
            if (data) size = size < 2048 ? 4096 : size * 2;
            char *more = realloc(data, size + 1);
            if (!more) {
                rc = fo_fail_need(e, FO_ENOMEM, size + 1, 0, "%s: no memory for %zu bytes", path, size);
                goto out;
            }
            data = more;
        }
        ssize_t n = read(fd, data + len, size - len);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) {
            rc = fo_fail_errno(e, errno, "%s", path);
            goto out;
        }
        if (n == 0) break;
        len += (size_t)n;
        if (len > cap_bytes) {
            rc = fo_fail_need(e, FO_ELIMIT, len, cap_bytes, "%s: grew past the %zu bytes allowed", path, cap_bytes);
            goto out;
        }
    }
    data[len] = '\0';
    *ret_data = data;
    *ret_len = len;
    data = NULL;
    rc = FO_OK;
out:
    free(data);
    close(fd);
    return rc;
}

/* --- guarded maps ------------------------------------------------------------------------------------------------------------
 * The fault handler walks a fixed table of live maps. Slots are published with release and read with acquire; a slot is cleared
 * before its range is unmapped, so a fault inside a live range always finds it. */
enum { MAX_MAPS = 256 };

struct fo_map {
    const uint8_t *data;
    uint64_t size;
    size_t mapped; /* size rounded up to pages */
    int fd;
    struct stat st; /* as it was when mapped */
    atomic_bool lost;
    char *path;
};

static _Atomic(struct fo_map *) maps[MAX_MAPS];
static struct sigaction old_action;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void on_sigbus(int sig, siginfo_t *info, void *ctx) {
    uintptr_t at = (uintptr_t)info->si_addr;
    for (int i = 0; i < MAX_MAPS; i++) {
        struct fo_map *m = atomic_load_explicit(&maps[i], memory_order_acquire);
        if (!m || at < (uintptr_t)m->data || at >= (uintptr_t)m->data + m->mapped) continue;
        size_t page = 4096; /* sysconf is not async-signal-safe everywhere; a smaller step than the real page is refused below */
        void *from = (void *)(at & ~(page - 1));
        /* zeros from the fault to the end of the map: one fault, not one per page */
        size_t n = (uintptr_t)m->data + m->mapped - (uintptr_t)from;
        int saved = errno;
        void *got = mmap(from, n, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
        if (got == MAP_FAILED) { /* 16 or 64 KiB pages: align to the largest */
            from = (void *)(at & ~(uintptr_t)65535);
            if ((uintptr_t)from < (uintptr_t)m->data) from = (void *)(uintptr_t)m->data;
            got = mmap(from, (uintptr_t)m->data + m->mapped - (uintptr_t)from, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
        }
        errno = saved;
        atomic_store_explicit(&m->lost, true, memory_order_release);
        if (got != MAP_FAILED) return;
    }
    /* not ours: the handler that was there before, or the default */
    if (old_action.sa_flags & SA_SIGINFO) {
        old_action.sa_sigaction(sig, info, ctx);
    } else if (old_action.sa_handler != SIG_DFL && old_action.sa_handler != SIG_IGN) {
        old_action.sa_handler(sig);
    } else {
        signal(sig, SIG_DFL);
        raise(sig);
    }
}

static void install(void) {
    struct sigaction sa = { .sa_sigaction = on_sigbus, .sa_flags = SA_SIGINFO | SA_NODEFER | SA_ONSTACK };
    sigemptyset(&sa.sa_mask);
    sigaction(SIGBUS, &sa, &old_action);
}

int fo_map_open(const char *path, struct fo_map **ret, struct fo_err *e) {
    pthread_once(&once, install);
    struct fo_map *m = calloc(1, sizeof *m);
    if (!m) return fo_fail_need(e, FO_ENOMEM, sizeof *m, 0, "%s: no memory", path);
    int rc;
    m->fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (m->fd < 0 || fstat(m->fd, &m->st) != 0) {
        rc = fo_fail_errno(e, errno, "%s", path);
        goto fail;
    }
    if (!S_ISREG(m->st.st_mode)) {
        rc = fo_fail(e, FO_EFORMAT, "%s: not a regular file", path);
        goto fail;
    }
    if (m->st.st_size == 0) {
        rc = fo_fail(e, FO_EFORMAT, "%s: the file is empty", path);
        goto fail;
    }
    m->size = (uint64_t)m->st.st_size;
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    if (m->size > SIZE_MAX - page) {
        rc = fo_fail_need(e, FO_ELIMIT, m->size, SIZE_MAX, "%s: larger than the address space", path);
        goto fail;
    }
    m->mapped = ((size_t)m->size + page - 1) & ~(page - 1);
    m->path = strdup(path);
    if (!m->path) {
        rc = fo_fail_need(e, FO_ENOMEM, strlen(path), 0, "%s: no memory", path);
        goto fail;
    }
    void *p = mmap(NULL, (size_t)m->size, PROT_READ, MAP_PRIVATE, m->fd, 0);
    if (p == MAP_FAILED) {
        rc = fo_fail_errno(e, errno, "%s: mapping %llu bytes", path, (unsigned long long)m->size);
        goto fail;
    }
    m->data = p;
    for (int i = 0; i < MAX_MAPS; i++) {
        struct fo_map *none = NULL;
        if (atomic_compare_exchange_strong(&maps[i], &none, m)) {
            *ret = m;
            return FO_OK;
        }
    }
    rc = fo_fail_need(e, FO_ELIMIT, MAX_MAPS + 1, MAX_MAPS, "%s: more than %d files mapped at once", path, MAX_MAPS);
fail:
    fo_map_close(m);
    return rc;
}

void fo_map_close(struct fo_map *m) {
    if (!m) return;
    for (int i = 0; i < MAX_MAPS; i++) {
        struct fo_map *mine = m;
        if (atomic_compare_exchange_strong(&maps[i], &mine, NULL)) break;
    }
    if (m->data) munmap((void *)(uintptr_t)m->data, m->mapped);
    if (m->fd >= 0) close(m->fd);
    free(m->path);
    free(m);
}

const uint8_t *fo_map_data(const struct fo_map *m) {
    return m->data;
}

uint64_t fo_map_size(const struct fo_map *m) {
    return m->size;
}

const char *fo_map_path(const struct fo_map *m) {
    return m->path;
}

int fo_map_state(const struct fo_map *m, struct fo_err *e) {
    struct stat st;
    if (fstat(m->fd, &st) != 0) return fo_fail(e, FO_ELOST, "%s: the mapped file can no longer be examined", m->path);
    if (st.st_size != m->st.st_size)
        return fo_fail_need(e, FO_ELOST, m->size, (uint64_t)st.st_size, "%s: the file was %s while in use (%llu bytes when loaded, %llu now)",
                            m->path, st.st_size < m->st.st_size ? "truncated" : "extended", (unsigned long long)m->size,
                            (unsigned long long)st.st_size);
    if (atomic_load_explicit(&m->lost, memory_order_acquire))
        return fo_fail(e, FO_ELOST, "%s: reading the mapped file failed (truncated for a moment, or a disk error)", m->path);
    if (MTIME(st).tv_sec != MTIME(m->st).tv_sec || MTIME(st).tv_nsec != MTIME(m->st).tv_nsec)
        return fo_fail(e, FO_ELOST, "%s: the file was written to while in use", m->path);
    return FO_OK;
}

bool fo_map_replaced(const struct fo_map *m) {
    struct stat st;
    return stat(m->path, &st) != 0 || st.st_dev != m->st.st_dev || st.st_ino != m->st.st_ino;
}
