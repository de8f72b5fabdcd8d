/* Types and functions that the core's files share; crops.h is the interface. */
#ifndef TFPIPE_CORE_H
#define TFPIPE_CORE_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "crops.h"

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "bytes are read in words, the lowest first"
#endif
#if defined(__x86_64__) && defined(__GNUC__)
#define HAVE_AVX2 1
#define AVX2 __attribute__((target("avx2,bmi,bmi2")))
#else
#define HAVE_AVX2 0
#endif
#if defined(__aarch64__) && defined(__GNUC__) /* every such processor has NEON */
#define HAVE_NEON 1
#else
#define HAVE_NEON 0
#endif

#define INLINE static inline __attribute__((always_inline))
#define UNLIKELY(x) __builtin_expect(!!(x), 0)

enum {
    BLOCK = 64,           /* coefficients of a block of 8 x 8 */
    COMPONENTS = 4,       /* of an image at most: CMYK */
    CODED = 3,            /* of one with entry points, or whose coefficients are stored */
    MCU_BLOCKS = 10,      /* blocks of an MCU at most, as in libjpeg */
    PAD = 64,             /* bytes that vector code may read or write beyond (planes: also before) a row */
    MAX_SIDE = 65500,     /* pixels, as libjpeg's JPEG_MAX_DIMENSION */
    MAX_BYTES = 1 << 29,  /* of a decoded image, as in TensorFlow */
    KEPT_BYTES = 4 << 20, /* of a buffer, after a call; the file of an ordinary photograph is smaller */
    TABLES = 16,          /* Huffman tables kept; a file has at most 8 at a time */
    FAST = 11,            /* bits of codes, and of the values after them, that one look-up decodes */
    BLOCKS = 48,          /* blocks decoded at a time, at most: more would not stay in the first cache */
    DC_BITS = 16 + 11,    /* of a code of DC and the value after it, at most (T.81, Table F.1) */
    AC_BITS = 16 + 10,    /* of AC (Table F.2) */
    LIMIT = 16,           /* bytes beyond the coded data at which an overrun is noticed, after BLOCKS blocks */
    SLACK = 10240,        /* bytes beyond the coded data that are readable */
    UNKNOWN = -1,         /* lowest bit of a coefficient that no scan has coded yet */
    MOST_LOW = 5,         /* lowest bit of a coefficient that a scan may code, so that it has at most 16 bits */
};
/* A block takes at most these bits; a refill of the last one reads 8 bytes, and has advanced by up to 7 before. */
_Static_assert(LIMIT + (BLOCKS * (DC_BITS + (BLOCK - 1) * AC_BITS) + 7) / 8 + 7 + 8 <= SLACK,
               "blocks that run over the coded data read beyond SLACK");
_Static_assert(((1 << 10) - 1) << MOST_LOW <= INT16_MAX, "an AC coefficient of 10 bits does not fit in 16");
_Static_assert(BLOCKS >= 2 * MCU_BLOCKS, "two MCUs, of which pairs of blocks are transformed, do not fit");

/* An entry of a Huffman table: one look-up decodes a code with the value after it, and, if FAST bits hold them, a second
 * code with its value.
 *
 *      31           24 23          18   17   16          11 10         6 5           0
 *     +---------------+--------------+------+--------------+------------+-------------+
 *     |  first value  | second value | ends |  advance to  | advance to |    bits     |
 *     |    (signed)   |   (signed)   |      |  the second  |  the first |    taken    |
 *     +---------------+--------------+------+--------------+------------+-------------+
 *     VALUE           OTHER           ENDS  SECOND         FIRST
 *
 * Advances count places in zigzag order: the run of zeros before a coefficient (T.81, Figure F.13), and itself. The
 * second value is stored at its place, then the first: so an absent second one, a 0 at the first one's place, does no
 * harm. `ends`: the block ends (EOB), which is a 0 at the place after the last coefficient.
 *
 * An advance of SPECIAL to the second leads beyond the block: the value comes after the code, and has as many bits as
 * the first value says; or, if no bits are taken, the code is longer than FAST bits, or there is none. */
enum { FIRST = 6, SECOND = 11, ENDS = 1 << 17, OTHER = 18, VALUE = 24, SPECIAL = 63 };
_Static_assert(SECOND == FIRST + 5 && ENDS == 1 << (SECOND + 6) && OTHER == SECOND + 7 && VALUE == OTHER + 6,
               "an entry's fields overlap, or leave gaps");
_Static_assert(DC_BITS < 1 << FIRST, "the bits of a code and its value do not fit in their field");
_Static_assert(SPECIAL == (1 << 6) - 1 && SPECIAL >= BLOCK - 1, "SPECIAL is no advance beyond a block");
_Static_assert(ENDS % BLOCK == 0, "a place cannot be turned into ENDS: see decode_blocks");

/* Places of coefficients: from zigzag to natural order (T.81, Figure A.6). */
static const uint8_t NATURAL[BLOCK] = {
    0,  1,  8,  16, 9,  2,  3,  10, 17, 24, 32, 25, 18, 11, 4,  5,  12, 19, 26, 33, 40, 48,
    41, 34, 27, 20, 13, 6,  7,  14, 21, 28, 35, 42, 49, 56, 57, 50, 43, 36, 29, 22, 15, 23,
    30, 37, 44, 51, 58, 59, 52, 45, 38, 31, 39, 46, 53, 60, 61, 54, 47, 55, 62, 63,
};

struct buffer {
    void *memory; /* 64-byte aligned */
    size_t size;
};

/* A Huffman table: the bytes of its definition, and what is made of them when a scan first uses it. */
struct huffman {
    uint8_t counts[16], symbols[256]; /* symbols after the last code are 0 */
    int total;                        /* symbols; 0: a free slot */
    int dc;                           /* its class: DC or AC */
    int built;                        /* 0: not yet, 1: usable, -1: no valid code */
    uint32_t used;                    /* the call that last used it */
    int32_t limit[18], offset[17];    /* by length: first 16-bit prefix beyond its codes; symbol index minus code */
    uint32_t single[1 << FAST];       /* by the next bits: the code alone, its value after it; 0: longer, or none */
    uint32_t fast[1 << FAST];         /* by the next bits: entries, see FIRST */
};

/* A block that is being decoded, and what decodes it and the next one. */
struct block {
    _Alignas(32) int16_t coefficients[BLOCK]; /* in natural order */
    const struct huffman *ac, *next_dc;
    uint32_t end; /* place of its EOB in zigzag order; 63: it may have none */
};

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

/* A header as far as it was read. */
struct header {
    struct tfpipe_scratch *scratch;
    struct frame *frame;
    const uint8_t *at, *end;      /* where the next segment begins; the end of the file */
    int quants[4];                /* whether this quantisation table was defined */
    struct huffman *tables[2][4]; /* DC, AC */
    int jfif, adobe;              /* adobe: its transform, or -1 */
    int scans;                    /* headers of scans */
};

/* Entry points, opened for a file. */
struct entries {
    const uint8_t *records;               /* of record_bits each, the lowest bit first; NULL: there are none */
    int every, per_row;                   /* MCUs from one to the next in a row; entry points of a row */
    int record_bits, offset_bits;         /* of these, those of the offset in the coded data */
    int dc_bits[CODED], lowest_dc[CODED]; /* of each component */
};

struct tfpipe_scratch {
    _Alignas(64) uint16_t quant[4][BLOCK];
    _Alignas(64) struct block blocks[BLOCKS];
    struct huffman tables[TABLES];
    uint32_t calls;
    struct buffer data, ends, planes, rows, crops, spans, places, coefficients;
    int most_scans;    /* of a file; 0: any number */
    int64_t *parts_ns; /* [TFPIPE_PARTS], or NULL: not measured */
};

/* memory.c: returns at least `size` bytes of the buffer, with undefined contents, or NULL. */
void *buffer_reserve(struct buffer *buffer, size_t size);

/* header.c: reads everything before the first scan's coded data. Returns 0 or TFPIPE_*. */
int read_header(struct header *header, struct tfpipe_scratch *scratch, const uint8_t *jpeg, size_t length,
                struct frame *frame);
/* Goes on from header->at to the next scan's coded data, or to the end of the image. Returns 0 or TFPIPE_*. */
int read_segments(struct header *header);
/* Reads a frame header, from the precision on, into an empty frame. Returns 0 or TFPIPE_*. */
int read_frame(struct frame *frame, const uint8_t *at, const uint8_t *end);

/* huffman.c: builds the table; returns whether it is valid. */
int huffman_build(struct huffman *table);

/* Returns the entry of the code of more than FAST bits at the start of `buffer`; 0 if there is none. */
uint32_t find_long(const struct huffman *table, uint64_t buffer);

/* Reader of the coded data, and where it stands. Of `count` only the low six bits count. */
struct bits {
    uint64_t buffer; /* next bits, from the highest */
    uint64_t count;  /* valid bits in it; what is below them is right, too, or zero */
    const uint8_t *next;
};

INLINE uint64_t load_be64(const uint8_t *at) {
    uint64_t word;
    memcpy(&word, at, 8);
    return __builtin_bswap64(word);
}

/* Tops the buffer up to at least 56 bits. The load does not wait for the count: `next` was set by the refill before. */
INLINE void refill(struct bits *bits) {
    bits->count &= 63;
    bits->buffer |= load_be64(bits->next) >> bits->count;
    bits->next += (63 - bits->count) >> 3;
    bits->count |= 56;
}

/* Takes an entry's bits: the low six bits of it. */
INLINE void take(struct bits *bits, uint32_t entry) {
    bits->buffer <<= entry & 63;
    bits->count -= entry;
}

/* Returns the entry of the code at the start of `buffer` alone; 0 if there is none. */
INLINE uint32_t find_code(const struct huffman *table, uint64_t buffer) {
    uint32_t entry = table->single[buffer >> (64 - FAST)];
    return UNLIKELY(!entry) ? find_long(table, buffer) : entry;
}

/* Returns the value after the code at the start of `buffer`, of an entry of find_code. */
INLINE int value_after(uint32_t entry, uint64_t buffer) {
    uint32_t extra = entry >> VALUE; /* at most 11 */
    int value = (int)(buffer << ((entry & 63) - extra) >> 1 >> (63 - extra));
    return value - (value < 1 << extra >> 1 ? (1 << extra) - 1 : 0);
}

/* Returns how many bits of the data, which begins at `data`, are taken. */
INLINE uint64_t taken(const struct bits *bits, const uint8_t *data) {
    return (uint64_t)(bits->next - data) * 8 - (bits->count & 63);
}

/* Begins at a bit of the data. */
INLINE void start_at(struct bits *bits, const uint8_t *data, uint64_t bit) {
    const uint8_t *at = data + bit / 8;
    *bits = (struct bits){load_be64(at) << bit % 8, 56 - bit % 8, at + 7};
}

/* Stored coefficients, opened. */
struct stored {
    const uint8_t *offsets;      /* uint32 of each row of blocks, in the data */
    const uint8_t *data, *limit; /* NULL: a JPEG; the last place at which a block may begin */
};

/* Transforms two blocks into pixels side by side. */
typedef void idct_pair(const struct block *left, const struct block *right, const uint16_t *factors, uint8_t *out,
                       size_t pitch);

struct scan {
    struct frame *frame;
    const uint8_t *data, *limit; /* coded data without stuffing and markers; the last place to be after some MCUs */
    uint32_t *ends;              /* offsets in it: where each restart interval ends */
    const uint8_t *after;        /* the marker after it, in the file */
    struct bits bits;
    int mcus, mcu_rows;       /* in a row; rows of them */
    size_t position, segment; /* MCUs decoded or passed over; the restart interval that is being read */
    struct entries entries;
    struct stored stored;
    struct block *blocks; /* [BLOCKS], of as many whole MCUs as fit */
    int mcu_blocks;       /* blocks of an MCU */
    int transformed;      /* components that are needed as pixels; the others' codes are only parsed */
    int column, row;      /* of the next MCU that is kept: in MCUs from the planes' left; in MCU rows */
    idct_pair *idct;      /* transforms the components' coefficients; NULL: they have none, they are still coded */
};

/* unstuff.c: copies a scan's coded data without byte stuffing and markers, up to the next marker, which is the end of the
 * image unless it comes in several scans. Returns 0 or TFPIPE_*. */
int read_data(struct tfpipe_scratch *scratch, struct scan *scan, const uint8_t *end, size_t mcus);

/* Decodes a run of MCUs; keep: transforms them into the planes. Returns 0 or TFPIPE_DAMAGED. */
typedef int decode_run(struct scan *scan, int count, int keep);

/* advance.c: sets the numbers of MCUs, once the frame is known. */
void set_mcus(struct scan *scan);
/* Begins to read a scan at its first MCU, once the header is read; `end`: of the file. Returns 0 or TFPIPE_*. */
int open_data(struct tfpipe_scratch *scratch, struct scan *scan, const uint8_t *end);
/* Begins to read a restart interval. */
void open_segment(struct scan *scan, size_t segment);
/* Returns 0 if the bytes of the interval that is being read were enough, and, if it ends here, were all needed: libjpeg
 * warns of both, but not of a few bytes after a scan's last interval, which it has in its buffer then. */
int check_interval(const struct scan *scan, int ends, int is_last);
/* Decodes up to the MCU `target`, in the same row if `keep`. Otherwise passes over what comes before it: from entry point
 * to entry point, and from restart interval to restart interval. Returns 0 or TFPIPE_*. */
int advance_to(struct scan *scan, decode_run *decode, size_t target, int keep);

/* scans.c: decodes all scans of an image that comes in several, as far as its first `mcu_rows` rows of MCUs, into the
 * components' coefficients. The first scan's header was read. Returns 0 or TFPIPE_*. */
int read_scans(struct header *header, struct scan *scan, int mcu_rows);
/* Transforms MCUs of a scan whose coefficients are known, from the next one on, into the planes. */
void transform_decoded(const struct scan *scan, int count);

/* A scan of several. */
struct pass {
    struct scan *scan;
    struct band band;
    int progressive;
    uint32_t run; /* blocks to come that have no codes of their own (T.81, G.1.2.2) */
};

/* progressive.c: decodes `count` blocks in a row of a component. Returns 0 or TFPIPE_*. */
typedef int decode_band(struct pass *pass, struct component *component, size_t block, int count);
/* Returns the function for a scan. */
decode_band *choose_band(const struct pass *pass);

/* entries.c: returns a hash that tells accidents apart, not attacks. */
uint64_t hash_bytes(uint64_t seed, const uint8_t *bytes, size_t size);
/* Opens the entry points of a file, where these are its own; else leaves the scan's as they are. */
void open_entries(struct scan *scan, const struct tfpipe_entries *entries, const uint8_t *jpeg, size_t length);
/* Returns the last MCU at or before `target` that has an entry point. */
size_t entry_before(const struct scan *scan, size_t target);
/* Goes on at the last entry point at or before the MCU `target`, if that is ahead. Returns 0 or TFPIPE_DAMAGED. */
int jump_to(struct scan *scan, size_t target);
/* Returns whether the entry point at the MCU that comes next is where the codes before it end. */
int is_entry(const struct scan *scan);

/* stored.c: whether bytes are stored coefficients. */
int is_stored(const uint8_t *bytes, size_t length);
/* Puts their height and width into `size`. */
void stored_size(const uint8_t *bytes, int32_t size[2]);
/* Opens stored coefficients: fills the frame. Returns 0 or TFPIPE_*. */
int open_stored(struct tfpipe_scratch *scratch, struct scan *scan, const uint8_t *bytes, size_t length);
/* Reads the blocks of MCUs [from, to) of row scan->row, and transforms them into the planes. Returns 0 or TFPIPE_*. */
typedef int read_stored(struct scan *scan, int from, int to);
read_stored stored_plain, stored_avx2, stored_neon;
/* Reads the blocks of MCUs [from, from + count) of row `row` into scan->blocks; at most BLOCKS. Returns 0 or TFPIPE_*. */
int read_blocks(struct scan *scan, int row, int from, int count);

/* entropy.c: prepares a scan's blocks, once its frame is known. */
void set_blocks(struct scan *scan, struct block *blocks);

/* Upsampling of a row: near[-1] and near[samples], and the same of far, are readable. Vector code reads and writes up
 * to PAD bytes beyond. The bias of h1v2 is 1 for an upper row, 2 for a lower one. */
typedef void upsample_row(uint8_t *out, const uint8_t *near, const uint8_t *far, int samples);
void h2v1(uint8_t *out, const uint8_t *near, int samples);
void h1v2(uint8_t *out, const uint8_t *near, const uint8_t *far, int samples, int bias);

/* Converts n pixels to RGB; mirrored: from the last to the first. Writes 3 * n bytes; reads up to PAD beyond n. */
typedef void ycc_row(uint8_t *out, const uint8_t *y, const uint8_t *cb, const uint8_t *cr, int n, int mirrored);

enum {
    WEIGHT = 14,   /* fractional bits of the weights of a target's pixel, which sum to 1 */
    MORE_TAPS = 3, /* pixels after those of a row, each like the last one: four at a time are read */
};

/* A pixel of the target: its first source pixel, and the weights of this and of the next one. */
struct tap {
    int32_t low;
    int16_t weight[2];
};
_Static_assert(sizeof(struct tap) == 8, "vector code loads four taps at once");

/* Interpolates between rows a and b of n bytes: 7 fractional bits; weight: of b, of 1 << 15. Writes up to n + PAD. */
typedef void blend_rows(int16_t *out, const uint8_t *a, const uint8_t *b, int n, int weight);
/* Interpolates `width` RGB pixels along a row of blend_rows. Writes 3 * width bytes. */
typedef void resize_row(uint8_t *out, const int16_t *row, const struct tap *taps, int width);

/* An axis of a resize: how the target's pixels are made of the source's. */
struct axis {
    int kernel, source, size; /* one of TFPIPE_BILINEAR, ...; pixels of the source and of the target */
    int64_t whole, first;     /* pixels that the source is resized to, of which the target is a part, and the first */
    size_t bytes;             /* of memory that axis_set takes, a multiple of 8 */
    struct tap *pairs;        /* [size + MORE_TAPS], if two taps do, and taps is 0 */
    int taps;                 /* weights of a pixel, an even number */
    int32_t *low;             /* [size + MORE_TAPS]: first source pixel */
    int16_t *weights; /* [size + MORE_TAPS][taps]; of a pixel beyond the source, of which there is one if any: 0 */
};

/* taps.c: returns an axis without weights. */
struct axis axis_of(int kernel, int source, int64_t whole, int64_t first, int size);
/* Sets the weights, in the memory; mirrored: for the target's pixels from the last to the first. `weights` has room for
 * axis->taps. */
void axis_set(struct axis *axis, void *memory, double *weights, int mirrored);
/* Leaves source pixels out, at both ends of `length` pixels from `start` on, that a part of the whole does not need. */
void axis_narrow(struct axis *axis, int *start, int *length);

/* Adds up rows of n bytes by their weights, an even number of them, and leaves out `shift` of the sums' bits. Reads and
 * writes up to n + PAD. */
typedef void sum_rows(int16_t *out, const uint8_t *const *rows, const int16_t *weights, int taps, int n, int shift);
/* Resizes RGB or gray pixels along a row of sum_rows or blend_rows; leaves out `shift` of the sums' bits. Writes
 * axis->size pixels; reads up to PAD beyond the source. */
typedef void filter_row(uint8_t *out, const int16_t *row, const struct axis *axis, int shift);

/* Copies n pixels of 1 or 3 channels from the last to the first; `out` and `in` do not overlap. */
typedef void mirror_row(uint8_t *out, const uint8_t *in, int n, int channels);

/* Mixes n bytes with a partner's: weight, of `own`, of TFPIPE_WHOLE and below it; rounds to nearest, halves up. */
typedef void mix_row(uint8_t *own, const uint8_t *partner, size_t n, int weight);

/* The same of pixels that are RGB: copies them; and converts them to gray, of n bytes. */
ycc_row rgb_row, rgb_to_gray;

/* Multiplies RGB pixels, or CMY inks as a JPEG stores them, by black: levels of 255 are bare paper. `inverted`: the pixels
 * are 255 less each ink, as YCCK codes them. Divides as TensorFlow does, towards 0. */
void ink_row(uint8_t *restrict out, const uint8_t *restrict black, int n, int mirrored, int inverted);

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

decode_run decode_plain, decode_avx2, decode_neon;
idct_pair idct_plain, idct_avx2, idct_neon;
upsample_row h2v2_plain, h2v2_avx2, h2v2_neon;
ycc_row ycc_plain, ycc_avx2, ycc_neon;
blend_rows blend_plain, blend_avx2, blend_neon;
resize_row resize_plain, resize_avx2, resize_neon, resize_gray;
sum_rows sum_plain, sum_avx2, sum_neon;
filter_row filter_plain, filter_avx2, filter_neon, gray_plain, gray_avx2, gray_neon;
mirror_row mirror_plain, mirror_avx2, mirror_neon;
mix_row mix_plain, mix_avx2, mix_neon;

/* kernels.c: returns the number of the instructions in use: 1 for AVX2 or NEON, else 0. */
int simd_level(void);

#endif
