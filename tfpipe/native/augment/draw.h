/* Draws the operations of an augmentation: a pure function of a crop's key and the steps, by the rules of
 * torchvision.transforms.v2. */
#ifndef TFPIPE_DRAW_H
#define TFPIPE_DRAW_H

#include "augment.h"

/* A step is a row of doubles: its kind, the probability that it is applied, the interpolation (0 nearest, 1 bilinear)
 * and fill of its warps, and its arguments. The module tfpipe.data.images.augment writes the rows. */
enum tfpipe_step {
    TFPIPE_STEP_ONE,     /* kind of the operation, its value */
    TFPIPE_STEP_RAND,    /* RandAugment: operations, magnitude, bins */
    TFPIPE_STEP_TRIVIAL, /* TrivialAugmentWide: bins */
    TFPIPE_STEP_AUTO,    /* AutoAugment, ImageNet's policy */
    TFPIPE_STEP_MIX,     /* AugMix: severity, width, depth (below 1: random), alpha, whether all operations */
    TFPIPE_STEP_JITTER,  /* ColorJitter: smallest and largest factor of brightness, contrast, saturation; hue's shift */
    TFPIPE_STEP_BLUR,    /* GaussianBlur: kernel width, kernel height, smallest and largest sigma */
    TFPIPE_STEP_ROTATION, /* RandomRotation: smallest and largest angle, whether a center is given, its x and y */
    TFPIPE_STEP_AFFINE,   /* RandomAffine: smallest and largest angle, largest shifts as shares of width and height,
                             smallest and largest scale, of the shear along x and along y, a center as above */
    TFPIPE_STEP_ERASE,    /* RandomErasing: smallest and largest share of the area, of height / width, whether noise */
    TFPIPE_STEPS
};
enum { TFPIPE_STEP_P = 1, TFPIPE_STEP_INTERPOLATION, TFPIPE_STEP_FILL, TFPIPE_STEP_ARGUMENTS = 6, TFPIPE_COLUMNS = 24 };
enum { TFPIPE_MOST_SIDE = 65500 }; /* pixels of a crop's side, at most */
enum { TFPIPE_MOST = 80 };         /* operations of a step, at most */

#pragma GCC visibility push(default)

/* Returns the key of a crop: a hash of the seed, the stream position of its image, and its number in the image. */
uint64_t tfpipe_crop_key(uint64_t seed, int64_t position, int64_t crop);

/* Draws what step `number` does to the crop with that key. Returns the number of operations, at most TFPIPE_MOST; -1 if
 * the row is no step. */
int tfpipe_draw(const double *row, uint64_t key, int number, int height, int width,
                struct tfpipe_operation operations[TFPIPE_MOST]);

/* Applies `steps` rows to a crop. Returns 0, TFPIPE_ARGUMENT or TFPIPE_MEMORY. */
int tfpipe_augment(tfpipe_scratch *scratch, uint8_t *pixels, int height, int width, int channels, const double *rows,
                   int steps, uint64_t key);

#pragma GCC visibility pop

#endif
