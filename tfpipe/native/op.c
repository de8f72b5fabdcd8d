/* What Python and TensorFlow call: TensorFlow's ops, and by ctypes whole JPEGs of a batch and the recording of events. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "copy.h"
#include "crops.h"
#include "record.h"
#include "tf.h"

#define EXPORT __attribute__((visibility("default")))

enum { TOO_LARGE = 1 << 29 }; /* bytes of an image that TensorFlow refuses to decode: headers.TOO_LARGE */
enum { SCRATCHES = 64 };      /* kept for later calls; a call beyond frees its own */

/* The interface below; tfpipe/native/__init__.py refuses a library that was built from another version. */
EXPORT int tfpipe_native_version(void) { return 6; }
EXPORT const char *tfpipe_native_simd(void) { return tfpipe_simd(); }
EXPORT int tfpipe_native_record_start(int64_t capacity) { return tfpipe_record_start(capacity); }
EXPORT int64_t tfpipe_native_record_stop(void) { return tfpipe_record_stop(); }
EXPORT void tfpipe_native_record_take(struct tfpipe_event *out) { tfpipe_record_take(out); }

/* A scratch belongs to one call at a time, not to a thread: tf.data's threads come and go. */
static pthread_mutex_t scratches_lock = PTHREAD_MUTEX_INITIALIZER;
static tfpipe_scratch *scratches[SCRATCHES];
static int scratches_count;

static tfpipe_scratch *take_scratch(void) {
    tfpipe_scratch *scratch = NULL;
    pthread_mutex_lock(&scratches_lock);
    if (scratches_count > 0) scratch = scratches[--scratches_count];
    pthread_mutex_unlock(&scratches_lock);
    return scratch ? scratch : tfpipe_scratch_new();
}

static void give_scratch(tfpipe_scratch *scratch) {
    tfpipe_scratch_trim(scratch);
    pthread_mutex_lock(&scratches_lock);
    int kept = scratches_count < SCRATCHES;
    if (kept) scratches[scratches_count++] = scratch;
    pthread_mutex_unlock(&scratches_lock);
    if (!kept) tfpipe_scratch_free(scratch);
}

/* A JPEG, and the crops wanted of it. */
struct image {
    const uint8_t *jpeg;
    size_t length;
    int height, width;
    const int32_t *windows;
    const uint8_t *flips;
    int count;
};

/* Decodes an image's crops, and records it: as image `number` of `call`. Returns whether it is refused. */
static uint8_t crop_image(tfpipe_scratch *scratch, const struct image *image, int height, int width, int channels,
                          uint8_t *crops, int64_t number, const void *call) {
    struct tfpipe_event event = {.sample = number, .call = (uint64_t)(uintptr_t)call, .kind = TFPIPE_IMAGE};
    int recording = tfpipe_recording();
    if (recording) event.when_ns = tfpipe_now_ns();
    tfpipe_measure(scratch, recording ? event.parts_ns : NULL);
    event.refused = tfpipe_crops(scratch, image->jpeg, image->length, image->height, image->width, image->windows,
                                 image->flips, image->count, height, width, channels, crops) != 0;
    if (recording) tfpipe_record(event);
    return (uint8_t)event.refused;
}

/* Decodes `count` JPEGs of height x width into `crops` (uint8 [count][height][width][channels]), mirrored where flips[i]
 * (NULL: none). refused[i] is non-zero for a JPEG that the caller has to decode in another way, mirrored too. */
EXPORT void tfpipe_native_whole(const uint8_t *const *jpegs, const int64_t *lengths, const uint8_t *flips,
                                int64_t count, int height, int width, int channels, uint8_t *crops, uint8_t *refused) {
    const int32_t window[4] = {0, 0, height, width};
    const size_t size = (size_t)height * width * channels;
    tfpipe_scratch *scratch = take_scratch();
    for (int64_t i = 0; i < count; i++) {
        struct image image = {jpegs[i], (size_t)lengths[i], height, width, window, flips ? flips + i : NULL, 1};
        refused[i] = !scratch || crop_image(scratch, &image, height, width, channels, crops + i * size, i, crops);
    }
    if (scratch) give_scratch(scratch);
}

/* Copies `count` records of `size` bytes to `out`, one after the other. */
EXPORT void tfpipe_native_copy(const uint8_t *const *records, int64_t count, int64_t size, uint8_t *out) {
    tfpipe_copy(records, (size_t)count, (size_t)size, out);
}

typedef struct {
    int32_t height, width, channels;
} Attributes;

enum { JPEGS, SIZES, IMAGES, WINDOWS, FLIPS, INPUTS }; /* of the op */
enum { CROPS, REFUSED, OUTPUTS };

static void *op_new(TF_OpKernelConstruction *construction) {
    Attributes *op = calloc(1, sizeof *op);
    TF_Status *status = TF_NewStatus();
    if (!op) {
        TF_SetStatus(status, TF_RESOURCE_EXHAUSTED, "no memory");
    } else {
        const struct {
            const char *name;
            int32_t *value;
        } all[] = {{"height", &op->height}, {"width", &op->width}, {"channels", &op->channels}};
        for (size_t i = 0; i < sizeof all / sizeof *all && TF_GetCode(status) == TF_OK; i++)
            TF_OpKernelConstruction_GetAttrInt32(construction, all[i].name, all[i].value, status);
    }
    if (TF_GetCode(status) != TF_OK) TF_OpKernelConstruction_Failure(construction, status);
    TF_DeleteStatus(status);
    return op;
}

static void op_delete(void *op) { free(op); }

/* Says what is wrong with the inputs' shapes; NULL: nothing. After it, every index below stays within its tensor. */
static const char *wrong(TF_Tensor *const in[INPUTS]) {
    static const int ranks[INPUTS] = {1, 2, 1, 2, 1};
    for (int i = 0; i < INPUTS; i++)
        if (TF_NumDims(in[i]) != ranks[i]) return "TfpipeCrops: an input has a wrong rank";
    int64_t n = TF_Dim(in[JPEGS], 0), k = TF_Dim(in[IMAGES], 0), flips = TF_Dim(in[FLIPS], 0);
    if (TF_Dim(in[SIZES], 0) != n || TF_Dim(in[SIZES], 1) != 2) return "TfpipeCrops: sizes are not [n, 2]";
    if (TF_Dim(in[WINDOWS], 0) != k || TF_Dim(in[WINDOWS], 1) != 4) return "TfpipeCrops: windows are not [k, 4]";
    if (flips != k && flips != 0) return "TfpipeCrops: flips are neither [k] nor [0]";
    const int64_t *images = TF_TensorData(in[IMAGES]);
    for (int64_t i = 0; i < k; i++)
        if (images[i] < (i ? images[i - 1] : 0) || images[i] >= n)
            return "TfpipeCrops: images do not ascend within [0, n)";
    return NULL;
}

static void decode(const Attributes *op, TF_Tensor *const in[INPUTS], TF_Tensor *const out[OUTPUTS]) {
    int64_t n = TF_Dim(in[JPEGS], 0), k = TF_Dim(in[IMAGES], 0);
    const TF_TString *jpegs = TF_TensorData(in[JPEGS]);
    const int32_t *sizes = TF_TensorData(in[SIZES]), *windows = TF_TensorData(in[WINDOWS]);
    const int64_t *images = TF_TensorData(in[IMAGES]);
    const uint8_t *flips = TF_Dim(in[FLIPS], 0) ? TF_TensorData(in[FLIPS]) : NULL;
    uint8_t *crops = TF_TensorData(out[CROPS]), *refused = TF_TensorData(out[REFUSED]);
    const size_t size = (size_t)op->height * op->width * op->channels;
    tfpipe_scratch *scratch = take_scratch();
    memset(refused, 0, (size_t)n);
    for (int64_t first = 0, end; first < k; first = end) {
        int64_t image = images[first];
        for (end = first + 1; end < k && images[end] == image;) end++;
        const int32_t height = sizes[2 * image], width = sizes[2 * image + 1];
        struct image own = {(const uint8_t *)TF_StringGetDataPointer(jpegs + image),
                            TF_StringGetSize(jpegs + image),
                            height,
                            width,
                            windows + 4 * first,
                            flips ? flips + first : NULL,
                            (int)(end - first)};
        refused[image] =
            !scratch || height <= 0 || width <= 0 || (int64_t)height * width >= TOO_LARGE / op->channels ||
            crop_image(scratch, &own, op->height, op->width, op->channels, crops + first * size, image, images);
    }
    if (scratch) give_scratch(scratch);
}

static void op_compute(void *op, TF_OpKernelContext *context) {
    const Attributes *attributes = op;
    struct tfpipe_event event = {.when_ns = tfpipe_recording() ? tfpipe_now_ns() : 0, .kind = TFPIPE_CALL};
    TF_Status *status = TF_NewStatus();
    TF_Tensor *in[INPUTS] = {0}, *out[OUTPUTS] = {0};
    for (int i = 0; i < INPUTS && TF_GetCode(status) == TF_OK; i++) TF_GetInput(context, i, &in[i], status);
    const char *message = TF_GetCode(status) == TF_OK ? wrong(in) : NULL;
    if (message) TF_SetStatus(status, TF_INVALID_ARGUMENT, message);
    if (TF_GetCode(status) == TF_OK) {
        int64_t n = TF_Dim(in[JPEGS], 0);
        int64_t dims[4] = {TF_Dim(in[IMAGES], 0), attributes->height, attributes->width, attributes->channels};
        size_t bytes = (size_t)(dims[0] * dims[1] * dims[2] * dims[3]);
        out[CROPS] = TF_AllocateOutput(context, CROPS, TF_UINT8, dims, 4, bytes, status);
        if (TF_GetCode(status) == TF_OK)
            out[REFUSED] = TF_AllocateOutput(context, REFUSED, TF_BOOL, &n, 1, (size_t)n, status);
        if (event.when_ns) event.parts_ns[0] = tfpipe_now_ns() - event.when_ns;
        if (TF_GetCode(status) == TF_OK) decode(attributes, in, out);
        if (event.when_ns) event.parts_ns[1] = tfpipe_now_ns() - event.when_ns - event.parts_ns[0];
        event.call = (uint64_t)(uintptr_t)TF_TensorData(in[IMAGES]);
    }
    if (TF_GetCode(status) != TF_OK) TF_OpKernelContext_Failure(context, status);
    for (int i = 0; i < INPUTS; i++)
        if (in[i]) TF_DeleteTensor(in[i]);
    for (int i = 0; i < OUTPUTS; i++)
        if (out[i]) TF_DeleteTensor(out[i]);
    if (event.call && event.when_ns) {
        event.parts_ns[2] = tfpipe_now_ns() - event.when_ns - event.parts_ns[0] - event.parts_ns[1];
        tfpipe_record(event);
    }
    TF_DeleteStatus(status);
}

void tfpipe_end_call(TF_OpKernelContext *context, TF_Status *status, TF_Tensor *const *in, int inputs, TF_Tensor *out) {
    if (TF_GetCode(status) != TF_OK) TF_OpKernelContext_Failure(context, status);
    for (int i = 0; i < inputs; i++)
        if (in[i]) TF_DeleteTensor(in[i]);
    if (out) TF_DeleteTensor(out);
    TF_DeleteStatus(status);
}

enum { POSITIONS, THROUGH, MARK_INPUTS }; /* of the op TfpipeMark */

static void *mark_new(TF_OpKernelConstruction *construction) {
    int32_t *kind = calloc(1, sizeof *kind);
    TF_Status *status = TF_NewStatus();
    if (!kind)
        TF_SetStatus(status, TF_RESOURCE_EXHAUSTED, "no memory");
    else
        TF_OpKernelConstruction_GetAttrInt32(construction, "kind", kind, status);
    if (TF_GetCode(status) != TF_OK) TF_OpKernelConstruction_Failure(construction, status);
    TF_DeleteStatus(status);
    return kind;
}

/* Copies `through`, so that the address of its copy tells this call from all others of the moment. */
static void mark_compute(void *kind, TF_OpKernelContext *context) {
    TF_Status *status = TF_NewStatus();
    TF_Tensor *in[MARK_INPUTS] = {0}, *out = NULL;
    for (int i = 0; i < MARK_INPUTS && TF_GetCode(status) == TF_OK; i++) TF_GetInput(context, i, &in[i], status);
    if (TF_GetCode(status) == TF_OK) {
        int64_t dims[8];
        int rank = TF_NumDims(in[THROUGH]);
        for (int i = 0; i < rank && i < 8; i++) dims[i] = TF_Dim(in[THROUGH], i);
        if (rank > 8)
            TF_SetStatus(status, TF_INVALID_ARGUMENT, "TfpipeMark: more than 8 dimensions");
        else
            out = TF_AllocateOutput(context, 0, TF_INT64, dims, rank, TF_TensorByteSize(in[THROUGH]), status);
    }
    if (TF_GetCode(status) == TF_OK) {
        memcpy(TF_TensorData(out), TF_TensorData(in[THROUGH]), TF_TensorByteSize(in[THROUGH]));
        const int64_t *positions = TF_TensorData(in[POSITIONS]);
        size_t count = TF_TensorByteSize(in[POSITIONS]) / sizeof *positions;
        struct tfpipe_event event = {.call = (uint64_t)(uintptr_t)TF_TensorData(out), .kind = *(const int32_t *)kind};
        if (tfpipe_recording()) event.when_ns = tfpipe_now_ns();
        for (size_t i = 0; i < count && event.when_ns; i++) {
            event.sample = positions[i];
            tfpipe_record(event);
        }
    }
    tfpipe_end_call(context, status, in, MARK_INPUTS, out);
}

/* Registers an op when TensorFlow loads the library (tf.load_op_library). */
static void op_register(const struct tfpipe_op *op) {
    TF_Status *status = TF_NewStatus();
    TF_OpDefinitionBuilder *definition = TF_NewOpDefinitionBuilder(op->name);
    for (int i = 0; op->inputs[i]; i++) TF_OpDefinitionBuilderAddInput(definition, op->inputs[i]);
    for (int i = 0; op->attributes[i]; i++) TF_OpDefinitionBuilderAddAttr(definition, op->attributes[i]);
    for (int i = 0; op->outputs[i]; i++) TF_OpDefinitionBuilderAddOutput(definition, op->outputs[i]);
    TF_OpDefinitionBuilderSetShapeInferenceFunction(definition, TF_ShapeInferenceContextSetUnknownShape);
    TF_RegisterOpDefinition(definition, status);
    if (TF_GetCode(status) == TF_OK)
        TF_RegisterKernelBuilder(op->name, TF_NewKernelBuilder(op->name, "CPU", op->create, op->compute, op->destroy),
                                 status);
    TF_DeleteStatus(status);
}

__attribute__((constructor)) static void ops_register(void) {
    op_register(&(struct tfpipe_op){
        "TfpipeCrops",
        {
            "jpegs: string",  /* [n] */
            "sizes: int32",   /* [n, 2]: height, width */
            "images: int64",  /* [k]: number of the JPEG, ascending */
            "windows: int32", /* [k, 4]: top, left, height, width */
            "flips: bool",    /* [k], or [0]: none */
        },
        {"height: int >= 1", "width: int >= 1", "channels: int >= 1"},
        {
            "crops: uint8",  /* [k, height, width, channels]; undefined for a refused JPEG */
            "refused: bool", /* [n] */
        },
        op_new,
        op_compute,
        op_delete,
    });
    op_register(&(struct tfpipe_op){
        "TfpipeMark",
        {
            "positions: int64", /* of samples that have come to the mark */
            "through: int64",
        },
        {"kind: int >= 1"},
        {"same: int64"}, /* a copy of `through` */
        mark_new,
        mark_compute,
        op_delete,
    });
    op_register(&tfpipe_sizes_op);
    op_register(&tfpipe_read_op);
    op_register(&tfpipe_rows_op);
    op_register(&tfpipe_lines_op);
}
