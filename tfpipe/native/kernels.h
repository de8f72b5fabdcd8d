/* The functions for the instructions that the processor has. */
#pragma once

#include "codec/scan.h"
#include "pixels/rows.h"

struct kernels {
    const char *name;
    decode_run *decode;
    read_stored *stored;
    idct_pair *idct;
    upsample_row *h2v2;
    ycc_row *ycc;
    blend_rows *blend;
    resize_row *resize;
    sum_rows *sum;
    filter_row *filter, *gray;
    mirror_row *mirror;
    mix_row *mix;
};

/* kernels.c: returns those in use. */
const struct kernels *tfpipe_kernels(void);
