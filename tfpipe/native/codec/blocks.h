/* Blocks of coefficients, the tables of their codes, and a reader of these. */
#pragma once

#include "../base.h"

enum {
    BLOCK = 64,        /* coefficients of a block of 8 x 8 */
    FAST = 11,         /* bits of codes, and of the values after them, that one look-up decodes */
    DC_BITS = 16 + 11, /* of a code of DC and the value after it, at most (T.81, Table F.1) */
    AC_BITS = 16 + 10, /* of AC (Table F.2) */
};

/* An entry of a Huffman table: one look-up decodes a code with the value after it, and, if FAST bits hold them, a second
 * code with its value.
 *
 *      31           24 23          18   17   16          11 10         6 5           0
 *     +---------------+--------------+------+--------------+------------+-------------+
 *     |  first value  | second value | ends |  advance to  | advance to |    bits     |
 *     |    (signed)   |   (signed)   |      |  the second  |  the first |    taken    |
 *     +---------------+--------------+------+--------------+------------+-------------+
 *     VALUE           OTHER           ENDS  SECOND         FIRST
 *
 * Advances count places in zigzag order: the run of zeros before a coefficient (T.81, Figure F.13), and itself. The
 * second value is stored at its place, then the first: so an absent second one, a 0 at the first one's place, does no
 * harm. `ends`: the block ends (EOB), which is a 0 at the place after the last coefficient.
 *
 * An advance of SPECIAL to the second leads beyond the block: the value comes after the code, and has as many bits as
 * the first value says; or, if no bits are taken, the code is longer than FAST bits, or there is none. */
enum { FIRST = 6, SECOND = 11, ENDS = 1 << 17, OTHER = 18, VALUE = 24, SPECIAL = 63 };
_Static_assert(SECOND == FIRST + 5 && ENDS == 1 << (SECOND + 6) && OTHER == SECOND + 7 && VALUE == OTHER + 6,
               "an entry's fields overlap, or leave gaps");
_Static_assert(DC_BITS < 1 << FIRST, "the bits of a code and its value do not fit in their field");
_Static_assert(SPECIAL == (1 << 6) - 1 && SPECIAL >= BLOCK - 1, "SPECIAL is no advance beyond a block");
_Static_assert(ENDS % BLOCK == 0, "a place cannot be turned into ENDS: see decode_blocks");

/* Places of coefficients: from zigzag to natural order (T.81, Figure A.6). */
static const uint8_t NATURAL[BLOCK] = {
    0,  1,  8,  16, 9,  2,  3,  10, 17, 24, 32, 25, 18, 11, 4,  5,  12, 19, 26, 33, 40, 48,
    41, 34, 27, 20, 13, 6,  7,  14, 21, 28, 35, 42, 49, 56, 57, 50, 43, 36, 29, 22, 15, 23,
    30, 37, 44, 51, 58, 59, 52, 45, 38, 31, 39, 46, 53, 60, 61, 54, 47, 55, 62, 63,
};

/* A Huffman table: the bytes of its definition, and what is made of them when a scan first uses it. */
struct huffman {
    uint8_t counts[16], symbols[256]; /* symbols after the last code are 0 */
    int total;                        /* symbols; 0: a free slot */
    int dc;                           /* its class: DC or AC */
    int built;                        /* 0: not yet, 1: usable, -1: no valid code */
    uint32_t used;                    /* the call that last used it */
    int32_t limit[18], offset[17];    /* by length: first 16-bit prefix beyond its codes; symbol index minus code */
    uint32_t single[1 << FAST];       /* by the next bits: the code alone, its value after it; 0: longer, or none */
    uint32_t fast[1 << FAST];         /* by the next bits: entries, see FIRST */
};

/* A block that is being decoded, and what decodes it and the next one. */
struct block {
    _Alignas(32) int16_t coefficients[BLOCK]; /* in natural order */
    const struct huffman *ac, *next_dc;
    uint32_t end; /* place of its EOB in zigzag order; 63: it may have none */
};

/* A quarter of a block, which any compiler clears at once: a short memset may become slow string instructions. */
typedef uint64_t quarter __attribute__((vector_size(32), may_alias));

INLINE void clear_block(struct block *block) {
    for (int i = 0; i < 4; i++) ((quarter *)(void *)block->coefficients)[i] = (quarter){0};
}

/* Transforms two blocks into pixels side by side. */
typedef void idct_pair(const struct block *left, const struct block *right, const uint16_t *factors, uint8_t *out,
                       size_t pitch);
idct_pair idct_plain, idct_avx2, idct_neon;

/* huffman.c: builds the table; returns whether it is valid. */
int huffman_build(struct huffman *table);

/* Returns the entry of the code of more than FAST bits at the start of `buffer`; 0 if there is none. */
uint32_t find_long(const struct huffman *table, uint64_t buffer);

/* Reader of the coded data, and where it stands. Of `count` only the low six bits count. */
struct bits {
    uint64_t buffer; /* next bits, from the highest */
    uint64_t count;  /* valid bits in it; what is below them is right, too, or zero */
    const uint8_t *next;
};

INLINE uint64_t load_be64(const uint8_t *at) {
    uint64_t word;
    memcpy(&word, at, 8);
    return __builtin_bswap64(word);
}

/* Tops the buffer up to at least 56 bits. The load does not wait for the count: `next` was set by the refill before. */
INLINE void refill(struct bits *bits) {
    bits->count &= 63;
    bits->buffer |= load_be64(bits->next) >> bits->count;
    bits->next += (63 - bits->count) >> 3;
    bits->count |= 56;
}

/* Takes an entry's bits: the low six bits of it. */
INLINE void take(struct bits *bits, uint32_t entry) {
    bits->buffer <<= entry & 63;
    bits->count -= entry;
}

/* Returns the entry of the code at the start of `buffer` alone; 0 if there is none. */
INLINE uint32_t find_code(const struct huffman *table, uint64_t buffer) {
    uint32_t entry = table->single[buffer >> (64 - FAST)];
    return UNLIKELY(!entry) ? find_long(table, buffer) : entry;
}

/* Returns the value after the code at the start of `buffer`, of an entry of find_code. */
INLINE int value_after(uint32_t entry, uint64_t buffer) {
    uint32_t extra = entry >> VALUE; /* at most 11 */
    int value = (int)(buffer << ((entry & 63) - extra) >> 1 >> (63 - extra));
    return value - (value < 1 << extra >> 1 ? (1 << extra) - 1 : 0);
}

/* Returns how many bits of the data, which begins at `data`, are taken. */
INLINE uint64_t taken(const struct bits *bits, const uint8_t *data) {
    return (uint64_t)(bits->next - data) * 8 - (bits->count & 63);
}

/* Begins at a bit of the data. */
INLINE void start_at(struct bits *bits, const uint8_t *data, uint64_t bit) {
    const uint8_t *at = data + bit / 8;
    *bits = (struct bits){load_be64(at) << bit % 8, 56 - bit % 8, at + 7};
}
