/* See std.h. */
#include "daemon/std.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>

void pd_std_open(void) {
    for (int fd = 0; fd <= 2; fd++) /* in this order: open gives the lowest that is free */
        if (fcntl(fd, F_GETFD) < 0 && errno == EBADF && open("/dev/null", fd == 0 ? O_WRONLY : O_RDONLY) < 0) return;
}

int pd_std_close(const char *program, int status) {
    errno = 0;
    if ((fflush(stdout) == 0 && !ferror(stdout)) || status != 0) return status;
    fprintf(stderr, "%s: writing the output: %s\n", program, errno ? strerror(errno) : "it could not be written");
    return 1;
}
