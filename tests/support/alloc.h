/* Allocation failure on demand: every test program is linked with --wrap=malloc,calloc,realloc,mmap. */
#pragma once
#include <stdbool.h>
#include <stddef.h>

/* The n-th allocation of this thread from now on fails (1 = the next one), and every later one succeeds; 0 = none fails. */
void test_fail_alloc(long n);
/* Whether the failure armed last has happened (and disarms it): a loop over n = 1, 2, ... ends when it has not. */
bool test_alloc_failed(void);
/* Allocations of this thread since the last call of test_fail_alloc. */
long test_allocs(void);
/* Bytes asked for in them, whatever was freed again: never less than the peak. */
size_t test_alloc_bytes(void);
/* Bytes that this thread mapped since the last call of test_fail_alloc. Never refused. */
size_t test_mapped_bytes(void);
