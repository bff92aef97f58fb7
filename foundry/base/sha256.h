/* SHA-256 (FIPS 180-4) of bytes in memory: for keys that are kept as digests, and for checksums of files. Pure; any thread. */
#pragma once
#include <stddef.h>
#include <stdint.h>

enum { FO_SHA256_BYTES = 32 };

/* The digest of bytes[0..n). */
void fo_sha256(const void *bytes, size_t n, uint8_t ret[FO_SHA256_BYTES]);
