/* Stored coefficients: what a JPEG codes, without the codes, so that the blocks of any place are read by themselves.
 *
 * Bytes, numbers with the lowest first:
 *
 *      0   uint8 [4]         MAGIC
 *      4   uint8 [4]         FORMAT, zeros
 *      8   uint8 [16]        the JPEG's frame header, from the precision on (ITU-T T.81, B.2.2), zeros
 *     24   uint16 [4][64]    its quantisation tables, in natural order
 *    536   uint32 [rows]     where each row of blocks begins in the data: for each row of MCUs, those of each component
 *          data              rows of blocks
 *          uint8 [PADDING]   zeros, so that a block that runs on stays in memory
 *
 * A block has 1 byte of its length; 2 bytes of its DC, in 12 bits, times 16, plus the number of the bytes that follow: a
 * mask of the coefficients in zigzag order, from the first AC on, without zeros at its end; for each bit that is set, 4
 * bits of the coefficient in two's complement, the lower half of a byte first. -8 stands for a value among the bytes after
 * these, and there -128 for one among the 2 bytes each after those.
 *
 * Of 400 ImageNet files this takes 1.37 of their bytes; with a byte for each coefficient it would be 1.75. */
#include "../kernels.h"
#include "spread.h"

enum { FORMAT = 1, FRAME = 8, TABLES_AT = 24, OFFSETS = 536, PADDING = 256, HEAD = 3, FRAME_BYTES = 6 };
enum { MOST_BYTES = HEAD + 8 + 32 + 3 * (BLOCK - 1), ESCAPE = -8, WIDE = -128, LOWEST_DC = -2048, HIGHEST_DC = 2047 };
enum { MOST_AC = 1023, LOWEST_CHANGE = -2047 }; /* what a JPEG can code: T.81, Tables F.1 and F.2 */
enum { MOST_DC = INT16_MAX >> 2 };              /* times its factor: a block of DC alone is as any other, see idct.c */
_Static_assert(MOST_BYTES <= UINT8_MAX && MOST_BYTES + 8 <= PADDING, "a block is longer than its length can say");
static const uint8_t MAGIC[4] = {0, 't', 'p', 'c'};

int is_stored(const uint8_t *bytes, size_t length) {
    return length > OFFSETS + PADDING && !memcmp(bytes, MAGIC, sizeof MAGIC);
}

static size_t load_u32(const uint8_t *at) {
    uint32_t number;
    memcpy(&number, at, 4);
    return number;
}

const uint8_t *stored_frame(const uint8_t *bytes) { return bytes + FRAME; }

static int rows_of(const struct frame *frame) { /* rows of blocks of an MCU */
    int rows = 0;
    for (int c = 0; c < frame->components; c++) rows += frame->component[c].v;
    return rows;
}

int open_stored(struct tfpipe_scratch *scratch, struct scan *scan, const uint8_t *bytes, size_t length) {
    struct frame *frame = scan->frame;
    memset(frame, 0, sizeof *frame);
    if (!is_stored(bytes, length) || bytes[4] != FORMAT) return TFPIPE_REFUSED;
    int components = bytes[FRAME + FRAME_BYTES - 1];
    if (components > CODED) return TFPIPE_DAMAGED;
    int status = read_frame(frame, bytes + FRAME, bytes + FRAME + FRAME_BYTES + 3 * components);
    if (status) return TFPIPE_DAMAGED;
    memcpy(scratch->quant, bytes + TABLES_AT, sizeof scratch->quant);
    for (int c = 0; c < components; c++) frame->component[c].factors = scratch->quant[frame->component[c].quant];
    size_t mcu_rows = (size_t)((frame->height + 8 * frame->vmax - 1) / (8 * frame->vmax));
    size_t rows = mcu_rows * (size_t)rows_of(frame);
    if ((length - OFFSETS - PADDING) / 4 < rows) return TFPIPE_DAMAGED;
    scan->stored = (struct stored){bytes + OFFSETS, bytes + OFFSETS + 4 * rows, bytes + length - PADDING};
    return 0;
}

/* Where rows of blocks are read on: one of each component's rows in an MCU. */
struct cursors {
    const uint8_t *at[MCU_BLOCKS];
};

/* Returns whether there is no block at a place. */
INLINE int is_beyond(const struct stored *stored, const uint8_t *at) { return at > stored->limit || *at < HEAD; }

/* Sets the cursors to the MCU `from` of a row. Returns 0 or TFPIPE_DAMAGED. */
static int seek(const struct scan *scan, int row, int from, struct cursors *cursors) {
    const struct frame *frame = scan->frame;
    const struct stored *stored = &scan->stored;
    const uint8_t *offset = stored->offsets + 4 * (size_t)row * (size_t)rows_of(frame);
    const uint8_t **at = cursors->at;
    for (int c = 0; c < frame->components; c++) {
        for (int v = 0; v < frame->component[c].v; v++, offset += 4, at++) {
            if (load_u32(offset) > (size_t)(stored->limit - stored->data)) return TFPIPE_DAMAGED;
            *at = stored->data + load_u32(offset);
            for (int i = from * frame->component[c].h; i > 0; i--) {
                if (is_beyond(stored, *at)) return TFPIPE_DAMAGED;
                *at += **at;
            }
        }
    }
    return 0;
}

/* What is at the beginning of a block. */
struct head {
    int16_t dc;
    uint64_t mask; /* of the places with a coefficient, in zigzag order; of DC's, 0 */
    const uint8_t *nibbles, *escaped;
};

INLINE struct head read_head(const uint8_t *at, struct block *block) {
    uint16_t number;
    uint64_t mask;
    memcpy(&number, at + 1, 2);
    memcpy(&mask, at + HEAD, 8);
    int bytes = number & 15;
    if (bytes < 8) mask &= (1ull << 8 * bytes) - 1;
    mask <<= 1;
    block->end = (uint32_t)(64 - __builtin_clzll(mask | 1));
    const uint8_t *nibbles = at + HEAD + (bytes < 8 ? bytes : 8);
    return (struct head){(int16_t)((int16_t)number >> 4), mask, nibbles,
                         nibbles + (__builtin_popcountll(mask) + 1) / 2};
}

/* Puts the values that take two bytes to their places: few blocks have any. */
INLINE void read_wide(const uint8_t *at, uint64_t places, struct block *block) {
    for (; places; places &= places - 1, at += 2) memcpy(block->coefficients + NATURAL[__builtin_ctzll(places)], at, 2);
}

/* Reads a block. Whatever its bytes are, it reads at most MOST_BYTES and writes within the block. */
typedef void read_block(const uint8_t *at, struct block *block);

INLINE void read_plain(const uint8_t *at, struct block *block) {
    clear_block(block);
    struct head head = read_head(at, block);
    block->coefficients[0] = head.dc;
    uint64_t wide = 0;
    const uint8_t *escaped = head.escaped;
    int i = 0;
    for (uint64_t mask = head.mask; mask; mask &= mask - 1, i++) {
        int value = ((head.nibbles[i / 2] >> 4 * (i & 1) & 15) ^ 8) - 8;
        if (value == ESCAPE) {
            value = (int8_t)*escaped++;
            if (value == WIDE) wide |= mask & -mask;
        }
        block->coefficients[NATURAL[__builtin_ctzll(mask)]] = (int16_t)value;
    }
    read_wide(escaped, wide, block);
}

#if HAVE_AVX2
AVX2 INLINE __m128i load_8(const uint8_t *at) { return _mm_loadl_epi64((const __m128i *)(const void *)at); }

/* Returns how many of a mask's bits are below bit 8 k. */
AVX2 INLINE unsigned below(uint64_t mask, int k) {
    return (unsigned)__builtin_popcountll(mask & ((1ull << 8 * k) - 1));
}

/* Without branches but for escapes: a block's number of coefficients is as unpredictable as the data. */
AVX2 INLINE void read_avx2(const uint8_t *at, struct block *block) {
    struct head head = read_head(at, block);
    const __m128i low = _mm_set1_epi8(15);
    const __m256i eight = _mm256_set1_epi8(8);
    __m128i parts[8];
    for (int k = 0; k < 8; k++) {
        unsigned before = below(head.mask, k);
        __m128i bytes = load_8(head.nibbles + before / 2);
        __m128i nibbles = _mm_unpacklo_epi8(_mm_and_si128(bytes, low), _mm_and_si128(_mm_srli_epi16(bytes, 4), low));
        parts[k] = _mm_shuffle_epi8(nibbles, spread(head.mask >> 8 * k, (int)(before & 1)));
    }
    __m256i values[2];
    uint64_t escapes = 0, wide = 0;
    for (int half = 0; half < 2; half++) {
        const __m128i *part = parts + 4 * half;
        __m256i all = _mm256_setr_m128i(_mm_unpacklo_epi64(part[0], part[1]), _mm_unpacklo_epi64(part[2], part[3]));
        escapes |= (uint64_t)(uint32_t)_mm256_movemask_epi8(_mm256_cmpeq_epi8(all, eight)) << 32 * half;
        values[half] = _mm256_sub_epi8(_mm256_xor_si256(all, eight), eight);
    }
    if (escapes) {
        for (int half = 0; half < 2; half++) {
            for (int k = 0; k < 4; k++)
                parts[k] = _mm_shuffle_epi8(load_8(head.escaped + below(escapes, 4 * half + k)),
                                            spread(escapes >> 8 * (4 * half + k), 0));
            __m256i all =
                _mm256_setr_m128i(_mm_unpacklo_epi64(parts[0], parts[1]), _mm_unpacklo_epi64(parts[2], parts[3]));
            __m256i is_escape = _mm256_cmpeq_epi8(values[half], _mm256_set1_epi8(ESCAPE));
            values[half] = _mm256_blendv_epi8(values[half], all, is_escape);
            uint32_t widest =
                (uint32_t)_mm256_movemask_epi8(_mm256_cmpeq_epi8(values[half], _mm256_set1_epi8((char)WIDE)));
            wide |= (uint64_t)widest << 32 * half;
        }
    }
    const __m256i zigzag[4] = {
        _mm256_permute2x128_si256(values[0], values[0], 0x00), _mm256_permute2x128_si256(values[0], values[0], 0x11),
        _mm256_permute2x128_si256(values[1], values[1], 0x00), _mm256_permute2x128_si256(values[1], values[1], 0x11)};
    __m256i *out = (__m256i *)(void *)block->coefficients;
    for (int half = 0; half < 2; half++) {
        __m256i bytes = dezigzag(zigzag, half);
        out[2 * half] = _mm256_cvtepi8_epi16(_mm256_castsi256_si128(bytes));
        out[2 * half + 1] = _mm256_cvtepi8_epi16(_mm256_extracti128_si256(bytes, 1));
    }
    block->coefficients[0] = head.dc;
    if (UNLIKELY(wide != 0)) read_wide(head.escaped + __builtin_popcountll(escapes), wide, block);
}
#endif

/* Reads `count` MCUs' blocks, one MCU after the other. Returns 0 or TFPIPE_DAMAGED. */
INLINE int read_some(struct scan *scan, struct cursors *cursors, int count, read_block *read) {
    const struct frame *frame = scan->frame;
    struct block *block = scan->blocks;
    for (int i = 0; i < count; i++) {
        const uint8_t **at = cursors->at;
        for (int c = 0; c < frame->components; c++) {
            for (int v = 0; v < frame->component[c].v; v++, at++) {
                for (int h = 0; h < frame->component[c].h; h++) {
                    if (UNLIKELY(is_beyond(&scan->stored, *at))) return TFPIPE_DAMAGED;
                    read(*at, block++);
                    *at += **at;
                }
            }
        }
    }
    return 0;
}

int read_blocks(struct scan *scan, int row, int from, int count) {
    struct cursors cursors;
    int status = seek(scan, row, from, &cursors);
    return status ? status : read_some(scan, &cursors, count, read_plain);
}

INLINE int stored_any(struct scan *scan, int from, int to, read_block *read, idct_pair *idct) {
    const struct frame *frame = scan->frame;
    struct cursors cursors;
    int status = seek(scan, scan->row, from, &cursors), most = BLOCKS / scan->mcu_blocks & ~1; /* even: pairs */
    for (int n; !status && from < to; from += n, scan->column += n) {
        n = to - from < most ? to - from : most;
        if ((status = read_some(scan, &cursors, n, read))) return status;
        const struct block *blocks = scan->blocks;
        for (int c = 0; c < scan->transformed; c++) {
            transform(scan, frame->component + c, blocks, scan->column, n, idct);
            blocks += frame->component[c].h * frame->component[c].v;
        }
    }
    return status;
}

int stored_plain(struct scan *scan, int from, int to) { return stored_any(scan, from, to, read_plain, idct_plain); }

#if HAVE_AVX2
AVX2 int stored_avx2(struct scan *scan, int from, int to) { return stored_any(scan, from, to, read_avx2, idct_avx2); }
#elif HAVE_NEON
int stored_neon(struct scan *scan, int from, int to) { return stored_any(scan, from, to, read_plain, idct_neon); }
#endif

/* Writes a block; returns the number of its bytes, 0 if a sequential JPEG could not code its AC. */
static size_t write_block(uint8_t *to, const int16_t *coefficients) {
    uint64_t mask = 0;
    for (int place = 1; place < BLOCK; place++) mask |= (uint64_t)(coefficients[NATURAL[place]] != 0) << (place - 1);
    int bytes = mask ? 8 - __builtin_clzll(mask) / 8 : 0, count = __builtin_popcountll(mask), wide = 0;
    uint16_t head = (uint16_t)((unsigned)coefficients[0] << 4 | (unsigned)bytes);
    int16_t widest[BLOCK];
    memcpy(to + 1, &head, 2);
    memcpy(to + HEAD, &mask, 8);
    uint8_t *nibbles = to + HEAD + bytes, *escaped = nibbles + (count + 1) / 2;
    memset(nibbles, 0, (size_t)(escaped - nibbles));
    for (int i = 0; mask; i++, mask &= mask - 1) {
        int16_t value = coefficients[NATURAL[1 + __builtin_ctzll(mask)]];
        if (value < -MOST_AC || value > MOST_AC) return 0;
        int small = value > ESCAPE && value<-ESCAPE, in_byte = value> WIDE && value <= INT8_MAX;
        nibbles[i / 2] |= (uint8_t)(((small ? value : ESCAPE) & 15) << 4 * (i & 1));
        if (small) continue;
        *escaped++ = (uint8_t)(in_byte ? value : WIDE);
        if (!in_byte) widest[wide++] = value;
    }
    memcpy(escaped, widest, 2 * (size_t)wide);
    escaped += 2 * wide;
    to[0] = (uint8_t)(escaped - to);
    return (size_t)(escaped - to);
}

/* Rows of blocks of a row of MCUs, on their way into the data. */
struct rows {
    uint8_t *memory, *end[MCU_BLOCKS];
    size_t pitch;
    int before[CODED]; /* DC of each component's last block */
};

/* Decodes MCUs from the scan's position on, at most `count`. Returns how many, or 0. */
static int decode_some(struct scan *scan, int count) {
    int most = BLOCKS / scan->mcu_blocks, interval = scan->frame->interval;
    int left = interval ? interval - (int)(scan->position % (size_t)interval) : count;
    if (left < most) most = left; /* each run's blocks begin at the first */
    if (count < most) most = count;
    return advance_to(scan, tfpipe_kernels()->decode, scan->position + (size_t)most, 1) ? 0 : most;
}

/* Decodes a row of MCUs, unless all are decoded, and writes its rows of blocks. Returns 0 or TFPIPE_*. */
static int write_row(struct scan *scan, struct rows *rows, int row) {
    const struct frame *frame = scan->frame;
    for (int i = 0; i < rows_of(frame); i++) rows->end[i] = rows->memory + rows->pitch * (size_t)i;
    const struct block *block = scan->blocks;
    int ready = frame->several ? scan->mcus : 0; /* MCUs that are decoded */
    for (int mcu = 0; mcu < scan->mcus; mcu++) {
        if (mcu == ready) {
            int n = decode_some(scan, scan->mcus - mcu);
            if (!n) return TFPIPE_DAMAGED;
            ready += n;
            block = scan->blocks;
        }
        uint8_t **end = rows->end;
        for (int c = 0; c < frame->components; c++) {
            const struct component *component = frame->component + c;
            for (int v = 0; v < component->v; v++, end++) {
                size_t at = ((size_t)row * (size_t)component->v + (size_t)v) * component->across;
                for (int h = 0; h < component->h; h++) {
                    const int16_t *coefficients = frame->several
                                                      ? component->coefficients[at + (size_t)(mcu * component->h + h)]
                                                      : (block++)->coefficients;
                    int dc = coefficients[0], change = dc - rows->before[c], scaled = dc * component->factors[0];
                    if (dc < LOWEST_DC || dc > HIGHEST_DC || change < LOWEST_CHANGE || change > -LOWEST_CHANGE ||
                        scaled < -MOST_DC || scaled > MOST_DC)
                        return TFPIPE_REFUSED;
                    rows->before[c] = dc;
                    size_t size = write_block(*end, coefficients);
                    if (!size) return TFPIPE_REFUSED;
                    *end += size;
                }
            }
        }
    }
    return 0;
}

static void write_head(uint8_t *out, const struct frame *frame) {
    memset(out, 0, OFFSETS);
    memcpy(out, MAGIC, sizeof MAGIC);
    out[4] = FORMAT;
    uint8_t *at = out + FRAME;
    at[0] = 8;
    at[1] = (uint8_t)(frame->height >> 8), at[2] = (uint8_t)frame->height;
    at[3] = (uint8_t)(frame->width >> 8), at[4] = (uint8_t)frame->width;
    at[5] = (uint8_t)frame->components;
    for (int c = 0; c < frame->components; c++) {
        const struct component *component = frame->component + c;
        at[6 + 3 * c] = (uint8_t)(c + 1);
        at[7 + 3 * c] = (uint8_t)(component->h << 4 | component->v);
        at[8 + 3 * c] = (uint8_t)component->quant;
        memcpy(out + TABLES_AT + component->quant * 2 * BLOCK, component->factors, 2 * BLOCK);
    }
}

int64_t tfpipe_store(tfpipe_scratch *scratch, const uint8_t *jpeg, size_t length, uint8_t *out, int64_t room) {
    struct header header;
    struct frame frame;
    struct scan scan = {.frame = &frame};
    if (length >= MAX_BYTES || read_header(&header, scratch, jpeg, length, &frame) || frame.components > CODED)
        return 0;
    if (frame.rgb || header.orientation > 1)
        return 0; /* the bytes do not say which colours they are, nor are they turned */
    set_scan(&scan, scratch->blocks);
    if (frame.several ? read_scans(&header, &scan, scan.mcu_rows) : open_data(scratch, &scan, jpeg + length)) return 0;
    size_t in_mcu = (size_t)rows_of(&frame), count = in_mcu * (size_t)scan.mcu_rows, size = 0;
    struct rows rows = {.pitch = (size_t)scan.mcus * 2 * MOST_BYTES + 8};
    rows.memory = buffer_reserve(&scratch->places, rows.pitch * in_mcu);
    if (!rows.memory) return -1;
    size_t start = OFFSETS + 4 * count;
    for (int row = 0; row < scan.mcu_rows; row++) {
        if (write_row(&scan, &rows, row)) return 0;
        for (size_t i = 0; i < in_mcu; i++) {
            const uint8_t *from = rows.memory + rows.pitch * i;
            uint32_t offset = (uint32_t)size;
            size_t bytes = (size_t)(rows.end[i] - from);
            if (size + bytes > UINT32_MAX / 2) return 0;
            if ((int64_t)(start + size + bytes + PADDING) <= room) {
                memcpy(out + OFFSETS + 4 * ((size_t)row * in_mcu + i), &offset, 4);
                memcpy(out + start + size, from, bytes);
            }
            size += bytes;
        }
    }
    int64_t total = (int64_t)(start + size + PADDING);
    if (total > room) return total;
    write_head(out, &frame);
    memset(out + start + size, 0, PADDING);
    return total;
}
