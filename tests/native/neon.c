/* Makes calls of the core that a file describes, and writes what they return: how a test compares the core that another
 * compiler has built for another processor.
 *
 *     ./a.out CALLS RESULTS LEVEL    prints the name of the instructions in use, of level 0 or 1: see tfpipe_use_simd
 *
 * A call is a struct call, and its parts: windows, flips, operations, data. A result is its status and its bytes; the
 * program ends with 1 if memory before a crop is not as it was. Data and crops end where readable memory does. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "../../tfpipe/native/augment/augment.h"

enum { CROPS, RESIZE, MIX, MIRROR, OPERATE };
enum { GUARD = 64, FILL = 0xa5, MOST = 8 /* windows of a call */ };

void tfpipe_fence(void); /* copy.h */

/* tests.native.test_neon.CALL */
struct call {
    int32_t function, kernel, weight;
    int32_t image_height, image_width;      /* of the data */
    int32_t count, windows, operations;     /* crops; elements of the parts */
    int32_t height, width, channels, level; /* of a crop; of what is left free around it: see tfpipe_place */
    int64_t size;                           /* bytes of the data */
};
_Static_assert(sizeof(struct call) == 56, "the module test_neon has another layout");

static void *checked(void *memory) {
    if (memory && memory != MAP_FAILED) return memory;
    perror("neon.c");
    exit(2);
}

/* Returns memory of that size, after GUARD bytes of FILL; what follows it is not readable. */
static uint8_t *guarded(size_t size) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE), whole = (size + GUARD + page - 1) / page * page;
    uint8_t *memory = checked(mmap(NULL, whole + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    if (mprotect(memory + whole, page, PROT_NONE)) checked(NULL);
    memset(memory + whole - size - GUARD, FILL, GUARD);
    return memory + whole - size;
}

static void release(uint8_t *memory, size_t size) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE), whole = (size + GUARD + page - 1) / page * page;
    for (int i = 1; i <= GUARD; i++)
        if (memory[-i] != FILL) exit(1);
    munmap(memory + size - whole, whole + page);
}

/* Reads a part of `size` bytes. */
static uint8_t *part(FILE *file, size_t size) {
    uint8_t *memory = guarded(size);
    if (fread(memory, 1, size, file) != size) checked(NULL);
    return memory;
}

static int make(tfpipe_scratch *scratch, const struct call *call, const int32_t *windows, const uint8_t *flips,
                const void *operations, const uint8_t *data, uint8_t *out, size_t size) {
    int height = call->height, width = call->width, channels = call->channels, status;
    struct tfpipe_target target = {height, width, call->level, {0}};
    struct tfpipe_crop crops[MOST];
    if (call->windows > MOST) checked(NULL);
    for (int i = 0; call->function <= RESIZE && i < call->windows; i++)
        crops[i] = tfpipe_place(&target, windows + 4 * i, flips[i], channels,
                                out + (size_t)i * (size_t)(height * width * channels));
    switch (call->function) {
    case CROPS:
        return tfpipe_crops(scratch, data, (size_t)call->size, NULL, call->image_height, call->image_width, crops,
                            call->windows, channels, call->kernel);
    case RESIZE:
        return tfpipe_resize(scratch, data, call->image_height, call->image_width, crops, call->windows, channels,
                             call->kernel);
    case MIX:
        memcpy(out, data, size);
        return tfpipe_mix(out, call->count, height, width, channels, windows, call->weight);
    case MIRROR:
        status = tfpipe_mirror(scratch, out, data, height, width, channels);
        tfpipe_fence();
        return status;
    default:
        memcpy(out, data, size);
        return tfpipe_operate(scratch, out, height, width, channels, operations, call->operations);
    }
}

int main(int count, char **arguments) {
    if (count != 4) return fprintf(stderr, "usage: %s CALLS RESULTS LEVEL\n", arguments[0]), 2;
    tfpipe_use_simd(atoi(arguments[3]));
    puts(tfpipe_simd());
    FILE *calls = checked(fopen(arguments[1], "rb")), *results = checked(fopen(arguments[2], "wb"));
    tfpipe_scratch *scratch = checked(tfpipe_scratch_new());
    struct call call;
    while (fread(&call, sizeof call, 1, calls) == 1) {
        size_t windows = (size_t)call.windows, place = 4 * sizeof(int32_t);
        size_t operations = (size_t)call.operations * sizeof(struct tfpipe_operation), data = (size_t)call.size;
        size_t size = (size_t)call.count * (size_t)(call.height * call.width * call.channels);
        uint8_t *parts[] = {part(calls, windows * place), part(calls, windows), part(calls, operations),
                            part(calls, data), guarded(size)};
        int32_t status =
            make(scratch, &call, (int32_t *)(void *)parts[0], parts[1], parts[2], parts[3], parts[4], size);
        if (fwrite(&status, sizeof status, 1, results) != 1) checked(NULL);
        if (!status && fwrite(parts[4], 1, size, results) != size) checked(NULL);
        const size_t sizes[] = {windows * place, windows, operations, data, size};
        for (int i = 0; i < 5; i++) release(parts[i], sizes[i]);
    }
    tfpipe_scratch_free(scratch);
    if (!feof(calls) || fclose(results)) checked(NULL);
    return 0;
}
