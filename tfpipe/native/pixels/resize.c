/* Sums of weighted pixels: first over rows, then along the row. Two taps, which is bilinear interpolation, have functions
 * of their own. */
#include "rows.h"

void blend_plain(int16_t *out, const uint8_t *a, const uint8_t *b, int n, int weight) {
    for (int i = 0; i < n; i++) {
        int low = a[i] << 7;
        out[i] = (int16_t)(low + ((((b[i] << 7) - low) * weight + (1 << 14)) >> 15));
    }
}

void resize_plain(uint8_t *out, const int16_t *row, const struct tap *taps, int width) {
    for (int i = 0; i < width; i++) {
        const int16_t *at = row + 3 * taps[i].low;
        for (int c = 0; c < 3; c++)
            out[3 * i + c] = (uint8_t)((at[c] * taps[i].weight[0] + at[3 + c] * taps[i].weight[1] + (1 << 20)) >> 21);
    }
}

void sum_plain(int16_t *out, const uint8_t *const *rows, const int16_t *weights, int taps, int n, int shift) {
    for (int i = 0; i < n; i++) {
        int sum = 1 << (shift - 1);
        for (int t = 0; t < taps; t++) sum += weights[t] * rows[t][i];
        out[i] = (int16_t)(sum >> shift);
    }
}

INLINE void filter_any(uint8_t *out, const int16_t *row, const struct axis *axis, int shift, int channels) {
    const int taps = axis->taps;
    const int16_t *weights = axis->weights;
    for (int i = 0; i < axis->size; i++, weights += taps) {
        const int16_t *at = row + channels * axis->low[i];
        for (int c = 0; c < channels; c++) {
            int sum = 1 << (shift - 1);
            for (int t = 0; t < taps; t++) sum += at[channels * t + c] * weights[t];
            out[channels * i + c] = clip(sum >> shift);
        }
    }
}

void filter_plain(uint8_t *out, const int16_t *row, const struct axis *axis, int shift) {
    filter_any(out, row, axis, shift, 3);
}

void resize_gray(uint8_t *out, const int16_t *row, const struct tap *taps, int width) {
    for (int i = 0; i < width; i++) {
        const int16_t *at = row + taps[i].low;
        out[i] = (uint8_t)((at[0] * taps[i].weight[0] + at[1] * taps[i].weight[1] + (1 << 20)) >> 21);
    }
}

void gray_plain(uint8_t *out, const int16_t *row, const struct axis *axis, int shift) {
    filter_any(out, row, axis, shift, 1);
}

void mirror_plain(uint8_t *out, const uint8_t *in, int n, int channels) {
    in += (n - 1) * channels;
    for (int i = 0; i < n; i++, out += channels, in -= channels)
        for (int c = 0; c < channels; c++) out[c] = in[c];
}

#if HAVE_AVX2
AVX2 void mirror_avx2(uint8_t *restrict out, const uint8_t *restrict in, int n, int channels) {
    const __m128i order = _mm_setr_epi8(13, 14, 15, 10, 11, 12, 7, 8, 9, 4, 5, 6, 1, 2, 3, -1);
    if (channels == 1) {
        for (int i = 0; i < n; i++) out[i] = in[n - 1 - i];
        return;
    }
    /* Five pixels at a time, of 16 bytes: a load takes the byte before them, a store the first of the next ones. */
    for (; n > 5; n -= 5, out += 15) {
        __m128i five = _mm_loadu_si128((const __m128i *)(const void *)(in + 3 * (n - 5) - 1));
        _mm_storeu_si128((__m128i *)(void *)out, _mm_shuffle_epi8(five, order));
    }
    for (; n > 0; n--, out += 3) memcpy(out, in + 3 * (n - 1), 3);
}

/* Returns 16 bytes with 7 fractional bits. */
AVX2 INLINE __m256i scaled(const uint8_t *at) { return _mm256_slli_epi16(load16(at), 7); }

AVX2 void blend_avx2(int16_t *out, const uint8_t *a, const uint8_t *b, int n, int weight) {
    __m256i share = _mm256_set1_epi16((short)weight); /* below 1 << 15 */
    for (int i = 0; i < n; i += 16) {
        __m256i low = scaled(a + i);
        if (weight) low = _mm256_add_epi16(low, _mm256_mulhrs_epi16(_mm256_sub_epi16(scaled(b + i), low), share));
        _mm256_storeu_si256((__m256i *)(void *)(out + i), low);
    }
}

AVX2 INLINE __m256i two_loads(const int16_t *low, const int16_t *high) {
    __m256i x = _mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)(const void *)low));
    return _mm256_inserti128_si256(x, _mm_loadu_si128((const __m128i *)(const void *)high), 1);
}

/* Of a pixel and the next one in each lane: pairs of the same colour. */
AVX2 INLINE __m256i pairs(__m256i pixels) {
    const __m128i order = _mm_setr_epi8(0, 1, 6, 7, 2, 3, 8, 9, 4, 5, 10, 11, -1, -1, -1, -1);
    return _mm256_shuffle_epi8(pixels, _mm256_broadcastsi128_si256(order));
}

/* Stores pixels i to i + 3, as far as they are among the `width`: sums of the first and third, and of the others. */
AVX2 INLINE void store_four(uint8_t *out, int i, int width, __m256i even, __m256i odd) {
    const __m128i order = _mm_setr_epi8(0, 1, 2, 4, 5, 6, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1);
    __m256i pixels = _mm256_packs_epi32(even, odd);
    pixels = _mm256_packus_epi16(pixels, pixels);
    pixels = _mm256_shuffle_epi8(pixels, _mm256_broadcastsi128_si256(order)); /* two pixels in each lane */
    uint8_t last[16], *to = i + 5 <= width ? out + 3 * i : last;              /* a store takes two bytes more */
    _mm_storel_epi64((__m128i *)(void *)to, _mm256_castsi256_si128(pixels));
    _mm_storel_epi64((__m128i *)(void *)(to + 6), _mm256_extracti128_si256(pixels, 1));
    /* cppcheck-suppress uninitvar; the stores have written it */
    if (to == last) memcpy(out + 3 * i, last, 3 * (size_t)(width - i < 4 ? width - i : 4));
}

AVX2 INLINE __m256i weigh(__m256i pixels, __m256i weights) { /* a pixel and the next one in each lane */
    __m256i sum = _mm256_madd_epi16(pairs(pixels), weights);
    return _mm256_srai_epi32(_mm256_add_epi32(sum, _mm256_set1_epi32(1 << 20)), 21);
}

AVX2 void resize_avx2(uint8_t *out, const int16_t *row, const struct tap *taps, int width) {
    /* Indices of the weights of four taps: of the first and the third, and of the others. */
    const __m256i first = _mm256_setr_epi32(1, 1, 1, 1, 5, 5, 5, 5), second = _mm256_setr_epi32(3, 3, 3, 3, 7, 7, 7, 7);
    for (int i = 0; i < width; i += 4) {
        const struct tap *t = taps + i;
        __m256i weights = _mm256_loadu_si256((const __m256i *)(const void *)t);
        __m256i even = two_loads(row + 3 * t[0].low, row + 3 * t[2].low);
        __m256i odd = two_loads(row + 3 * t[1].low, row + 3 * t[3].low);
        even = weigh(even, _mm256_permutevar8x32_epi32(weights, first));
        odd = weigh(odd, _mm256_permutevar8x32_epi32(weights, second));
        store_four(out, i, width, even, odd);
    }
}

AVX2 INLINE __m256i two_weights(const int16_t *at) { /* at[0] and at[1] in every 32 bits */
    int32_t both;
    memcpy(&both, at, sizeof both);
    return _mm256_set1_epi32(both);
}

/* Weighted sums of two pixels by colour: of those at `low` in the lower lane, of those at `high` in the upper one. */
AVX2 INLINE __m256i weighted(const int16_t *low, const int16_t *high, const int16_t *of_low, const int16_t *of_high) {
    __m256i weights = _mm256_blend_epi32(two_weights(of_low), two_weights(of_high), 0xf0);
    return _mm256_madd_epi16(pairs(two_loads(low, high)), weights);
}

AVX2 INLINE void filter_by(uint8_t *out, const int16_t *row, const struct axis *axis, int shift, int taps) {
    const __m256i half = _mm256_set1_epi32(1 << (shift - 1));
    const __m128i bits = _mm_cvtsi32_si128(shift);
    const int16_t *w = axis->weights;
    for (int i = 0; i < axis->size; i += 4, w += 4 * taps) {
        const int32_t *low = axis->low + i;
        __m256i even = half, odd = half;
        for (int t = 0; t < taps; t += 2) {
            const int16_t *at = row + 3 * t, *of = w + t;
            even = _mm256_add_epi32(even, weighted(at + 3 * low[0], at + 3 * low[2], of, of + 2 * taps));
            odd = _mm256_add_epi32(odd, weighted(at + 3 * low[1], at + 3 * low[3], of + taps, of + 3 * taps));
        }
        store_four(out, i, axis->size, _mm256_sra_epi32(even, bits), _mm256_sra_epi32(odd, bits));
    }
}

AVX2 void filter_avx2(uint8_t *out, const int16_t *row, const struct axis *axis, int shift) {
    switch (axis->taps) { /* loops of a known length take a fifth less time */
    case 2: filter_by(out, row, axis, shift, 2); break;
    case 4: filter_by(out, row, axis, shift, 4); break;
    case 6: filter_by(out, row, axis, shift, 6); break;
    case 8: filter_by(out, row, axis, shift, 8); break;
    default: filter_by(out, row, axis, shift, axis->taps);
    }
}

AVX2 INLINE __m128i load4(const int16_t *at) { return _mm_loadl_epi64((const __m128i *)(const void *)at); }

AVX2 INLINE __m128i load2(const int16_t *at) { /* and zeros */
    int32_t both;
    memcpy(&both, at, sizeof both);
    return _mm_cvtsi32_si128(both);
}

AVX2 INLINE __m256i join(__m128i a, __m128i b, __m128i c, __m128i d) { /* the lower halves, two in each lane */
    return _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_unpacklo_epi64(a, b)), _mm_unpacklo_epi64(c, d), 1);
}

AVX2 void gray_avx2(uint8_t *out, const int16_t *row, const struct axis *axis, int shift) {
    const __m128i half = _mm_set1_epi32(1 << (shift - 1)), bits = _mm_cvtsi32_si128(shift);
    const int taps = axis->taps;
    const int16_t *w = axis->weights;
    for (int i = 0; i < axis->size; i += 4, w += 4 * taps) {
        const int16_t *a = row + axis->low[i], *b = row + axis->low[i + 1];
        const int16_t *c = row + axis->low[i + 2], *d = row + axis->low[i + 3];
        __m256i sums = _mm256_setzero_si256();
        for (int t = 0; t < taps; t += 4) {
            const int16_t *of = w + t;
            __m256i pixels = join(load4(a + t), load4(b + t), load4(c + t), load4(d + t)), weights;
            if (t + 4 <= taps)
                weights = join(load4(of), load4(of + taps), load4(of + 2 * taps), load4(of + 3 * taps));
            else
                weights = join(load2(of), load2(of + taps), load2(of + 2 * taps), load2(of + 3 * taps));
            sums = _mm256_add_epi32(sums, _mm256_madd_epi16(pixels, weights));
        }
        sums = _mm256_permute4x64_epi64(_mm256_hadd_epi32(sums, sums), 0x08);
        __m128i levels = _mm_sra_epi32(_mm_add_epi32(_mm256_castsi256_si128(sums), half), bits);
        levels = _mm_packs_epi32(levels, levels);
        int four = _mm_cvtsi128_si32(_mm_packus_epi16(levels, levels));
        memcpy(out + i, &four, (size_t)(axis->size - i < 4 ? axis->size - i : 4));
    }
}

/* Adds 32 values of two rows to sums of values 0 to 3 and 16 to 19, 4 to 7 and 20 to 23, and so on. */
AVX2 INLINE void add_rows(__m256i sums[4], const uint8_t *a, const uint8_t *b, __m256i weights) {
    const __m256i zero = _mm256_setzero_si256();
    __m256i x = _mm256_loadu_si256((const __m256i *)(const void *)a);
    __m256i y = _mm256_loadu_si256((const __m256i *)(const void *)b);
    __m256i low = _mm256_unpacklo_epi8(x, y), high = _mm256_unpackhi_epi8(x, y);
    sums[0] = _mm256_add_epi32(sums[0], _mm256_madd_epi16(_mm256_unpacklo_epi8(low, zero), weights));
    sums[1] = _mm256_add_epi32(sums[1], _mm256_madd_epi16(_mm256_unpackhi_epi8(low, zero), weights));
    sums[2] = _mm256_add_epi32(sums[2], _mm256_madd_epi16(_mm256_unpacklo_epi8(high, zero), weights));
    sums[3] = _mm256_add_epi32(sums[3], _mm256_madd_epi16(_mm256_unpackhi_epi8(high, zero), weights));
}

AVX2 void sum_avx2(int16_t *out, const uint8_t *const *rows, const int16_t *weights, int taps, int n, int shift) {
    const __m256i half = _mm256_set1_epi32(1 << (shift - 1));
    const __m128i bits = _mm_cvtsi32_si128(shift);
    for (int i = 0; i < n; i += 32, out += 32) {
        __m256i sums[4] = {half, half, half, half};
        for (int t = 0; t < taps; t += 2) add_rows(sums, rows[t] + i, rows[t + 1] + i, two_weights(weights + t));
        for (int k = 0; k < 4; k++) sums[k] = _mm256_sra_epi32(sums[k], bits);
        /* Values 0 to 7 and 16 to 23; 8 to 15 and 24 to 31. */
        __m256i even = _mm256_packs_epi32(sums[0], sums[1]), odd = _mm256_packs_epi32(sums[2], sums[3]);
        _mm256_storeu_si256((__m256i *)(void *)out, _mm256_permute2x128_si256(even, odd, 0x20));
        _mm256_storeu_si256((__m256i *)(void *)(out + 16), _mm256_permute2x128_si256(even, odd, 0x31));
    }
}
#elif HAVE_NEON
void mirror_neon(uint8_t *restrict out, const uint8_t *restrict in, int n, int channels) {
    for (; channels == 1 && n >= 16; n -= 16, out += 16) vst1q_u8(out, reversed(vld1q_u8(in + n - 16)));
    for (; channels == 3 && n >= 16; n -= 16, out += 48) {
        uint8x16x3_t pixels = vld3q_u8(in + 3 * (n - 16));
        for (int c = 0; c < 3; c++) pixels.val[c] = reversed(pixels.val[c]);
        vst3q_u8(out, pixels);
    }
    mirror_plain(out, in, n, channels);
}

/* Interpolates between eight levels, with 7 fractional bits. */
INLINE int16x8_t blend8(uint8x8_t a, uint8x8_t b, int weight) {
    int16x8_t start = vreinterpretq_s16_u16(vshll_n_u8(a, 7));
    int16x8_t more = vshlq_n_s16(vreinterpretq_s16_u16(vsubl_u8(b, a)), 7);
    return vaddq_s16(start, vqrdmulhq_n_s16(more, (int16_t)weight)); /* the weight is below 1 << 15 */
}

void blend_neon(int16_t *out, const uint8_t *a, const uint8_t *b, int n, int weight) {
    for (int i = 0; i < n; i += 16) {
        uint8x16_t low = vld1q_u8(a + i), high = vld1q_u8(b + i);
        vst1q_s16(out + i, blend8(vget_low_u8(low), vget_low_u8(high), weight));
        vst1q_s16(out + i + 8, blend8(vget_high_u8(low), vget_high_u8(high), weight));
    }
}

/* Stores pixels i to i + 3, as far as they are among the `width`; of each, the fourth level is left out. */
INLINE void store_four(uint8_t *out, int i, int width, int16x8_t first, int16x8_t second) {
    static const uint8_t ORDER[16] = {0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, 255, 255, 255, 255};
    uint8x16_t pixels = vcombine_u8(vqmovun_s16(first), vqmovun_s16(second));
    pixels = vqtbl1q_u8(pixels, vld1q_u8(ORDER));
    uint8_t last[16], *to = i + 6 <= width ? out + 3 * i : last; /* a store takes four bytes more */
    vst1q_u8(to, pixels);
    if (to == last) memcpy(out + 3 * i, last, 3 * (size_t)(width - i < 4 ? width - i : 4));
}

INLINE int16x4_t two_weights(const int16_t *at) { /* twice */
    int32_t both;
    memcpy(&both, at, sizeof both);
    return vreinterpret_s16_s32(vdup_n_s32(both));
}

/* Interpolates between a pixel and the next one. */
INLINE int32x4_t interpolated(const int16_t *row, const struct tap *tap) {
    const int16_t *at = row + 3 * tap->low;
    int16x4_t weights = two_weights(tap->weight);
    return vmlal_lane_s16(vmull_lane_s16(vld1_s16(at), weights, 0), vld1_s16(at + 3), weights, 1);
}

/* Rounds off 21 bits of two pixels: 16, which leaves 16, and 5. */
INLINE int16x8_t two_pixels(const int16_t *row, const struct tap *taps) {
    int32x4_t first = interpolated(row, taps), second = interpolated(row, taps + 1);
    return vrshrq_n_s16(vcombine_s16(vshrn_n_s32(first, 16), vshrn_n_s32(second, 16)), 5);
}

void resize_neon(uint8_t *out, const int16_t *row, const struct tap *taps, int width) {
    for (int i = 0; i < width; i += 4)
        store_four(out, i, width, two_pixels(row, taps + i), two_pixels(row, taps + i + 2));
}

/* Weighted sum of the pixels from `at` on, by colour. */
INLINE int32x4_t weighted(int32x4_t sum, const int16_t *at, const int16_t *weights, int taps) {
    for (int t = 0; t < taps; t += 2, at += 6) {
        int16x4_t two = two_weights(weights + t);
        sum = vmlal_lane_s16(sum, vld1_s16(at), two, 0);
        sum = vmlal_lane_s16(sum, vld1_s16(at + 3), two, 1);
    }
    return sum;
}

INLINE int16x8_t shifted(int32x4_t low, int32x4_t high, int32x4_t bits) {
    return vcombine_s16(vmovn_s32(vshlq_s32(low, bits)), vmovn_s32(vshlq_s32(high, bits)));
}

INLINE void filter_by(uint8_t *out, const int16_t *row, const struct axis *axis, int shift, int taps) {
    const int32x4_t half = vdupq_n_s32(1 << (shift - 1)), bits = vdupq_n_s32(-shift);
    const int16_t *w = axis->weights;
    for (int i = 0; i < axis->size; i += 4, w += 4 * taps) {
        const int32_t *low = axis->low + i;
        int32x4_t a = weighted(half, row + 3 * low[0], w, taps);
        int32x4_t b = weighted(half, row + 3 * low[1], w + taps, taps);
        int32x4_t c = weighted(half, row + 3 * low[2], w + 2 * taps, taps);
        int32x4_t d = weighted(half, row + 3 * low[3], w + 3 * taps, taps);
        store_four(out, i, axis->size, shifted(a, b, bits), shifted(c, d, bits));
    }
}

void filter_neon(uint8_t *out, const int16_t *row, const struct axis *axis, int shift) {
    switch (axis->taps) { /* loops of a known length */
    case 2: filter_by(out, row, axis, shift, 2); break;
    case 4: filter_by(out, row, axis, shift, 4); break;
    case 6: filter_by(out, row, axis, shift, 6); break;
    case 8: filter_by(out, row, axis, shift, 8); break;
    default: filter_by(out, row, axis, shift, axis->taps);
    }
}

/* Weighted sum of gray pixels from `at` on, in four parts. */
INLINE int32x4_t gray_parts(const int16_t *at, const int16_t *weights, int taps) {
    int32x4_t sum = vdupq_n_s32(0);
    int t = 0;
    for (; t + 4 <= taps; t += 4) sum = vmlal_s16(sum, vld1_s16(at + t), vld1_s16(weights + t));
    if (t < taps) sum = vmlal_s16(sum, vld1_s16(at + t), vext_s16(two_weights(weights + t), vdup_n_s16(0), 2));
    return sum;
}

void gray_neon(uint8_t *out, const int16_t *row, const struct axis *axis, int shift) {
    const int32x4_t half = vdupq_n_s32(1 << (shift - 1)), bits = vdupq_n_s32(-shift);
    const int taps = axis->taps;
    const int16_t *w = axis->weights;
    for (int i = 0; i < axis->size; i += 4, w += 4 * taps) {
        const int32_t *low = axis->low + i;
        int32x4_t a = gray_parts(row + low[0], w, taps), b = gray_parts(row + low[1], w + taps, taps);
        int32x4_t c = gray_parts(row + low[2], w + 2 * taps, taps), d = gray_parts(row + low[3], w + 3 * taps, taps);
        int32x4_t sums = vaddq_s32(vpaddq_s32(vpaddq_s32(a, b), vpaddq_s32(c, d)), half);
        uint8x8_t levels = vqmovun_s16(shifted(sums, sums, bits));
        uint32_t four = vget_lane_u32(vreinterpret_u32_u8(levels), 0);
        if (i + 4 <= axis->size)
            memcpy(out + i, &four, 4);
        else
            memcpy(out + i, &four, (size_t)(axis->size - i));
    }
}

/* Adds 16 levels to sums, by the weight of one of two lanes. */
#define ADD_LEVELS(levels, weights, lane)                                     \
    do {                                                                      \
        int16x8_t low = vreinterpretq_s16_u16(vmovl_u8(vget_low_u8(levels))); \
        int16x8_t high = vreinterpretq_s16_u16(vmovl_high_u8(levels));        \
        a = vmlal_lane_s16(a, vget_low_s16(low), weights, lane);              \
        b = vmlal_high_lane_s16(b, low, weights, lane);                       \
        c = vmlal_lane_s16(c, vget_low_s16(high), weights, lane);             \
        d = vmlal_high_lane_s16(d, high, weights, lane);                      \
    } while (0)

void sum_neon(int16_t *out, const uint8_t *const *rows, const int16_t *weights, int taps, int n, int shift) {
    const int32x4_t half = vdupq_n_s32(1 << (shift - 1)), bits = vdupq_n_s32(-shift);
    for (int i = 0; i < n; i += 16) {
        int32x4_t a = half, b = half, c = half, d = half;
        for (int t = 0; t < taps; t += 2) {
            int16x4_t two = two_weights(weights + t);
            uint8x16_t first = vld1q_u8(rows[t] + i), second = vld1q_u8(rows[t + 1] + i);
            ADD_LEVELS(first, two, 0);
            ADD_LEVELS(second, two, 1);
        }
        vst1q_s16(out + i, shifted(a, b, bits));
        vst1q_s16(out + i + 8, shifted(c, d, bits));
    }
}
#endif
