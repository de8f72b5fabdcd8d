#include "record.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct tfpipe_event *events;
static int64_t capacity, count; /* count: also of those replaced */
static int on;

int tfpipe_recording(void) { return __atomic_load_n(&on, __ATOMIC_RELAXED); }

void tfpipe_record(struct tfpipe_event event) {
    static _Thread_local char here; /* one for each thread */
    event.thread = (uint64_t)(uintptr_t)&here;
    pthread_mutex_lock(&lock);
    if (on) events[count++ % capacity] = event;
    pthread_mutex_unlock(&lock);
}

int tfpipe_record_start(int64_t size) {
    pthread_mutex_lock(&lock);
    free(events);
    events = calloc((size_t)size, sizeof *events);
    capacity = size;
    count = 0;
    __atomic_store_n(&on, events != NULL, __ATOMIC_RELAXED);
    pthread_mutex_unlock(&lock);
    return events ? 0 : -1;
}

int64_t tfpipe_record_stop(void) {
    pthread_mutex_lock(&lock);
    __atomic_store_n(&on, 0, __ATOMIC_RELAXED);
    int64_t kept = count < capacity ? count : capacity;
    pthread_mutex_unlock(&lock);
    return kept;
}

void tfpipe_record_take(struct tfpipe_event *out) {
    pthread_mutex_lock(&lock);
    int64_t first = count > capacity ? count % capacity : 0, kept = count < capacity ? count : capacity;
    if (kept) {
        memcpy(out, events + first, (size_t)(kept - first) * sizeof *events);
        memcpy(out + kept - first, events, (size_t)first * sizeof *events);
    }
    free(events);
    events = NULL, count = 0;
    pthread_mutex_unlock(&lock);
}
