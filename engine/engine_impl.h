/* Inside the registry, whose files are: engine.c (which models exist, admission) and route.c (which instance of a name takes a request). */
#pragma once
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/engine.h"

struct pn_names {
    char **name; /* [n] */
    int n;
};

struct pn_served {
    atomic_int refs;
    struct pn_engine *en; /* fixed, as the next six */
    char *name;
    uint32_t replica;
    int64_t loaded_at;
    uint64_t identity; /* of its files: instances of one name that have the same one have the same vocabulary; 0 = unknown */
    struct pn_model *model;
    struct pn_grammars *grammars;
    struct pn_names aliases; /* guarded by the registry's lock */
    atomic_uint max_tokens_default;
    struct pn_sched *sched;
};

struct pn_engine {
    pthread_rwlock_t lock; /* guards the list, the aliases and draining */
    struct pn_served **list;
    size_t n;
    bool draining;
    void (*leave)(void *ctx, struct pn_served *s); /* or NULL; fixed, as its ctx */
    void *leave_ctx;
};

/* Under the lock: whether a name or alias means it, and of all that it means the least busy one that serves, else any; NULL = none. */
bool pn_served_is_called(const struct pn_served *s, const char *name);
struct pn_served *pn_route_find(const struct pn_engine *en, const char *name);

/* The heir of an instance's worker (pn_sched_heir); ctx is the instance. */
bool pn_route_hand_over(void *ctx, struct pn_request *r);
