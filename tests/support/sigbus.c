/* The library's SIGBUS handler within cmocka: see sigbus.h. */
#include "tests/support/sigbus.h"

#include <signal.h>
#include <stddef.h>

#include "foundry/base/err.h"
#include "foundry/base/file.h"

static struct sigaction guard;

void test_sigbus_init(void) {
    struct fo_map *m;
    struct fo_err e;
    if (fo_map_open("/proc/self/exe", &m, &e)) return; /* then the guard is the default, and the test dies of it */
    sigaction(SIGBUS, NULL, &guard);
    fo_map_close(m);
}

void test_sigbus_guard(void) {
    sigaction(SIGBUS, &guard, NULL);
}
