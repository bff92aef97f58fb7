/* Which form a model has: see model_file.h. */
#include "foundry/model_file.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "foundry/base/err.h"
#include "foundry/base/hash.h"
#include "foundry/base/shard.h"
#include "foundry/gguf_int.h"
#include "foundry/hf.h"

int fo_model_open(const char *path, struct fo_gguf **ret, struct fo_err *e) {
    struct fo_gguf *g;
    struct stat st;
    uint32_t no, n;
    if (stat(path, &st) == 0 && S_ISDIR(st.st_mode)) return fo_hf_open(path, ret, e);
    /* The name alone makes no shard: a file may be called so and hold the whole model. */
    int rc = fo_gguf_open(path, &g, e);
    if (rc == FO_ENOENT && fo_shard_name(path, &no, &n)) return fo_shards_open(path, ret, e); /* says which of them is missing */
    if (rc) return rc;
    const struct fo_gguf_kv *kv = fo_gguf_find(g, "split.count");
    if (!kv || fo_gguf_array_i64(kv, 0) <= 1) {
        *ret = g;
        return FO_OK;
    }
    fo_gguf_close(g);
    return fo_shards_open(path, ret, e);
}

/* --- identity --- */

static uint64_t of_file(const char *path) {
    struct stat st;
    if (stat(path, &st) != 0) return 0;
#ifdef __APPLE__
    const struct timespec t = st.st_mtimespec;
#else
    const struct timespec t = st.st_mtim;
#endif
    const uint64_t facts[] = { st.st_dev, st.st_ino, (uint64_t)st.st_size, (uint64_t)t.tv_sec, (uint64_t)t.tv_nsec };
    return fo_fnv1a(fo_fnv1a(FO_FNV_SEED, path, strlen(path)), facts, sizeof facts);
}

/* The files of a directory that may belong to its model; the order in which they come does not count. */
static uint64_t of_directory(const char *dir) {
    static const char *const kinds[] = { ".safetensors", ".json", ".jinja" };
    uint64_t sum = 1;
    DIR *d = opendir(dir);
    for (const struct dirent *entry; d && (entry = readdir(d));) {
        const char *dot = strrchr(entry->d_name, '.');
        char *path;
        for (size_t i = 0; dot && i < sizeof kinds / sizeof *kinds; i++) {
            if (strcmp(dot, kinds[i]) != 0) continue;
            if (asprintf(&path, "%s/%s", dir, entry->d_name) < 0) continue; /* seen the next time */
            sum += of_file(path);
            free(path);
        }
    }
    if (d) closedir(d);
    return sum;
}

uint64_t fo_model_identity(const char *path) {
    struct stat st;
    uint32_t no, n;
    if (stat(path, &st) == 0 && S_ISDIR(st.st_mode)) return of_directory(path);
    if (!fo_shard_name(path, &no, &n) || n > FO_MAX_FILES) return of_file(path);
    uint64_t sum = of_file(path) ? 1 : 0;
    for (uint32_t i = 0; i < n && sum; i++) {
        char *shard = fo_shard_path(path, i, n);
        if (!shard) return of_file(path); /* no worse than one file's */
        sum += of_file(shard);
        free(shard);
    }
    return sum;
}

const char *fo_model_path_name(const char *path, size_t *ret_len) {
    uint32_t no, n_shards;
    size_t n = strlen(path), from;
    if (fo_shard_name(path, &no, &n_shards)) n -= FO_SHARD_END_BYTES;
    else if (n > 5 && strcmp(path + n - 5, ".gguf") == 0) n -= 5;
    while (n > 1 && path[n - 1] == '/') n--; /* a directory may be written with one */
    for (from = n; from > 0 && path[from - 1] != '/'; from--) {}
    *ret_len = n - from;
    return path + from;
}
