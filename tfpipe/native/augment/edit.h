/* Types and functions that the files of the operations on a crop share; augment.h is the interface. */
#pragma once

#include "augment.h"
#include "../pixels/rows.h"
#include "../scratch.h"

/* Replaces each value by its entry of the channel's table. */
typedef void map_levels(uint8_t *values, size_t pixels, int channels, const uint8_t (*tables)[256]);
/* Moves values away from `from`, or towards it: from + factor * (value - from), in float32, clipped and truncated, as
 * Pillow's ImagingBlend does. */
typedef void blend_levels(uint8_t *values, const uint8_t *from, size_t n, float factor);
/* Writes the luma of n RGB pixels three times each. `out` may be `in`. */
typedef void gray_row(uint8_t *out, const uint8_t *in, int n);
/* Turns the hue of n RGB pixels by a shift in [-0.5, 0.5]. */
typedef void turn_hue(uint8_t *pixels, int n, float shift);
/* Widens [lowest[c], highest[c]] to the levels of each channel, of n values. */
typedef void find_range(const uint8_t *values, size_t n, int channels, uint8_t *lowest, uint8_t *highest);
typedef uint32_t sum_levels(const uint8_t *values, int n);
/* Smooths the row `rows[1]` of n values by the rows before and after it, and the values `step` before and after; the
 * `step` first and last ones are left out. `sums`: memory for n. */
typedef void smooth_row(uint8_t *out, const uint8_t *const rows[3], uint16_t *sums, int n, int step);

/* A symmetric filter: weights of 1 << 15 in sum, that of distance 0 first. */
struct taps {
    const int16_t *weights;
    int reach; /* the largest distance */
};
/* Filters across rows [2 * reach + 1]: writes n values, with 6 fractional bits; up to PAD bytes more. */
typedef void blur_rows(int16_t *out, const uint8_t *const *rows, int n, struct taps taps);
/* Filters along a row of blur_rows: values `step` apart. row[-reach * step] to row[n + reach * step] are readable. */
typedef void blur_values(uint8_t *out, const int16_t *row, int n, struct taps taps, int step);

enum { PLACES = 4 }; /* that are worked out at a time */
/* A warp: the crop's old pixels, and where the new ones come from. */
struct warp {
    const uint8_t *in;
    const double *map; /* x = map[0] * x + map[1] * y + map[2], and y by the next three */
    int height, width, channels;
    size_t row; /* bytes from a row of `in` to the next */
    const uint8_t *fill;
    /* Of a bilinear one, by pixel of a row [width + PLACES]: from `in` to the upper left of its four neighbours, and how
     * far it is to the right and below. */
    int32_t *offsets;
    float *share_x, *share_y;
};
/* Sets the places of pixels [from, to) of a row, from offsets[0] on. They are within the crop, and `in` has a border. */
typedef void locate_row(const struct warp *warp, int row, int from, int to);
/* Pillow interpolates doubles, between columns first, and truncates: a level that is almost a whole number may differ by
 * one. */
typedef void interpolate_row(uint8_t *out, const struct warp *warp, int count);

struct level_kernels {
    map_levels *map;
    blend_levels *blend;
    gray_row *gray;
    turn_hue *hue;
    find_range *range;
    sum_levels *sum;
    smooth_row *smooth;
    blur_rows *blur_rows;
    blur_values *blur_values;
    locate_row *locate;
    interpolate_row *interpolate;
    mirror_row *mirror;
};

map_levels map_plain, map_avx2, map_neon;
blend_levels blend_levels_plain, blend_levels_avx2, blend_levels_neon;
gray_row luma_plain, luma_avx2;
turn_hue hue_plain, hue_avx2, hue_neon;
find_range range_plain, range_avx2;
sum_levels sum_luma_plain, sum_luma_avx2;
smooth_row smooth_plain, smooth_avx2;
blur_rows blur_rows_plain, blur_rows_avx2, blur_rows_neon;
blur_values blur_values_plain, blur_values_avx2, blur_values_neon;
locate_row locate_plain, locate_avx2;
interpolate_row interpolate_plain, interpolate_avx2, interpolate_neon;

/* A crop that operations are applied to. */
struct edit {
    tfpipe_scratch *scratch;
    const struct tfpipe_operation *operation; /* the one that is applied */
    const struct level_kernels *kernels;
    uint8_t *pixels;
    int height, width, channels;
    size_t row, size; /* bytes of a row, of the crop */
};

/* Returns a copy of the crop, with PAD readable bytes after it, in the scratch's planes; NULL: no memory. */
const uint8_t *copy_crop(const struct edit *edit);

/* An operation with checked values. Returns 0 or TFPIPE_MEMORY. The scratch's planes and rows are free for it. */
typedef int apply_operation(const struct edit *edit);

#define DECLARE(kind, apply, values, most) apply_operation apply;
TFPIPE_OPERATIONS(DECLARE)
#undef DECLARE
