/* Feeds bytes to the native core: by libFuzzer, or (with STANDALONE) from files, each also with random changes.
 *
 * The first 8 bytes of an input say what is asked of the JPEG after them: windows, the crops' sizes, channels, kernel.
 *
 *     clang -fsanitize=fuzzer,address,undefined tests/fuzz/jpegs.c tfpipe/native/{calls,...}.c && ./a.out CORPUS
 *     cc -DSTANDALONE -fsanitize=address,undefined ... && ./a.out CPU_SECONDS SEED FILE... */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../tfpipe/native/codec/scan.h"

enum { ASKED = 8, MOST_WINDOWS = 4, MOST_SIDE = 64 };

/* What is asked of a JPEG: windows, and the target of every other one. */
struct asked {
    int32_t windows[4 * MOST_WINDOWS];
    uint8_t flips[MOST_WINDOWS];
    int count, channels, kernel;
    struct tfpipe_target targets[2];
};

static size_t size_of(const struct asked *asked, int i) {
    const struct tfpipe_target *target = asked->targets + i % 2;
    return (size_t)target->height * (size_t)target->width * (size_t)asked->channels;
}

/* Places crops from `first` on in `out`, one after the other. Returns their bytes. */
static size_t place(const struct asked *asked, int first, int count, uint8_t *out, struct tfpipe_crop *crops) {
    uint8_t *next = out;
    for (int i = first; i < first + count; next += size_of(asked, i++))
        crops[i - first] =
            tfpipe_place(asked->targets + i % 2, asked->windows + 4 * i, asked->flips[i], asked->channels, next);
    return (size_t)(next - out);
}

/* Decodes `count` crops from `first` on. */
static int decode(tfpipe_scratch *scratch, const uint8_t *jpeg, size_t length, const struct tfpipe_entries *entries,
                  const int size[2], const struct asked *asked, int first, int count, uint8_t *out) {
    struct tfpipe_crop crops[MOST_WINDOWS];
    place(asked, first, count, out, crops);
    return tfpipe_crops(scratch, jpeg, length, entries, size[0], size[1], crops, count, asked->channels, asked->kernel);
}

/* Finds the size that a frame's header states, anywhere in the bytes, so that most inputs get beyond it. */
static void find_size(const uint8_t *jpeg, size_t length, int *height, int *width) {
    *height = *width = 16;
    for (size_t i = 2; i + 9 < length; i++) {
        if (jpeg[i] != 0xff || jpeg[i + 1] < 0xc0 || jpeg[i + 1] > 0xc2) continue;
        *height = jpeg[i + 5] << 8 | jpeg[i + 6];
        *width = jpeg[i + 7] << 8 | jpeg[i + 8];
        return;
    }
}

/* Finds the JPEG's entry points; forged: changes a few of their bytes, and their hash with them. */
static struct tfpipe_entries entries_of(tfpipe_scratch *scratch, const uint8_t *jpeg, size_t length, uint32_t state,
                                        int forged) {
    int every = 1 + (int)(state >> 8) % 12;
    int64_t size = tfpipe_find_entries(scratch, jpeg, length, every, NULL, 0);
    uint8_t *bytes = size > 0 ? malloc((size_t)size) : NULL;
    if (!bytes) return (struct tfpipe_entries){0};
    if (tfpipe_find_entries(scratch, jpeg, length, every, bytes, size) != size) abort();
    for (int i = 0; forged && i < 3; i++) {
        state = state * 1664525u + 1013904223u;
        bytes[16 + (state >> 8) % (uint32_t)(size - 16)] ^= (uint8_t)(1 + state % 255);
    }
    uint64_t of_file, own;
    memcpy(&of_file, bytes, sizeof of_file);
    own = hash_bytes(of_file, bytes + 16, (size_t)size - 16);
    if (!forged && memcmp(bytes + 8, &own, sizeof own)) abort();
    memcpy(bytes + 8, &own, sizeof own);
    return (struct tfpipe_entries){bytes, (size_t)size};
}

/* Stores the JPEG's coefficients: the same crops. Then changes some bytes: any crops, or none. */
static void check_stored(tfpipe_scratch *scratch, const uint8_t *jpeg, size_t length, uint32_t state,
                         const int image[2], const int32_t window[4], int channels) {
    enum { SIDE = 9 };
    uint8_t crop[SIDE * SIDE * 3], other[SIDE * SIDE * 3];
    struct asked asked = {.count = 1, .channels = channels, .kernel = 1, .targets = {{SIDE, SIDE, -1}}};
    memcpy(asked.windows, window, 4 * sizeof *window);
    int64_t size = tfpipe_store(scratch, jpeg, length, NULL, 0);
    uint8_t *stored = size > 0 ? malloc((size_t)size) : NULL;
    if (!stored) return;
    if (tfpipe_store(scratch, jpeg, length, stored, size) != size) abort();
    int status = decode(scratch, jpeg, length, NULL, image, &asked, 0, 1, crop);
    int own = decode(scratch, stored, (size_t)size, NULL, image, &asked, 0, 1, other);
    if (status != own || (!status && memcmp(crop, other, (size_t)(SIDE * SIDE * channels)))) abort();
    for (int i = 0; i < 4; i++) {
        state = state * 1664525u + 1013904223u;
        stored[(state >> 8) % (uint32_t)(i & 1 ? size : size < 700 ? size : 700)] ^= (uint8_t)(1 + state % 255);
        decode(scratch, stored, (size_t)size, NULL, image, &asked, 0, 1, other);
        int64_t again = tfpipe_unstore(scratch, stored, (size_t)size, NULL, 0);
        uint8_t *written = again > 0 ? malloc((size_t)again) : NULL;
        if (written && tfpipe_unstore(scratch, stored, (size_t)size, written, again) != again) abort();
        free(written);
    }
    free(stored);
}

/* Draws windows, flips and targets of an image from the bytes of an input. Returns the state of the draws. */
static uint32_t ask(const uint8_t *data, int height, int width, struct asked *asked) {
    asked->count = 1 + data[0] % MOST_WINDOWS;
    asked->channels = data[1] & 1 ? 1 : 3;
    asked->kernel = data[1] >> 1 & 3;
    asked->targets[0] = asked->targets[1] =
        (struct tfpipe_target){1 + data[2] % MOST_SIDE, 1 + data[3] % MOST_SIDE, data[7] & 64 ? data[4] : -1, {0}};
    if (data[7] & 32) /* several sizes in one call */
        asked->targets[1] = (struct tfpipe_target){1 + data[3] % MOST_SIDE, 1 + data[5] % MOST_SIDE, data[4] - 1, {0}};
    if (data[6] & 4) /* the middle of what covers more */
        for (int i = 0; i < 2; i++)
            asked->targets[1].cover[i] = data[4 + i] + (i ? asked->targets[1].width : asked->targets[1].height);
    uint32_t state = data[4] * 0x01010101u + data[5] * 0x3779u;
    for (int i = 0; i < asked->count; i++) {
        const struct tfpipe_target *target = asked->targets + i % 2;
        int32_t *window = asked->windows + 4 * i, draws[4];
        for (int k = 0; k < 4; k++) draws[k] = (int32_t)((state = state * 1664525u + 1013904223u) >> 8);
        window[2] = height ? 1 + draws[0] % height : 1;
        window[3] = width ? 1 + draws[1] % width : 1;
        if (data[6] & 1 && i == 0) window[2] = height, window[3] = width;             /* all of it */
        if (data[6] & 2 && window[2] >= target->height && window[3] >= target->width) /* not resized */
            window[2] = target->height, window[3] = target->width;
        window[0] = height > window[2] ? draws[2] % (height - window[2] + 1) : 0;
        window[1] = width > window[3] ? draws[3] % (width - window[3] + 1) : 0;
        asked->flips[i] = data[7] & 1 && draws[3] >> 20 & 1;
    }
    return state;
}

/* Aborts unless plain C gives the same crops in two ways: crop `only` alone (-1: all of them, by their entry points), and
 * all of them. SIMD may not where coefficients exceed 16 bits, as damage alone makes them: what it then makes of a block
 * depends on the block next to it, in libjpeg-turbo, too. */
static void check_plain(tfpipe_scratch *scratch, const uint8_t *jpeg, size_t length,
                        const struct tfpipe_entries *entries, const int size[2], const struct asked *asked, int only) {
    size_t bytes = 0, before = 0;
    for (int i = 0; i < asked->count; bytes += size_of(asked, i++))
        if (i < only) before += size_of(asked, i);
    uint8_t *crops = malloc(bytes), *others = malloc(bytes);
    tfpipe_use_simd(0);
    if (crops && others) {
        int first = only < 0 ? 0 : only, count = only < 0 ? asked->count : 1;
        int one = decode(scratch, jpeg, length, NULL, size, asked, 0, asked->count, crops);
        int other = decode(scratch, jpeg, length, entries, size, asked, first, count, others);
        if (one || other || memcmp(crops + before, others, only < 0 ? bytes : size_of(asked, only))) abort();
    }
    free(others);
    free(crops);
}

/* The crops one at a time: the same. The first one as an image, whose pixels end where their memory does. */
static void check_alone(tfpipe_scratch *scratch, const uint8_t *jpeg, size_t length, const int size[2],
                        const struct asked *asked, const uint8_t *out) {
    for (int i = 0; i < asked->count; out += size_of(asked, i++)) {
        uint8_t *alone = malloc(size_of(asked, i));
        if (alone && decode(scratch, jpeg, length, NULL, size, asked, i, 1, alone)) abort();
        if (alone && memcmp(alone, out, size_of(asked, i))) check_plain(scratch, jpeg, length, NULL, size, asked, i);
        const int32_t height = asked->targets[i % 2].height, width = asked->targets[i % 2].width,
                      half = (width + 1) / 2;
        struct asked parts = {.windows = {0, 0, height, width, height - 1, width - half, 1, half},
                              .flips = {1, 0},
                              .channels = asked->channels,
                              .targets = {asked->targets[0], asked->targets[1]}};
        struct tfpipe_crop crops[2];
        uint8_t *again = malloc(size_of(asked, 0) + size_of(asked, 1));
        if (again) place(&parts, 0, 2, again, crops);
        if (alone && again && tfpipe_resize(scratch, alone, height, width, crops, 2, asked->channels, asked->kernel))
            abort();
        free(again);
        free(alone);
    }
}

/* Returns a copy of exact size, so that reading beyond either's end is noticed; turn: with an orientation of EXIF, of which
 * some number may be spoilt. NULL: no memory. */
static uint8_t *copied(const uint8_t *jpeg, size_t *length, int turn, uint32_t state) {
    uint8_t exif[] = "\xff\xe1\0\x22"
                     "Exif\0\0II*\0\x8\0\0\0\x1\0\x12\x1\x3\0\x1\0\0\0\x1\0\0\0\0\0\0";
    size_t start = *length < 2 ? *length : 2, more = turn ? sizeof exif : 0;
    exif[28] = (uint8_t)(1 + (state >> 8) % 8);
    if (state % 4 == 0) exif[10 + (state >> 12) % 26] ^= (uint8_t)(1 + (state >> 20) % 255);
    uint8_t *copy = malloc(*length + more ? *length + more : 1);
    if (!copy) return NULL;
    memcpy(copy, jpeg, start);
    memcpy(copy + start, exif, more);
    memcpy(copy + start + more, jpeg + start, *length - start);
    *length += more;
    return copy;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static tfpipe_scratch *scratch;
    if (!scratch) scratch = tfpipe_scratch_new();
    if (!scratch || size < ASKED) return 0;
    size_t length = size - ASKED, bytes = 0;
    const int turn = data[6] & 16;
    uint8_t *jpeg = copied(data + ASKED, &length, turn, data[4] | (uint32_t)data[5] << 8 | (uint32_t)data[3] << 16);
    if (!jpeg) return 0;
    int image[2];
    find_size(jpeg, length, image, image + 1);
    struct tfpipe_header header;
    if (tfpipe_read_header(jpeg, length, &header)) {
        const int32_t height = header.height, width = header.width, swapped = header.orientation > 4;
        if (height < 1 || width < 1 || height > 65535 || width > 65535) abort();
        if (header.orientation < 1 || header.orientation > 8) abort();
        if (turn) image[swapped] = height, image[!swapped] = width;
    }
    tfpipe_apply_exif(scratch, turn);
    struct asked asked;
    uint32_t state = ask(data, image[0], image[1], &asked);
    tfpipe_use_simd(!(data[6] & 4));
    for (int i = 0; i < asked.count; i++) bytes += size_of(&asked, i);
    uint8_t *out = malloc(bytes);
    if (out && !decode(scratch, jpeg, length, NULL, image, &asked, 0, asked.count, out)) {
        /* Branches on every byte, for MemorySanitizer. */
        unsigned sum = 0;
        for (size_t i = 0; i < bytes; i++) sum += out[i] > 127;
        if (sum > bytes) abort();
        check_alone(scratch, jpeg, length, image, &asked, out);
    }
    if (out && data[7] & 4) { /* with entry points: the same crops, unless these are forged */
        struct tfpipe_entries entries = entries_of(scratch, jpeg, length, state, data[7] & 8);
        uint8_t *again = malloc(bytes);
        int status = decode(scratch, jpeg, length, NULL, image, &asked, 0, asked.count, out);
        if (again && !decode(scratch, jpeg, length, &entries, image, &asked, 0, asked.count, again) && !status &&
            !(data[7] & 8) && memcmp(out, again, bytes))
            check_plain(scratch, jpeg, length, &entries, image, &asked, -1);
        free(again);
        free((void *)(uintptr_t)entries.bytes);
    }
    if (data[7] & 16 && image[0] && image[1])
        check_stored(scratch, jpeg, length, state, image, asked.windows, asked.channels);
    free(out);
    free(jpeg);
    if (data[7] & 2) { /* a new scratch from time to time: kept tables must not hide a fault */
        tfpipe_scratch_free(scratch);
        scratch = NULL;
    }
    return 0;
}

#ifdef STANDALONE
#include <signal.h>
#include <time.h>

static uint64_t random_state;
static const uint8_t *input;
static size_t input_size;

/* Keeps the input at which the process aborts: `failed` in its folder is a FILE for the next run. */
static void keep(int number) {
    FILE *file = fopen("failed", "wb");
    if (file) {
        fwrite(input, 1, input_size, file);
        fclose(file);
    }
    signal(number, SIG_DFL);
    raise(number);
}

static void run(const uint8_t *data, size_t size) {
    input = data;
    input_size = size;
    LLVMFuzzerTestOneInput(data, size);
}

static uint32_t draw(uint32_t below) {
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(random_state >> 33) % (below ? below : 1);
}

/* Changes a few bytes or bits, or takes out, repeats or cuts off a piece. Returns the new size. */
static size_t change(uint8_t *data, size_t size, size_t room) {
    for (uint32_t n = 1 + draw(draw(2) ? 3 : 16); n > 0 && size > ASKED + 2; n--) {
        size_t at = draw((uint32_t)(draw(2) && size > 700 ? 700 : size)), length = 1 + draw(draw(2) ? 4 : 200);
        if (length > size - at) length = size - at;
        switch (draw(8)) {
        case 0: data[at] = (uint8_t)draw(256); break;
        case 1: data[at] ^= (uint8_t)(1u << draw(8)); break;
        case 2: data[at] = 0xff; break;
        case 3: data[at] = (uint8_t)(0xc0 + draw(64)); break;
        case 4: /* out */
            memmove(data + at, data + at + length, size - at - length);
            size -= length;
            break;
        case 5: /* twice */
            if (size + length > room) break;
            memmove(data + at + length, data + at, size - at);
            size += length;
            break;
        case 6: /* from elsewhere */ memmove(data + at, data + draw((uint32_t)(size - length + 1)), length); break;
        default:
            if (!draw(8)) size = at;
        }
    }
    return size;
}

int main(int count, char **names) {
    if (count < 4) return fprintf(stderr, "usage: %s CPU_SECONDS SEED FILE...\n", names[0]), 2;
    const double end_s = atof(names[1]);
    random_state = (uint64_t)atoll(names[2]) * 0x9e3779b97f4a7c15u + 1;
    signal(SIGABRT, keep); /* and, with ASAN_OPTIONS=abort_on_error=1, the sanitizers' findings */
    int files = count - 3;
    uint8_t **contents = calloc((size_t)files, sizeof *contents);
    size_t *sizes = calloc((size_t)files, sizeof *sizes), most = 1 << 20;
    uint8_t *changed = malloc(most);
    for (int i = 0; i < files; i++) {
        FILE *file = fopen(names[3 + i], "rb");
        contents[i] = malloc(most);
        if (!file || !contents[i] || !changed) return 2;
        sizes[i] = fread(contents[i], 1, most / 2, file);
        fclose(file);
        contents[i] = realloc(contents[i], sizes[i] + 1);
        run(contents[i], sizes[i]);
    }
    unsigned long runs = 0;
    while ((double)clock() / CLOCKS_PER_SEC < end_s)
        for (int k = 0; k < 256; k++, runs++) {
            int i = (int)draw((uint32_t)files);
            memcpy(changed, contents[i], sizes[i]);
            run(changed, change(changed, sizes[i], most));
        }
    printf("%d files, %lu changed\n", files, runs);
    for (int i = 0; i < files; i++) free(contents[i]);
    free(contents);
    free(sizes);
    free(changed);
    return 0;
}
#endif
