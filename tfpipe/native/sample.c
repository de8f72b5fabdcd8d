/* Draws random windows as TensorFlow's op StatelessSampleDistortedBoundingBox does (Szegedy et al. 2015, section 6): the
 * same windows for the same seeds, so that a run may go on with either. Sums and products are rounded one by one to
 * floats, as there. */
#include "crops.h"

#include <math.h>
#include <string.h>

enum { ATTEMPTS = 100, WORDS = 4, ROUNDS = 10 };

/* A sequence of random numbers: those of the counter-based generator Philox4x32-10 (Salmon et al. 2011). */
struct philox {
    uint32_t key[2], counter[WORDS], words[WORDS];
    int used; /* of the words */
};

static void philox_rounds(const uint32_t *counter, const uint32_t *key, uint32_t *out) {
    uint32_t x[WORDS], k[2] = {key[0], key[1]};
    memcpy(x, counter, sizeof x);
    for (int i = 0; i < ROUNDS; i++, k[0] += 0x9E3779B9u, k[1] += 0xBB67AE85u) {
        uint64_t first = (uint64_t)0xD2511F53u * x[0], second = (uint64_t)0xCD9E8D57u * x[2];
        uint32_t next[WORDS] = {(uint32_t)(second >> 32) ^ x[1] ^ k[0], (uint32_t)second,
                                (uint32_t)(first >> 32) ^ x[3] ^ k[1], (uint32_t)first};
        memcpy(x, next, sizeof x);
    }
    memcpy(out, x, sizeof x);
}

/* Begins with what TensorFlow makes of the two seeds of a stateless op: they are the counter of a generator with a fixed
 * key, whose first numbers are the key and half of the counter. */
static struct philox philox_of(const int64_t seed[2]) {
    const uint32_t key[2] = {0x3EC8F720u, 0x02461E29u};
    const uint32_t counter[WORDS] = {(uint32_t)seed[0], (uint32_t)((uint64_t)seed[0] >> 32), (uint32_t)seed[1],
                                     (uint32_t)((uint64_t)seed[1] >> 32)};
    uint32_t mixed[WORDS];
    philox_rounds(counter, key, mixed);
    return (struct philox){.key = {mixed[0], mixed[1]}, .counter = {0, 0, mixed[2], mixed[3]}, .used = WORDS};
}

static uint32_t next_word(struct philox *random) {
    if (random->used == WORDS) {
        philox_rounds(random->counter, random->key, random->words);
        for (int i = 0; i < WORDS && !++random->counter[i]; i++) {
        }
        random->used = 0;
    }
    return random->words[random->used++];
}

/* Returns the next number, uniform in [0, 1): 23 bits. */
static float uniform(struct philox *random) { return (float)(next_word(random) & 0x7FFFFFu) * 0x1p-23f; }

/* Returns the next number, an integer in [0, count): of `count` no power of 2 the lowest words are left out. */
static int below(struct philox *random, int count) {
    uint32_t n = (uint32_t)count, word = next_word(random);
    if (!(n & (n - 1))) return (int)(word & (n - 1));
    for (const uint32_t skewed = UINT32_MAX % n + 1; word < skewed;) word = next_word(random);
    return (int)(word % n);
}

struct rectangle {
    int top, left, bottom, right;
};

static float area_of(struct rectangle r) { return (float)((int64_t)(r.right - r.left) * (r.bottom - r.top)); }

static int most(int a, int b) { return a > b ? a : b; }
static int least(int a, int b) { return a < b ? a : b; }

/* Draws a rectangle of an aspect ratio. Returns 0 if rounding leaves none with an area in the range. */
static int draw(struct philox *random, int image_height, int image_width, const struct tfpipe_range *range,
                float aspect, struct rectangle *drawn) {
    if (aspect <= 0 || range->area[1] <= 0 || range->area[0] > range->area[1] || image_width <= 0 || image_height <= 0)
        return 0;
    const float smallest = range->area[0] * (float)image_width * (float)image_height;
    const float largest = range->area[1] * (float)image_width * (float)image_height;
    int height = (int)lrintf(sqrtf(smallest / aspect)), highest = (int)lrintf(sqrtf(largest / aspect));
    if (lrintf((float)highest * aspect) > image_width) {
        highest = (int)((image_width + 0.5 - (double)1e-7f) / (double)aspect);
        if (lrintf((float)highest * aspect) > image_width) highest--;
    }
    highest = least(highest, image_height);
    height = least(height, highest);
    if (height < highest) height += below(random, highest - height + 1);
    int width = (int)lrintf((float)height * aspect);
    if ((float)(width * height) < smallest) width = (int)lrintf((float)++height * aspect);
    if ((float)(width * height) > largest) width = (int)lrintf((float)--height * aspect);
    const float area = (float)(width * height);
    if (area < smallest || area > largest || width > image_width || height > image_height || width <= 0 || height <= 0)
        return 0;
    drawn->top = height < image_height ? below(random, image_height - height) : 0;
    drawn->left = width < image_width ? below(random, image_width - width) : 0;
    drawn->bottom = drawn->top + height, drawn->right = drawn->left + width;
    return 1;
}

/* Returns whether a rectangle covers the share `covered` of one of the boxes; of no boxes: of the image. */
static int covers(struct rectangle r, int height, int width, const float *boxes, int64_t count, float covered) {
    if (area_of(r) < 1) return 0;
    for (int64_t i = 0; i < (count ? count : 1); i++) {
        struct rectangle box = {0, 0, height, width};
        if (count) {
            const float *edges = boxes + 4 * i;
            box = (struct rectangle){(int)(edges[0] * (float)height), (int)(edges[1] * (float)width),
                                     (int)(edges[2] * (float)height), (int)(edges[3] * (float)width)};
        }
        if (area_of(box) < 1) continue;
        struct rectangle both = {most(r.top, box.top), most(r.left, box.left), least(r.bottom, box.bottom),
                                 least(r.right, box.right)};
        int apart = both.left > both.right || both.top > both.bottom;
        if ((apart ? 0 : area_of(both)) / area_of(box) >= covered) return 1;
    }
    return 0;
}

void tfpipe_random_window(const int64_t seed[2], int height, int width, const float *boxes, int64_t count,
                          const struct tfpipe_range *range, int32_t window[4]) {
    struct philox random = philox_of(seed);
    struct rectangle drawn = {0, 0, height, width};
    for (int i = 0; i < ATTEMPTS; i++) {
        float aspect = uniform(&random) * (range->aspect[1] - range->aspect[0]) + range->aspect[0];
        if (draw(&random, height, width, range, aspect, &drawn) &&
            covers(drawn, height, width, boxes, count, range->covered))
            break;
        drawn = (struct rectangle){0, 0, height, width};
    }
    const int32_t values[4] = {drawn.top, drawn.left, drawn.bottom - drawn.top, drawn.right - drawn.left};
    memcpy(window, values, sizeof values);
}
