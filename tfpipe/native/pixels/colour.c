/* Upsamples chroma and converts YCbCr to RGB, as libjpeg-turbo does. */
#include "rows.h"

/* Triangle filters of libjpeg's "fancy" upsampling. At the image's edges the caller repeats the outermost sample, which
 * gives what libjpeg's special cases do. */
void h2v1(uint8_t *restrict out, const uint8_t *near, int samples) {
    for (int i = 0; i < samples; i++) {
        out[2 * i] = (uint8_t)((uint16_t)(3 * near[i] + near[i - 1] + 1) >> 2);
        out[2 * i + 1] = (uint8_t)((uint16_t)(3 * near[i] + near[i + 1] + 2) >> 2);
    }
}

void h1v2(uint8_t *restrict out, const uint8_t *near, const uint8_t *far, int samples, int bias) {
    for (int i = 0; i < samples; i++) out[i] = (uint8_t)((uint16_t)(3 * near[i] + far[i] + bias) >> 2);
}

void h2v2_plain(uint8_t *out, const uint8_t *near, const uint8_t *far, int samples) {
    for (int i = 0; i < samples; i++) {
        int before = 3 * near[i - 1] + far[i - 1], here = 3 * near[i] + far[i], after = 3 * near[i + 1] + far[i + 1];
        out[2 * i] = (uint8_t)((3 * here + before + 8) >> 4);
        out[2 * i + 1] = (uint8_t)((3 * here + after + 7) >> 4);
    }
}

void ycc_plain(uint8_t *out, const uint8_t *y, const uint8_t *cb, const uint8_t *cr, int n, int mirrored) {
    for (int i = 0; i < n; i++) {
        uint8_t *to = out + 3 * (mirrored ? n - 1 - i : i);
        int b = cb[i] - 128, r = cr[i] - 128;
        to[0] = clip(y[i] + ((91881 * r + 32768) >> 16));
        to[1] = clip(y[i] + ((-22554 * b - 46802 * r + 32768) >> 16));
        to[2] = clip(y[i] + ((116130 * b + 32768) >> 16));
    }
}

void rgb_row(uint8_t *restrict out, const uint8_t *r, const uint8_t *g, const uint8_t *b, int n, int mirrored) {
    for (int i = 0; i < n; i++) {
        uint8_t *to = out + 3 * (mirrored ? n - 1 - i : i);
        to[0] = r[i], to[1] = g[i], to[2] = b[i];
    }
}

void ink_row(uint8_t *restrict out, const uint8_t *restrict black, int n, int mirrored, int inverted) {
    for (int i = 0; i < n; i++) {
        uint8_t *to = out + 3 * (mirrored ? n - 1 - i : i);
        for (int c = 0; c < 3; c++) to[c] = (uint8_t)((inverted ? 255 - to[c] : to[c]) * black[i] / 255);
    }
}

void rgb_to_gray(uint8_t *restrict out, const uint8_t *r, const uint8_t *g, const uint8_t *b, int n, int mirrored) {
    for (int i = 0; i < n; i++)
        out[mirrored ? n - 1 - i : i] = (uint8_t)((19595 * r[i] + 38470 * g[i] + 7471 * b[i] + 32768) >> 16);
}

#if HAVE_AVX2
AVX2 INLINE __m256i triple(__m256i x) { return _mm256_add_epi16(x, _mm256_add_epi16(x, x)); }

AVX2 void h2v2_avx2(uint8_t *out, const uint8_t *near, const uint8_t *far, int samples) {
    for (int i = 0; i < samples; i += 16) {
        __m256i before = _mm256_add_epi16(triple(load16(near + i - 1)), load16(far + i - 1));
        __m256i after = _mm256_add_epi16(triple(load16(near + i + 1)), load16(far + i + 1));
        __m256i here = triple(_mm256_add_epi16(triple(load16(near + i)), load16(far + i)));
        __m256i even = _mm256_add_epi16(_mm256_add_epi16(here, before), _mm256_set1_epi16(8));
        __m256i odd = _mm256_add_epi16(_mm256_add_epi16(here, after), _mm256_set1_epi16(7));
        odd = _mm256_slli_epi16(_mm256_srli_epi16(odd, 4), 8);
        _mm256_storeu_si256((__m256i *)(void *)(out + 2 * i), _mm256_or_si256(_mm256_srli_epi16(even, 4), odd));
    }
}

AVX2 INLINE __m128i bytes(__m256i x) { /* 16-bit values as saturated bytes */
    return _mm_packus_epi16(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
}

/* Stores 16 RGB pixels, or the first n of them; mirrored: pixel 0 last. */
AVX2 INLINE void store_rgb(uint8_t *out, __m128i r, __m128i g, __m128i b, int n, int mirrored) {
#define N (-1)
    const __m128i r0 = _mm_setr_epi8(0, N, N, 1, N, N, 2, N, N, 3, N, N, 4, N, N, 5);
    const __m128i g0 = _mm_setr_epi8(N, 0, N, N, 1, N, N, 2, N, N, 3, N, N, 4, N, N);
    const __m128i b0 = _mm_setr_epi8(N, N, 0, N, N, 1, N, N, 2, N, N, 3, N, N, 4, N);
    const __m128i r1 = _mm_setr_epi8(N, N, 6, N, N, 7, N, N, 8, N, N, 9, N, N, 10, N);
    const __m128i g1 = _mm_setr_epi8(5, N, N, 6, N, N, 7, N, N, 8, N, N, 9, N, N, 10);
    const __m128i b1 = _mm_setr_epi8(N, 5, N, N, 6, N, N, 7, N, N, 8, N, N, 9, N, N);
    const __m128i r2 = _mm_setr_epi8(N, 11, N, N, 12, N, N, 13, N, N, 14, N, N, 15, N, N);
    const __m128i g2 = _mm_setr_epi8(N, N, 11, N, N, 12, N, N, 13, N, N, 14, N, N, 15, N);
    const __m128i b2 = _mm_setr_epi8(10, N, N, 11, N, N, 12, N, N, 13, N, N, 14, N, N, 15);
#undef N
    if (mirrored) {
        const __m128i turn = _mm_setr_epi8(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
        r = _mm_shuffle_epi8(r, turn);
        g = _mm_shuffle_epi8(g, turn);
        b = _mm_shuffle_epi8(b, turn);
    }
#define TRIPLE(x, y, z) \
    _mm_or_si128(_mm_or_si128(_mm_shuffle_epi8(r, x), _mm_shuffle_epi8(g, y)), _mm_shuffle_epi8(b, z))
    uint8_t last[48], *to = n < 16 ? last : out;
    _mm_storeu_si128((__m128i *)(void *)to, TRIPLE(r0, g0, b0));
    _mm_storeu_si128((__m128i *)(void *)(to + 16), TRIPLE(r1, g1, b1));
    _mm_storeu_si128((__m128i *)(void *)(to + 32), TRIPLE(r2, g2, b2));
#undef TRIPLE
    if (n < 16) memcpy(out, mirrored ? last + 3 * (16 - n) : last, 3 * (size_t)n);
}

/* The target of pixels i to i + 15, as far as they are among the n; mirrored ones end before those of the last call. */
INLINE uint8_t *place(uint8_t *out, int i, int n, int mirrored) {
    return out + 3 * (!mirrored ? i : n - i > 16 ? n - i - 16 : 0);
}

/* 16-bit arithmetic of jdcolext-avx2: products by mulhi of doubled chroma, as the factors exceed 15 bits. */
AVX2 INLINE void ycc_any(uint8_t *out, const uint8_t *y, const uint8_t *cb, const uint8_t *cr, int n, int mirrored) {
    const __m256i centre = _mm256_set1_epi16(128), one = _mm256_set1_epi16(1), half = _mm256_set1_epi32(1 << 15);
    const __m256i green = _mm256_set1_epi32((int)((uint32_t)(uint16_t)-22554 | (uint32_t)18734 << 16));
    for (int i = 0; i < n; i += 16) {
        __m256i luma = load16(y + i);
        __m256i b = _mm256_sub_epi16(load16(cb + i), centre), r = _mm256_sub_epi16(load16(cr + i), centre);
        __m256i b2 = _mm256_add_epi16(b, b), r2 = _mm256_add_epi16(r, r);
        /* 1.772 = 2 - 0.228; 1.402 = 1 + 0.402; -0.714 = 0.286 - 1 */
        __m256i blue = _mm256_mulhi_epi16(b2, _mm256_set1_epi16(-14942));
        blue = _mm256_add_epi16(_mm256_srai_epi16(_mm256_add_epi16(blue, one), 1), b2);
        __m256i red = _mm256_mulhi_epi16(r2, _mm256_set1_epi16(26345));
        red = _mm256_add_epi16(_mm256_srai_epi16(_mm256_add_epi16(red, one), 1), r);
        __m256i low = _mm256_madd_epi16(_mm256_unpacklo_epi16(b, r), green);
        __m256i high = _mm256_madd_epi16(_mm256_unpackhi_epi16(b, r), green);
        low = _mm256_srai_epi32(_mm256_add_epi32(low, half), 16);
        high = _mm256_srai_epi32(_mm256_add_epi32(high, half), 16);
        __m256i g = _mm256_sub_epi16(_mm256_packs_epi32(low, high), r);
        store_rgb(place(out, i, n, mirrored), bytes(_mm256_add_epi16(luma, red)), bytes(_mm256_add_epi16(luma, g)),
                  bytes(_mm256_add_epi16(luma, blue)), n - i, mirrored);
    }
}

AVX2 void ycc_avx2(uint8_t *out, const uint8_t *y, const uint8_t *cb, const uint8_t *cr, int n, int mirrored) {
    if (mirrored)
        ycc_any(out, y, cb, cr, n, 1);
    else
        ycc_any(out, y, cb, cr, n, 0);
}
#elif HAVE_NEON
/* Sixteen samples as 16-bit values. */
struct samples {
    uint16x8_t low, high;
};

INLINE struct samples between(const uint8_t *near, const uint8_t *far) { /* 3 * near + far */
    const uint8x16_t a = vld1q_u8(near), b = vld1q_u8(far), three = vdupq_n_u8(3);
    return (struct samples){vmlal_u8(vmovl_u8(vget_low_u8(b)), vget_low_u8(a), vget_low_u8(three)),
                            vmlal_high_u8(vmovl_high_u8(b), a, three)};
}

INLINE uint16x8_t thrice(uint16x8_t here, uint16x8_t next) { return vmlaq_n_u16(next, here, 3); }

void h2v2_neon(uint8_t *out, const uint8_t *near, const uint8_t *far, int samples) {
    const uint16x8_t bias = vdupq_n_u16(7);
    for (int i = 0; i < samples; i += 16) {
        struct samples before = between(near + i - 1, far + i - 1), here = between(near + i, far + i);
        struct samples after = between(near + i + 1, far + i + 1);
        uint8x16x2_t pairs;
        pairs.val[0] =
            vcombine_u8(vrshrn_n_u16(thrice(here.low, before.low), 4), vrshrn_n_u16(thrice(here.high, before.high), 4));
        pairs.val[1] = vcombine_u8(vshrn_n_u16(vaddq_u16(thrice(here.low, after.low), bias), 4),
                                   vshrn_n_u16(vaddq_u16(thrice(here.high, after.high), bias), 4));
        vst2q_u8(out + 2 * i, pairs);
    }
}

/* Eight pixels as 16-bit values, before they are clipped. */
struct wide {
    int16x8_t red, green, blue;
};

/* Products of factors that exceed 15 bits: 1.402 = 1 + 0.402; -0.714 = 0.286 - 1; 1.772 = 2 - 0.228. Those of one factor
 * are doubled, which leaves one bit more to be rounded off than the 16 of which an instruction takes the upper half. */
INLINE struct wide convert8(uint8x8_t y, uint8x8_t cb, uint8x8_t cr) {
    const uint8x8_t centre = vdup_n_u8(128);
    int16x8_t luma = vreinterpretq_s16_u16(vmovl_u8(y));
    int16x8_t b = vreinterpretq_s16_u16(vsubl_u8(cb, centre)), r = vreinterpretq_s16_u16(vsubl_u8(cr, centre));
    int32x4_t low = vmlal_n_s16(vmull_n_s16(vget_low_s16(b), -22554), vget_low_s16(r), 18734);
    int32x4_t high = vmlal_high_n_s16(vmull_high_n_s16(b, -22554), r, 18734);
    int16x8_t green = vcombine_s16(vrshrn_n_s32(low, 16), vrshrn_n_s32(high, 16));
    return (struct wide){
        vrsraq_n_s16(vaddq_s16(luma, r), vqdmulhq_n_s16(r, 26345), 1),
        vaddq_s16(vsubq_s16(luma, r), green),
        vrsraq_n_s16(vaddq_s16(luma, vaddq_s16(b, b)), vqdmulhq_n_s16(b, -14942), 1),
    };
}

INLINE uint8x16_t clipped(int16x8_t low, int16x8_t high) { return vcombine_u8(vqmovun_s16(low), vqmovun_s16(high)); }

INLINE void ycc_any(uint8_t *out, const uint8_t *y, const uint8_t *cb, const uint8_t *cr, int n, int mirrored) {
    for (int i = 0; i < n; i += 16) {
        uint8x16_t luma = vld1q_u8(y + i), blue = vld1q_u8(cb + i), red = vld1q_u8(cr + i);
        struct wide low = convert8(vget_low_u8(luma), vget_low_u8(blue), vget_low_u8(red));
        struct wide high = convert8(vget_high_u8(luma), vget_high_u8(blue), vget_high_u8(red));
        uint8x16x3_t rgb = {{clipped(low.red, high.red), clipped(low.green, high.green), clipped(low.blue, high.blue)}};
        if (mirrored)
            for (int c = 0; c < 3; c++) rgb.val[c] = reversed(rgb.val[c]);
        int count = n - i < 16 ? n - i : 16;
        uint8_t last[48], *to = out + 3 * (mirrored ? n - i - count : i);
        vst3q_u8(count < 16 ? last : to, rgb);
        if (count < 16) memcpy(to, mirrored ? last + 3 * (16 - count) : last, 3 * (size_t)count);
    }
}

void ycc_neon(uint8_t *out, const uint8_t *y, const uint8_t *cb, const uint8_t *cr, int n, int mirrored) {
    if (mirrored)
        ycc_any(out, y, cb, cr, n, 1);
    else
        ycc_any(out, y, cb, cr, n, 0);
}
#endif
