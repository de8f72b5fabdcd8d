/* Entry points: where in a JPEG's coded data MCUs begin, and the values of DC before them, which code differences only
 * (ITU-T T.81, F.1.1.5.1). A decode that starts at one need not parse the codes before it.
 *
 * Bytes, numbers with the lowest first:
 *
 *      0   uint64      hash of the file: of its length, and its first and last SAMPLED bytes
 *      8   uint64      hash of all bytes from here on
 *     16   uint8       FORMAT
 *     17   uint8       every: MCUs from one entry point to the next; each row's first is one
 *     18   uint8 [4]   bits of a record's fields: of the offset, and of DC of each component
 *     22   int16 [3]   lowest DC of each component
 *     28   uint32      number of records
 *     32               records, from row to row: the offset, in bits, in the coded data without stuffing; each DC above
 *                      its lowest
 *          uint8 [8]   zeros, so that the last record can be read in words
 */
#include "../kernels.h"

enum { FORMAT = 1, SAMPLED = 1024, HEAD = 32, TAIL = 8 };
enum { HASH = 0, CHECK = 8, KIND = 16, EVERY = 17, BITS = 18, LOWEST = 22, COUNT = 28 };
/* WORD_BITS: those of 8 bytes, from any of the first byte. */
enum { MOST_OFFSET_BITS = 33, MOST_DC_BITS = 16, WORD_BITS = 57 };
_Static_assert((uint64_t)MAX_BYTES * 8 < 1ull << MOST_OFFSET_BITS && MOST_OFFSET_BITS <= WORD_BITS,
               "the offset of a file's last bit cannot be read");

/* Where an MCU begins: the bit in the coded data, and the values of DC before it. */
struct place {
    uint64_t bit;
    int dc[CODED];
};

/* Multiplies by the golden ratio's bits, which changes the upper half of a number with each of its bits. */
uint64_t hash_bytes(uint64_t seed, const uint8_t *bytes, size_t size) {
    uint64_t word = 0;
    for (; size >= 8; size -= 8, bytes += 8) {
        memcpy(&word, bytes, 8);
        seed = (seed ^ word) * 0x9e3779b97f4a7c15u;
        seed ^= seed >> 32;
    }
    word = 0;
    memcpy(&word, bytes, size);
    seed = (seed ^ word) * 0x9e3779b97f4a7c15u;
    return seed ^ seed >> 32;
}

static uint64_t hash_file(const uint8_t *jpeg, size_t length) {
    size_t sampled = length < SAMPLED ? length : SAMPLED;
    return hash_bytes(hash_bytes(length, jpeg, sampled), jpeg + length - sampled, sampled);
}

static uint64_t read_bits(const uint8_t *at, size_t from, int width) {
    uint64_t word;
    memcpy(&word, at + from / 8, 8);
    return word >> from % 8 & ((1ull << width) - 1);
}

static void write_bits(uint8_t *at, size_t from, uint64_t value) {
    uint64_t word;
    memcpy(&word, at + from / 8, 8);
    word |= value << from % 8;
    memcpy(at + from / 8, &word, 8);
}

static size_t size_of(size_t count, int record_bits) { return HEAD + (count * (size_t)record_bits + 7) / 8 + TAIL; }

static int per_row(const struct scan *scan, int every) { return (scan->mcus + every - 1) / every; }

/* Returns the bits that a number takes. */
static int width_of(uint64_t most) {
    int width = 0;
    for (; most; most >>= 1) width++;
    return width;
}

void open_entries(struct scan *scan, const struct tfpipe_entries *entries, const uint8_t *jpeg, size_t length) {
    const uint8_t *bytes = entries->bytes;
    uint64_t of_file, own;
    if (entries->size < HEAD + TAIL || scan->frame->interval || scan->frame->components > CODED ||
        bytes[KIND] != FORMAT || !bytes[EVERY])
        return;
    memcpy(&of_file, bytes + HASH, sizeof of_file);
    memcpy(&own, bytes + CHECK, sizeof own);
    if (of_file != hash_file(jpeg, length) || own != hash_bytes(of_file, bytes + KIND, entries->size - KIND)) return;
    struct entries opened = {.every = bytes[EVERY], .offset_bits = bytes[BITS], .record_bits = bytes[BITS]};
    if (opened.offset_bits > MOST_OFFSET_BITS) return;
    for (int c = 0; c < CODED; c++) {
        int16_t lowest;
        memcpy(&lowest, bytes + LOWEST + 2 * c, sizeof lowest);
        opened.lowest_dc[c] = lowest;
        opened.dc_bits[c] = bytes[BITS + 1 + c];
        opened.record_bits += opened.dc_bits[c];
        if (opened.dc_bits[c] > MOST_DC_BITS) return;
    }
    uint32_t count;
    memcpy(&count, bytes + COUNT, sizeof count);
    opened.per_row = per_row(scan, opened.every);
    if (count != (size_t)opened.per_row * (size_t)scan->mcu_rows || entries->size != size_of(count, opened.record_bits))
        return;
    opened.records = bytes + HEAD;
    scan->entries = opened;
}

size_t entry_before(const struct scan *scan, size_t target) {
    size_t column = target % (size_t)scan->mcus;
    return target - column % (size_t)scan->entries.every;
}

/* Reads the entry point at an MCU that has one; the image's end has none. */
static struct place read_place(const struct scan *scan, size_t mcu) {
    const struct entries *entries = &scan->entries;
    size_t row = mcu / (size_t)scan->mcus, number = mcu % (size_t)scan->mcus / (size_t)entries->every;
    size_t from = (row * (size_t)entries->per_row + number) * (size_t)entries->record_bits;
    struct place place = {.bit = read_bits(entries->records, from, entries->offset_bits)};
    from += (size_t)entries->offset_bits;
    for (int c = 0; c < scan->frame->components; c++) {
        place.dc[c] = entries->lowest_dc[c] + (int)read_bits(entries->records, from, entries->dc_bits[c]);
        from += (size_t)entries->dc_bits[c];
    }
    return place;
}

static int is_end(const struct scan *scan, size_t mcu) { return mcu >= (size_t)scan->mcus * (size_t)scan->mcu_rows; }

int is_entry(const struct scan *scan) {
    if (is_end(scan, scan->position)) return 1;
    struct place place = read_place(scan, scan->position);
    int same = place.bit == taken(&scan->bits, scan->data);
    for (int c = 0; c < scan->frame->components; c++)
        same &= (uint32_t)place.dc[c] == scan->frame->component[c].prediction;
    return same;
}

int jump_to(struct scan *scan, size_t target) {
    size_t mcu = entry_before(scan, target);
    if (mcu <= scan->position || is_end(scan, mcu)) return 0;
    struct place place = read_place(scan, mcu);
    if (place.bit >= 8 * (uint64_t)scan->ends[0]) return TFPIPE_DAMAGED;
    for (int c = 0; c < scan->frame->components; c++) scan->frame->component[c].prediction = (uint32_t)place.dc[c];
    start_at(&scan->bits, scan->data, place.bit);
    scan->position = mcu;
    return 0;
}

/* Finds the places of a file's entry points. Returns their number; 0: a file that has none. */
static size_t find(struct tfpipe_scratch *scratch, struct scan *scan, int every, struct place **places) {
    size_t total = (size_t)scan->mcus * (size_t)scan->mcu_rows, count = 0;
    size_t most = (size_t)per_row(scan, every) * (size_t)scan->mcu_rows;
    if (most > UINT32_MAX || !(*places = buffer_reserve(&scratch->places, most * sizeof **places))) return 0;
    for (int row = 0; row < scan->mcu_rows; row++) {
        for (int column = 0; column < scan->mcus; column += every) {
            struct place *found = *places + count++;
            found->bit = taken(&scan->bits, scan->data);
            for (int c = 0; c < scan->frame->components; c++)
                found->dc[c] = (int16_t)scan->frame->component[c].prediction;
            const int step = scan->mcus - column < every ? scan->mcus - column : every;
            if (tfpipe_kernels()->decode(scan, step, 0)) return 0;
            scan->position += (size_t)step;
            if (check_interval(scan, scan->position == total, scan->position == total)) return 0;
        }
    }
    return count;
}

int64_t tfpipe_find_entries(tfpipe_scratch *scratch, const uint8_t *jpeg, size_t length, int every, uint8_t *out,
                            int64_t room) {
    struct header header;
    struct frame frame;
    struct scan scan = {.frame = &frame};
    if (every < 1 || every > UINT8_MAX || length >= MAX_BYTES) return 0;
    if (read_header(&header, scratch, jpeg, length, &frame) || frame.interval || frame.several ||
        frame.components > CODED)
        return 0;
    set_scan(&scan, scratch->blocks);
    if (open_data(scratch, &scan, jpeg + length)) return 0;
    struct place *places;
    size_t count = find(scratch, &scan, every, &places);
    if (!count) return 0;
    int16_t lowest[CODED] = {0}, highest[CODED] = {0};
    uint8_t bits[4] = {(uint8_t)width_of(places[count - 1].bit)};
    int record_bits = bits[0];
    for (int c = 0; c < frame.components; c++) {
        for (size_t i = 0; i < count; i++) { /* the first one's is 0 */
            if (places[i].dc[c] < lowest[c]) lowest[c] = places[i].dc[c];
            if (places[i].dc[c] > highest[c]) highest[c] = places[i].dc[c];
        }
        bits[1 + c] = (uint8_t)width_of((uint64_t)(highest[c] - lowest[c]));
        record_bits += bits[1 + c];
    }
    size_t size = size_of(count, record_bits);
    if ((int64_t)size > room) return (int64_t)size;
    uint32_t number = (uint32_t)count;
    memset(out, 0, size);
    out[KIND] = FORMAT;
    out[EVERY] = (uint8_t)every;
    memcpy(out + BITS, bits, sizeof bits);
    memcpy(out + LOWEST, lowest, sizeof lowest);
    memcpy(out + COUNT, &number, sizeof number);
    size_t to = 0;
    for (size_t i = 0; i < count; i++) {
        write_bits(out + HEAD, to, places[i].bit);
        to += bits[0];
        for (int c = 0; c < CODED; c++) {
            write_bits(out + HEAD, to, c < frame.components ? (uint64_t)(places[i].dc[c] - lowest[c]) : 0);
            to += bits[1 + c];
        }
    }
    uint64_t of_file = hash_file(jpeg, length), own = hash_bytes(of_file, out + KIND, size - KIND);
    memcpy(out + HASH, &of_file, sizeof of_file);
    memcpy(out + CHECK, &own, sizeof own);
    return (int64_t)size;
}
