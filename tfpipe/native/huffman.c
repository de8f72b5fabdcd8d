/* Builds Huffman tables; takes byte stuffing and markers out of coded data. */
#include "core.h"
#include "table.h"

#include <string.h>

/* One code with the value behind it: bits (0: too many) | its run << 8 | ENDS_BLOCK | value << 16. */
enum { RUN = 8, ENDS_BLOCK = 1 << 15 };

/* Fills the entries of one code of `length` bits, from `to` on; returns the next one. */
static uint32_t *fill_code(uint32_t *to, int dc, int symbol, int length) {
    int run = dc ? 0 : symbol >> 4, extra = symbol & 15;
    if (!extra || length + extra > FAST || extra > (dc ? 8 : 7)) {
        uint32_t entry = (uint32_t)length;
        if (extra)
            entry = 0;
        else if (!dc)
            entry |= symbol == 0xf0 ? 15 << RUN : ENDS_BLOCK;
        for (int k = 0; k < 1 << (FAST - length); k++) *to++ = entry;
        return to;
    }
    int same = 1 << (FAST - length - extra), half = 1 << (extra - 1);
    for (int bits = 0; bits < 2 * half; bits++) {
        int value = bits < half ? bits - 2 * half + 1 : bits;
        uint32_t entry = (uint32_t)(length + extra) | (uint32_t)run << RUN | (uint32_t)value << 16;
        for (int k = 0; k < same; k++) *to++ = entry;
    }
    return to;
}

/* Makes AC entries from `single` ones: of two coefficients, or of one and the block's end, if FAST bits hold both. */
static void combine(uint32_t *fast, const uint32_t *single) {
    for (uint32_t i = 0; i < 1 << FAST; i++) {
        uint32_t first = single[i], bits = first & 31, entry = bits;
        if (first & ENDS_BLOCK) {
            entry |= ENDS;
        } else if (bits) {
            uint32_t second = single[i << bits & ((1 << FAST) - 1)], more = second & 31, run = second >> RUN & 15;
            entry |= ((first >> RUN & 15) + 1) << FIRST | (first >> 16 & 255) << 16;
            if (more && bits + more <= FAST && (second & ENDS_BLOCK || run < 15))
                entry += second & ENDS_BLOCK ? more | ENDS : more | (run + 1) << SECOND | (second >> 16) << 24;
        }
        fast[i] = entry;
    }
}

/* Makes DC entries: a value of 9 bits is the sum of two of 8, which 255 is not. */
static void split(uint32_t *fast, const uint32_t *single) {
    for (int i = 0; i < 1 << FAST; i++) {
        int value = (int32_t)single[i] >> 16, half = value / 2;
        fast[i] = value == 255 ? 0 : (single[i] & 31) | (uint32_t)(half & 255) << 16 | (uint32_t)(value - half) << 24;
    }
}

int huffman_build(struct huffman *table) {
    if (table->built) return table->built > 0;
    table->built = -1;
    int code = 0, index = 0;
    uint32_t single[1 << FAST], *to = single;
    uint16_t *short_code = table->codes;
    for (int length = 1; length <= 16; length++) {
        table->offset[length] = index - code;
        for (int i = 0; i < table->counts[length - 1]; i++, index++, code++) {
            int symbol = table->symbols[index]; /* index < total <= 256 */
            /* As in libjpeg, a code of ones only is invalid; so at most 1 << FAST entries are filled. */
            if (code >= (1 << length) - 1) return 0;
            if (table->dc ? symbol > 11 : (symbol & 15) > 10) return 0;
            if (length > FAST) continue;
            to = fill_code(to, table->dc, symbol, length);
            for (int k = 0; k < 1 << (FAST - length); k++) *short_code++ = (uint16_t)(length << 8 | symbol);
        }
        table->limit[length] = code << (16 - length);
        code <<= 1;
    }
    while (short_code < table->codes + (1 << FAST)) *to++ = *short_code++ = 0;
    if (table->dc)
        split(table->fast, single);
    else
        combine(table->fast, single);
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
