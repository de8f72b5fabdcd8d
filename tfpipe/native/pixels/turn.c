/* Crops of an image that is shown otherwise than it is stored: EXIF's orientation (Exif 2.32, 4.6.4 A, tag 274). A crop is
 * cut out of the stored image and resized there, then turned. */
#include "../scratch.h"
#include "turn.h"

/* Returns whether the stored rows (axis 0) or columns (1) come in the other order than on the screen. */
static int is_reversed(int orientation, int axis) {
    return axis ? orientation == 2 || orientation == 3 || orientation >= 7
                : orientation == 3 || orientation == 4 || orientation == 6 || orientation == 7;
}

struct tfpipe_crop *turn_crops(tfpipe_scratch *scratch, const struct tfpipe_crop *shown, int count, int channels,
                               int orientation, const int sides[2]) {
    const int swapped = is_swapped(orientation);
    size_t bytes = (size_t)count * sizeof *shown;
    for (int i = 0; i < count; i++) bytes += (size_t)shown[i].height * (size_t)shown[i].width * (size_t)channels;
    struct tfpipe_crop *stored = buffer_reserve(&scratch->turned, bytes);
    uint8_t *out = (uint8_t *)(stored + count);
    for (int i = 0; stored && i < count; i++) {
        const struct tfpipe_crop *crop = shown + i;
        const int32_t *window = crop->window, size[2] = {crop->height, crop->width};
        stored[i] = (struct tfpipe_crop){.height = size[swapped], .width = size[!swapped], .out = out};
        stored[i].pitch = (size_t)stored[i].width * (size_t)channels;
        for (int axis = 0; axis < 2; axis++) {
            const int from = swapped ? !axis : axis, back = is_reversed(orientation, axis);
            const int64_t whole = crop->whole[from], first = crop->first[from];
            stored[i].window[2 + axis] = window[2 + from];
            stored[i].window[axis] = back ? sides[from] - window[from] - window[2 + from] : window[from];
            stored[i].whole[axis] = whole;
            stored[i].first[axis] = back && whole ? whole - first - size[from] : first;
        }
        out += (size_t)stored[i].height * stored[i].pitch;
    }
    return stored;
}

/* Copies `count` pixels to `out`, one after the other, of which the next lies `step` bytes from the one before. */
static void gather(uint8_t *out, const uint8_t *in, ptrdiff_t step, int count, int channels) {
    if (channels == 3)
        for (int i = 0; i < count; i++, in += step, out += 3) out[0] = in[0], out[1] = in[1], out[2] = in[2];
    else
        for (int i = 0; i < count; i++, in += step) out[i] = *in;
}

void turn_pixels(const struct tfpipe_crop *shown, const struct tfpipe_crop *stored, int count, int channels,
                 int orientation) {
    const int swapped = is_swapped(orientation);
    for (; count > 0; count--, shown++, stored++) {
        /* Bytes from a stored pixel to that of the next row, and of the next column, on the screen. */
        const ptrdiff_t pitch = (ptrdiff_t)stored->pitch, strides[2] = {pitch, channels};
        const ptrdiff_t signs[2] = {is_reversed(orientation, 0) ? -1 : 1, is_reversed(orientation, 1) ? -1 : 1};
        const ptrdiff_t down = signs[swapped] * strides[swapped], right = signs[!swapped] * strides[!swapped];
        const uint8_t *first = stored->out + (signs[0] < 0 ? (stored->height - 1) * pitch : 0) +
                               (signs[1] < 0 ? (stored->width - 1) * channels : 0);
        if (shown->mirrored) first += (shown->width - 1) * right;
        for (int y = 0; y < shown->height; y++)
            gather(shown->out + (size_t)y * shown->pitch, first + y * down, shown->mirrored ? -right : right,
                   shown->width, channels);
    }
}
