/* Operations on neighbouring pixels: sharpness, as of Pillow's ImageEnhance, and torchvision's Gaussian blur. */
#include "edit.h"

#include <math.h>
#include <string.h>

enum {
    SMOOTH = 13,       /* sum of the weights of Pillow's ImageFilter.SMOOTH: 1, and 5 in the middle */
    ONE = 1 << 15,     /* sum of a blur's weights */
    ROWS_SHIFT = 9,    /* from 8 + 15 bits to 8 + 6, which fit in 16 even if two are added */
    VALUES_SHIFT = 21, /* from 8 + 6 + 15 bits to 8 */
};

/* The sum is a whole number, and never halfway: floor(sum / 13 + 0.5) = floor((sum + 6) / 13). */
void smooth_plain(uint8_t *restrict out, const uint8_t *const rows[3], int n, int step) {
    for (int i = 0; i < n; i++) {
        int sum = 4 * rows[1][i];
        for (int k = 0; k < 3; k++) sum += rows[k][i - step] + rows[k][i] + rows[k][i + step];
        out[i] = (uint8_t)((sum + SMOOTH / 2) / SMOOTH);
    }
}

int apply_sharpness(const struct edit *edit, const struct tfpipe_operation *operation) {
    if (edit->height < 3 || edit->width < 3) return 0;
    const uint8_t *copy = copy_crop(edit);
    uint8_t *smooth = buffer_reserve(&edit->scratch->rows, edit->row + PAD);
    if (!copy || !smooth) return TFPIPE_MEMORY;
    const size_t step = (size_t)edit->channels, n = edit->row - 2 * step;
    for (int y = 1; y < edit->height - 1; y++) {
        const uint8_t *here = copy + (size_t)y * edit->row + step;
        const uint8_t *const rows[3] = {here - edit->row, here, here + edit->row};
        edit->kernels->smooth(smooth, rows, (int)n, edit->channels);
        edit->kernels->blend(edit->pixels + (size_t)y * edit->row + step, smooth, n, (float)operation->values[0]);
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

/* Sets weights[0..reach] of exp(-distance^2 / (2 sigma^2)), and returns the largest distance whose weight is not 0. What
 * a weight loses by rounding, the next one gets. */
static int set_weights(int16_t *weights, int reach, double sigma) {
    double sum = 1, scale = -0.5 / (sigma * sigma), rest = 0;
    for (int k = 1; k <= reach; k++) sum += 2 * exp(scale * k * k);
    int first = ONE, last = 0;
    for (int k = 1; k <= reach; k++) {
        rest += exp(scale * k * k) / sum * ONE;
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

int apply_blur(const struct edit *edit, const struct tfpipe_operation *operation) {
    const int reach_x = (int)operation->values[0] / 2, reach_y = (int)operation->values[1] / 2;
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
    struct taps across = {weights_x, set_weights(weights_x, reach_x, operation->values[2])};
    struct taps down = {weights_y, set_weights(weights_y, reach_y, operation->values[3])};
    for (int y = 0; y < edit->height; y++) {
        for (int k = -down.reach; k <= down.reach; k++)
            rows[k + down.reach] = copy + (size_t)reflect(y + k, edit->height) * edit->row;
        edit->kernels->blur_rows(row, rows, (int)edit->row, down);
        reflect_ends(row, edit->width, edit->channels, across.reach);
        edit->kernels->blur_values(edit->pixels + (size_t)y * edit->row, row, (int)edit->row, across, edit->channels);
    }
    return 0;
}
