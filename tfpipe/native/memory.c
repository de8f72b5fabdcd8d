/* Memory that calls reuse: a scratch has a buffer for each purpose, which grows to what the largest file needs, and is
 * given up beyond KEPT_BYTES when the call ends. Nothing is allocated for a file of ordinary size. */
#include "scratch.h"

#include <pthread.h>
#include <stdlib.h>

enum { SCRATCHES = 64 }; /* kept for later calls; a call beyond frees its own */

tfpipe_scratch *tfpipe_scratch_new(void) {
    tfpipe_scratch *scratch = aligned_alloc(64, (sizeof *scratch + 63) / 64 * 64);
    if (scratch) memset(scratch, 0, sizeof *scratch);
    return scratch;
}

/* Frees the buffers of more than `most` bytes. */
static void free_buffers(tfpipe_scratch *scratch, size_t most) {
    struct buffer *buffers[] = {&scratch->data,   &scratch->ends,         &scratch->planes,
                                &scratch->rows,   &scratch->crops,        &scratch->spans,
                                &scratch->places, &scratch->coefficients, &scratch->turned};
    for (size_t i = 0; i < sizeof buffers / sizeof *buffers; i++) {
        if (buffers[i]->size <= most) continue;
        free(buffers[i]->memory);
        *buffers[i] = (struct buffer){0};
    }
}

void tfpipe_scratch_free(tfpipe_scratch *scratch) {
    if (scratch) free_buffers(scratch, 0);
    free(scratch);
}

/* A scratch belongs to one call at a time, not to a thread: tf.data's threads come and go. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static tfpipe_scratch *kept[SCRATCHES];
static int count;

tfpipe_scratch *tfpipe_scratch_take(void) {
    tfpipe_scratch *scratch = NULL;
    pthread_mutex_lock(&lock);
    if (count > 0) scratch = kept[--count];
    pthread_mutex_unlock(&lock);
    return scratch ? scratch : tfpipe_scratch_new();
}

void tfpipe_scratch_give(tfpipe_scratch *scratch) {
    if (!scratch) return;
    memset(&scratch->settings, 0, sizeof scratch->settings);
    free_buffers(scratch, KEPT_BYTES);
    pthread_mutex_lock(&lock);
    int full = count == SCRATCHES;
    if (!full) kept[count++] = scratch;
    pthread_mutex_unlock(&lock);
    if (full) tfpipe_scratch_free(scratch);
}

void *buffer_reserve(struct buffer *buffer, size_t size) {
    if (buffer->size >= size) return buffer->memory;
    free(buffer->memory);
    buffer->size = (size + size / 4 + 63) / 64 * 64;
    buffer->memory = aligned_alloc(64, buffer->size);
    if (!buffer->memory) buffer->size = 0;
    return buffer->memory;
}
