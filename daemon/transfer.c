/* What is asked and what is believed:
 *
 *   Nothing of the part yet: a plain GET. The answer's strong ETag, or else its Last-Modified, goes into the note as the validator.
 *   Something: Range from where it ends, and If-Range with the validator. 206 goes on; 200 means that the content is another one by now, or
 *   that the server knows no ranges, and starts over. Where the manifest has a sum, a part is gone on with without a validator too, and
 *   from any mirror: what does not belong together is found out at the end. Where it has none, only the same URL with the same validator
 *   counts, and of the part only what was on the disk for certain: after a crash of the machine the rest may be zeros.
 *
 * A body's length is checked by libcurl (Content-Length, the last chunk) and against Content-Range. Bytes beyond it are not read. */
#include "daemon/transfer.h"

#include <curl/curl.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "daemon/digest.h"
#include "daemon/part.h"
#include "engine/version.h"
#include "foundry/base/clock.h"
#include "foundry/base/err.h"
#include "foundry/base/units.h"

enum {
    CONNECT_S = 30,
    STALL_BYTES = 1024, /* a second, over */
    STALL_S = 60,       /* PANTHEON_FETCH_STALL_S replaces it */
    MAX_REDIRECTS = 10,
    SYNC_BYTES = 64 << 20,
    READ_BYTES = 1 << 20,
    RATE_MS = 1000,
};
#define RESERVE_BYTES (1ull << 30) /* left free on the file system, but no more than a twentieth of it */

struct run {
    struct pd_transfer *t;
    struct fo_err *e;
    CURL *curl;
    struct pd_part_note note;
    uint64_t at;          /* bytes of the part that are there */
    uint64_t asked_from;  /* the Range's */
    uint64_t synced_at;
    char etag[PD_MAX_VALIDATOR], modified[PD_MAX_VALIDATOR], range[128], length[32];
    bool begun;           /* the body has */
    enum pd_fetch_end end; /* why our side stopped it; PD_F_DONE = it did not */
    uint64_t rate_ms, rate_bytes, rate_since;
};

/* --- the disk --- */

/* What may be written of the file system. */
static bool room(int fd, uint64_t *ret) {
    struct statvfs v;
    if (fstatvfs(fd, &v) || v.f_blocks == 0) return false; /* it does not say: writing will */
    uint64_t have = (uint64_t)v.f_bavail * v.f_frsize, reserve = (uint64_t)v.f_blocks * v.f_frsize / 20;
    if (reserve > RESERVE_BYTES) reserve = RESERVE_BYTES;
    *ret = have > reserve ? have - reserve : 0;
    return true;
}

static bool check_room(struct run *r, uint64_t need) {
    uint64_t have;
    char want[32], left[32];
    if (!room(r->t->fd, &have) || need <= have) return true;
    r->end = PD_F_DISK_FULL;
    fo_fail_need(r->e, FO_ELIMIT, need, have, "%s: the disk is full: %s more are needed, and %s may be written (a twentieth of the disk, at most 1 GiB, is left free); make room there", r->t->part,
                 fo_format_bytes(need, want, sizeof want), fo_format_bytes(have, left, sizeof left));
    return false;
}

static bool write_all(struct run *r, const char *p, size_t n) {
    while (n > 0) {
        ssize_t k = pwrite(r->t->fd, p, n, (off_t)r->at);
        if (k < 0 && errno == EINTR) continue;
        if (k <= 0) {
            int err = k < 0 ? errno : EIO;
            uint64_t have = 0, need = r->note.size_bytes > r->at ? r->note.size_bytes - r->at : n;
            char want[32];
            r->end = err == ENOSPC || err == EDQUOT || err == EFBIG ? PD_F_DISK_FULL : PD_F_NOT_WRITABLE;
            (void)room(r->t->fd, &have);
            if (r->end == PD_F_DISK_FULL) fo_fail_need(r->e, FO_ELIMIT, need, have, "%s: %s, and %s more are needed; make room there", r->t->part, strerror(err), fo_format_bytes(need, want, sizeof want));
            else fo_fail_errno(r->e, err, "%s", r->t->part);
            return false;
        }
        pd_digest_add(r->t->sum, p, (size_t)k);
        p += k;
        n -= (size_t)k;
        r->at += (uint64_t)k;
    }
    return true;
}

/* What is there stays, whatever happens to the machine. */
static bool sync_part(struct run *r) {
    struct fo_err ignored;
    if (fdatasync(r->t->fd)) {
        r->end = errno == ENOSPC || errno == EDQUOT ? PD_F_DISK_FULL : PD_F_NOT_WRITABLE;
        fo_fail_errno(r->e, errno, "%s", r->t->part);
        return false;
    }
    r->synced_at = r->note.synced_bytes = r->at;
    (void)pd_part_note_write(r->t->part, &r->note, &ignored); /* without it the next time begins earlier, no more */
    return true;
}

enum pd_fetch_end pd_transfer_sum(int fd, const char *name, uint64_t bytes, struct pd_progress *p, void (*tick)(void *), void *ctx, struct pd_digest *sum, struct fo_err *e) {
    char *piece = malloc(READ_BYTES);
    enum pd_fetch_end end = PD_F_DONE;
    if (!piece) {
        fo_fail(e, FO_ENOMEM, "%s: no memory to read it", name);
        return PD_F_NO_MEMORY;
    }
    atomic_store(&p->verifying, true);
    for (uint64_t at = 0; at < bytes && end == PD_F_DONE;) {
        size_t want = bytes - at < READ_BYTES ? (size_t)(bytes - at) : READ_BYTES;
        ssize_t k = pread(fd, piece, want, (off_t)at);
        if (k < 0 && errno == EINTR) continue;
        if (k <= 0) {
            fo_fail_errno(e, k < 0 ? errno : EIO, "%s cannot be read", name);
            end = PD_F_NOT_WRITABLE;
            break;
        }
        pd_digest_add(sum, piece, (size_t)k);
        at += (uint64_t)k;
        atomic_store(&p->done, at);
        if (tick) tick(ctx);
        if (atomic_load(&p->cancel)) {
            fo_fail(e, FO_ECANCELLED, "cancelled");
            end = PD_F_CANCELLED;
        }
    }
    atomic_store(&p->verifying, false);
    free(piece);
    return end;
}

/* --- the answer --- */

static size_t take_line(char *line, size_t one, size_t n, void *ctx) {
    struct run *r = ctx;
    n *= one;
    if (n >= 5 && memcmp(line, "HTTP/", 5) == 0) r->etag[0] = r->modified[0] = r->range[0] = r->length[0] = '\0'; /* of the last answer of a row of redirects */
    else if (!pd_header_value(line, n, "ETag", r->etag, sizeof r->etag) && !pd_header_value(line, n, "Last-Modified", r->modified, sizeof r->modified) &&
             !pd_header_value(line, n, "Content-Range", r->range, sizeof r->range))
        (void)pd_header_value(line, n, "Content-Length", r->length, sizeof r->length);
    return n;
}

/* What is there does not belong to what comes. */
static bool start_over(struct run *r) {
    if (r->at && ftruncate(r->t->fd, 0)) {
        r->end = PD_F_NOT_WRITABLE;
        fo_fail_errno(r->e, errno, "%s", r->t->part);
        return false;
    }
    r->at = r->synced_at = r->note.synced_bytes = 0;
    r->t->resumed = false;
    pd_digest_restart(r->t->sum);
    return true;
}

/* Whether a 206 says that its content is not the one that was asked for. A server need not say anything. */
static bool is_another(const struct run *r) {
    const char *is = r->note.validator[0] == '"' ? r->etag : r->modified;
    return *is && strcmp(is, r->note.validator) != 0;
}

static bool begin(struct run *r, long status) {
    uint64_t first = 0, size = 0;
    curl_off_t length = -1;
    r->begun = true;
    if (status == 206) {
        if (!r->asked_from || !pd_content_range(r->range, &first, &size) || first != r->at || (size && r->note.size_bytes && size != r->note.size_bytes)) {
            r->end = PD_F_CUT;
            fo_fail(r->e, FO_EIO, "%s sent another part of the file than was asked for; it is fetched from its beginning the next time", r->t->declared);
            r->note.validator[0] = '\0';
            (void)start_over(r);
            return false;
        }
        if (!r->t->summed && is_another(r)) { /* it heeds no If-Range: what is there and what comes are of two files */
            r->end = PD_F_CUT;
            fo_fail(r->e, FO_EIO, "%s: the file has become another one; it is fetched from its beginning the next time", r->t->declared);
            (void)start_over(r);
            return false;
        }
        if (size) r->note.size_bytes = size;
        r->t->resumed = true;
    } else {
        if (!start_over(r)) return false;
        curl_easy_getinfo(r->curl, CURLINFO_CONTENT_LENGTH_DOWNLOAD_T, &length);
        r->note.size_bytes = length > 0 ? (uint64_t)length : 0;
    }
    /* a weak ETag says that the content means the same, not that its bytes are the same */
    snprintf(r->note.validator, sizeof r->note.validator, "%s", r->etag[0] == '"' ? r->etag : r->modified);
    snprintf(r->note.url, sizeof r->note.url, "%s", r->t->declared);
    atomic_store(&r->t->progress->size, r->note.size_bytes);
    return check_room(r, r->note.size_bytes > r->at ? r->note.size_bytes - r->at : 0) && sync_part(r);
}

static size_t take_bytes(char *data, size_t one, size_t n, void *ctx) {
    struct run *r = ctx;
    long status = 0;
    n *= one;
    curl_easy_getinfo(r->curl, CURLINFO_RESPONSE_CODE, &status);
    if (status != 200 && status != 206) return 0; /* its text is for browsers, and may have no end: pd_transfer judges the status */
    if (!r->begun && !begin(r, status)) return 0;
    if (r->at - r->synced_at >= SYNC_BYTES && (!check_room(r, n) || !sync_part(r))) return 0;
    if (!write_all(r, data, n)) return 0;
    atomic_fetch_add(&r->t->progress->fetched, n);
    atomic_store(&r->t->progress->done, r->at);
    return n;
}

static int look_up(void *ctx, curl_off_t total, curl_off_t now, curl_off_t up_total, curl_off_t up) {
    struct run *r = ctx;
    uint64_t ms = fo_now_ms();
    (void)total;
    (void)up_total;
    (void)up;
    if (ms - r->rate_since >= RATE_MS) {
        uint64_t bytes = (uint64_t)now > r->rate_bytes ? (uint64_t)now - r->rate_bytes : 0;
        atomic_store(&r->t->progress->rate, bytes * 1000 / (ms - r->rate_since));
        r->rate_since = ms;
        r->rate_bytes = (uint64_t)now;
    }
    if (r->t->tick) r->t->tick(r->t->ctx);
    return atomic_load(&r->t->progress->cancel);
}

/* --- the question --- */

/* Whether what is there may be gone on with, and how much of it. */
static bool fit_part(struct run *r) {
    struct pd_transfer *t = r->t;
    struct stat st;
    bool noted = pd_part_note_read(t->part, &r->note);
    if (!noted) r->note = (struct pd_part_note){ .url = "" };
    if (fstat(t->fd, &st)) {
        fo_fail_errno(r->e, errno, "%s", t->part);
        r->end = PD_F_NOT_WRITABLE;
        return false;
    }
    r->at = (uint64_t)st.st_size;
    bool same_url = noted && strcmp(r->note.url, t->declared) == 0;
    if (!t->summed) {
        if (!same_url || !r->note.validator[0]) r->at = 0;
        if (r->at > r->note.synced_bytes) r->at = r->note.synced_bytes;
    } else if (!same_url) {
        r->note.validator[0] = '\0'; /* another server's word for the same bytes */
    }
    if (r->note.size_bytes && r->at > r->note.size_bytes) r->at = 0;
    if (r->at == 0) r->note = (struct pd_part_note){ .url = "" };
    if (r->at < (uint64_t)st.st_size && ftruncate(t->fd, (off_t)r->at)) {
        fo_fail_errno(r->e, errno, "%s", t->part);
        r->end = PD_F_NOT_WRITABLE;
        return false;
    }
    r->synced_at = r->note.synced_bytes < r->at ? r->note.synced_bytes : r->at;
    r->asked_from = r->at;
    atomic_store(&t->progress->done, r->at);
    atomic_store(&t->progress->size, r->note.size_bytes);
    pd_digest_restart(t->sum);
    if (r->at == 0) return true;
    r->end = pd_transfer_sum(t->fd, t->part, r->at, t->progress, t->tick, t->ctx, t->sum, r->e);
    return r->end == PD_F_DONE;
}

static long stall_s(void) {
    const char *s = getenv("PANTHEON_FETCH_STALL_S");
    long v = s && *s >= '1' && *s <= '9' ? strtol(s, NULL, 10) : 0;
    return v > 0 && v <= 3600 ? v : STALL_S;
}

static bool prepare(struct run *r, char error[CURL_ERROR_SIZE], struct curl_slist **ret_lines) {
    struct pd_transfer *t = r->t;
    CURL *c = r->curl;
    const char *ca = getenv("SSL_CERT_FILE"); /* as curl itself and OpenSSL's programs take it */
    char line[PD_MAX_VALIDATOR + 32], agent[64];
    bool ok = curl_easy_setopt(c, CURLOPT_URL, t->url) == CURLE_OK;
    snprintf(agent, sizeof agent, "pantheon/%.40s", pn_version());
    ok = ok && curl_easy_setopt(c, CURLOPT_USERAGENT, agent) == CURLE_OK;
    if (ca && *ca) ok = ok && curl_easy_setopt(c, CURLOPT_CAINFO, ca) == CURLE_OK;
    if (t->bearer) { /* libcurl keeps it from other hosts */
        curl_easy_setopt(c, CURLOPT_HTTPAUTH, (long)CURLAUTH_BEARER);
        ok = ok && curl_easy_setopt(c, CURLOPT_XOAUTH2_BEARER, t->bearer) == CURLE_OK;
    }
    if (t->loopback) ok = ok && curl_easy_setopt(c, CURLOPT_NOPROXY, "*") == CURLE_OK;
    curl_easy_setopt(c, CURLOPT_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(c, CURLOPT_FOLLOWLOCATION, 1L);
    curl_easy_setopt(c, CURLOPT_MAXREDIRS, (long)MAX_REDIRECTS);
    curl_easy_setopt(c, CURLOPT_REDIR_PROTOCOLS_STR, "https"); /* whoever is on the way may not choose the server */
    curl_easy_setopt(c, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(c, CURLOPT_CONNECTTIMEOUT, (long)CONNECT_S);
    curl_easy_setopt(c, CURLOPT_LOW_SPEED_LIMIT, (long)STALL_BYTES);
    curl_easy_setopt(c, CURLOPT_LOW_SPEED_TIME, stall_s());
    curl_easy_setopt(c, CURLOPT_TCP_KEEPALIVE, 1L);
    curl_easy_setopt(c, CURLOPT_BUFFERSIZE, 256L << 10);
    curl_easy_setopt(c, CURLOPT_ERRORBUFFER, error);
    curl_easy_setopt(c, CURLOPT_HEADERFUNCTION, take_line);
    curl_easy_setopt(c, CURLOPT_HEADERDATA, r);
    curl_easy_setopt(c, CURLOPT_WRITEFUNCTION, take_bytes);
    curl_easy_setopt(c, CURLOPT_WRITEDATA, r);
    curl_easy_setopt(c, CURLOPT_XFERINFOFUNCTION, look_up);
    curl_easy_setopt(c, CURLOPT_XFERINFODATA, r);
    curl_easy_setopt(c, CURLOPT_NOPROGRESS, 0L);
    struct curl_slist *lines = curl_slist_append(NULL, "Accept: */*");
    if (lines && r->at) {
        snprintf(line, sizeof line, "Range: bytes=%llu-", (unsigned long long)r->at); /* not CURLOPT_RANGE: an answer of 200 is no error here */
        struct curl_slist *more = curl_slist_append(lines, line);
        ok = ok && more;
        if (more && r->note.validator[0]) {
            snprintf(line, sizeof line, "If-Range: %s", r->note.validator);
            ok = curl_slist_append(more, line) && ok;
        }
    }
    *ret_lines = lines;
    return ok && lines && curl_easy_setopt(c, CURLOPT_HTTPHEADER, lines) == CURLE_OK;
}

static enum pd_fetch_end judge_status(struct run *r, long status) {
    const char *name = r->t->declared;
    if (status == 404 || status == 410) {
        fo_fail(r->e, FO_ENOENT, "%s: there is no such file there (status %ld); is the name right?", name, status);
        return PD_F_NOT_FOUND;
    }
    if (status == 401 || status == 403) {
        fo_fail(r->e, FO_EACCES, "%s: not for everybody (status %ld); %s", name, status,
                strncmp(name, "hf:", 3) == 0 ? "HF_TOKEN in the environment, of somebody who has accepted its terms, lets it in" : "the server wants a login, which is no part of a manifest");
        return PD_F_FORBIDDEN;
    }
    fo_fail(r->e, FO_EIO, "%s: the server answers with status %ld", name, status);
    return PD_F_REFUSED;
}

static enum pd_fetch_end judge_curl(struct run *r, CURLcode rc, const char *text) {
    const char *name = r->t->declared;
    char got[32], all[32];
    switch (rc) {
    case CURLE_ABORTED_BY_CALLBACK:
        fo_fail(r->e, FO_ECANCELLED, "%s: cancelled", name);
        return PD_F_CANCELLED;
    case CURLE_COULDNT_CONNECT:
    case CURLE_COULDNT_RESOLVE_HOST:
    case CURLE_COULDNT_RESOLVE_PROXY:
        fo_fail(r->e, FO_EUNAVAIL, "%s: no connection: %s", name, text);
        return PD_F_UNREACHABLE;
    case CURLE_OPERATION_TIMEDOUT:
        fo_fail(r->e, FO_ETIMEOUT, "%s: it stalls: %s", name, text);
        return PD_F_STALLED;
    case CURLE_PEER_FAILED_VERIFICATION:
    case CURLE_SSL_CONNECT_ERROR:
    case CURLE_SSL_CACERT_BADFILE:
        fo_fail(r->e, FO_EACCES, "%s: the server cannot be trusted: %s; SSL_CERT_FILE=FILE in the environment names certificates to trust", name, text);
        return PD_F_NOT_TRUSTED;
    case CURLE_UNSUPPORTED_PROTOCOL:
    case CURLE_TOO_MANY_REDIRECTS:
        fo_fail(r->e, FO_EUNSUPPORTED, "%s: the server sends on to where it may not (%s); only https:// is followed", name, text);
        return PD_F_REDIRECT;
    case CURLE_PARTIAL_FILE:
    case CURLE_RECV_ERROR:
    case CURLE_GOT_NOTHING:
    case CURLE_HTTP2_STREAM:
        fo_fail(r->e, FO_EIO, "%s: the connection ended after %s of %s", name, fo_format_bytes(r->at, got, sizeof got), r->note.size_bytes ? fo_format_bytes(r->note.size_bytes, all, sizeof all) : "a file of unknown size");
        return PD_F_CUT;
    default:
        fo_fail(r->e, FO_EIO, "%s: %s", name, text);
        return rc == CURLE_OUT_OF_MEMORY ? PD_F_NO_MEMORY : PD_F_REFUSED;
    }
}

enum pd_fetch_end pd_transfer(struct pd_transfer *t, struct fo_err *e) {
    char error[CURL_ERROR_SIZE] = "";
    struct run r = { .t = t, .e = e, .rate_since = fo_now_ms() };
    struct curl_slist *lines = NULL;
    t->resumed = false;
    t->retry_after_s = 0;
    if (!fit_part(&r)) return r.end;
    if (r.at && r.at == r.note.size_bytes) { /* all had come, and was not put in place */
        t->resumed = true;
        return PD_F_DONE;
    }
    r.curl = curl_easy_init();
    if (!r.curl || !prepare(&r, error, &lines)) {
        fo_fail(e, FO_ENOMEM, "%s: no memory for a download", t->declared);
        r.end = PD_F_NO_MEMORY;
    } else {
        CURLcode rc = curl_easy_perform(r.curl);
        long status = 0;
        curl_off_t retry = 0;
        curl_easy_getinfo(r.curl, CURLINFO_RESPONSE_CODE, &status);
        curl_easy_getinfo(r.curl, CURLINFO_RETRY_AFTER, &retry);
        t->retry_after_s = retry > 0 && retry < 24 * 3600 ? (uint32_t)retry : 0;
        bool unread = rc == CURLE_WRITE_ERROR && status != 200 && status != 206;
        if (r.end == PD_F_DONE && rc != CURLE_OK && !unread) r.end = judge_curl(&r, rc, *error ? error : curl_easy_strerror(rc));
        else if (r.end == PD_F_DONE && status == 416 && start_over(&r)) { /* there is less than what we have: another file */
            fo_fail(e, FO_EIO, "%s: the file has become another one; it is fetched from its beginning the next time", t->declared);
            r.end = PD_F_CUT;
        } else if (r.end == PD_F_DONE && status != 200 && status != 206) r.end = judge_status(&r, status);
        else if (r.end == PD_F_DONE && (r.note.size_bytes ? r.at != r.note.size_bytes : r.at == 0)) r.end = judge_curl(&r, CURLE_PARTIAL_FILE, "");
    }
    if (r.begun && (r.end == PD_F_DONE || r.at > r.synced_at)) {
        enum pd_fetch_end before = r.end;
        struct fo_err kept = *e;
        r.end = PD_F_DONE;
        (void)sync_part(&r);
        if (before != PD_F_DONE) {
            r.end = before;
            *e = kept;
        }
    }
    if (r.curl) curl_easy_cleanup(r.curl);
    curl_slist_free_all(lines);
    atomic_store(&t->progress->rate, 0);
    return r.end;
}
