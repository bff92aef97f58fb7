/* Signals and threads: see signals.h. */
#include "foundry/base/signals.h"

#include <stddef.h>

void fo_signals_for_threads(sigset_t *ret) {
    static const int faults[] = { SIGBUS, SIGSEGV, SIGILL, SIGFPE, SIGTRAP, SIGABRT };
    sigfillset(ret);
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) sigdelset(ret, faults[i]);
}
