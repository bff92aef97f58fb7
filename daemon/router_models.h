/* What a backend says of its models (GET /v1/models), and all backends' lists as one. */
#pragma once
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct fo_buf;
struct fo_err;

enum { PD_MAX_LIST_BYTES = 4 << 20, PD_MAX_LISTED = 1024 };

/* A list as it was read: nobody changes it any more. */
struct pd_models {
    atomic_int refs;
    size_t n;
    struct pd_listed {
        char *id;
        char **aliases;   /* [n_aliases] */
        size_t n_aliases;
        bool serves;      /* it says so, or says nothing */
        uint32_t room;    /* max_concurrent; 0 = it does not say */
        char *text;       /* the object */
    } list[];
};

/* Reads {"data":[{"id":...}]}: entries without an id of 1 to 512 printable characters are left out. One reference is the caller's. FO_EFORMAT, FO_ELIMIT, FO_ENOMEM. */
int pd_models_parse(const char *text, size_t len, struct pd_models **ret, struct fo_err *e);
struct pd_models *pd_models_get(struct pd_models *m); /* one more reference; NULL is allowed */
void pd_models_put(struct pd_models *m);              /* NULL is allowed */

/* By id or alias; NULL = not there (also of NULL). */
const struct pd_listed *pd_models_find(const struct pd_models *m, const char *name);

/* A backend for the pages of all. */
struct pd_source {
    const char *name;
    bool up;
    struct pd_models *models; /* NULL = it has never said */
};

/* {"object":"list","data":[...]}: each id once, as the first backend that serves it says, else the first that has it; `backends` lists them all. Appended to out. */
void pd_models_merge(const struct pd_source *s, size_t n, struct fo_buf *out);
/* The object of one id or alias; false = nobody has it. */
bool pd_models_merge_one(const struct pd_source *s, size_t n, const char *name, struct fo_buf *out);
/* The ids, with commas, as many as fit the buffer's cap. */
void pd_models_names(const struct pd_source *s, size_t n, struct fo_buf *out);
