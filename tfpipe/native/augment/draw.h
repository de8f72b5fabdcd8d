/* Draws the operations of an augmentation: a pure function of a crop's key and the steps, by the rules of
 * torchvision.transforms.v2. */
#pragma once

#include "augment.h"

/* All steps: name in a config, kind, and function. A step is a row of doubles: its kind, the probability that it is
 * applied, the interpolation (0 nearest, 1 bilinear) and fill of its warps, and its arguments, of which those that are
 * drawn have a least and a most value. tfpipe/config/augment.py has the same, tfpipe/data/images/augment.py writes rows. */
/* clang-format off */
#define TFPIPE_STEPS(ROW) \
    ROW(Operation, ONE, draw_one) /* kind of the operation, its value */ \
    ROW(RandAugment, RAND, draw_rand) /* operations, bins, magnitude */ \
    ROW(TrivialAugmentWide, TRIVIAL, draw_trivial) /* bins */ \
    ROW(AutoAugment, AUTO, draw_auto) /* ImageNet's policy */ \
    ROW(AugMix, MIX, draw_mix) /* severity, width, depth (below 1: random), alpha, whether all operations */ \
    ROW(ColorJitter, JITTER, draw_jitter) /* brightness, contrast, saturation, hue */ \
    ROW(GaussianBlur, BLUR, draw_blur) /* kernel width, kernel height, sigma */ \
    ROW(RandomRotation, ROTATION, draw_rotation) /* angle, whether a center is given, its x and y */ \
    ROW(RandomAffine, AFFINE, draw_affine) /* angle; largest shifts, as shares; scale; shears along x, y; a center */ \
    ROW(RandomErasing, ERASE, draw_erase) /* share of the area, height / width, whether noise */
/* clang-format on */
#define TFPIPE_STEP(name, kind, draw) TFPIPE_STEP_##kind,
enum tfpipe_step { TFPIPE_STEPS(TFPIPE_STEP) TFPIPE_STEP_KINDS };
#undef TFPIPE_STEP
enum { TFPIPE_STEP_P = 1, TFPIPE_STEP_INTERPOLATION, TFPIPE_STEP_FILL, TFPIPE_STEP_ARGUMENTS = 6, TFPIPE_COLUMNS = 24 };
enum { TFPIPE_MOST = 80 }; /* operations of a step, at most */

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
