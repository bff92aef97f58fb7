/* The router's own pages, and its table of paths. */
#pragma once
#include "daemon/http.h"

struct pd_route;

/* The handler of http.h, with the pd_app of a struct pd_router as ctx. */
pd_http_handler pd_router_dispatch;

/* The table, which ends with a row that is all zero. */
const struct pd_route *pd_router_routes(void);
