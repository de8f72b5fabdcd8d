/* Affine maps of a crop, as Pillow's Image.transform(AFFINE) computes them (Geometry.c): a pixel's centre is mapped by
 * the coefficients; what lies outside of the crop is the fill colour. */
#include "edit.h"

#include <math.h>
#include <string.h>

/* A warp: the crop's old pixels, and where the new ones come from. */
struct warp {
    const uint8_t *in;
    const double *map; /* x = map[0] * x + map[1] * y + map[2], and y by the next three */
    int height, width, channels;
    size_t row; /* bytes */
    const uint8_t *fill;
};

static void fill_pixels(uint8_t *out, const struct warp *warp, int count) {
    for (int i = 0; i < count; i++)
        for (int c = 0; c < warp->channels; c++) *out++ = warp->fill[c];
}

INLINE void copy_pixel(uint8_t *out, const uint8_t *in, int channels) {
    for (int c = 0; c < channels; c++) out[c] = in[c];
}

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

/* Copies `count` pixels from places with 16 fractional bits, that advance by dx and dy. */
INLINE void copy_fixed(uint8_t *out, const struct warp *warp, int64_t x, int64_t y, const int64_t step[2], int count,
                       int channels) {
    for (int i = 0; i < count; i++, out += channels, x += step[0], y += step[1])
        copy_pixel(out, warp->in + (size_t)(y >> 16) * warp->row + (size_t)(x >> 16) * (size_t)channels, channels);
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

/* Sums of doubles, as Pillow has them for maps without rotation and for places that 16 bits do not hold. */
static void warp_summed(const struct warp *warp, uint8_t *out) {
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

static void warp_nearest(const struct warp *warp, uint8_t *out) {
    const double *map = warp->map;
    int height = warp->height, width = warp->width;
    if ((map[1] != 0 || map[3] != 0) && is_near(map, 0, 0) && is_near(map, width, height) && is_near(map, 0, height) &&
        is_near(map, width, 0))
        warp_fixed(warp, out);
    else
        warp_summed(warp, out);
}

static double between(double a, double b, double share) { return a + (b - a) * share; }

/* Interpolates at (x, y), which is within the crop. Truncates, as Pillow does. */
static void interpolate(uint8_t *out, const struct warp *warp, double x, double y) {
    x -= 0.5;
    y -= 0.5;
    int left = (int)floor(x), top = (int)floor(y);
    double share_x = x - left, share_y = y - top;
    size_t from = (size_t)(left < 0 ? 0 : left) * (size_t)warp->channels;
    size_t to = (size_t)(left + 1 < warp->width ? left + 1 : left) * (size_t)warp->channels;
    const uint8_t *upper = warp->in + (size_t)(top < 0 ? 0 : top) * warp->row;
    const uint8_t *lower = top + 1 < warp->height ? warp->in + (size_t)(top + 1) * warp->row : upper;
    for (int c = 0; c < warp->channels; c++) {
        double above = between(upper[from + (size_t)c], upper[to + (size_t)c], share_x);
        double below = between(lower[from + (size_t)c], lower[to + (size_t)c], share_x);
        out[c] = (uint8_t)between(above, below, share_y);
    }
}

static void warp_bilinear(const struct warp *warp, uint8_t *out) {
    const double *map = warp->map;
    for (int row = 0; row < warp->height; row++)
        for (int i = 0; i < warp->width; i++, out += warp->channels) {
            double x = map[0] * (i + 0.5) + map[1] * (row + 0.5) + map[2];
            double y = map[3] * (i + 0.5) + map[4] * (row + 0.5) + map[5];
            if (x >= 0 && x < warp->width && y >= 0 && y < warp->height)
                interpolate(out, warp, x, y);
            else
                fill_pixels(out, warp, 1);
        }
}

int apply_warp(const struct edit *edit, const struct tfpipe_operation *operation) {
    struct warp warp = {copy_crop(edit), operation->values, edit->height,   edit->width,
                        edit->channels,  edit->row,         operation->fill};
    if (!warp.in) return TFPIPE_MEMORY;
    (operation->interpolation ? warp_bilinear : warp_nearest)(&warp, edit->pixels);
    return 0;
}
