/* Allocation failure on demand: see alloc.h. */
#include "tests/support/alloc.h"

#include <stddef.h>
#include <sys/mman.h>
#include <sys/types.h>

void *__real_malloc(size_t n);
void *__real_calloc(size_t n, size_t size);
void *__real_realloc(void *p, size_t n);
void *__real_mmap(void *addr, size_t n, int prot, int flags, int fd, off_t offset);
void *__wrap_malloc(size_t n);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_realloc(void *p, size_t n);
void *__wrap_mmap(void *addr, size_t n, int prot, int flags, int fd, off_t offset);

static _Thread_local long left, count;
static _Thread_local size_t bytes, mapped;
static _Thread_local bool failed;

void test_fail_alloc(long n) {
    left = n;
    count = 0;
    bytes = mapped = 0;
    failed = false;
}

bool test_alloc_failed(void) {
    bool was = failed;
    left = 0;
    failed = false;
    return was;
}

long test_allocs(void) {
    return count;
}

size_t test_alloc_bytes(void) {
    return bytes;
}

size_t test_mapped_bytes(void) {
    return mapped;
}

static bool refuse(size_t n) {
    count++;
    bytes += n;
    if (left == 0 || --left > 0) return false;
    failed = true;
    return true;
}

void *__wrap_malloc(size_t n) {
    return refuse(n) ? NULL : __real_malloc(n);
}

void *__wrap_calloc(size_t n, size_t size) {
    return refuse(n * size) ? NULL : __real_calloc(n, size);
}

void *__wrap_realloc(void *p, size_t n) {
    return refuse(n) ? NULL : __real_realloc(p, n);
}

void *__wrap_mmap(void *addr, size_t n, int prot, int flags, int fd, off_t offset) {
    mapped += n;
    return __real_mmap(addr, n, prot, flags, fd, offset);
}
