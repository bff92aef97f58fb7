/* See router_events.h. An event ends with an empty line; a line ends with LF, CR LF or CR (the HTML standard's event streams). */
#include "daemon/router_events.h"

#include <string.h>

void pd_events_init(struct pd_events *v) {
    *v = (struct pd_events){ 0 };
    fo_buf_init(&v->held, 2 * (size_t)PD_MAX_EVENT_BYTES);
    fo_buf_init(&v->first, PD_MAX_FIRST_BYTES);
}

void pd_events_done(struct pd_events *v) {
    fo_buf_done(&v->held);
    fo_buf_done(&v->first);
}

/* The end of the event whose line ends are looked for from s[at] on: the index behind its empty line, 0 = it is not whole. */
static size_t event_end(const char *s, size_t n, size_t at) {
    for (size_t i = at; i < n; i++) {
        if (s[i] != '\n' && s[i] != '\r') continue;
        size_t next = i + (s[i] == '\r' && i + 1 < n && s[i + 1] == '\n' ? 2 : 1);
        if (next >= n || (s[next] != '\n' && s[next] != '\r')) continue;
        if (s[next] == '\r' && next + 1 < n && s[next + 1] == '\n') next++;
        return next + 1;
    }
    return 0;
}

/* The value of the first line of a field; its length, 0 = there is none. */
static size_t field(const char *s, size_t n, const char *name, const char **ret) {
    size_t k = strlen(name);
    for (size_t i = 0; i < n;) {
        size_t len = 0;
        while (i + len < n && s[i + len] != '\n' && s[i + len] != '\r') len++;
        if (len > k && memcmp(s + i, name, k) == 0 && s[i + k] == ':') {
            size_t skip = k + 1 + (len > k + 1 && s[i + k + 1] == ' ');
            *ret = s + i + skip;
            return len - skip;
        }
        i += len + 1;
    }
    return 0;
}

static bool is_word(const char *s, size_t n, const char *word) {
    return strlen(word) == n && memcmp(s, word, n) == 0;
}

/* What an event that passes says of the stream. */
static void note(struct pd_events *v, const char *s, size_t n) {
    static const char *const last[] = { "error", "response.completed", "response.incomplete", "response.failed" };
    const char *data = "", *type = "";
    size_t n_data = field(s, n, "data", &data), n_type = field(s, n, "event", &type);
    if (!n_data) return;
    if (v->n++ == 0 && !fo_buf_append(&v->first, data, n_data)) fo_buf_clear(&v->first);
    if (is_word(data, n_data, "[DONE]") || (n_data > 8 && memcmp(data, "{\"error\"", 8) == 0)) v->ended = true;
    for (size_t i = 0; i < sizeof last / sizeof *last; i++) v->ended = v->ended || is_word(type, n_type, last[i]);
}

bool pd_events_feed(struct pd_events *v, const char *bytes, size_t n, struct fo_buf *out) {
    size_t begin = 0, end;
    if (!fo_buf_append(&v->held, bytes, n)) return false;
    while ((end = event_end(v->held.data, v->held.len, v->looked)) != 0) {
        if (v->passing) v->n++;
        else note(v, v->held.data + begin, end - begin);
        v->passing = false;
        v->looked = begin = end;
    }
    if (v->held.len - begin > PD_MAX_EVENT_BYTES) {
        begin = v->held.len - 4; /* enough to find the empty line by */
        v->passing = true;
    }
    if (begin) { /* else a long event that comes in small pieces would be moved at each */
        fo_buf_append(out, v->held.data, begin);
        memmove(v->held.data, v->held.data + begin, v->held.len - begin);
        v->held.len -= begin;
        v->held.data[v->held.len] = '\0';
    }
    v->looked = v->held.len > 3 ? v->held.len - 3 : 0;
    return !out->failed;
}

void pd_events_finish(struct pd_events *v, struct fo_buf *out) {
    fo_buf_append(out, fo_buf_str(&v->held), v->held.len);
    fo_buf_clear(&v->held);
}
