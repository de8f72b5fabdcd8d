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

enum { JPEGS, ENTRIES, SIZES, IMAGES, WINDOWS, FLIPS };

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

/* Returns the largest number of crops of an image. */
static int64_t most_crops(const int64_t *images, int64_t k) {
    int64_t most = 0;
    for (int64_t first = 0, i = 0; i < k; i++) {
        if (images[i] != images[first]) first = i;
        if (i - first + 1 > most) most = i - first + 1;
    }
    return most;
}

/* Decodes all images into the crops of each view, and says which of them are refused. */
static void decode(const Attributes *op, TF_Tensor *const in[], uint8_t *const *out, uint8_t *refused) {
    const int64_t n = TF_Dim(in[JPEGS], 0), k = TF_Dim(in[IMAGES], 0), views = op->views;
    const TF_TString *jpegs = TF_TensorData(in[JPEGS]);
    const TF_TString *entries = TF_Dim(in[ENTRIES], 0) ? TF_TensorData(in[ENTRIES]) : NULL;
    const int32_t *sizes = TF_TensorData(in[SIZES]), *windows = TF_TensorData(in[WINDOWS]);
    const int64_t *images = TF_TensorData(in[IMAGES]);
    const uint8_t *flips = TF_Dim(in[FLIPS], 0) ? TF_TensorData(in[FLIPS]) : NULL;
    struct tfpipe_crop *crops = malloc((size_t)(most_crops(images, k) * views + 1) * sizeof *crops);
    tfpipe_scratch *scratch = crops ? tfpipe_scratch_take() : NULL;
    if (scratch) tfpipe_limit_scans(scratch, op->scans), tfpipe_apply_exif(scratch, op->turn);
    memset(refused, 0, (size_t)n);
    for (int64_t first = 0, end; first < k; first = end) {
        int64_t image = images[first];
        for (end = first + 1; end < k && images[end] == image;) end++;
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
    struct tfpipe_event event = {.when_ns = tfpipe_recording() ? tfpipe_now_ns() : 0, .kind = TFPIPE_CALL};
    const char *message = wrong(op->views, call->in);
    if (message) return message;
    const int64_t n = TF_Dim(call->in[JPEGS], 0);
    uint8_t **out = calloc((size_t)op->views, sizeof *out);
    if (!out) return "no memory";
    for (int v = 0; v < op->views && tfpipe_ok(call); v++) {
        const struct tfpipe_target *target = op->targets + v;
        const int64_t dims[4] = {TF_Dim(call->in[IMAGES], 0), target->height, target->width, op->channels};
        out[v] = tfpipe_output(call, v, TF_UINT8, dims, 4);
    }
    uint8_t *refused = tfpipe_ok(call) ? tfpipe_output(call, op->views, TF_BOOL, &n, 1) : NULL;
    if (event.when_ns) event.parts_ns[0] = tfpipe_now_ns() - event.when_ns;
    if (tfpipe_ok(call)) decode(op, call->in, out, refused);
    if (event.when_ns) event.parts_ns[1] = tfpipe_now_ns() - event.when_ns - event.parts_ns[0];
    event.call = (uint64_t)(uintptr_t)TF_TensorData(call->in[IMAGES]);
    free(out);
    tfpipe_release(call);
    if (!event.when_ns || !tfpipe_ok(call)) return NULL;
    event.parts_ns[2] = tfpipe_now_ns() - event.when_ns - event.parts_ns[0] - event.parts_ns[1];
    tfpipe_record(event);
    return NULL;
}

const struct tfpipe_op tfpipe_crops_op = {
    .name = "TfpipeCrops",
    .in = {{"jpegs: string", 1},   /* [n] */
           {"entries: string", 1}, /* [n]: entry points, "" for none; or [0] */
           {"sizes: int32", 2},    /* [n, 2]: height, width */
           {"images: int64", 1},   /* [k]: number of the JPEG, ascending */
           {"windows: int32", 2},  /* [k, 4 * views]: top, left, height, width of each view */
           {"flips: bool", 1}},    /* [k * views], or [0]: none */
    .attributes = {"views: int >= 1", "channels: int >= 1", "kernel: int >= 0", "scans: int >= 0 = 0",
                   "turn: int >= 0 = 0",  /* whether as EXIF says */
                   "targets: list(int)"}, /* [5 * views]: a struct tfpipe_target of each view */
    .numbers = 5,
    .out = {"crops: views * uint8", /* of each view, [k, height, width, channels]; undefined for a refused JPEG */
            "refused: bool"},       /* [n] */
    .run = crops_run,
    .create = crops_create,
};

enum { IMAGE, CUT, MIRRORED }; /* inputs of TfpipeResize */

/* The numbers of TfpipeResize. */
struct resize {
    struct tfpipe_target target;
    int32_t kernel;
};

static const char *resize_run(struct tfpipe_call *call) {
    const struct resize *op = call->state;
    const struct tfpipe_target target = op->target;
    TF_Tensor *const *in = call->in;
    const int64_t height = TF_Dim(in[IMAGE], 0), width = TF_Dim(in[IMAGE], 1), channels = TF_Dim(in[IMAGE], 2);
    const int64_t count = TF_Dim(in[CUT], 0), mirrored = TF_Dim(in[MIRRORED], 0);
    if ((channels != 1 && channels != 3) || height > INT32_MAX || width > INT32_MAX)
        return "the image is not [height, width, 1 or 3]";
    if (TF_Dim(in[CUT], 1) != 4 || count > INT32_MAX) return "windows are not [k, 4]";
    if (mirrored && mirrored != count) return "flips are neither [k] nor [0]";
    if (target.cover[0] && (target.cover[0] < target.height || target.cover[1] < target.width))
        return "the sides to cover are less than the crop's";
    const int64_t dims[4] = {count, target.height, target.width, channels};
    uint8_t *pixels = tfpipe_output(call, 0, TF_UINT8, dims, 4);
    if (!tfpipe_ok(call)) return NULL;
    const uint8_t *flips = mirrored ? TF_TensorData(in[MIRRORED]) : NULL;
    const int32_t *windows = TF_TensorData(in[CUT]);
    struct tfpipe_crop *crops = malloc(((size_t)count + 1) * sizeof *crops);
    tfpipe_scratch *scratch = crops ? tfpipe_scratch_take() : NULL;
    for (int64_t i = 0; scratch && i < count; i++, pixels += dims[1] * dims[2] * dims[3])
        crops[i] = tfpipe_place(&target, windows + 4 * i, flips && flips[i], (int)channels, pixels);
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
           {"flips: bool", 1}},   /* [k], or [0]: none */
    .attributes = {"height: int >= 1", "width: int >= 1", "level: int >= -1 = -1", "cover_height: int >= 0 = 0",
                   "cover_width: int >= 0 = 0", "kernel: int >= 0"},
    .numbers = 6,
    .out = {"crops: uint8"}, /* [k, height, width, channels] */
    .run = resize_run,
};
