/* The op TfpipeRange: a range of a file's bytes, as the system's pread gives them.
 *
 * The op keeps its files open, each from its first use on: they are few and large, and opening one costs a request to
 * the file server. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
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
    if (!files || pthread_mutex_init(&files->lock, NULL)) {
        TF_Status *status = TF_NewStatus();
        TF_SetStatus(status, TF_RESOURCE_EXHAUSTED, "no memory");
        TF_OpKernelConstruction_Failure(construction, status);
        TF_DeleteStatus(status);
        free(files);
        return NULL;
    }
    return files;
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
        while ((file = files->open[number]) < 0 &&
               (file = files->open[number] = open(path, O_RDONLY | O_CLOEXEC)) < 0 && errno == EINTR) {
        }
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

enum { PATHS, FILE_NUMBER, OFFSET, LENGTH, INPUTS };

/* Reads the range that the inputs name into `contents`, which is empty. */
static void read_contents(struct files *files, TF_Tensor *const *in, TF_TString *contents, TF_Status *status) {
    const int64_t count = (int64_t)(TF_TensorByteSize(in[PATHS]) / sizeof(TF_TString));
    const int32_t number = *(const int32_t *)TF_TensorData(in[FILE_NUMBER]);
    const int64_t offset = *(const int64_t *)TF_TensorData(in[OFFSET]),
                  length = *(const int64_t *)TF_TensorData(in[LENGTH]);
    if (number < 0 || number >= count || offset < 0 || length < 0 || length > MOST) {
        TF_SetStatus(status, TF_INVALID_ARGUMENT, "TfpipeRange: there is no such file or range");
        return;
    }
    char path[PATH_MAX];
    const TF_TString *name = (const TF_TString *)TF_TensorData(in[PATHS]) + number;
    const size_t size = TF_StringGetSize(name), kept = size < sizeof path ? size : sizeof path - 1;
    memcpy(path, TF_StringGetDataPointer(name), kept);
    path[kept] = 0;
    errno = ENAMETOOLONG;
    const int file = kept == size ? open_file(files, number, count, path) : -1;
    const size_t capacity = (size_t)length | 15;
    char *bytes = file < 0 ? NULL : malloc(capacity + 1);
    const ssize_t got = bytes ? read_range(file, bytes, (size_t)length, (off_t)offset) : -1;
    if (got == (ssize_t)length) {
        tfpipe_give(contents, bytes, (size_t)length, capacity);
        return;
    }
    if (got < 0)
        TF_SetStatusFromIOError(status, errno, path);
    else
        TF_SetStatus(status, TF_FAILED_PRECONDITION, "the shard ends within it");
    free(bytes);
}

static void compute(void *state, TF_OpKernelContext *context) {
    TF_Status *status = TF_NewStatus();
    TF_Tensor *in[INPUTS] = {0}, *contents = NULL;
    for (int i = 0; i < INPUTS && TF_GetCode(status) == TF_OK; i++) {
        TF_GetInput(context, i, &in[i], status);
        if (TF_GetCode(status) == TF_OK && TF_NumDims(in[i]) != (i == PATHS))
            TF_SetStatus(status, TF_INVALID_ARGUMENT, "TfpipeRange: the shape of an input is wrong");
    }
    if (TF_GetCode(status) == TF_OK)
        contents = TF_AllocateOutput(context, 0, TF_STRING, NULL, 0, sizeof(TF_TString), status);
    if (TF_GetCode(status) == TF_OK) read_contents(state, in, TF_TensorData(contents), status);
    tfpipe_end_call(context, status, in, INPUTS, contents);
}

const struct tfpipe_op tfpipe_range_op = {
    "TfpipeRange",
    {
        "paths: string", /* [files]: the same in each call */
        "file: int32",   /* []: number of a file */
        "offset: int64", /* [], in bytes */
        "length: int64", /* [], in bytes */
    },
    {NULL},
    {"contents: string"}, /* [] */
    files_create,
    compute,
    files_destroy,
};
