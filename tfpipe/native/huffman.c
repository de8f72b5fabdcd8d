/* Builds Huffman tables; takes byte stuffing and markers out of coded data. */
#include "core.h"
#include "table.h"

#include <string.h>

/* Fills the entries of one code of `length` bits, from `to` on; returns the next one. */
static uint32_t *fill_code(uint32_t *to, int dc, int symbol, int length) {
    int run = dc ? 0 : symbol >> 4, extra = symbol & 15;
    if (extra && length + extra <= FAST) {
        int same = 1 << (FAST - length - extra), half = 1 << (extra - 1);
        for (int bits = 0; bits < 2 * half; bits++) {
            int value = bits < half ? bits - 2 * half + 1 : bits;
            uint32_t entry = ENTRY(length + extra, run + 1, value);
            for (int k = 0; k < same; k++) *to++ = entry;
        }
        return to;
    }
    uint32_t entry;
    if (extra)
        entry = ENTRY(0, LONG, symbol | length << 8);
    else if (dc)
        entry = ENTRY(length, 1, 0);
    else
        entry = symbol == 0xf0 ? ENTRY(length, 16, 0) : ENTRY(length, END, 0);
    for (int k = 0; k < 1 << (FAST - length); k++) *to++ = entry;
    return to;
}

int huffman_build(struct huffman *table) {
    if (table->built) return table->built > 0;
    table->built = -1;
    int code = 0, index = 0;
    uint32_t *to = table->fast;
    for (int length = 1; length <= 16; length++) {
        table->offset[length] = index - code;
        for (int i = 0; i < table->counts[length - 1]; i++, index++, code++) {
            int symbol = table->symbols[index]; /* index < total <= 256 */
            /* As in libjpeg, a code of ones only is invalid; so at most 1 << FAST entries are filled. */
            if (code >= (1 << length) - 1) return 0;
            if (table->dc ? symbol > 11 : (symbol & 15) > 10) return 0;
            if (length <= FAST) to = fill_code(to, table->dc, symbol, length);
        }
        table->limit[length] = code << (16 - length);
        code <<= 1;
    }
    while (to < table->fast + (1 << FAST)) *to++ = ENTRY(0, LONG, 0);
    table->built = 1;
    return 1;
}

int read_data(struct tfpipe_scratch *scratch, const struct frame *frame, const uint8_t *end, size_t mcus,
              struct segments *segments) {
    const uint8_t *at = frame->scan;
    size_t expected = frame->interval ? (mcus + (size_t)frame->interval - 1) / (size_t)frame->interval : 1;
    /* A segment's marker takes two bytes, so a forged interval makes this no larger than a few times the file. */
    if (expected - 1 > (size_t)(end - at) / 2) return TFPIPE_DAMAGED;
    uint8_t *data = buffer_reserve(&scratch->data, (size_t)(end - at) + SLACK + 32);
    segments->ends = buffer_reserve(&scratch->ends, expected * sizeof *segments->ends);
    if (!data || !segments->ends) return TFPIPE_MEMORY;
    segments->count = 0;
    uint8_t *to = data;
    for (;;) {
        at = copy_plain(&to, at, end); /* to the next 0xff */
        if (end - at < 2) return TFPIPE_DAMAGED; /* cut off */
        int marker = at[1];
        if (marker == 0xff) { /* a fill byte */
            at++;
            continue;
        }
        at += 2;
        if (marker == 0) {
            *to++ = 0xff;
            continue;
        }
        if (segments->count == expected) return TFPIPE_DAMAGED;
        segments->ends[segments->count++] = (uint32_t)(to - data);
        if (marker == 0xd9) break;
        if (marker != 0xd0 + (int)((segments->count - 1) & 7)) return TFPIPE_DAMAGED;
    }
    if (segments->count != expected) return TFPIPE_DAMAGED;
    memset(to, 0, SLACK);
    return 0;
}
