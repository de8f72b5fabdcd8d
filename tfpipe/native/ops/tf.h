/* The part of TensorFlow's C API that the op uses, declared here so that the package builds without TensorFlow, which
 * pip's isolated builds do not have. The C API is stable over TensorFlow's versions, its C++ ABI is not. The symbols are
 * resolved when TensorFlow's process loads the library. */
#pragma once

#include "../base.h"

typedef struct TF_OpDefinitionBuilder TF_OpDefinitionBuilder;
typedef struct TF_ShapeInferenceContext TF_ShapeInferenceContext;
typedef struct TF_KernelBuilder TF_KernelBuilder;
typedef struct TF_OpKernelConstruction TF_OpKernelConstruction;
typedef struct TF_OpKernelContext TF_OpKernelContext;
typedef struct TF_Status TF_Status;
typedef struct TF_Tensor TF_Tensor;
/* A string of a tensor. Its content is read by TF_StringGetDataPointer and TF_StringGetSize alone; ops/read.c writes one
 * in those versions of TensorFlow whose layout it knows. */
typedef union {
    uint64_t words[3];
    void *pointer;
} TF_TString;

enum { TF_OK = 0, TF_INVALID_ARGUMENT = 3, TF_RESOURCE_EXHAUSTED = 8, TF_FAILED_PRECONDITION = 9 }; /* TF_Code */
enum { TF_INT32 = 3, TF_UINT8 = 4, TF_STRING = 7, TF_INT64 = 9, TF_BOOL = 10 };                     /* TF_DataType */

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
void TF_OpDefinitionBuilderSetIsStateful(TF_OpDefinitionBuilder *, _Bool is_stateful);
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
void TF_SetOutput(TF_OpKernelContext *, int index, const TF_Tensor *, TF_Status *);
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
void TF_StringInit(TF_TString *);
void TF_StringCopy(TF_TString *, const char *bytes, size_t);
void TF_StringDealloc(TF_TString *);

/* A call of an op: its inputs, NULL once they are given up, and whether anything is wrong. */
struct tfpipe_call {
    TF_OpKernelContext *context;
    TF_Status *status;
    void *state; /* the op's */
    TF_Tensor *in[8];
};

/* An op for CPUs; the lists end with NULL. */
struct tfpipe_op {
    const char *name;
    struct {
        const char *type; /* "name: type" */
        int rank;         /* -1: any */
    } in[9];
    const char *out[3], *attributes[7];
    size_t numbers; /* attributes that are its state, an int32_t each: the first ones */
    _Bool writes;   /* whether it changes an input, which TensorFlow must neither leave out nor do once for two */
    /* Computes a call. Returns what is wrong with the inputs; NULL: nothing, or the status has it. */
    const char *(*run)(struct tfpipe_call *call);
    void *(*create)(TF_OpKernelConstruction *); /* makes another state; NULL: none */
    void (*destroy)(void *state);               /* NULL: by free */
};

/* All ops: one more is a row here, and a struct tfpipe_op in a file. */
#define TFPIPE_OPS(ROW) \
    ROW(crops)          \
    ROW(resize)         \
    ROW(augment)        \
    ROW(arrive)         \
    ROW(mark) ROW(sizes) ROW(read) ROW(stamp) ROW(range) ROW(rows) ROW(lines) ROW(mix) ROW(floats) ROW(windows)
#define TFPIPE_DECLARE(name) extern const struct tfpipe_op tfpipe_##name##_op;
TFPIPE_OPS(TFPIPE_DECLARE)
#undef TFPIPE_DECLARE

static inline int tfpipe_ok(const struct tfpipe_call *call) { return TF_GetCode(call->status) == TF_OK; }

/* op.c: allocates an output, and returns its memory, which the context keeps; NULL: it has none, or the status says why
 * not. */
void *tfpipe_output(struct tfpipe_call *call, int output, int type, const int64_t *dims, int rank);
/* Allocates output 0 with the dimensions of an input, and one more; 0: none more. */
void *tfpipe_output_like(struct tfpipe_call *call, int type, int input, int64_t more);
/* Gives an input of rank 4 up, and returns its memory as that of output 0: a copy, if anything else refers to it. */
void *tfpipe_forward(struct tfpipe_call *call, int input, int64_t dims[4]);
/* Makes an input of rank 4 an output too, and returns its memory, whoever else refers to it: for calls that each write
 * other rows of a batch. */
void *tfpipe_same(struct tfpipe_call *call, int input, int output, int64_t dims[4]);
/* Reads the rows that a call writes, of `count`: [2], the first and their end; or [0]: all. Returns what is wrong. */
const char *tfpipe_span(const TF_Tensor *in, int64_t count, int64_t span[2]);
/* Gives all inputs up. */
void tfpipe_release(struct tfpipe_call *call);
/* Allocates an op's state and `more` bytes after it, and reads its numbers; NULL: no memory. */
void *tfpipe_create(const struct tfpipe_op *op, TF_OpKernelConstruction *construction, size_t more);
/* Refuses to make an op. */
void tfpipe_refuse(TF_OpKernelConstruction *construction, int code, const char *message);

/* read.c: copies a path into `name`, of PATH_MAX bytes. Returns whether it fits; errno says so if not. */
int tfpipe_path(const TF_TString *path, char *name);
/* Opens a file to read it. Returns -1, and errno says why, if that fails. */
int tfpipe_open(const char *name);
/* Makes `string`, which is empty, the `size` bytes at `bytes`, of `capacity` + 1, and takes over their memory. If the
 * layout of a TF_TString is not known, the API's own function copies them. */
void tfpipe_give(TF_TString *string, char *bytes, size_t size, size_t capacity);
