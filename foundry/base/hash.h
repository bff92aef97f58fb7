/* Numbers for bytes and for numbers: to find things by and to tell them apart, not against people who look for collisions. */
#pragma once
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* FNV-1a (Fowler, Noll, Vo), to be continued: begin with FO_FNV_SEED. */
#define FO_FNV_SEED UINT64_C(0xcbf29ce484222325)
static inline uint64_t fo_fnv1a(uint64_t h, const void *bytes, size_t n) {
    const unsigned char *p = bytes;
    for (size_t i = 0; i < n; i++) h = (h ^ p[i]) * UINT64_C(0x100000001b3);
    return h;
}

/* Every bit of the result depends on every bit of x (the finalizer of Steele, Lea and Flood's SplitMix, 2014). */
static inline uint64_t fo_mix64(uint64_t x) {
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

/* One lane of fo_sum64 takes eight bytes: for a given word every lane becomes another one, and for a given lane every word. */
static inline uint64_t fo_sum64_step(uint64_t lane, uint64_t word) {
    uint64_t x = (lane ^ word) * UINT64_C(0x9e3779b97f4a7c15);
    return x << 29 | x >> 35;
}

/* A checksum of n bytes against damage, several times as fast as bytes one by one: four lanes of words. A change that stays within eight bytes is
 * always seen, any other but once in 2^64. Blocks with different seeds do not stand in for each other. */
static inline uint64_t fo_sum64(uint64_t seed, const void *bytes, size_t n) {
    const unsigned char *p = bytes;
    uint64_t lane[4] = { seed, ~seed, fo_mix64(seed), fo_mix64(~seed) }, word, h = n;
    for (size_t left = n; left > 0;) {
        for (int i = 0; i < 4 && left > 0; i++) {
            size_t take = left < sizeof word ? left : sizeof word;
            word = 0;
            memcpy(&word, p, take);
            lane[i] = fo_sum64_step(lane[i], word);
            p += take;
            left -= take;
        }
    }
    for (int i = 0; i < 4; i++) h = fo_sum64_step(h, lane[i]);
    return fo_mix64(h);
}
