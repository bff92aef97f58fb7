/* The quantised dots of the NEON overlay for CPUs with the dot-product instruction (Armv8.2 on; Cortex-A55 and A76, Neoverse, every Apple M):
 * the same templates, compiled with it. */
#include "foundry/cpu/kernels.h"

#if defined(__aarch64__) && defined(__ARM_FEATURE_DOTPROD)
#include "foundry/cpu/neon_k.h"
#include "foundry/cpu/neon_legacy.h"

bool fo_cpu_dotprod(struct fo_cpu_kernels *k) {
    k->isa = "dotprod";
    fill_legacy(k);
    fill_256(k);
    return true;
}
#else
bool fo_cpu_dotprod(struct fo_cpu_kernels *k) {
    (void)k;
    return false;
}
#endif
