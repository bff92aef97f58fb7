/* Formats as regular expressions. Dates know the days of their months, and 29 February in every year that ends in an even number of
 * the right kind: leap years are counted. Leap seconds: 23:59:60 in UTC, written in UTC.
 *
 * Sources: RFC 3339 (date-time, date, time; durations of its appendix A), RFC 9562 (uuid), RFC 5321 (email: the dot-string and quoted
 * forms), RFC 2673 and 4291 (addresses), RFC 3986 (uri). */
#include <string.h>

#include "engine/grammar/schema_impl.h"

/* From 0001 on: most libraries know no year 0. */
#define YEAR "(?:000[1-9]|00[1-9][0-9]|0[1-9][0-9]{2}|[1-9][0-9]{3})"
/* Divisible by 4, and by 100 only when by 400. */
#define LEAP_YEAR "(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)"
#define DATE                                                                                                                               \
    "(?:" YEAR                                                                                                                             \
    "-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|1[0-9]|2[0-8]))|" LEAP_YEAR      \
    "-02-29)"
#define ZONE "(?:[Zz]|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
#define TIME "(?:(?:(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9])(?:\\.[0-9]+)?" ZONE "|23:59:60(?:\\.[0-9]+)?(?:[Zz]|[+-]00:00))"
#define BYTE "(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
#define IPV4 "(?:" BYTE "\\.){3}" BYTE
#define H16  "[0-9A-Fa-f]{1,4}"
#define LS32 "(?:" H16 ":" H16 "|" IPV4 ")"
#define IPV6                                                                                                                               \
    "(?:(?:" H16 ":){6}" LS32 "|::(?:" H16 ":){5}" LS32 "|(?:" H16 ")?::(?:" H16 ":){4}" LS32 "|(?:(?:" H16 ":){0,1}" H16 ")?::(?:" H16    \
    ":){3}" LS32 "|(?:(?:" H16 ":){0,2}" H16 ")?::(?:" H16 ":){2}" LS32 "|(?:(?:" H16 ":){0,3}" H16 ")?::" H16 ":" LS32 "|(?:(?:" H16      \
    ":){0,4}" H16 ")?::" LS32 "|(?:(?:" H16 ":){0,5}" H16 ")?::" H16 "|(?:(?:" H16 ":){0,6}" H16 ")?::)"
#define LABEL         "[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
#define ATEXT         "[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]"
#define PCT           "%[0-9A-Fa-f]{2}"
#define PCHAR         "(?:[A-Za-z0-9._~!$&'()*+,;=:@-]|" PCT ")"
#define DURATION_TIME "T(?:[0-9]+H(?:[0-9]+M(?:[0-9]+S)?)?|[0-9]+M(?:[0-9]+S)?|[0-9]+S)"

static const struct format {
    const char *name, *regex;
} formats[] = {
    { "date-time", "^" DATE "[Tt]" TIME "$" },
    { "date", "^" DATE "$" },
    { "time", "^" TIME "$" },
    { "duration",
      "^P(?:[0-9]+W|" DURATION_TIME "|(?:[0-9]+Y(?:[0-9]+M(?:[0-9]+D)?)?|[0-9]+M(?:[0-9]+D)?|[0-9]+D)(?:" DURATION_TIME ")?)$" },
    { "uuid", "^[0-9A-Fa-f]{8}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{12}$" },
    { "email", "^(?:" ATEXT "+(?:\\." ATEXT "+)*|\"(?:[ !#-\\[\\]-~]|\\\\[ -~])*\")@(?:" LABEL "(?:\\." LABEL ")*|\\[" IPV4
               "\\]|\\[IPv6:" IPV6 "\\])$" },
    { "ipv4", "^" IPV4 "$" },
    { "ipv6", "^" IPV6 "$" },
    { "uri",
      "^[A-Za-z][A-Za-z0-9+.-]*:(?://(?:(?:[A-Za-z0-9._~!$&'()*+,;=:-]|" PCT ")*@)?(?:\\[(?:" IPV6
      "|[Vv][0-9A-Fa-f]+\\.[A-Za-z0-9._~!$&'()*+,;=:-]+)\\]|"
      "(?:[A-Za-z0-9._~!$&'()*+,;=-]|" PCT ")*)(?::[0-9]*)?(?:/" PCHAR "*)*|/(?:" PCHAR "+(?:/" PCHAR "*)*)?|" PCHAR "+(?:/" PCHAR "*)*|)"
      "(?:\\?(?:" PCHAR "|[/?])*)?(?:#(?:" PCHAR "|[/?])*)?$" },
};

const char *pn_format_regex(const char *name) {
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++)
        if (strcmp(name, formats[i].name) == 0) return formats[i].regex;
    return NULL;
}

const char *pn_schema_format_name(size_t i) {
    return i < sizeof formats / sizeof *formats ? formats[i].name : NULL;
}
