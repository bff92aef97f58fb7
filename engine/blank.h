/* What JSON takes for blank, and models put between the texts that mean something. */
#pragma once
#include <stdbool.h>

static inline bool pn_is_blank(unsigned c) {
    return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}
