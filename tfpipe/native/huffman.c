/* Builds Huffman tables; takes byte stuffing and markers out of coded data. */
#include "core.h"

#include <string.h>

/* Returns the entry of a code whose value is behind it. */
static uint32_t code_entry(int dc, int symbol, int length) {
    uint32_t run = dc ? 0 : (uint32_t)symbol >> 4 << FIRST, extra = symbol & 15;
    uint32_t entry = ((uint32_t)length + extra) | run | SPECIAL << SECOND | extra << VALUE;
    if (dc) return entry;
    return extra || symbol == 0xf0 ? entry + (1 << FIRST) : (uint32_t)length | ENDS | SPECIAL << SECOND;
}

/* Fills the entries of one code of `length` bits, from `to` on; returns the next one. */
static uint32_t *fill_code(uint32_t *to, int dc, int symbol, int length) {
    uint32_t special = code_entry(dc, symbol, length), plain = special & (ENDS | ((1 << SECOND) - 1));
    int extra = symbol & 15, same = FAST - length - extra, half = extra ? 1 << (extra - 1) : 0;
    if (same < 0 || extra > 7) {
        for (int k = 0; k < 1 << (FAST - length); k++) *to++ = special;
        return to;
    }
    for (int bits = 0; bits < 1 << extra; bits++) {
        int value = bits < half ? bits - 2 * half + 1 : bits;
        for (int k = 0; k < 1 << same; k++) *to++ = plain | (uint32_t)value << VALUE;
    }
    return to;
}

/* Returns an AC entry with what the FAST - bits behind it hold, too: another coefficient, or the block's end. */
static uint32_t combine(const uint32_t *single, uint32_t i) {
    uint32_t entry = single[i], bits = entry & 63;
    if (entry >> SECOND & SPECIAL || entry & ENDS) return entry;
    uint32_t next = single[i << bits & ((1 << FAST) - 1)];
    int value = (int32_t)next >> VALUE;
    if (next >> SECOND & SPECIAL || bits + (next & 63) > FAST || value < -32 || value > 31) return entry;
    return entry + (next & 63) + (next & ENDS) + ((next >> FIRST & 31) << SECOND) + (((uint32_t)value & 63) << OTHER);
}

uint32_t find_long(const struct huffman *table, uint64_t buffer) {
    int prefix = (int)(buffer >> 48), length = FAST + 1;
    while (length <= 16 && prefix >= table->limit[length]) length++;
    if (length > 16) return 0;
    int symbol = table->symbols[((prefix >> (16 - length)) + table->offset[length]) & 255];
    return code_entry(table->dc, symbol, length);
}

int huffman_build(struct huffman *table) {
    if (table->built) return table->built > 0;
    table->built = -1;
    int code = 0, index = 0;
    uint32_t plain[1 << FAST], *to = plain, *single = table->single;
    for (int length = 1; length <= 16; length++) {
        table->offset[length] = index - code;
        for (int i = 0; i < table->counts[length - 1]; i++, index++, code++) {
            int symbol = table->symbols[index]; /* index < total <= 256 */
            /* As in libjpeg, a code of ones only is invalid; so at most 1 << FAST entries are filled. */
            if (code >= (1 << length) - 1) return 0;
            if (table->dc ? symbol > 11 : (symbol & 15) > 10) return 0;
            if (length > FAST) continue;
            to = fill_code(to, table->dc, symbol, length);
            for (int k = 0; k < 1 << (FAST - length); k++) *single++ = code_entry(table->dc, symbol, length);
        }
        table->limit[length] = code << (16 - length);
        code <<= 1;
    }
    while (to < plain + (1 << FAST)) *to++ = SPECIAL << SECOND, *single++ = 0;
    for (uint32_t i = 0; i < 1 << FAST; i++) table->fast[i] = table->dc ? plain[i] : combine(plain, i);
    table->built = 1;
    return 1;
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
            /* After a fill byte: libjpeg's ways to read bits differ. The byte before the data is 0, see read_scan. */
            if (at[-3] == 0xff) return TFPIPE_DAMAGED;
            *to++ = 0xff;
            continue;
        }
        if (count == expected) return TFPIPE_DAMAGED;
        ends[count++] = (uint32_t)(to - data);
        if (marker == 0xd9) break;
        if (marker != 0xd0 + (int)((count - 1) & 7)) return TFPIPE_DAMAGED;
    }
    if (count != expected) return TFPIPE_DAMAGED;
    memset(to, 0, SLACK);
    scan->data = data;
    scan->ends = ends;
    scan->limit = to + 16;
    return 0;
}
