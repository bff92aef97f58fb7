/* Which kernels this CPU can run. Asked once per open: on x86 CPUID says what the CPU has and XCR0 whether the operating system keeps the
 * wide registers across a switch; on Arm the kernel says both in the auxiliary vector. NEON belongs to every 64-bit Arm CPU.
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
static const char *sse_lacks(void) {
    uint32_t a, b, c, d;
    if (!__get_cpuid(1, &a, &b, &c, &d)) return "CPUID";
    if (!(c & bit_SSSE3)) return "SSSE3";
    return c & bit_SSE4_1 ? NULL : "SSE4.1";
}

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
static const char *sse_lacks(void) {
    return "SSSE3";
}
static const char *avx2_lacks(void) {
    return "AVX2";
}
static const char *avx512_lacks(void) {
    return "AVX512F";
}
#endif

#if defined(__aarch64__)
#if defined(__linux__)
#include <sys/auxv.h>
static bool has_dotprod(void) {
    enum { ASIMDDP = 1 << 20 }; /* HWCAP_ASIMDDP of the kernel's asm/hwcap.h */
    return getauxval(AT_HWCAP) & ASIMDDP;
}
#else
static bool has_dotprod(void) {
    return false;
}
#endif
static const char *neon_lacks(void) {
    return NULL;
}
static const char *dotprod_lacks(void) {
    return has_dotprod() ? NULL : "SDOT";
}
#else
static const char *neon_lacks(void) {
    return "NEON";
}
static const char *dotprod_lacks(void) {
    return "SDOT";
}
#endif

/* An overlay goes on top of another, or (-1) of the reference. The best that a CPU has is the last. */
enum { SSE, AVX2, AVX512, NEON, DOTPROD, N_OVERLAYS };

static const struct {
    const char *name;
    int base;
    const char *(*lacks)(void);
    bool (*fill)(struct fo_cpu_kernels *k);
} overlays[N_OVERLAYS] = {
    [SSE] = { "sse", -1, sse_lacks, fo_cpu_sse },
    [AVX2] = { "avx2", -1, avx2_lacks, fo_cpu_avx2 },
    [AVX512] = { "avx512", AVX2, avx512_lacks, fo_cpu_avx512 },
    [NEON] = { "neon", -1, neon_lacks, fo_cpu_neon },
    [DOTPROD] = { "dotprod", NEON, dotprod_lacks, fo_cpu_dotprod },
};

const char *fo_cpu_overlay(int i) {
    return i < N_OVERLAYS ? overlays[i].name : NULL;
}

/* The table of overlay i (-1: the reference); what is lacking, or NULL. */
static const char *fill(int i, struct fo_cpu_kernels *k) {
    if (i < 0) {
        fo_cpu_ref(k);
        return NULL;
    }
    const char *lacks = fill(overlays[i].base, k);
    if (!lacks) lacks = overlays[i].lacks();
    if (!lacks && !overlays[i].fill(k)) lacks = "kernels in this build";
    return lacks;
}

int fo_cpu_kernels_for(const char *isa, struct fo_cpu_kernels *ret, struct fo_err *e) {
    struct fo_cpu_kernels k;
    int i = N_OVERLAYS - 1;
    bool blas = isa && strcmp(isa, "blas") == 0;
    if (!isa || blas || strcmp(isa, "auto") == 0) {
        while (fill(i, &k)) i--;
        if (blas && fo_cpu_blas(&k, e)) return e->code;
    } else {
        while (i >= 0 && strcmp(isa, overlays[i].name) != 0) i--;
        if (i < 0 && strcmp(isa, "scalar") != 0)
            return fo_fail(e, FO_EINVAL, "unknown instruction set '%s': auto, scalar, sse, avx2, avx512, neon or dotprod", isa);
        const char *lacks = fill(i, &k);
        if (lacks) return fo_fail(e, FO_EUNSUPPORTED, "instruction set '%s': this CPU lacks %s", isa, lacks);
    }
    *ret = k;
    return FO_OK;
}
