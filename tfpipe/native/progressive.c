/* Decodes the blocks of a scan of several into their coefficients: ITU-T T.81, G.1.2 and G.2, and for a sequential scan
 * F.2.2.
 *
 * Which coefficients are not zero is kept in a word for each block, so that a scan that refines them need not look for
 * them: most are zero. */
#include "core.h"

/* A block takes at most these bits, after which an overrun is noticed. */
_Static_assert(DC_BITS + (BLOCK - 1) * (AC_BITS + 1) + 16 + 14 <= 8 * (SLACK - LIMIT - 7 - 8),
               "a block that runs over the coded data reads beyond SLACK");
_Static_assert(16 + 14 <= 56, "a code of a run of ends does not fit in the buffer");

/* Returns the places [first, last] as bits. */
static uint64_t places(int first, int last) { return ~0ull >> (BLOCK - 1 - last) & ~0ull << first; }

/* Takes `count` bits, up to 14, after a refill. */
INLINE uint32_t take_bits(struct bits *bits, uint32_t count) {
    uint32_t value = (uint32_t)(bits->buffer >> 1 >> (63 - count));
    take(bits, count);
    return value;
}

/* Takes what comes after the code of a run of ends, and returns its blocks (Figure G.3). A sequential scan has no runs;
 * libjpeg takes all of these codes for an end there. */
INLINE uint32_t take_run(const struct pass *pass, struct bits *bits, uint32_t entry) {
    uint32_t extra = pass->progressive ? entry >> OTHER & 63 : 0; /* at most 14 */
    return (1u << extra) + take_bits(bits, extra);
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
            *nonzero |= (uint64_t)(a != 0) << first | (uint64_t)(b != 0) << second;
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
        *nonzero |= (uint64_t)(value != 0) << place;
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

/* Adds a bit to each coefficient at `at`: away from zero, if it is set. */
INLINE void correct(struct bits *bits, int16_t *block, uint64_t at, int one) {
    while (at) {
        refill(bits);
        uint64_t buffer = bits->buffer;
        uint32_t n = 0;
        for (; at && n < 56; n++, at &= at - 1, buffer <<= 1) {
            int16_t *coefficient = block + NATURAL[__builtin_ctzll(at)];
            int sign = *coefficient >> 15, set = -(int)(buffer >> 63);
            *coefficient = (int16_t)(*coefficient + (((one ^ sign) - sign) & set));
        }
        take(bits, n);
    }
}

/* Refines a block's AC coefficients; returns as first_block. */
INLINE int refine_block(const struct pass *pass, const struct huffman *table, struct bits *bits, int16_t *block,
                        uint64_t *nonzero) {
    const int one = 1 << pass->band.low;
    uint64_t rest = places(pass->band.first, pass->band.last); /* places that are left */
    const uint64_t known = *nonzero & rest;
    while (rest) {
        refill(bits);
        uint32_t entry = find_code(table, bits->buffer);
        if (!entry || entry >> VALUE > 1) return -1;
        int value = value_after(entry, bits->buffer);
        take(bits, entry);
        if (entry & ENDS) {
            int run = (int)take_run(pass, bits, entry);
            correct(bits, block, known & rest, one);
            return run;
        }
        uint64_t zeros = rest & ~known;
        for (uint32_t run = entry >> FIRST & 31; run > 1; run--) zeros &= zeros - 1;
        if (!zeros) return -1;
        uint64_t target = zeros & -zeros;
        correct(bits, block, known & rest & (target - 1), one);
        if (value) block[NATURAL[__builtin_ctzll(target)]] = (int16_t)(value * one), *nonzero |= target;
        rest &= -target << 1;
    }
    return 0;
}

static int refine_ac(struct pass *pass, struct component *component, size_t block, int count) {
    struct bits bits = pass->scan->bits; /* in registers */
    const uint64_t band = places(pass->band.first, pass->band.last);
    for (; count > 0; count--, block++) {
        int16_t *coefficients = component->coefficients[block];
        if (pass->run) {
            pass->run--;
            correct(&bits, coefficients, component->nonzero[block] & band, 1 << pass->band.low);
        } else {
            uint64_t nonzero = component->nonzero[block];
            int run = refine_block(pass, component->ac_table, &bits, coefficients, &nonzero);
            if (run < 0) return TFPIPE_DAMAGED;
            component->nonzero[block] = nonzero;
            if (run) pass->run = (uint32_t)run - 1;
        }
        if (bits.next > pass->scan->limit) return TFPIPE_DAMAGED;
    }
    pass->scan->bits = bits;
    return 0;
}

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
    if (pass->band.first) return pass->band.high ? refine_ac : first_ac;
    return pass->band.high ? refine_dc : first_dc;
}
