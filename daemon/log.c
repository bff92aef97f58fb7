/* One line per event. Under systemd (JOURNAL_STREAM is set) a line starts with the journal's priority and has no time, because
 * the journal keeps its own; elsewhere it starts with UTC time. A line with fields goes to the journal's own socket instead of stderr, since
 * a stream carries text alone; when that fails, stderr has it as any line. */
#include "daemon/log.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "daemon/notify.h"
#include "foundry/base/buf.h"
#include "foundry/base/log.h"

static const struct {
    const char *name;
    int priority;
} levels[] = {
    [FO_LOG_DEBUG] = { "debug", 7 },
    [FO_LOG_INFO] = { "info", 6 },
    [FO_LOG_WARN] = { "warn", 4 },
    [FO_LOG_ERROR] = { "error", 3 },
};

/* --- JSON --- */

/* s[0..n) as a JSON string. fo_log leaves no control characters and nothing but UTF-8; `quoted`: it stood in quotes, with \" and \\ for
 * the characters. */
static void put_text(const char *s, size_t n, bool quoted, struct fo_buf *out) {
    fo_buf_putc(out, '"');
    for (size_t i = 0; i < n; i++) {
        if (quoted && s[i] == '\\' && i + 1 < n && (s[i + 1] == '"' || s[i + 1] == '\\')) i++;
        if (s[i] == '"' || s[i] == '\\') fo_buf_putc(out, '\\');
        fo_buf_putc(out, s[i]);
    }
    fo_buf_putc(out, '"');
}

/* Digits, a sign in front, a fraction behind: what is a number in JSON too, and few enough for a double. */
static bool is_number(const char *s, size_t n) {
    size_t sign = n > 1 && *s == '-', whole = 0, part = 0;
    while (sign + whole < n && s[sign + whole] >= '0' && s[sign + whole] <= '9') whole++;
    if (whole == 0 || (whole > 1 && s[sign] == '0') || n > 16) return false;
    if (sign + whole == n) return true;
    while (sign + whole + 1 + part < n && s[sign + whole + 1 + part] >= '0' && s[sign + whole + 1 + part] <= '9') part++;
    return s[sign + whole] == '.' && part > 0 && sign + whole + 1 + part == n;
}

/* The end of a value in quotes that begins behind s: its closing quote, or the end of a line that was cut. */
static const char *closing(const char *s) {
    while (*s && !(*s == '"' && (s[1] == ' ' || !s[1]))) s += *s == '\\' && s[1] ? 2 : 1;
    return s;
}

void pd_log_json(const char *time, const char *level, const char *area, const char *line, struct fo_buf *out) {
    fo_buf_putc(out, '{');
    if (*time) fo_buf_printf(out, "\"time\":\"%s\",", time);
    fo_buf_printf(out, "\"level\":\"%s\",\"area\":\"%s\"", level, area);
    for (const char *p = line; *p; p += strspn(p, " ")) {
        size_t n = strspn(p, "abcdefghijklmnopqrstuvwxyz0123456789_");
        if (n == 0 || p[n] != '=') {
            fo_buf_puts(out, ",\"text\":");
            put_text(p, strlen(p), false, out);
            break;
        }
        const char *v = p + n + 1;
        bool quoted = *v == '"';
        const char *end = quoted ? closing(++v) : v + strcspn(v, " ");
        fo_buf_printf(out, ",\"%.*s\":", (int)n, p);
        if (!quoted && is_number(v, (size_t)(end - v))) fo_buf_append(out, v, (size_t)(end - v));
        else put_text(v, (size_t)(end - v), quoted, out);
        p = end + (quoted && *end);
    }
    fo_buf_putc(out, '}');
}

bool pd_log_format(const char *word, bool *ret_json) {
    *ret_json = strcmp(word, "json") == 0;
    return *ret_json || strcmp(word, "text") == 0;
}

/* --- the sink --- */

static struct {
    bool journal, json;
    bool native; /* stderr is the journal's stream, not only its successor's */
} form;

static _Thread_local const struct pd_log_fields *at_hand; /* of the line that this thread is writing */

static void sink(void *ctx, enum fo_log_level level, const char *area, const char *line) {
    struct timespec now;
    struct tm tm;
    char when[40] = "";
    (void)ctx;
    clock_gettime(CLOCK_REALTIME, &now);
    size_t n = form.journal || !gmtime_r(&now.tv_sec, &tm) ? 0 : strftime(when, sizeof when, "%Y-%m-%dT%H:%M:%S", &tm);
    if (n) snprintf(when + n, sizeof when - n, ".%03ldZ", now.tv_nsec / 1000000);
    struct fo_buf out;
    fo_buf_init(&out, 16 * 1024); /* what 2,000 bytes can become at most */
    if (form.json) pd_log_json(when, levels[level].name, area, line, &out);
    else fo_buf_printf(&out, "%s%s%slevel=%s area=%s %s", n ? "time=" : "", when, n ? " " : "", levels[level].name, area, line);
    const char *text = out.failed ? "{\"text\":\"no memory for a line of the log\"}" : fo_buf_str(&out);
    if (!(form.native && at_hand && pd_notify_journal(levels[level].priority, text, at_hand))) {
        if (form.journal) fprintf(stderr, "<%d>", levels[level].priority);
        fprintf(stderr, "%s\n", text);
    }
    fo_buf_done(&out);
}

/* Whether stderr is the stream that JOURNAL_STREAM ("device:inode") names: a child of a service may have it elsewhere. */
static bool is_stream(const char *named) {
    unsigned long long dev, ino;
    struct stat st;
    return named && sscanf(named, "%llu:%llu", &dev, &ino) == 2 && fstat(STDERR_FILENO, &st) == 0 && st.st_dev == dev && st.st_ino == ino;
}

void pd_log_open(const char *debug_areas, bool json) {
    form.journal = getenv("JOURNAL_STREAM") != NULL;
    form.native = is_stream(getenv("JOURNAL_STREAM"));
    form.json = json;
    fo_log_set(sink, NULL, debug_areas);
}

void pd_log_with(const struct pd_log_fields *fields, enum fo_log_level level, const char *area, const char *fmt, ...) {
    char line[2001];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    at_hand = fields;
    fo_log(level, area, "%s", line);
    at_hand = NULL;
}

const char *pd_log_quote(const char *s, char *out, size_t size) {
    size_t n = 0;
    out[n++] = '"';
    for (; *s && n + 6 < size; s++) {
        if (*s == '"' || *s == '\\') out[n++] = '\\';
        out[n++] = *s;
    }
    if (*s) {
        while (n > 1 && ((unsigned char)out[n - 1] & 0xC0) == 0x80) n--; /* never half a character */
        if (n > 1 && ((unsigned char)out[n - 1] & 0x80)) n--;
        for (int i = 0; i < 3; i++) out[n++] = '.';
    }
    out[n++] = '"';
    out[n] = '\0';
    return out;
}
