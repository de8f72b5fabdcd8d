/* Operations on a crop, uint8 [height][width][channels], in place; channels 1 or 3.
 *
 * Levels are those of torchvision.transforms.v2 on PIL images: where Pillow has the operation its arithmetic is kept,
 * so that results are equal. Plain C, AVX2 and NEON give equal results. Thread-safe, as long as each thread has its own
 * scratch. */
#pragma once

#include "../crops.h"

/* All operations: kind, function, how many values it takes, and the largest value in a step of this operation alone. One
 * more is a row here and the function, and a row in tfpipe/config/augment.py that makes a step of it. */
/* clang-format off */
#define TFPIPE_OPERATIONS(ROW) \
    ROW(IDENTITY, apply_identity, 0, 0) \
    ROW(INVERT, apply_invert, 0, 0) \
    ROW(POSTERIZE, apply_posterize, 1, 8)       /* bits that are kept of a level, 0 to 8 */ \
    ROW(SOLARIZE, apply_solarize, 1, 255)       /* threshold: levels from it on are inverted */ \
    ROW(AUTOCONTRAST, apply_autocontrast, 0, 0) /* by channel: from the darkest and brightest level to 0 and 255 */ \
    ROW(EQUALIZE, apply_equalize, 0, 0)         /* by channel */ \
    ROW(BRIGHTNESS, apply_brightness, 1, 1e6)   /* factor, from black, 0; 1 keeps the crop */ \
    ROW(CONTRAST, apply_contrast, 1, 1e6)       /* factor, from the mean luma */ \
    ROW(SATURATION, apply_saturation, 1, 1e6)   /* factor, from gray; the identity for 1 channel */ \
    ROW(HUE, apply_hue, 1, 0.5)                 /* shift in turns, [-0.5, 0.5]; the identity for 1 channel */ \
    ROW(SHARPNESS, apply_sharpness, 1, 1e6)     /* factor, from the smoothed crop, except at the crop's borders */ \
    ROW(GRAYSCALE, apply_grayscale, 0, 0)       /* all channels are the luma */ \
    ROW(BLUR, apply_blur, 4, 0)                 /* odd kernel width and height, below twice the sides; sigma x, y */ \
    ROW(WARP, apply_warp, 6, 0)                 /* inverse map, as Pillow's Image.transform(AFFINE) takes it */ \
    ROW(FLIP_VERTICAL, flip_vertical, 0, 0) \
    ROW(FLIP_HORIZONTAL, flip_horizontal, 0, 0) \
    ROW(ERASE, apply_erase, 4, 0)               /* top, left, height, width within the crop, filled with `fill` */ \
    ROW(ERASE_NOISE, apply_noise, 4, 0)         /* the same, normal noise with ImageNet's mean, by `seed` */ \
    ROW(SAVE, apply_save, 1, 0)                 /* weight: the crop is the original, weight times it the sum */ \
    ROW(ADD, apply_add, 1, 0)                   /* weight: adds weight times the crop; then the original */ \
    ROW(LOAD, apply_load, 0, 0)                 /* the crop is the sum, truncated */
/* clang-format on */
enum tfpipe_kind { TFPIPE_OPERATIONS(TFPIPE_ENUMERATOR) TFPIPE_KINDS };

struct tfpipe_operation {
    int32_t kind, interpolation; /* interpolation of a warp: 0 nearest, 1 bilinear */
    uint64_t seed;
    double values[6];
    uint8_t fill[4]; /* of a warp or an erased rectangle, by channel */
    uint8_t unused[4];
};

#pragma GCC visibility push(default)

/* Applies `count` operations in turn. Returns 0, TFPIPE_ARGUMENT (values that an operation does not accept, or an
 * ADD or LOAD without a SAVE before it: the crop is untouched) or TFPIPE_MEMORY. */
int tfpipe_operate(tfpipe_scratch *scratch, uint8_t *pixels, int height, int width, int channels,
                   const struct tfpipe_operation *operations, int count);

#pragma GCC visibility pop
