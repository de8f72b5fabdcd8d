/* Builds Huffman tables: Annex C of ITU-T T.81 (Figures C.1 to C.3), with the values after the codes (F.2.2.1, Figure
 * F.12, EXTEND) looked up together with these. */
#include "blocks.h"

/* Returns the entry of a code whose value comes after it. */
static uint32_t code_entry(int dc, int symbol, int length) {
    uint32_t run = dc ? 0 : (uint32_t)symbol >> 4 << FIRST, extra = symbol & 15;
    uint32_t entry = ((uint32_t)length + extra) | run | SPECIAL << SECOND | extra << VALUE;
    if (dc) return entry;
    entry += 1 << FIRST;
    if (extra || symbol == 0xf0) return entry;
    return (uint32_t)length | 1 << FIRST | ENDS | SPECIAL << SECOND | (uint32_t)symbol >> 4 << OTHER;
}

/* Fills the entries of one code of `length` bits, from `to` on; returns the next one. */
static uint32_t *fill_code(uint32_t *to, int dc, int symbol, int length) {
    uint32_t special = code_entry(dc, symbol, length), plain = special & (ENDS | ((1 << SECOND) - 1));
    int extra = symbol & 15, same = FAST - length - extra, half = extra ? 1 << (extra - 1) : 0;
    int runs = !dc && !extra && symbol && symbol != 0xf0; /* the end of several blocks: how many comes after the code */
    if (same < 0 || extra > 7 || runs) {
        for (int k = 0; k < 1 << (FAST - length); k++) *to++ = special;
        return to;
    }
    for (int bits = 0; bits < 1 << extra; bits++) {
        int value = bits < half ? bits - 2 * half + 1 : bits;
        for (int k = 0; k < 1 << same; k++) *to++ = plain | (uint32_t)value << VALUE;
    }
    return to;
}

/* Returns an AC entry with what the FAST - bits after it hold, too: another coefficient, or the block's end. Without
 * branches, which the codes of a file's own tables make unpredictable: most files of ImageNet have such tables. */
static uint32_t combine(const uint32_t *plain, uint32_t i) {
    const uint32_t special = SPECIAL << SECOND, value = 1u << VALUE;
    uint32_t entry = plain[i], bits = entry & 63, next = plain[i << bits & ((1 << FAST) - 1)];
    uint32_t alone = (entry & (special | ENDS)) | (next & special) | (bits + (next & 63) > FAST);
    alone |= next + 32 * value >= 64 * value; /* its value is not in [-32, 31], modulo 256 */
    uint32_t second = (next & 63) + (next & ENDS) + ((next >> FIRST & 31) << SECOND) + ((next >> VALUE & 63) << OTHER);
    return entry + (second & -(uint32_t)!alone);
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
