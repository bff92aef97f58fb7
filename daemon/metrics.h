/* THE table of metrics, for the reference page and the tests; the page itself is a handler (routes.h). */
#pragma once
#include <stdbool.h>
#include <stddef.h>

struct pd_metric_doc {
    const char *name, *type, *help;
    const char *labels; /* "model, replica, outcome"; "" = none */
    const char *value;  /* of the last label, where the table says it; else NULL */
};
/* Row i; rows of one name follow each other. False past the last. The strings live until this thread's next call. */
bool pd_metric_doc(size_t i, struct pd_metric_doc *ret);
