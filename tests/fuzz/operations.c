/* Applies operations, or steps that draw them, made of bytes to a crop made of them: by libFuzzer, or (with STANDALONE)
 * from random bytes.
 *
 * A refused crop must be as it was, and both kinds of instructions must give the same one.
 *
 *     clang -fsanitize=fuzzer,address,undefined tests/fuzz/operations.c tfpipe/native/{calls,...}.c -lm && ./a.out
 *     cc -DSTANDALONE -fsanitize=address,undefined ... -lm && ./a.out SECONDS SEED */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../tfpipe/native/augment/draw.h"

enum { ASKED = 7, MOST_OPERATIONS = 6, MOST_STEPS = 3, MOST_SIDE = 80 };

/* Bytes that are still to be read; 0 after the last. */
struct input {
    const uint8_t *next, *end;
};

static uint8_t byte_of(struct input *input) { return input->next < input->end ? *input->next++ : 0; }

static uint64_t word_of(struct input *input) {
    uint64_t word = 0;
    for (int i = 0; i < 8; i++) word = word << 8 | byte_of(input);
    return word;
}

/* Makes value `index` of an operation on a crop of height x width, that is mostly accepted. */
static double fitting(struct input *input, int kind, int index, int height, int width) {
    int byte = byte_of(input);
    switch (kind) {
    case TFPIPE_POSTERIZE: return byte % 9;
    case TFPIPE_HUE: return byte / 255.0 - 0.5;
    case TFPIPE_BLUR: return index < 2 ? 2 * (byte % (index ? height : width)) + 1 : (byte + 1) / 16.0;
    case TFPIPE_WARP: return index % 3 == 2 ? byte - 128 : (byte - 128) / 64.0;
    case TFPIPE_ERASE:
    case TFPIPE_ERASE_NOISE: return byte % ((index % 2 ? width : height) / 2 + 1);
    case TFPIPE_SOLARIZE: return byte;
    default: return byte / 64.0 - 1;
    }
}

static void set_operation(struct tfpipe_operation *operation, struct input *input, int height, int width) {
    memset(operation, 0, sizeof *operation);
    int kind = byte_of(input), fits = kind < 250;
    operation->kind = kind == 250 ? -1 : kind == 251 ? TFPIPE_KINDS : kind % TFPIPE_KINDS;
    operation->interpolation = fits ? byte_of(input) & 1 : byte_of(input);
    operation->seed = word_of(input);
    memcpy(operation->fill, &operation->seed, sizeof operation->fill);
    for (int i = 0; i < 6; i++) {
        int how = fits ? byte_of(input) % 64 : byte_of(input) % 4;
        if (how == 0) {
            uint64_t bits = word_of(input);
            memcpy(operation->values + i, &bits, sizeof bits);
        } else if (how == 1) {
            operation->values[i] = (int8_t)byte_of(input);
        } else if (how == 2) {
            operation->values[i] = (int16_t)(byte_of(input) << 8 | byte_of(input));
        } else {
            operation->values[i] = fitting(input, operation->kind, i, height, width);
        }
    }
}

/* Makes `count` pairs, smallest and largest, within [least, most]. */
static void set_spans(double *pairs, int count, double least, double most, struct input *input) {
    for (int i = 0; i < count; i++) {
        double low = byte_of(input) / 255.0, high = low + (1 - low) * byte_of(input) / 255.0;
        pairs[2 * i] = least + (most - least) * low;
        pairs[2 * i + 1] = least + (most - least) * high;
    }
}

/* The largest value of a step of each operation alone. */
static const double MOST_OF[] = {
#define ROW(kind, apply, values, most) most,
    TFPIPE_OPERATIONS(ROW)};

/* Gives a step of a crop numbers that a config may have. */
static void fit_row(double *row, int height, int width, struct input *input) {
    double *a = row + TFPIPE_STEP_ARGUMENTS;
    row[TFPIPE_STEP_P] = byte_of(input) / 255.0;
    for (int c = 0; c < 3; c++) row[TFPIPE_STEP_FILL + c] = byte_of(input);
    switch ((int)row[0]) {
    case TFPIPE_STEP_ONE:
        a[0] = byte_of(input) % TFPIPE_KINDS;
        a[1] = (int)(MOST_OF[(int)a[0]] * byte_of(input) / 255);
        break;
    case TFPIPE_STEP_RAND:
        a[0] = byte_of(input) % 8;
        a[1] = 2 + byte_of(input);
        a[2] = byte_of(input) % (int)a[1];
        break;
    case TFPIPE_STEP_TRIVIAL: a[0] = 2 + byte_of(input); break;
    case TFPIPE_STEP_MIX:
        a[0] = 1 + byte_of(input) % 10;
        a[1] = 1 + byte_of(input) % 3;
        a[2] = byte_of(input) % 5 - 1;
        a[3] = (byte_of(input) + 1) / 16.0;
        break;
    case TFPIPE_STEP_JITTER:
        set_spans(a, 3, 0, 3, input);
        set_spans(a + 6, 1, -0.5, 0.5, input);
        break;
    case TFPIPE_STEP_BLUR:
        for (int i = 0; i < 2; i++) a[i] = 2 * (byte_of(input) % (i ? height : width)) + 1;
        set_spans(a + 2, 1, 0.01, 16, input);
        break;
    case TFPIPE_STEP_ROTATION: set_spans(a, 1, -400, 400, input); break;
    case TFPIPE_STEP_AFFINE:
        set_spans(a, 1, -400, 400, input);
        for (int i = 2; i < 4; i++) a[i] = byte_of(input) / 255.0;
        set_spans(a + 4, 1, 0.01, 8, input);
        set_spans(a + 6, 2, -89, 89, input);
        break;
    case TFPIPE_STEP_ERASE:
        set_spans(a, 1, 0, 1, input);
        set_spans(a + 2, 1, 0.01, 8, input);
        break;
    }
}

/* Sets a step of an augmentation: of four, three are within its limits, and the numbers of the others mostly small. */
static void set_row(double *row, int height, int width, struct input *input) {
    for (int i = 0; i < TFPIPE_COLUMNS; i++) {
        int how = byte_of(input);
        if (how == 0) {
            uint64_t bits = word_of(input);
            memcpy(row + i, &bits, sizeof bits);
        } else {
            row[i] = how < 16 ? (int8_t)byte_of(input) : how < 100 ? byte_of(input) / 32.0 : byte_of(input) % 9;
        }
    }
    row[0] = byte_of(input) % (TFPIPE_STEP_KINDS + 1);
    row[TFPIPE_STEP_INTERPOLATION] = byte_of(input) & 1;
    if (byte_of(input) % 4) fit_row(row, height, width, input);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size < ASKED) return 0;
    struct input input = {data + ASKED, data + size};
    int height = 1 + data[0] % MOST_SIDE, width = 1 + data[1] % MOST_SIDE, channels = data[2] & 1 ? 1 : 3;
    int count = data[3] % (MOST_OPERATIONS + 1);
    struct tfpipe_operation operations[MOST_OPERATIONS];
    for (int i = 0; i < count; i++) set_operation(operations + i, &input, height, width);
    int steps = data[6] & 1 ? 1 + count % MOST_STEPS : 0; /* in place of the operations */
    double rows[MOST_STEPS * TFPIPE_COLUMNS];
    for (int i = 0; i < steps; i++) set_row(rows + i * TFPIPE_COLUMNS, height, width, &input);
    size_t bytes = (size_t)(height * width * channels);
    /* Of exact size: an access beyond either end is noticed. Scratches are new, so that nothing old is read. */
    uint8_t *crops[2] = {malloc(bytes), malloc(bytes)}, *old = malloc(bytes);
    int status[2] = {0, 0};
    for (int level = 0; level < 2 && crops[0] && crops[1] && old; level++) {
        tfpipe_scratch *scratch = tfpipe_scratch_new();
        if (!scratch) break;
        uint32_t state = (uint32_t)(data[4] << 8 | data[5]);
        for (size_t i = 0; i < bytes; i++) old[i] = (uint8_t)((state = state * 1664525u + 1013904223u) >> 24);
        memcpy(crops[level], old, bytes);
        tfpipe_use_simd(level);
        status[level] = steps ? tfpipe_augment(scratch, crops[level], height, width, channels, rows, steps,
                                               tfpipe_crop_key(1, 2, 3))
                              : tfpipe_operate(scratch, crops[level], height, width, channels, operations, count);
        if (status[level] != 0 && status[level] != TFPIPE_ARGUMENT) abort();
        if (status[level] && !steps && memcmp(crops[level], old, bytes)) abort();
        tfpipe_scratch_free(scratch);
    }
    if (status[0] != status[1] || (crops[0] && crops[1] && old && memcmp(crops[0], crops[1], bytes))) abort();
    free(crops[0]);
    free(crops[1]);
    free(old);
    return status[0] ? -1 : 0; /* what is refused is no example to start from */
}

#ifdef STANDALONE
#include <time.h>

int main(int count, char **arguments) {
    if (count != 3) return fprintf(stderr, "usage: %s SECONDS SEED\n", arguments[0]), 2;
    time_t end = time(NULL) + atoi(arguments[1]);
    uint64_t state = (uint64_t)atoll(arguments[2]) * 0x9e3779b97f4a7c15u + 1;
    unsigned long runs = 0, refused = 0;
    uint8_t bytes[ASKED + 128 * MOST_OPERATIONS];
    while (time(NULL) < end)
        for (int k = 0; k < 64; k++, runs++) {
            for (size_t i = 0; i < sizeof bytes; i++) {
                state = state * 6364136223846793005u + 1442695040888963407u;
                bytes[i] = (uint8_t)(state >> 56);
            }
            refused += LLVMFuzzerTestOneInput(bytes, sizeof bytes) != 0;
        }
    printf("%lu crops, %lu refused\n", runs, refused);
    return 0;
}
#endif
