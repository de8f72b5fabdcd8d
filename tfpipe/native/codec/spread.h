/* Spreads packed bytes over the places that a mask has, and zigzag order over natural order, by AVX2. */
#pragma once

#include "blocks.h"

#if HAVE_AVX2
/* For a mask of 8 places: which of the packed bytes is at each, a byte for each place; 0x80: none, which gives 0. */
static uint64_t SPREAD[256];
/* By halves of a block in natural order, and by 16 bytes in zigzag order: which of these bytes is at each place. */
_Alignas(32) static int8_t DEZIGZAG[2][4][32];

__attribute__((constructor)) static void set_tables(void) {
    for (int mask = 0; mask < 256; mask++)
        for (int place = 0, packed = 0; place < 8; place++)
            SPREAD[mask] |= (mask >> place & 1 ? (uint64_t)packed++ : 0x80) << 8 * place;
    memset(DEZIGZAG, -1, sizeof DEZIGZAG);
    for (int place = 0; place < BLOCK; place++)
        DEZIGZAG[NATURAL[place] / 32][place / 16][NATURAL[place] % 32] = (int8_t)(place % 16);
}

/* Returns which packed byte is at each of 8 places; `odd`: the first of them is the second of the packed bytes. */
AVX2 INLINE __m128i spread(uint64_t mask, int odd) {
    return _mm_add_epi8(_mm_cvtsi64_si128((int64_t)SPREAD[mask & 255]), _mm_set1_epi8((char)odd));
}

/* Returns half a block, 32 bytes in natural order, of 4 times 16 in zigzag order, which each lane has. */
AVX2 INLINE __m256i dezigzag(const __m256i zigzag[4], int half) {
    const __m256i *from = (const __m256i *)(const void *)DEZIGZAG[half];
    __m256i a = _mm256_or_si256(_mm256_shuffle_epi8(zigzag[0], from[0]), _mm256_shuffle_epi8(zigzag[1], from[1]));
    __m256i b = _mm256_or_si256(_mm256_shuffle_epi8(zigzag[2], from[2]), _mm256_shuffle_epi8(zigzag[3], from[3]));
    return _mm256_or_si256(a, b);
}
#endif
