/* The op TfpipeMark: records when samples reach a place of the pipeline. */
#include <stdlib.h>
#include <string.h>

#include "../record.h"
#include "tf.h"

enum { POSITIONS, THROUGH, INPUTS };
enum { MOST_DIMS = 8 };

static void *create(TF_OpKernelConstruction *construction) {
    return tfpipe_new_state(construction, (const char *const[]){"kind"}, 1);
}

/* Copies `through`, so that the address of its copy tells this call from all others of the moment. */
static void compute(void *kind, TF_OpKernelContext *context) {
    TF_Status *status = TF_NewStatus();
    TF_Tensor *in[INPUTS] = {0}, *out = NULL;
    for (int i = 0; i < INPUTS && TF_GetCode(status) == TF_OK; i++) TF_GetInput(context, i, &in[i], status);
    if (TF_GetCode(status) == TF_OK) {
        int64_t dims[MOST_DIMS];
        int rank = TF_NumDims(in[THROUGH]);
        for (int i = 0; i < rank && i < MOST_DIMS; i++) dims[i] = TF_Dim(in[THROUGH], i);
        if (rank > MOST_DIMS)
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
    tfpipe_end_call(context, status, in, INPUTS, out);
}

const struct tfpipe_op tfpipe_mark_op = {
    "TfpipeMark",
    {
        "positions: int64", /* of samples that have come to the mark */
        "through: int64",
    },
    {"kind: int >= 1"},
    {"same: int64"}, /* a copy of `through` */
    create,
    compute,
    free,
};
