/* Compiles the overlay's own source with every AVX-512 intrinsic replaced: by SIMDe's where it has one, by the few below where not. */
#include "tests/support/avx512_emulated.h"

#if defined(__AVX2__) && __has_include(<simde/x86/avx512.h>)
#define SIMDE_ENABLE_NATIVE_ALIASES
#define SIMDE_NO_CHECK_IMMEDIATE_CONSTANT /* clang asks before inlining has made the shifts constant */
#include <simde/x86/avx512.h>
#include <string.h>

static inline __m512i emulated_maskz_loadu_epi8(uint64_t mask, const unsigned char *p) {
    unsigned char bytes[64] = { 0 };
    for (int i = 0; i < 64; i++)
        if (mask >> i & 1) bytes[i] = p[i];
    return _mm512_loadu_si512(bytes);
}

static inline __m512 emulated_cvtph_ps(__m256i h) {
    float f[16];
    _mm256_storeu_ps(f, _mm256_cvtph_ps(_mm256_castsi256_si128(h)));
    _mm256_storeu_ps(f + 8, _mm256_cvtph_ps(_mm256_extracti128_si256(h, 1)));
    return _mm512_loadu_ps(f);
}

static inline __m512 emulated_cvtepi32_ps(__m512i v) {
    int32_t i[16];
    float f[16];
    _mm512_storeu_si512(i, v);
    for (int l = 0; l < 16; l++) f[l] = (float)i[l];
    return _mm512_loadu_ps(f);
}

static inline __m512i emulated_cvtepi8_epi32(__m128i v) {
    int8_t i[16];
    int32_t w[16];
    _mm_storeu_si128((__m128i *)(void *)i, v);
    for (int l = 0; l < 16; l++) w[l] = i[l];
    return _mm512_loadu_si512(w);
}

static inline __m512i emulated_cvtepi16_epi32(__m256i v) {
    int16_t i[16];
    int32_t w[16];
    _mm256_storeu_si256((__m256i *)(void *)i, v);
    for (int l = 0; l < 16; l++) w[l] = i[l];
    return _mm512_loadu_si512(w);
}

static inline __m512i emulated_cvtps_epi32(__m512 v) {
    float f[16];
    int32_t i[16];
    _mm512_storeu_ps(f, v);
    for (int l = 0; l < 16; l += 8) _mm256_storeu_si256((__m256i *)(void *)(i + l), _mm256_cvtps_epi32(_mm256_loadu_ps(f + l)));
    return _mm512_loadu_si512(i);
}

#undef _mm512_maskz_loadu_epi8
#undef _mm512_cvtps_epi32
#define _mm512_cvtps_epi32 emulated_cvtps_epi32
#undef _mm512_cvtph_ps
#undef _mm512_cvtepi32_ps
#undef _mm512_cvtepi8_epi32
#undef _mm512_cvtepi16_epi32
#define _mm512_maskz_loadu_epi8 emulated_maskz_loadu_epi8
#define _mm512_cvtph_ps emulated_cvtph_ps
#define _mm512_cvtepi32_ps emulated_cvtepi32_ps
#define _mm512_cvtepi8_epi32 emulated_cvtepi8_epi32
#define _mm512_cvtepi16_epi32 emulated_cvtepi16_epi32

#define FO_EMULATE_AVX512
#define fo_cpu_avx512 fo_cpu_avx512_emulated
#define fo_cpu_avx512_legacy fo_cpu_avx512_legacy_emulated
#define fo_cpu_avx512_k fo_cpu_avx512_k_emulated
#define fo_cpu_avx512_gemm fo_cpu_avx512_gemm_emulated
#define fo_cpu_avx512_gemm_k fo_cpu_avx512_gemm_k_emulated
#define fo_cpu_avx512_attn fo_cpu_avx512_attn_emulated
#include "foundry/cpu/avx512.c"
#include "foundry/cpu/avx512_attn.c"
#include "foundry/cpu/avx512_k.c"
#include "foundry/cpu/avx512_gemm.c"
#include "foundry/cpu/avx512_gemm_k.c"
#include "foundry/cpu/avx512_legacy.c"
#else
bool fo_cpu_avx512_emulated(struct fo_cpu_kernels *k) {
    (void)k;
    return false;
}
#endif
