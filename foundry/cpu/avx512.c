#include "foundry/cpu/kernels.h"

bool fo_cpu_avx512(struct fo_cpu_kernels *k) {
    (void)k;
    return false;
}
