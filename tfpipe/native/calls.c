/* What Python calls by ctypes, without TensorFlow, and what its calls have in common with those of the op. */
#include "augment/draw.h"
#include "base.h"
#include "pixels/copy.h"
#include "record.h"

EXPORT int tfpipe_native_version(void) { return TFPIPE_VERSION; }

/* Numbers and orders that Python shares. Names are in the order of their numbers, each with a space after it; an event has
 * a line for each member. */
EXPORT const int tfpipe_native_columns = TFPIPE_COLUMNS, tfpipe_native_full_weight = TFPIPE_WHOLE;
#define NAME(name, ...) #name " "
EXPORT const char *tfpipe_native_kernels(void) { return TFPIPE_KERNELS(NAME); }
EXPORT const char *tfpipe_native_operations(void) { return TFPIPE_OPERATIONS(NAME); }
EXPORT const char *tfpipe_native_steps(void) { return TFPIPE_STEPS(NAME); }
#define FIELDS(type, member, names) #type " " names "\n"
EXPORT const char *tfpipe_native_event(void) { return TFPIPE_EVENT(FIELDS); }

int tfpipe_crop_image(tfpipe_scratch *scratch, const struct tfpipe_image *image, int channels, int kernel,
                      int64_t number, const void *call) {
    struct tfpipe_event event = {.sample = number, .call = (uint64_t)(uintptr_t)call, .kind = TFPIPE_IMAGE};
    int recording = tfpipe_recording();
    if (recording) event.when_ns = tfpipe_now_ns();
    tfpipe_measure(scratch, recording ? event.parts_ns : NULL);
    int status = tfpipe_crops(scratch, image->jpeg, image->length, &image->entries, image->height, image->width,
                              image->crops, image->count, channels, kernel);
    event.refused = status != 0;
    if (recording) tfpipe_record(event);
    return status;
}

/* Decodes `count` JPEGs of height x width into `crops` (uint8 [count][height][width][channels]), mirrored where flips[i]
 * (NULL: none). refused[i] is non-zero for a JPEG that the caller has to decode in another way, mirrored too. */
EXPORT void tfpipe_native_whole(const uint8_t *const *jpegs, const int64_t *lengths, const uint8_t *flips,
                                int64_t count, int height, int width, int channels, uint8_t *crops, uint8_t *refused) {
    const size_t pitch = (size_t)width * (size_t)channels, size = (size_t)height * pitch;
    tfpipe_scratch *scratch = tfpipe_scratch_take();
    for (int64_t i = 0; i < count; i++) {
        struct tfpipe_crop crop = {.window = {0, 0, height, width},
                                   .height = height,
                                   .width = width,
                                   .mirrored = flips && flips[i],
                                   .pitch = pitch,
                                   .out = crops + (size_t)i * size};
        struct tfpipe_image image = {jpegs[i], (size_t)lengths[i], {0}, height, width, &crop, 1};
        refused[i] = !scratch || tfpipe_crop_image(scratch, &image, channels, TFPIPE_BILINEAR, i, crops);
    }
    tfpipe_scratch_give(scratch);
}

/* Decodes a JPEG of height x width as a whole, without keeping its pixels. Returns whether it is damaged; -1: unknown. */
EXPORT int tfpipe_native_damaged(const uint8_t *jpeg, int64_t length, int height, int width) {
    uint8_t pixel[3];
    const struct tfpipe_crop crop = {
        .window = {0, 0, height, width}, .height = 1, .width = 1, .pitch = sizeof pixel, .out = pixel};
    tfpipe_scratch *scratch = tfpipe_scratch_take();
    int status = scratch
                     ? tfpipe_crops(scratch, jpeg, (size_t)length, NULL, height, width, &crop, 1, 3, TFPIPE_BILINEAR)
                     : TFPIPE_MEMORY;
    tfpipe_scratch_give(scratch);
    return status == TFPIPE_DAMAGED ? 1 : status ? -1 : 0;
}

/* Copies `count` records, pixels of height x width, to `crops`, one after the other, mirrored where flips[i] (NULL: none).
 * Returns 0 or TFPIPE_MEMORY. */
EXPORT int tfpipe_native_copy(const uint8_t *const *records, const uint8_t *flips, int64_t count, int height, int width,
                              int channels, uint8_t *crops) {
    const size_t size = (size_t)height * (size_t)width * (size_t)channels;
    tfpipe_scratch *scratch = tfpipe_scratch_take();
    int status = scratch ? 0 : TFPIPE_MEMORY;
    for (int64_t i = 0; !status && i < count; i++, crops += size) {
        if (flips && flips[i])
            status = tfpipe_mirror(scratch, crops, records[i], height, width, channels);
        else
            tfpipe_stream(crops, records[i], size);
    }
    tfpipe_fence();
    tfpipe_scratch_give(scratch);
    return status;
}
