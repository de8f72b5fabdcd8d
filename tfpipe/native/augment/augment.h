/* Operations on a crop, uint8 [height][width][channels], in place; channels 1 or 3.
 *
 * Levels are those of torchvision.transforms.v2 on PIL images: where Pillow has the operation its arithmetic is kept,
 * so that results are equal. Plain C, AVX2 and NEON give equal results. Thread-safe, as long as each thread has its own
 * scratch. */
#ifndef TFPIPE_AUGMENT_H
#define TFPIPE_AUGMENT_H

#include <stddef.h>
#include <stdint.h>

#include "../crops.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Kinds of operations, and their `values`. A factor of 1 keeps the crop. */
enum tfpipe_kind {
    TFPIPE_IDENTITY,
    TFPIPE_INVERT,
    TFPIPE_POSTERIZE,    /* bits that are kept of a level, 0 to 8 */
    TFPIPE_SOLARIZE,     /* threshold: levels from it on are inverted */
    TFPIPE_AUTOCONTRAST, /* by channel: from the darkest and brightest level to 0 and 255 */
    TFPIPE_EQUALIZE,     /* by channel */
    TFPIPE_BRIGHTNESS,   /* factor: from black, 0 */
    TFPIPE_CONTRAST,     /* factor: from the mean luma */
    TFPIPE_SATURATION,   /* factor: from gray; the identity for 1 channel */
    TFPIPE_HUE,          /* shift in turns, [-0.5, 0.5]; the identity for 1 channel */
    TFPIPE_SHARPNESS,    /* factor: from the smoothed crop, except at the crop's borders */
    TFPIPE_GRAYSCALE,    /* all channels are the luma */
    TFPIPE_BLUR,         /* kernel width and height, both odd; sigma x and y in pixels, above 0. Half a kernel is less
                            than the crop's side, since borders are reflected */
    TFPIPE_WARP,         /* six coefficients of the inverse map, as Pillow's Image.transform(AFFINE) takes them */
    TFPIPE_FLIP_VERTICAL,
    TFPIPE_FLIP_HORIZONTAL,
    TFPIPE_ERASE,       /* top, left, height, width of a rectangle within the crop, filled with `fill` */
    TFPIPE_ERASE_NOISE, /* the same; filled with normal noise of ImageNet's mean and deviation, drawn from `seed` */
    TFPIPE_SAVE,        /* weight: keeps the crop as the original; the sum is weight times it */
    TFPIPE_ADD,         /* weight: adds weight times the crop to the sum, and begins again with the original */
    TFPIPE_LOAD,        /* the crop is the sum, truncated */
    TFPIPE_KINDS
};

struct tfpipe_operation {
    int32_t kind, interpolation; /* interpolation of a warp: 0 nearest, 1 bilinear */
    uint64_t seed;
    double values[6];
    uint8_t fill[4]; /* of a warp or an erased rectangle, by channel */
    uint8_t unused[4];
};

/* tfpipe.native.OPERATION: fields without gaps, in this order. */
_Static_assert(offsetof(struct tfpipe_operation, interpolation) == 4 && offsetof(struct tfpipe_operation, seed) == 8 &&
                   offsetof(struct tfpipe_operation, values) == 16 && offsetof(struct tfpipe_operation, fill) == 64 &&
                   offsetof(struct tfpipe_operation, unused) == 68 && sizeof(struct tfpipe_operation) == 72,
               "the module tfpipe.native has another layout");

#pragma GCC visibility push(default)

/* Applies `count` operations in turn. Returns 0, TFPIPE_ARGUMENT (values that `enum tfpipe_kind` does not accept, or an
 * ADD or LOAD without a SAVE before it: the crop is untouched) or TFPIPE_MEMORY. */
int tfpipe_operate(tfpipe_scratch *scratch, uint8_t *pixels, int height, int width, int channels,
                   const struct tfpipe_operation *operations, int count);

#pragma GCC visibility pop

#ifdef __cplusplus
}
#endif
#endif
