/* One line per event. Under systemd (JOURNAL_STREAM is set) a line starts with the journal's priority and has no time, because
 * the journal keeps its own; elsewhere it starts with UTC time. */
#include "daemon/log.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

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

static void sink(void *ctx, enum fo_log_level level, const char *area, const char *line) {
    const bool *journal = ctx;
    if (*journal) {
        fprintf(stderr, "<%d>level=%s area=%s %s\n", levels[level].priority, levels[level].name, area, line);
        return;
    }
    struct timespec now;
    struct tm tm;
    char when[32] = "";
    clock_gettime(CLOCK_REALTIME, &now);
    if (gmtime_r(&now.tv_sec, &tm)) strftime(when, sizeof when, "%Y-%m-%dT%H:%M:%S", &tm);
    fprintf(stderr, "time=%s.%03ldZ level=%s area=%s %s\n", when, now.tv_nsec / 1000000, levels[level].name, area, line);
}

void pd_log_open(const char *debug_areas) {
    static bool journal;
    journal = getenv("JOURNAL_STREAM") != NULL;
    fo_log_set(sink, &journal, debug_areas);
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
