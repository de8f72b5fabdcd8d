/* The sums of weighted pixels of resize.c, and mirrored rows, by NEON. */
#include "rows.h"

#if HAVE_NEON
INLINE uint8x16_t reversed(uint8x16_t x) { return vextq_u8(vrev64q_u8(x), vrev64q_u8(x), 8); }

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
