/* The op TfpipeMark: records when samples reach a place of the pipeline. */
#include "../record.h"
#include "tf.h"

enum { POSITIONS, THROUGH };

/* Copies `through`, so that the address of its copy tells this call from all others of the moment. */
static const char *run(struct tfpipe_call *call) {
    void *copy = tfpipe_output_like(call, TF_INT64, THROUGH, 0);
    if (!tfpipe_ok(call)) return NULL;
    memcpy(copy, TF_TensorData(call->in[THROUGH]), TF_TensorByteSize(call->in[THROUGH]));
    const int64_t *positions = TF_TensorData(call->in[POSITIONS]);
    const size_t count = TF_TensorByteSize(call->in[POSITIONS]) / sizeof *positions;
    struct tfpipe_event event = {.call = (uint64_t)(uintptr_t)copy, .kind = *(const int32_t *)call->state};
    if (tfpipe_recording()) event.when_ns = tfpipe_now_ns();
    for (size_t i = 0; i < count && event.when_ns; i++) {
        event.sample = positions[i];
        tfpipe_record(event);
    }
    return NULL;
}

const struct tfpipe_op tfpipe_mark_op = {
    .name = "TfpipeMark",
    .in = {{"positions: int64", -1}, /* of samples that have come to the mark */
           {"through: int64", -1}},
    .attributes = {"kind: int >= 1"},
    .numbers = 1,
    .out = {"same: int64"}, /* a copy of `through` */
    .run = run,
};
