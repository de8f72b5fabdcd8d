/* The op TfpipeAugment: applies the steps of an augmentation to crops, or to some of them, in their own memory. */
#include "../augment/draw.h"
#include "tf.h"

enum { CROPS, POSITIONS, SEED, ROWS, SPAN };

/* Returns what is wrong with the inputs' shapes; NULL: nothing. */
static const char *wrong(TF_Tensor *const in[]) {
    const int64_t height = TF_Dim(in[CROPS], 1), width = TF_Dim(in[CROPS], 2), channels = TF_Dim(in[CROPS], 3);
    if (height < 1 || width < 1 || height > MAX_SIDE || width > MAX_SIDE || (channels != 1 && channels != 3))
        return "crops are not [k, height, width, 1 or 3]";
    if (TF_Dim(in[POSITIONS], 0) != TF_Dim(in[CROPS], 0) || TF_Dim(in[POSITIONS], 1) != 2)
        return "positions are not [k, 2]";
    return TF_Dim(in[ROWS], 1) != TFPIPE_COLUMNS || TF_Dim(in[ROWS], 0) > INT32_MAX ? "steps have a wrong shape" : NULL;
}

static const char *run(struct tfpipe_call *call) {
    int64_t dims[4], span[2];
    const char *message = wrong(call->in);
    if (!message) message = tfpipe_span(call->in[SPAN], TF_Dim(call->in[CROPS], 0), span);
    if (message) return message;
    const int64_t *positions = TF_TensorData(call->in[POSITIONS]);
    const uint64_t seed = *(const uint64_t *)TF_TensorData(call->in[SEED]);
    const double *rows = TF_TensorData(call->in[ROWS]);
    const int steps = (int)TF_Dim(call->in[ROWS], 0);
    uint8_t *crop = tfpipe_same(call, CROPS, 0, dims);
    if (!crop) return NULL;
    crop += span[0] * dims[1] * dims[2] * dims[3];
    const int height = (int)dims[1], width = (int)dims[2], channels = (int)dims[3];
    tfpipe_scratch *scratch = tfpipe_scratch_take();
    int status = scratch ? 0 : TFPIPE_MEMORY;
    for (int64_t i = span[0]; !status && i < span[1]; i++, crop += dims[1] * dims[2] * dims[3]) {
        uint64_t key = tfpipe_crop_key(seed, positions[2 * i], positions[2 * i + 1]);
        status = tfpipe_augment(scratch, crop, height, width, channels, rows, steps, key);
    }
    tfpipe_scratch_give(scratch);
    return status == TFPIPE_MEMORY ? "no memory" : status ? "a step does not suit crops of this size" : NULL;
}

const struct tfpipe_op tfpipe_augment_op = {
    .name = "TfpipeAugment",
    .in = {{"crops: uint8", 4},     /* [k, height, width, 1 or 3] */
           {"positions: int64", 2}, /* [k, 2]: stream position, number of the crop in its image */
           {"seed: int64", 0},
           {"rows: double", 2}, /* [steps, TFPIPE_COLUMNS] */
           {"span: int64", 1}}, /* as tfpipe_span says */
    .writes = 1,
    .out = {"augmented: uint8"}, /* [k, height, width, 1 or 3] */
    .run = run,
};
