/* Registers the ops when TensorFlow loads the library (tf.load_op_library). The decoder is in a library of its own,
 * which Python loads first, also without TensorFlow. */
#include <stdio.h>
#include <stdlib.h>

#include "../crops.h"
#include "tf.h"

#define EXPORT __attribute__((visibility("default")))

static char failure[512]; /* of the first op that was not registered */

EXPORT int tfpipe_native_ops_version(void) { return TFPIPE_VERSION; }

/* Returns why an op was not registered, in TensorFlow's words; "" if all were. */
EXPORT const char *tfpipe_native_failure(void) { return failure; }

void *tfpipe_new_state(TF_OpKernelConstruction *construction, const char *const *names, size_t count) {
    int32_t *state = calloc(count, sizeof *state);
    TF_Status *status = TF_NewStatus();
    if (!state) TF_SetStatus(status, TF_RESOURCE_EXHAUSTED, "no memory");
    for (size_t i = 0; i < count && TF_GetCode(status) == TF_OK; i++)
        TF_OpKernelConstruction_GetAttrInt32(construction, names[i], state + i, status);
    if (TF_GetCode(status) != TF_OK) TF_OpKernelConstruction_Failure(construction, status);
    TF_DeleteStatus(status);
    return state;
}

void tfpipe_end_call(TF_OpKernelContext *context, TF_Status *status, TF_Tensor *const *in, int inputs, TF_Tensor *out) {
    if (TF_GetCode(status) != TF_OK) TF_OpKernelContext_Failure(context, status);
    for (int i = 0; i < inputs; i++)
        if (in[i]) TF_DeleteTensor(in[i]);
    if (out) TF_DeleteTensor(out);
    TF_DeleteStatus(status);
}

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
    if (TF_GetCode(status) != TF_OK && !failure[0])
        snprintf(failure, sizeof failure, "op %s: %s", op->name, TF_Message(status));
    TF_DeleteStatus(status);
}

__attribute__((constructor)) static void ops_register(void) {
    op_register(&tfpipe_crops_op);
    op_register(&tfpipe_resize_op);
    op_register(&tfpipe_augment_op);
    op_register(&tfpipe_mark_op);
    op_register(&tfpipe_sizes_op);
    op_register(&tfpipe_read_op);
    op_register(&tfpipe_range_op);
    op_register(&tfpipe_rows_op);
    op_register(&tfpipe_lines_op);
    op_register(&tfpipe_mix_op);
    op_register(&tfpipe_floats_op);
    op_register(&tfpipe_windows_op);
}
