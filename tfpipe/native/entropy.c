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

/* A quarter of a block, which any compiler clears at once: a short memset may become slow string instructions. */
typedef uint64_t quarter __attribute__((vector_size(32), may_alias));

/* Selects the table of the next look-up, its place and its block. A block's end is as unpredictable as the data, so it
 * must not be a branch, which compilers make of the plain form. */
#if defined(__x86_64__) && defined(__GNUC__)
#define SELECT(entry, table, place, block)                                                                       \
    do {                                                                                                         \
        const struct huffman *next_dc = (block)->next_dc;                                                        \
        struct block *next = (block) + 1;                                                                        \
        table = (block)->ac;                                                                                     \
        place = second;                                                                                          \
        __asm__("testl %[ends], %[e]\n\tcmovnz %[d], %[t]\n\tcmovnz %[zero], %[p]\n\tcmovnz %[n], %[b]"          \
                : [t] "+r"(table), [p] "+r"(place), [b] "+r"(block)                                              \
                : [e] "r"(entry), [ends] "i"(ENDS), [d] "r"(next_dc), [zero] "r"(0), [n] "r"(next)               \
                : "cc");                                                                                         \
    } while (0)
#else
#define SELECT(entry, table, place, block)                      \
    do {                                                        \
        table = entry & ENDS ? (block)->next_dc : (block)->ac;  \
        place = entry & ENDS ? 0 : second;                      \
        block += (entry & ENDS) / ENDS;                         \
    } while (0)
#endif

/* Decodes blocks up to `stop`; keep: all of their coefficients, otherwise coefficients[0] alone is right. That is the
 * difference of DC. Returns whether there was a bad code. DC and AC entries have the same form: see SELECT. */
INLINE int decode_blocks(struct bits *state, struct block *block, const struct block *stop, const struct huffman *table,
                         int keep) {
    struct bits bits = *state; /* in registers */
    unsigned place = 0, first, second;
    uint32_t entry;
    for (struct block *b = block; b < stop; b++) {
        if (keep)
            for (int i = 0; i < 4; i++) ((quarter *)(void *)b->coefficients)[i] = (quarter){0};
        b->coefficients[0] = 0;
    }
#define STEP                                                                      \
    entry = table->fast[bits.buffer >> (64 - FAST)];                              \
    if (UNLIKELY(!entry)) goto special;                                           \
    first = place + (entry >> FIRST & FIRST_MASK);                                \
    second = first + (entry >> SECOND & SECOND_MASK);                             \
    if (UNLIKELY(second >= BLOCK - 1)) goto special;                              \
    take(&bits, entry);                                                           \
    if (keep) {                                                                   \
        block->coefficients[NATURAL[first]] += (int8_t)(entry >> 16);             \
        block->coefficients[NATURAL[second]] += (int16_t)((int32_t)entry >> 24);  \
        block->last = second;                                                     \
    } else {                                                                      \
        block->coefficients[first] += (int8_t)(entry >> 16);                      \
        block->coefficients[second] += (int16_t)((int32_t)entry >> 24);           \
    }                                                                             \
    SELECT(entry, table, place, block);                                           \
    if (UNLIKELY(block == stop)) break;

    for (;;) {
        refill(&bits);
        STEP STEP STEP STEP STEP
        continue;
    special:
        refill(&bits);
        uint64_t single = decode_single(bits.buffer, table);
        unsigned symbol = single >> 8 & 255;
        int16_t value = (int16_t)(single >> 32);
        if (UNLIKELY(!single)) return 1;
        take(&bits, (uint32_t)single);
        if (table->dc) {
            block->coefficients[0] = value;
            block->last = 0;
            table = block->ac;
            continue;
        }
        if (symbol & 15 || symbol == 0xf0) {
            place += (symbol >> 4) + 1;
            if (UNLIKELY(place > BLOCK - 1)) return 1;
            block->coefficients[keep ? NATURAL[place] : place] = value;
            block->last = place;
            if (place < BLOCK - 1) continue;
        }
        table = block->next_dc;
        place = 0;
        if (++block == stop) break;
    }
#undef STEP
    *state = bits;
    return 0;
}

/* Adds up DC and transforms blocks of one component, pairs of them: of an MCU if it has two in a row, else of two MCUs.
 * `blocks`: the first of `count` MCUs; `column`: theirs. */
INLINE void transform(const struct scan *scan, struct component *component, struct block *blocks, int column, int count,
                      int keep, idct_pair *idct) {
    int n = component->h * component->v;
    for (int i = 0; i < count; i++)
        for (struct block *block = blocks + i * scan->mcu_blocks; block < blocks + i * scan->mcu_blocks + n; block++)
            block->coefficients[0] = (int16_t)(component->prediction += (uint32_t)(int32_t)block->coefficients[0]);
    if (!keep) return;
    uint8_t *ring = component->plane + component->pitch * (size_t)(8 * component->v * (scan->row & 1));
    for (int v = 0; v < component->v; v++, ring += 8 * component->pitch) {
        struct block *left = blocks + v * component->h;
        uint8_t *out = ring + 8 * component->h * column;
        for (int i = 0; i < count; i += component->h == 2 ? 1 : 2, out += 16) {
            const struct block *right = component->h == 2 ? left + 1 : i + 1 < count ? left + scan->mcu_blocks : left;
            idct(left, right, component->factors, out, component->pitch);
            left += component->h == 2 ? scan->mcu_blocks : 2 * scan->mcu_blocks;
        }
    }
}

INLINE int decode_any(struct scan *scan, int count, int keep, idct_pair *idct) {
    struct frame *frame = scan->frame;
    int most = BLOCKS / scan->mcu_blocks & ~1; /* even: pairs */
    for (int at = 0; at < count; at += most) {
        int n = count - at < most ? count - at : most;
        if (decode_blocks(&scan->bits, scan->blocks, scan->blocks + n * scan->mcu_blocks, frame->component->dc_table, keep))
            return TFPIPE_DAMAGED;
        struct block *blocks = scan->blocks;
        for (int c = 0; c < frame->components; c++) {
            struct component *component = frame->component + c;
            transform(scan, component, blocks, scan->column + at, n, keep && c < scan->transformed, idct);
            blocks += component->h * component->v;
        }
        /* SLACK makes what is read beyond the limit readable. */
        if (UNLIKELY(scan->bits.next > scan->limit)) return TFPIPE_DAMAGED;
    }
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

void set_blocks(struct scan *scan, struct block *blocks) {
    const struct frame *frame = scan->frame;
    const struct component *of[MCU_BLOCKS]; /* each block's component */
    int n = 0;
    for (int c = 0; c < frame->components; c++) /* read_frame bounds the sum */
        for (int i = frame->component[c].h * frame->component[c].v; i > 0; i--) of[n++] = frame->component + c;
    for (int i = 0; i < BLOCKS; i++) {
        blocks[i].ac = of[i % n]->ac_table;
        blocks[i].next_dc = of[(i + 1) % n]->dc_table;
    }
    scan->blocks = blocks;
    scan->mcu_blocks = n;
}
