/* The ops TfpipeRead, a file's contents, as the system's read gives them, and TfpipeStamp, its size and time of change.
 *
 * TensorFlow's ReadFile reads through a buffer of its own and copies the contents again. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "tf.h"

_Static_assert(sizeof(TF_TString) == 24, "TensorFlow's strings take 24 bytes of a tensor");

enum { MOST = 1 << 30 };        /* bytes of a file; EFBIG beyond */
enum { SMALL = 22, LARGE = 1 }; /* a string of up to SMALL bytes lies within its TF_TString; LARGE: the other type */

/* Whether TF_TString has the layout of tensorflow/core/platform/ctstring_internal.h that `give` writes. It is no part of
 * the API: TensorFlow is asked, by a string that it writes itself. Those from 2.15 to 2.21 have it. */
static int is_layout_known(void) {
    static _Atomic int answer; /* 0: not asked */
    if (!answer) {
        static const char text[] = "a string of more than 22 bytes";
        const size_t size = sizeof text - 1;
        TF_TString string = {.words = {0}};
        TF_StringInit(&string);
        TF_StringCopy(&string, text, size);
        const uint64_t *words = string.words;
        const int is_known = words[0] == ((uint64_t)size << 2 | LARGE) && words[1] >= size && words[1] < 4096 &&
                             words[2] == (uint64_t)(uintptr_t)TF_StringGetDataPointer(&string);
        TF_StringDealloc(&string);
        answer = is_known ? 1 : -1;
    }
    return answer > 0;
}

void tfpipe_give(TF_TString *string, char *bytes, size_t size, size_t capacity) {
    bytes[size] = 0;
    if (size > SMALL && is_layout_known()) {
        *string = (TF_TString){.words = {(uint64_t)size << 2 | LARGE, capacity, (uint64_t)(uintptr_t)bytes}};
        return;
    }
    TF_StringCopy(string, bytes, size);
    free(bytes);
}

/* Returns more memory for the bytes of a file, `size` of which are read; NULL: errno says why, and `bytes` stay. */
static char *grow(char *bytes, size_t size, size_t stated, size_t *capacity) {
    if (size > MOST || stated > MOST) {
        errno = EFBIG;
        return NULL;
    }
    /* At first one byte more than stated, so that the last read finds the end. */
    *capacity = (size ? 2 * size : stated + 1) | 15;
    return realloc(bytes, *capacity + 1);
}

/* Returns the size that `file` states; 0: none. By lseek, as fstat needs glibc 2.33, which wheels must not. */
static size_t stated_size(int file) {
    const off_t end = lseek(file, 0, SEEK_END);
    return end > 0 && lseek(file, 0, SEEK_SET) == 0 ? (size_t)end : 0;
}

/* Reads `file` to its end; some file systems state a size of 0. Returns its bytes, of `capacity` + 1; NULL: errno says
 * why. */
static char *read_open(int file, size_t *size, size_t *capacity) {
    const size_t stated = stated_size(file);
    char *bytes = NULL, first;
    if (stated > MOST && read(file, &first, 1) < 0) return NULL; /* a folder, which may state any size */
    ssize_t got;
    *size = *capacity = 0;
    do {
        if (*size == *capacity) {
            char *more = grow(bytes, *size, stated, capacity);
            got = -1;
            if (!more) break;
            bytes = more;
        }
        got = read(file, bytes + *size, *capacity - *size);
        if (got > 0) *size += (size_t)got;
    } while (got > 0 || (got < 0 && errno == EINTR));
    if (got == 0) return bytes;
    const int error = errno;
    free(bytes);
    errno = error;
    return NULL;
}

int tfpipe_path(const TF_TString *path, char *name) {
    const size_t length = TF_StringGetSize(path), kept = length < PATH_MAX ? length : PATH_MAX - 1;
    memcpy(name, TF_StringGetDataPointer(path), kept);
    name[kept] = 0;
    if (kept == length) return 1;
    errno = ENAMETOOLONG;
    return 0;
}

int tfpipe_open(const char *name) {
    int file;
    do file = open(name, O_RDONLY | O_CLOEXEC);
    while (file < 0 && errno == EINTR);
    return file;
}

static const char *run(struct tfpipe_call *call) {
    const TF_TString *path = TF_TensorData(call->in[0]);
    TF_TString *contents = tfpipe_output(call, 0, TF_STRING, NULL, 0);
    if (!tfpipe_ok(call) || !TF_StringGetSize(path)) return NULL;
    char name[PATH_MAX];
    const int file = tfpipe_path(path, name) ? tfpipe_open(name) : -1;
    size_t size, capacity;
    char *bytes = file < 0 ? NULL : read_open(file, &size, &capacity);
    if (bytes)
        tfpipe_give(contents, bytes, size, capacity);
    else
        TF_SetStatusFromIOError(call->status, errno, name);
    if (file >= 0) close(file);
    return NULL;
}

const struct tfpipe_op tfpipe_read_op = {
    .name = "TfpipeRead",
    .in = {{"path: string", 0}}, /* "": there is no file */
    .out = {"contents: string"}, /* [] */
    .run = run,
};

static const char *stamp(struct tfpipe_call *call) {
    int64_t *out = tfpipe_output(call, 0, TF_INT64, (int64_t[]){2}, 1);
    if (!tfpipe_ok(call)) return NULL;
    char name[PATH_MAX];
    struct stat status;
    /* By its number, as stat needs glibc 2.33; the system's layout of 64 bits is glibc's. */
    const int is_there =
        tfpipe_path(TF_TensorData(call->in[0]), name) && !syscall(SYS_newfstatat, AT_FDCWD, name, &status, 0);
    out[0] = is_there ? status.st_size : -1;
    out[1] = is_there ? status.st_mtim.tv_sec * 1000000000LL + status.st_mtim.tv_nsec : -1;
    return NULL;
}

const struct tfpipe_op tfpipe_stamp_op = {
    .name = "TfpipeStamp",
    .in = {{"path: string", 0}},
    .out = {"stamp: int64"}, /* [2]: bytes, nanoseconds since 1970; -1: it cannot be reached */
    .run = stamp,
};
