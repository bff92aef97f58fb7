/* modules.json and 1_Pooling/config.json: see hf_pooling.h. The first lists what a text goes through, each module with its class and its folder:
 *
 *     [{"idx":0,"path":"","type":"sentence_transformers.models.Transformer"},
 *      {"idx":1,"path":"1_Pooling","type":"sentence_transformers.models.Pooling"},
 *      {"idx":2,"path":"2_Normalize","type":"sentence_transformers.models.Normalize"}]
 *
 * the second has a switch for each pooling ("pooling_mode_mean_tokens": true), or since version 5 perhaps the name of one ("pooling_mode": "mean"). */
#include "foundry/hf_pooling.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "foundry/base/err.h"
#include "foundry/base/file.h"
#include "foundry/gguf_write.h"

enum { MAX_FILE_BYTES = 1 << 20, MAX_PATH = 4096 };
enum { NONE = 0, MEAN = 1, CLS = 2, LAST = 3 }; /* GGUF's */

/* The switches, and the names. */
static const struct {
    const char *key, *name;
    uint32_t type;
} modes[] = {
    { "pooling_mode_cls_token", "cls", CLS },
    { "pooling_mode_mean_tokens", "mean", MEAN },
    { "pooling_mode_mean_sqrt_len_tokens", "mean_sqrt_len_tokens", MEAN },
    { "pooling_mode_lasttoken", "lasttoken", LAST },
    { "pooling_mode_max_tokens", "max", NONE },
    { "pooling_mode_weightedmean_tokens", "weightedmean", NONE },
};
enum { N_MODES = sizeof modes / sizeof *modes };

/* The JSON of dir/file in *ret, which stays NULL when there is no such file. */
static int read_json(const char *dir, const char *file, json_t **ret, struct fo_err *e) {
    char path[MAX_PATH], *text;
    size_t len;
    json_error_t why;
    if ((size_t)snprintf(path, sizeof path, "%s/%s", dir, file) >= sizeof path) return (int)fo_fail(e, FO_ELIMIT, "%s: the path is too long", dir);
    if (fo_file_read(path, MAX_FILE_BYTES, &text, &len, e)) return e->code == FO_ENOENT ? FO_OK : (int)e->code;
    json_t *v = json_loadb(text, len, JSON_REJECT_DUPLICATES, &why);
    free(text);
    if (!v && json_error_code(&why) == json_error_out_of_memory) return (int)fo_fail(e, FO_ENOMEM, "%s: no memory", path);
    if (!v) return (int)fo_fail_at(e, FO_EFORMAT, why.line, why.column, "%s: line %d, column %d: %s", path, why.line, why.column, why.text);
    *ret = v;
    return FO_OK;
}

/* Whether a module's class is this one, whatever package it is in. */
static bool is_class(const char *type, const char *name) {
    const char *dot = strrchr(type, '.');
    return strcmp(dot ? dot + 1 : type, name) == 0;
}

/* The folder of the pooling, in `folder`, "" when there is none; *ret_more when there are modules besides that are not computed. */
static int read_modules(const char *dir, char folder[64], bool *ret_there, bool *ret_more, struct fo_err *e) {
    json_t *list = NULL, *m;
    size_t i;
    if (read_json(dir, "modules.json", &list, e)) return (int)e->code;
    *ret_there = list != NULL;
    int rc = !list || json_is_array(list) ? FO_OK : (int)fo_fail(e, FO_EFORMAT, "%s/modules.json: not a list", dir);
    json_array_foreach(list, i, m) {
        const char *type = json_string_value(json_object_get(m, "type")), *path = json_string_value(json_object_get(m, "path"));
        if (!type || !path) {
            rc = (int)fo_fail(e, FO_EFORMAT, "%s/modules.json: entry %zu has no type or no path", dir, i);
            break;
        }
        if (is_class(type, "Pooling")) {
            if (!*path || strlen(path) >= 64 || strchr(path, '/') || path[0] == '.') { /* no way out of the directory */
                rc = (int)fo_fail(e, FO_EFORMAT, "%s/modules.json: the path of entry %zu is not the name of a folder", dir, i);
                break;
            }
            *ret_more |= *folder != '\0';
            snprintf(folder, 64, "%s", path);
        } else if (!is_class(type, "Transformer") && !is_class(type, "Normalize")) {
            *ret_more = true;
        }
    }
    json_decref(list);
    return rc;
}

/* The pooling of 1_Pooling/config.json. */
static int read_mode(const json_t *config, const char *dir, const char *file, uint32_t *ret, struct fo_err *e) {
    int n = 0;
    const json_t *named = json_object_get(config, "pooling_mode"), *prompt = json_object_get(config, "include_prompt");
    *ret = NONE;
    if (!json_is_object(config)) return (int)fo_fail(e, FO_EFORMAT, "%s/%s: not an object", dir, file);
    if (named && !json_is_string(named)) return (int)fo_fail(e, FO_EFORMAT, "%s/%s: pooling_mode is not a text", dir, file);
    for (int i = 0; i < N_MODES; i++) {
        const json_t *v = json_object_get(config, modes[i].key);
        if (v && !json_is_boolean(v)) return (int)fo_fail(e, FO_EFORMAT, "%s/%s: %s is not true or false", dir, file, modes[i].key);
        if (named ? strcmp(json_string_value(named), modes[i].name) != 0 : !json_is_true(v)) continue;
        *ret = modes[i].type;
        n++;
    }
    if (n != 1 || json_is_false(prompt)) *ret = NONE; /* several are put behind each other; tokens of a prompt would not count */
    return FO_OK;
}

int fo_hf_pooling(const char *dir, const char *arch, struct fo_gguf_writer *w, struct fo_err *e) {
    char folder[64] = "", file[96], key[96];
    bool modules = false, more = false;
    uint32_t type = NONE;
    json_t *config = NULL;
    if (read_modules(dir, folder, &modules, &more, e)) return (int)e->code;
    snprintf(file, sizeof file, "%s/config.json", modules ? folder : "1_Pooling");
    if ((!modules || *folder) && read_json(dir, file, &config, e)) return (int)e->code;
    int rc = config ? read_mode(config, dir, file, &type, e) : FO_OK;
    if (!rc && (modules || config)) {
        snprintf(key, sizeof key, "%s.pooling_type", arch);
        fo_gguf_put_u32(w, key, more ? NONE : type);
    }
    json_decref(config);
    return rc;
}
