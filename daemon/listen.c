/* See listen.h. Everything here happens once, at the start: a listener that cannot be had ends the start with its reason, because a daemon
 * that is up and cannot be reached is worse than one that is not up. */
#include "daemon/listen.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "daemon/log.h"
#include "foundry/base/err.h"
#include "foundry/base/log.h"

enum { BACKLOG = 512 };

/* --- addresses --- */

bool pd_address_is_loopback(const struct sockaddr_storage *a) {
    if (a->ss_family == AF_INET) return (ntohl(((const struct sockaddr_in *)a)->sin_addr.s_addr) >> 24) == 127;
    if (a->ss_family == AF_INET6) return IN6_IS_ADDR_LOOPBACK(&((const struct sockaddr_in6 *)a)->sin6_addr);
    return true;
}

void pd_address_unmap(struct sockaddr_storage *a) {
    struct sockaddr_in6 v6;
    if (a->ss_family != AF_INET6) return;
    memcpy(&v6, a, sizeof v6);
    if (!IN6_IS_ADDR_V4MAPPED(&v6.sin6_addr)) return;
    struct sockaddr_in v4 = { .sin_family = AF_INET, .sin_port = v6.sin6_port };
    memcpy(&v4.sin_addr, &v6.sin6_addr.s6_addr[12], 4);
    *a = (struct sockaddr_storage){ 0 };
    memcpy(a, &v4, sizeof v4);
}

const struct pd_listener *pd_listen_outside(const struct pd_listeners *l) {
    for (int i = 0; i < l->n; i++) {
        struct sockaddr_storage at = l->list[i].at;
        pd_address_unmap(&at);
        if (!pd_address_is_loopback(&at)) return &l->list[i];
    }
    return NULL;
}

/* The path of a Unix socket's address; "" when it has none that is a file. */
static const char *path_of(const struct sockaddr_storage *a, socklen_t len) {
    return len > offsetof(struct sockaddr_un, sun_path) ? ((const struct sockaddr_un *)a)->sun_path : "";
}

static bool is_any(const struct sockaddr_storage *a) {
    if (a->ss_family == AF_INET) return ((const struct sockaddr_in *)a)->sin_addr.s_addr == htonl(INADDR_ANY);
    return a->ss_family == AF_INET6 && IN6_IS_ADDR_UNSPECIFIED(&((const struct sockaddr_in6 *)a)->sin6_addr);
}

static in_port_t port_of(const struct sockaddr_storage *a) {
    return a->ss_family == AF_INET ? ((const struct sockaddr_in *)a)->sin_port : ((const struct sockaddr_in6 *)a)->sin6_port;
}

static bool same_ip(const struct sockaddr_storage *a, const struct sockaddr_storage *b) {
    if (a->ss_family != b->ss_family) return false;
    if (a->ss_family == AF_INET) return ((const struct sockaddr_in *)a)->sin_addr.s_addr == ((const struct sockaddr_in *)b)->sin_addr.s_addr;
    return memcmp(&((const struct sockaddr_in6 *)a)->sin6_addr, &((const struct sockaddr_in6 *)b)->sin6_addr, 16) == 0;
}

/* Fills in the address that the socket has. */
static int look_up(struct pd_listener *p, struct fo_err *e) {
    p->at_len = sizeof p->at;
    p->at = (struct sockaddr_storage){ 0 };
    if (getsockname(p->fd, (struct sockaddr *)&p->at, &p->at_len)) return fo_fail_errno(e, errno, "getsockname");
    char host[64] = "?", port[8] = "?";
    if (p->at.ss_family == AF_UNIX) {
        const char *path = path_of(&p->at, p->at_len);
        snprintf(p->text, sizeof p->text, "unix:%s", *path ? path : "(no path)");
    } else {
        getnameinfo((struct sockaddr *)&p->at, p->at_len, host, sizeof host, port, sizeof port, NI_NUMERICHOST | NI_NUMERICSERV);
        bool v6 = p->at.ss_family == AF_INET6;
        snprintf(p->text, sizeof p->text, "%s%s%s:%s", v6 ? "[" : "", host, v6 ? "]" : "", port);
    }
    return FO_OK;
}

static void say(const struct pd_listener *p, const char *name) {
    bool file = p->at.ss_family == AF_UNIX;
    char quoted[80];
    fo_log(FO_LOG_INFO, "http", "event=listening %s=%s%s%s%s%s", file ? "socket" : "address", file ? p->text + strlen("unix:") : p->text,
           p->admin ? " for=administration" : "", p->scheme == PD_HTTP ? " scheme=http" : p->scheme == PD_HTTPS ? " scheme=https" : "", p->passed ? " passed_as=" : "",
           p->passed ? pd_log_quote(name, quoted, sizeof quoted) : "");
}

/* --- rows --- */

/* "HOST:PORT" or "[V6]:PORT" into host and port; false when it is neither. */
static bool split_address(const char *text, char *host, size_t size, const char **ret_port) {
    const char *colon = strrchr(text, ':'), *start = text, *end = colon;
    if (!colon || !colon[1] || strspn(colon + 1, "0123456789") != strlen(colon + 1) || strlen(colon + 1) > 5) return false;
    if (*text == '[') {
        if (colon[-1] != ']') return false;
        start++;
        end--;
    } else if (memchr(text, ':', (size_t)(colon - text))) {
        return false;
    }
    size_t n = (size_t)(end - start);
    if (n == 0 || n >= size) return false;
    memcpy(host, start, n);
    host[n] = '\0';
    *ret_port = colon + 1;
    return true;
}

/* What a row says before its address, and the rest. */
static const char *strip_scheme(const char *row, enum pd_scheme *ret) {
    static const struct {
        const char *text;
        enum pd_scheme scheme;
    } schemes[] = { { "http://", PD_HTTP }, { "https://", PD_HTTPS } };
    *ret = PD_BARE;
    for (size_t i = 0; i < sizeof schemes / sizeof *schemes; i++) {
        if (strncmp(row, schemes[i].text, strlen(schemes[i].text)) != 0) continue;
        *ret = schemes[i].scheme;
        return row + strlen(schemes[i].text);
    }
    return row;
}

static int room(const struct pd_listeners *l, const char *what, struct fo_err *e) {
    if (l->n < PD_MAX_LISTENERS) return FO_OK;
    return fo_fail(e, FO_ELIMIT, "listen '%s': more than %d sockets", what, PD_MAX_LISTENERS);
}

static int bind_tcp(struct pd_listeners *l, const struct addrinfo *a, const char *row, enum pd_scheme scheme, struct fo_err *e) {
    if (room(l, row, e)) return e->code;
    int on = 1, fd = socket(a->ai_family, a->ai_socktype | SOCK_NONBLOCK | SOCK_CLOEXEC, a->ai_protocol);
    if (fd < 0) return fo_fail_errno(e, errno, "listen '%s'", row);
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (a->ai_family == AF_INET6) {
        int only = !IN6_IS_ADDR_V4MAPPED(&((const struct sockaddr_in6 *)a->ai_addr)->sin6_addr);
        setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &only, sizeof only);
    }
    if (bind(fd, a->ai_addr, a->ai_addrlen) < 0 || listen(fd, BACKLOG) < 0) {
        int err = errno;
        close(fd);
        if (err == EADDRINUSE) return fo_fail(e, FO_EBUSY, "listen '%s': the address is in use by another process", row);
        return fo_fail_errno(e, err, "listen '%s'", row);
    }
    struct pd_listener *p = &l->list[l->n++];
    *p = (struct pd_listener){ .fd = fd, .scheme = scheme };
    if (look_up(p, e)) return e->code;
    say(p, "");
    return FO_OK;
}

/* Whether a passed socket takes what comes to the address: *ret_same when it is that address itself. NULL = none does. */
static struct pd_listener *passed_for(struct pd_listeners *l, const struct sockaddr_storage *at, bool *ret_same) {
    for (int i = 0; i < l->n; i++) {
        struct pd_listener *p = &l->list[i];
        int only = 0;
        socklen_t len = sizeof only;
        if (!p->passed || p->at.ss_family == AF_UNIX || port_of(&p->at) != port_of(at)) continue;
        *ret_same = same_ip(&p->at, at);
        if (*ret_same) return p;
        if (!is_any(&p->at)) continue;
        if (p->at.ss_family == at->ss_family) return p;
        if (p->at.ss_family == AF_INET6 && getsockopt(p->fd, IPPROTO_IPV6, IPV6_V6ONLY, &only, &len) == 0 && !only) return p;
    }
    return NULL;
}

static int open_tcp(struct pd_listeners *l, const char *row, struct fo_err *e) {
    enum pd_scheme scheme;
    char host[256];
    const char *port;
    if (!split_address(strip_scheme(row, &scheme), host, sizeof host, &port)) return fo_fail(e, FO_EINVAL, "listen '%s': not ADDRESS:PORT", row);
    struct addrinfo hints = { .ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICSERV }, *list;
    int rc = getaddrinfo(host, port, &hints, &list), code = FO_OK;
    if (rc) return fo_fail(e, FO_EINVAL, "listen '%s': %s", row, gai_strerror(rc));
    for (const struct addrinfo *a = list; a && code == FO_OK; a = a->ai_next) {
        struct sockaddr_storage at = { 0 };
        bool same = false;
        memcpy(&at, a->ai_addr, a->ai_addrlen);
        struct pd_listener *p = passed_for(l, &at, &same);
        if (!p) {
            code = bind_tcp(l, a, row, scheme, e);
        } else if (same) {
            p->scheme = scheme;
        } else if (scheme != PD_BARE) {
            code = fo_fail(e, FO_EINVAL, "listen '%s': the passed socket at %s serves this address too, and others; write the row for that address", row, p->text);
        } else {
            fo_log(FO_LOG_INFO, "http", "event=not_bound row=\"%s\" reason=\"the passed socket at %s serves it\"", row, p->text);
        }
    }
    freeaddrinfo(list);
    return code;
}

/* Whether somebody listens there. */
static bool socket_answers(const struct sockaddr_un *a) {
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    bool yes = fd >= 0 && (connect(fd, (const struct sockaddr *)a, sizeof *a) == 0 || errno == EAGAIN);
    if (fd >= 0) close(fd);
    return yes;
}

static int open_unix(struct pd_listeners *l, const char *path, bool admin, struct fo_err *e) {
    struct sockaddr_un a = { .sun_family = AF_UNIX };
    struct stat st;
    if (room(l, path, e)) return e->code;
    if (strlen(path) >= sizeof a.sun_path) return fo_fail(e, FO_EINVAL, "%s: longer than a socket's path may be", path);
    memcpy(a.sun_path, path, strlen(path));
    for (int i = 0; i < l->n; i++) /* a passed one: what it is for, it knows already */
        if (l->list[i].at.ss_family == AF_UNIX && strcmp(path_of(&l->list[i].at, l->list[i].at_len), path) == 0) return FO_OK;
    if (socket_answers(&a)) return fo_fail(e, FO_EBUSY, "%s: another process listens there", path);
    if (lstat(path, &st) == 0 && S_ISSOCK(st.st_mode)) unlink(path);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0) return fo_fail_errno(e, errno, "%s", path);
    mode_t before = umask(0117); /* never open to others, not for a moment; no other thread exists yet */
    int rc = bind(fd, (struct sockaddr *)&a, sizeof a), err = errno;
    umask(before);
    if (rc < 0 || listen(fd, BACKLOG) < 0) {
        if (rc == 0) err = errno;
        close(fd);
        return fo_fail_errno(e, err, "%s", path);
    }
    struct pd_listener *p = &l->list[l->n++];
    *p = (struct pd_listener){ .fd = fd, .admin = admin };
    memcpy(p->path, path, strlen(path));
    const struct group *g = getgrnam("pantheon");
    if (g && chown(path, (uid_t)-1, g->gr_gid)) FO_DEBUGF("http", "event=socket_group path=%s reason=\"%s\"", path, strerror(errno));
    if (look_up(p, e)) return e->code;
    say(p, "");
    return FO_OK;
}

/* --- passed sockets --- */

static bool is_row(const struct pd_listen_opts *o, const char *path) {
    for (size_t i = 0; i < o->n_rows; i++)
        if (strncmp(o->rows[i], "unix:", 5) == 0 && strcmp(o->rows[i] + 5, path) == 0) return true;
    return false;
}

/* What a socket unit may get wrong. */
static int check_passed(const struct pd_listener *p, const char *what, struct fo_err *e) {
    int type = 0, listens = 0;
    socklen_t len = sizeof type;
    if (getsockopt(p->fd, SOL_SOCKET, SO_TYPE, &type, &len)) return fo_fail(e, FO_EINVAL, "%s is no socket (%s); the socket unit needs ListenStream=", what, strerror(errno));
    if (type != SOCK_STREAM) return fo_fail(e, FO_EINVAL, "%s is no stream socket; the socket unit needs ListenStream=, not ListenDatagram= or another", what);
    len = sizeof listens;
    if (getsockopt(p->fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &len) || !listens) return fo_fail(e, FO_EINVAL, "%s does not listen; the socket unit needs Accept=no", what);
    return FO_OK;
}

static int check_admin(const struct pd_listener *p, const char *what, struct fo_err *e) {
    const char *path = path_of(&p->at, p->at_len);
    struct stat st;
    static const char way[] = "whoever opens it may administer: give the socket unit SocketMode=0660 and a SocketGroup=, or list it as unix:PATH in server.listen, for requests under the rules of TCP";
    if (!*path) return fo_fail(e, FO_EACCES, "%s is a Unix socket without a path, open to all; %s", what, way);
    if (stat(path, &st)) return fo_fail_errno(e, errno, "%s, %s", what, path);
    if (st.st_mode & S_IWOTH) return fo_fail(e, FO_EACCES, "%s, %s, is open to all (mode %04o); %s", what, path, (unsigned)st.st_mode & 07777, way);
    return FO_OK;
}

static int take_passed(struct pd_listeners *l, const struct pd_listen_opts *o, size_t i, struct fo_err *e) {
    struct pd_listener *p = &l->list[l->n++];
    char what[128];
    *p = (struct pd_listener){ .fd = o->passed->list[i].fd, .passed = true };
    snprintf(what, sizeof what, "passed socket %zu (descriptor %d, '%s')", i + 1, p->fd, o->passed->list[i].name);
    if (check_passed(p, what, e)) return e->code;
    if (look_up(p, e)) return fo_wrap(e, "%s", what);
    if (p->at.ss_family != AF_INET && p->at.ss_family != AF_INET6 && p->at.ss_family != AF_UNIX) return fo_fail(e, FO_EINVAL, "%s is neither TCP nor a Unix socket", what);
    p->admin = p->at.ss_family == AF_UNIX && !is_row(o, path_of(&p->at, p->at_len));
    if (p->admin && check_admin(p, what, e)) return e->code;
    int flags = fcntl(p->fd, F_GETFL);
    if (flags < 0 || fcntl(p->fd, F_SETFL, flags | O_NONBLOCK) || fcntl(p->fd, F_SETFD, FD_CLOEXEC)) return fo_fail_errno(e, errno, "%s", what);
    return FO_OK;
}

/* --- all --- */

int pd_listen_open(const struct pd_listen_opts *o, struct pd_listeners *ret, struct fo_err *e) {
    size_t n_passed = o->passed ? o->passed->n : 0;
    int code = FO_OK;
    ret->n = 0;
    for (size_t i = 0; i < n_passed; i++) {
        if (code == FO_OK) code = take_passed(ret, o, i, e);
        else close(o->passed->list[i].fd);
    }
    for (size_t i = 0; i < o->n_rows && code == FO_OK; i++)
        code = strncmp(o->rows[i], "unix:", 5) == 0 ? open_unix(ret, o->rows[i] + 5, false, e) : open_tcp(ret, o->rows[i], e);
    if (code != FO_OK) return code;
    for (int i = 0; i < ret->n; i++) /* now that the rows have said what they are */
        if (ret->list[i].passed) say(&ret->list[i], o->passed->list[i].name);
    struct fo_err why;
    if (o->admin_socket && open_unix(ret, o->admin_socket, true, &why))
        fo_log(FO_LOG_WARN, "http", "event=no_admin_socket reason=\"%s\" next=\"administration over TCP from this machine only\"", why.msg);
    return FO_OK;
}

void pd_listen_close(struct pd_listeners *l) {
    for (int i = 0; i < l->n; i++) {
        close(l->list[i].fd);
        if (l->list[i].path[0]) unlink(l->list[i].path);
    }
    l->n = 0;
}
