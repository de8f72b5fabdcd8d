/* The entries of a Huffman table, and copying of bytes: for huffman.c and entropy.c. */
#ifndef TFPIPE_TABLE_H
#define TFPIPE_TABLE_H

#include "core.h"

#include <string.h>

/* DC entry: bits taken | LONG | value << 16. LONG: more than FAST bits, nothing is taken.
 *
 * AC entry, one or two coefficients: bits taken | advance of both << 6 | advance of the first - 1 << 12 |
 * first value << 16 | second value << 24; a single one stands for both. An advance of END: the block ends, after a
 * coefficient if its value is not 0; or, if no bits are taken, more than FAST bits are needed. */
enum { LONG = 64, END = 63 };

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
