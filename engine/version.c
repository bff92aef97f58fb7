/* What this build is: see version.h. The Makefile defines both from VERSION and the commit. */
#include "engine/version.h"

const char *pn_version(void) {
    return PN_VERSION;
}

const char *pn_build(void) {
    return PN_BUILD;
}
