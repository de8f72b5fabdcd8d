/* Records what happens to single samples while a trace is recorded; otherwise costs the reading of a flag. */
#pragma once

#include "crops.h"

enum { TFPIPE_IMAGE = 0, TFPIPE_CALL = 6 }; /* the kinds between are those of the op TfpipeMark */

/* An event: an image was decoded, a call of the op TfpipeCrops has ended, or a sample has reached a mark. The module
 * tfpipe.native has the same struct. */
struct tfpipe_event {
    int64_t when_ns;                /* since 1970; of an image or a call: its beginning */
    int64_t sample;                 /* its position in the stream; of an image: its number in the call */
    uint64_t call, thread;          /* address of a tensor that a mark and the decoder's op both have; the thread */
    int64_t parts_ns[TFPIPE_PARTS]; /* of an image; of a call: to allocate the crops, to decode, to free the input */
    int32_t kind, refused;          /* refused: whether another decoder has to decode the image */
};

/* tfpipe.native.EVENT: fields without gaps, in this order. */
_Static_assert(offsetof(struct tfpipe_event, sample) == 8 && offsetof(struct tfpipe_event, call) == 16 &&
                   offsetof(struct tfpipe_event, thread) == 24 && offsetof(struct tfpipe_event, parts_ns) == 32 &&
                   offsetof(struct tfpipe_event, kind) == 56 && offsetof(struct tfpipe_event, refused) == 60 &&
                   sizeof(struct tfpipe_event) == 64,
               "the module tfpipe.native has another layout");

#pragma GCC visibility push(default)

/* Returns whether events are recorded now. */
int tfpipe_recording(void);

/* Adds an event, and sets its thread. With the memory full it replaces the oldest. */
void tfpipe_record(struct tfpipe_event event);

/* Begins to record into memory for `capacity` events, and forgets those of before. Returns 0, or -1: no memory. */
int tfpipe_record_start(int64_t capacity);

/* Ends recording. Returns the number of events that tfpipe_record_take copies. */
int64_t tfpipe_record_stop(void);

/* Copies the events, the oldest first, and frees their memory. */
void tfpipe_record_take(struct tfpipe_event *out);

/* A JPEG, and the crops wanted of it: see tfpipe_crops. */
struct tfpipe_image {
    const uint8_t *jpeg;
    size_t length;
    struct tfpipe_entries entries; /* of no bytes: none */
    int height, width;
    const struct tfpipe_crop *crops;
    int count;
};

/* calls.c: decodes an image's crops, and records it: as image `number` of `call`. Returns 0 or TFPIPE_*. */
int tfpipe_crop_image(tfpipe_scratch *scratch, const struct tfpipe_image *image, int channels, int kernel,
                      int64_t number, const void *call);

#pragma GCC visibility pop
