/* Affine maps of a crop, as Pillow's Image.transform(AFFINE) computes them (Geometry.c): a pixel's centre is mapped by
 * the coefficients; what lies outside of the crop is the fill colour. */
#include "edit.h"

#include <math.h>

static void fill_pixels(uint8_t *out, const struct warp *warp, int count) {
    for (int i = 0; i < count; i++)
        for (int c = 0; c < warp->channels; c++) *out++ = warp->fill[c];
}

INLINE void copy_pixel(uint8_t *out, const uint8_t *in, int channels) {
    for (int c = 0; c < channels; c++) out[c] = in[c];
}

/* Copies a pixel that is not the last of its run; the next one replaces the byte that is copied after its three. */
INLINE void copy_inner_pixel(uint8_t *out, const uint8_t *in, int channels) { memcpy(out, in, channels == 3 ? 4 : 1); }

static int64_t floor_divide(int64_t a, int64_t b) { return a / b - (a % b != 0 && (a < 0) != (b < 0)); }

/* A range of x, of which all but [from, to) are outside of the crop. */
struct range {
    int64_t from, to;
};

/* Narrows the range to those x for which 0 <= start + step * x < limit. */
static struct range narrow(struct range range, int64_t start, int64_t step, int64_t limit) {
    if (!step) return start >= 0 && start < limit ? range : (struct range){0, 0};
    int64_t from = -floor_divide(start, step), to = -floor_divide(start - limit, step);
    if (step < 0) from = floor_divide(limit - start, step) + 1, to = floor_divide(-start, step) + 1;
    if (from > range.from) range.from = from;
    if (to < range.to) range.to = to;
    return range.from < range.to ? range : (struct range){0, 0};
}

/* Copies `count` pixels from places with 16 fractional bits, that advance by `step`. */
INLINE void copy_fixed(uint8_t *out, const struct warp *warp, int64_t x, int64_t y, const int64_t step[2], int count,
                       int channels) {
    const uint8_t *in = warp->in;
    const size_t row = warp->row, pixel = (size_t)channels;
    for (; count > 1; count--, out += pixel, x += step[0], y += step[1])
        copy_inner_pixel(out, in + (size_t)(y >> 16) * row + (size_t)(x >> 16) * pixel, channels);
    if (count > 0) copy_pixel(out, in + (size_t)(y >> 16) * row + (size_t)(x >> 16) * pixel, channels);
}

/* Pillow's FIX: 16 fractional bits, rounded. */
static int64_t fixed(double value) { return (int64_t)floor(value * 65536.0 + 0.5); }

static void warp_fixed(const struct warp *warp, uint8_t *out) {
    const double *map = warp->map;
    int64_t x = fixed(map[2] + map[0] * 0.5 + map[1] * 0.5), y = fixed(map[5] + map[3] * 0.5 + map[4] * 0.5);
    const int64_t step[2] = {fixed(map[0]), fixed(map[3])}, next_x = fixed(map[1]), next_y = fixed(map[4]);
    for (int row = 0; row < warp->height; row++, out += warp->row, x += next_x, y += next_y) {
        struct range range = narrow((struct range){0, warp->width}, x, step[0], (int64_t)warp->width << 16);
        range = narrow(range, y, step[1], (int64_t)warp->height << 16);
        int from = (int)range.from, to = (int)range.to;
        fill_pixels(out, warp, from);
        uint8_t *first = out + (size_t)from * (size_t)warp->channels;
        int64_t start_x = x + step[0] * from, start_y = y + step[1] * from;
        if (warp->channels == 3)
            copy_fixed(first, warp, start_x, start_y, step, to - from, 3);
        else
            copy_fixed(first, warp, start_x, start_y, step, to - from, 1);
        fill_pixels(out + (size_t)to * (size_t)warp->channels, warp, warp->width - to);
    }
}

/* Copies `count` pixels from the offsets of their first bytes. */
INLINE void copy_columns(uint8_t *out, const uint8_t *row, const int32_t *offsets, int count, int channels) {
    for (; count > 1; count--, out += channels) copy_inner_pixel(out, row + *offsets++, channels);
    if (count > 0) copy_pixel(out, row + *offsets, channels);
}

/* Without rotation and shear all rows have the same columns. As Pillow does, adds up doubles. */
static void warp_scaled(const struct warp *warp, uint8_t *out, int32_t *offsets) {
    const double *map = warp->map;
    double x = map[2] + map[0] * 0.5, y = map[5] + map[4] * 0.5;
    int from = 0, to = 0; /* the columns that are within the crop */
    for (int i = 0; i < warp->width; i++, x += map[0]) {
        if (!(x >= 0 && x < warp->width)) continue;
        if (to == 0) from = i;
        to = i + 1;
        offsets[i] = (int32_t)x * warp->channels;
    }
    for (int row = 0; row < warp->height; row++, out += warp->row, y += map[4]) {
        int inside = y >= 0 && y < warp->height, first = inside ? from : 0, end = inside ? to : 0;
        const uint8_t *in = warp->in + (inside ? (size_t)y * warp->row : 0);
        fill_pixels(out, warp, first);
        if (warp->channels == 3)
            copy_columns(out + 3 * first, in, offsets + first, end - first, 3);
        else
            copy_columns(out + first, in, offsets + first, end - first, 1);
        fill_pixels(out + (size_t)end * (size_t)warp->channels, warp, warp->width - end);
    }
}

/* Where 16 bits do not hold all places, Pillow adds up doubles. */
static void warp_far(const struct warp *warp, uint8_t *out) {
    const double *map = warp->map;
    double row_x = map[2] + map[1] * 0.5 + map[0] * 0.5, row_y = map[5] + map[4] * 0.5 + map[3] * 0.5;
    for (int row = 0; row < warp->height; row++, row_x += map[1], row_y += map[4]) {
        double x = row_x, y = row_y;
        for (int i = 0; i < warp->width; i++, out += warp->channels, x += map[0], y += map[3]) {
            int inside = x >= 0 && x < warp->width && y >= 0 && y < warp->height;
            if (inside)
                copy_pixel(out, warp->in + (size_t)y * warp->row + (size_t)x * (size_t)warp->channels, warp->channels);
            else
                fill_pixels(out, warp, 1);
        }
    }
}

static int is_near(const double *map, int x, int y) {
    return fabs(x * map[0] + y * map[1] + map[2]) < 32768.0 && fabs(x * map[3] + y * map[4] + map[5]) < 32768.0;
}

static int warp_nearest(const struct edit *edit, struct warp *warp) {
    const double *map = warp->map;
    int height = warp->height, width = warp->width;
    int32_t *offsets = buffer_reserve(&edit->scratch->rows, (size_t)width * sizeof *offsets);
    warp->in = copy_crop(edit);
    if (!warp->in || !offsets) return TFPIPE_MEMORY;
    if (map[1] == 0 && map[3] == 0)
        warp_scaled(warp, edit->pixels, offsets);
    else if (is_near(map, 0, 0) && is_near(map, width, height) && is_near(map, 0, height) && is_near(map, width, 0))
        warp_fixed(warp, edit->pixels);
    else
        warp_far(warp, edit->pixels);
    return 0;
}

/* Where pixel i of a row comes from. Pillow has doubles here. */
struct place {
    double x, y;
};

INLINE struct place place_of(const struct warp *warp, int row, int i) {
    const double *map = warp->map;
    return (struct place){map[0] * (i + 0.5) + map[1] * (row + 0.5) + map[2],
                          map[3] * (i + 0.5) + map[4] * (row + 0.5) + map[5]};
}

void locate_plain(const struct warp *warp, int row, int from, int to) {
    for (int i = 0; i < to - from; i++) {
        struct place place = place_of(warp, row, from + i);
        double x = place.x - 0.5, y = place.y - 0.5, left = floor(x), top = floor(y);
        warp->offsets[i] = (int32_t)top * (int32_t)warp->row + (int32_t)left * warp->channels;
        warp->share_x[i] = (float)(x - left);
        warp->share_y[i] = (float)(y - top);
    }
}

INLINE float between(float a, float b, float share) { return a + (b - a) * share; }

/* Interpolates pixels [from, count). */
static void interpolate(uint8_t *out, const struct warp *warp, int from, int count) {
    const size_t pixel = (size_t)warp->channels;
    out += (size_t)from * pixel;
    for (int i = from; i < count; i++) {
        const uint8_t *upper = warp->in + warp->offsets[i], *lower = upper + warp->row;
        for (size_t c = 0; c < pixel; c++) {
            float before = between(upper[c], lower[c], warp->share_y[i]);
            float after = between(upper[c + pixel], lower[c + pixel], warp->share_y[i]);
            *out++ = (uint8_t)(int)between(before, after, warp->share_x[i]);
        }
    }
}

void interpolate_plain(uint8_t *out, const struct warp *warp, int count) { interpolate(out, warp, 0, count); }

#if HAVE_AVX2
AVX2 void locate_avx2(const struct warp *warp, int row, int from, int to) {
    const double *map = warp->map;
    const __m256d step_x = _mm256_set1_pd(map[0]), step_y = _mm256_set1_pd(map[3]);
    const __m256d row_x = _mm256_set1_pd(map[1] * (row + 0.5)), row_y = _mm256_set1_pd(map[4] * (row + 0.5));
    const __m256d start_x = _mm256_set1_pd(map[2]), start_y = _mm256_set1_pd(map[5]);
    const __m256d first = _mm256_setr_pd(0.5, 1.5, 2.5, 3.5);
    const __m128i pitch = _mm_set1_epi32((int)warp->row), pixel = _mm_set1_epi32(warp->channels);
    for (int i = 0; i < to - from; i += PLACES) {
        __m256d column = first + (double)(from + i);
        __m256d x = step_x * column + row_x + start_x - 0.5, y = step_y * column + row_y + start_y - 0.5;
        __m256d left = _mm256_floor_pd(x), top = _mm256_floor_pd(y);
        __m128i offsets = _mm_add_epi32(_mm_mullo_epi32(_mm256_cvttpd_epi32(top), pitch),
                                        _mm_mullo_epi32(_mm256_cvttpd_epi32(left), pixel));
        _mm_storeu_si128((__m128i *)(void *)(warp->offsets + i), offsets);
        _mm_storeu_ps(warp->share_x + i, _mm256_cvtpd_ps(x - left));
        _mm_storeu_ps(warp->share_y + i, _mm256_cvtpd_ps(y - top));
    }
}

AVX2 INLINE __m256 floats(const uint8_t *at) { /* an RGB pixel in each lane */
    const __m256i apart = _mm256_setr_epi8(0, -1, -1, -1, 1, -1, -1, -1, 2, -1, -1, -1, -1, -1, -1, -1, /* 3 to 5: */
                                           3, -1, -1, -1, 4, -1, -1, -1, 5, -1, -1, -1, -1, -1, -1, -1);
    int64_t bytes;
    memcpy(&bytes, at, sizeof bytes);
    return _mm256_cvtepi32_ps(_mm256_shuffle_epi8(_mm256_set1_epi64x(bytes), apart));
}

AVX2 INLINE __m256 between8(__m256 a, __m256 b, __m256 share) { return a + (b - a) * share; }

/* Interpolates between the rows of pixel i: the left one in a lane, the right one in the other. */
AVX2 INLINE __m256 between_rows(const struct warp *warp, int i) {
    const uint8_t *upper = warp->in + warp->offsets[i];
    return between8(floats(upper), floats(upper + warp->row), _mm256_broadcast_ss(warp->share_y + i));
}

/* Interpolates pixels i and i + 1: one in each lane. */
AVX2 INLINE __m256i two_pixels(const struct warp *warp, int i) {
    __m256 first = between_rows(warp, i), second = between_rows(warp, i + 1);
    __m256 share = _mm256_set_m128(_mm_broadcast_ss(warp->share_x + i + 1), _mm_broadcast_ss(warp->share_x + i));
    __m256 left = _mm256_permute2f128_ps(first, second, 0x20), right = _mm256_permute2f128_ps(first, second, 0x31);
    return _mm256_cvttps_epi32(between8(left, right, share));
}

AVX2 void interpolate_avx2(uint8_t *out, const struct warp *warp, int count) {
    const __m128i together = _mm_setr_epi8(0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, -1, -1, -1, -1);
    int i = 0;
    /* Four pixels are stored as 16 bytes: those after them are of the pixels that follow. */
    for (uint8_t *to = out; warp->channels == 3 && i + 6 <= count; i += 4, to += 12) {
        __m256i words = _mm256_packs_epi32(two_pixels(warp, i), two_pixels(warp, i + 2)); /* 0 and 2, 1 and 3 */
        __m256i bytes = _mm256_packus_epi16(words, words);
        __m128i pixels = _mm_unpacklo_epi32(_mm256_castsi256_si128(bytes), _mm256_extracti128_si256(bytes, 1));
        _mm_storeu_si128((__m128i *)(void *)to, _mm_shuffle_epi8(pixels, together));
    }
    interpolate(out, warp, i, count);
}
#elif HAVE_NEON
/* Interpolates between rows of four levels: their differences are those of floats. */
INLINE float32x4_t between_rows(int16x4_t upper, int16x4_t more, float share) {
    return vcvtq_f32_s32(vmovl_s16(upper)) + vcvtq_f32_s32(vmovl_s16(more)) * share;
}

/* Interpolates RGB pixel i; the fourth level has no meaning. */
INLINE uint16x4_t pixel_of(const struct warp *warp, int i) {
    const uint8_t *at = warp->in + warp->offsets[i];
    uint8x8_t above = vld1_u8(at), below = vld1_u8(at + warp->row);
    int16x8_t upper = vreinterpretq_s16_u16(vmovl_u8(above)), more = vreinterpretq_s16_u16(vsubl_u8(below, above));
    int16x8_t upper_right = vextq_s16(upper, upper, 3), more_right = vextq_s16(more, more, 3);
    float32x4_t left = between_rows(vget_low_s16(upper), vget_low_s16(more), warp->share_y[i]);
    float32x4_t right = between_rows(vget_low_s16(upper_right), vget_low_s16(more_right), warp->share_y[i]);
    return vmovn_u32(vcvtq_u32_f32(left + (right - left) * warp->share_x[i]));
}

void interpolate_neon(uint8_t *out, const struct warp *warp, int count) {
    static const uint8_t TOGETHER[16] = {0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, 255, 255, 255, 255};
    int i = 0;
    /* Four pixels are stored as 16 bytes: those after them are of the pixels that follow. */
    for (uint8_t *to = out; warp->channels == 3 && i + 6 <= count; i += 4, to += 12) {
        uint8x8_t first = vmovn_u16(vcombine_u16(pixel_of(warp, i), pixel_of(warp, i + 1)));
        uint8x8_t second = vmovn_u16(vcombine_u16(pixel_of(warp, i + 2), pixel_of(warp, i + 3)));
        vst1q_u8(to, vqtbl1q_u8(vcombine_u8(first, second), vld1q_u8(TOGETHER)));
    }
    interpolate(out, warp, i, count);
}
#endif

/* Copies the crop with its outermost pixels repeated around it, from which no neighbour is missing. */
static int set_bordered(const struct edit *edit, struct warp *warp) {
    const size_t pixel = (size_t)edit->channels;
    warp->row = edit->row + 2 * pixel;
    uint8_t *copy = buffer_reserve(&edit->scratch->planes, ((size_t)edit->height + 2) * warp->row + PAD);
    if (!copy) return TFPIPE_MEMORY;
    warp->in = copy + warp->row + pixel;
    for (int y = -1; y <= edit->height; y++, copy += warp->row) {
        int row = y < 0 ? 0 : y < edit->height ? y : edit->height - 1;
        const uint8_t *in = edit->pixels + (size_t)row * edit->row;
        memcpy(copy, in, pixel);
        memcpy(copy + pixel, in, edit->row);
        memcpy(copy + pixel + edit->row, in + edit->row - pixel, pixel);
    }
    return 0;
}

static int is_inside(const struct warp *warp, struct place place) {
    return place.x >= 0 && place.x < warp->width && place.y >= 0 && place.y < warp->height;
}

static int warp_bilinear(const struct edit *edit, struct warp *warp) {
    const size_t places = (size_t)edit->width + PLACES;
    warp->offsets = buffer_reserve(&edit->scratch->rows, places * (sizeof *warp->offsets + 2 * sizeof *warp->share_x));
    if (!warp->offsets || set_bordered(edit, warp)) return TFPIPE_MEMORY;
    warp->share_x = (float *)(void *)(warp->offsets + places);
    warp->share_y = warp->share_x + places;
    uint8_t *out = edit->pixels;
    for (int row = 0; row < warp->height; row++, out += edit->row) {
        int from = 0, to = warp->width; /* what is inside is a range, also with rounding */
        while (from < to && !is_inside(warp, place_of(warp, row, from))) from++;
        while (from < to && !is_inside(warp, place_of(warp, row, to - 1))) to--;
        fill_pixels(out, warp, from);
        edit->kernels->locate(warp, row, from, to);
        edit->kernels->interpolate(out + (size_t)from * (size_t)warp->channels, warp, to - from);
        fill_pixels(out + (size_t)to * (size_t)warp->channels, warp, warp->width - to);
    }
    return 0;
}

int apply_warp(const struct edit *edit) {
    struct warp warp = {.map = edit->operation->values,
                        .height = edit->height,
                        .width = edit->width,
                        .channels = edit->channels,
                        .row = edit->row,
                        .fill = edit->operation->fill};
    return (edit->operation->interpolation ? warp_bilinear : warp_nearest)(edit, &warp);
}
