/* Operations on a crop, uint8 [height][width][channels], in place; channels 1 or 3. */
#ifndef TFPIPE_AUGMENT_H
#define TFPIPE_AUGMENT_H

#include "crops.h"

enum tfpipe_kind {
    TFPIPE_IDENTITY, TFPIPE_INVERT, TFPIPE_POSTERIZE /* bits */, TFPIPE_SOLARIZE /* threshold */, TFPIPE_AUTOCONTRAST, TFPIPE_EQUALIZE,
    TFPIPE_BRIGHTNESS /* factor */, TFPIPE_CONTRAST /* factor */, TFPIPE_SATURATION /* factor */, TFPIPE_HUE /* shift, [-0.5, 0.5] */,
    TFPIPE_SHARPNESS /* factor */, TFPIPE_GRAYSCALE, TFPIPE_BLUR /* kernel width, kernel height, sigma x, sigma y */,
    TFPIPE_WARP /* six coefficients of the inverse map, as Pillow's Image.transform(AFFINE) takes them */,
    TFPIPE_FLIP_VERTICAL, TFPIPE_FLIP_HORIZONTAL,
    TFPIPE_ERASE /* top, left, height, width; filled with `fill` */, TFPIPE_ERASE_NOISE /* the same; normal noise drawn from seed */,
    TFPIPE_SAVE /* weight: keeps the crop as the original; the sum is weight times it */, TFPIPE_ADD /* weight: adds the crop to the sum, and begins again with the original */,
    TFPIPE_LOAD /* the crop is the sum, truncated */, TFPIPE_KINDS
};
struct tfpipe_operation {
    int32_t kind, interpolation; /* interpolation of a warp: 0 nearest, 1 bilinear */
    uint64_t seed;
    double values[6];
    uint8_t fill[4];             /* of a warp or an erased rectangle, by channel */
};
#pragma GCC visibility push(default)
/* Applies `count` operations in turn. Returns 0 or TFPIPE_ARGUMENT (crop untouched) or TFPIPE_MEMORY. */
int tfpipe_operate(tfpipe_scratch *scratch, uint8_t *pixels, int height, int width, int channels, const struct tfpipe_operation *operations, int count);
#pragma GCC visibility pop
#endif
