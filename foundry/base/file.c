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
#ifdef __linux__
#include <sys/syscall.h>
#endif
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
 * The fault handler walks a fixed table of ranges, never memory that another thread might free meanwhile. A range is in force
 * while its end is not 0: the end is written last on opening and cleared first on closing, before the memory is unmapped, so a fault
 * inside a live map always finds its range. The handler reads the end twice, around the start, to see a range whole. */
enum { MAX_MAPS = 1024 }; /* a large model is some 200 files, and is opened a second time to be looked at */

struct guard {
    atomic_bool taken;
    atomic_bool lost; /* a read faulted */
    _Atomic(uintptr_t) start, end;
};

struct fo_map {
    const uint8_t *data;
    uint64_t size;
    size_t mapped; /* size rounded up to pages */
    int fd;
    struct stat st; /* as it was when mapped */
    struct guard *guard;
    char path[];
};

static struct guard guards[MAX_MAPS];
static struct sigaction old_action;
static size_t page_bytes;
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* Zeros over [from, from + n). The bare system call: libc does not promise that mmap may be called in a handler, and the thread
 * sanitizer would take it for a write that races with the readers we are saving. */
static bool map_zeros(void *from, size_t n) {
#ifdef __linux__
    return syscall(SYS_mmap, from, n, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0L) != -1;
#else
    return mmap(from, n, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != MAP_FAILED;
#endif
}

static void on_sigbus(int sig, siginfo_t *info, void *ctx) {
    uintptr_t at = (uintptr_t)info->si_addr;
    for (int i = 0; i < MAX_MAPS; i++) {
        struct guard *g = &guards[i];
        uintptr_t end = atomic_load(&g->end), start = atomic_load(&g->start);
        if (at < start || at >= end || end != atomic_load(&g->end)) continue;
        atomic_store(&g->lost, true); /* before any zero can be read */
        uintptr_t from = at & ~(uintptr_t)(page_bytes - 1);
        int saved = errno;
        bool zeros = map_zeros((void *)from, end - from); /* to the end: one fault, not one per page */
        errno = saved;
        if (zeros) return;
    }
    /* not ours: the handler that was there before, or the default */
    if (old_action.sa_handler == SIG_DFL || old_action.sa_handler == SIG_IGN) {
        signal(sig, SIG_DFL);
        raise(sig);
    } else if (old_action.sa_flags & SA_SIGINFO) {
        old_action.sa_sigaction(sig, info, ctx);
    } else {
        old_action.sa_handler(sig);
    }
}

static void install(void) {
    page_bytes = (size_t)sysconf(_SC_PAGESIZE);
    struct sigaction sa = { .sa_sigaction = on_sigbus, .sa_flags = SA_SIGINFO | SA_NODEFER | SA_ONSTACK };
    sigemptyset(&sa.sa_mask);
    sigaction(SIGBUS, &sa, &old_action);
}

int fo_map_open(const char *path, struct fo_map **ret, struct fo_err *e) {
    pthread_once(&once, install);
    size_t path_bytes = strlen(path) + 1;
    struct fo_map *m = calloc(1, sizeof *m + path_bytes);
    if (!m) return fo_fail_need(e, FO_ENOMEM, sizeof *m + path_bytes, 0, "%s: no memory", path);
    memcpy(m->path, path, path_bytes);
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
    if (m->size > SIZE_MAX - page_bytes) {
        rc = fo_fail_need(e, FO_ELIMIT, m->size, SIZE_MAX, "%s: larger than the address space", path);
        goto fail;
    }
    m->mapped = ((size_t)m->size + page_bytes - 1) & ~(page_bytes - 1);
    void *p = mmap(NULL, (size_t)m->size, PROT_READ, MAP_PRIVATE, m->fd, 0);
    if (p == MAP_FAILED) {
        rc = fo_fail_errno(e, errno, "%s: mapping %llu bytes", path, (unsigned long long)m->size);
        goto fail;
    }
    m->data = p;
    for (struct guard *g = guards; g < guards + MAX_MAPS; g++) {
        bool free_slot = false;
        if (!atomic_compare_exchange_strong(&g->taken, &free_slot, true)) continue;
        m->guard = g;
        atomic_store(&g->lost, false);
        atomic_store(&g->start, (uintptr_t)m->data);
        atomic_store(&g->end, (uintptr_t)m->data + m->mapped);
        *ret = m;
        return FO_OK;
    }
    rc = fo_fail_need(e, FO_ELIMIT, MAX_MAPS + 1, MAX_MAPS, "%s: more than %d files mapped at once", path, MAX_MAPS);
fail:
    fo_map_close(m);
    return rc;
}

void fo_map_close(struct fo_map *m) {
    if (!m) return;
    if (m->guard) atomic_store(&m->guard->end, 0);
    if (m->data) munmap((void *)(uintptr_t)m->data, m->mapped);
    if (m->guard) atomic_store(&m->guard->taken, false);
    if (m->fd >= 0) close(m->fd);
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
    if (atomic_load(&m->guard->lost))
        return fo_fail(e, FO_ELOST, "%s: reading the mapped file failed (truncated for a moment, or a disk error)", m->path);
    if (MTIME(st).tv_sec != MTIME(m->st).tv_sec || MTIME(st).tv_nsec != MTIME(m->st).tv_nsec)
        return fo_fail(e, FO_ELOST, "%s: the file was written to while in use", m->path);
    return FO_OK;
}

void fo_map_forget(const struct fo_map *m, const void *p, uint64_t n) {
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    uintptr_t lo = ((uintptr_t)p + page - 1) & ~(page - 1), hi = ((uintptr_t)p + n) & ~(page - 1);
    if (m && hi > lo) madvise((void *)lo, hi - lo, MADV_DONTNEED);
}

void fo_map_drop(const struct fo_map *m) {
    fo_map_forget(m, m->data, m->mapped);
    posix_fadvise(m->fd, 0, 0, POSIX_FADV_DONTNEED); /* who else has it mapped keeps it */
}

bool fo_map_replaced(const struct fo_map *m) {
    struct stat st;
    return stat(m->path, &st) != 0 || st.st_dev != m->st.st_dev || st.st_ino != m->st.st_ino;
}
