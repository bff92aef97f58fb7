/* A lane is a multi handle with one easy handle, used by the thread that has it. Why not one loop for all of them: each piece of an answer
 * would cross from the loop's thread to its connection's, with a queue between them that has to be bounded and a wake-up that costs more than all
 * the rest of the hop; here the connection's thread reads the backend itself and writes to its client before it reads on, so a client
 * that is slow slows its backend and nothing is kept. Lanes that wait for work are few (N_IDLE); the last that was used is used first. */
#include "daemon/hop.h"

#include <curl/curl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "foundry/base/buf.h"
#include "foundry/base/clock.h"
#include "foundry/base/err.h"

enum { N_IDLE = 64, LOOK_MS = 100, MAX_LINE = 64 << 10 };

struct pd_lane {
    struct pd_lane *next;
    CURLM *multi;
    CURL *easy;
};

/* A request under way. */
struct run {
    const struct pd_hop *h;
    struct fo_buf lines; /* of the head that is coming */
    size_t head_bytes;   /* of all heads, so that 1xx without end have one */
    int status;          /* of it */
    bool head_whole, stopped, too_large, no_memory;
    uint64_t heard_ms;   /* when something was sent or came last */
    curl_off_t sent;
};

int pd_hop_init(struct fo_err *e) {
    return curl_global_init(CURL_GLOBAL_DEFAULT) == CURLE_OK ? FO_OK : fo_fail(e, FO_EINTERNAL, "libcurl cannot be initialised");
}

/* --- lanes --- */

static void lane_free(struct pd_lane *k) {
    if (!k) return;
    if (k->easy) curl_easy_cleanup(k->easy);
    if (k->multi) curl_multi_cleanup(k->multi);
    free(k);
}

static struct pd_lane *lane_new(void) {
    struct pd_lane *k = calloc(1, sizeof *k);
    if (!k) return NULL;
    k->multi = curl_multi_init();
    k->easy = curl_easy_init();
    if (k->multi && k->easy && curl_multi_setopt(k->multi, CURLMOPT_MAXCONNECTS, 1L) == CURLM_OK) return k;
    lane_free(k);
    return NULL;
}

void pd_lanes_init(struct pd_lanes *l, const char *url, const char *socket) {
    *l = (struct pd_lanes){ .url = url, .socket = socket };
    pthread_mutex_init(&l->lock, NULL);
}

void pd_lanes_done(struct pd_lanes *l) {
    for (struct pd_lane *k = l->idle, *next; k; k = next) {
        next = k->next;
        lane_free(k);
    }
    pthread_mutex_destroy(&l->lock);
}

static struct pd_lane *take(struct pd_lanes *l) {
    pthread_mutex_lock(&l->lock);
    struct pd_lane *k = l->idle;
    if (k) {
        l->idle = k->next;
        l->n_idle--;
    }
    pthread_mutex_unlock(&l->lock);
    return k ? k : lane_new();
}

static void give(struct pd_lanes *l, struct pd_lane *k) {
    pthread_mutex_lock(&l->lock);
    bool keep = l->n_idle < N_IDLE;
    if (keep) {
        k->next = l->idle;
        l->idle = k;
        l->n_idle++;
    }
    pthread_mutex_unlock(&l->lock);
    if (!keep) lane_free(k);
}

/* --- what comes --- */

static bool put_line(struct run *r, const char *line, size_t n) {
    while (n && (line[n - 1] == '\n' || line[n - 1] == '\r')) n--;
    if (memchr(line, '\n', n)) return true; /* folded by whoever: no line of ours */
    return fo_buf_append(&r->lines, line, n) && fo_buf_putc(&r->lines, '\n');
}

static size_t take_line(char *line, size_t one, size_t n, void *ctx) {
    struct run *r = ctx;
    size_t bytes = one * n;
    r->heard_ms = fo_now_ms();
    r->head_bytes += bytes;
    r->too_large = r->too_large || r->head_bytes > PD_MAX_ANSWER_HEAD;
    if (r->too_large) return 0;
    if (r->head_whole) return bytes; /* trailers */
    if (bytes > 5 && strncasecmp(line, "HTTP/", 5) == 0) {
        const char *space = memchr(line, ' ', bytes);
        size_t at = space ? (size_t)(space - line) + 1 : bytes;
        r->status = 0;
        for (size_t i = at; i < bytes && i < at + 3 && line[i] >= '0' && line[i] <= '9'; i++) r->status = 10 * r->status + (line[i] - '0');
        fo_buf_clear(&r->lines);
    } else if (bytes <= 2 && (*line == '\r' || *line == '\n')) {
        if (r->status < 200) return bytes; /* another head follows */
        r->head_whole = true;
        r->stopped = !r->h->head(r->h->ctx, r->status, fo_buf_str(&r->lines), r->lines.len);
        if (r->stopped) return 0;
    } else if (!put_line(r, line, bytes)) {
        r->no_memory = true;
        return 0;
    }
    return bytes;
}

static size_t take_bytes(char *data, size_t one, size_t n, void *ctx) {
    struct run *r = ctx;
    r->stopped = !r->h->bytes(r->h->ctx, data, one * n);
    r->heard_ms = fo_now_ms(); /* the client may have taken its time */
    return r->stopped ? 0 : one * n;
}

/* --- what is sent --- */

static struct curl_slist *line_list(const char *lines) {
    struct curl_slist *list = curl_slist_append(NULL, "Expect:");
    char line[MAX_LINE];
    for (const char *p = lines; list && *p; p += strcspn(p, "\n"), p += *p == '\n') {
        size_t n = strcspn(p, "\n");
        if (n >= sizeof line) continue; /* no head is that long */
        memcpy(line, p, n);
        line[n] = '\0';
        struct curl_slist *more = curl_slist_append(list, line);
        if (!more) curl_slist_free_all(list);
        list = more;
    }
    return list;
}

/* False without memory. */
static bool prepare(const struct pd_lanes *l, CURL *c, struct run *r, struct curl_slist *lines, char *error) {
    const struct pd_hop *h = r->h;
    const char *ca = getenv("SSL_CERT_FILE"); /* as curl itself and OpenSSL's programs take it */
    struct fo_buf url;
    fo_buf_init(&url, 64 << 10);
    fo_buf_printf(&url, "%s%s", l->url, h->path);
    bool ok = !url.failed;
    curl_easy_reset(c);
    ok = ok && curl_easy_setopt(c, CURLOPT_URL, fo_buf_str(&url)) == CURLE_OK;
    fo_buf_done(&url);
    if (l->socket) ok = ok && curl_easy_setopt(c, CURLOPT_UNIX_SOCKET_PATH, l->socket) == CURLE_OK;
    if (ca && *ca) ok = ok && curl_easy_setopt(c, CURLOPT_CAINFO, ca) == CURLE_OK;
    curl_easy_setopt(c, CURLOPT_PATH_AS_IS, 1L);
    curl_easy_setopt(c, CURLOPT_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(c, CURLOPT_NOPROXY, "*");
    curl_easy_setopt(c, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(c, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
    curl_easy_setopt(c, CURLOPT_CONNECTTIMEOUT_MS, (long)h->connect_ms);
    curl_easy_setopt(c, CURLOPT_ERRORBUFFER, error);
    curl_easy_setopt(c, CURLOPT_HEADERFUNCTION, take_line);
    curl_easy_setopt(c, CURLOPT_HEADERDATA, r);
    curl_easy_setopt(c, CURLOPT_WRITEFUNCTION, take_bytes);
    curl_easy_setopt(c, CURLOPT_WRITEDATA, r);
    curl_easy_setopt(c, CURLOPT_HTTPHEADER, lines);
    if (h->body) {
        curl_easy_setopt(c, CURLOPT_POST, 1L);
        curl_easy_setopt(c, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)h->n_body);
        curl_easy_setopt(c, CURLOPT_POSTFIELDS, h->body);
    }
    return ok && curl_easy_setopt(c, CURLOPT_CUSTOMREQUEST, h->method) == CURLE_OK;
}

/* --- the run --- */

/* Whether nothing moved for too long. */
static bool late(struct run *r, CURL *c) {
    curl_off_t sent = 0, connected = 0;
    uint64_t now = fo_now_ms();
    curl_easy_getinfo(c, CURLINFO_SIZE_UPLOAD_T, &sent);
    curl_easy_getinfo(c, CURLINFO_PRETRANSFER_TIME_T, &connected);
    if (sent != r->sent || connected == 0) r->heard_ms = now; /* connecting has its own time */
    r->sent = sent;
    return now - r->heard_ms >= (r->head_whole ? r->h->idle_ms : r->h->head_ms);
}

static enum pd_hop_end end_of(const struct run *r, CURL *c, CURLcode rc, const char *error, char *why) {
    long os_error = 0, asked = 0; /* bytes of the request that were sent */
    curl_easy_getinfo(c, CURLINFO_OS_ERRNO, &os_error);
    curl_easy_getinfo(c, CURLINFO_REQUEST_SIZE, &asked);
    snprintf(why, PD_HOP_WHY, "%s", os_error && rc == CURLE_COULDNT_CONNECT ? strerror((int)os_error) : *error ? error : curl_easy_strerror(rc));
    if (r->stopped) return PD_HOP_STOPPED;
    if (r->no_memory) return PD_HOP_NO_MEMORY;
    if (r->too_large) {
        snprintf(why, PD_HOP_WHY, "the head of its answer is larger than %d bytes", PD_MAX_ANSWER_HEAD);
        return PD_HOP_NO_HTTP;
    }
    switch (rc) {
    case CURLE_OK: return r->head_whole ? PD_HOP_DONE : PD_HOP_NO_HTTP;
    case CURLE_COULDNT_RESOLVE_HOST:
    case CURLE_COULDNT_CONNECT:
    case CURLE_SSL_CONNECT_ERROR:
    case CURLE_PEER_FAILED_VERIFICATION:
    case CURLE_SSL_CACERT_BADFILE:
    case CURLE_OPERATION_TIMEDOUT: /* the only time that libcurl keeps here is the connection's */
        return asked ? PD_HOP_DIED : PD_HOP_UNREACHED; /* asked: over a kept connection, which broke, and there is no new one */
    case CURLE_OUT_OF_MEMORY: /* libcurl's word for a line of a head past its own measure too */
        if (!asked || r->head_whole) return PD_HOP_NO_MEMORY;
        snprintf(why, PD_HOP_WHY, "a line of its head is past all measure, or there is no memory for it");
        return PD_HOP_NO_HTTP;
    case CURLE_GOT_NOTHING:
    case CURLE_SEND_ERROR:
    case CURLE_RECV_ERROR:
    case CURLE_PARTIAL_FILE: return r->head_whole ? PD_HOP_BROKE : r->head_bytes ? PD_HOP_NO_HTTP : PD_HOP_DIED;
    default: return r->head_whole ? PD_HOP_BROKE : PD_HOP_NO_HTTP;
    }
}

static enum pd_hop_end run(struct pd_lane *k, struct run *r, const char *error, char *why) {
    enum pd_hop_end end = PD_HOP_NO_MEMORY;
    bool over = false;
    snprintf(why, PD_HOP_WHY, "no memory for a request to it");
    if (curl_multi_add_handle(k->multi, k->easy) != CURLM_OK) return end;
    while (!over) {
        int running = 0, left;
        if (curl_multi_perform(k->multi, &running) != CURLM_OK) break;
        const struct CURLMsg *m = running ? NULL : curl_multi_info_read(k->multi, &left);
        if (m) {
            end = end_of(r, k->easy, m->data.result, error, why);
        } else if (!r->h->go_on(r->h->ctx)) {
            end = PD_HOP_STOPPED;
        } else if (late(r, k->easy)) {
            end = r->head_whole ? PD_HOP_SILENT : PD_HOP_NO_HEAD;
            snprintf(why, PD_HOP_WHY, "it said nothing for %llu ms", (unsigned long long)(r->head_whole ? r->h->idle_ms : r->h->head_ms));
        } else {
            over = !running || curl_multi_poll(k->multi, NULL, 0, LOOK_MS, NULL) != CURLM_OK;
            continue;
        }
        over = true;
    }
    curl_multi_remove_handle(k->multi, k->easy); /* closes a connection that is in the middle of something */
    return end;
}

enum pd_hop_end pd_hop_run(struct pd_lanes *l, const struct pd_hop *h, char why[PD_HOP_WHY]) {
    struct run r = { .h = h, .heard_ms = fo_now_ms() };
    char error[CURL_ERROR_SIZE] = "";
    struct pd_lane *k = take(l);
    struct curl_slist *lines = line_list(h->lines);
    enum pd_hop_end end = PD_HOP_NO_MEMORY;
    snprintf(why, PD_HOP_WHY, "no memory for a request to it");
    fo_buf_init(&r.lines, PD_MAX_ANSWER_HEAD + 1024);
    if (k && lines && prepare(l, k->easy, &r, lines, error)) end = run(k, &r, error, why);
    curl_slist_free_all(lines);
    fo_buf_done(&r.lines);
    if (k) {
        curl_easy_reset(k->easy); /* which points at what is gone now */
        give(l, k);
    }
    return end;
}
