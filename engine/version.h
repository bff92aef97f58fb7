/* What this build is. Static strings, any thread. */
#pragma once

const char *pn_version(void); /* "0.1.0" */
const char *pn_build(void);   /* the commit it was built from, or "unknown" */
