/* Decodes the blocks of a scan of several into their coefficients: ITU-T T.81, G.1.2 and G.2, and for a sequential scan
 * F.2.2.
 *
 * Which coefficients are not zero is kept in a word for each block, so that a scan that refines them need not look for
 * them: most are zero. Such scans have half of an ordinary file's codes, and each is unpredictable. So what a block's codes
 * say is collected without branches, and added to the coefficients at its end. */
#include "scan.h"

/* A block takes at most these bits, after which an overrun is noticed. */
_Static_assert(DC_BITS + (BLOCK - 1) * (AC_BITS + 1) + 16 + 14 <= 8 * (SLACK - LIMIT - 7 - 8),
               "a block that runs over the coded data reads beyond SLACK");
_Static_assert(16 + 14 <= 56, "a code of a run of ends does not fit in the buffer");

/* Returns the places [first, last] as bits: see struct component. */
static uint64_t places(int first, int last) { return ~0ull >> first & ~0ull << (BLOCK - 1 - last); }

INLINE uint64_t place_bit(unsigned place) { return 1ull << (BLOCK - 1 - place); }

/* Puts the low bits of a value, from the lowest on, where `at` has bits. */
INLINE uint64_t deposit(uint64_t value, uint64_t at, int bmi) {
#if HAVE_AVX2
    uint64_t out;
    if (bmi) {
        __asm__("pdepq %2, %1, %0" : "=r"(out) : "r"(value), "r"(at));
        return out;
    }
#endif
    (void)bmi;
    uint64_t plain = 0;
    for (; at; at &= at - 1, value >>= 1)
        if (value & 1) plain |= at & -at;
    return plain;
}

/* Takes `count` bits, 0 to 56, of those that a refill has left. */
INLINE uint64_t take_bits(struct bits *bits, uint32_t count) {
    uint64_t value = bits->buffer >> 1 >> (63 - count);
    take(bits, count);
    return value;
}

/* Takes what comes after the code of a run of ends, and returns its blocks (Figure G.3). A sequential scan has no runs;
 * libjpeg takes all of these codes for an end there. */
INLINE uint32_t take_run(const struct pass *pass, struct bits *bits, uint32_t entry) {
    uint32_t extra = pass->progressive ? entry >> OTHER & 63 : 0; /* at most 14 */
    return (1u << extra) + (uint32_t)take_bits(bits, extra);
}

static int first_dc(struct pass *pass, struct component *component, size_t block, int count) {
    struct bits *bits = &pass->scan->bits;
    for (; count > 0; count--, block++) {
        refill(bits);
        uint32_t entry = find_code(component->dc_table, bits->buffer);
        if (!entry || bits->next > pass->scan->limit) return TFPIPE_DAMAGED;
        int value = (int)component->prediction + value_after(entry, bits->buffer);
        take(bits, entry);
        component->prediction = (uint32_t)value;
        value *= 1 << pass->band.low; /* the one before was below 1 << 15 */
        if (value != (int16_t)value) return TFPIPE_REFUSED;
        component->coefficients[block][0] = (int16_t)value;
    }
    return 0;
}

static int refine_dc(struct pass *pass, struct component *component, size_t block, int count) {
    struct bits *bits = &pass->scan->bits;
    for (; count > 0; count--, block++) {
        refill(bits);
        if (bits->next > pass->scan->limit) return TFPIPE_DAMAGED;
        component->coefficients[block][0] |= (int16_t)(take_bits(bits, 1) << pass->band.low);
    }
    return 0;
}

/* Decodes a block's AC coefficients where there was none before. Returns the blocks of the run that ends it, itself among
 * them; 0: it ends at its last place; -1: a bad code. The entries are those of decode_blocks in entropy.c. */
INLINE int first_block(const struct pass *pass, const struct huffman *table, struct bits *bits, int16_t *block,
                       uint64_t *nonzero) {
    const unsigned last = (unsigned)pass->band.last;
    const int one = 1 << pass->band.low;
    for (unsigned place = pass->band.first ? (unsigned)pass->band.first - 1 : 0;;) {
        refill(bits);
        for (int step = 0; step < 56 / FAST; step++) {
            uint32_t entry = table->fast[bits->buffer >> (64 - FAST)];
            unsigned first = place + (entry >> FIRST & 31), second = first + (entry >> SECOND & 63);
            if (second >= last) goto special;
            take(bits, entry);
            int a = (int32_t)entry >> VALUE, b = (int32_t)(entry << (26 - OTHER)) >> 26;
            block[NATURAL[second]] = (int16_t)(b * one);
            block[NATURAL[first]] = (int16_t)(a * one);
            *nonzero |= (uint64_t)(a != 0) << (BLOCK - 1 - first) | (uint64_t)(b != 0) << (BLOCK - 1 - second);
            if (entry & ENDS) return 1;
            place = second;
        }
        continue;
    special:
        refill(bits);
        uint32_t entry = find_code(table, bits->buffer);
        if (!entry) return -1;
        int value = value_after(entry, bits->buffer);
        take(bits, entry);
        if (entry & ENDS) return (int)take_run(pass, bits, entry);
        place += entry >> FIRST & 31;
        if (place > last) return -1;
        block[NATURAL[place]] = (int16_t)(value * one);
        if (value) *nonzero |= place_bit(place);
        if (place == last) return 0;
    }
}

static int first_ac(struct pass *pass, struct component *component, size_t block, int count) {
    struct bits bits = pass->scan->bits; /* in registers */
    for (const size_t end = block + (size_t)count; block < end;) {
        if (pass->run) {
            size_t passed = pass->run < end - block ? pass->run : end - block;
            pass->run -= (uint32_t)passed;
            block += passed;
            continue;
        }
        uint64_t nonzero = component->nonzero[block];
        int run = first_block(pass, component->ac_table, &bits, component->coefficients[block], &nonzero);
        if (run < 0 || bits.next > pass->scan->limit) return TFPIPE_DAMAGED;
        component->nonzero[block++] = nonzero;
        if (run) pass->run = (uint32_t)run - 1;
    }
    pass->scan->bits = bits;
    return 0;
}

enum { CODE = 16 + 1 }; /* bits that are taken of a refill's 56, at most, before those of coefficients that are known */

/* Takes a bit for each place of `at`, from the first to the last, and returns those of set bits. */
INLINE uint64_t take_corrections(struct bits *bits, uint64_t at, int bmi) {
    uint32_t n = (uint32_t)__builtin_popcountll(at);
    uint64_t ones = 0;
    if (UNLIKELY(n > 56 - CODE)) {
        refill(bits);
        for (; n > 56; n--) {
            uint64_t top = place_bit((unsigned)__builtin_clzll(at));
            if (take_bits(bits, 1)) ones |= top;
            at -= top;
        }
        refill(bits);
    }
    return ones | deposit(take_bits(bits, n), at, bmi);
}

/* Refines a block's AC coefficients, with a run before it that is left, or codes of its own; returns as first_block. */
INLINE int refine_block(const struct pass *pass, const struct component *component, struct bits *bits, size_t number,
                        int bmi) {
    const struct huffman *table = component->ac_table;
    const int low = 1 << pass->band.low;
    int run = (int)pass->run;
    uint64_t rest = places(pass->band.first, pass->band.last); /* places that are left */
    const uint64_t known = component->nonzero[number] & rest;
    uint64_t ones = 0, new = 0, negative = 0;
    while (!run && rest) {
        refill(bits);
        uint32_t entry = find_code(table, bits->buffer);
        if (UNLIKELY(!entry || entry >> VALUE > 1)) return -1;
        if (entry & ENDS) {
            take(bits, entry);
            run = (int)take_run(pass, bits, entry);
            refill(bits);
            break;
        }
        uint64_t zeros = rest & ~known, sign = bits->buffer >> (64 - (entry & 63)) & 1; /* set: it is positive */
        uint32_t left = (uint32_t)__builtin_popcountll(zeros), run_of_zeros = entry >> FIRST & 31;
        if (UNLIKELY(run_of_zeros > left)) return -1;
        uint64_t target = deposit(1ull << (left - run_of_zeros), zeros, bmi);
        take(bits, entry);
        ones |= take_corrections(bits, known & rest & -target, bmi);
        new |= target & -(uint64_t)(entry >> VALUE);
        negative |= target & (sign - 1);
        rest &= target - 1;
    }
    if (run) {
        if (pass->run) refill(bits);
        ones |= take_corrections(bits, known & rest, bmi);
    }
    int16_t *block = component->coefficients[number];
    component->nonzero[number] |= new;
    for (uint64_t changed = ones | new; changed; changed &= changed - 1) {
        int bit = __builtin_ctzll(changed);
        int16_t *coefficient = block + NATURAL[BLOCK - 1 - bit];
        int below = *coefficient >> 15 | -(int)(negative >> bit & 1); /* -1: away from zero is down */
        *coefficient = (int16_t)(*coefficient + ((low ^ below) - below));
    }
    return run;
}

INLINE int refine_ac(struct pass *pass, struct component *component, size_t block, int count, int bmi) {
    struct bits bits = pass->scan->bits; /* in registers */
    for (; count > 0; count--, block++) {
        int run = refine_block(pass, component, &bits, block, bmi);
        if (run < 0 || bits.next > pass->scan->limit) return TFPIPE_DAMAGED;
        pass->run = run ? (uint32_t)run - 1 : 0;
    }
    pass->scan->bits = bits;
    return 0;
}

static int refine_plain(struct pass *pass, struct component *component, size_t block, int count) {
    return refine_ac(pass, component, block, count, 0);
}

#if HAVE_AVX2
AVX2 static int refine_avx2(struct pass *pass, struct component *component, size_t block, int count) {
    return refine_ac(pass, component, block, count, 1);
}
#else
#define refine_avx2 refine_plain
#endif

static int sequential(struct pass *pass, struct component *component, size_t block, int count) {
    int status = 0;
    for (; !status && count > 0; count--, block++) {
        status = first_dc(pass, component, block, 1);
        if (!status) status = first_ac(pass, component, block, 1);
    }
    return status;
}

decode_band *choose_band(const struct pass *pass) {
    if (!pass->progressive) return sequential;
    if (!pass->band.first) return pass->band.high ? refine_dc : first_dc;
    return !pass->band.high ? first_ac : simd_level() ? refine_avx2 : refine_plain;
}
