/* Operations on neighbouring pixels: sharpness, as of Pillow's ImageEnhance, and torchvision's Gaussian blur. */
#include "edit.h"

#include <math.h>

enum {
    SMOOTH = 13,       /* sum of the weights of Pillow's ImageFilter.SMOOTH: 1, and 5 in the middle */
    ONE = 1 << 15,     /* sum of a blur's weights */
    ROWS_SHIFT = 9,    /* from 8 + 15 bits to 8 + 6, which fit in 16 even if two are added */
    VALUES_SHIFT = 21, /* from 8 + 6 + 15 bits to 8 */
};

/* Sums are below 16 bits, and never halfway: floor(sum / 13 + 0.5) = floor((sum + 6) / 13). The product is too large by
 * less than the distance to the next thirteenth: (13 * 255 + 6) * (5042 - 65536 / 13) < 65536 / 13.
 * The compiler makes vector code of this, for each kind of instructions. */
INLINE void smooth_any(uint8_t *restrict out, const uint8_t *const rows[3], uint16_t *restrict sums, int n, int step) {
    const uint8_t *above = rows[0], *here = rows[1], *below = rows[2];
    for (int i = 0; i < n; i++) sums[i] = (uint16_t)(above[i] + here[i] + below[i]);
    for (int i = step; i < n - step; i++) {
        uint16_t sum = (uint16_t)(sums[i - step] + sums[i] + sums[i + step] + 4 * here[i] + SMOOTH / 2);
        out[i] = (uint8_t)((uint32_t)sum * 5042u >> 16);
    }
}

void smooth_plain(uint8_t *out, const uint8_t *const rows[3], uint16_t *sums, int n, int step) {
    smooth_any(out, rows, sums, n, step);
}

int apply_sharpness(const struct edit *edit) {
    if (edit->height < 3 || edit->width < 3) return 0;
    const size_t step = (size_t)edit->channels, row = edit->row;
    uint16_t *sums = buffer_reserve(&edit->scratch->rows, row * (sizeof *sums + 3));
    if (!sums) return TFPIPE_MEMORY;
    uint8_t *smooth = (uint8_t *)(sums + row), *above = smooth + row, *here = above + row; /* both as they were */
    memcpy(above, edit->pixels, row);
    for (int y = 1; y < edit->height - 1; y++) {
        uint8_t *out = edit->pixels + (size_t)y * row, *swapped = above;
        memcpy(here, out, row);
        edit->kernels->smooth(smooth, (const uint8_t *const[]){above, here, out + row}, sums, (int)row, edit->channels);
        edit->kernels->blend(out + step, smooth + step, row - 2 * step, (float)edit->operation->values[0]);
        above = here;
        here = swapped;
    }
    return 0;
}

void blur_rows_plain(int16_t *out, const uint8_t *const *rows, int n, struct taps taps) {
    const uint8_t *const *middle = rows + taps.reach;
    for (int i = 0; i < n; i++) {
        int sum = taps.weights[0] * middle[0][i] + (1 << (ROWS_SHIFT - 1));
        for (int k = 1; k <= taps.reach; k++) sum += taps.weights[k] * (middle[-k][i] + middle[k][i]);
        out[i] = (int16_t)(sum >> ROWS_SHIFT);
    }
}

void blur_values_plain(uint8_t *out, const int16_t *row, int n, struct taps taps, int step) {
    for (int i = 0; i < n; i++, row++) {
        int sum = taps.weights[0] * row[0] + (1 << (VALUES_SHIFT - 1));
        for (int k = 1; k <= taps.reach; k++) sum += taps.weights[k] * (row[-k * step] + row[k * step]);
        out[i] = (uint8_t)(sum >> VALUES_SHIFT);
    }
}

#if HAVE_AVX2
AVX2 void smooth_avx2(uint8_t *out, const uint8_t *const rows[3], uint16_t *sums, int n, int step) {
    smooth_any(out, rows, sums, n, step);
}

/* Sums of 16 values: low has values 0 to 3 and 8 to 11. */
struct sums {
    __m256i low, high;
};

/* Adds the products of two distances with their weights. */
AVX2 INLINE struct sums add_products(struct sums sums, __m256i near, __m256i far, const int16_t *weights) {
    int32_t pair;
    memcpy(&pair, weights, sizeof pair);
    __m256i both = _mm256_set1_epi32(pair);
    sums.low = _mm256_add_epi32(sums.low, _mm256_madd_epi16(_mm256_unpacklo_epi16(near, far), both));
    sums.high = _mm256_add_epi32(sums.high, _mm256_madd_epi16(_mm256_unpackhi_epi16(near, far), both));
    return sums;
}

AVX2 INLINE __m256i shifted(struct sums sums, int bits) {
    return _mm256_packs_epi32(_mm256_srai_epi32(sums.low, bits), _mm256_srai_epi32(sums.high, bits));
}

AVX2 void blur_rows_avx2(int16_t *out, const uint8_t *const *rows, int n, struct taps taps) {
    const uint8_t *const *middle = rows + taps.reach;
    for (int i = 0; i < n; i += 16) {
        struct sums sums = {_mm256_set1_epi32(1 << (ROWS_SHIFT - 1)), _mm256_set1_epi32(1 << (ROWS_SHIFT - 1))};
        for (int k = 0; k <= taps.reach; k += 2) {
            __m256i near = load16(middle[k] + i), far = _mm256_setzero_si256();
            if (k > 0) near = _mm256_add_epi16(near, load16(middle[-k] + i));
            if (k < taps.reach) far = _mm256_add_epi16(load16(middle[k + 1] + i), load16(middle[-k - 1] + i));
            sums = add_products(sums, near, far, taps.weights + k);
        }
        _mm256_storeu_si256((__m256i *)(void *)(out + i), shifted(sums, ROWS_SHIFT));
    }
}

AVX2 INLINE __m256i values_at(const int16_t *at) { return _mm256_loadu_si256((const __m256i *)(const void *)at); }

AVX2 void blur_values_avx2(uint8_t *out, const int16_t *row, int n, struct taps taps, int step) {
    for (; n >= 16; n -= 16, row += 16, out += 16) {
        struct sums sums = {_mm256_set1_epi32(1 << (VALUES_SHIFT - 1)), _mm256_set1_epi32(1 << (VALUES_SHIFT - 1))};
        for (int k = 0, at = 0; k <= taps.reach; k += 2, at += 2 * step) {
            __m256i near = values_at(row + at), far = _mm256_setzero_si256();
            if (k > 0) near = _mm256_add_epi16(near, values_at(row - at));
            if (k < taps.reach) far = _mm256_add_epi16(values_at(row + at + step), values_at(row - at - step));
            sums = add_products(sums, near, far, taps.weights + k);
        }
        __m256i levels = shifted(sums, VALUES_SHIFT);
        levels = _mm256_permute4x64_epi64(_mm256_packus_epi16(levels, levels), 0x88);
        _mm_storeu_si128((__m128i *)(void *)out, _mm256_castsi256_si128(levels));
    }
    blur_values_plain(out, row, n, taps, step);
}
#elif HAVE_NEON
/* Adds products with a weight to sums of eight values. */
INLINE void add_products(int32x4_t sums[2], int16x8_t values, int16_t weight) {
    sums[0] = vmlal_n_s16(sums[0], vget_low_s16(values), weight);
    sums[1] = vmlal_high_n_s16(sums[1], values, weight);
}

void blur_rows_neon(int16_t *out, const uint8_t *const *rows, int n, struct taps taps) {
    const uint8_t *const *middle = rows + taps.reach;
    for (int i = 0; i < n; i += 16) {
        uint8x16_t here = vld1q_u8(middle[0] + i), zero = vdupq_n_u8(0);
        int32x4_t low[2] = {vdupq_n_s32(0), vdupq_n_s32(0)}, high[2] = {low[0], low[0]};
        add_products(low, vreinterpretq_s16_u8(vzip1q_u8(here, zero)), taps.weights[0]);
        add_products(high, vreinterpretq_s16_u8(vzip2q_u8(here, zero)), taps.weights[0]);
        for (int k = 1; k <= taps.reach; k++) {
            uint8x16_t before = vld1q_u8(middle[-k] + i), after = vld1q_u8(middle[k] + i);
            uint16x8_t near = vaddl_u8(vget_low_u8(before), vget_low_u8(after));
            add_products(low, vreinterpretq_s16_u16(near), taps.weights[k]);
            add_products(high, vreinterpretq_s16_u16(vaddl_high_u8(before, after)), taps.weights[k]);
        }
        vst1q_s16(out + i, vcombine_s16(vrshrn_n_s32(low[0], ROWS_SHIFT), vrshrn_n_s32(low[1], ROWS_SHIFT)));
        vst1q_s16(out + i + 8, vcombine_s16(vrshrn_n_s32(high[0], ROWS_SHIFT), vrshrn_n_s32(high[1], ROWS_SHIFT)));
    }
}

INLINE uint8x8_t levels(const int32x4_t sums[2]) { /* shifted by 16, which leaves 16 bits, and by the rest */
    int16x8_t upper = vcombine_s16(vshrn_n_s32(sums[0], 16), vshrn_n_s32(sums[1], 16));
    return vqrshrun_n_s16(upper, VALUES_SHIFT - 16);
}

void blur_values_neon(uint8_t *out, const int16_t *row, int n, struct taps taps, int step) {
    for (; n >= 16; n -= 16, row += 16, out += 16) {
        int32x4_t low[2] = {vdupq_n_s32(0), vdupq_n_s32(0)}, high[2] = {low[0], low[0]};
        add_products(low, vld1q_s16(row), taps.weights[0]);
        add_products(high, vld1q_s16(row + 8), taps.weights[0]);
        for (int k = 1; k <= taps.reach; k++) {
            const int16_t *before = row - k * step, *after = row + k * step;
            add_products(low, vaddq_s16(vld1q_s16(before), vld1q_s16(after)), taps.weights[k]);
            add_products(high, vaddq_s16(vld1q_s16(before + 8), vld1q_s16(after + 8)), taps.weights[k]);
        }
        vst1q_u8(out, vcombine_u8(levels(low), levels(high)));
    }
    blur_values_plain(out, row, n, taps, step);
}
#endif

/* Sets weights[0..reach] of exp(-distance^2 / (2 sigma^2)), and returns the largest distance whose weight is not 0. What
 * a weight loses by rounding, the next one gets. */
static int set_weights(int16_t *weights, int reach, double sigma) {
    double sum = 1, scale = -0.5 / (sigma * sigma), rest = 0;
    for (int k = 1; k <= reach; k++) sum += 2 * (expm1(scale * k * k) + 1);
    int first = ONE, last = 0;
    for (int k = 1; k <= reach; k++) {
        rest += (expm1(scale * k * k) + 1) / sum * ONE;
        weights[k] = (int16_t)(rest + 0.5);
        rest -= weights[k];
        first -= 2 * weights[k];
        if (weights[k]) last = k;
    }
    weights[0] = (int16_t)(first < ONE ? first : ONE - 1);
    return last;
}

/* Returns the index within [0, size) that a border without repetition shows at `at`, less than `size` beyond it. */
static int reflect(int at, int size) { return at < 0 ? -at : at < size ? at : 2 * (size - 1) - at; }

/* Repeats the pixels next to both ends of a row in reverse order. */
static void reflect_ends(int16_t *row, int width, int channels, int reach) {
    const size_t bytes = (size_t)channels * sizeof *row;
    for (int k = 1; k <= reach; k++) {
        memcpy(row - k * channels, row + k * channels, bytes);
        memcpy(row + (width - 1 + k) * channels, row + (width - 1 - k) * channels, bytes);
    }
}

int apply_blur(const struct edit *edit) {
    const int reach_x = (int)edit->operation->values[0] / 2, reach_y = (int)edit->operation->values[1] / 2;
    const size_t ends = (size_t)reach_x * (size_t)edit->channels, values = edit->row + 2 * ends + PAD;
    const size_t pointers = (2 * (size_t)reach_y + 1) * sizeof(uint8_t *);
    const uint8_t *copy = copy_crop(edit);
    uint8_t *memory = buffer_reserve(
        &edit->scratch->rows, pointers + (values + (size_t)reach_x + (size_t)reach_y + 2 + PAD) * sizeof(int16_t));
    if (!copy || !memory) return TFPIPE_MEMORY;
    const uint8_t **rows = (const uint8_t **)(void *)memory;
    int16_t *row = (int16_t *)(void *)(memory + pointers), *weights_x = row + values, *weights_y;
    weights_y = weights_x + reach_x + 1;
    row += ends;
    struct taps across = {weights_x, set_weights(weights_x, reach_x, edit->operation->values[2])};
    struct taps down = {weights_y, set_weights(weights_y, reach_y, edit->operation->values[3])};
    for (int y = 0; y < edit->height; y++) {
        for (int k = -down.reach; k <= down.reach; k++)
            rows[k + down.reach] = copy + (size_t)reflect(y + k, edit->height) * edit->row;
        edit->kernels->blur_rows(row, rows, (int)edit->row, down);
        reflect_ends(row, edit->width, edit->channels, across.reach);
        edit->kernels->blur_values(edit->pixels + (size_t)y * edit->row, row, (int)edit->row, across, edit->channels);
    }
    return 0;
}
