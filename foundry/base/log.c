/* Log sink: see log.h. */
#include "foundry/base/log.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "foundry/base/err.h"

static struct {
    pthread_mutex_t lock;
    fo_log_sink *sink;
    void *ctx;
    char areas[256]; /* ",sched,kv," so that a look-up is one strstr; "" = none */
    bool all;
} state = { .lock = PTHREAD_MUTEX_INITIALIZER };

void fo_log_set(fo_log_sink *sink, void *ctx, const char *debug_areas) {
    pthread_mutex_lock(&state.lock);
    state.sink = sink;
    state.ctx = ctx;
    state.all = debug_areas && strcmp(debug_areas, "all") == 0;
    state.areas[0] = '\0';
    if (debug_areas && debug_areas[0] && !state.all) snprintf(state.areas, sizeof state.areas, ",%s,", debug_areas);
    pthread_mutex_unlock(&state.lock);
}

const char *fo_log_areas(void) {
    return "grammar, http, reconcile, sched";
}

const char *fo_log_unknown_area(const char *list, size_t *ret_len) {
    for (const char *p = list;; p++) {
        size_t n = strcspn(p, ",");
        bool known = n == 3 && memcmp(p, "all", 3) == 0;
        for (const char *a = fo_log_areas(); *a && !known; a += strspn(a, ", ")) {
            size_t len = strcspn(a, ", ");
            known = n == len && memcmp(p, a, n) == 0;
            a += len;
        }
        if (!known) {
            *ret_len = n;
            return p;
        }
        p += n;
        if (!*p) return NULL;
    }
}

bool fo_log_debug_on(const char *area) {
    if (!state.sink) return false;
    if (state.all) return true;
    if (!state.areas[0] || !area[0]) return false;
    char key[64];
    snprintf(key, sizeof key, ",%s,", area);
    return strstr(state.areas, key) != NULL;
}

void fo_log(enum fo_log_level level, const char *area, const char *fmt, ...) {
    if (!state.sink || (level == FO_LOG_DEBUG && !fo_log_debug_on(area))) return;
    char line[2001];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    fo_text_defuse(line);
    pthread_mutex_lock(&state.lock);
    state.sink(state.ctx, level, area, line);
    pthread_mutex_unlock(&state.lock);
}
