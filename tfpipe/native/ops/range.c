/* The op TfpipeRange: a range of a file's bytes, as the system's pread gives them.
 *
 * The op keeps its files open, each from its first use on: they are few and large, and opening one costs a request to
 * the file server. */
#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

#include "tf.h"

enum { MOST = 1 << 30 }; /* bytes of a range */

struct files {
    pthread_mutex_t lock;
    int64_t count;
    int *open; /* [count]; -1: not yet open */
};

static void *files_create(TF_OpKernelConstruction *construction) {
    struct files *files = calloc(1, sizeof *files);
    if (files && !pthread_mutex_init(&files->lock, NULL)) return files;
    tfpipe_refuse(construction, TF_RESOURCE_EXHAUSTED, "no memory");
    free(files);
    return NULL;
}

static void files_destroy(void *state) {
    struct files *files = state;
    if (!files) return;
    for (int64_t i = 0; i < files->count; i++)
        if (files->open[i] >= 0) close(files->open[i]);
    pthread_mutex_destroy(&files->lock);
    free(files->open);
    free(files);
}

/* Returns file `number` of `count`, open; -1: errno says why. */
static int open_file(struct files *files, int64_t number, int64_t count, const char *path) {
    pthread_mutex_lock(&files->lock);
    if (files->count < count) {
        int *open = realloc(files->open, (size_t)count * sizeof *open);
        for (int64_t i = files->count; open && i < count; i++) open[i] = -1;
        if (open) {
            files->open = open;
            files->count = count;
        }
    }
    int file = -1;
    errno = ENOMEM;
    if (number < files->count) {
        if (files->open[number] < 0) files->open[number] = tfpipe_open(path);
        file = files->open[number];
    }
    const int error = errno;
    pthread_mutex_unlock(&files->lock);
    errno = error;
    return file;
}

/* Reads `length` bytes from `offset` on. Returns how many there are, fewer if the file ends before; -1: errno says why. */
static ssize_t read_range(int file, char *bytes, size_t length, off_t offset) {
    size_t size = 0;
    ssize_t got = 1;
    while (size < length && got != 0) {
        got = pread(file, bytes + size, length - size, offset + (off_t)size);
        if (got < 0 && errno != EINTR) return -1;
        if (got > 0) size += (size_t)got;
    }
    return (ssize_t)size;
}

enum { PATHS, FILE_NUMBER, OFFSET, LENGTH };

static const char *run(struct tfpipe_call *call) {
    const int64_t count = TF_Dim(call->in[PATHS], 0);
    const int32_t number = *(const int32_t *)TF_TensorData(call->in[FILE_NUMBER]);
    const int64_t offset = *(const int64_t *)TF_TensorData(call->in[OFFSET]);
    const int64_t length = *(const int64_t *)TF_TensorData(call->in[LENGTH]);
    if (number < 0 || number >= count || offset < 0 || length < 0 || length > MOST)
        return "there is no such file or range";
    TF_TString *contents = tfpipe_output(call, 0, TF_STRING, NULL, 0);
    if (!tfpipe_ok(call)) return NULL;
    char path[PATH_MAX];
    const TF_TString *paths = TF_TensorData(call->in[PATHS]);
    const int file = tfpipe_path(paths + number, path) ? open_file(call->state, number, count, path) : -1;
    const size_t capacity = (size_t)length | 15;
    char *bytes = file < 0 ? NULL : malloc(capacity + 1);
    const ssize_t got = bytes ? read_range(file, bytes, (size_t)length, (off_t)offset) : -1;
    if (got == (ssize_t)length) {
        tfpipe_give(contents, bytes, (size_t)length, capacity);
        return NULL;
    }
    if (got < 0)
        TF_SetStatusFromIOError(call->status, errno, path);
    else
        TF_SetStatus(call->status, TF_FAILED_PRECONDITION, "the shard ends within it");
    free(bytes);
    return NULL;
}

const struct tfpipe_op tfpipe_range_op = {
    .name = "TfpipeRange",
    .in = {{"paths: string", 1},  /* [files]: the same in each call */
           {"file: int32", 0},    /* number of a file */
           {"offset: int64", 0},  /* in bytes */
           {"length: int64", 0}}, /* in bytes */
    .out = {"contents: string"},  /* [] */
    .run = run,
    .create = files_create,
    .destroy = files_destroy,
};
