/* The note's form, a line each:
 *
 *     pantheon part 1
 *     url hf:OWNER/REPO/FILE
 *     validator "5d41402abc4b2a76"
 *     size 4368439584
 *     synced 67108864
 *
 * A server writes the validator and a person may write the file, so nothing of it is believed before it was parsed. */
#include "daemon/part.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "foundry/base/err.h"
#include "foundry/base/file.h"

#define HEAD "pantheon part 1"
enum { MAX_NOTE = PD_MAX_URL + PD_MAX_VALIDATOR + 256 };

/* Digits alone, to the end of the text. */
static bool number(const char *s, uint64_t *ret) {
    char *end;
    if (*s < '0' || *s > '9') return false;
    errno = 0;
    unsigned long long v = strtoull(s, &end, 10);
    if (errno || *end) return false;
    *ret = v;
    return true;
}

static bool take_line(const char *line, struct pd_part_note *n) {
    const char *value = strchr(line, ' ');
    size_t key = value ? (size_t)(value - line) : 0;
    if (!value++) return false;
    size_t len = strlen(value);
    if (key == 3 && memcmp(line, "url", key) == 0 && len < sizeof n->url) {
        memcpy(n->url, value, len + 1);
        return true;
    }
    if (key == 9 && memcmp(line, "validator", key) == 0 && len < sizeof n->validator) {
        memcpy(n->validator, value, len + 1);
        return true;
    }
    if (key == 4 && memcmp(line, "size", key) == 0) return number(value, &n->size_bytes);
    return key == 6 && memcmp(line, "synced", key) == 0 && number(value, &n->synced_bytes);
}

int pd_part_note_parse(const char *text, size_t len, struct pd_part_note *ret, struct fo_err *e) {
    struct pd_part_note n = { .url = "" };
    char line[MAX_NOTE];
    int no = 0;
    for (size_t at = 0; at < len;) {
        const char *end = memchr(text + at, '\n', len - at);
        size_t k = end ? (size_t)(end - text) - at : 0;
        if (!end || k >= sizeof line || memchr(text + at, '\0', k)) return fo_fail(e, FO_EFORMAT, "line %d is cut, or too long", no + 1);
        memcpy(line, text + at, k);
        line[k] = '\0';
        at += k + 1;
        if (no++ == 0 ? strcmp(line, HEAD) != 0 : !take_line(line, &n)) return fo_fail(e, FO_EFORMAT, "line %d is none of a part's", no);
    }
    if (!*n.url) return fo_fail(e, FO_EFORMAT, "it names no url");
    *ret = n;
    return FO_OK;
}

static bool note_path(const char *part, const char *end, char out[PD_MAX_URL]) {
    return snprintf(out, PD_MAX_URL, "%s.from%s", part, end) < PD_MAX_URL;
}

bool pd_part_note_read(const char *part, struct pd_part_note *ret) {
    char path[PD_MAX_URL], *text;
    struct fo_err e;
    size_t len;
    if (!note_path(part, "", path) || fo_file_read(path, MAX_NOTE, &text, &len, &e)) return false;
    int code = pd_part_note_parse(text, len, ret, &e);
    free(text);
    return code == FO_OK;
}

int pd_part_note_write(const char *part, const struct pd_part_note *n, struct fo_err *e) {
    char path[PD_MAX_URL], temp[PD_MAX_URL];
    if (!note_path(part, "", path) || !note_path(part, ".new", temp)) return fo_fail(e, FO_ELIMIT, "%s: the path is too long", part);
    unlink(temp); /* a pipe of that name, in a folder that others write to, would be waited for */
    int fd = open(temp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    FILE *f = fd < 0 ? NULL : fdopen(fd, "w");
    if (!f) {
        int err = errno;
        if (fd >= 0) close(fd);
        return fo_fail_errno(e, err, "%s", temp);
    }
    bool ok = fprintf(f, HEAD "\nurl %s\nvalidator %s\nsize %llu\nsynced %llu\n", n->url, n->validator, (unsigned long long)n->size_bytes, (unsigned long long)n->synced_bytes) > 0;
    if (fclose(f)) ok = false;
    if (ok && rename(temp, path) == 0) return FO_OK;
    int err = errno;
    unlink(temp);
    return fo_fail_errno(e, err, "%s", path);
}

void pd_part_note_remove(const char *part) {
    char path[PD_MAX_URL];
    if (note_path(part, "", path)) unlink(path);
}

bool pd_content_range(const char *value, uint64_t *ret_first, uint64_t *ret_size) {
    static const char digits[] = "0123456789";
    char first[24], last[24], size[24];
    uint64_t a, b, c = 0;
    if (strncasecmp(value, "bytes ", 6) != 0) return false;
    value += 6;
    size_t n = strspn(value, digits), m;
    if (n == 0 || n >= sizeof first || value[n] != '-') return false;
    snprintf(first, sizeof first, "%.*s", (int)n, value);
    value += n + 1;
    m = strspn(value, digits);
    if (m == 0 || m >= sizeof last || value[m] != '/') return false;
    snprintf(last, sizeof last, "%.*s", (int)m, value);
    value += m + 1;
    if (strlen(value) >= sizeof size) return false;
    snprintf(size, sizeof size, "%s", value);
    bool known = strcmp(size, "*") != 0;
    if (!number(first, &a) || !number(last, &b) || b < a || (known && (!number(size, &c) || c <= b))) return false;
    *ret_first = a;
    *ret_size = c;
    return true;
}

bool pd_header_value(const char *line, size_t n, const char *name, char *ret, size_t size) {
    size_t k = strlen(name);
    if (n <= k || line[k] != ':' || strncasecmp(line, name, k) != 0) return false;
    line += k + 1;
    n -= k + 1;
    while (n && (line[n - 1] == '\r' || line[n - 1] == '\n' || line[n - 1] == ' ' || line[n - 1] == '\t')) n--;
    while (n && (*line == ' ' || *line == '\t')) line++, n--;
    if (n >= size || memchr(line, '\0', n)) return false;
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)line[i] < 0x20 || (unsigned char)line[i] >= 0x7F) return false; /* it goes back to the server, and into a file of lines */
    memcpy(ret, line, n);
    ret[n] = '\0';
    return true;
}
