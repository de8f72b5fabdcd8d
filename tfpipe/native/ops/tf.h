/* The part of TensorFlow's C API that the op uses, declared here so that the package builds without TensorFlow, which
 * pip's isolated builds do not have. The C API is stable over TensorFlow's versions, its C++ ABI is not. The symbols are
 * resolved when TensorFlow's process loads the library. */
#pragma once
#include <stddef.h>
#include <stdint.h>

typedef struct TF_OpDefinitionBuilder TF_OpDefinitionBuilder;
typedef struct TF_ShapeInferenceContext TF_ShapeInferenceContext;
typedef struct TF_KernelBuilder TF_KernelBuilder;
typedef struct TF_OpKernelConstruction TF_OpKernelConstruction;
typedef struct TF_OpKernelContext TF_OpKernelContext;
typedef struct TF_Status TF_Status;
typedef struct TF_Tensor TF_Tensor;
/* A string of a tensor. Its content is read by TF_StringGetDataPointer and TF_StringGetSize alone; op_read.c writes one
 * in those versions of TensorFlow whose layout it knows. */
typedef union {
    uint64_t words[3];
    void *pointer;
} TF_TString;

enum { TF_OK = 0, TF_INVALID_ARGUMENT = 3, TF_RESOURCE_EXHAUSTED = 8, TF_FAILED_PRECONDITION = 9 }; /* TF_Code */
enum { TF_INT32 = 3, TF_UINT8 = 4, TF_STRING = 7, TF_INT64 = 9, TF_BOOL = 10 };                     /* TF_DataType */

const char *TF_Version(void);

TF_Status *TF_NewStatus(void);
void TF_DeleteStatus(TF_Status *);
void TF_SetStatus(TF_Status *, int code, const char *message);
/* Sets the code that belongs to an errno, and the message "context; the system's own". */
void TF_SetStatusFromIOError(TF_Status *, int error, const char *context);
int TF_GetCode(const TF_Status *);
const char *TF_Message(const TF_Status *);

TF_OpDefinitionBuilder *TF_NewOpDefinitionBuilder(const char *name);
void TF_OpDefinitionBuilderAddInput(TF_OpDefinitionBuilder *, const char *input);
void TF_OpDefinitionBuilderAddOutput(TF_OpDefinitionBuilder *, const char *output);
void TF_OpDefinitionBuilderAddAttr(TF_OpDefinitionBuilder *, const char *attribute);
void TF_OpDefinitionBuilderSetShapeInferenceFunction(TF_OpDefinitionBuilder *,
                                                     void (*)(TF_ShapeInferenceContext *, TF_Status *));
void TF_RegisterOpDefinition(TF_OpDefinitionBuilder *, TF_Status *);
void TF_ShapeInferenceContextSetUnknownShape(TF_ShapeInferenceContext *, TF_Status *);

TF_KernelBuilder *TF_NewKernelBuilder(const char *op, const char *device, void *(*create)(TF_OpKernelConstruction *),
                                      void (*compute)(void *, TF_OpKernelContext *), void (*destroy)(void *));
void TF_RegisterKernelBuilder(const char *name, TF_KernelBuilder *, TF_Status *);
void TF_OpKernelConstruction_GetAttrInt32(TF_OpKernelConstruction *, const char *name, int32_t *value, TF_Status *);
void TF_OpKernelConstruction_GetAttrInt32List(TF_OpKernelConstruction *, const char *name, int32_t *values, int most,
                                              TF_Status *);
/* list: the elements of an attribute that is a list, else -1. */
void TF_OpKernelConstruction_GetAttrSize(TF_OpKernelConstruction *, const char *name, int32_t *list, int32_t *bytes,
                                         TF_Status *);
void TF_OpKernelConstruction_Failure(TF_OpKernelConstruction *, TF_Status *);
void TF_OpKernelContext_Failure(TF_OpKernelContext *, TF_Status *);
int TF_ExpectedOutputDataType(TF_OpKernelContext *, int index);
size_t TF_DataTypeSize(int type);
void TF_GetInput(TF_OpKernelContext *, int index, TF_Tensor **, TF_Status *);
TF_Tensor *TF_AllocateOutput(TF_OpKernelContext *, int index, int type, const int64_t *dims, int rank, size_t bytes,
                             TF_Status *);

/* Gives an input's memory to an output, if nothing else refers to it, or allocates the output; `forwarded`: the input's
 * index, or -1. */
TF_Tensor *TF_ForwardInputOrAllocateOutput(TF_OpKernelContext *, const int *candidates, int count, int output,
                                           const int64_t *dims, int rank, int *forwarded, TF_Status *);

void TF_DeleteTensor(TF_Tensor *);
int TF_TensorType(const TF_Tensor *);
int TF_NumDims(const TF_Tensor *);
int64_t TF_Dim(const TF_Tensor *, int dimension);
void *TF_TensorData(const TF_Tensor *);
size_t TF_TensorByteSize(const TF_Tensor *);
const char *TF_StringGetDataPointer(const TF_TString *);
size_t TF_StringGetSize(const TF_TString *);
void TF_StringCopy(TF_TString *, const char *bytes, size_t);

/* An op for CPUs, as op.c registers it; the lists end with NULL. An op without a state has no create and destroy. */
struct tfpipe_op {
    const char *name, *inputs[7], *attributes[7], *outputs[3];
    void *(*create)(TF_OpKernelConstruction *);
    void (*compute)(void *, TF_OpKernelContext *);
    void (*destroy)(void *);
};

/* Allocates an op's state of `count` attributes, int32_t each, and reads them by their names; NULL after an error. */
void *tfpipe_new_state(TF_OpKernelConstruction *construction, const char *const *names, size_t count);

/* Ends a call: tells TensorFlow of a failure, and gives up the inputs, the output (may be NULL) and the status. */
void tfpipe_end_call(TF_OpKernelContext *context, TF_Status *status, TF_Tensor *const *in, int inputs, TF_Tensor *out);

/* Makes `string`, which is empty, the `size` bytes at `bytes`, of `capacity` + 1, and takes over their memory. If the
 * layout of a TF_TString is not known, the API's own function copies them. */
void tfpipe_give(TF_TString *string, char *bytes, size_t size, size_t capacity);

extern const struct tfpipe_op tfpipe_crops_op, tfpipe_resize_op; /* of op_crops.c */
extern const struct tfpipe_op tfpipe_augment_op;                 /* of op_augment.c */
extern const struct tfpipe_op tfpipe_mark_op;                    /* of op_mark.c */
extern const struct tfpipe_op tfpipe_sizes_op;                   /* of op_sizes.c */
extern const struct tfpipe_op tfpipe_read_op;                    /* of op_read.c */
extern const struct tfpipe_op tfpipe_range_op;                   /* of op_range.c */
extern const struct tfpipe_op tfpipe_rows_op, tfpipe_lines_op;   /* of op_column.c */
extern const struct tfpipe_op tfpipe_mix_op;                     /* of op_mix.c */
extern const struct tfpipe_op tfpipe_floats_op;                  /* of op_floats.c */
extern const struct tfpipe_op tfpipe_windows_op;                 /* of op_windows.c */
