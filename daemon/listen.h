/* The sockets that clients connect to: those that the manifest names, and those that came with the process (systemd's socket units). Binds
 * and checks them; accepting is http.c's. Main thread, before others exist. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <sys/socket.h>

struct fo_err;

enum { PD_MAX_LISTENERS = 32, PD_MAX_PASSED = 16 };

/* Sockets that another process opened for this one. */
struct pd_passed {
    size_t n;
    struct {
        int fd;
        char name[64]; /* what the socket unit calls it; "" = nothing */
    } list[PD_MAX_PASSED];
};

struct pd_listener {
    int fd;
    struct sockaddr_storage at;
    socklen_t at_len;
    enum pd_scheme { PD_BARE, PD_HTTP, PD_HTTPS } scheme; /* of TCP: BARE speaks TLS whenever there is a certificate */
    bool admin;      /* a Unix socket that who may open it administers over */
    bool passed;
    char text[128];  /* its address, for people: "127.0.0.1:8080", "unix:/run/x.sock" */
    char path[108];  /* a file of ours to remove at the end; "" = none */
};

struct pd_listeners {
    struct pd_listener list[PD_MAX_LISTENERS];
    int n;
};

struct pd_listen_opts {
    const char *const *rows;        /* [n_rows] "127.0.0.1:8080", "[::1]:8080", "localhost:8080" (every address of the name), each also behind "http://" or
                                     * "https://"; "unix:/path" */
    size_t n_rows;
    const char *admin_socket;       /* a Unix socket besides, mode 0660, of group pantheon where there is one; NULL = none */
    const struct pd_passed *passed; /* taken over in every case; NULL = none */
};

/* Opens all: *ret is theirs in every case, for pd_listen_close. Passed sockets come beside the rows. A row that one of them serves is
 * not bound again and says what it speaks (http://, https://) or, of a Unix socket, that it is none of administration; any other passed
 * Unix socket is one, and must be closed to others.
 * FO_EBUSY when an address is in use, FO_EACCES without permission (or for such a socket that is open to all), FO_EINVAL for what is no
 * address or no listening stream socket, FO_ELIMIT; the message names it. The admin socket alone may fail: that is logged, and the rest
 * serves. A Unix socket that a dead process left behind is replaced; one that answers is somebody else's. */
int pd_listen_open(const struct pd_listen_opts *o, struct pd_listeners *ret, struct fo_err *e);
void pd_listen_close(struct pd_listeners *l);

/* Whether an address is this machine's loopback; a Unix socket is. */
bool pd_address_is_loopback(const struct sockaddr_storage *a);
/* An IPv4 address that a socket for both kinds shows as IPv6 becomes what it is. */
void pd_address_unmap(struct sockaddr_storage *a);
/* The first that other machines may reach; NULL = none. */
const struct pd_listener *pd_listen_outside(const struct pd_listeners *l);
