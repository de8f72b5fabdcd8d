/* Decodes Huffman codes, and has the blocks that are needed transformed: two thirds of a decode's time.
 *
 * The loop is as fast as its chain of look-ups: shift, load, shift. So everything else stays off this chain. */
#include "core.h"
#include "table.h"

#include <string.h>

/* Places from zigzag to natural order. */
static const uint8_t NATURAL[BLOCK] = {
    0,  1,  8,  16, 9,  2,  3,  10, 17, 24, 32, 25, 18, 11, 4,  5,  12, 19, 26, 33, 40, 48,
    41, 34, 27, 20, 13, 6,  7,  14, 21, 28, 35, 42, 49, 56, 57, 50, 43, 36, 29, 22, 15, 23,
    30, 37, 44, 51, 58, 59, 52, 45, 38, 31, 39, 46, 53, 60, 61, 54, 47, 55, 62, 63,
};

INLINE uint64_t load_be64(const uint8_t *at) {
    uint64_t word;
    memcpy(&word, at, 8);
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    return word;
#else
    return __builtin_bswap64(word);
#endif
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

/* Decodes a single symbol and the value behind it, from at least 27 bits: a code of 16, a value of 11. Returns
 * bits taken | symbol << 8 | value << 32, or 0 if there is no such code. By value, so that the state stays in registers. */
static __attribute__((noinline)) uint64_t decode_single(uint64_t buffer, const struct huffman *table) {
    int code = table->codes[buffer >> (64 - FAST)], symbol = code & 255, length = code >> 8;
    if (!length) {
        int prefix = (int)(buffer >> 48);
        length = FAST + 1;
        while (length <= 16 && prefix >= table->limit[length]) length++;
        if (length > 16) return 0;
        symbol = table->symbols[((prefix >> (16 - length)) + table->offset[length]) & 255];
    }
    int extra = symbol & 15, value = 0; /* extra is at most 11 */
    if (extra) {
        value = (int)(buffer << length >> (64 - extra));
        if (value < 1 << (extra - 1)) value -= (1 << extra) - 1;
    }
    return (uint64_t)(length + extra) | (uint64_t)symbol << 8 | (uint64_t)(uint32_t)value << 32;
}

/* Decodes a DC difference; leaves at least 44 bits in the buffer. */
INLINE int decode_dc(struct bits *bits, const struct huffman *table, int *damaged) {
    refill(bits);
    uint32_t entry = table->fast[bits->buffer >> (64 - FAST)];
    if (LIKELY(!(entry & LONG))) {
        take(bits, entry);
        return (int32_t)entry >> 16;
    }
    uint64_t single = decode_single(bits->buffer, table);
    *damaged |= !single;
    take(bits, (uint32_t)single);
    refill(bits);
    return (int)(single >> 32);
}

/* Decodes a block's other coefficients, into `block`, which was zero, in natural order if `keep`; block[0] is undefined.
 * At least 44 bits must be in the buffer. Returns the last coefficient's place in zigzag order. */
INLINE int decode_ac(struct bits *state, const struct huffman *table, int16_t *block, int keep, int *damaged) {
    struct bits bits = *state; /* in registers */
    const uint32_t *fast = table->fast;
    unsigned place = 0, next;
    uint32_t entry;
    /* One look-up; its places are below 63 unless the entry is special. */
#define STEP                                                                      \
    entry = fast[bits.buffer >> (64 - FAST)];                                     \
    next = place + (entry >> 6 & 63);                                             \
    if (UNLIKELY(next >= BLOCK - 1)) goto special;                                \
    take(&bits, entry);                                                           \
    if (keep) {                                                                   \
        block[NATURAL[place + 1 + (entry >> 12 & 15)]] = (int8_t)(entry >> 16);   \
        block[NATURAL[next]] = (int16_t)((int32_t)entry >> 24);                   \
    }                                                                             \
    place = next;

    goto filled;
    for (;;) {
        refill(&bits);
        STEP
    filled:
        STEP STEP STEP STEP
        continue;
    special:
        if ((entry >> 6 & 63) == END && entry & 63) {
            int value = (int8_t)(entry >> 16);
            next = value ? place + 1 + (entry >> 12 & 15) : place;
            if (LIKELY(next < BLOCK - 1)) {
                take(&bits, entry);
                if (keep) block[value ? NATURAL[next] : 0] = (int16_t)value;
                place = next;
                break;
            }
        }
        /* A long code; or the last of two symbols may be beyond the block. */
        refill(&bits);
        uint64_t single = decode_single(bits.buffer, table);
        unsigned symbol = single >> 8 & 255;
        take(&bits, (uint32_t)single);
        if (!(symbol & 15) && symbol != 0xf0) { /* its end, or no code */
            *damaged |= !single;
            break;
        }
        place += (symbol >> 4) + 1;
        if (UNLIKELY(place > BLOCK - 1)) {
            *damaged = 1;
            break;
        }
        if (keep) block[NATURAL[place]] = (int16_t)(single >> 32);
        if (place == BLOCK - 1) break;
    }
#undef STEP
    *state = bits;
    return (int)(place & (BLOCK - 1));
}

/* Parses the blocks of one component of an MCU. */
INLINE void skip_blocks(struct bits *bits, struct component *component, int *damaged) {
    for (int i = component->h * component->v; i > 0; i--) {
        component->prediction += (uint32_t)decode_dc(bits, component->dc_table, damaged);
        decode_ac(bits, component->ac_table, NULL, 0, damaged);
    }
}

/* A quarter of a block, which any compiler clears at once: a short memset may become slow string instructions. */
typedef uint64_t quarter __attribute__((vector_size(32), may_alias));

INLINE void clear_block(int16_t *block) {
    for (int i = 0; i < 4; i++) ((quarter *)(void *)block)[i] = (quarter){0};
}

/* Decodes one block; returns the last coefficient's place. */
INLINE int keep_block(struct bits *bits, struct component *component, int16_t *block, int *damaged) {
    clear_block(block);
    component->prediction += (uint32_t)decode_dc(bits, component->dc_table, damaged);
    int last = decode_ac(bits, component->ac_table, block, 1, damaged);
    block[0] = (int16_t)component->prediction;
    return last;
}

/* Decodes the blocks of one component of an MCU, and transforms pairs of them: of this MCU if it has two in a row, else
 * of this (odd) and the one before. `column`: the MCU's, `final`: it is the last of the run. */
INLINE void keep_blocks(const struct scan *scan, struct bits *bits, struct component *component, int column, int odd,
                        int final, int lasts[2], int *damaged, idct_pair *idct) {
    uint8_t *ring = component->plane + component->pitch * (size_t)(8 * component->v * (scan->row & 1));
    for (int v = 0; v < component->v; v++) {
        uint8_t *out = ring + component->pitch * (size_t)(8 * v);
        int16_t *pair = component->blocks + v * 4 * BLOCK;
        if (component->h == 2) {
            int last = keep_block(bits, component, pair, damaged);
            int other = keep_block(bits, component, pair + BLOCK, damaged);
            *damaged |= idct(pair, component->factors, out + 16 * column, component->pitch, last > other ? last : other);
            continue;
        }
        int last = keep_block(bits, component, pair + odd * BLOCK, damaged);
        if (!odd) {
            lasts[v] = last;
            if (!final) continue;
            clear_block(pair + BLOCK);
        }
        if (lasts[v] > last) last = lasts[v];
        *damaged |= idct(pair, component->factors, out + 8 * (column - odd), component->pitch, last);
    }
}

INLINE int decode_any(struct scan *scan, int count, int keep, idct_pair *idct) {
    struct frame *frame = scan->frame;
    struct bits bits = scan->bits;
    int damaged = 0, lasts[3][2] = {{0}};
    for (int i = 0; i < count; i++) {
        for (int c = 0; c < frame->components; c++) {
            struct component *component = frame->component + c;
            if (keep && c < scan->transformed)
                keep_blocks(scan, &bits, component, scan->column + i, i & 1, i == count - 1, lasts[c], &damaged, idct);
            else
                skip_blocks(&bits, component, &damaged);
        }
        /* SLACK makes what an MCU reads beyond the limit readable. */
        if (UNLIKELY(damaged || bits.next > scan->limit)) return TFPIPE_DAMAGED;
    }
    scan->bits = bits;
    return 0;
}

int decode_plain(struct scan *scan, int count, int keep) {
    return keep ? decode_any(scan, count, 1, idct_plain) : decode_any(scan, count, 0, idct_plain);
}

#if HAVE_AVX2
AVX2 int decode_avx2(struct scan *scan, int count, int keep) {
    return keep ? decode_any(scan, count, 1, idct_avx2) : decode_any(scan, count, 0, idct_avx2);
}
#endif
