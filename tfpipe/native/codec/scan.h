/* A scan that is being read: coded data, entry points to it, or stored coefficients. */
#pragma once

#include "../scratch.h"

enum {
    LIMIT = 16,    /* bytes beyond the coded data at which an overrun is noticed, after BLOCKS blocks */
    SLACK = 10240, /* bytes beyond the coded data that are readable */
};
/* A block takes at most these bits; a refill of the last one reads 8 bytes, and has advanced by up to 7 before. */
_Static_assert(LIMIT + (BLOCKS * (DC_BITS + (BLOCK - 1) * AC_BITS) + 7) / 8 + 7 + 8 <= SLACK,
               "blocks that run over the coded data read beyond SLACK");

/* Entry points, opened for a file. */
struct entries {
    const uint8_t *records;               /* of record_bits each, the lowest bit first; NULL: there are none */
    int every, per_row;                   /* MCUs from one to the next in a row; entry points of a row */
    int record_bits, offset_bits;         /* of these, those of the offset in the coded data */
    int dc_bits[CODED], lowest_dc[CODED]; /* of each component */
};

/* Stored coefficients, opened. */
struct stored {
    const uint8_t *offsets;      /* uint32 of each row of blocks, in the data */
    const uint8_t *data, *limit; /* NULL: a JPEG; the last place at which a block may begin */
};

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

/* data.c: sets the numbers of MCUs, and prepares the blocks, once the frame is known. */
void set_scan(struct scan *scan, struct block *blocks);
/* Copies a scan's coded data without byte stuffing and markers, up to the next marker, which is the end of the image
 * unless it comes in several scans. Returns 0 or TFPIPE_*. */
int read_data(struct tfpipe_scratch *scratch, struct scan *scan, const uint8_t *end, size_t mcus);
/* Begins to read a scan at its first MCU, once the header is read; `end`: of the file. Returns 0 or TFPIPE_*. */
int open_data(struct tfpipe_scratch *scratch, struct scan *scan, const uint8_t *end);
/* Begins to read a restart interval. */
void open_segment(struct scan *scan, size_t segment);
/* Returns 0 if the bytes of the interval that is being read were enough, and, if it ends here, were all needed: libjpeg
 * warns of both, but not of a few bytes after a scan's last interval, which it has in its buffer then. */
int check_interval(const struct scan *scan, int ends, int is_last);

/* Decodes a run of MCUs; keep: transforms them into the planes. Returns 0 or TFPIPE_DAMAGED. */
typedef int decode_run(struct scan *scan, int count, int keep);
decode_run decode_plain, decode_avx2, decode_neon;

/* advance.c: decodes up to the MCU `target`, in the same row if `keep`. Otherwise passes over what comes before it: from
 * entry point to entry point, and from restart interval to restart interval. Returns 0 or TFPIPE_*. */
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
/* Returns their frame header, from the precision on. */
const uint8_t *stored_frame(const uint8_t *bytes);
/* Opens stored coefficients: fills the frame. Returns 0 or TFPIPE_*. */
int open_stored(struct tfpipe_scratch *scratch, struct scan *scan, const uint8_t *bytes, size_t length);
/* Reads the blocks of MCUs [from, to) of row scan->row, and transforms them into the planes. Returns 0 or TFPIPE_*. */
typedef int read_stored(struct scan *scan, int from, int to);
read_stored stored_plain, stored_avx2, stored_neon;
/* Reads the blocks of MCUs [from, from + count) of row `row` into scan->blocks; at most BLOCKS. Returns 0 or TFPIPE_*. */
int read_blocks(struct scan *scan, int row, int from, int count);

/* Transforms blocks of one component, pairs of them: of an MCU if it has two in a row, else of two MCUs. `blocks`: the
 * first of `count` MCUs; `column`: theirs. */
INLINE void transform(const struct scan *scan, const struct component *component, const struct block *blocks,
                      int column, int count, idct_pair *idct) {
    uint8_t *ring = component->plane + component->pitch * (size_t)(8 * component->v * (scan->row & 1));
    for (int v = 0; v < component->v; v++, ring += 8 * component->pitch) {
        const struct block *left = blocks + v * component->h;
        uint8_t *out = ring + 8 * component->h * column;
        for (int i = 0; i < count; i += component->h == 2 ? 1 : 2, out += 16) {
            const struct block *right = component->h == 2 ? left + 1 : i + 1 < count ? left + scan->mcu_blocks : left;
            idct(left, right, component->factors, out, component->pitch);
            left += component->h == 2 ? scan->mcu_blocks : 2 * scan->mcu_blocks;
        }
    }
}
