/* Crops of an image that EXIF turns; orientations are 1 to 8. */
#pragma once

#include "../crops.h"

/* Returns whether the rows of the stored image are columns on the screen. */
static inline int is_swapped(int orientation) { return orientation > 4; }

/* Returns the crops of the stored image, in memory of the scratch, which turned are `shown`; NULL: no memory. sides: height
 * and width of the image as it is shown. */
struct tfpipe_crop *turn_crops(tfpipe_scratch *scratch, const struct tfpipe_crop *shown, int count, int channels,
                               int orientation, const int sides[2]);

/* Turns the pixels of these crops, and mirrors those of `shown` that are to be. */
void turn_pixels(const struct tfpipe_crop *shown, const struct tfpipe_crop *stored, int count, int channels,
                 int orientation);
