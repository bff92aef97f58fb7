/* Allocation failure on demand: see alloc.h. */
#include "tests/support/alloc.h"

#include <stddef.h>

void *__real_malloc(size_t n);
void *__real_calloc(size_t n, size_t size);
void *__real_realloc(void *p, size_t n);
void *__wrap_malloc(size_t n);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_realloc(void *p, size_t n);

static _Thread_local long left, count;
static _Thread_local size_t bytes;
static _Thread_local bool failed;

void test_fail_alloc(long n) {
    left = n;
    count = 0;
    bytes = 0;
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
