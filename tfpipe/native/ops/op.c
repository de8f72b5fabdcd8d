/* Registers the ops when TensorFlow loads the library (tf.load_op_library), and does what their calls have in common. The
 * decoder is in a library of its own, which Python loads first, also without TensorFlow. */
#include <stdio.h>
#include <stdlib.h>

#include "tf.h"

enum { MOST_DIMS = 8 };

static char failure[512]; /* of the first op that was not registered */

EXPORT int tfpipe_native_ops_version(void) { return TFPIPE_VERSION; }

/* Returns why an op was not registered, in TensorFlow's words; "" if all were. */
EXPORT const char *tfpipe_native_failure(void) { return failure; }

void tfpipe_refuse(TF_OpKernelConstruction *construction, int code, const char *message) {
    TF_Status *status = TF_NewStatus();
    TF_SetStatus(status, code, message);
    TF_OpKernelConstruction_Failure(construction, status);
    TF_DeleteStatus(status);
}

void *tfpipe_create(const struct tfpipe_op *op, TF_OpKernelConstruction *construction, size_t more) {
    int32_t *state = calloc(1, (op->numbers + 1) * sizeof *state + more);
    TF_Status *status = TF_NewStatus();
    for (size_t i = 0; state && i < op->numbers && TF_GetCode(status) == TF_OK; i++) {
        char name[32];
        snprintf(name, sizeof name, "%.*s", (int)strcspn(op->attributes[i], ":"), op->attributes[i]);
        TF_OpKernelConstruction_GetAttrInt32(construction, name, state + i, status);
    }
    if (!state) TF_SetStatus(status, TF_RESOURCE_EXHAUSTED, "no memory");
    if (TF_GetCode(status) != TF_OK) TF_OpKernelConstruction_Failure(construction, status);
    TF_DeleteStatus(status);
    return state;
}

void *tfpipe_output(struct tfpipe_call *call, int output, int type, const int64_t *dims, int rank) {
    size_t bytes = type == TF_STRING ? sizeof(TF_TString) : TF_DataTypeSize(type);
    for (int i = 0; i < rank; i++) bytes *= (size_t)dims[i];
    TF_Tensor *out = TF_AllocateOutput(call->context, output, type, dims, rank, bytes, call->status);
    void *memory = tfpipe_ok(call) ? TF_TensorData(out) : NULL;
    if (out) TF_DeleteTensor(out);
    return memory;
}

void *tfpipe_output_like(struct tfpipe_call *call, int type, int input, int64_t more) {
    int64_t dims[MOST_DIMS + 1];
    int rank = TF_NumDims(call->in[input]);
    if (rank > MOST_DIMS) {
        TF_SetStatus(call->status, TF_INVALID_ARGUMENT, "tfpipe: an input has more than 8 dimensions");
        return NULL;
    }
    for (int i = 0; i < rank; i++) dims[i] = TF_Dim(call->in[input], i);
    if (more) dims[rank++] = more;
    return tfpipe_output(call, 0, type, dims, rank);
}

void *tfpipe_forward(struct tfpipe_call *call, int input, int64_t dims[4]) {
    TF_Tensor *in = call->in[input];
    for (int i = 0; i < 4; i++) dims[i] = TF_Dim(in, i);
    const void *from = TF_TensorData(in);
    const size_t bytes = TF_TensorByteSize(in);
    TF_DeleteTensor(in); /* a second reference to the memory would forbid its use for the output */
    call->in[input] = NULL;
    int forwarded = -1;
    TF_Tensor *out = TF_ForwardInputOrAllocateOutput(call->context, &input, 1, 0, dims, 4, &forwarded, call->status);
    void *to = tfpipe_ok(call) && bytes ? TF_TensorData(out) : NULL;
    if (to && to != from) memcpy(to, from, bytes);
    if (out) TF_DeleteTensor(out);
    return to;
}

void *tfpipe_same(struct tfpipe_call *call, int input, int output, int64_t dims[4]) {
    TF_Tensor *tensor = NULL;
    TF_GetInput(call->context, input, &tensor, call->status);
    if (tfpipe_ok(call) && TF_NumDims(tensor) != 4)
        TF_SetStatus(call->status, TF_INVALID_ARGUMENT, "tfpipe: the rank of the crops to write is not 4");
    for (int i = 0; tfpipe_ok(call) && i < 4; i++) dims[i] = TF_Dim(tensor, i);
    if (tfpipe_ok(call)) TF_SetOutput(call->context, output, tensor, call->status);
    void *memory = tfpipe_ok(call) ? TF_TensorData(tensor) : NULL;
    if (tensor) TF_DeleteTensor(tensor);
    return memory;
}

const char *tfpipe_span(const TF_Tensor *in, int64_t count, int64_t span[2]) {
    span[0] = 0, span[1] = count;
    if (!TF_Dim(in, 0)) return NULL;
    if (TF_Dim(in, 0) == 2) memcpy(span, TF_TensorData(in), 2 * sizeof *span);
    const int is_right = TF_Dim(in, 0) == 2 && span[0] >= 0 && span[0] <= span[1] && span[1] <= count;
    return is_right ? NULL : "the span is neither [0] nor two ascending numbers up to k";
}

void tfpipe_release(struct tfpipe_call *call) {
    for (size_t i = 0; i < sizeof call->in / sizeof *call->in; i++) {
        if (call->in[i]) TF_DeleteTensor(call->in[i]);
        call->in[i] = NULL;
    }
}

static void compute(const struct tfpipe_op *op, void *state, TF_OpKernelContext *context) {
    struct tfpipe_call call = {.context = context, .status = TF_NewStatus(), .state = state};
    char message[256];
    for (int i = 0; op->in[i].type && tfpipe_ok(&call); i++) {
        TF_GetInput(context, i, call.in + i, call.status);
        if (!tfpipe_ok(&call) || op->in[i].rank < 0 || TF_NumDims(call.in[i]) == op->in[i].rank) continue;
        snprintf(message, sizeof message, "%s: the rank of \"%s\" is not %d", op->name, op->in[i].type, op->in[i].rank);
        TF_SetStatus(call.status, TF_INVALID_ARGUMENT, message);
    }
    const char *wrong = tfpipe_ok(&call) ? op->run(&call) : NULL;
    if (wrong) {
        snprintf(message, sizeof message, "%s: %s", op->name, wrong);
        TF_SetStatus(call.status, TF_INVALID_ARGUMENT, message);
    }
    if (!tfpipe_ok(&call)) TF_OpKernelContext_Failure(context, call.status);
    tfpipe_release(&call);
    TF_DeleteStatus(call.status);
}

static void op_register(const struct tfpipe_op *op, void *(*create)(TF_OpKernelConstruction *),
                        void (*run)(void *, TF_OpKernelContext *)) {
    TF_Status *status = TF_NewStatus();
    TF_OpDefinitionBuilder *definition = TF_NewOpDefinitionBuilder(op->name);
    for (int i = 0; op->in[i].type; i++) TF_OpDefinitionBuilderAddInput(definition, op->in[i].type);
    for (int i = 0; op->attributes[i]; i++) TF_OpDefinitionBuilderAddAttr(definition, op->attributes[i]);
    for (int i = 0; op->out[i]; i++) TF_OpDefinitionBuilderAddOutput(definition, op->out[i]);
    if (op->writes) TF_OpDefinitionBuilderSetIsStateful(definition, 1); /* it takes 0 for 1 */
    TF_OpDefinitionBuilderSetShapeInferenceFunction(definition, TF_ShapeInferenceContextSetUnknownShape);
    TF_RegisterOpDefinition(definition, status);
    if (TF_GetCode(status) == TF_OK)
        TF_RegisterKernelBuilder(
            op->name, TF_NewKernelBuilder(op->name, "CPU", create, run, op->destroy ? op->destroy : free), status);
    if (TF_GetCode(status) != TF_OK && !failure[0])
        snprintf(failure, sizeof failure, "op %s: %s", op->name, TF_Message(status));
    TF_DeleteStatus(status);
}

/* TensorFlow does not say which op it makes or computes. */
#define DEFINE(name)                                                                       \
    static void *name##_create(TF_OpKernelConstruction *construction) {                    \
        const struct tfpipe_op *op = &tfpipe_##name##_op;                                  \
        return op->create ? op->create(construction) : tfpipe_create(op, construction, 0); \
    }                                                                                      \
    static void name##_compute(void *state, TF_OpKernelContext *context) {                 \
        compute(&tfpipe_##name##_op, state, context);                                      \
    }
TFPIPE_OPS(DEFINE)

__attribute__((constructor)) static void ops_register(void) {
#define REGISTER(name) op_register(&tfpipe_##name##_op, name##_create, name##_compute);
    TFPIPE_OPS(REGISTER)
}
