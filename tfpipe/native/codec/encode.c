/* Writes stored coefficients as a sequential JPEG, with the Huffman tables that ITU-T T.81 has for examples (Tables K.3
 * to K.6): other bytes than those of the file that they were of, and the same coefficients. */
#include "scan.h"

/* Numbers of codes by their length, from 1 to 16 bits, and their symbols: DC and AC of luma, then of chroma. */
static const uint8_t COUNTS[4][16] = {
    {0, 1, 5, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0},
    {0, 2, 1, 3, 3, 2, 4, 3, 5, 5, 4, 4, 0, 0, 1, 0x7d},
    {0, 3, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0},
    {0, 2, 1, 2, 4, 4, 3, 4, 7, 5, 4, 4, 0, 1, 2, 0x77},
};
static const uint8_t DC_SYMBOLS[12] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11};
static const uint8_t LUMA_AC[162] = {
    0x01, 0x02, 0x03, 0x00, 0x04, 0x11, 0x05, 0x12, 0x21, 0x31, 0x41, 0x06, 0x13, 0x51, 0x61, 0x07, 0x22, 0x71,
    0x14, 0x32, 0x81, 0x91, 0xa1, 0x08, 0x23, 0x42, 0xb1, 0xc1, 0x15, 0x52, 0xd1, 0xf0, 0x24, 0x33, 0x62, 0x72,
    0x82, 0x09, 0x0a, 0x16, 0x17, 0x18, 0x19, 0x1a, 0x25, 0x26, 0x27, 0x28, 0x29, 0x2a, 0x34, 0x35, 0x36, 0x37,
    0x38, 0x39, 0x3a, 0x43, 0x44, 0x45, 0x46, 0x47, 0x48, 0x49, 0x4a, 0x53, 0x54, 0x55, 0x56, 0x57, 0x58, 0x59,
    0x5a, 0x63, 0x64, 0x65, 0x66, 0x67, 0x68, 0x69, 0x6a, 0x73, 0x74, 0x75, 0x76, 0x77, 0x78, 0x79, 0x7a, 0x83,
    0x84, 0x85, 0x86, 0x87, 0x88, 0x89, 0x8a, 0x92, 0x93, 0x94, 0x95, 0x96, 0x97, 0x98, 0x99, 0x9a, 0xa2, 0xa3,
    0xa4, 0xa5, 0xa6, 0xa7, 0xa8, 0xa9, 0xaa, 0xb2, 0xb3, 0xb4, 0xb5, 0xb6, 0xb7, 0xb8, 0xb9, 0xba, 0xc2, 0xc3,
    0xc4, 0xc5, 0xc6, 0xc7, 0xc8, 0xc9, 0xca, 0xd2, 0xd3, 0xd4, 0xd5, 0xd6, 0xd7, 0xd8, 0xd9, 0xda, 0xe1, 0xe2,
    0xe3, 0xe4, 0xe5, 0xe6, 0xe7, 0xe8, 0xe9, 0xea, 0xf1, 0xf2, 0xf3, 0xf4, 0xf5, 0xf6, 0xf7, 0xf8, 0xf9, 0xfa,
};
static const uint8_t CHROMA_AC[162] = {
    0x00, 0x01, 0x02, 0x03, 0x11, 0x04, 0x05, 0x21, 0x31, 0x06, 0x12, 0x41, 0x51, 0x07, 0x61, 0x71, 0x13, 0x22,
    0x32, 0x81, 0x08, 0x14, 0x42, 0x91, 0xa1, 0xb1, 0xc1, 0x09, 0x23, 0x33, 0x52, 0xf0, 0x15, 0x62, 0x72, 0xd1,
    0x0a, 0x16, 0x24, 0x34, 0xe1, 0x25, 0xf1, 0x17, 0x18, 0x19, 0x1a, 0x26, 0x27, 0x28, 0x29, 0x2a, 0x35, 0x36,
    0x37, 0x38, 0x39, 0x3a, 0x43, 0x44, 0x45, 0x46, 0x47, 0x48, 0x49, 0x4a, 0x53, 0x54, 0x55, 0x56, 0x57, 0x58,
    0x59, 0x5a, 0x63, 0x64, 0x65, 0x66, 0x67, 0x68, 0x69, 0x6a, 0x73, 0x74, 0x75, 0x76, 0x77, 0x78, 0x79, 0x7a,
    0x82, 0x83, 0x84, 0x85, 0x86, 0x87, 0x88, 0x89, 0x8a, 0x92, 0x93, 0x94, 0x95, 0x96, 0x97, 0x98, 0x99, 0x9a,
    0xa2, 0xa3, 0xa4, 0xa5, 0xa6, 0xa7, 0xa8, 0xa9, 0xaa, 0xb2, 0xb3, 0xb4, 0xb5, 0xb6, 0xb7, 0xb8, 0xb9, 0xba,
    0xc2, 0xc3, 0xc4, 0xc5, 0xc6, 0xc7, 0xc8, 0xc9, 0xca, 0xd2, 0xd3, 0xd4, 0xd5, 0xd6, 0xd7, 0xd8, 0xd9, 0xda,
    0xe2, 0xe3, 0xe4, 0xe5, 0xe6, 0xe7, 0xe8, 0xe9, 0xea, 0xf2, 0xf3, 0xf4, 0xf5, 0xf6, 0xf7, 0xf8, 0xf9, 0xfa,
};
static const uint8_t *const SYMBOLS[4] = {DC_SYMBOLS, LUMA_AC, DC_SYMBOLS, CHROMA_AC};

/* The code of each symbol. */
struct codes {
    uint16_t code[256];
    uint8_t length[256]; /* 0: the symbol has none */
};

/* What is written, and how much of it fits. */
struct output {
    uint8_t *to;
    int64_t size, room;
    uint64_t bits; /* the lowest `count` are still to be written */
    int count;
};

static void put(struct output *out, int byte) {
    if (out->size < out->room) out->to[out->size] = (uint8_t)byte;
    out->size++;
}

static void put_u16(struct output *out, int number) {
    put(out, number >> 8);
    put(out, number & 255);
}

static void put_bits(struct output *out, unsigned bits, int count) {
    out->bits = out->bits << count | (bits & ((1u << count) - 1));
    out->count += count;
    for (; out->count >= 8; out->count -= 8) {
        int byte = (int)(out->bits >> (out->count - 8) & 255);
        put(out, byte);
        if (byte == 255) put(out, 0); /* byte stuffing */
    }
}

/* Annex C, Figures C.1 and C.2. */
static void make_codes(struct codes *codes, int table) {
    *codes = (struct codes){0};
    int code = 0, index = 0;
    for (int length = 1; length <= 16; length++, code <<= 1) {
        for (int i = 0; i < COUNTS[table][length - 1]; i++) {
            int symbol = SYMBOLS[table][index++];
            codes->code[symbol] = (uint16_t)code++;
            codes->length[symbol] = (uint8_t)length;
        }
    }
}

static int size_of(int value) { return value ? 32 - __builtin_clz((unsigned)(value < 0 ? -value : value)) : 0; }

/* Puts a code, and its value's bits after it. Returns 0 or TFPIPE_DAMAGED. */
static int put_value(struct output *out, const struct codes *codes, int run, int value) {
    int size = size_of(value), symbol = run << 4 | size;
    if (size > 15 || !codes->length[symbol]) return TFPIPE_DAMAGED;
    put_bits(out, codes->code[symbol], codes->length[symbol]);
    put_bits(out, (unsigned)(value < 0 ? value - 1 : value), size);
    return 0;
}

/* F.1.2: the difference of DC, and the runs and values of AC. Returns 0 or TFPIPE_DAMAGED. */
static int put_block(struct output *out, const struct codes codes[2], const int16_t *coefficients, int before) {
    int run = 0, status = put_value(out, codes, 0, coefficients[0] - before);
    for (int place = 1; place < BLOCK && !status; place++) {
        int value = coefficients[NATURAL[place]];
        if (!value) {
            run++;
            continue;
        }
        for (; run > 15; run -= 16) put_bits(out, codes[1].code[0xf0], codes[1].length[0xf0]);
        status = put_value(out, codes + 1, run, value);
        run = 0;
    }
    if (run) put_bits(out, codes[1].code[0], codes[1].length[0]);
    return status;
}

/* B.2: everything up to the coded data. */
static void put_header(struct output *out, const struct frame *frame) {
    static const uint8_t JFIF[18] = {0xff, 0xe0, 0, 16, 'J', 'F', 'I', 'F', 0, 1, 1, 0, 0, 1, 0, 1, 0, 0};
    put_u16(out, 0xffd8);
    for (size_t i = 0; i < sizeof JFIF; i++) put(out, JFIF[i]);
    int n = frame->components;
    for (int c = 0; c < n; c++) { /* a table for each component: all of 16 bits */
        put_u16(out, 0xffdb);
        put_u16(out, 3 + 2 * BLOCK);
        put(out, 16 | c);
        for (int i = 0; i < BLOCK; i++) put_u16(out, frame->component[c].factors[NATURAL[i]]);
    }
    put_u16(out, 0xffc1); /* extended: tables of 16 bits are not baseline */
    put_u16(out, 8 + 3 * n);
    put(out, 8);
    put_u16(out, frame->height);
    put_u16(out, frame->width);
    put(out, n);
    for (int c = 0; c < n; c++) {
        put(out, c + 1);
        put(out, frame->component[c].h << 4 | frame->component[c].v);
        put(out, c);
    }
    for (int table = 0; table < (n > 1 ? 4 : 2); table++) {
        const int symbols = (int)(table & 1 ? sizeof LUMA_AC : sizeof DC_SYMBOLS);
        put_u16(out, 0xffc4);
        put_u16(out, 19 + symbols);
        put(out, (table & 1) << 4 | table >> 1);
        for (int i = 0; i < 16; i++) put(out, COUNTS[table][i]);
        for (int i = 0; i < symbols; i++) put(out, SYMBOLS[table][i]);
    }
    put_u16(out, 0xffda);
    put_u16(out, 6 + 2 * n);
    put(out, n);
    for (int c = 0; c < n; c++) {
        put(out, c + 1);
        put(out, c ? 0x11 : 0);
    }
    put(out, 0);
    put(out, 63);
    put(out, 0);
}

int64_t tfpipe_unstore(tfpipe_scratch *scratch, const uint8_t *bytes, size_t length, uint8_t *to, int64_t room) {
    struct frame frame;
    struct scan scan = {.frame = &frame};
    if (open_stored(scratch, &scan, bytes, length)) return 0;
    set_scan(&scan, scratch->blocks);
    struct output out = {.to = to, .room = room};
    struct codes codes[4];
    for (int table = 0; table < 4; table++) make_codes(codes + table, table);
    put_header(&out, &frame);
    int most = BLOCKS / scan.mcu_blocks, before[CODED] = {0};
    for (int row = 0; row < scan.mcu_rows; row++) {
        for (int column = 0, n; column < scan.mcus; column += n) {
            n = scan.mcus - column < most ? scan.mcus - column : most;
            if (read_blocks(&scan, row, column, n)) return 0;
            const struct block *block = scan.blocks;
            for (int i = 0; i < n; i++) {
                for (int c = 0; c < frame.components; c++) {
                    for (int k = frame.component[c].h * frame.component[c].v; k > 0; k--, block++) {
                        if (put_block(&out, codes + (c ? 2 : 0), block->coefficients, before[c])) return 0;
                        before[c] = block->coefficients[0];
                    }
                }
            }
        }
    }
    put_bits(&out, 127, 7); /* ones up to the end of the last byte */
    put_u16(&out, 0xffd9);
    return out.size;
}
