/* One scalar as its row asks. Every way of writing a value that another YAML reader, or a person, takes for something else is an
 * error with a hint: yes/no, octal 010, 1_000, 0x10, 12:30, numbers without units. Pure; any thread. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "config/schema.h"

enum { CF_MAX_NAME_BYTES = 128, CF_MAX_SCALAR_BYTES = 4096 };

union cf_value {
    bool flag;
    int64_t count;
    double number;
    uint64_t bytes;   /* sizes, and milliseconds */
    const char *text; /* the node's; NULL = auto */
    int choice;
};

/* Reads a scalar node as `kind` (the row's, or of a list its `each`). False when it does not fit, with a finding. */
bool cf_scalar_read(const struct cf_key *k, enum cf_kind kind, const struct cf_node *n, struct cf_report *rep, union cf_value *ret);

/* Whether "a|b|c" holds the word. */
bool cf_word_in(const char *words, const char *word, size_t len);

/* What a YAML 1.1 reader makes of this word without quotes: "true or false", "the number 8", ...; NULL when a plain text. */
const char *cf_yaml11(const char *word);

/* An address as bytes. False when it is not IPv4:port or [IPv6]:port, maybe behind http:// or https://, nor unix:/path. */
struct cf_address {
    enum { CF_BARE, CF_HTTP, CF_HTTPS } scheme;
    const char *path; /* of a Unix socket, in the text; then only `loopback` counts besides. NULL = TCP */
    bool v6, loopback;
    uint8_t ip[16]; /* v4: the first 4 */
    uint16_t port;
};
bool cf_address_parse(const char *s, struct cf_address *ret);

/* "12", "0.5", "64 KiB": a bound in the unit of its kind. Returns out. */
const char *cf_format_bound(enum cf_kind kind, double v, char out[32]);
