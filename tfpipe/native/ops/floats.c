/* The op TfpipeFloats: a batch of levels as floats, by a table. */
#include "tf.h"

enum { CROPS, TABLE };
enum { LEVELS = 256 };

static const char *run(struct tfpipe_call *call) {
    const int type = TF_ExpectedOutputDataType(call->context, 0);
    const TF_Tensor *crops = call->in[CROPS], *table = call->in[TABLE];
    const int64_t channels = TF_Dim(crops, 3);
    if (TF_Dim(table, 1) != LEVELS || TF_Dim(table, 0) != channels) return "the table is not [channels, 256]";
    if (channels != 1 && channels != 3) return "crops have 1 or 3 channels";
    void *floats = tfpipe_output_like(call, type, CROPS, 0);
    if (tfpipe_ok(call))
        tfpipe_floats(floats, TF_TensorData(crops), TF_TensorByteSize(crops) / (size_t)channels, (int)channels,
                      TF_TensorData(table), (int)TF_DataTypeSize(type));
    return NULL;
}

const struct tfpipe_op tfpipe_floats_op = {
    .name = "TfpipeFloats",
    .in = {{"crops: uint8", 4}, /* [n, height, width, 1 or 3] */
           {"table: T", 2}},    /* [channels, 256]: the float of each level */
    .attributes = {"T: {half, bfloat16, float}"},
    .out = {"floats: T"}, /* [n, height, width, channels] */
    .run = run,
};
