/* The entries of a Huffman table, and copying of bytes: for huffman.c and entropy.c. */
#ifndef TFPIPE_TABLE_H
#define TFPIPE_TABLE_H

#include "core.h"

#include <string.h>

/* An entry, from its lowest bit: 6 of how many bits are taken, 5 of the advance to a first value, 6 of the advance from it
 * to a second, 1 if the block ends, 7 of the first value, 7 of the second. Both values are added at their places: what is
 * not there is 0. For a DC difference both advances are 0, and the values are its parts.
 *
 * An advance of SPECIAL leads beyond the block: the value is behind the code, and of as many bits as the first value
 * says; or, if no bits are taken, the code is longer than FAST bits, or there is none. */
enum { FIRST = 6, SECOND = 11, ENDS = 1 << 17, VALUE = 18, OTHER = 25, SPECIAL = 63 };

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
