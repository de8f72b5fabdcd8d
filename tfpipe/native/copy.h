/* Copies records of one size into a batch. */
#ifndef TFPIPE_COPY_H
#define TFPIPE_COPY_H

#include <stddef.h>
#include <stdint.h>

/* Copies `count` records of `size` bytes, from anywhere in memory, to `out`, one after the other. */
void tfpipe_copy(const uint8_t *const *records, size_t count, size_t size, uint8_t *out);

/* The same in parts: copies one piece; makes what was copied visible to other threads. */
void tfpipe_stream(uint8_t *out, const uint8_t *in, size_t size);
void tfpipe_fence(void);

/* Copies a record into the cache, where it is worked on next. */
void tfpipe_fetch(uint8_t *out, const uint8_t *in, size_t size);

#endif
