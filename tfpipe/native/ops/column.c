/* The ops TfpipeRows and TfpipeLines: rows of arrays that Python holds in memory, named by a handle.
 *
 * A graph that captures an array as a tensor is rewritten with zeros of the same shape, which TensorFlow's pooled
 * allocator (oneDNN) never gives back. A handle is captured instead: a small tensor, whose memory keeps the array. */
#include <unistd.h>

#include "tf.h"

/* The handle's fields, int64; the elements after them only let it be larger than what TensorFlow copies into a graph. */
enum { ORIGIN, ADDRESS, ROWS, ELEMENTS, ROW_BYTES, FIELDS };

static int64_t origin;

__attribute__((constructor)) static void origin_choose(void) { origin = tfpipe_now_ns() ^ (int64_t)getpid() << 32; }

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
    if (TF_Dim(handle, 0) < FIELDS)
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

/* Returns whether all `items` are below `rows`. */
static int are_within(const int64_t *items, size_t count, int64_t rows) {
    for (size_t i = 0; i < count; i++)
        if (items[i] < 0 || items[i] >= rows) return 0;
    return 1;
}

enum { COLUMN, ITEMS };

static const char *rows_run(struct tfpipe_call *call) {
    const int type = TF_ExpectedOutputDataType(call->context, 0);
    const struct column column = column_of(call->in[COLUMN], call->status);
    if (!tfpipe_ok(call)) return NULL;
    if (column.row_bytes != (int64_t)TF_DataTypeSize(type) * (column.elements ? column.elements : 1))
        return "the column is of another type";
    const size_t count = TF_TensorByteSize(call->in[ITEMS]) / sizeof(int64_t), size = (size_t)column.row_bytes;
    const int64_t *items = TF_TensorData(call->in[ITEMS]);
    if (!are_within(items, count, column.rows)) return "an item is not in the catalog";
    uint8_t *rows = tfpipe_output_like(call, type, ITEMS, column.elements);
    for (size_t i = 0; tfpipe_ok(call) && i < count; i++)
        memcpy(rows + i * size, column.bytes + (size_t)items[i] * size, size);
    return NULL;
}

enum { TEXT, STARTS, LINES };

static const char *lines_run(struct tfpipe_call *call) {
    struct column columns[2]; /* the text and its starts */
    for (int i = TEXT; i <= STARTS; i++) {
        TF_Tensor *in = call->in[i];
        const int64_t bytes = i == TEXT ? 1 : sizeof(int64_t);
        if (TF_TensorType(call->in[TEXT]) == TF_UINT8)
            columns[i] = (struct column){TF_TensorData(in), TF_Dim(in, 0), 0, bytes};
        else
            columns[i] = column_of(in, call->status);
        if (!tfpipe_ok(call)) return NULL;
        if (columns[i].row_bytes != bytes) return "a column is of another type";
    }
    const size_t count = TF_TensorByteSize(call->in[LINES]) / sizeof(int64_t);
    const int64_t *items = TF_TensorData(call->in[LINES]);
    const int64_t *starts = (const int64_t *)(const void *)columns[STARTS].bytes;
    if (!are_within(items, count, columns[STARTS].rows - 1)) return "an item is not in the catalog";
    TF_TString *lines = tfpipe_output_like(call, TF_STRING, LINES, 0);
    for (size_t i = 0; tfpipe_ok(call) && i < count; i++) {
        const int64_t from = starts[items[i]], to = starts[items[i] + 1];
        if (from < 0 || to <= from || to > columns[TEXT].rows) return "the starts do not ascend within the text";
        TF_StringCopy(lines + i, (const char *)columns[TEXT].bytes + from, (size_t)(to - from - 1));
    }
    return NULL;
}

const struct tfpipe_op tfpipe_rows_op = {
    .name = "TfpipeRows",
    .in = {{"column: int64", 1},  /* [FIELDS] or more */
           {"items: int64", -1}}, /* numbers of rows */
    .attributes = {"T: type"},
    .out = {"rows: T"}, /* [...], or [..., elements] */
    .run = rows_run,
};

const struct tfpipe_op tfpipe_lines_op = {
    .name = "TfpipeLines",
    .in = {{"text: T", 1},        /* uint8 [m]: lines, each with its end; or its handle, int64 */
           {"starts: int64", 1},  /* [n + 1]: where each line starts, and the last one's end; or its handle */
           {"items: int64", -1}}, /* numbers of lines */
    .attributes = {"T: {int64, uint8}"},
    .out = {"lines: string"}, /* [...], without their ends */
    .run = lines_run,
};
