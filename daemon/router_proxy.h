/* A request on its way to a backend and its answer on the way back: the handler of every path that the router passes on. */
#pragma once
#include "daemon/routes.h"

/* POST /v1/{path}, /tokenize and its kin. The pd_app is that of a struct pd_router. */
pd_route_fn pd_router_forward;
