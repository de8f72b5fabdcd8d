/* Bilinear interpolation with half-pixel centres and repeated edges: first between rows, then along the row. */
#include "core.h"

#include <string.h>

#if HAVE_AVX2
#include <immintrin.h>
#endif

void set_taps(struct tap *taps, int source, int size, int mirrored) {
    double scale = (double)source / size;
    for (int i = 0; i < size; i++) {
        double at = (i + 0.5) * scale - 0.5;
        int low = at < 0 ? 0 : (int)at; /* at most source - 1: (size - 0.5) * source / size - 0.5 < source */
        if (low > source - 1) low = source - 1;
        int share = at < 0 || low == source - 1 ? 0 : (int)((at - low) * (1 << 14) + 0.5);
        if (share == 1 << 14) share--; /* twice this must fit in 16 bits: see blend_rows */
        taps[mirrored ? size - 1 - i : i] = (struct tap){low, {(int16_t)((1 << 14) - share), (int16_t)share}};
    }
}

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

AVX2 INLINE __m256i scaled(const uint8_t *at) { /* 16 bytes with 7 fractional bits */
    return _mm256_slli_epi16(_mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)(const void *)at)), 7);
}

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

AVX2 INLINE __m256i weigh(__m256i pixels, __m256i weights) { /* a pixel and the next one in each lane */
    const __m128i order = _mm_setr_epi8(0, 1, 6, 7, 2, 3, 8, 9, 4, 5, 10, 11, -1, -1, -1, -1);
    const __m256i pairs = _mm256_broadcastsi128_si256(order);
    __m256i sum = _mm256_madd_epi16(_mm256_shuffle_epi8(pixels, pairs), weights);
    return _mm256_srai_epi32(_mm256_add_epi32(sum, _mm256_set1_epi32(1 << 20)), 21);
}

AVX2 void resize_avx2(uint8_t *out, const int16_t *row, const struct tap *taps, int width) {
    const __m128i order = _mm_setr_epi8(0, 1, 2, 4, 5, 6, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1);
    const __m256i tight = _mm256_broadcastsi128_si256(order);
    /* Indices of the weights of four taps: of the first and the third, and of the others. */
    const __m256i first = _mm256_setr_epi32(1, 1, 1, 1, 5, 5, 5, 5), second = _mm256_setr_epi32(3, 3, 3, 3, 7, 7, 7, 7);
    for (int i = 0; i < width; i += 4) {
        const struct tap *t = taps + i;
        __m256i weights = _mm256_loadu_si256((const __m256i *)(const void *)t);
        __m256i even = two_loads(row + 3 * t[0].low, row + 3 * t[2].low);
        __m256i odd = two_loads(row + 3 * t[1].low, row + 3 * t[3].low);
        even = weigh(even, _mm256_permutevar8x32_epi32(weights, first));
        odd = weigh(odd, _mm256_permutevar8x32_epi32(weights, second));
        __m256i pixels = _mm256_packs_epi32(even, odd);
        pixels = _mm256_shuffle_epi8(_mm256_packus_epi16(pixels, pixels), tight); /* two pixels in each lane */
        uint8_t last[16], *to = i + 5 <= width ? out + 3 * i : last;              /* a store takes two bytes more */
        _mm_storel_epi64((__m128i *)(void *)to, _mm256_castsi256_si128(pixels));
        _mm_storel_epi64((__m128i *)(void *)(to + 6), _mm256_extracti128_si256(pixels, 1));
        /* cppcheck-suppress uninitvar; the stores have written it */
        if (to == last) memcpy(out + 3 * i, last, 3 * (size_t)(width - i < 4 ? width - i : 4));
    }
}
#endif
