/* See digest.h. A failure inside the library is remembered, and makes a sum that fits nothing. */
#include "daemon/digest.h"

#include <openssl/evp.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

struct pd_digest {
    EVP_MD_CTX *ctx;
    bool failed;
};

struct pd_digest *pd_digest_new(void) {
    struct pd_digest *d = calloc(1, sizeof *d);
    if (!d) return NULL;
    d->ctx = EVP_MD_CTX_new();
    if (!d->ctx) {
        free(d);
        return NULL;
    }
    pd_digest_restart(d);
    return d;
}

void pd_digest_free(struct pd_digest *d) {
    if (!d) return;
    EVP_MD_CTX_free(d->ctx);
    free(d);
}

void pd_digest_restart(struct pd_digest *d) {
    d->failed = EVP_DigestInit_ex(d->ctx, EVP_sha256(), NULL) != 1;
}

void pd_digest_add(struct pd_digest *d, const void *bytes, size_t n) {
    if (n && EVP_DigestUpdate(d->ctx, bytes, n) != 1) d->failed = true;
}

void pd_digest_end(struct pd_digest *d, char out[PD_DIGEST_TEXT]) {
    unsigned char sum[EVP_MAX_MD_SIZE];
    unsigned n = 0;
    if (EVP_DigestFinal_ex(d->ctx, sum, &n) != 1 || n != (PD_DIGEST_TEXT - 1) / 2) d->failed = true;
    out[0] = '\0';
    for (unsigned i = 0; i < n && !d->failed; i++) snprintf(out + 2 * i, 3, "%02x", sum[i]);
}
