/* One file from one URL into its part, by libcurl: goes on where the part ends when the server still has the same content, and takes a sum
 * of all of it as it comes. Blocks; the thread that has the part open and locked. What came is judged by fetch.c, which puts it in place. */
#pragma once
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct fo_err;
struct pd_digest;

/* How a download ended; its word and what it means stand in one table (fetch.c). */
enum pd_fetch_end {
    PD_F_DONE,
    PD_F_CANCELLED,
    PD_F_UNREACHABLE,   /* no connection */
    PD_F_NOT_TRUSTED,   /* TLS */
    PD_F_STALLED,
    PD_F_CUT,           /* ended before its end */
    PD_F_NOT_FOUND,
    PD_F_FORBIDDEN,
    PD_F_REFUSED,       /* any other status */
    PD_F_REDIRECT,      /* to what may not be followed */
    PD_F_DISK_FULL,
    PD_F_NOT_WRITABLE,
    PD_F_CHECKSUM,      /* what came is not what sha256 says */
    PD_F_NOT_A_MODEL,   /* nor is it a GGUF file */
    PD_F_BUSY,          /* another process fetches it */
    PD_F_WRONG_FILE,    /* what is in place is not what sha256 says */
    PD_F_NO_MEMORY,
    PD_N_FETCH_ENDS
};

/* What others may look at while it runs. */
struct pd_progress {
    atomic_bool cancel;
    atomic_bool verifying;                /* bytes are read here, not fetched */
    atomic_uint_fast64_t done, size, rate; /* bytes of the file at work, of all of it (0 = not known), and a second */
    atomic_uint file;                     /* of several, from 0 */
    atomic_uint_fast64_t fetched;         /* bytes that came over the network since the job began */
};

struct pd_transfer {
    const char *declared; /* as the manifest writes it: what the part's note is held against */
    const char *url;      /* what that comes to */
    const char *bearer;   /* a token for that host alone; NULL */
    bool loopback;        /* the host is this machine: no proxy is asked */
    bool summed;          /* a sum will tell whether the content is right: any server's bytes are as good as another's */
    const char *part;     /* path */
    int fd;               /* of it, open for reading and writing */
    struct pd_digest *sum; /* after PD_F_DONE of the whole part */
    struct pd_progress *progress;
    void (*tick)(void *ctx); /* about once a second, and more often; NULL */
    void *ctx;
    /* results */
    bool resumed;
    uint32_t retry_after_s; /* the server's wish; 0 = none */
};

/* PD_F_DONE: the part is whole as far as the server tells. Else why not, for people; what came so far is kept for the next time. */
enum pd_fetch_end pd_transfer(struct pd_transfer *t, struct fo_err *e);

/* Adds the first `bytes` of a file to a sum; cancelled by the progress. */
enum pd_fetch_end pd_transfer_sum(int fd, const char *name, uint64_t bytes, struct pd_progress *p, void (*tick)(void *), void *ctx, struct pd_digest *sum, struct fo_err *e);
