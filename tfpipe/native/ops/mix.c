/* The op TfpipeMix: MixUp and CutMix of a batch, in its own memory if no other op uses it. */
#include <stdlib.h>
#include <string.h>

#include "../crops.h"
#include "tf.h"

enum { CROPS, BOX, WEIGHT, INPUTS };
enum { RANK = 4 };

struct mix {
    int64_t dims[RANK]; /* of the crops */
    int32_t box[4], weight;
    size_t bytes;
};

/* Reads the inputs, and gives them up: an input that is held cannot be forwarded. */
static struct mix read_inputs(TF_OpKernelContext *context, TF_Status *status) {
    struct mix mix = {0};
    TF_Tensor *in[INPUTS] = {0};
    for (int i = 0; i < INPUTS && TF_GetCode(status) == TF_OK; i++) TF_GetInput(context, i, &in[i], status);
    if (TF_GetCode(status) == TF_OK) {
        int wrong = TF_NumDims(in[CROPS]) != RANK || TF_TensorByteSize(in[BOX]) != sizeof mix.box ||
                    TF_TensorByteSize(in[WEIGHT]) != sizeof mix.weight;
        for (int i = 0; !wrong && i < RANK; i++) {
            mix.dims[i] = TF_Dim(in[CROPS], i);
            wrong = mix.dims[i] > INT32_MAX;
        }
        if (wrong)
            TF_SetStatus(status, TF_INVALID_ARGUMENT, "TfpipeMix: an input has a wrong shape");
        else {
            mix.bytes = TF_TensorByteSize(in[CROPS]);
            memcpy(mix.box, TF_TensorData(in[BOX]), sizeof mix.box);
            memcpy(&mix.weight, TF_TensorData(in[WEIGHT]), sizeof mix.weight);
        }
    }
    for (int i = 0; i < INPUTS; i++)
        if (in[i]) TF_DeleteTensor(in[i]);
    return mix;
}

static void compute(void *op, TF_OpKernelContext *context) {
    (void)op;
    TF_Status *status = TF_NewStatus();
    TF_Tensor *crops = NULL, *out = NULL;
    struct mix mix = read_inputs(context, status);
    int forwarded = -1;
    if (TF_GetCode(status) == TF_OK)
        out = TF_ForwardInputOrAllocateOutput(context, (const int[]){CROPS}, 1, 0, mix.dims, RANK, &forwarded, status);
    if (TF_GetCode(status) == TF_OK && forwarded != CROPS && mix.bytes) {
        TF_GetInput(context, CROPS, &crops, status);
        if (TF_GetCode(status) == TF_OK) memcpy(TF_TensorData(out), TF_TensorData(crops), mix.bytes);
    }
    if (TF_GetCode(status) == TF_OK && mix.bytes &&
        tfpipe_mix(TF_TensorData(out), mix.dims[0], (int)mix.dims[1], (int)mix.dims[2], (int)mix.dims[3], mix.box,
                   mix.weight))
        TF_SetStatus(status, TF_INVALID_ARGUMENT,
                     "TfpipeMix: the box is not within a crop, or the weight in [0, 32768]");
    tfpipe_end_call(context, status, &crops, 1, out);
}

const struct tfpipe_op tfpipe_mix_op = {
    "TfpipeMix",
    {
        "crops: uint8",  /* [n, height, width, channels] */
        "box: int32",    /* [4]: top, left, height, width */
        "weight: int32", /* []: of a crop within the box, the rest is its partner's; TFPIPE_WHOLE: nothing is mixed */
    },
    {NULL},
    {"mixed: uint8"}, /* [n, height, width, channels] */
    NULL,
    compute,
    NULL,
};
