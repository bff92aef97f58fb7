/* Why a file cannot be reached. "Permission denied" and "No such file" say too little of a path that leads through links and folders, and nothing
 * of a service's unit that hides a folder from it: this walks the path as the kernel does and names the place. Any thread; only looks. */
#pragma once
#include <stdbool.h>

struct fo_err;

/* Appends what is in the way of `path` to *e, if *e is FO_ENOENT or FO_EACCES and there is something to say: a folder that the unit hides
 * (ProtectHome=), a folder or file that this user may not pass or read, a link that leads nowhere. Returns e->code. */
int pd_reach_explain(const char *path, struct fo_err *e);

/* Whether a unit hides the folder `dir`: in `mountinfo` (the text of /proc/self/mountinfo) something is mounted there that systemd puts in the
 * place of what must not be seen. */
bool pd_reach_hidden(const char *mountinfo, const char *dir);
