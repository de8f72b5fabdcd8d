/* Weights of the source pixels that a target's pixel is made of, along one axis. Pixel centres are at half pixels. */
#include "rows.h"

static double triangle(double x) {
    if (x < 0) x = -x;
    return x < 1 ? 1 - x : 0;
}

static double cubic(double x) { /* Keys' (1981) with a = -0.5 */
    if (x < 0) x = -x;
    return x < 1 ? (1.5 * x - 2.5) * x * x + 1 : x < 2 ? ((-0.5 * x + 2.5) * x - 4) * x + 2 : 0;
}

static double radius(const struct axis *axis) { /* of the kernel, in source pixels */
    return (axis->kernel == TFPIPE_BICUBIC ? 2 : 1) *
           (axis->source > axis->whole ? (double)axis->source / (double)axis->whole : 1.0);
}

struct axis axis_of(int kernel, int source, int64_t whole, int64_t first, int size) {
    struct axis axis = {.kernel = kernel, .source = source, .size = size, .whole = whole, .first = first};
    size_t pixels = (size_t)size + MORE_TAPS, bytes = pixels * sizeof *axis.pairs;
    if (kernel != TFPIPE_BILINEAR && !(kernel == TFPIPE_ANTIALIAS && source <= whole)) {
        double width = 2 * radius(&axis);
        int most = kernel == TFPIPE_AREA ? (int)(source / whole) + (source % whole ? 2 : 0)
                                         : (int)width + (width > (int)width);
        if (most > source) most = source;
        axis.taps = (most + 1) / 2 * 2;
        bytes = pixels * (sizeof *axis.low + (size_t)axis.taps * sizeof *axis.weights);
    }
    axis.bytes = (bytes + 7) / 8 * 8;
    return axis;
}

static void set_pairs(const struct axis *axis, int mirrored) {
    int source = axis->source, size = axis->size;
    double scale = (double)source / (double)axis->whole;
    for (int i = 0; i < size; i++) {
        double at = ((double)(axis->first + i) + 0.5) * scale - 0.5;
        int low = at < 0 ? 0 : (int)at; /* at most source - 1: (whole - 0.5) * source / whole - 0.5 < source */
        if (low > source - 1) low = source - 1;
        int share = at < 0 || low == source - 1 ? 0 : (int)((at - low) * (1 << WEIGHT) + 0.5);
        if (share == 1 << WEIGHT) share--; /* twice this must fit in 16 bits: see blend_rows */
        struct tap tap = {low, {(int16_t)((1 << WEIGHT) - share), (int16_t)share}};
        axis->pairs[mirrored ? size - 1 - i : i] = tap;
    }
    for (int k = 0; k < MORE_TAPS; k++) axis->pairs[size + k] = axis->pairs[size - 1];
}

/* Sets the weights of source pixels from `low` on that overlap the target's pixel i; returns their number. */
static int overlaps(const struct axis *axis, int i, int *low, double *weights) {
    int64_t from = (axis->first + i) * axis->source, to = from + axis->source, size = axis->whole;
    int first = (int)(from / size), end = (int)((to + size - 1) / size);
    for (int k = first; k < end; k++) {
        int64_t begin = k * size > from ? k * size : from, stop = (k + 1) * size < to ? (k + 1) * size : to;
        weights[k - first] = (double)(stop - begin);
    }
    *low = first;
    return end - first;
}

/* The same of a kernel that widens where the image shrinks: Pillow's precompute_coeffs, with its rounding. */
static int samples(const struct axis *axis, int i, int *low, double *weights) {
    double reach = radius(axis), centre = ((double)(axis->first + i) + 0.5) * axis->source / (double)axis->whole;
    double narrow = (axis->kernel == TFPIPE_BICUBIC ? 2 : 1) / reach;
    int first = (int)(centre - reach + 0.5), end = (int)(centre + reach + 0.5);
    if (first < 0) first = 0;
    if (end > axis->source) end = axis->source;
    if (end > first + axis->taps) end = first + axis->taps;
    for (int k = first; k < end; k++) {
        double x = (k - centre + 0.5) * narrow;
        weights[k - first] = axis->kernel == TFPIPE_BICUBIC ? cubic(x) : triangle(x);
    }
    *low = first;
    return end - first;
}

/* Sums of weights are rounded, rather than weights, so that the sum of all of them is exact: a flat image stays as it
 * is. */
static void set_weights(const struct axis *axis, double *weights, int mirrored) {
    const double bias = 1 << 16; /* sums are positive then, so that conversion rounds down */
    for (int i = 0; i < axis->size; i++) {
        int low, count = (axis->kernel == TFPIPE_AREA ? overlaps : samples)(axis, i, &low, weights);
        int shift = low + axis->taps - axis->source; /* weights of 0 come first where the source ends */
        if (shift < 0) shift = 0;
        if (shift > low) shift = low;
        int at = mirrored ? axis->size - 1 - i : i, before = 0;
        int16_t *out = axis->weights + (size_t)at * (size_t)axis->taps;
        axis->low[at] = low - shift;
        double total = 0, sum = 0;
        for (int k = 0; k < count; k++) total += weights[k];
        for (int k = 0; k < axis->taps; k++) out[k] = 0;
        for (int k = 0; k < count; k++) {
            sum += weights[k];
            int rounded = (int)(sum / total * (1 << WEIGHT) + bias + 0.5) - (int)bias;
            out[shift + k] = (int16_t)(rounded - before);
            before = rounded;
        }
    }
    for (int k = 0; k < MORE_TAPS; k++) {
        const int16_t *last = axis->weights + ((size_t)axis->size - 1) * (size_t)axis->taps;
        axis->low[axis->size + k] = axis->low[axis->size - 1];
        for (int t = 0; t < axis->taps; t++) axis->weights[(size_t)(axis->size + k) * (size_t)axis->taps + t] = last[t];
    }
}

void axis_set(struct axis *axis, void *memory, double *weights, int mirrored) {
    if (!axis->taps) {
        axis->pairs = memory;
        set_pairs(axis, mirrored);
        return;
    }
    axis->low = memory;
    axis->weights = (int16_t *)(void *)(axis->low + axis->size + MORE_TAPS);
    set_weights(axis, weights, mirrored);
}

void axis_narrow(struct axis *axis, int *start, int *length) {
    if (axis->whole == axis->size) return;
    int from = *length, to = 0;
    for (int i = 0; i < axis->size; i++) {
        int low = axis->taps ? axis->low[i] : axis->pairs[i].low, end = low + (axis->taps ? axis->taps : 2);
        if (low < from) from = low;
        if (end > to) to = end;
    }
    if (to > *length) to = *length;
    for (int i = 0; i < axis->size + MORE_TAPS; i++) *(axis->taps ? axis->low + i : &axis->pairs[i].low) -= from;
    *start += from;
    *length = to - from;
}
