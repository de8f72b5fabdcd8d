/* An image as its header describes it. */
#pragma once

#include "blocks.h"

enum {
    COMPONENTS = 4,  /* of an image at most: CMYK */
    CODED = 3,       /* of one with entry points, or whose coefficients are stored */
    MCU_BLOCKS = 10, /* blocks of an MCU at most, as in libjpeg */
    BLOCKS = 48,     /* blocks decoded at a time, at most: more would not stay in the first cache */
    UNKNOWN = -1,    /* lowest bit of a coefficient that no scan has coded yet */
    MOST_LOW = 5,    /* lowest bit of a coefficient that a scan may code, so that it has at most 16 bits */
};
_Static_assert(((1 << 10) - 1) << MOST_LOW <= INT16_MAX, "an AC coefficient of 10 bits does not fit in 16");
_Static_assert(BLOCKS >= 2 * MCU_BLOCKS, "two MCUs, of which pairs of blocks are transformed, do not fit");

struct component {
    int id, h, v;        /* sampling factors, 1 or 2 */
    int quant;           /* number of its quantisation table, 0 to 3 */
    int width, height;   /* samples that are coded of the image, without padding */
    uint32_t prediction; /* DC of the previous block, modulo 1 << 32; its low 16 bits count */
    uint8_t *plane;      /* ring of two MCU rows, from the leftmost MCU needed */
    size_t pitch;        /* bytes from a row of the ring to the next */
    const struct huffman *dc_table, *ac_table;
    const uint16_t *factors; /* quantisation, in natural order */
    int8_t low[BLOCK];       /* lowest bit that is known of each coefficient, in zigzag order; UNKNOWN: none */
    /* Of an image that comes in several scans, by rows of blocks, of whole MCUs: */
    int16_t (*coefficients)[BLOCK]; /* of each block, in natural order */
    uint64_t *nonzero;              /* places of those that are not 0, but for DC: the first one is the highest bit */
    size_t across;                  /* blocks in a row */
};

/* What a scan codes (T.81, B.2.3 and G.1.1.1). */
struct band {
    int count, component[COMPONENTS]; /* components, and their numbers, ascending */
    int first, last;                  /* places in zigzag order (Ss, Se) */
    int high, low; /* lowest bits of the coefficients before it, 0 if there are none, and after it (Ah, Al) */
};

struct frame {
    int height, width, components;
    int hmax, vmax;
    int interval; /* MCUs between restart markers, 0 for none */
    int progressive;
    int several; /* whether it comes in several scans */
    int rgb;     /* whether its components are RGB, or CMYK: YCbCr or YCCK otherwise, or gray */
    struct component component[COMPONENTS];
    struct band band;    /* of the scan whose header was read last */
    const uint8_t *scan; /* its coded data; NULL: the image has ended */
};

/* Orientations that a header states, 1 to 8; 0 if it states none. */
struct turns {
    int has_exif, exif, xmp;
};

/* A header as far as it was read. */
struct header {
    struct tfpipe_scratch *scratch;
    struct frame *frame;
    const uint8_t *at, *end;      /* where the next segment begins; the end of the file */
    int quants[4];                /* whether this quantisation table was defined */
    struct huffman *tables[2][4]; /* DC, AC */
    int jfif, adobe;              /* adobe: its transform, or -1 */
    int scans;                    /* headers of scans */
    int orientation;              /* 1 to 8; 0 if none is stated */
    struct turns turns;
};

/* header.c: reads everything before the first scan's coded data. Returns 0 or TFPIPE_*. */
int read_header(struct header *header, struct tfpipe_scratch *scratch, const uint8_t *jpeg, size_t length,
                struct frame *frame);
/* Goes on from header->at to the next scan's coded data, or to the end of the image. Returns 0 or TFPIPE_*. */
int read_segments(struct header *header);
/* Reads a frame header, from the precision on, into an empty frame. Returns 0 or TFPIPE_*. */
int read_frame(struct frame *frame, const uint8_t *at, const uint8_t *end);
/* Put the numbers of a frame header, from the precision on, and of a JPEG into `header`: see tfpipe_read_header. */
int frame_numbers(const uint8_t *frame, struct tfpipe_header *header);
int jpeg_numbers(const uint8_t *jpeg, size_t length, struct tfpipe_header *header);
