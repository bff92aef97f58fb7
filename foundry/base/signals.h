/* Signals and threads. */
#pragma once
#include <signal.h>

/* The set a thread of ours blocks: all but those that its own faults raise. Signals are for the program's main thread, but a fault must
 * reach the thread that caused it: a blocked SIGBUS would kill the process where file.c could have saved it. */
void fo_signals_for_threads(sigset_t *ret);
