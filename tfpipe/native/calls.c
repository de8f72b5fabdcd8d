/* What Python calls by ctypes, without TensorFlow, and what its calls have in common with those of the op. */
#include "augment/draw.h"
#include "base.h"
#include "pixels/copy.h"
#include "record.h"

EXPORT int tfpipe_native_version(void) { return TFPIPE_VERSION; }

/* Returns the names of all operations, each with a space after it, in the order of their numbers. */
#define NAME(kind, ...) #kind " "
EXPORT const char *tfpipe_native_operations(void) { return TFPIPE_OPERATIONS(NAME); }
#undef NAME
/* Returns the names of all steps in the same way. */
#define NAME(kind, name, draw) #name " "
EXPORT const char *tfpipe_native_steps(void) { return TFPIPE_STEPS(NAME); }

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

/* Decodes a JPEG of height x width as a whole, without keeping its pixels. Returns 0 or TFPIPE_*. */
EXPORT int tfpipe_native_try(const uint8_t *jpeg, int64_t length, int height, int width) {
    uint8_t pixel[3];
    const struct tfpipe_crop crop = {
        .window = {0, 0, height, width}, .height = 1, .width = 1, .pitch = sizeof pixel, .out = pixel};
    tfpipe_scratch *scratch = tfpipe_scratch_take();
    int status = scratch
                     ? tfpipe_crops(scratch, jpeg, (size_t)length, NULL, height, width, &crop, 1, 3, TFPIPE_BILINEAR)
                     : TFPIPE_MEMORY;
    tfpipe_scratch_give(scratch);
    return status;
}

/* Finds the entry points of a JPEG: see tfpipe_find_entries. Returns the bytes needed, or -1: no memory. */
EXPORT int64_t tfpipe_native_entries(const uint8_t *jpeg, int64_t length, int every, uint8_t *out, int64_t room) {
    tfpipe_scratch *scratch = tfpipe_scratch_take();
    int64_t size = scratch ? tfpipe_find_entries(scratch, jpeg, (size_t)length, every, out, room) : -1;
    tfpipe_scratch_give(scratch);
    return size;
}

/* Stores a JPEG's coefficients, or makes a JPEG of those: see tfpipe_store and tfpipe_unstore. */
EXPORT int64_t tfpipe_native_store(const uint8_t *jpeg, int64_t length, uint8_t *out, int64_t room) {
    tfpipe_scratch *scratch = tfpipe_scratch_take();
    int64_t size = scratch ? tfpipe_store(scratch, jpeg, (size_t)length, out, room) : -1;
    tfpipe_scratch_give(scratch);
    return size;
}

EXPORT int64_t tfpipe_native_unstore(const uint8_t *stored, int64_t length, uint8_t *out, int64_t room) {
    tfpipe_scratch *scratch = tfpipe_scratch_take();
    int64_t size = scratch ? tfpipe_unstore(scratch, stored, (size_t)length, out, room) : -1;
    tfpipe_scratch_give(scratch);
    return size;
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
