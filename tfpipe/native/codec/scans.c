/* Reads images that come in several scans: all are decoded into coefficients, of as many rows of MCUs as are needed, from
 * which blocks are transformed like those of a single scan. */
#include "scan.h"

/* The size of a component in blocks, without those that only fill up MCUs. */
static size_t blocks_across(const struct component *component) { return ((size_t)component->width + 7) / 8; }
static size_t blocks_down(const struct component *component) { return ((size_t)component->height + 7) / 8; }

/* Allocates the coefficients of the first `mcu_rows` rows of MCUs, all 0. A file can state any size in a few bytes, but
 * each of its blocks has a code of DC, of a bit at least: so they take at most 1088 bytes of memory for a byte of file,
 * but for the blocks that fill up MCUs. */
static int set_coefficients(struct header *header, const struct scan *scan, int mcu_rows) {
    struct frame *frame = header->frame;
    size_t coded = 0, blocks = 0;
    for (int c = 0; c < frame->components; c++) { /* sides are at most MAX_SIDE: the sums are below 1 << 28 */
        struct component *component = frame->component + c;
        coded += blocks_across(component) * blocks_down(component);
        component->across = (size_t)scan->mcus * (size_t)component->h;
        blocks += component->across * (size_t)component->v * (size_t)mcu_rows;
    }
    if (coded / 8 > (size_t)(header->end - header->at)) return TFPIPE_DAMAGED;
    const size_t size = blocks * (BLOCK * sizeof(int16_t) + sizeof(uint64_t));
    int16_t (*coefficients)[BLOCK] = buffer_reserve(&header->scratch->coefficients, size);
    if (!coefficients) return TFPIPE_MEMORY;
    memset(coefficients, 0, size);
    uint64_t *nonzero = (uint64_t *)(void *)(coefficients + blocks);
    for (int c = 0; c < frame->components; c++) {
        struct component *component = frame->component + c;
        component->coefficients = coefficients;
        component->nonzero = nonzero;
        coefficients += component->across * (size_t)component->v * (size_t)mcu_rows;
        nonzero += component->across * (size_t)component->v * (size_t)mcu_rows;
    }
    return 0;
}
_Static_assert((uint64_t)COMPONENTS *(MAX_SIDE / 8 + 2) * (MAX_SIDE / 8 + 2) * (BLOCK * 2 + 8) <= SIZE_MAX,
               "the size of the coefficients overflows");

/* Decodes MCUs in a row of a scan of several components. */
static int decode_mcus(struct pass *pass, decode_band *decode, size_t row, size_t column, size_t count) {
    for (size_t mcu = column; mcu < column + count; mcu++) {
        for (int i = 0; i < pass->band.count; i++) {
            struct component *component = pass->scan->frame->component + pass->band.component[i];
            for (size_t v = 0; v < (size_t)component->v; v++) {
                size_t at = (row * (size_t)component->v + v) * component->across + mcu * (size_t)component->h;
                int status = decode(pass, component, at, component->h);
                if (status) return status;
            }
        }
    }
    return 0;
}

/* Decodes a scan as far as the first `mcu_rows` rows of MCUs. */
static int decode_scan(struct header *header, struct scan *scan, int mcu_rows) {
    struct frame *frame = header->frame;
    struct pass pass = {scan, frame->band, frame->progressive, 0};
    struct component *component = frame->component + pass.band.component[0];
    const int alone = pass.band.count == 1; /* then an MCU is a block, and no block fills up an MCU (A.2.2) */
    size_t across = alone ? blocks_across(component) : (size_t)scan->mcus;
    size_t down = alone ? blocks_down(component) : (size_t)scan->mcu_rows;
    size_t needed = (size_t)mcu_rows * (alone ? (size_t)component->v : 1), interval = (size_t)frame->interval;
    size_t total = across * down, stop = needed < down ? across * needed : total;
    int status = read_data(header->scratch, scan, header->end, total);
    if (status) return status;
    decode_band *decode = choose_band(&pass);
    if (!interval) open_segment(scan, 0);
    for (size_t position = 0; position < stop;) {
        size_t row = position / across, column = position % across, count = across - column;
        if (interval) {
            if (position % interval == 0) open_segment(scan, position / interval), pass.run = 0;
            if (count > interval - position % interval) count = interval - position % interval;
        }
        status = alone ? decode(&pass, component, row * component->across + column, (int)count)
                       : decode_mcus(&pass, decode, row, column, count);
        if (status) return status;
        position += count;
        int ends = position == total || (interval && position % interval == 0);
        if ((status = check_interval(scan, ends, position == total))) return status;
    }
    header->at = scan->after;
    return 0;
}

/* Returns whether libjpeg has the coefficients as they are: it smooths the blocks of progressive files that leave some of
 * the first nine of AC out, or some of their bits. */
static int is_complete(const struct frame *frame) {
    for (int c = 0; c < frame->components; c++)
        for (int place = 0; place < 10; place++)
            if (frame->component[c].low[place] != 0) return 0;
    return 1;
}

int read_scans(struct header *header, struct scan *scan, int mcu_rows) {
    const int most = header->scratch->settings.most_scans;
    int status = set_coefficients(header, scan, mcu_rows);
    while (!status && header->frame->scan) {
        if (most && header->scans > most) return TFPIPE_REFUSED;
        status = decode_scan(header, scan, mcu_rows);
        if (!status) status = read_segments(header);
    }
    if (status) return status;
    return is_complete(header->frame) ? 0 : TFPIPE_REFUSED;
}

/* Copies a block's coefficients for the transform. */
INLINE void load_block(struct block *to, const struct component *component, size_t block) {
    memcpy(to->coefficients, component->coefficients[block], sizeof to->coefficients);
    uint64_t nonzero = component->nonzero[block] | 1ull << (BLOCK - 1); /* with DC */
    int end = BLOCK - __builtin_ctzll(nonzero);                         /* the place after the last one */
    to->end = (uint32_t)(end < BLOCK ? end : BLOCK - 1);
}

void transform_decoded(const struct scan *scan, int count) {
    struct block left, right;
    for (int c = 0; c < scan->transformed; c++) {
        const struct component *component = scan->frame->component + c;
        const size_t h = (size_t)component->h, v = (size_t)component->v, n = (size_t)count * h;
        const size_t first = scan->position % (size_t)scan->mcus * h;
        for (size_t i = 0; i < v; i++) {
            size_t block = ((size_t)scan->row * v + i) * component->across + first;
            uint8_t *out = component->plane + component->pitch * 8 * (v * (size_t)(scan->row & 1) + i);
            out += 8 * h * (size_t)scan->column;
            for (size_t at = 0; at < n; at += 2, out += 16) {
                load_block(&left, component, block + at);
                load_block(&right, component, at + 1 < n ? block + at + 1 : block + at);
                scan->idct(&left, &right, component->factors, out, component->pitch);
            }
        }
    }
}
