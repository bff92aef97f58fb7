/* Folders of tests: see folder.h. */
#include "tests/support/folder.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <dirent.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

int test_folder_make(char folder[64]) {
    strcpy(folder, "/tmp/pantheon-test-XXXXXX");
    return mkdtemp(folder) ? 0 : -1;
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *at) {
    (void)st, (void)type, (void)at;
    return remove(path);
}

int test_folder_remove(const char *folder) {
    return nftw(folder, remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

void test_folder_put(const char *folder, const char *path, const char *text) {
    char full[256];
    snprintf(full, sizeof full, "%s/%s", folder, path);
    for (char *p = full + strlen(folder) + 1; (p = strchr(p, '/')); p++) {
        *p = '\0';
        mkdir(full, 0755);
        *p = '/';
    }
    FILE *f = fopen(full, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

int test_n_files(const char *folder) {
    int n = -2;
    DIR *d = opendir(folder);
    if (!d) return -1;
    while (readdir(d)) n++;
    closedir(d);
    return n;
}
