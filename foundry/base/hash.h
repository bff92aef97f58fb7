/* Numbers for bytes and for numbers: to find things by and to tell them apart, not against people who look for collisions. */
#pragma once
#include <stddef.h>
#include <stdint.h>

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
