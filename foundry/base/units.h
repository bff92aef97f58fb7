/* Sizes and durations as people write them. A unit is required ("300MiB", "10s"): a bare number is an error, because nobody
 * agrees on what it means. Parsing accepts exactly [digits][.digits]UNIT without spaces. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* B KiB MiB GiB TiB (1024) and KB MB GB TB (1000). False when it is not a size or overflows. */
bool fo_parse_bytes(const char *s, uint64_t *ret_bytes);

/* ms s min (or m) h d. False when it is not a duration or overflows. */
bool fo_parse_ms(const char *s, uint64_t *ret_ms);

/* "512 B", "1.5 GiB": three significant digits, for people. Returns `out` (at least 16 bytes). */
char *fo_format_bytes(uint64_t bytes, char *out, size_t size);

/* "250 ms", "1.5 s", "10 min". Returns `out` (at least 16 bytes). */
char *fo_format_ms(uint64_t ms, char *out, size_t size);
