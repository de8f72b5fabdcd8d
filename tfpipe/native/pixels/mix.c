/* Mixes the crops of a batch with each other, in the batch's own memory: MixUp and CutMix. */
#include "../kernels.h"

_Static_assert(TFPIPE_WEIGHT_BITS == 15, "instructions round off 15 bits");

/* Bytes of a crop that are mixed before the next crop's turn: a crop's are still in the first cache when they are the
 * partner's of the crop after it, so the batch is read and written once. */
enum { CHUNK = 8192 };

void mix_plain(uint8_t *own, const uint8_t *partner, size_t n, int weight) {
    for (size_t i = 0; i < n; i++)
        own[i] = (uint8_t)(partner[i] + (((own[i] - partner[i]) * weight + TFPIPE_WHOLE / 2) >> TFPIPE_WEIGHT_BITS));
}

#if HAVE_AVX2
AVX2 void mix_avx2(uint8_t *own, const uint8_t *partner, size_t n, int weight) {
    const __m256i zero = _mm256_setzero_si256(), factor = _mm256_set1_epi16((int16_t)weight);
    size_t i = 0;
    for (; i + 32 <= n; i += 32) {
        __m256i a = _mm256_loadu_si256((const __m256i *)(const void *)(own + i));
        __m256i b = _mm256_loadu_si256((const __m256i *)(const void *)(partner + i));
        __m256i low = _mm256_unpacklo_epi8(b, zero), high = _mm256_unpackhi_epi8(b, zero);
        __m256i less = _mm256_sub_epi16(_mm256_unpacklo_epi8(a, zero), low);
        __m256i more = _mm256_sub_epi16(_mm256_unpackhi_epi8(a, zero), high);
        low = _mm256_add_epi16(low, _mm256_mulhrs_epi16(less, factor));
        high = _mm256_add_epi16(high, _mm256_mulhrs_epi16(more, factor));
        _mm256_storeu_si256((__m256i *)(void *)(own + i), _mm256_packus_epi16(low, high));
    }
    mix_plain(own + i, partner + i, n - i, weight);
}
#elif HAVE_NEON
INLINE uint8x8_t mix8(uint8x8_t own, uint8x8_t partner, int weight) {
    int16x8_t more = vqrdmulhq_n_s16(vreinterpretq_s16_u16(vsubl_u8(own, partner)), (int16_t)weight);
    return vmovn_u16(vaddw_u8(vreinterpretq_u16_s16(more), partner));
}

void mix_neon(uint8_t *own, const uint8_t *partner, size_t n, int weight) {
    size_t i = 0;
    for (; i + 16 <= n; i += 16) {
        uint8x16_t a = vld1q_u8(own + i), b = vld1q_u8(partner + i);
        uint8x8_t low = mix8(vget_low_u8(a), vget_low_u8(b), weight);
        vst1q_u8(own + i, vcombine_u8(low, mix8(vget_high_u8(a), vget_high_u8(b), weight)));
    }
    mix_plain(own + i, partner + i, n - i, weight);
}
#endif

static void paste(uint8_t *own, const uint8_t *partner, size_t n, int weight) {
    (void)weight;
    memcpy(own, partner, n);
}

/* A part of each crop: `rows` of `length` bytes. */
struct part {
    uint8_t *first; /* in the first crop */
    size_t rows, length;
    size_t pitch, size; /* bytes from a row to the next, and from a crop to the next */
};

/* Mixes a part of each crop with that of the crop before it; the last one's, which is the first one's partner, is kept,
 * in CHUNK bytes. From the last crop to the first, so that a partner is as it was. */
static void mix_part(const struct part *part, int64_t count, mix_row *mix, int weight) {
    uint8_t kept[CHUNK];
    uint8_t *own = part->first + (size_t)(count - 1) * part->size;
    for (size_t y = 0; y < part->rows; y++) memcpy(kept + y * part->length, own + y * part->pitch, part->length);
    for (; own > part->first; own -= part->size)
        for (size_t y = 0; y < part->rows; y++)
            mix(own + y * part->pitch, own + y * part->pitch - part->size, part->length, weight);
    for (size_t y = 0; y < part->rows; y++) mix(own + y * part->pitch, kept + y * part->length, part->length, weight);
}

int tfpipe_mix(uint8_t *crops, int64_t count, int height, int width, int channels, const int32_t box[4], int weight) {
    if (count < 0 || height < 1 || width < 1 || channels < 1 || weight < 0 || weight > TFPIPE_WHOLE || box[0] < 0 ||
        box[1] < 0 || box[2] < 0 || box[3] < 0 || box[2] > height || box[3] > width || box[0] > height - box[2] ||
        box[1] > width - box[3])
        return TFPIPE_ARGUMENT;
    if (count < 2 || !box[2] || !box[3] || weight == TFPIPE_WHOLE) return 0;
    const size_t pixel = (size_t)channels, pitch = (size_t)width * pixel;
    size_t rows = (size_t)box[2], length = (size_t)box[3] * pixel;
    if (box[3] == width) length *= rows, rows = 1; /* rows that follow each other are one */
    uint8_t *first = crops + (size_t)box[0] * pitch + (size_t)box[1] * pixel;
    mix_row *mix = weight ? tfpipe_kernels()->mix : paste;
    for (size_t at = 0, n; at < length; at += n) {
        n = length - at < CHUNK ? length - at : CHUNK;
        for (size_t y = 0, k; y < rows; y += k) {
            k = rows - y < CHUNK / n ? rows - y : CHUNK / n;
            struct part part = {first + y * pitch + at, k, n, pitch, (size_t)height * pitch};
            mix_part(&part, count, mix, weight);
        }
    }
    return 0;
}
