/* The op TfpipeWindows: random windows of all images of a call. */
#include "../crops.h"
#include "tf.h"

enum { SIZES, BOXES, SPANS, IMAGES, SEEDS, RANGES, INPUTS };

/* Says what is wrong with the inputs; NULL: nothing. After it, every index below stays within its tensor. */
static const char *wrong(TF_Tensor *const in[INPUTS]) {
    static const int ranks[INPUTS] = {2, 2, 2, 1, 3, 2};
    for (int i = 0; i < INPUTS; i++)
        if (TF_NumDims(in[i]) != ranks[i]) return "TfpipeWindows: an input has a wrong rank";
    int64_t n = TF_Dim(in[SIZES], 0), boxes = TF_Dim(in[BOXES], 0), k = TF_Dim(in[IMAGES], 0);
    if (TF_Dim(in[SIZES], 1) != 2 || TF_Dim(in[BOXES], 1) != 4)
        return "TfpipeWindows: sizes or boxes have wrong shapes";
    if (TF_Dim(in[SPANS], 0) != k || TF_Dim(in[SPANS], 1) != 2) return "TfpipeWindows: spans are not [k, 2]";
    if (TF_Dim(in[SEEDS], 0) != k || TF_Dim(in[SEEDS], 1) != TF_Dim(in[RANGES], 0) || TF_Dim(in[SEEDS], 2) != 2)
        return "TfpipeWindows: seeds are not [k, ranges, 2]";
    if (TF_Dim(in[RANGES], 1) * (int64_t)sizeof(double) != sizeof(struct tfpipe_range))
        return "TfpipeWindows: ranges have another layout";
    const int64_t *images = TF_TensorData(in[IMAGES]), *spans = TF_TensorData(in[SPANS]);
    for (int64_t i = 0; i < k; i++) {
        if (images[i] < 0 || images[i] >= n) return "TfpipeWindows: images are not within [0, n)";
        if (spans[2 * i] < 0 || spans[2 * i] > spans[2 * i + 1] || spans[2 * i + 1] > boxes)
            return "TfpipeWindows: spans are not within the boxes";
    }
    const float *edges = TF_TensorData(in[BOXES]);
    for (int64_t i = 0; i < 4 * boxes; i++)
        if (!(edges[i] >= 0 && edges[i] <= 1)) return "TfpipeWindows: the edge of a box is not within [0, 1]";
    return NULL;
}

static void compute(void *op, TF_OpKernelContext *context) {
    (void)op;
    TF_Status *status = TF_NewStatus();
    TF_Tensor *in[INPUTS] = {0}, *out = NULL;
    for (int i = 0; i < INPUTS && TF_GetCode(status) == TF_OK; i++) TF_GetInput(context, i, &in[i], status);
    const char *problem = TF_GetCode(status) == TF_OK ? wrong(in) : NULL;
    if (problem) TF_SetStatus(status, TF_INVALID_ARGUMENT, problem);
    if (TF_GetCode(status) == TF_OK) {
        const int64_t dims[3] = {TF_Dim(in[IMAGES], 0), TF_Dim(in[RANGES], 0), 4};
        out =
            TF_AllocateOutput(context, 0, TF_INT32, dims, 3, (size_t)(dims[0] * dims[1] * 4) * sizeof(int32_t), status);
    }
    if (TF_GetCode(status) == TF_OK) {
        const int32_t *sizes = TF_TensorData(in[SIZES]);
        const int64_t *images = TF_TensorData(in[IMAGES]), *spans = TF_TensorData(in[SPANS]);
        const int64_t *seeds = TF_TensorData(in[SEEDS]), views = TF_Dim(in[RANGES], 0);
        const float *boxes = TF_TensorData(in[BOXES]);
        const struct tfpipe_range *ranges = TF_TensorData(in[RANGES]);
        int32_t *windows = TF_TensorData(out);
        for (int64_t i = 0; i < TF_Dim(in[IMAGES], 0); i++)
            for (int64_t v = 0; v < views; v++, seeds += 2, windows += 4)
                tfpipe_random_window(seeds, sizes[2 * images[i]], sizes[2 * images[i] + 1], boxes + 4 * spans[2 * i],
                                     spans[2 * i + 1] - spans[2 * i], ranges + v, windows);
    }
    tfpipe_end_call(context, status, in, INPUTS, out);
}

const struct tfpipe_op tfpipe_windows_op = {
    "TfpipeWindows",
    {
        "sizes: int32",   /* [n, 2]: height, width */
        "boxes: float",   /* [b, 4]: ymin, xmin, ymax, xmax, relative */
        "spans: int64",   /* [k, 2]: first of the crop's boxes, and the end of these */
        "images: int64",  /* [k]: number of the crop's image */
        "seeds: int64",   /* [k, views, 2] */
        "ranges: double", /* [views, 7]: struct tfpipe_range */
    },
    {NULL},
    {"windows: int32"}, /* [k, views, 4]: top, left, height, width */
    NULL,
    compute,
    NULL,
};
