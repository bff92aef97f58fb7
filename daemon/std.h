/* The three standard descriptors of a process that was not given them all, and a stdout that could not be written. */
#pragma once

/* First thing in main. A descriptor that is closed would be the next file that is opened: a model would be read as stdin, log lines
 * would go to a client's socket. Each closed one becomes /dev/null, opened the wrong way round, so that using it is still an error. */
void pd_std_open(void);

/* Last thing in main: flushes stdout. `status`, or 1 after a message when what was printed could not be written. */
int pd_std_close(const char *program, int status);
