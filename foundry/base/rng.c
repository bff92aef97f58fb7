/* Random numbers: see rng.h. */
#include "foundry/base/rng.h"

#include <time.h>
#include <unistd.h>

#include "foundry/base/hash.h"

static uint64_t splitmix64(uint64_t *x) {
    return fo_mix64(*x += 0x9E3779B97F4A7C15u);
}

static uint64_t rotl(uint64_t x, int k) {
    return (x << k) | (x >> (64 - k));
}

void fo_rng_seed(struct fo_rng *r, uint64_t seed) {
    for (int i = 0; i < 4; i++) r->s[i] = splitmix64(&seed);
}

uint64_t fo_rng_u64(struct fo_rng *r) {
    uint64_t *s = r->s, out = rotl(s[0] + s[3], 23) + s[0], t = s[1] << 17;
    s[2] ^= s[0];
    s[3] ^= s[1];
    s[1] ^= s[2];
    s[0] ^= s[3];
    s[2] ^= t;
    s[3] = rotl(s[3], 45);
    return out;
}

double fo_rng_unit(struct fo_rng *r) {
    return (double)(fo_rng_u64(r) >> 11) * 0x1.0p-53;
}

uint64_t fo_rng_entropy(void) {
    uint64_t v;
    if (getentropy(&v, sizeof v) == 0) return v;
    struct timespec t; /* no entropy source (a bare chroot): time and address still differ between calls */
    clock_gettime(CLOCK_REALTIME, &t);
    v = (uint64_t)t.tv_sec * 1000000007u ^ (uint64_t)t.tv_nsec ^ (uintptr_t)&v;
    return splitmix64(&v);
}
