/* The op TfpipeFloats: a batch of levels as floats, by a table. */
#include <stdlib.h>

#include "../crops.h"
#include "tf.h"

enum { CROPS, TABLE, INPUTS };
enum { RANK = 4, LEVELS = 256 };

static void compute(void *op, TF_OpKernelContext *context) {
    (void)op;
    TF_Status *status = TF_NewStatus();
    TF_Tensor *in[INPUTS] = {0}, *out = NULL;
    const int type = TF_ExpectedOutputDataType(context, 0);
    for (int i = 0; i < INPUTS && TF_GetCode(status) == TF_OK; i++) TF_GetInput(context, i, &in[i], status);
    if (TF_GetCode(status) == TF_OK &&
        (TF_NumDims(in[CROPS]) != RANK || TF_NumDims(in[TABLE]) != 2 || TF_Dim(in[TABLE], 1) != LEVELS ||
         TF_Dim(in[TABLE], 0) != TF_Dim(in[CROPS], RANK - 1)))
        TF_SetStatus(status, TF_INVALID_ARGUMENT, "TfpipeFloats: the table is not [channels, 256]");
    if (TF_GetCode(status) == TF_OK) {
        int64_t dims[RANK];
        for (int i = 0; i < RANK; i++) dims[i] = TF_Dim(in[CROPS], i);
        const size_t size = TF_DataTypeSize(type), levels = TF_TensorByteSize(in[CROPS]);
        out = TF_AllocateOutput(context, 0, type, dims, RANK, levels * size, status);
        if (TF_GetCode(status) == TF_OK &&
            tfpipe_floats(TF_TensorData(out), TF_TensorData(in[CROPS]), levels / (size_t)dims[RANK - 1],
                          (int)dims[RANK - 1], TF_TensorData(in[TABLE]), (int)size))
            TF_SetStatus(status, TF_INVALID_ARGUMENT, "TfpipeFloats: crops have 1 or 3 channels");
    }
    tfpipe_end_call(context, status, in, INPUTS, out);
}

const struct tfpipe_op tfpipe_floats_op = {
    "TfpipeFloats",
    {
        "crops: uint8", /* [n, height, width, 1 or 3] */
        "table: T",     /* [channels, 256]: the float of each level */
    },
    {"T: {half, bfloat16, float}"},
    {"floats: T"}, /* [n, height, width, channels] */
    NULL,
    compute,
    NULL,
};
