/* SHA-256 (FIPS 180-4): for keys that are kept as digests, and for checksums of files. Pure; any thread. */
#pragma once
#include <stddef.h>
#include <stdint.h>

enum { FO_SHA256_BYTES = 32 };

/* The digest of bytes[0..n). */
void fo_sha256(const void *bytes, size_t n, uint8_t ret[FO_SHA256_BYTES]);

/* The same of bytes that come in pieces. A plain value: may be copied. */
struct fo_sha256 {
    uint32_t H[8];
    uint64_t n;       /* bytes so far */
    uint8_t last[64]; /* [n % 64] that wait for a whole block */
};
void fo_sha256_init(struct fo_sha256 *s);
void fo_sha256_add(struct fo_sha256 *s, const void *bytes, size_t n);
void fo_sha256_end(struct fo_sha256 *s, uint8_t ret[FO_SHA256_BYTES]);
