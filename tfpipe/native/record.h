/* Records what happens to single samples while a trace is recorded; otherwise costs the reading of a flag. */
#pragma once

#include "crops.h"

enum { TFPIPE_IMAGE = 0 }; /* the others are those of the op TfpipeMark */

/* An event: an image was decoded, or a sample has reached a mark. Its members are rows of a type, a member and the names
 * that Python has for it. */
#define TFPIPE_EVENT(ROW)                                                                                     \
    ROW(int64_t, when_ns, "when_ns") /* since 1970; of an image: its beginning */                             \
    ROW(int64_t, sample, "sample")   /* its position in the stream; of an image: its number in the call */    \
    ROW(uint64_t, call, "call")      /* address of a tensor that a mark and the decoder's op both have */     \
    ROW(uint64_t, thread, "thread")                                                                           \
    ROW(int64_t, parts_ns[TFPIPE_PARTS], "header_ns decode_ns resize_ns") /* of an image */                   \
    ROW(int32_t, kind, "kind")                                            /* an EventKind of tfpipe.native */ \
    ROW(int32_t, refused, "refused") /* whether another decoder has to decode the image */
#define TFPIPE_MEMBER(type, member, names) type member;
struct tfpipe_event {
    TFPIPE_EVENT(TFPIPE_MEMBER)
};
#undef TFPIPE_MEMBER

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
