/* foundry/cpu/avx512.c on a CPU that has AVX2 only, by way of SIMDe (Debian: libsimde-dev). */
#pragma once
#include <stdbool.h>

struct fo_cpu_kernels;

/* As fo_cpu_avx512, computing the same by emulation; false when this build has no SIMDe or is for another architecture. */
bool fo_cpu_avx512_emulated(struct fo_cpu_kernels *k);
