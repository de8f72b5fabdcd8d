/* The op TfpipeAugment: applies the steps of an augmentation to crops, in their own memory if no other op needs them. */
#include <string.h>

#include "../augment/draw.h"
#include "tf.h"

enum { CROPS, POSITIONS, SEED, ROWS, INPUTS };

/* Says what is wrong with the inputs' shapes; NULL: nothing. */
static const char *wrong(TF_Tensor *const in[INPUTS]) {
    if (TF_NumDims(in[CROPS]) != 4 || (TF_Dim(in[CROPS], 3) != 1 && TF_Dim(in[CROPS], 3) != 3) ||
        TF_Dim(in[CROPS], 1) < 1 || TF_Dim(in[CROPS], 2) < 1 || TF_Dim(in[CROPS], 1) > TFPIPE_MOST_SIDE ||
        TF_Dim(in[CROPS], 2) > TFPIPE_MOST_SIDE)
        return "TfpipeAugment: crops are not [k, height, width, 1 or 3]";
    if (TF_NumDims(in[POSITIONS]) != 2 || TF_Dim(in[POSITIONS], 0) != TF_Dim(in[CROPS], 0) ||
        TF_Dim(in[POSITIONS], 1) != 2)
        return "TfpipeAugment: positions are not [k, 2]";
    if (TF_NumDims(in[SEED]) != 0) return "TfpipeAugment: the seed is not one number";
    if (TF_NumDims(in[ROWS]) != 2 || TF_Dim(in[ROWS], 1) != TFPIPE_COLUMNS || TF_Dim(in[ROWS], 0) > INT32_MAX)
        return "TfpipeAugment: steps are not [steps, 24]";
    return NULL;
}

static const char *augment_all(TF_Tensor *const in[INPUTS], TF_Tensor *out) {
    const int64_t *positions = TF_TensorData(in[POSITIONS]), count = TF_Dim(out, 0);
    const uint64_t seed = *(const uint64_t *)TF_TensorData(in[SEED]);
    const int height = (int)TF_Dim(out, 1), width = (int)TF_Dim(out, 2), channels = (int)TF_Dim(out, 3);
    const size_t size = (size_t)height * (size_t)width * (size_t)channels;
    uint8_t *crop = TF_TensorData(out);
    tfpipe_scratch *scratch = tfpipe_scratch_take();
    int status = scratch ? 0 : TFPIPE_MEMORY;
    for (int64_t i = 0; !status && i < count; i++, crop += size) {
        uint64_t key = tfpipe_crop_key(seed, positions[2 * i], positions[2 * i + 1]);
        status = tfpipe_augment(scratch, crop, height, width, channels, TF_TensorData(in[ROWS]),
                                (int)TF_Dim(in[ROWS], 0), key);
    }
    tfpipe_scratch_give(scratch);
    if (status == TFPIPE_MEMORY) return "TfpipeAugment: no memory";
    return status ? "TfpipeAugment: a step does not suit crops of this size" : NULL;
}

static void compute(void *op, TF_OpKernelContext *context) {
    (void)op;
    TF_Status *status = TF_NewStatus();
    TF_Tensor *in[INPUTS] = {0}, *out = NULL;
    for (int i = 0; i < INPUTS && TF_GetCode(status) == TF_OK; i++) TF_GetInput(context, i, &in[i], status);
    const char *message = TF_GetCode(status) == TF_OK ? wrong(in) : NULL;
    if (TF_GetCode(status) == TF_OK && !message) {
        int64_t dims[4];
        for (int i = 0; i < 4; i++) dims[i] = TF_Dim(in[CROPS], i);
        const void *crops = TF_TensorData(in[CROPS]);
        const size_t bytes = TF_TensorByteSize(in[CROPS]);
        TF_DeleteTensor(in[CROPS]); /* a second reference to the memory would forbid its use for the output */
        in[CROPS] = NULL;
        int forwarded = -1;
        out = TF_ForwardInputOrAllocateOutput(context, (const int[]){CROPS}, 1, 0, dims, 4, &forwarded, status);
        if (TF_GetCode(status) == TF_OK && TF_TensorData(out) != crops) memcpy(TF_TensorData(out), crops, bytes);
        if (TF_GetCode(status) == TF_OK) message = augment_all(in, out);
    }
    if (message) TF_SetStatus(status, TF_INVALID_ARGUMENT, message);
    tfpipe_end_call(context, status, in, INPUTS, out);
}

const struct tfpipe_op tfpipe_augment_op = {
    "TfpipeAugment",
    {
        "crops: uint8",     /* [k, height, width, 1 or 3] */
        "positions: int64", /* [k, 2]: stream position, number of the crop in its image */
        "seed: int64",
        "rows: double", /* [steps, TFPIPE_COLUMNS] */
    },
    {0},
    {"augmented: uint8"}, /* [k, height, width, 1 or 3] */
    NULL,
    compute,
    NULL,
};
