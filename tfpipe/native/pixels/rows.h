/* Rows of pixels: upsampled, converted, resized, mirrored and mixed. */
#pragma once

#include "../base.h"

INLINE uint8_t clip(int level) { return (uint8_t)(level < 0 ? 0 : level > 255 ? 255 : level); }

#if HAVE_AVX2
AVX2 INLINE __m256i load16(const uint8_t *at) { /* 16 bytes as 16-bit values */
    return _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)(const void *)at));
}
#elif HAVE_NEON
INLINE uint8x16_t reversed(uint8x16_t x) { return vextq_u8(vrev64q_u8(x), vrev64q_u8(x), 8); }
#endif

/* Upsampling of a row: near[-1] and near[samples], and the same of far, are readable. Vector code reads and writes up
 * to PAD bytes beyond. The bias of h1v2 is 1 for an upper row, 2 for a lower one. */
typedef void upsample_row(uint8_t *out, const uint8_t *near, const uint8_t *far, int samples);
void h2v1(uint8_t *out, const uint8_t *near, int samples);
void h1v2(uint8_t *out, const uint8_t *near, const uint8_t *far, int samples, int bias);
upsample_row h2v2_plain, h2v2_avx2, h2v2_neon;

/* Converts n pixels to RGB; mirrored: from the last to the first. Writes 3 * n bytes; reads up to PAD beyond n. */
typedef void ycc_row(uint8_t *out, const uint8_t *y, const uint8_t *cb, const uint8_t *cr, int n, int mirrored);
ycc_row ycc_plain, ycc_avx2, ycc_neon;

/* The same of pixels that are RGB: copies them; and converts them to gray, of n bytes. */
ycc_row rgb_row, rgb_to_gray;

/* Multiplies RGB pixels, or CMY inks as a JPEG stores them, by black: levels of 255 are bare paper. `inverted`: the pixels
 * are 255 less each ink, as YCCK codes them. Divides as TensorFlow does, towards 0. */
void ink_row(uint8_t *restrict out, const uint8_t *restrict black, int n, int mirrored, int inverted);

enum {
    WEIGHT = 14,   /* fractional bits of the weights of a target's pixel, which sum to 1 */
    MORE_TAPS = 3, /* pixels after those of a row, each like the last one: four at a time are read */
};

/* A pixel of the target: its first source pixel, and the weights of this and of the next one. */
struct tap {
    int32_t low;
    int16_t weight[2];
};
_Static_assert(sizeof(struct tap) == 8, "vector code loads four taps at once");

/* Interpolates between rows a and b of n bytes: 7 fractional bits; weight: of b, of 1 << 15. Writes up to n + PAD. */
typedef void blend_rows(int16_t *out, const uint8_t *a, const uint8_t *b, int n, int weight);
blend_rows blend_plain, blend_avx2, blend_neon;
/* Interpolates `width` RGB pixels along a row of blend_rows. Writes 3 * width bytes. */
typedef void resize_row(uint8_t *out, const int16_t *row, const struct tap *taps, int width);
resize_row resize_plain, resize_avx2, resize_neon, resize_gray;

/* An axis of a resize: how the target's pixels are made of the source's. */
struct axis {
    int kernel, source, size; /* one of TFPIPE_BILINEAR, ...; pixels of the source and of the target */
    int64_t whole, first;     /* pixels that the source is resized to, of which the target is a part, and the first */
    size_t bytes;             /* of memory that axis_set takes, a multiple of 8 */
    struct tap *pairs;        /* [size + MORE_TAPS], if two taps do, and taps is 0 */
    int taps;                 /* weights of a pixel, an even number */
    int32_t *low;             /* [size + MORE_TAPS]: first source pixel */
    int16_t *weights; /* [size + MORE_TAPS][taps]; of a pixel beyond the source, of which there is one if any: 0 */
};

/* taps.c: returns an axis without weights. */
struct axis axis_of(int kernel, int source, int64_t whole, int64_t first, int size);
/* Sets the weights, in the memory; mirrored: for the target's pixels from the last to the first. `weights` has room for
 * axis->taps. */
void axis_set(struct axis *axis, void *memory, double *weights, int mirrored);
/* Leaves source pixels out, at both ends of `length` pixels from `start` on, that a part of the whole does not need. */
void axis_narrow(struct axis *axis, int *start, int *length);

/* Adds up rows of n bytes by their weights, an even number of them, and leaves out `shift` of the sums' bits. Reads and
 * writes up to n + PAD. */
typedef void sum_rows(int16_t *out, const uint8_t *const *rows, const int16_t *weights, int taps, int n, int shift);
sum_rows sum_plain, sum_avx2, sum_neon;
/* Resizes RGB or gray pixels along a row of sum_rows or blend_rows; leaves out `shift` of the sums' bits. Writes
 * axis->size pixels; reads up to PAD beyond the source. */
typedef void filter_row(uint8_t *out, const int16_t *row, const struct axis *axis, int shift);
filter_row filter_plain, filter_avx2, filter_neon, gray_plain, gray_avx2, gray_neon;

/* Copies n pixels of 1 or 3 channels from the last to the first; `out` and `in` do not overlap. */
typedef void mirror_row(uint8_t *out, const uint8_t *in, int n, int channels);
mirror_row mirror_plain, mirror_avx2, mirror_neon;

/* Mixes n bytes with a partner's: weight, of `own`, of TFPIPE_WHOLE and below it; rounds to nearest, halves up. */
typedef void mix_row(uint8_t *own, const uint8_t *partner, size_t n, int weight);
mix_row mix_plain, mix_avx2, mix_neon;
