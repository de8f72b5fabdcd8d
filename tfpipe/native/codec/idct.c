/* The inverse DCT (ITU-T T.81, A.3.3): libjpeg-turbo's "islow" as its vector code does it, with 16-bit intermediates, two
 * blocks a call.
 *
 * Coefficients of a picture are within 1,200 or so. Forged ones may be beyond what 16 bits hold after the first pass,
 * where libjpeg-turbo's own implementations differ, too; but rarely they agree, and these pixels differ from theirs: of
 * a million damaged files, one (a block of DC and one coefficient, which both let wrap around). */
#include "blocks.h"

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
#elif HAVE_NEON
/* The most that a pass adds up, for outputs 1 and 2. It never wraps around, so instructions may round what they shift. */
_Static_assert((1LL << 15) * (8192 + F_1_847 + F_2_562 + (F_3_072 - F_2_562) + F_1_175 + (F_1_961 - F_1_175)) +
                       (1 << 17) <=
                   INT32_MAX,
               "a sum wraps around before it is rounded");

/* Factors, which instructions take by their number: of r2, r6, z3 and z4, and of r1, r3, r5 and r7. */
static const int16_t EVEN[8] = {F_0_541 + F_0_765, F_0_541, F_0_541 - F_1_847,
                                F_1_175 - F_1_961, F_1_175, F_1_175 - F_0_390};
static const int16_t ODD[8] = {-F_0_899,          F_1_501 - F_0_899, -F_2_562,
                               F_3_072 - F_2_562, F_2_053 - F_2_562, F_0_298 - F_0_899};

/* Even and odd parts of eight columns, four low and four high ones: outputs 0 to 3 are the sums, 7 to 4 the
 * differences. */
struct parts {
    int32x4_t even[2][4], odd[2][4];
};

#define WIDEN_LOW(x) vshll_n_s16(vget_low_s16(x), 13)
#define WIDEN_HIGH(x) vshll_high_n_s16(x, 13)
#define MUL_LOW(x, factors, k) vmull_laneq_s16(vget_low_s16(x), factors, k)
#define MUL_HIGH(x, factors, k) vmull_high_laneq_s16(x, factors, k)
#define ADD_LOW(sum, x, factors, k) vmlal_laneq_s16(sum, vget_low_s16(x), factors, k)
#define ADD_HIGH(sum, x, factors, k) vmlal_high_laneq_s16(sum, x, factors, k)
#define HALF_PARTS(HALF, even, odd)                                                                                 \
    do {                                                                                                            \
        int32x4_t e0 = WIDEN_##HALF(sum), e1 = sparse ? e0 : WIDEN_##HALF(difference);                              \
        int32x4_t e3 = MUL_##HALF(r[2], a, 0), e2 = MUL_##HALF(r[2], a, 1);                                         \
        int32x4_t y3 = ADD_##HALF(MUL_##HALF(z3, a, 3), z4, a, 4), y4 = ADD_##HALF(MUL_##HALF(z3, a, 4), z4, a, 5); \
        odd[0] = ADD_##HALF(y4, r[1], b, 1), odd[1] = ADD_##HALF(y3, r[3], b, 3);                                   \
        odd[2] = ADD_##HALF(y4, r[3], b, 2), odd[3] = ADD_##HALF(y3, r[1], b, 0);                                   \
        if (!sparse) {                                                                                              \
            e3 = ADD_##HALF(e3, r[6], a, 1), e2 = ADD_##HALF(e2, r[6], a, 2);                                       \
            odd[0] = ADD_##HALF(odd[0], r[7], b, 0), odd[1] = ADD_##HALF(odd[1], r[5], b, 2);                       \
            odd[2] = ADD_##HALF(odd[2], r[5], b, 4), odd[3] = ADD_##HALF(odd[3], r[7], b, 5);                       \
        }                                                                                                           \
        even[0] = vaddq_s32(e0, e3), even[1] = vaddq_s32(e1, e2);                                                   \
        even[2] = vsubq_s32(e1, e2), even[3] = vsubq_s32(e0, e3);                                                   \
    } while (0)

/* sparse: r[4] to r[7] are zero, and are not read. */
INLINE struct parts parts_neon(const int16x8_t *r, int sparse) {
    const int16x8_t a = vld1q_s16(EVEN), b = vld1q_s16(ODD);
    int16x8_t sum = sparse ? r[0] : vaddq_s16(r[0], r[4]), difference = sparse ? r[0] : vsubq_s16(r[0], r[4]);
    int16x8_t z3 = sparse ? r[3] : vaddq_s16(r[7], r[3]), z4 = sparse ? r[1] : vaddq_s16(r[5], r[1]);
    struct parts parts;
    HALF_PARTS(LOW, parts.even[0], parts.odd[0]);
    HALF_PARTS(HIGH, parts.even[1], parts.odd[1]);
    return parts;
}

/* Transposes 8 rows of 8 values, or of 4 values if there are 4 vectors: three times, values of the first and the second
 * half take turns. */
INLINE void transpose_neon(int16x8_t *r, int vectors) {
    for (int step = 0; step < 3; step++) {
        int16x8_t turns[8];
        for (int i = 0; i < vectors / 2; i++) {
            turns[2 * i] = vzip1q_s16(r[i], r[vectors / 2 + i]);
            turns[2 * i + 1] = vzip2q_s16(r[i], r[vectors / 2 + i]);
        }
        for (int i = 0; i < vectors; i++) r[i] = turns[i];
    }
}

/* The first pass, over columns; its outputs are transposed. sparse: the block is zero outside of 4 x 4. */
INLINE void columns_neon(int16x8_t *r, int sparse) {
    const struct parts p = parts_neon(r, sparse);
    int16x4_t low[8], high[8];
    for (int i = 0; i < 4; i++) {
        low[i] = vqrshrn_n_s32(vaddq_s32(p.even[0][i], p.odd[0][i]), 11);
        low[7 - i] = vqrshrn_n_s32(vsubq_s32(p.even[0][i], p.odd[0][i]), 11);
        high[i] = vqrshrn_n_s32(vaddq_s32(p.even[1][i], p.odd[1][i]), 11);
        high[7 - i] = vqrshrn_n_s32(vsubq_s32(p.even[1][i], p.odd[1][i]), 11);
    }
    for (int i = 0; i < (sparse ? 4 : 8); i++)
        r[i] = sparse ? vcombine_s16(low[2 * i], low[2 * i + 1]) : vcombine_s16(low[i], high[i]);
    transpose_neon(r, sparse ? 4 : 8);
}

/* The second pass, and the shift by 18 bits: by 16 as sums are added, which leaves 16, and by 2. */
INLINE void rows_neon(const int16x8_t *r, uint8_t *out, size_t pitch, int sparse) {
    const struct parts p = parts_neon(r, sparse);
    int16x8_t columns[8];
    for (int i = 0; i < 4; i++) {
        columns[i] = vcombine_s16(vaddhn_s32(p.even[0][i], p.odd[0][i]), vaddhn_s32(p.even[1][i], p.odd[1][i]));
        columns[7 - i] = vcombine_s16(vsubhn_s32(p.even[0][i], p.odd[0][i]), vsubhn_s32(p.even[1][i], p.odd[1][i]));
    }
    int8x16_t pairs[4], turns[4];
    for (int i = 0; i < 4; i++)
        pairs[i] = vcombine_s8(vqrshrn_n_s16(columns[2 * i], 2), vqrshrn_n_s16(columns[2 * i + 1], 2));
    for (int step = 0; step < 3; step++) { /* as in transpose_neon */
        for (int i = 0; i < 2; i++) {
            turns[2 * i] = vzip1q_s8(pairs[i], pairs[2 + i]);
            turns[2 * i + 1] = vzip2q_s8(pairs[i], pairs[2 + i]);
        }
        for (int i = 0; i < 4; i++) pairs[i] = turns[i];
    }
    for (int i = 0; i < 4; i++, out += 2 * pitch) {
        uint8x16_t levels = veorq_u8(vreinterpretq_u8_s8(pairs[i]), vdupq_n_u8(128));
        vst1_u8(out, vget_low_u8(levels));
        vst1_u8(out + pitch, vget_high_u8(levels));
    }
}

INLINE void block_neon(const int16_t *block, const uint16_t *factors, uint8_t *out, size_t pitch, int sparse) {
    int16x8_t r[8];
    for (int i = 0; i < (sparse ? 4 : 8); i++)
        r[i] = vmulq_s16(vld1q_s16(block + 8 * i), vreinterpretq_s16_u16(vld1q_u16(factors + 8 * i)));
    columns_neon(r, sparse);
    rows_neon(r, out, pitch, sparse);
}

void idct_neon(const struct block *left, const struct block *right, const uint16_t *factors, uint8_t *out,
               size_t pitch) {
    for (int i = 0; i < 2; i++, left = right, out += 8) {
        if (left->end > 10) {
            block_neon(left->coefficients, factors, out, pitch, 0);
        } else if (left->end > 1) { /* places 1 to 9 are within 4 x 4 */
            block_neon(left->coefficients, factors, out, pitch, 1);
        } else {
            uint8x8_t levels = vdup_n_u8((uint8_t)flat_value(left->coefficients[0], factors[0]));
            for (int row = 0; row < 8; row++) vst1_u8(out + pitch * (size_t)row, levels);
        }
    }
}
#endif
