/* The op TfpipeMix: MixUp and CutMix of a batch, in its own memory if no other op uses it. */
#include "tf.h"

enum { CROPS, BOX, WEIGHT };

static const char *run(struct tfpipe_call *call) {
    int32_t box[4];
    if (TF_TensorByteSize(call->in[BOX]) != sizeof box) return "the box is not [4]";
    for (int i = 0; i < 4; i++)
        if (TF_Dim(call->in[CROPS], i) > INT32_MAX) return "crops are too large";
    memcpy(box, TF_TensorData(call->in[BOX]), sizeof box);
    const int32_t weight = *(const int32_t *)TF_TensorData(call->in[WEIGHT]);
    int64_t dims[4];
    uint8_t *crops = tfpipe_forward(call, CROPS, dims);
    return crops && tfpipe_mix(crops, dims[0], (int)dims[1], (int)dims[2], (int)dims[3], box, weight)
               ? "the box is not within a crop, or the weight in [0, TFPIPE_WHOLE]"
               : NULL;
}

const struct tfpipe_op tfpipe_mix_op = {
    .name = "TfpipeMix",
    .in = {{"crops: uint8", 4},   /* [n, height, width, channels] */
           {"box: int32", 1},     /* [4]: top, left, height, width */
           {"weight: int32", 0}}, /* of a crop within the box, the rest is its partner's; TFPIPE_WHOLE: as it is */
    .out = {"mixed: uint8"},      /* [n, height, width, channels] */
    .run = run,
};
