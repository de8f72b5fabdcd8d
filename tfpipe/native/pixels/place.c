/* Places windows in crops: stretched, or with their aspect ratio in the middle of a flat rest. */
#include "../base.h"

#include <math.h>

/* Returns side * of / to to the nearest, halves up; at least 1. */
static int32_t scaled(int32_t side, int32_t of, int32_t to) {
    int64_t twice = (2 * (int64_t)side * of + to) / (2 * (int64_t)to);
    return twice < 1 ? 1 : (int32_t)twice;
}

/* Sets the size of a window that covers, and where in it the crop begins: halves to the even number, as Python rounds. */
static void cover(struct tfpipe_crop *crop, const int32_t sides[2]) {
    const int64_t high = crop->window[2], wide = crop->window[3];
    const double down = (double)high / sides[0], across = (double)wide / sides[1];
    const double ratio = down < across ? down : across;
    crop->whole[0] = llrint((double)high / ratio), crop->whole[1] = llrint((double)wide / ratio);
    if (sides[0] == sides[1]) { /* torchvision drops fractions of the longer side */
        crop->whole[0] = high <= wide ? sides[0] : sides[0] * high / wide;
        crop->whole[1] = high <= wide ? sides[1] * wide / high : sides[1];
    }
    crop->first[0] = llrint((double)(crop->whole[0] - crop->height) / 2);
    crop->first[1] = llrint((double)(crop->whole[1] - crop->width) / 2);
}

struct tfpipe_crop tfpipe_place(const struct tfpipe_target *target, const int32_t window[4], int mirrored, int channels,
                                uint8_t *out) {
    const size_t pixel = (size_t)channels, pitch = (size_t)target->width * pixel;
    struct tfpipe_crop crop = {
        {window[0], window[1], window[2], window[3]}, target->height, target->width, mirrored, pitch, out, {0}, {0}};
    if (window[2] < 1 || window[3] < 1) return crop; /* a wrong window is noticed later */
    if (target->cover[0]) cover(&crop, target->cover);
    if (target->level < 0 || target->cover[0]) return crop;
    if ((int64_t)window[2] * target->width >= (int64_t)window[3] * target->height)
        crop.width = scaled(window[3], target->height, window[2]);
    else
        crop.height = scaled(window[2], target->width, window[3]);
    const int32_t top = (target->height - crop.height) / 2, space = target->width - crop.width, left = space / 2;
    const size_t before = (size_t)(mirrored ? space - left : left) * pixel, inner = (size_t)crop.width * pixel;
    const size_t end = (size_t)(top + crop.height);
    crop.out += (size_t)top * pitch + before;
    memset(out, target->level, (size_t)top * pitch);
    memset(out + end * pitch, target->level, ((size_t)target->height - end) * pitch);
    for (size_t y = (size_t)top; space && y < end; y++) {
        uint8_t *row = out + y * pitch;
        memset(row, target->level, before);
        memset(row + before + inner, target->level, pitch - before - inner);
    }
    return crop;
}
