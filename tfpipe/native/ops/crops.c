/* The ops TfpipeCrops, which decodes what the windows of one or several views need of JPEGs, and TfpipeResize, for pixels
 * of other decoders. */
#include <stdlib.h>

#include "../record.h"
#include "tf.h"

enum { NUMBERS = 5 }; /* of a target */

typedef struct {
    int32_t views, channels, kernel, scans, turn;
    struct tfpipe_target targets[]; /* [views] */
} Attributes;
_Static_assert(sizeof(struct tfpipe_target) == NUMBERS * sizeof(int32_t), "the attribute `targets` has another layout");

enum { JPEGS, ENTRIES, SIZES, IMAGES, WINDOWS, FLIPS, SPAN, CROPS };

static int is_target(const struct tfpipe_target *target) {
    return target->height > 0 && target->width > 0 && target->level >= -1 && target->level <= 255 &&
           ((!target->cover[0] && !target->cover[1]) ||
            (target->cover[0] >= target->height && target->cover[1] >= target->width));
}

static void *crops_create(TF_OpKernelConstruction *construction) {
    TF_Status *status = TF_NewStatus();
    int32_t size = 0, bytes;
    TF_OpKernelConstruction_GetAttrSize(construction, "targets", &size, &bytes, status);
    Attributes *op = tfpipe_create(&tfpipe_crops_op, construction, sizeof *op->targets * (size_t)(size > 0 ? size : 0));
    if (op) TF_OpKernelConstruction_GetAttrInt32List(construction, "targets", (int32_t *)op->targets, size, status);
    int right = op && TF_GetCode(status) == TF_OK && size == NUMBERS * (int64_t)op->views;
    for (int v = 0; right && v < op->views; v++) right = is_target(op->targets + v);
    if (op && !right)
        tfpipe_refuse(construction, TF_INVALID_ARGUMENT,
                      "TfpipeCrops: targets are not a height, width, level and sides to cover of each view");
    TF_DeleteStatus(status);
    return op;
}

/* Returns what is wrong with the inputs' shapes; NULL: nothing. After it, every index below stays within its tensor. */
static const char *wrong(int views, TF_Tensor *const in[]) {
    int64_t n = TF_Dim(in[JPEGS], 0), k = TF_Dim(in[IMAGES], 0), flips = TF_Dim(in[FLIPS], 0);
    if (TF_Dim(in[SIZES], 0) != n || TF_Dim(in[SIZES], 1) != 2) return "sizes are not [n, 2]";
    if (TF_Dim(in[WINDOWS], 0) != k || TF_Dim(in[WINDOWS], 1) != 4 * views) return "windows are not [k, 4 * views]";
    if (TF_Dim(in[ENTRIES], 0) != n && TF_Dim(in[ENTRIES], 0)) return "entries are neither [n] nor [0]";
    if (flips != k * views && flips != 0) return "flips are neither [k * views] nor [0]";
    const int64_t *images = TF_TensorData(in[IMAGES]);
    for (int64_t i = 0; i < k; i++)
        if (images[i] < (i ? images[i - 1] : 0) || images[i] >= n) return "images do not ascend within [0, n)";
    return NULL;
}

/* Decodes the images of the crops [span[0], span[1]) into these crops of each view, and says which are refused. */
static void decode(const Attributes *op, TF_Tensor *const in[], const int64_t *span, uint8_t *const *out,
                   uint8_t *refused) {
    const int64_t n = TF_Dim(in[JPEGS], 0), views = op->views;
    const TF_TString *jpegs = TF_TensorData(in[JPEGS]);
    const TF_TString *entries = TF_Dim(in[ENTRIES], 0) ? TF_TensorData(in[ENTRIES]) : NULL;
    const int32_t *sizes = TF_TensorData(in[SIZES]), *windows = TF_TensorData(in[WINDOWS]);
    const int64_t *images = TF_TensorData(in[IMAGES]);
    const uint8_t *flips = TF_Dim(in[FLIPS], 0) ? TF_TensorData(in[FLIPS]) : NULL;
    /* For all, since one image may have all of them. */
    struct tfpipe_crop *crops = malloc((size_t)((span[1] - span[0]) * views + 1) * sizeof *crops);
    tfpipe_scratch *scratch = crops ? tfpipe_scratch_take() : NULL;
    if (scratch) tfpipe_limit_scans(scratch, op->scans), tfpipe_apply_exif(scratch, op->turn);
    memset(refused, 0, (size_t)n);
    for (int64_t first = span[0], end; first < span[1]; first = end) {
        int64_t image = images[first];
        for (end = first + 1; end < span[1] && images[end] == image;) end++;
        const int32_t height = sizes[2 * image], width = sizes[2 * image + 1];
        struct tfpipe_image own = {(const uint8_t *)TF_StringGetDataPointer(jpegs + image),
                                   TF_StringGetSize(jpegs + image),
                                   {0},
                                   height,
                                   width,
                                   crops,
                                   (int)((end - first) * views)};
        if (entries)
            own.entries = (struct tfpipe_entries){(const uint8_t *)TF_StringGetDataPointer(entries + image),
                                                  TF_StringGetSize(entries + image)};
        refused[image] = !scratch || height <= 0 || width <= 0 || (int64_t)height * width >= MAX_BYTES / op->channels;
        if (refused[image]) continue;
        for (int64_t i = first * views; i < end * views; i++) {
            const struct tfpipe_target *target = op->targets + i % views;
            const size_t size = (size_t)target->height * (size_t)target->width * (size_t)op->channels;
            crops[i - first * views] = tfpipe_place(target, windows + 4 * i, flips && flips[i], op->channels,
                                                    out[i % views] + (size_t)(i / views) * size);
        }
        refused[image] = tfpipe_crop_image(scratch, &own, op->channels, op->kernel, image, images) != 0;
    }
    tfpipe_scratch_give(scratch);
    free(crops);
}

static const char *crops_run(struct tfpipe_call *call) {
    const Attributes *op = call->state;
    const int64_t n = TF_Dim(call->in[JPEGS], 0), k = TF_Dim(call->in[IMAGES], 0);
    int64_t span[2];
    const char *message = wrong(op->views, call->in);
    if (!message) message = tfpipe_span(call->in[SPAN], k, span);
    if (message) return message;
    uint8_t **out = calloc((size_t)op->views, sizeof *out);
    if (!out) return "no memory";
    for (int v = 0; v < op->views && !message && tfpipe_ok(call); v++) {
        const struct tfpipe_target *target = op->targets + v;
        int64_t dims[4] = {0};
        out[v] = tfpipe_same(call, CROPS + v, v, dims);
        if (dims[0] != k || dims[1] != target->height || dims[2] != target->width || dims[3] != op->channels)
            message = "the crops are not [k, height, width, channels]";
    }
    uint8_t *refused = tfpipe_ok(call) ? tfpipe_output(call, op->views, TF_BOOL, &n, 1) : NULL;
    if (!message && tfpipe_ok(call)) decode(op, call->in, span, out, refused);
    free(out);
    return message;
}

const struct tfpipe_op tfpipe_crops_op = {
    .name = "TfpipeCrops",
    .in = {{"jpegs: string", 1},          /* [n] */
           {"entries: string", 1},        /* [n]: entry points, "" for none; or [0] */
           {"sizes: int32", 2},           /* [n, 2]: height, width */
           {"images: int64", 1},          /* [k]: number of the JPEG, ascending */
           {"windows: int32", 2},         /* [k, 4 * views]: top, left, height, width of each view */
           {"flips: bool", 1},            /* [k * views], or [0]: none */
           {"span: int64", 1},            /* of crops, as tfpipe_span says */
           {"crops: views * uint8", -1}}, /* of each view, [k, height, width, channels]: written */
    .attributes = {"views: int >= 1", "channels: int >= 1", "kernel: int >= 0", "scans: int >= 0 = 0",
                   "turn: int >= 0 = 0",  /* whether as EXIF says */
                   "targets: list(int)"}, /* [5 * views]: a struct tfpipe_target of each view */
    .numbers = 5,
    .writes = 1,
    .out = {"written: views * uint8", /* the same; undefined for a refused JPEG */
            "refused: bool"},         /* [n] */
    .run = crops_run,
    .create = crops_create,
};

enum { IMAGE, CUT, MIRRORED, ROWS, RESIZED }; /* inputs of TfpipeResize */

/* The numbers of TfpipeResize. */
struct resize {
    int32_t level, cover[2], kernel;
};

static const char *resize_run(struct tfpipe_call *call) {
    const struct resize *op = call->state;
    TF_Tensor *const *in = call->in;
    const int64_t height = TF_Dim(in[IMAGE], 0), width = TF_Dim(in[IMAGE], 1), channels = TF_Dim(in[IMAGE], 2);
    const int64_t count = TF_Dim(in[CUT], 0), mirrored = TF_Dim(in[MIRRORED], 0);
    if ((channels != 1 && channels != 3) || height > INT32_MAX || width > INT32_MAX)
        return "the image is not [height, width, 1 or 3]";
    if (TF_Dim(in[CUT], 1) != 4 || count > INT32_MAX) return "windows are not [k, 4]";
    if (TF_Dim(in[ROWS], 0) != count) return "rows are not [k]";
    if (mirrored && mirrored != count) return "flips are neither [k] nor [0]";
    const int64_t *rows = TF_TensorData(in[ROWS]);
    int64_t dims[4];
    uint8_t *pixels = tfpipe_same(call, RESIZED, 0, dims);
    if (!tfpipe_ok(call)) return NULL;
    for (int64_t i = 0; i < count; i++)
        if (rows[i] < 0 || rows[i] >= dims[0]) return "rows are not within the crops";
    if (dims[1] < 1 || dims[1] > INT32_MAX || dims[2] < 1 || dims[2] > INT32_MAX || dims[3] != channels)
        return "the crops are not [m, height, width, channels]";
    const struct tfpipe_target target = {(int32_t)dims[1], (int32_t)dims[2], op->level, {op->cover[0], op->cover[1]}};
    if (target.cover[0] && (target.cover[0] < target.height || target.cover[1] < target.width))
        return "the sides to cover are less than the crop's";
    const uint8_t *flips = mirrored ? TF_TensorData(in[MIRRORED]) : NULL;
    const int32_t *windows = TF_TensorData(in[CUT]);
    struct tfpipe_crop *crops = malloc(((size_t)count + 1) * sizeof *crops);
    tfpipe_scratch *scratch = crops ? tfpipe_scratch_take() : NULL;
    for (int64_t i = 0; scratch && i < count; i++)
        crops[i] = tfpipe_place(&target, windows + 4 * i, flips && flips[i], (int)channels,
                                pixels + rows[i] * dims[1] * dims[2] * channels);
    int status = scratch ? tfpipe_resize(scratch, TF_TensorData(in[IMAGE]), (int)height, (int)width, crops, (int)count,
                                         (int)channels, op->kernel)
                         : TFPIPE_MEMORY;
    tfpipe_scratch_give(scratch);
    free(crops);
    if (status == TFPIPE_MEMORY) return "no memory";
    return status ? "a window is not within the image, which is of another size than was stated" : NULL;
}

const struct tfpipe_op tfpipe_resize_op = {
    .name = "TfpipeResize",
    .in = {{"image: uint8", 3},   /* [h, w, channels]: 1 or 3 */
           {"windows: int32", 2}, /* [k, 4]: top, left, height, width */
           {"flips: bool", 1},    /* [k], or [0]: none */
           {"rows: int64", 1},    /* [k]: the crop that each window gives */
           {"crops: uint8", 4}},  /* [m, height, width, channels]: those of `rows` are written */
    .attributes = {"level: int >= -1 = -1", "cover_height: int >= 0 = 0", "cover_width: int >= 0 = 0",
                   "kernel: int >= 0"},
    .numbers = 4,
    .writes = 1,
    .out = {"written: uint8"}, /* the same */
    .run = resize_run,
};
