/* The op TfpipeSizes: heights and widths of JPEGs, from their headers. */
#include "../crops.h"
#include "tf.h"

#include <string.h>

enum { JPEGS, SIZES, INPUTS };

static void compute(void *op, TF_OpKernelContext *context) {
    (void)op;
    TF_Status *status = TF_NewStatus();
    TF_Tensor *in[INPUTS] = {0}, *out = NULL;
    for (int i = 0; i < INPUTS && TF_GetCode(status) == TF_OK; i++) TF_GetInput(context, i, &in[i], status);
    if (TF_GetCode(status) == TF_OK) {
        if (TF_NumDims(in[JPEGS]) != 1 || TF_NumDims(in[SIZES]) != 2 || TF_Dim(in[SIZES], 1) != 2 ||
            TF_Dim(in[SIZES], 0) != TF_Dim(in[JPEGS], 0)) {
            TF_SetStatus(status, TF_INVALID_ARGUMENT, "TfpipeSizes: images are not [n], or sizes not [n, 2]");
        } else {
            const int64_t dims[2] = {TF_Dim(in[JPEGS], 0), 2};
            out = TF_AllocateOutput(context, 0, TF_INT32, dims, 2, TF_TensorByteSize(in[SIZES]), status);
        }
    }
    if (TF_GetCode(status) == TF_OK) {
        const TF_TString *jpegs = TF_TensorData(in[JPEGS]);
        int32_t *sizes = TF_TensorData(out);
        if (TF_Dim(in[JPEGS], 0)) memcpy(sizes, TF_TensorData(in[SIZES]), TF_TensorByteSize(in[SIZES]));
        for (int64_t i = 0; i < TF_Dim(in[JPEGS], 0); i++)
            if (!sizes[2 * i])
                tfpipe_size((const uint8_t *)TF_StringGetDataPointer(jpegs + i), TF_StringGetSize(jpegs + i),
                            sizes + 2 * i);
    }
    tfpipe_end_call(context, status, in, INPUTS, out);
}

const struct tfpipe_op tfpipe_sizes_op = {
    "TfpipeSizes",
    {
        "jpegs: string", /* [n] */
        "sizes: int32",  /* [n, 2]: height, width; 0: unknown */
    },
    {NULL},
    {"known: int32"}, /* [n, 2] */
    NULL,
    compute,
    NULL,
};
