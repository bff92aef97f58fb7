/* Files that people change while the daemon runs: whether one looks other than when it was read, and what the daemon says of what it
 * read. Values; the main thread's. */
#pragma once
#include <stdbool.h>
#include <sys/stat.h>

struct pd_watch {
    struct stat seen; /* what it looked like when it was read; all zero = it was not there */
    bool young;       /* it had just changed: it may change again without being seen, so it is read again */
};

/* Call before reading: a change in between is seen at the next look then. */
void pd_watch_mark(struct pd_watch *w, const char *path);
/* Whether it should be read again. One stat. */
bool pd_watch_changed(const struct pd_watch *w, const char *path);

/* Whether what is in force is what the file says, with a word and a message for people. */
struct pd_file_state {
    bool ok;
    const char *reason; /* "NotConfigured", "Accepted", "Refused", ...: static storage */
    char message[384];
};
