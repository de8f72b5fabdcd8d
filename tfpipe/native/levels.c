/* Operations that change levels where they are: tables, as of Pillow's ImageOps, and blends, as of its ImageEnhance. */
#include "edit.h"

#include <math.h>
#include <string.h>

/* Luma, as of Pillow's convert("L"): weights of 1 << 16. */
enum { RED = 19595, GREEN = 38470, BLUE = 7471 };
_Static_assert(RED + GREEN + BLUE == 1 << 16, "the luma of gray is another gray");

void map_plain(uint8_t *values, size_t pixels, int channels, const uint8_t (*tables)[256]) {
    for (size_t i = 0; i < pixels; i++)
        for (int c = 0; c < channels; c++, values++) *values = tables[c][*values];
}

INLINE void blend_any(uint8_t *restrict values, const uint8_t *restrict from, size_t n, float factor) {
    for (size_t i = 0; i < n; i++) {
        float level = (float)from[i] + factor * (float)(values[i] - from[i]);
        level = level > 0 ? level : 0;
        values[i] = (uint8_t)(int)(level < 255 ? level : 255);
    }
}

void blend_levels_plain(uint8_t *values, const uint8_t *from, size_t n, float factor) {
    blend_any(values, from, n, factor);
}

void gray_plain(uint8_t *out, const uint8_t *in, int n) {
    for (int i = 0; i < n; i++, out += 3, in += 3)
        out[0] = out[1] = out[2] = (uint8_t)((RED * in[0] + GREEN * in[1] + BLUE * in[2] + 0x8000) >> 16);
}

void range_plain(const uint8_t *pixels, size_t n, int channels, uint8_t *lowest, uint8_t *highest) {
    for (size_t i = 0; i < n; i++)
        for (int c = 0; c < channels; c++, pixels++) {
            if (*pixels < lowest[c]) lowest[c] = *pixels;
            if (*pixels > highest[c]) highest[c] = *pixels;
        }
}

INLINE float smaller(float a, float b) { return a < b ? a : b; }
INLINE float larger(float a, float b) { return a > b ? a : b; }
INLINE float unit(float x) { return smaller(larger(x, 0), 1); }

/* torchvision's adjust_hue (functional/_color.py), in the same steps of float32: RGB to HSV, the turn, and back. */
INLINE void turn_pixel(uint8_t *pixel, float shift) {
    float r = (float)pixel[0] * (1 / 255.0f), g = (float)pixel[1] * (1 / 255.0f), b = (float)pixel[2] * (1 / 255.0f);
    float most = larger(larger(r, g), b), least = smaller(smaller(r, g), b), spread = most - least;
    float saturation = spread / (most > least ? most : 1), divisor = most > least ? spread : 1;
    float to_r = (most - r) / divisor, to_g = (most - g) / divisor, to_b = (most - b) / divisor;
    float hue = most == r ? to_b - to_g : most == g ? to_r + 2 - to_b : to_g + 4 - to_r;
    hue = hue * (1 / 6.0f) + 1;
    hue = (hue >= 1 ? hue - 1 : hue) + shift;
    hue = hue < 0 ? hue + 1 : hue >= 1 ? hue - 1 : hue;
    hue *= 6;
    int sextant = (int)hue;
    float part = hue - (float)sextant, product = saturation * part, rest = 1 - saturation;
    float q = unit((1 - product) * most), t = unit((product + rest) * most), p = unit(rest * most);
    sextant = sextant == 6 ? 0 : sextant;
    r = sextant == 0 || sextant == 5 ? most : sextant == 1 ? q : sextant == 4 ? t : p;
    g = sextant == 1 || sextant == 2 ? most : sextant == 3 ? q : sextant == 0 ? t : p;
    b = sextant == 3 || sextant == 4 ? most : sextant == 5 ? q : sextant == 2 ? t : p;
    pixel[0] = (uint8_t)(int)(r * 255.999f);
    pixel[1] = (uint8_t)(int)(g * 255.999f);
    pixel[2] = (uint8_t)(int)(b * 255.999f);
}

void hue_plain(uint8_t *pixels, int n, float shift) {
    for (int i = 0; i < n; i++) turn_pixel(pixels + 3 * i, shift);
}

static int map_all(const struct edit *edit, const uint8_t table[256]) {
    edit->kernels->map(edit->pixels, edit->size, 1, (const uint8_t (*)[256])table);
    return 0;
}

static int map_channels(const struct edit *edit, const uint8_t (*tables)[256]) {
    edit->kernels->map(edit->pixels, edit->size / (size_t)edit->channels, edit->channels, tables);
    return 0;
}

int apply_invert(const struct edit *edit, const struct tfpipe_operation *operation) {
    uint8_t table[256];
    (void)operation;
    for (int i = 0; i < 256; i++) table[i] = (uint8_t)(255 - i);
    return map_all(edit, table);
}

int apply_posterize(const struct edit *edit, const struct tfpipe_operation *operation) {
    uint8_t table[256];
    int mask = 0xff00 >> (int)operation->values[0];
    for (int i = 0; i < 256; i++) table[i] = (uint8_t)(i & mask);
    return map_all(edit, table);
}

int apply_solarize(const struct edit *edit, const struct tfpipe_operation *operation) {
    uint8_t table[256];
    for (int i = 0; i < 256; i++) table[i] = (uint8_t)(i < operation->values[0] ? i : 255 - i);
    return map_all(edit, table);
}

int apply_autocontrast(const struct edit *edit, const struct tfpipe_operation *operation) {
    uint8_t tables[3][256], lowest[3] = {255, 255, 255}, highest[3] = {0};
    (void)operation;
    edit->kernels->range(edit->pixels, edit->size / (size_t)edit->channels, edit->channels, lowest, highest);
    for (int c = 0; c < edit->channels; c++) {
        int keep = highest[c] <= lowest[c];
        double scale = keep ? 1 : 255.0 / (highest[c] - lowest[c]), offset = keep ? 0 : -lowest[c] * scale;
        for (int i = 0; i < 256; i++) {
            double level = i * scale + offset;
            tables[c][i] = (uint8_t)(int)(level < 0 ? 0 : level > 255 ? 255 : level);
        }
    }
    return map_channels(edit, tables);
}

/* Sets a channel's table from its histogram. */
static void set_equalized(uint8_t *table, const uint32_t *histogram) {
    uint64_t total = 0, last = 0;
    for (int i = 0; i < 256; i++) {
        total += histogram[i];
        if (histogram[i]) last = histogram[i];
    }
    uint64_t step = (total - last) / 255, sum = step / 2;
    for (int i = 0; i < 256; sum += histogram[i++]) {
        uint64_t level = step ? sum / step : (uint64_t)i;
        table[i] = (uint8_t)(level < 255 ? level : 255);
    }
}

int apply_equalize(const struct edit *edit, const struct tfpipe_operation *operation) {
    uint32_t histograms[2][3][256] = {0}; /* two, since a level often follows itself */
    uint8_t tables[3][256];
    const uint8_t *value = edit->pixels;
    const size_t pixels = edit->size / (size_t)edit->channels;
    (void)operation;
    for (size_t i = 0; i < pixels; i++)
        for (int c = 0; c < edit->channels; c++) histograms[i & 1][c][*value++]++;
    for (int c = 0; c < edit->channels; c++) {
        for (int i = 0; i < 256; i++) histograms[0][c][i] += histograms[1][c][i];
        set_equalized(tables[c], histograms[0][c]);
    }
    return map_channels(edit, tables);
}

int apply_brightness(const struct edit *edit, const struct tfpipe_operation *operation) {
    uint8_t table[256], black[256] = {0};
    for (int i = 0; i < 256; i++) table[i] = (uint8_t)i;
    edit->kernels->blend(table, black, 256, (float)operation->values[0]);
    return map_all(edit, table);
}

static uint64_t sum_of(const uint8_t *values, size_t n) {
    uint64_t sum = 0;
    for (size_t i = 0; i < n; i++) sum += values[i];
    return sum;
}

int apply_contrast(const struct edit *edit, const struct tfpipe_operation *operation) {
    uint8_t table[256], mean[256], *luma = buffer_reserve(&edit->scratch->rows, edit->row);
    if (!luma) return TFPIPE_MEMORY;
    uint64_t sum = 0;
    for (int y = 0; y < edit->height; y++) {
        const uint8_t *row = edit->pixels + (size_t)y * edit->row;
        if (edit->channels == 3) edit->kernels->gray(luma, row, edit->width);
        sum += sum_of(edit->channels == 3 ? luma : row, edit->row);
    }
    memset(mean, (int)((double)sum / (double)edit->size + 0.5), sizeof mean);
    for (int i = 0; i < 256; i++) table[i] = (uint8_t)i;
    edit->kernels->blend(table, mean, 256, (float)operation->values[0]);
    return map_all(edit, table);
}

int apply_saturation(const struct edit *edit, const struct tfpipe_operation *operation) {
    if (edit->channels == 1) return 0;
    uint8_t *gray = buffer_reserve(&edit->scratch->rows, edit->row), *row = edit->pixels;
    if (!gray) return TFPIPE_MEMORY;
    for (int y = 0; y < edit->height; y++, row += edit->row) {
        edit->kernels->gray(gray, row, edit->width);
        edit->kernels->blend(row, gray, edit->row, (float)operation->values[0]);
    }
    return 0;
}

int apply_hue(const struct edit *edit, const struct tfpipe_operation *operation) {
    if (edit->channels == 1) return 0;
    for (int y = 0; y < edit->height; y++)
        edit->kernels->hue(edit->pixels + (size_t)y * edit->row, edit->width, (float)operation->values[0]);
    return 0;
}

int apply_grayscale(const struct edit *edit, const struct tfpipe_operation *operation) {
    (void)operation;
    if (edit->channels == 1) return 0;
    for (int y = 0; y < edit->height; y++) {
        uint8_t *row = edit->pixels + (size_t)y * edit->row;
        edit->kernels->gray(row, row, edit->width);
    }
    return 0;
}
