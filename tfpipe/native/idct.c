/* The inverse DCT (ITU-T T.81, A.3.3): libjpeg-turbo's "islow" as its vector code does it, with 16-bit intermediates, two blocks a call.
 *
 * Coefficients of a picture are within 1,200 or so. Forged ones may be beyond what 16 bits hold after the first pass,
 * where libjpeg-turbo's own implementations differ, too. */
#include "core.h"

#include <string.h>

#if HAVE_AVX2
#include <immintrin.h>
#endif

/* Constants of jidctint.c, 13 fractional bits. */
enum {
    F_0_298 = 2446,
    F_0_390 = 3196,
    F_0_541 = 4433,
    F_0_765 = 6270,
    F_0_899 = 7373,
    F_1_175 = 9633,
    F_1_501 = 12299,
    F_1_847 = 15137,
    F_1_961 = 16069,
    F_2_053 = 16819,
    F_2_562 = 20995,
    F_3_072 = 25172
};

/* Returns a block's only value from its DC: of all its pixels. */
static inline int flat_value(int16_t dc, uint16_t factor) {
    int scaled = (int16_t)((uint32_t)(int16_t)((uint32_t)dc * factor) << 2);
    int value = (scaled + 16) >> 5;
    return (value < -128 ? -128 : value > 127 ? 127 : value) + 128;
}

static int16_t saturate(int32_t value) {
    return (int16_t)(value < INT16_MIN ? INT16_MIN : value > INT16_MAX ? INT16_MAX : value);
}

/* Sum and difference as 16-bit vector code has them; products of 16-bit factors, which wrap around in 32. */
static int32_t add16(int32_t a, int32_t b) { return (int16_t)(uint16_t)(a + b); }
static uint32_t mul(int32_t a, int32_t b) { return (uint32_t)a * (uint32_t)b; }

/* Transforms eight values, `step` apart. */
static void pass_plain(int16_t *at, int step, int shift) {
    int32_t r0 = at[0], r1 = at[step], r2 = at[2 * step], r3 = at[3 * step];
    int32_t r4 = at[4 * step], r5 = at[5 * step], r6 = at[6 * step], r7 = at[7 * step];
    uint32_t e3 = mul(r2, F_0_541 + F_0_765) + mul(r6, F_0_541), e2 = mul(r2, F_0_541) + mul(r6, F_0_541 - F_1_847);
    uint32_t e0 = mul(add16(r0, r4), 8192) + (1u << (shift - 1)), e1 = mul(add16(r0, -r4), 8192) + (1u << (shift - 1));
    uint32_t even[4] = {e0 + e3, e1 + e2, e1 - e2, e0 - e3};
    int32_t z3 = add16(r7, r3), z4 = add16(r5, r1);
    uint32_t y3 = mul(z3, F_1_175 - F_1_961) + mul(z4, F_1_175), y4 = mul(z3, F_1_175) + mul(z4, F_1_175 - F_0_390);
    uint32_t odd[4] = {
        mul(r7, -F_0_899) + mul(r1, F_1_501 - F_0_899) + y4,
        mul(r5, -F_2_562) + mul(r3, F_3_072 - F_2_562) + y3,
        mul(r5, F_2_053 - F_2_562) + mul(r3, -F_2_562) + y4,
        mul(r7, F_0_298 - F_0_899) + mul(r1, -F_0_899) + y3,
    };
    for (int i = 0; i < 4; i++) {
        at[i * step] = saturate((int32_t)(even[i] + odd[i]) >> shift);
        at[(7 - i) * step] = saturate((int32_t)(even[i] - odd[i]) >> shift);
    }
}

static void block_plain(const int16_t *block, const uint16_t *factors, uint8_t *out, size_t pitch) {
    int16_t work[BLOCK];
    for (int i = 0; i < BLOCK; i++) work[i] = (int16_t)((uint32_t)block[i] * factors[i]);
    for (int i = 0; i < 8; i++) pass_plain(work + i, 8, 11);
    for (int i = 0; i < 8; i++) pass_plain(work + 8 * i, 1, 18);
    for (int i = 0; i < BLOCK; i++) {
        int value = work[i] < -128 ? -128 : work[i] > 127 ? 127 : work[i];
        out[pitch * (size_t)(i >> 3) + (size_t)(i & 7)] = (uint8_t)(value + 128);
    }
}

void idct_plain(const struct block *left, const struct block *right, const uint16_t *factors, uint8_t *out,
                size_t pitch) {
    for (int i = 0; i < 2; i++, left = right, out += 8) {
        if (left->end > 1)
            block_plain(left->coefficients, factors, out, pitch);
        else
            for (int row = 0; row < 8; row++)
                memset(out + pitch * (size_t)row, flat_value(left->coefficients[0], factors[0]), 8);
    }
}

#if HAVE_AVX2
/* Two blocks, one in each 128-bit lane. */
#define PAIR16(a, b) _mm256_set1_epi32((int)((uint32_t)(uint16_t)(int16_t)(a) | (uint32_t)(uint16_t)(int16_t)(b) << 16))
#define MADD(x, a, b) _mm256_madd_epi16(x, PAIR16(a, b))
#define ADD _mm256_add_epi32
#define SUB _mm256_sub_epi32

/* Four columns of each block, interleaved by `mix`: mix(r2, r6), ... to outputs 0 to 7 as 32-bit values. */
#define HALF_PASS(mix, o)                                                                               \
    do {                                                                                                \
        __m256i x26 = mix(r[2], r[6]), x04 = mix(sum, difference), x34 = mix(z3, z4);                   \
        __m256i x71 = mix(r[7], r[1]), x53 = mix(r[5], r[3]);                                           \
        __m256i e3 = MADD(x26, F_0_541 + F_0_765, F_0_541), e2 = MADD(x26, F_0_541, F_0_541 - F_1_847); \
        __m256i e0 = ADD(MADD(x04, 8192, 0), round), e1 = sparse ? e0 : ADD(MADD(x04, 0, 8192), round); \
        __m256i y3 = MADD(x34, F_1_175 - F_1_961, F_1_175), y4 = MADD(x34, F_1_175, F_1_175 - F_0_390); \
        __m256i d0 = ADD(MADD(x71, -F_0_899, F_1_501 - F_0_899), y4);                                   \
        __m256i d1 = ADD(MADD(x53, -F_2_562, F_3_072 - F_2_562), y3);                                   \
        __m256i d2 = ADD(MADD(x53, F_2_053 - F_2_562, -F_2_562), y4);                                   \
        __m256i d3 = ADD(MADD(x71, F_0_298 - F_0_899, -F_0_899), y3);                                   \
        __m256i t0 = ADD(e0, e3), t1 = ADD(e1, e2), t2 = SUB(e1, e2), t3 = SUB(e0, e3);                 \
        o[0] = _mm256_srai_epi32(ADD(t0, d0), shift), o[7] = _mm256_srai_epi32(SUB(t0, d0), shift);     \
        o[1] = _mm256_srai_epi32(ADD(t1, d1), shift), o[6] = _mm256_srai_epi32(SUB(t1, d1), shift);     \
        o[2] = _mm256_srai_epi32(ADD(t2, d2), shift), o[5] = _mm256_srai_epi32(SUB(t2, d2), shift);     \
        o[3] = _mm256_srai_epi32(ADD(t3, d3), shift), o[4] = _mm256_srai_epi32(SUB(t3, d3), shift);     \
    } while (0)

/* One pass over columns; sparse: rows 4 to 7 are zero, which spares the compiler what is multiplied by them. */
AVX2 INLINE void pass_avx2(__m256i *r, int shift, int sparse) {
    __m256i round = _mm256_set1_epi32(1 << (shift - 1)), low[8], high[8];
    __m256i sum = sparse ? r[0] : _mm256_add_epi16(r[0], r[4]), difference = _mm256_sub_epi16(r[0], r[4]);
    __m256i z3 = sparse ? r[3] : _mm256_add_epi16(r[7], r[3]), z4 = sparse ? r[1] : _mm256_add_epi16(r[5], r[1]);
    HALF_PASS(_mm256_unpacklo_epi16, low);
    HALF_PASS(_mm256_unpackhi_epi16, high);
    for (int i = 0; i < 8; i++) r[i] = _mm256_packs_epi32(low[i], high[i]);
}

AVX2 INLINE void transpose_avx2(__m256i *r) {
    __m256i a[8], b[8];
    for (int i = 0; i < 4; i++) {
        a[2 * i] = _mm256_unpacklo_epi16(r[2 * i], r[2 * i + 1]);
        a[2 * i + 1] = _mm256_unpackhi_epi16(r[2 * i], r[2 * i + 1]);
    }
    for (int i = 0; i < 2; i++) {
        b[2 * i] = _mm256_unpacklo_epi32(a[i], a[2 + i]);
        b[2 * i + 1] = _mm256_unpackhi_epi32(a[i], a[2 + i]);
        b[4 + 2 * i] = _mm256_unpacklo_epi32(a[4 + i], a[6 + i]);
        b[4 + 2 * i + 1] = _mm256_unpackhi_epi32(a[4 + i], a[6 + i]);
    }
    for (int i = 0; i < 4; i++) {
        r[2 * i] = _mm256_unpacklo_epi64(b[i], b[4 + i]);
        r[2 * i + 1] = _mm256_unpackhi_epi64(b[i], b[4 + i]);
    }
}

AVX2 INLINE void blocks_avx2(const int16_t *left, const int16_t *right, const uint16_t *factors, uint8_t *out,
                             size_t pitch, int sparse) {
    __m256i r[8];
    for (int i = 0; i < 8; i++) {
        if (sparse && i > 3) {
            r[i] = _mm256_setzero_si256();
            continue;
        }
        __m256i row = _mm256_castsi128_si256(_mm_load_si128((const __m128i *)(const void *)(left + 8 * i)));
        row = _mm256_inserti128_si256(row, _mm_load_si128((const __m128i *)(const void *)(right + 8 * i)), 1);
        __m128i factor = _mm_load_si128((const __m128i *)(const void *)(factors + 8 * i));
        r[i] = _mm256_mullo_epi16(row, _mm256_broadcastsi128_si256(factor));
    }
    pass_avx2(r, 11, sparse);
    transpose_avx2(r);
    if (sparse) r[4] = r[5] = r[6] = r[7] = _mm256_setzero_si256(); /* columns that were zero are so still */
    pass_avx2(r, 18, sparse);
    transpose_avx2(r);
    const __m256i centre = _mm256_set1_epi8((char)128);
    for (int i = 0; i < 8; i += 2) {
        __m256i rows = _mm256_add_epi8(_mm256_packs_epi16(r[i], r[i + 1]), centre);
        rows = _mm256_permute4x64_epi64(rows, 0xd8); /* row i of both blocks, row i + 1 of both */
        _mm_storeu_si128((__m128i *)(void *)(out + pitch * (size_t)i), _mm256_castsi256_si128(rows));
        _mm_storeu_si128((__m128i *)(void *)(out + pitch * (size_t)(i + 1)), _mm256_extracti128_si256(rows, 1));
    }
}

AVX2 void idct_avx2(const struct block *left, const struct block *right, const uint16_t *factors, uint8_t *out,
                    size_t pitch) {
    const int16_t *a = left->coefficients, *b = right->coefficients;
    if (left->end > 10 || right->end > 10) {
        blocks_avx2(a, b, factors, out, pitch, 0);
    } else if (left->end > 1 || right->end > 1) { /* places 1 to 9 are within 4 x 4 */
        blocks_avx2(a, b, factors, out, pitch, 1);
    } else {
        uint64_t ones = 0x0101010101010101u, x = ones * (uint64_t)flat_value(a[0], factors[0]);
        __m128i value = _mm_set_epi64x((int64_t)(ones * (uint64_t)flat_value(b[0], factors[0])), (int64_t)x);
        for (int i = 0; i < 8; i++) _mm_storeu_si128((__m128i *)(void *)(out + pitch * (size_t)i), value);
    }
}
#endif
