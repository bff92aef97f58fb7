/* Which backend a conversation belongs to: rendezvous hashing with bounded loads. Each backend has a score for a key, the highest has the
 * conversation; when a backend goes, only what was its own moves, to each conversation's next. One that has more than its share lets
 * the next one have what overflows. Pure: any thread. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct pd_ring_node {
    uint64_t id;   /* a number for its name */
    bool usable;   /* false: not asked, and no share is counted for it */
    uint32_t load; /* requests that it has now */
    uint32_t room; /* so many it runs at one time: below that it is never too busy */
};

enum { PD_RING_SLACK_PERCENT = 125 }; /* of the mean load: what a backend may have before its overflow goes on */

/* The most that a backend of this room may have when one more request comes to n_usable that have `total` between them. */
uint32_t pd_ring_bound(uint64_t total, size_t n_usable, uint32_t room);

/* The index of the node for a key; -1 = none is usable. Where all have more than their share, it is the one that has least over. */
int pd_ring_pick(const struct pd_ring_node *nodes, size_t n, uint64_t key);
