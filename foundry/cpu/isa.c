/* Which kernels this CPU can run. Asked once per open: CPUID says what the CPU has, XCR0 whether
 * the operating system keeps the wide registers across a switch.
 * This file is compiled for the baseline like everything but the overlays themselves. */
#include <stdlib.h>
#include <string.h>

#include "foundry/base/err.h"
#include "foundry/cpu/kernels.h"

#if defined(__x86_64__)
#include <cpuid.h>

static uint64_t xcr0(void) {
    uint32_t lo, hi;
    __asm__ volatile("xgetbv" : "=a"(lo), "=d"(hi) : "c"(0));
    return (uint64_t)hi << 32 | lo;
}

/* The first thing that the CPU or the system lacks for an overlay, or NULL. */
static const char *avx2_lacks(void) {
    uint32_t a, b, c, d, b7, c7;
    if (!__get_cpuid(1, &a, &b, &c, &d)) return "CPUID";
    if (!(c & bit_OSXSAVE) || !(c & bit_AVX) || (xcr0() & 6) != 6) return "AVX";
    if (!(c & bit_FMA)) return "FMA";
    if (!(c & bit_F16C)) return "F16C";
    return __get_cpuid_count(7, 0, &a, &b7, &c7, &d) && (b7 & bit_AVX2) ? NULL : "AVX2";
}

static const char *avx512_lacks(void) {
    const char *below = avx2_lacks();
    if (below) return below;
    uint32_t a, b = 0, c = 0, d;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || (xcr0() & 0xE6) != 0xE6) return "AVX512F";
    static const struct {
        const char *name;
        int in_ecx;
        uint32_t bit;
    } needs[] = {
        { "AVX512F", 0, bit_AVX512F },       { "AVX512DQ", 0, bit_AVX512DQ },     { "AVX512BW", 0, bit_AVX512BW },
        { "AVX512VL", 0, bit_AVX512VL },     { "AVX512_VBMI", 1, bit_AVX512VBMI }, { "AVX512_VNNI", 1, bit_AVX512VNNI },
    };
    for (size_t i = 0; i < sizeof needs / sizeof needs[0]; i++)
        if (!((needs[i].in_ecx ? c : b) & needs[i].bit)) return needs[i].name;
    return NULL;
}
#else
static const char *avx2_lacks(void) {
    return "AVX2";
}
static const char *avx512_lacks(void) {
    return "AVX512F";
}
#endif

/* From the baseline up: each overlay goes on top of those before it. */
static const struct {
    const char *name;
    const char *(*lacks)(void);
    bool (*fill)(struct fo_cpu_kernels *k);
} overlays[] = {
    { "avx2", avx2_lacks, fo_cpu_avx2 },
    { "avx512", avx512_lacks, fo_cpu_avx512 },
};
enum { N_OVERLAYS = sizeof overlays / sizeof overlays[0] };

int fo_cpu_kernels_for(const char *isa, struct fo_cpu_kernels *ret, struct fo_err *e) {
    bool best = !isa || strcmp(isa, "auto") == 0;
    int wanted = N_OVERLAYS;
    if (!best && strcmp(isa, "scalar") == 0) wanted = 0;
    if (!best && wanted) {
        for (wanted = 0; wanted < N_OVERLAYS && strcmp(isa, overlays[wanted].name) != 0; wanted++) {}
        if (wanted++ == N_OVERLAYS) return fo_fail(e, FO_EINVAL, "unknown instruction set '%s': auto, scalar, avx2 or avx512", isa);
    }
    struct fo_cpu_kernels k;
    fo_cpu_ref(&k);
    for (int i = 0; i < wanted; i++) {
        const char *lacks = overlays[i].lacks();
        if (!lacks && !overlays[i].fill(&k)) lacks = "an x86-64 build";
        if (!lacks) continue;
        if (!best) return fo_fail(e, FO_EUNSUPPORTED, "instruction set '%s': this CPU lacks %s", isa, lacks);
        break;
    }
    *ret = k;
    return FO_OK;
}
