/* Copies records into a batch. */
#pragma once

#include <stddef.h>
#include <stdint.h>

/* Copies a record past the cache; tfpipe_fence then makes all that was copied visible to other threads. */
void tfpipe_stream(uint8_t *out, const uint8_t *in, size_t size);
void tfpipe_fence(void);

/* Copies a record into the cache, where it is worked on next. */
void tfpipe_fetch(uint8_t *out, const uint8_t *in, size_t size);
