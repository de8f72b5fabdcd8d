/* Opens a scan's coded data: takes byte stuffing and markers out (ITU-T T.81, B.1.1.5 and Figure F.18), so that the
 * decoder's loop meets neither, and reads it by restart intervals. */
#include "scan.h"

void set_scan(struct scan *scan, struct block *blocks) {
    const struct frame *frame = scan->frame;
    const struct component *of[MCU_BLOCKS] = {0}; /* each block's component */
    int n = 0;
    scan->mcus = (frame->width + 8 * frame->hmax - 1) / (8 * frame->hmax);
    scan->mcu_rows = (frame->height + 8 * frame->vmax - 1) / (8 * frame->vmax);
    for (int c = 0; c < frame->components; c++) /* read_frame bounds the sum */
        for (int i = frame->component[c].h * frame->component[c].v; i > 0; i--) of[n++] = frame->component + c;
    for (int i = 0; i < BLOCKS; i++) {
        blocks[i].ac = of[i % n]->ac_table;
        blocks[i].next_dc = of[(i + 1) % n]->dc_table;
    }
    scan->blocks = blocks;
    scan->mcu_blocks = n;
}

/* Copies bytes other than 0xff until one of them or the end; writes up to 7 bytes more. Returns where it stopped. */
INLINE const uint8_t *copy_plain(uint8_t **to, const uint8_t *at, const uint8_t *end) {
    uint8_t *out = *to;
    while (end - at >= 8) {
        uint64_t word;
        memcpy(&word, at, 8);
        memcpy(out, &word, 8);
        /* The highest bit of each byte that is 0xff: the sum carries into it from seven ones, and never beyond. */
        uint64_t ones = word & 0x8080808080808080u & ((word & 0x7f7f7f7f7f7f7f7fu) + 0x0101010101010101u);
        if (ones) {
            int n = __builtin_ctzll(ones) >> 3;
            *to = out + n;
            return at + n;
        }
        out += 8;
        at += 8;
    }
    while (at < end && *at != 0xff) *out++ = *at++;
    *to = out;
    return at;
}

int read_data(struct tfpipe_scratch *scratch, struct scan *scan, const uint8_t *end, size_t mcus) {
    const struct frame *frame = scan->frame;
    const uint8_t *at = frame->scan;
    size_t expected = frame->interval ? (mcus + (size_t)frame->interval - 1) / (size_t)frame->interval : 1;
    /* A segment's marker takes two bytes, so a forged interval makes this no larger than a few times the file. */
    if (expected - 1 > (size_t)(end - at) / 2) return TFPIPE_DAMAGED;
    uint8_t *data = buffer_reserve(&scratch->data, (size_t)(end - at) + SLACK + 32);
    uint32_t *ends = buffer_reserve(&scratch->ends, expected * sizeof *ends);
    if (!data || !ends) return TFPIPE_MEMORY;
    size_t count = 0;
    uint8_t *to = data;
    for (;;) {
        at = copy_plain(&to, at, end);           /* to the next 0xff */
        if (end - at < 2) return TFPIPE_DAMAGED; /* cut off */
        int marker = at[1];
        if (marker == 0xff) { /* a fill byte */
            at++;
            continue;
        }
        at += 2;
        if (marker == 0) {
            /* After a fill byte: libjpeg's ways to read bits differ. The byte before the data is no 0xff: see read_scan. */
            if (at[-3] == 0xff) return TFPIPE_DAMAGED;
            *to++ = 0xff;
            continue;
        }
        if (count == expected) return TFPIPE_DAMAGED;
        ends[count++] = (uint32_t)(to - data);
        if (marker == 0xd9 || (frame->several && (marker & 0xf8) != 0xd0)) break;
        if (marker != 0xd0 + (int)((count - 1) & 7)) return TFPIPE_DAMAGED;
    }
    if (count != expected) return TFPIPE_DAMAGED;
    memset(to, 0, SLACK);
    scan->data = data;
    scan->ends = ends;
    scan->limit = to + LIMIT;
    scan->after = at - 2;
    return 0;
}

void open_segment(struct scan *scan, size_t segment) {
    scan->segment = segment;
    scan->bits = (struct bits){0, 0, scan->data + (segment ? scan->ends[segment - 1] : 0)};
    for (int c = 0; c < scan->frame->components; c++) scan->frame->component[c].prediction = 0;
}

int open_data(struct tfpipe_scratch *scratch, struct scan *scan, const uint8_t *end) {
    int status = read_data(scratch, scan, end, (size_t)scan->mcus * (size_t)scan->mcu_rows);
    if (!status) open_segment(scan, 0);
    return status;
}

int check_interval(const struct scan *scan, int ends, int is_last) {
    size_t used = (taken(&scan->bits, scan->data) + 7) / 8, size = scan->ends[scan->segment];
    if (used > size || (ends && used < size && !(is_last && size - used <= sizeof scan->bits.buffer)))
        return TFPIPE_DAMAGED;
    return ends && used < size ? TFPIPE_REFUSED : 0;
}
