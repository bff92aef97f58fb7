/* A bump arena over a host block, a device block, or nothing. It hands out OFFSETS, so the same layout code runs in measuring
 * mode (no block: only sizes are added up) for the estimate and over a real block for the allocation; that the two agree is
 * what every admission gate rests on. Nothing is freed singly: fo_arena_reset starts over. Not thread-safe: one owner.
 *
 * A debug build (FO_DEBUG) puts a redzone behind each host piece and fo_arena_check finds what was overrun. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct fo_err;

struct fo_arena {
    unsigned char *base; /* host block, or NULL: a device block, or measuring */
    uint64_t size;       /* bytes of the block; UINT64_MAX when measuring */
    uint64_t used;       /* bytes handed out, padding included */
    uint64_t peak;       /* highest `used` since init */
    uint64_t last_zone;  /* debug: offset of the newest redzone, 0 = none */
};

/* Measuring mode: nothing behind it, every take succeeds, `used` adds up. */
void fo_arena_init_measure(struct fo_arena *a);

/* Over a host block of `size` bytes that the caller owns and that outlives the arena. `block` is aligned to 64. */
void fo_arena_init_host(struct fo_arena *a, void *block, uint64_t size);

/* Over `size` bytes on a device: offsets only. */
void fo_arena_init_device(struct fo_arena *a, uint64_t size);

/* Takes `bytes` (0 is allowed) at a power-of-two `align` (at most 4096). *ret_off is the offset from the block's start.
 * FO_ENOMEM with need (padding included) and have when it does not fit, also when the sum would overflow. */
int fo_arena_take(struct fo_arena *a, uint64_t bytes, uint64_t align, uint64_t *ret_off, struct fo_err *e);

/* The host address of an offset; NULL when the arena has no host block (measuring, device). */
void *fo_arena_ptr(const struct fo_arena *a, uint64_t off);

/* Forgets everything handed out; `peak` stays. */
void fo_arena_reset(struct fo_arena *a);

/* Debug builds: false if a redzone was written to. Release builds: always true. */
bool fo_arena_check(const struct fo_arena *a);
