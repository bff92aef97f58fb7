/* Random numbers as a value: xoshiro256++ (Blackman and Vigna, 2019, public domain reference) seeded by splitmix64. The same
 * seed gives the same sequence on every platform. Not for secrets. */
#pragma once
#include <stdint.h>

struct fo_rng {
    uint64_t s[4];
};

void fo_rng_seed(struct fo_rng *r, uint64_t seed);
uint64_t fo_rng_u64(struct fo_rng *r);
double fo_rng_unit(struct fo_rng *r); /* uniform in [0, 1), 53 bits */

/* 64 unpredictable bits from the operating system, for ids and default seeds. */
uint64_t fo_rng_entropy(void);
