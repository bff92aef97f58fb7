/* Folders of tests: see folder.h. */
#include "tests/support/folder.h"

#include <dirent.h>

int test_n_files(const char *folder) {
    int n = -2;
    DIR *d = opendir(folder);
    if (!d) return -1;
    while (readdir(d)) n++;
    closedir(d);
    return n;
}
