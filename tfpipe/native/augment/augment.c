/* Applies operations to a crop: checks them, and has those that only move, copy or replace pixels. */
#include "edit.h"
#include "../hash.h"

#include <float.h>
#include <math.h>

/* Quantiles (i + 0.5) / 256 of the normal distribution, i from 128 on, times 4096; those before are their negatives. */
static const int16_t QUANTILES[128] = {
    20,   60,   100,  140,  181,  221,  261,  301,  341,  382,  422,  462,  503,   543,   584,  624,  665,  705,  746,
    787,  828,  869,  910,  951,  992,  1034, 1075, 1117, 1158, 1200, 1242, 1284,  1326,  1369, 1411, 1454, 1497, 1539,
    1583, 1626, 1669, 1713, 1757, 1801, 1845, 1890, 1935, 1979, 2025, 2070, 2116,  2162,  2208, 2255, 2301, 2348, 2396,
    2444, 2492, 2540, 2589, 2638, 2688, 2738, 2788, 2839, 2890, 2942, 2994, 3046,  3100,  3153, 3207, 3262, 3318, 3374,
    3430, 3487, 3545, 3604, 3664, 3724, 3785, 3847, 3910, 3973, 4038, 4104, 4170,  4238,  4307, 4378, 4450, 4523, 4597,
    4673, 4751, 4830, 4912, 4995, 5080, 5168, 5258, 5351, 5447, 5545, 5647, 5753,  5863,  5977, 6095, 6219, 6350, 6486,
    6631, 6784, 6948, 7123, 7312, 7519, 7746, 8001, 8290, 8628, 9038, 9565, 10324, 11820,
};

const uint8_t *copy_crop(const struct edit *edit) {
    uint8_t *copy = buffer_reserve(&edit->scratch->planes, edit->size + PAD);
    if (copy) memcpy(copy, edit->pixels, edit->size);
    return copy;
}

int apply_identity(const struct edit *edit) {
    (void)edit;
    return 0;
}

int flip_vertical(const struct edit *edit) {
    uint8_t *row = buffer_reserve(&edit->scratch->rows, edit->row);
    if (!row) return TFPIPE_MEMORY;
    uint8_t *upper = edit->pixels, *lower = edit->pixels + edit->size - edit->row;
    for (; upper < lower; upper += edit->row, lower -= edit->row) {
        memcpy(row, upper, edit->row);
        memcpy(upper, lower, edit->row);
        memcpy(lower, row, edit->row);
    }
    return 0;
}

int flip_horizontal(const struct edit *edit) {
    uint8_t *row = buffer_reserve(&edit->scratch->rows, edit->row);
    if (!row) return TFPIPE_MEMORY;
    for (uint8_t *to = edit->pixels, *end = to + edit->size; to < end; to += edit->row) {
        memcpy(row, to, edit->row);
        edit->kernels->mirror(to, row, edit->width, edit->channels);
    }
    return 0;
}

/* The rectangle's first pixel, and the bytes of its rows. */
struct rectangle {
    uint8_t *first;
    size_t rows, bytes;
};

static struct rectangle rectangle_of(const struct edit *edit) {
    const double *values = edit->operation->values;
    const size_t channels = (size_t)edit->channels;
    return (struct rectangle){edit->pixels + (size_t)values[0] * edit->row + (size_t)values[1] * channels,
                              (size_t)values[2], (size_t)values[3] * channels};
}

int apply_erase(const struct edit *edit) {
    struct rectangle rectangle = rectangle_of(edit);
    for (size_t i = 0, channel = 0; i < rectangle.bytes && rectangle.rows; i++) {
        rectangle.first[i] = edit->operation->fill[channel];
        if (++channel == (size_t)edit->channels) channel = 0;
    }
    for (size_t y = 1; y < rectangle.rows; y++)
        memcpy(rectangle.first + y * edit->row, rectangle.first, rectangle.bytes);
    return 0;
}

/* A byte of a hash chooses the quantile: 8 values a hash, where a normal number for each would cost an operation more
 * time than all others. The luma has green's mean and deviation. */
int apply_noise(const struct edit *edit) {
    static const double MEAN[3] = {0.485, 0.456, 0.406}, DEVIATION[3] = {0.229, 0.224, 0.225};
    uint8_t tables[3][256];
    for (int c = 0; c < 3; c++)
        for (int i = 0; i < 256; i++) {
            int channel = edit->channels == 1 ? 1 : c, quantile = i < 128 ? -QUANTILES[127 - i] : QUANTILES[i - 128];
            double level = floor(255 * (MEAN[channel] + DEVIATION[channel] * quantile / 4096) + 0.5);
            tables[c][i] = (uint8_t)(level < 0 ? 0 : level > 255 ? 255 : level);
        }
    struct rectangle rectangle = rectangle_of(edit);
    uint64_t state = edit->operation->seed;
    for (size_t y = 0; y < rectangle.rows; y++) {
        uint8_t *row = rectangle.first + y * edit->row;
        for (size_t i = 0; i < rectangle.bytes; i += sizeof state) {
            uint64_t eight = hash(state += GAMMA);
            size_t left = rectangle.bytes - i, count = left < sizeof eight ? left : sizeof eight;
            memcpy(row + i, &eight, count);
        }
        /* As a crop of its own: rows are mapped by channel. */
        edit->kernels->map(row, rectangle.bytes / (size_t)edit->channels, edit->channels,
                           (const uint8_t (*)[256])tables);
    }
    return 0;
}

/* AugMix's original and sum are in the scratch's data: an operation between uses planes and rows. */
static uint8_t *original_of(const struct edit *edit) {
    return (uint8_t *)edit->scratch->data.memory + edit->size * sizeof(float);
}

int apply_save(const struct edit *edit) {
    float *sum = buffer_reserve(&edit->scratch->data, edit->size * (sizeof *sum + 1));
    if (!sum) return TFPIPE_MEMORY;
    memcpy(original_of(edit), edit->pixels, edit->size);
    float weight = (float)edit->operation->values[0];
    for (size_t i = 0; i < edit->size; i++) sum[i] = weight * edit->pixels[i];
    return 0;
}

int apply_add(const struct edit *edit) {
    float *sum = edit->scratch->data.memory, weight = (float)edit->operation->values[0];
    for (size_t i = 0; i < edit->size; i++) sum[i] += weight * edit->pixels[i];
    memcpy(edit->pixels, original_of(edit), edit->size);
    return 0;
}

int apply_load(const struct edit *edit) {
    const float *sum = edit->scratch->data.memory;
    uint8_t *pixels = edit->pixels;
    for (size_t i = 0, size = edit->size; i < size; i++) {
        float level = sum[i] > 0 ? sum[i] : 0;
        pixels[i] = (uint8_t)(int)(level < 255 ? level : 255);
    }
    return 0;
}

static const struct {
    apply_operation *apply;
    int values;
} APPLIED[] = {
#define ROW(kind, apply, values, most) {apply, values},
    TFPIPE_OPERATIONS(ROW)};

/* Returns whether the value is a whole number within [least, most]. */
static int is_whole(double value, int least, int most) {
    return value >= least && value <= most && value == (double)(int)value;
}

/* Returns whether a span of a whole number of pixels is within a side. */
static int is_within(double start, double size, int side) {
    return is_whole(start, 0, side) && is_whole(size, 0, side) && start + size <= side;
}

/* Returns whether half of a blur's kernel is less than the side. */
static int is_kernel(double size, int side) { return is_whole(size, 1, 2 * side - 1) && ((int)size & 1); }

static int is_valid(const struct edit *edit, const struct tfpipe_operation *operation) {
    if (operation->kind < 0 || operation->kind >= TFPIPE_KINDS) return 0;
    const double *values = operation->values;
    for (int i = 0; i < APPLIED[operation->kind].values; i++)
        if (!(fabs(values[i]) <= (double)FLT_MAX)) return 0; /* nor NaN */
    switch (operation->kind) {
    case TFPIPE_POSTERIZE: return is_whole(values[0], 0, 8);
    case TFPIPE_HUE: return fabs(values[0]) <= 0.5;
    case TFPIPE_BLUR:
        return is_kernel(values[0], edit->width) && is_kernel(values[1], edit->height) && values[2] > 0 &&
               values[3] > 0;
    case TFPIPE_WARP: return operation->interpolation == 0 || operation->interpolation == 1;
    case TFPIPE_ERASE:
    case TFPIPE_ERASE_NOISE:
        return is_within(values[0], values[2], edit->height) && is_within(values[1], values[3], edit->width);
    default: return 1;
    }
}

static int check(const struct edit *edit, const struct tfpipe_operation *operations, int count) {
    const int height = edit->height, width = edit->width, channels = edit->channels;
    if (height < 1 || width < 1 || height > MAX_SIDE || width > MAX_SIDE || (channels != 1 && channels != 3) ||
        (int64_t)height * width * channels >= MAX_BYTES || count < 0)
        return TFPIPE_ARGUMENT;
    for (int i = 0, saved = 0; i < count; i++) {
        if (!is_valid(edit, operations + i)) return TFPIPE_ARGUMENT;
        int kind = operations[i].kind;
        saved |= kind == TFPIPE_SAVE;
        if (!saved && (kind == TFPIPE_ADD || kind == TFPIPE_LOAD)) return TFPIPE_ARGUMENT;
    }
    return 0;
}

static const struct level_kernels KERNELS[] = {
    {map_plain, blend_levels_plain, luma_plain, hue_plain, range_plain, sum_luma_plain, smooth_plain, blur_rows_plain,
     blur_values_plain, locate_plain, interpolate_plain, mirror_plain},
#if HAVE_AVX2
    {map_avx2, blend_levels_avx2, luma_avx2, hue_avx2, range_avx2, sum_luma_avx2, smooth_avx2, blur_rows_avx2,
     blur_values_avx2, locate_avx2, interpolate_avx2, mirror_avx2},
#elif HAVE_NEON
    {map_neon, blend_levels_neon, luma_plain, hue_neon, range_plain, sum_luma_plain, smooth_plain, blur_rows_neon,
     blur_values_neon, locate_plain, interpolate_neon, mirror_neon}, /* compilers make NEON code of the plain ones */
#endif
};

int tfpipe_operate(tfpipe_scratch *scratch, uint8_t *pixels, int height, int width, int channels,
                   const struct tfpipe_operation *operations, int count) {
    struct edit edit = {scratch, operations, KERNELS + simd_level(), pixels, height, width, channels, 0, 0};
    int status = check(&edit, operations, count);
    if (status) return status;
    edit.row = (size_t)width * (size_t)channels;
    edit.size = (size_t)height * edit.row;
    for (; !status && count > 0; count--, edit.operation++) status = APPLIED[edit.operation->kind].apply(&edit);
    return status;
}
