/* Draws random windows as torchvision's RandomResizedCrop does, from hashes in place of a generator's state. */
#include "../base.h"
#include "../hash.h"

#include <math.h>

enum { TRIES = 10, COVERING_TRIES = 100, DRAWS = 4, TERMS = 8, SQUARES = 8 };

/* Returns e^x by sums and products alone, which are the same everywhere; libm's differ in the last bit. The relative
 * error is below 1e-13 for |x| below 8. */
static double exponential(double x) {
    static const double FACTORS[TERMS] = {1, 1, 1.0 / 2, 1.0 / 6, 1.0 / 24, 1.0 / 120, 1.0 / 720, 1.0 / 5040};
    double y = x * (1.0 / (1 << SQUARES)), power = FACTORS[TERMS - 1];
    for (int i = TERMS - 2; i >= 0; i--) power = FACTORS[i] + y * power;
    for (int i = 0; i < SQUARES; i++) power *= power;
    return power;
}

/* A window; whole numbers of pixels. */
struct rectangle {
    double top, left, height, width;
};

/* Draws number i of the tries. Returns 0 if the window is higher or wider than the image. */
static int draw(uint64_t key, int i, int height, int width, const struct tfpipe_range *range, struct rectangle *drawn) {
    const uint64_t first = (uint64_t)(DRAWS * i + 1);
    const double *share = range->area, *log = range->log_aspect;
    double area = (double)height * width * (share[0] + (share[1] - share[0]) * uniform_at(key, first));
    double aspect = exponential(log[0] + (log[1] - log[0]) * uniform_at(key, first + 1));
    drawn->height = rint(sqrt(area / aspect)), drawn->width = rint(sqrt(area * aspect));
    if (!(drawn->height >= 1 && drawn->height <= height && drawn->width >= 1 && drawn->width <= width)) return 0;
    drawn->top = floor(uniform_at(key, first + 2) * (height - drawn->height + 1));
    drawn->left = floor(uniform_at(key, first + 3) * (width - drawn->width + 1));
    return 1;
}

static double side_of(double length, int most) { return fmin(fmax(rint(length), 1), most); }

/* Returns the middle of an image, as much of it as the aspect ratios allow. */
static struct rectangle middle_of(int height, int width, const double aspect[2]) {
    double ratio = (double)width / height, high = height, wide = width;
    if (ratio < aspect[0]) high = side_of(width / aspect[0], height);
    if (ratio > aspect[1]) wide = side_of(height * aspect[1], width);
    return (struct rectangle){floor((height - high) / 2), floor((width - wide) / 2), high, wide};
}

/* Returns whether a window covers the share `covered` of one of the boxes; of no boxes: of the image. */
static int covers(const struct rectangle *r, int height, int width, const float *boxes, int64_t count, double covered) {
    static const float WHOLE[4] = {0, 0, 1, 1};
    if (covered <= 0) return 1;
    for (int64_t i = 0; i < (count ? count : 1); i++) {
        const float *box = count ? boxes + 4 * i : WHOLE;
        double top = (double)box[0] * height, left = (double)box[1] * width;
        double bottom = (double)box[2] * height, right = (double)box[3] * width;
        double rows = fmin(r->top + r->height, bottom) - fmax(r->top, top);
        double columns = fmin(r->left + r->width, right) - fmax(r->left, left);
        if (rows > 0 && columns > 0 && rows * columns >= (bottom - top) * (right - left) * covered) return 1;
    }
    return 0;
}

void tfpipe_random_window(const int64_t seed[2], int height, int width, const float *boxes, int64_t count,
                          const struct tfpipe_range *range, int32_t window[4]) {
    const uint64_t key = hash(hash((uint64_t)seed[0] + GAMMA) + GAMMA * (uint64_t)seed[1]);
    const double covered = range->covered;
    const int tries = covered > 0 ? COVERING_TRIES : TRIES;
    struct rectangle drawn;
    int i = 0;
    while (i < tries &&
           !(draw(key, i, height, width, range, &drawn) && covers(&drawn, height, width, boxes, count, covered)))
        i++;
    if (i == tries) drawn = middle_of(height, width, range->aspect);
    if (i == tries && !covers(&drawn, height, width, boxes, count, covered))
        drawn = (struct rectangle){0, 0, height, width};
    const int32_t values[4] = {(int32_t)drawn.top, (int32_t)drawn.left, (int32_t)drawn.height, (int32_t)drawn.width};
    memcpy(window, values, sizeof values);
}
