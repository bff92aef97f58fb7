/* SHA-256 of what comes in pieces: of files of many gigabytes, so it is OpenSSL's, which is a row of instructions where the CPU has them (1.8 GB/s
 * where plain C did 0.04 on the same machine). Of small things in memory: foundry/base/sha256.h. One thread at a time. */
#pragma once
#include <stddef.h>

enum { PD_DIGEST_TEXT = 65 };

struct pd_digest;

struct pd_digest *pd_digest_new(void);      /* of nothing yet; NULL without memory */
void pd_digest_free(struct pd_digest *d);   /* NULL is allowed */
void pd_digest_restart(struct pd_digest *d); /* of nothing again */
void pd_digest_add(struct pd_digest *d, const void *bytes, size_t n);
/* As sha256sum prints it; "", which is no sum, if the library failed. Ends it: restart it before it is used again. */
void pd_digest_end(struct pd_digest *d, char out[PD_DIGEST_TEXT]);
