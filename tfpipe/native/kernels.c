/* Chooses the functions for the instructions that the processor has. */
#include "kernels.h"

static const struct kernels KERNELS[] = {
    {"plain", decode_plain, stored_plain, idct_plain, h2v2_plain, ycc_plain, blend_plain, resize_plain, sum_plain,
     filter_plain, gray_plain, mirror_plain, mix_plain},
#if HAVE_AVX2
    {"avx2", decode_avx2, stored_avx2, idct_avx2, h2v2_avx2, ycc_avx2, blend_avx2, resize_avx2, sum_avx2, filter_avx2,
     gray_avx2, mirror_avx2, mix_avx2},
#elif HAVE_NEON
    {"neon", decode_neon, stored_neon, idct_neon, h2v2_neon, ycc_neon, blend_neon, resize_neon, sum_neon, filter_neon,
     gray_neon, mirror_neon, mix_neon},
#endif
};
static int simd_limit = 1; /* for tests */

int simd_level(void) {
#if HAVE_AVX2
    int available = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2");
    return available && __atomic_load_n(&simd_limit, __ATOMIC_RELAXED);
#elif HAVE_NEON
    return __atomic_load_n(&simd_limit, __ATOMIC_RELAXED);
#else
    return 0;
#endif
}

const struct kernels *tfpipe_kernels(void) { return KERNELS + simd_level(); }

const char *tfpipe_simd(void) { return KERNELS[simd_level()].name; }

int tfpipe_use_simd(int level) {
    __atomic_store_n(&simd_limit, level > 0, __ATOMIC_RELAXED);
    return simd_level();
}
