/* Bump arena: see arena.h. Layout of a host block in a debug build, each piece followed by its redzone:
 *
 *     | piece 0 | pad | zone | piece 1 | zone | ...          zone = { offset of the zone before, 0xFD pattern }
 *
 * The zones form a list from the newest back to the oldest, so checking needs no memory of its own. The sizes are the same in
 * measuring mode, or an estimate made by a debug build would not equal its allocation. */
#include "foundry/base/arena.h"

#include <assert.h>
#include <string.h>

#include "foundry/base/err.h"

#ifdef FO_DEBUG
enum { ZONE = 32 };
#else
enum { ZONE = 0 };
#endif

void fo_arena_init_measure(struct fo_arena *a) {
    *a = (struct fo_arena){ .size = UINT64_MAX };
}

void fo_arena_init_host(struct fo_arena *a, void *block, uint64_t size) {
    assert(((uintptr_t)block & 63) == 0);
    *a = (struct fo_arena){ .base = block, .size = size };
}

void fo_arena_init_device(struct fo_arena *a, uint64_t size) {
    *a = (struct fo_arena){ .size = size };
}

int fo_arena_take(struct fo_arena *a, uint64_t bytes, uint64_t align, uint64_t *ret_off, struct fo_err *e) {
    assert(align && (align & (align - 1)) == 0 && align <= 4096);
    uint64_t start, end;
    if (__builtin_add_overflow(a->used, align - 1, &start)) goto full;
    start &= ~(align - 1);
    if (__builtin_add_overflow(start, bytes, &end) || __builtin_add_overflow(end, (uint64_t)ZONE, &end)) goto full;
    if (end > a->size) goto full;
    if (ZONE > 0 && a->base) {
        unsigned char *z = a->base + end - ZONE;
        memset(z, 0xFD, ZONE);
        memcpy(z, &a->last_zone, sizeof a->last_zone);
        a->last_zone = end - ZONE;
    }
    a->used = end;
    if (a->used > a->peak) a->peak = a->used;
    *ret_off = start;
    return FO_OK;
full:; /* what is needed counts from `used`: padding and zone too, or it could look as if it had fitted */
    uint64_t need = bytes > UINT64_MAX - ZONE - align ? UINT64_MAX : bytes + ZONE + (-a->used & (align - 1)), have = a->size - a->used;
    return fo_fail_need(e, FO_ENOMEM, need, have, "arena of %llu bytes is full: %llu more needed, %llu left", (unsigned long long)a->size,
                        (unsigned long long)need, (unsigned long long)have);
}

void *fo_arena_ptr(const struct fo_arena *a, uint64_t off) {
    return a->base ? a->base + off : NULL;
}

void fo_arena_reset(struct fo_arena *a) {
    a->used = 0;
    a->last_zone = 0;
}

bool fo_arena_check(const struct fo_arena *a) {
    if (ZONE == 0 || !a->base) return true;
    for (uint64_t at = a->last_zone, before; at; at = before) {
        const unsigned char *z = a->base + at;
        memcpy(&before, z, sizeof before);
        for (int i = sizeof before; i < ZONE; i++)
            if (z[i] != 0xFD) return false;
        if (before >= at) return false;
    }
    return true;
}
