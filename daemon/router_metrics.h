/* The router's metrics. */
#pragma once
#include <stdbool.h>
#include <stddef.h>

#include "daemon/routes.h"

/* GET /metrics. The pd_app is that of a struct pd_router. */
pd_route_fn pd_router_metrics;

/* A row for the reference page; false past the last. Texts are static. */
struct pd_router_metric_doc {
    const char *name, *type, *labels, *help; /* help NULL = one more label's value of the row before */
};
bool pd_router_metric_doc(size_t i, struct pd_router_metric_doc *ret);
