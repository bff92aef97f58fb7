/* Rendezvous hashing (Thaler and Ravishankar, 1998): a score for each pair of key and node. With at most 64 nodes a walk over them costs less
 * than a lookup in a ring of virtual nodes would, and shares come out even without any. The bound is that of consistent hashing with
 * bounded loads (Mirrokni, Thorup and Zadimoghaddam, 2018). */
#include "daemon/router_ring.h"

#include "foundry/base/hash.h"

static uint64_t score(uint64_t id, uint64_t key) {
    return fo_mix64(fo_mix64(id ^ (key * UINT64_C(0x9e3779b97f4a7c15))));
}

uint32_t pd_ring_bound(uint64_t total, size_t n_usable, uint32_t room) {
    uint64_t parts = 100 * (uint64_t)n_usable, share = ((total + 1) * PD_RING_SLACK_PERCENT + parts - 1) / parts;
    return share > room ? (share < UINT32_MAX ? (uint32_t)share : UINT32_MAX) : room;
}

int pd_ring_pick(const struct pd_ring_node *nodes, size_t n, uint64_t key) {
    uint64_t total = 0, best_score = 0;
    size_t usable = 0;
    int best = -1;
    int64_t best_over = 0;
    for (size_t i = 0; i < n; i++) {
        if (!nodes[i].usable) continue;
        usable++;
        total += nodes[i].load;
    }
    for (size_t i = 0; i < n; i++) {
        const struct pd_ring_node *k = &nodes[i];
        if (!k->usable) continue;
        int64_t over = (int64_t)k->load + 1 - pd_ring_bound(total, usable, k->room);
        if (over < 0) over = 0;
        uint64_t s = score(k->id, key);
        if (best >= 0 && (over > best_over || (over == best_over && s <= best_score))) continue;
        best = (int)i;
        best_over = over;
        best_score = s;
    }
    return best;
}
