/* The op TfpipeWindows: random windows of all images of a call. */
#include "tf.h"

enum { SIZES, BOXES, SPANS, IMAGES, SEEDS, RANGES };

/* Returns what is wrong with the inputs; NULL: nothing. After it, every index below stays within its tensor. */
static const char *wrong(TF_Tensor *const in[]) {
    int64_t n = TF_Dim(in[SIZES], 0), boxes = TF_Dim(in[BOXES], 0), k = TF_Dim(in[IMAGES], 0);
    if (TF_Dim(in[SIZES], 1) != 2 || TF_Dim(in[BOXES], 1) != 4) return "sizes or boxes have wrong shapes";
    if (TF_Dim(in[SPANS], 0) != k || TF_Dim(in[SPANS], 1) != 2) return "spans are not [k, 2]";
    if (TF_Dim(in[SEEDS], 0) != k || TF_Dim(in[SEEDS], 1) != TF_Dim(in[RANGES], 0) || TF_Dim(in[SEEDS], 2) != 2)
        return "seeds are not [k, ranges, 2]";
    if (TF_Dim(in[RANGES], 1) * (int64_t)sizeof(double) != sizeof(struct tfpipe_range))
        return "ranges have another layout";
    const int64_t *images = TF_TensorData(in[IMAGES]), *spans = TF_TensorData(in[SPANS]);
    for (int64_t i = 0; i < k; i++) {
        if (images[i] < 0 || images[i] >= n) return "images are not within [0, n)";
        if (spans[2 * i] < 0 || spans[2 * i] > spans[2 * i + 1] || spans[2 * i + 1] > boxes)
            return "spans are not within the boxes";
    }
    const float *edges = TF_TensorData(in[BOXES]);
    for (int64_t i = 0; i < 4 * boxes; i++)
        if (!(edges[i] >= 0 && edges[i] <= 1)) return "the edge of a box is not within [0, 1]";
    return NULL;
}

static const char *run(struct tfpipe_call *call) {
    TF_Tensor *const *in = call->in;
    const char *message = wrong(in);
    if (message) return message;
    const int64_t dims[3] = {TF_Dim(in[IMAGES], 0), TF_Dim(in[RANGES], 0), 4};
    int32_t *windows = tfpipe_output(call, 0, TF_INT32, dims, 3);
    if (!tfpipe_ok(call)) return NULL;
    const int32_t *sizes = TF_TensorData(in[SIZES]);
    const int64_t *images = TF_TensorData(in[IMAGES]), *spans = TF_TensorData(in[SPANS]);
    const int64_t *seeds = TF_TensorData(in[SEEDS]);
    const float *boxes = TF_TensorData(in[BOXES]);
    const struct tfpipe_range *ranges = TF_TensorData(in[RANGES]);
    for (int64_t i = 0; i < dims[0]; i++)
        for (int64_t v = 0; v < dims[1]; v++, seeds += 2, windows += 4)
            tfpipe_random_window(seeds, sizes[2 * images[i]], sizes[2 * images[i] + 1], boxes + 4 * spans[2 * i],
                                 spans[2 * i + 1] - spans[2 * i], ranges + v, windows);
    return NULL;
}

const struct tfpipe_op tfpipe_windows_op = {
    .name = "TfpipeWindows",
    .in = {{"sizes: int32", 2},    /* [n, 2]: height, width */
           {"boxes: float", 2},    /* [b, 4]: ymin, xmin, ymax, xmax, relative */
           {"spans: int64", 2},    /* [k, 2]: first of the crop's boxes, and the end of these */
           {"images: int64", 1},   /* [k]: number of the crop's image */
           {"seeds: int64", 3},    /* [k, views, 2] */
           {"ranges: double", 2}}, /* [views, 7]: struct tfpipe_range */
    .out = {"windows: int32"},     /* [k, views, 4]: top, left, height, width */
    .run = run,
};
