#include "foundry/base/shard.h"

#include <stdio.h>
#include <string.h>

enum { DIGITS = 5 };
static const char pattern[] = FO_SHARD_END;
enum { NO_AT = 1, N_AT = 10 };

static bool digits(const char *s, uint32_t *ret) {
    uint32_t v = 0;
    for (int i = 0; i < DIGITS; i++) {
        if (s[i] < '0' || s[i] > '9') return false;
        v = v * 10 + (uint32_t)(s[i] - '0');
    }
    *ret = v;
    return true;
}

bool fo_shard_name(const char *path, uint32_t *ret_no, uint32_t *ret_n) {
    size_t len = strlen(path);
    if (len < FO_SHARD_END_BYTES) return false;
    const char *end = path + len - FO_SHARD_END_BYTES;
    uint32_t no, n;
    if (!digits(end + NO_AT, &no) || !digits(end + N_AT, &n) || no < 1 || no > n) return false;
    for (size_t i = 0; i < FO_SHARD_END_BYTES; i++)
        if ((i < NO_AT || i >= NO_AT + DIGITS) && (i < N_AT || i >= N_AT + DIGITS) && end[i] != pattern[i]) return false;
    *ret_no = no - 1;
    *ret_n = n;
    return true;
}

char *fo_shard_path(const char *path, uint32_t no, uint32_t n) {
    char *out;
    return asprintf(&out, "%.*s-%05u-of-%05u.gguf", (int)(strlen(path) - FO_SHARD_END_BYTES), path, no + 1, n) < 0 ? NULL : out;
}
