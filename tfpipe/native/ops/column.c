/* The ops TfpipeRows and TfpipeLines: rows of arrays that Python holds in memory, named by a handle.
 *
 * A graph that captures an array as a tensor is rewritten with zeros of the same shape, which TensorFlow's pooled
 * allocator (oneDNN) never gives back. A handle is captured instead: a small tensor, whose memory keeps the array. */
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "tf.h"

#define EXPORT __attribute__((visibility("default")))

/* The handle's fields, int64; more elements than TensorFlow copies into a graph. */
enum { ORIGIN, ADDRESS, ROWS, ELEMENTS, ROW_BYTES, HANDLE = 256 };
enum { MOST_DIMS = 8 };

static int64_t origin;

__attribute__((constructor)) static void origin_choose(void) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    origin = ((int64_t)now.tv_sec * 1000000000 + now.tv_nsec) ^ (int64_t)getpid() << 32;
}

/* Returns a number that tells this process, and those forked from it, from all others. */
EXPORT int64_t tfpipe_native_origin(void) { return origin; }

/* An array of this process: [rows], or [rows, elements] if there are elements. */
struct column {
    const uint8_t *bytes;
    int64_t rows, elements, row_bytes;
};

static struct column column_of(const TF_Tensor *handle, TF_Status *status) {
    struct column column = {0};
    const int64_t *fields = TF_TensorData(handle);
    if (TF_NumDims(handle) != 1 || TF_Dim(handle, 0) != HANDLE)
        TF_SetStatus(status, TF_INVALID_ARGUMENT, "tfpipe: a column's handle has a wrong shape");
    else if (fields[ORIGIN] != origin)
        TF_SetStatus(
            status, TF_FAILED_PRECONDITION,
            "tfpipe: the catalog's columns are in the memory of another process than this: use data.service, which "
            "sends them, instead of a tf.data service of your own");
    else
        column = (struct column){(const uint8_t *)(uintptr_t)fields[ADDRESS], fields[ROWS], fields[ELEMENTS],
                                 fields[ROW_BYTES]};
    return column;
}

/* Returns an array that is an input itself. */
static struct column array_of(const TF_Tensor *array, int64_t row_bytes, TF_Status *status) {
    if (TF_NumDims(array) != 1)
        TF_SetStatus(status, TF_INVALID_ARGUMENT, "TfpipeLines: the text or its starts have another rank than 1");
    return (struct column){TF_TensorData(array), TF_NumDims(array) == 1 ? TF_Dim(array, 0) : 0, 0, row_bytes};
}

/* Allocates output 0: a row of `elements` (0: a scalar), of `row_bytes`, for each of `items`. */
static TF_Tensor *allocate(TF_OpKernelContext *context, int type, const TF_Tensor *items, int64_t elements,
                           int64_t row_bytes, TF_Status *status) {
    int64_t dims[MOST_DIMS + 1], count = 1;
    int rank = TF_NumDims(items);
    if (rank > MOST_DIMS) {
        TF_SetStatus(status, TF_INVALID_ARGUMENT, "tfpipe: items have more than 8 dimensions");
        return NULL;
    }
    for (int i = 0; i < rank; i++) count *= dims[i] = TF_Dim(items, i);
    if (elements) dims[rank++] = elements;
    return TF_AllocateOutput(context, 0, type, dims, rank, (size_t)(count * row_bytes), status);
}

/* Whether all `items` are below `rows`; sets the status if not. */
static int are_within(const int64_t *items, size_t count, int64_t rows, TF_Status *status) {
    for (size_t i = 0; i < count; i++)
        if (items[i] < 0 || items[i] >= rows) {
            TF_SetStatus(status, TF_INVALID_ARGUMENT, "tfpipe: an item is not in the catalog");
            return 0;
        }
    return 1;
}

enum { COLUMN, ITEMS, ROWS_INPUTS };

static void rows_compute(void *op, TF_OpKernelContext *context) {
    (void)op;
    TF_Status *status = TF_NewStatus();
    TF_Tensor *in[ROWS_INPUTS] = {0}, *out = NULL;
    struct column column = {0};
    const int type = TF_ExpectedOutputDataType(context, 0);
    for (int i = 0; i < ROWS_INPUTS && TF_GetCode(status) == TF_OK; i++) TF_GetInput(context, i, &in[i], status);
    if (TF_GetCode(status) == TF_OK) column = column_of(in[COLUMN], status);
    if (TF_GetCode(status) == TF_OK &&
        column.row_bytes != (int64_t)TF_DataTypeSize(type) * (column.elements ? column.elements : 1))
        TF_SetStatus(status, TF_INVALID_ARGUMENT, "TfpipeRows: the column is of another type");
    if (TF_GetCode(status) == TF_OK)
        out = allocate(context, type, in[ITEMS], column.elements, column.row_bytes, status);
    if (TF_GetCode(status) == TF_OK) {
        const size_t count = TF_TensorByteSize(in[ITEMS]) / sizeof(int64_t), size = (size_t)column.row_bytes;
        const int64_t *items = TF_TensorData(in[ITEMS]);
        uint8_t *rows = TF_TensorData(out);
        if (are_within(items, count, column.rows, status))
            for (size_t i = 0; i < count; i++) memcpy(rows + i * size, column.bytes + (size_t)items[i] * size, size);
    }
    tfpipe_end_call(context, status, in, ROWS_INPUTS, out);
}

enum { TEXT, STARTS, LINES, LINES_INPUTS };

static void lines_compute(void *op, TF_OpKernelContext *context) {
    (void)op;
    TF_Status *status = TF_NewStatus();
    TF_Tensor *in[LINES_INPUTS] = {0}, *out = NULL;
    struct column text = {0}, starts = {0};
    for (int i = 0; i < LINES_INPUTS && TF_GetCode(status) == TF_OK; i++) TF_GetInput(context, i, &in[i], status);
    const int arrays = TF_GetCode(status) == TF_OK && TF_TensorType(in[TEXT]) == TF_UINT8;
    if (TF_GetCode(status) == TF_OK) text = arrays ? array_of(in[TEXT], 1, status) : column_of(in[TEXT], status);
    if (TF_GetCode(status) == TF_OK)
        starts = arrays ? array_of(in[STARTS], sizeof(int64_t), status) : column_of(in[STARTS], status);
    if (TF_GetCode(status) == TF_OK && (text.row_bytes != 1 || starts.row_bytes != sizeof(int64_t)))
        TF_SetStatus(status, TF_INVALID_ARGUMENT, "TfpipeLines: a column is of another type");
    if (TF_GetCode(status) == TF_OK) out = allocate(context, TF_STRING, in[LINES], 0, sizeof(TF_TString), status);
    if (TF_GetCode(status) == TF_OK) {
        const size_t count = TF_TensorByteSize(in[LINES]) / sizeof(int64_t);
        const int64_t *items = TF_TensorData(in[LINES]), *start = (const int64_t *)(const void *)starts.bytes;
        TF_TString *lines = TF_TensorData(out);
        if (are_within(items, count, starts.rows - 1, status))
            for (size_t i = 0; i < count; i++) {
                const int64_t from = start[items[i]], to = start[items[i] + 1];
                if (from < 0 || to <= from || to > text.rows) {
                    TF_SetStatus(status, TF_INVALID_ARGUMENT, "TfpipeLines: the starts do not ascend within the text");
                    break;
                }
                TF_StringCopy(lines + i, (const char *)text.bytes + from, (size_t)(to - from - 1));
            }
    }
    tfpipe_end_call(context, status, in, LINES_INPUTS, out);
}

const struct tfpipe_op tfpipe_rows_op = {
    "TfpipeRows",
    {
        "column: int64", /* [HANDLE] */
        "items: int64",  /* [...]: numbers of rows */
    },
    {"T: type"},
    {"rows: T"}, /* [...], or [..., elements] */
    NULL,
    rows_compute,
    NULL,
};

const struct tfpipe_op tfpipe_lines_op = {
    "TfpipeLines",
    {
        "text: T",       /* uint8 [m]: lines, each with its end; or its handle, int64 [HANDLE] */
        "starts: int64", /* [n + 1]: where each line starts, and the last one's end; or, as the text, its handle */
        "items: int64",  /* [...]: numbers of lines */
    },
    {"T: {int64, uint8}"},
    {"lines: string"}, /* [...], without their ends */
    NULL,
    lines_compute,
    NULL,
};
