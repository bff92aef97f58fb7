/* What OpenAI clients are told: THE table of errors (id -> HTTP status, type, code), and the objects that answers share. The
 * conventions are those of the OpenAI API; clients match on type, code and, for a context overflow, on the words. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/jinja.h"

struct fo_buf;
struct fo_err;
struct json_t;
struct pd_call;
struct pn_budget;

enum pd_error_id {
    PD_ERR_INVALID,       /* not JSON, a wrong type, a missing field */
    PD_ERR_VALUE,         /* a value out of range */
    PD_ERR_UNKNOWN_PARAM, /* a field that this server does not know */
    PD_ERR_UNSUPPORTED,   /* a field or value that it knows and does not honour */
    PD_ERR_SCHEMA,        /* a JSON Schema that an answer cannot be held to */
    PD_ERR_TEMPLATE,      /* the model's chat template cannot be used */
    PD_ERR_BUDGET,        /* the request does not fit its model's cap */
    PD_ERR_MALFORMED,     /* broken HTTP */
    PD_ERR_TLS,           /* HTTP in the clear where TLS is spoken */
    PD_ERR_SESSION,       /* bytes that are no session */
    PD_ERR_MANIFEST,      /* the manifest was not accepted */
    PD_ERR_KEY,           /* no API key, or a wrong one */
    PD_ERR_FORBIDDEN,     /* administration from elsewhere, or with a key that may not */
    PD_ERR_HOST,          /* a Host that is not this server's */
    PD_ERR_ORIGIN,        /* a web page of another origin */
    PD_ERR_NO_MODEL,
    PD_ERR_NO_SESSION,
    PD_ERR_NO_ROUTE,
    PD_ERR_METHOD,
    PD_ERR_CONFLICT,      /* with what is in force */
    PD_ERR_SESSION_OTHER, /* a session that goes with something else */
    PD_ERR_TIMEOUT,       /* the client took too long to send */
    PD_ERR_BODY_SIZE,
    PD_ERR_URI_SIZE,
    PD_ERR_EXPECT,
    PD_ERR_HEAD_SIZE,
    PD_ERR_QUEUE_FULL,
    PD_ERR_KEY_BUSY,      /* the key's max_concurrent */
    PD_ERR_INTERNAL,
    PD_ERR_CODING,        /* a Transfer-Encoding that is not chunked */
    PD_ERR_LOADING,
    PD_ERR_UNAVAILABLE,   /* failed or held */
    PD_ERR_PINNED,        /* loaded on demand, and what is loaded does not give way */
    PD_ERR_DRAINING,
    PD_ERR_KEYS,          /* the file of keys cannot be used */
    PD_ERR_QUEUE_TIMEOUT,
    PD_ERR_ADMIN_BUSY,    /* too many administration requests wait */
    PD_ERR_CONNECTIONS,   /* over the connection cap */
    PD_ERR_MEMORY,
    PD_ERR_NO_ROOM,       /* no KV for a session */
    PD_ERR_DEVICE,
    PD_ERR_BACKEND,       /* a router's: what answered it */
    PD_ERR_BACKEND_TIME,
    PD_ERR_NO_BACKEND,
    PD_ERR_HTTP_VERSION,
    PD_N_ERRORS
};

struct pd_error_row {
    int status;
    const char *type, *code; /* code NULL = null */
    const char *doc;
    bool no_retry; /* says x-should-retry: false, where clients would retry by themselves and it cannot help */
    uint32_t retry_after_s; /* of the Retry-After header where nobody knows better; 0 = none */
};
/* The row of an id. Static storage. */
const struct pd_error_row *pd_error_row(enum pd_error_id id);

/* One refusal on its way to the client. A value; set it with pd_error_set. */
struct pd_error {
    enum pd_error_id id;
    char param[192];               /* JSON path of what is wrong ("messages.2.content"), "" = null */
    char message[PN_RAISED_BYTES + 1]; /* longest of all: what a template raises */
    uint32_t retry_after_s;        /* the row's, or what is known better; 0 = no header */
    const struct pn_budget *budget; /* the numbers of PD_ERR_BUDGET, or NULL */
    const char *model;             /* their model */
    uint64_t need_bytes, have_bytes; /* of a model that does not fit; 0 = no such members */
    const char *allow;             /* PD_ERR_METHOD: the Allow header */
};

/* No memory for the request. Returns false. */
bool pd_error_memory(struct pd_error *x);
/* Returns false, so that a parser can refuse in one line. param NULL or "" = null. */
bool pd_error_set(struct pd_error *x, enum pd_error_id id, const char *param, const char *fmt, ...) __attribute__((format(printf, 4, 5)));

/* From an error of the engine: the code chooses the row, the message stays; `draining` tells why a model is unavailable. */
void pd_error_from(struct pd_error *x, const struct fo_err *e, bool draining);

/* {"error":{...}}: appended to out. request_id NULL leaves it out (it is a header where there are headers). */
void pd_error_json(const struct pd_error *x, const char *request_id, struct fo_buf *out);

/* Puts the error's code, and the text of one that is the server's fault, into the request's line of the log. */
void pd_error_note(const struct pd_error *x, struct pd_call *c);

/* A text that is compared with words of ours; NULL when it is none, or has a NUL, behind which a comparison would not look. */
const char *pd_json_word(const struct json_t *v);

/* A text [n] of UTF-8 as a JSON string, quotes included, appended to out; bytes that are no UTF-8 fail it. */
void pd_json_text(struct fo_buf *out, const char *text, size_t n);

/* Answers a call that has no answer yet with the error, Retry-After and x-should-retry included. */
void pd_error_reply(struct pd_call *c, const struct pd_error *x);

/* Answers with a JSON text that is built already, or with 500 when the buffer failed. */
void pd_json_reply(struct pd_call *c, int status, struct fo_buf *body);

/* Answers with an object and gives up the reference to it; NULL (no memory to build it) answers 503. */
void pd_reply_object(struct pd_call *c, int status, struct json_t *obj);
