/* Decodes Huffman codes, and has the blocks that are needed transformed: two thirds of a decode's time.
 *
 * The procedures are those of ITU-T T.81, F.2.2: Figures F.12 (EXTEND), F.13 (AC coefficients) and F.16 (DECODE).
 *
 * The loop is as fast as its chain of look-ups: shift, load, shift. So everything else stays off this chain. */
#include "scan.h"

/* Selects the table of the next look-up, its place and its block. A block's end is as unpredictable as the data, so it
 * must not be a branch, which compilers make of the plain form. */
#if defined(__x86_64__) && defined(__GNUC__)
#define IF_ENDS "testl %[ends], %[e]\n\tcmovnz %[d], %[t]\n\tcmovnz %[zero], %[p]\n\tcmovnz %[n], %[b]"
#define ZERO "r"
#elif defined(__aarch64__) && defined(__GNUC__)
#define IF_ENDS                           \
    "tst %w[e], %[ends]\n\t"              \
    "csel %[t], %[d], %[t], ne\n\t"       \
    "csel %w[p], %w[zero], %w[p], ne\n\t" \
    "csel %[b], %[n], %[b], ne"
#define ZERO "rZ" /* also the register that is always 0 */
#endif
#ifdef IF_ENDS
#define SELECT(entry, table, place, block)                                                          \
    do {                                                                                            \
        const struct huffman *next_dc = (block)->next_dc;                                           \
        struct block *next = (block) + 1;                                                           \
        table = (block)->ac;                                                                        \
        place = second;                                                                             \
        __asm__(IF_ENDS                                                                             \
                : [t] "+r"(table), [p] "+r"(place), [b] "+r"(block)                                 \
                : [e] "r"(entry), [ends] "i"(ENDS), [d] "r"(next_dc), [zero] ZERO(0), [n] "r"(next) \
                : "cc");                                                                            \
    } while (0)
#else
#define SELECT(entry, table, place, block)                     \
    do {                                                       \
        table = entry & ENDS ? (block)->next_dc : (block)->ac; \
        place = entry & ENDS ? 0 : second;                     \
        block += (entry & ENDS) / ENDS;                        \
    } while (0)
#endif

/* Returns `bits` bits of an entry; bmi: in one instruction instead of three. */
INLINE uint32_t field(uint32_t entry, uint32_t from, uint32_t bits, int bmi) {
#if HAVE_AVX2
    uint32_t out;
    if (bmi) {
        __asm__("bextrl %2, %1, %0" : "=r"(out) : "r"(entry), "r"(from | bits << 8));
        return out;
    }
#endif
    (void)bmi;
    return entry >> from & ((1u << bits) - 1);
}

enum { STEPS = 5 }; /* between two refills, which leave at least 56 bits */
_Static_assert(56 >= FAST * STEPS, "more bits are looked up than a refill gives");
_Static_assert(DC_BITS <= 56 && AC_BITS <= 56, "a code and its value do not fit in the buffer");

/* Decodes blocks up to `stop`; keep: all of their coefficients, otherwise coefficients[0] alone is right. That is the
 * difference of DC. Returns whether there was a bad code. DC and AC entries have the same form: see SELECT. */
INLINE int decode_blocks(struct bits *state, struct block *block, const struct block *stop, const struct huffman *table,
                         int keep, int bmi) {
    struct bits bits = *state; /* in registers */
    unsigned place = 0, first, second;
    uint32_t entry;
    for (struct block *b = block; b < stop; b++) {
        if (keep) clear_block(b);
        b->coefficients[0] = 0;
    }
#define STEP                                                                                            \
    entry = table->fast[bits.buffer >> (64 - FAST)];                                                    \
    first = place + field(entry, FIRST, 5, bmi);                                                        \
    second = first + field(entry, SECOND, 6, bmi);                                                      \
    if (UNLIKELY(second >= BLOCK - 1)) goto special;                                                    \
    take(&bits, entry);                                                                                 \
    if (keep) block->coefficients[NATURAL[second]] = (int16_t)((int32_t)(entry << (26 - OTHER)) >> 26); \
    block->coefficients[keep ? NATURAL[first] : first] = (int16_t)((int32_t)entry >> VALUE);            \
    if (keep) block->end = second;                                                                      \
    SELECT(entry, table, place, block);                                                                 \
    if (UNLIKELY(block == stop)) break;

    for (;;) {
        refill(&bits);
        STEP
        STEP
        STEP
        STEP
        STEP
        continue;
    special:
        refill(&bits);
        if (!(entry = find_code(table, bits.buffer))) return 1;
        second = place + field(entry, FIRST, 5, bmi);
        if (UNLIKELY(second > BLOCK - 1)) return 1;
        int value = value_after(entry, bits.buffer);
        take(&bits, entry);
        block->coefficients[keep ? NATURAL[second] : second] = (int16_t)value;
        block->end = second;
        entry |= (second + 1) * (ENDS / BLOCK); /* the last place ends the block, too */
        SELECT(entry, table, place, block);
        if (UNLIKELY(block == stop)) break;
    }
#undef STEP
    *state = bits;
    return 0;
}

/* Adds up the differences of DC of a component's blocks in `count` MCUs. */
INLINE void add_up(const struct scan *scan, struct component *component, struct block *blocks, int count) {
    int n = component->h * component->v;
    for (int i = 0; i < count; i++)
        for (struct block *block = blocks + i * scan->mcu_blocks; block < blocks + i * scan->mcu_blocks + n; block++)
            block->coefficients[0] = (int16_t)(component->prediction += (uint32_t)(int32_t)block->coefficients[0]);
}

INLINE int decode_any(struct scan *scan, int count, int keep, idct_pair *idct, int bmi) {
    struct frame *frame = scan->frame;
    int most = BLOCKS / scan->mcu_blocks & ~1; /* even: pairs */
    for (int at = 0; at < count; at += most) {
        int n = count - at < most ? count - at : most;
        struct block *blocks = scan->blocks, *stop = blocks + n * scan->mcu_blocks;
        if (decode_blocks(&scan->bits, blocks, stop, frame->component->dc_table, keep, bmi)) return TFPIPE_DAMAGED;
        for (int c = 0; c < frame->components; c++) {
            struct component *component = frame->component + c;
            add_up(scan, component, blocks, n);
            if (keep && c < scan->transformed) transform(scan, component, blocks, scan->column + at, n, idct);
            blocks += component->h * component->v;
        }
        /* SLACK makes what is read beyond the limit readable. */
        if (UNLIKELY(scan->bits.next > scan->limit)) return TFPIPE_DAMAGED;
    }
    return 0;
}

int decode_plain(struct scan *scan, int count, int keep) {
    return keep ? decode_any(scan, count, 1, idct_plain, 0) : decode_any(scan, count, 0, idct_plain, 0);
}

#if HAVE_AVX2
AVX2 int decode_avx2(struct scan *scan, int count, int keep) {
    return keep ? decode_any(scan, count, 1, idct_avx2, 1) : decode_any(scan, count, 0, idct_avx2, 1);
}
#elif HAVE_NEON
int decode_neon(struct scan *scan, int count, int keep) {
    return keep ? decode_any(scan, count, 1, idct_neon, 0) : decode_any(scan, count, 0, idct_neon, 0);
}
#endif
