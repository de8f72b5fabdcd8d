/* The ops TfpipeCrops, which decodes what the windows of one or several views need of JPEGs, and TfpipeResize, for pixels
 * of other decoders. */
#include <stdlib.h>
#include <string.h>

#include "../record.h"
#include "tf.h"

enum {
    TOO_LARGE = 1 << 29, /* bytes of an image that TensorFlow refuses to decode: headers.TOO_LARGE */
    NUMBERS = 5          /* of a target */
};

typedef struct {
    int32_t views, channels, kernel, scans;
    struct tfpipe_target targets[]; /* [views] */
} Attributes;
_Static_assert(sizeof(struct tfpipe_target) == NUMBERS * sizeof(int32_t), "the attribute `targets` has another layout");

enum { JPEGS, ENTRIES, SIZES, IMAGES, WINDOWS, FLIPS, INPUTS }; /* of the op */

static int is_target(const struct tfpipe_target *target) {
    return target->height > 0 && target->width > 0 && target->level >= -1 && target->level <= 255 &&
           ((!target->cover[0] && !target->cover[1]) ||
            (target->cover[0] >= target->height && target->cover[1] >= target->width));
}

static void *crops_create(TF_OpKernelConstruction *construction) {
    TF_Status *status = TF_NewStatus();
    int32_t size = 0, bytes;
    TF_OpKernelConstruction_GetAttrSize(construction, "targets", &size, &bytes, status);
    Attributes *op = calloc(1, sizeof *op + sizeof *op->targets * (size_t)(size > 0 ? size : 0));
    if (!op) {
        TF_SetStatus(status, TF_RESOURCE_EXHAUSTED, "no memory");
        TF_OpKernelConstruction_Failure(construction, status);
        TF_DeleteStatus(status);
        return NULL;
    }
    const char *const names[] = {"views", "channels", "kernel", "scans"};
    int32_t *const values[] = {&op->views, &op->channels, &op->kernel, &op->scans};
    for (int i = 0; i < 4 && TF_GetCode(status) == TF_OK; i++)
        TF_OpKernelConstruction_GetAttrInt32(construction, names[i], values[i], status);
    if (TF_GetCode(status) == TF_OK)
        TF_OpKernelConstruction_GetAttrInt32List(construction, "targets", (int32_t *)op->targets, size, status);
    int right = TF_GetCode(status) == TF_OK && size == NUMBERS * (int64_t)op->views;
    for (int v = 0; right && v < op->views; v++) right = is_target(op->targets + v);
    if (TF_GetCode(status) == TF_OK && !right)
        TF_SetStatus(status, TF_INVALID_ARGUMENT,
                     "TfpipeCrops: targets are not a height, width, level and sides to cover of each view");
    if (TF_GetCode(status) != TF_OK) TF_OpKernelConstruction_Failure(construction, status);
    TF_DeleteStatus(status);
    return op;
}

/* Says what is wrong with the inputs' shapes; NULL: nothing. After it, every index below stays within its tensor. */
static const char *wrong(int views, TF_Tensor *const in[INPUTS]) {
    static const int ranks[INPUTS] = {1, 1, 2, 1, 2, 1};
    for (int i = 0; i < INPUTS; i++)
        if (TF_NumDims(in[i]) != ranks[i]) return "TfpipeCrops: an input has a wrong rank";
    int64_t n = TF_Dim(in[JPEGS], 0), k = TF_Dim(in[IMAGES], 0), flips = TF_Dim(in[FLIPS], 0);
    if (TF_Dim(in[SIZES], 0) != n || TF_Dim(in[SIZES], 1) != 2) return "TfpipeCrops: sizes are not [n, 2]";
    if (TF_Dim(in[WINDOWS], 0) != k || TF_Dim(in[WINDOWS], 1) != 4 * views)
        return "TfpipeCrops: windows are not [k, 4 * views]";
    if (TF_Dim(in[ENTRIES], 0) != n && TF_Dim(in[ENTRIES], 0)) return "TfpipeCrops: entries are neither [n] nor [0]";
    if (flips != k * views && flips != 0) return "TfpipeCrops: flips are neither [k * views] nor [0]";
    const int64_t *images = TF_TensorData(in[IMAGES]);
    for (int64_t i = 0; i < k; i++)
        if (images[i] < (i ? images[i - 1] : 0) || images[i] >= n)
            return "TfpipeCrops: images do not ascend within [0, n)";
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

/* Decodes all images; `out`: crops of each view, then which images are refused. */
static void decode(const Attributes *op, TF_Tensor *const in[INPUTS], TF_Tensor *const *out) {
    const int64_t n = TF_Dim(in[JPEGS], 0), k = TF_Dim(in[IMAGES], 0), views = op->views;
    const TF_TString *jpegs = TF_TensorData(in[JPEGS]);
    const TF_TString *entries = TF_Dim(in[ENTRIES], 0) ? TF_TensorData(in[ENTRIES]) : NULL;
    const int32_t *sizes = TF_TensorData(in[SIZES]), *windows = TF_TensorData(in[WINDOWS]);
    const int64_t *images = TF_TensorData(in[IMAGES]);
    const uint8_t *flips = TF_Dim(in[FLIPS], 0) ? TF_TensorData(in[FLIPS]) : NULL;
    uint8_t *refused = TF_TensorData(out[views]);
    struct tfpipe_crop *crops = malloc((size_t)(most_crops(images, k) * views + 1) * sizeof *crops);
    tfpipe_scratch *scratch = crops ? tfpipe_scratch_take() : NULL;
    if (scratch) tfpipe_limit_scans(scratch, op->scans);
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
        refused[image] = !scratch || height <= 0 || width <= 0 || (int64_t)height * width >= TOO_LARGE / op->channels;
        if (refused[image]) continue;
        for (int64_t i = first * views; i < end * views; i++) {
            const struct tfpipe_target *target = op->targets + i % views;
            const size_t size = (size_t)target->height * (size_t)target->width * (size_t)op->channels;
            uint8_t *view = TF_TensorData(out[i % views]);
            crops[i - first * views] = tfpipe_place(target, windows + 4 * i, flips && flips[i], op->channels,
                                                    view + (size_t)(i / views) * size);
        }
        refused[image] = tfpipe_crop_image(scratch, &own, op->channels, op->kernel, image, images) != 0;
    }
    tfpipe_scratch_give(scratch);
    free(crops);
}

/* Allocates the outputs: crops of each view, then which images are refused. */
static void allocate(const Attributes *op, TF_OpKernelContext *context, TF_Tensor *const in[INPUTS], TF_Tensor **out,
                     TF_Status *status) {
    for (int v = 0; v < op->views && TF_GetCode(status) == TF_OK; v++) {
        int64_t dims[4] = {TF_Dim(in[IMAGES], 0), op->targets[v].height, op->targets[v].width, op->channels};
        size_t bytes = (size_t)(dims[0] * dims[1] * dims[2] * dims[3]);
        out[v] = TF_AllocateOutput(context, v, TF_UINT8, dims, 4, bytes, status);
    }
    int64_t n = TF_Dim(in[JPEGS], 0);
    if (TF_GetCode(status) == TF_OK)
        out[op->views] = TF_AllocateOutput(context, op->views, TF_BOOL, &n, 1, (size_t)n, status);
}

static void crops_compute(void *state, TF_OpKernelContext *context) {
    const Attributes *op = state;
    struct tfpipe_event event = {.when_ns = tfpipe_recording() ? tfpipe_now_ns() : 0, .kind = TFPIPE_CALL};
    TF_Status *status = TF_NewStatus();
    TF_Tensor *in[INPUTS] = {0}, **out = calloc((size_t)op->views + 1, sizeof *out);
    if (!out) TF_SetStatus(status, TF_RESOURCE_EXHAUSTED, "TfpipeCrops: no memory");
    for (int i = 0; i < INPUTS && TF_GetCode(status) == TF_OK; i++) TF_GetInput(context, i, &in[i], status);
    const char *message = TF_GetCode(status) == TF_OK ? wrong(op->views, in) : NULL;
    if (message) TF_SetStatus(status, TF_INVALID_ARGUMENT, message);
    if (TF_GetCode(status) == TF_OK) {
        allocate(op, context, in, out, status);
        if (event.when_ns) event.parts_ns[0] = tfpipe_now_ns() - event.when_ns;
        if (TF_GetCode(status) == TF_OK) decode(op, in, out);
        if (event.when_ns) event.parts_ns[1] = tfpipe_now_ns() - event.when_ns - event.parts_ns[0];
        event.call = (uint64_t)(uintptr_t)TF_TensorData(in[IMAGES]);
    }
    if (TF_GetCode(status) != TF_OK) TF_OpKernelContext_Failure(context, status);
    for (int i = 0; i < INPUTS; i++)
        if (in[i]) TF_DeleteTensor(in[i]);
    for (int i = 0; out && i <= op->views; i++)
        if (out[i]) TF_DeleteTensor(out[i]);
    free(out);
    if (event.call && event.when_ns) {
        event.parts_ns[2] = tfpipe_now_ns() - event.when_ns - event.parts_ns[0] - event.parts_ns[1];
        tfpipe_record(event);
    }
    TF_DeleteStatus(status);
}

const struct tfpipe_op tfpipe_crops_op = {
    "TfpipeCrops",
    {
        "jpegs: string",   /* [n] */
        "entries: string", /* [n]: entry points, "" for none; or [0] */
        "sizes: int32",    /* [n, 2]: height, width */
        "images: int64",   /* [k]: number of the JPEG, ascending */
        "windows: int32",  /* [k, 4 * views]: top, left, height, width of each view */
        "flips: bool",     /* [k * views], or [0]: none */
    },
    {
        "targets: list(int)", /* [5 * views]: a struct tfpipe_target of each view */
        "views: int >= 1",
        "channels: int >= 1",
        "kernel: int >= 0",
        "scans: int >= 0 = 0",
    },
    {
        "crops: views * uint8", /* of each view, [k, height, width, channels]; undefined for a refused JPEG */
        "refused: bool",        /* [n] */
    },
    crops_create,
    crops_compute,
    free,
};

enum { IMAGE, CUT, MIRRORED, RESIZE_INPUTS }; /* of the op TfpipeResize */

static void *resize_create(TF_OpKernelConstruction *construction) {
    return tfpipe_new_state(
        construction, (const char *const[]){"height", "width", "level", "cover_height", "cover_width", "kernel"}, 6);
}

static const char *resize_all(const int32_t attributes[6], TF_Tensor *const in[RESIZE_INPUTS], TF_Tensor *out) {
    const struct tfpipe_target target = {attributes[0], attributes[1], attributes[2], {attributes[3], attributes[4]}};
    const int count = (int)TF_Dim(in[CUT], 0), channels = (int)TF_Dim(in[IMAGE], 2);
    const uint8_t *flips = TF_Dim(in[MIRRORED], 0) ? TF_TensorData(in[MIRRORED]) : NULL;
    const int32_t *windows = TF_TensorData(in[CUT]);
    const size_t size = (size_t)target.height * (size_t)target.width * (size_t)channels;
    uint8_t *pixels = TF_TensorData(out);
    struct tfpipe_crop *crops = malloc(((size_t)count + 1) * sizeof *crops);
    tfpipe_scratch *scratch = crops ? tfpipe_scratch_take() : NULL;
    for (int i = 0; scratch && i < count; i++)
        crops[i] =
            tfpipe_place(&target, windows + 4 * (size_t)i, flips && flips[i], channels, pixels + (size_t)i * size);
    int status = scratch ? tfpipe_resize(scratch, TF_TensorData(in[IMAGE]), (int)TF_Dim(in[IMAGE], 0),
                                         (int)TF_Dim(in[IMAGE], 1), crops, count, channels, attributes[5])
                         : TFPIPE_MEMORY;
    tfpipe_scratch_give(scratch);
    free(crops);
    if (status == TFPIPE_MEMORY) return "TfpipeResize: no memory";
    return status ? "TfpipeResize: a window is not within the image, which is of another size than was stated" : NULL;
}

static void resize_compute(void *target, TF_OpKernelContext *context) {
    const int32_t *size = target;
    TF_Status *status = TF_NewStatus();
    TF_Tensor *in[RESIZE_INPUTS] = {0}, *out = NULL;
    const char *message = NULL;
    for (int i = 0; i < RESIZE_INPUTS && TF_GetCode(status) == TF_OK; i++) TF_GetInput(context, i, &in[i], status);
    if (TF_GetCode(status) == TF_OK) {
        if (TF_NumDims(in[IMAGE]) != 3 || (TF_Dim(in[IMAGE], 2) != 1 && TF_Dim(in[IMAGE], 2) != 3) ||
            TF_Dim(in[IMAGE], 0) > INT32_MAX || TF_Dim(in[IMAGE], 1) > INT32_MAX)
            message = "TfpipeResize: the image is not [height, width, 1 or 3]";
        else if (TF_NumDims(in[CUT]) != 2 || TF_Dim(in[CUT], 1) != 4 || TF_Dim(in[CUT], 0) > INT32_MAX)
            message = "TfpipeResize: windows are not [k, 4]";
        else if (TF_NumDims(in[MIRRORED]) != 1 ||
                 (TF_Dim(in[MIRRORED], 0) != TF_Dim(in[CUT], 0) && TF_Dim(in[MIRRORED], 0)))
            message = "TfpipeResize: flips are neither [k] nor [0]";
    }
    if (!message && size[3] && (size[3] < size[0] || size[4] < size[1]))
        message = "TfpipeResize: the sides to cover are less than the crop's";
    if (TF_GetCode(status) == TF_OK && !message) {
        int64_t dims[4] = {TF_Dim(in[CUT], 0), size[0], size[1], TF_Dim(in[IMAGE], 2)};
        out = TF_AllocateOutput(context, 0, TF_UINT8, dims, 4, (size_t)(dims[0] * dims[1] * dims[2] * dims[3]), status);
        if (TF_GetCode(status) == TF_OK) message = resize_all(size, in, out);
    }
    if (message) TF_SetStatus(status, TF_INVALID_ARGUMENT, message);
    tfpipe_end_call(context, status, in, RESIZE_INPUTS, out);
}

const struct tfpipe_op tfpipe_resize_op = {
    "TfpipeResize",
    {
        "image: uint8",   /* [h, w, channels]: 1 or 3 */
        "windows: int32", /* [k, 4]: top, left, height, width */
        "flips: bool",    /* [k], or [0]: none */
    },
    {"height: int >= 1", "width: int >= 1", "level: int >= -1 = -1", "cover_height: int >= 0 = 0",
     "cover_width: int >= 0 = 0", "kernel: int >= 0"},
    {"crops: uint8"}, /* [k, height, width, channels] */
    resize_create,
    resize_compute,
    free,
};
