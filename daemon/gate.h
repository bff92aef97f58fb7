/* The gate that every request passes: it keeps the rules of access.h as the manifest in force and its file of keys say them, reads that file
 * again when it changes, counts what runs under each key, and writes each request's line into the log. */
#pragma once
#include <stdbool.h>

#include "daemon/http.h"

struct cf_manifest;
struct fo_err;
struct pd_app;
struct pd_counted_manifest;
struct pd_file_state;
struct pd_gate;

int pd_gate_new(struct pd_gate **ret, struct fo_err *e);
void pd_gate_free(struct pd_gate *g); /* no request is at it any more; NULL is allowed */

/* --- the main thread's (app->gate) --- */

/* FO_EACCES when other machines reach a listener (also one that was passed, or that this manifest no longer names) and nothing would protect
 * it under this manifest. */
int pd_gate_may_use(struct pd_app *app, const struct cf_manifest *m, struct fo_err *e);

/* The rules are this manifest's from now on, for requests that come. `dir`: what a relative api_keys_file starts at; NULL = the working
 * directory. Keys that cannot be read are no error here: those before stay in force, or nobody is let in; pd_gate_keys and an event
 * say so. FO_ENOMEM: the rules before stay. */
int pd_gate_use(struct pd_app *app, struct pd_counted_manifest *m, const char *dir, struct fo_err *e);

/* What pd_gate_use would find wrong with the manifest's file of keys. FO_OK when it names none. */
int pd_gate_check(const struct cf_manifest *m, const char *dir, struct fo_err *e);

/* Looks whether the file of keys has changed (one stat a second at most, at once when `now`) and reads it then. True = what pd_gate_keys
 * says has changed. */
bool pd_gate_look(struct pd_app *app, bool now);

/* Whether the keys in force are those of the file. */
const struct pd_file_state *pd_gate_keys(const struct pd_gate *g);

/* --- a request's thread: the hooks of http.h, with a struct pd_app as ctx --- */
pd_http_admit pd_gate_admit;
pd_http_handler pd_gate_done;
