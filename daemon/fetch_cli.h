/* `pantheon-reconcile --fetch`: the files of a manifest's models, fetched and checked by this process, whether a daemon runs or not. */
#pragma once

struct cf_manifest;

/* Fetches what is absent, checks what has a sha256, says what it does (with progress where stdout is a terminal). `dir`: what relative paths
 * start at; NULL = the working directory. The process' exit status: 0 all is there, 1 not all is. */
int pd_fetch_cli(const struct cf_manifest *m, const char *dir);
