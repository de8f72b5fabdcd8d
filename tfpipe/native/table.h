/* The entries of a Huffman table, and copying of bytes: for huffman.c and entropy.c. */
#ifndef TFPIPE_TABLE_H
#define TFPIPE_TABLE_H

#include "core.h"

#include <string.h>

/* An entry: bits taken | ENDS if the block ends | advance to the second value << SECOND | advance to the first value << FIRST |
 * first value << 16 | second value << 24. Both values are added at their places: what is not there is 0. For a DC
 * difference, both advances are 0. An entry of 0 needs a closer look: more than FAST bits, or a value beyond 8 bits. */
enum { ENDS = 64, SECOND = 7, SECOND_MASK = 15, FIRST = 11, FIRST_MASK = 31 };

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
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
            int n = __builtin_clzll(ones) >> 3;
#else
            int n = __builtin_ctzll(ones) >> 3;
#endif
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

#endif
