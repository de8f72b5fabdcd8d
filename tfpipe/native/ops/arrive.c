/* The op TfpipeArrive: counts calls that work on the same, and tells the last of them. */
#include "tf.h"

static const char *run(struct tfpipe_call *call) {
    if (TF_TensorByteSize(call->in[0]) != sizeof(int64_t)) return "the number of calls is not [1]";
    int64_t *last = tfpipe_output(call, 0, TF_INT64, NULL, 0);
    /* Whoever is the last sees what the others have written before. */
    if (tfpipe_ok(call))
        *last = __atomic_add_fetch((int64_t *)TF_TensorData(call->in[0]), 1, __ATOMIC_ACQ_REL) ==
                *(const int32_t *)call->state;
    return NULL;
}

const struct tfpipe_op tfpipe_arrive_op = {
    .name = "TfpipeArrive",
    .in = {{"calls: int64", 1}}, /* [1]: how many have come, which is counted in its own memory */
    .attributes = {"of: int >= 1"},
    .numbers = 1,
    .writes = 1,
    .out = {"last: int64"}, /* 1 for the last of them, else 0 */
    .run = run,
};
