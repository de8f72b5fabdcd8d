/* What a call reuses of the calls before it. */
#pragma once

#include "codec/frame.h"

enum { TABLES = 16 }; /* Huffman tables kept; a file has at most 8 at a time */

struct tfpipe_scratch {
    _Alignas(64) uint16_t quant[4][BLOCK];
    _Alignas(64) struct block blocks[BLOCKS];
    struct huffman tables[TABLES];
    uint32_t calls;
    struct buffer data, ends, planes, rows, crops, spans, places, coefficients, turned;
    struct {                  /* of the call that has it alone: the next one finds zeros */
        int most_scans, turn; /* of a file, 0: any number; whether images are turned as EXIF says */
        int64_t *parts_ns;    /* [TFPIPE_PARTS], or NULL: not measured */
    } settings;
};
