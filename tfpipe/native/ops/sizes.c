/* The op TfpipeSizes: heights and widths of JPEGs, from their headers. */
#include "tf.h"

enum { JPEGS, SIZES };

static const char *run(struct tfpipe_call *call) {
    const int32_t *turn = call->state;
    const int64_t count = TF_Dim(call->in[JPEGS], 0);
    if (TF_Dim(call->in[SIZES], 0) != count || TF_Dim(call->in[SIZES], 1) != 2) return "sizes are not [n, 2]";
    int32_t *sizes = tfpipe_output_like(call, TF_INT32, SIZES, 0);
    if (!tfpipe_ok(call) || !count) return NULL;
    memcpy(sizes, TF_TensorData(call->in[SIZES]), TF_TensorByteSize(call->in[SIZES]));
    const TF_TString *jpeg = TF_TensorData(call->in[JPEGS]);
    struct tfpipe_header header;
    for (const int32_t *end = sizes + 2 * count; sizes < end; sizes += 2, jpeg++) {
        const uint8_t *bytes = (const uint8_t *)TF_StringGetDataPointer(jpeg);
        if (*sizes || !tfpipe_read_header(bytes, TF_StringGetSize(jpeg), &header)) continue;
        const int swapped = *turn && header.orientation > 4;
        sizes[swapped] = header.height, sizes[!swapped] = header.width;
    }
    return NULL;
}

const struct tfpipe_op tfpipe_sizes_op = {
    .name = "TfpipeSizes",
    .in = {{"jpegs: string", 1},          /* [n] */
           {"sizes: int32", 2}},          /* [n, 2]: height, width; 0: unknown */
    .attributes = {"turn: int >= 0 = 0"}, /* whether as EXIF says */
    .numbers = 1,
    .out = {"known: int32"}, /* [n, 2] */
    .run = run,
};
