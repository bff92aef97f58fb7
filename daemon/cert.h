/* The certificate of the manifest: reads its files, watches them, and puts them in force. The main thread's. */
#pragma once
#include <stdbool.h>

struct cf_manifest;
struct fo_err;
struct pd_app;
struct pd_cert;
struct pd_file_state;
struct pd_tls;

int pd_cert_new(struct pd_cert **ret, struct fo_err *e);
void pd_cert_free(struct pd_cert *c); /* no connection is left; NULL is allowed */
struct pd_tls *pd_cert_tls(struct pd_cert *c);

/* The certificate is this manifest's from now on (none when it has no `tls`). `dir`: what relative paths start at; NULL = the working
 * directory. Files that cannot be used are an error when there is no certificate in force from the same paths: all stays as it was
 * then. Otherwise that one stays in force, and pd_cert_state and an event say so. */
int pd_cert_use(struct pd_app *app, const struct cf_manifest *m, const char *dir, struct fo_err *e);

/* What pd_cert_use would say of the manifest's files at a start, of a manifest that may never be used. */
int pd_cert_check(const struct cf_manifest *m, const char *dir, struct fo_err *e);

/* Looks whether the files have changed (once a second at most, at once when `now`) and reads them then; and whether the certificate has
 * expired. True = the state has changed. */
bool pd_cert_look(struct pd_app *app, bool now);

const struct pd_file_state *pd_cert_state(const struct pd_cert *c);
