/* Splits 32 RGB pixels into planes and puts them together again, by AVX2. */
#pragma once

#include "../base.h"

#if HAVE_AVX2
/* Each lane has 16 pixels, of 48 bytes: three vectors of 16 bytes, in which a channel has the bytes 0, 3, 6 ..., 1, 4, 7
 * ... or 2, 5, 8 ...: in all three together each byte once. */
struct planes {
    __m256i red, green, blue;
};

#define TWICE(...) _mm256_broadcastsi128_si256(_mm_setr_epi8(__VA_ARGS__))
#define FIRST_OF_3 TWICE(-1, 0, 0, -1, 0, 0, -1, 0, 0, -1, 0, 0, -1, 0, 0, -1)
#define SECOND_OF_3 TWICE(0, -1, 0, 0, -1, 0, 0, -1, 0, 0, -1, 0, 0, -1, 0, 0)
#define THIRD_OF_3 TWICE(0, 0, -1, 0, 0, -1, 0, 0, -1, 0, 0, -1, 0, 0, -1, 0)

AVX2 INLINE __m256i two_lanes(const uint8_t *at) { /* 16 bytes, and 16 of the next 16 pixels */
    __m256i low = _mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)(const void *)at));
    return _mm256_inserti128_si256(low, _mm_loadu_si128((const __m128i *)(const void *)(at + 48)), 1);
}

AVX2 INLINE void store_lanes(uint8_t *at, __m256i bytes) {
    _mm_storeu_si128((__m128i *)(void *)at, _mm256_castsi256_si128(bytes));
    _mm_storeu_si128((__m128i *)(void *)(at + 48), _mm256_extracti128_si256(bytes, 1));
}

/* Takes b's bytes where `of_b` is set, c's where `of_c` is, and a's otherwise. */
AVX2 INLINE __m256i choose(__m256i a, __m256i b, __m256i of_b, __m256i c, __m256i of_c) {
    return _mm256_blendv_epi8(_mm256_blendv_epi8(a, b, of_b), c, of_c);
}

AVX2 INLINE struct planes load_planes(const uint8_t *at) { /* 96 bytes */
    const __m256i first = FIRST_OF_3, second = SECOND_OF_3, third = THIRD_OF_3;
    __m256i a = two_lanes(at), b = two_lanes(at + 16), c = two_lanes(at + 32);
    return (struct planes){
        _mm256_shuffle_epi8(choose(a, b, third, c, second),
                            TWICE(0, 3, 6, 9, 12, 15, 2, 5, 8, 11, 14, 1, 4, 7, 10, 13)),
        _mm256_shuffle_epi8(choose(a, b, first, c, third), TWICE(1, 4, 7, 10, 13, 0, 3, 6, 9, 12, 15, 2, 5, 8, 11, 14)),
        _mm256_shuffle_epi8(choose(a, b, second, c, first),
                            TWICE(2, 5, 8, 11, 14, 1, 4, 7, 10, 13, 0, 3, 6, 9, 12, 15)),
    };
}

AVX2 INLINE void store_planes(uint8_t *at, struct planes planes) {
    const __m256i first = FIRST_OF_3, second = SECOND_OF_3, third = THIRD_OF_3;
    __m256i red = _mm256_shuffle_epi8(planes.red, TWICE(0, 11, 6, 1, 12, 7, 2, 13, 8, 3, 14, 9, 4, 15, 10, 5));
    __m256i green = _mm256_shuffle_epi8(planes.green, TWICE(5, 0, 11, 6, 1, 12, 7, 2, 13, 8, 3, 14, 9, 4, 15, 10));
    __m256i blue = _mm256_shuffle_epi8(planes.blue, TWICE(10, 5, 0, 11, 6, 1, 12, 7, 2, 13, 8, 3, 14, 9, 4, 15));
    store_lanes(at, choose(red, green, second, blue, third));
    store_lanes(at + 16, choose(red, green, first, blue, second));
    store_lanes(at + 32, choose(red, green, third, blue, first));
}

#undef TWICE
#undef FIRST_OF_3
#undef SECOND_OF_3
#undef THIRD_OF_3
#endif
