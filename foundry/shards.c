/* GGUF in shards. Each is a GGUF file of its own; the names end in "-00001-of-00003.gguf", and the keys say the same:
 *
 *     split.count            how many there are                 split.no    which one this is, counted from 0
 *     split.tensors.count    tensors of all shards together
 *
 * The model's metadata is the first one's; the others carry little more than these keys. (Facts from llama.cpp's gguf-split.) What a name
 * says and what a file says must agree, so that shards of two models in one folder are never mixed up silently. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "foundry/base/err.h"
#include "foundry/base/file.h"
#include "foundry/base/shard.h"
#include "foundry/gguf_int.h"

/* Nothing is opened before all are there: what is missing is said at once, and by its whole name. */
static int all_there(const char *path, uint32_t n, struct fo_err *e) {
    uint32_t n_missing = 0;
    char *missing = NULL; /* the first one */
    for (uint32_t i = 0; i < n; i++) {
        struct stat st;
        char *shard = fo_shard_path(path, i, n);
        if (!shard) {
            free(missing);
            return (int)fo_fail(e, FO_ENOMEM, "%s: no memory", path);
        }
        bool gone = stat(shard, &st) != 0;
        n_missing += gone;
        if (gone && !missing) missing = shard;
        else free(shard);
    }
    if (!n_missing) return FO_OK;
    if (n_missing == 1)
        fo_fail_need(e, FO_ENOENT, n, n - 1, "%s is missing: the model is in %u files", missing, n);
    else
        fo_fail_need(e, FO_ENOENT, n, n - n_missing, "%s is missing, and %u more of the %u files of this model", missing, n_missing - 1, n);
    free(missing);
    return (int)e->code;
}

/* A key that must have a value, where it is there; it must be when it is needed. */
static int check_key(const struct fo_gguf *g, const char *path, const char *key, uint64_t expected, bool needed, struct fo_err *e) {
    uint64_t v;
    if (!needed && !fo_gguf_find(g, key)) return FO_OK;
    if (fo_gguf_get_u64(g, key, &v, e)) {
        if (e->code == FO_ENOENT) e->code = FO_EFORMAT; /* the file is there, only wrong */
        return (int)fo_wrap(e, "%s", path);
    }
    if (v == expected) return FO_OK;
    return (int)fo_fail_need(e, FO_EFORMAT, expected, v, "%s: %s is %llu, expected %llu", path, key, (unsigned long long)v,
                             (unsigned long long)expected);
}

static int open_shard(const char *path, uint32_t no, uint32_t n, struct fo_gguf **ret, struct fo_err *e) {
    struct fo_gguf *g;
    char *shard = fo_shard_path(path, no, n);
    if (!shard) return (int)fo_fail(e, FO_ENOMEM, "%s: no memory", path);
    int rc = fo_gguf_open(shard, &g, e);
    if (!rc && ((rc = check_key(g, shard, "split.count", n, true, e)) || (rc = check_key(g, shard, "split.no", no, true, e)))) fo_gguf_close(g);
    free(shard);
    if (!rc) *ret = g;
    return rc;
}

/* The tensors are as many as each shard says they are together. */
static int add_shard(struct fo_gguf *g, struct fo_gguf *part, uint64_t n_tensors, struct fo_err *e) {
    if (check_key(part, fo_map_path(fo_gguf_file(part, 0)), "split.tensors.count", n_tensors, false, e)) {
        fo_gguf_close(part);
        return (int)e->code;
    }
    return fo_gguf_absorb(g, part, e);
}

int fo_shards_open(const char *path, struct fo_gguf **ret, struct fo_err *e) {
    struct fo_gguf *g, *part;
    uint64_t n_tensors;
    uint32_t no, n;
    if (!fo_shard_name(path, &no, &n))
        return (int)fo_fail(e, FO_EFORMAT, "%s is one of several files of a model (split.count), but its name does not end like %s, so the others cannot be found", path, FO_SHARD_END);
    if (n > FO_MAX_FILES) return (int)fo_fail_need(e, FO_ELIMIT, n, FO_MAX_FILES, "%s: a model of %u files, at most %d are read", path, n, FO_MAX_FILES);
    if (all_there(path, n, e) || open_shard(path, 0, n, &g, e)) return (int)e->code;
    int rc = fo_gguf_get_u64(g, "split.tensors.count", &n_tensors, e);
    if (rc) {
        if (rc == FO_ENOENT) rc = e->code = FO_EFORMAT;
        fo_wrap(e, "%s", fo_map_path(fo_gguf_file(g, 0)));
    }
    for (uint32_t i = 1; i < n && !rc; i++)
        if (!(rc = open_shard(path, i, n, &part, e))) rc = add_shard(g, part, n_tensors, e);
    if (!rc && fo_gguf_n_tensors(g) != n_tensors)
        rc = (int)fo_fail_need(e, FO_EFORMAT, n_tensors, fo_gguf_n_tensors(g), "%s: the %u files have %zu tensors together, expected %llu (split.tensors.count)",
                               path, n, fo_gguf_n_tensors(g), (unsigned long long)n_tensors);
    if (!rc) rc = fo_gguf_state(g, e);
    if (rc) fo_gguf_close(g);
    else *ret = g;
    return rc;
}
