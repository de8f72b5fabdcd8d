/* Reads a JPEG's header: everything up to the coded data. Whatever libjpeg would warn of is refused.
 *
 * The segments are those of ITU-T T.81, B.2; markers' codes are in its Table B.1. */
#include "../scratch.h"

static int read_u16(const uint8_t *at) { return at[0] << 8 | at[1]; }

/* Returns a number of `bytes` bytes. */
static size_t read_number(const uint8_t *at, int bytes, int little) {
    size_t number = 0;
    for (int i = 0; i < bytes; i++) number = number << 8 | at[little ? bytes - 1 - i : i];
    return number;
}

/* Returns EXIF's orientation in what an APP1 segment of EXIF holds: 1 to 8, or 0 if that has none (Exif 2.32, 4.5.4 and
 * 4.6). It is a SHORT; some cameras write a LONG. */
static int exif_orientation(const uint8_t *exif, int64_t length) {
    const uint8_t *at = exif + 6;
    const size_t size = (size_t)length - 6;
    const int little = size && at[0] == 'I';
    if (size < 8 || memcmp(at, little ? "II*" : "MM\0*", 4)) return 0;
    const size_t first = read_number(at + 4, 4, little);
    if (first > size - 2) return 0;
    const size_t entries = read_number(at + first, 2, little);
    for (size_t i = 0, entry = first + 2; i < entries && entry + 12 <= size; i++, entry += 12) {
        if (read_number(at + entry, 2, little) != 0x0112) continue;
        const size_t type = read_number(at + entry + 2, 2, little), count = read_number(at + entry + 4, 4, little);
        const int bytes = type == 3 ? 2 : type == 4 ? 4 : 0;
        const size_t value = read_number(at + entry + 8, bytes, little);
        return count == 1 && value >= 1 && value <= 8 ? (int)value : 1;
    }
    return 0;
}

/* Returns the orientation in what an APP1 segment holds of XMP (Part 3, 1.1.3), as Pillow finds it: tiff:Orientation="6"
 * or >6<; 1 to 8, or 0 if there is none. */
static int xmp_orientation(const uint8_t *xmp, int64_t length) {
    static const char SPACE[] = "http://ns.adobe.com/xap/1.0/", TAG[] = "tiff:Orientation";
    const int64_t tag = sizeof TAG - 1;
    if (length < (int64_t)sizeof SPACE || memcmp(xmp, SPACE, sizeof SPACE)) return 0;
    for (int64_t at = sizeof SPACE; at + tag + 3 <= length; at++) {
        if (memcmp(xmp + at, TAG, (size_t)tag)) continue;
        const uint8_t *value = xmp + at + tag;
        if (value[0] == '=' && value[1] == '"')
            value++;
        else if (value[0] != '>')
            continue;
        if (value[1] >= '0' && value[1] <= '9') return value[1] >= '1' && value[1] <= '8' ? value[1] - '0' : 1;
    }
    return 0;
}

/* Notes the orientation that an APP1 segment states: that of the first EXIF, or if it has none the first one of XMP, as
 * in Pillow. */
static void note_orientation(struct turns *turns, const uint8_t *segment, int64_t length) {
    const int is_exif = length >= 6 && !memcmp(segment, "Exif\0", 6);
    if (is_exif && !turns->has_exif) turns->exif = exif_orientation(segment, length);
    turns->has_exif |= is_exif;
    if (!turns->xmp) turns->xmp = xmp_orientation(segment, length);
}

static int orientation_of(const struct turns *turns) { return turns->exif ? turns->exif : turns->xmp; }

/* DQT: B.2.4.1. */
static int read_quant(struct header *header, const uint8_t *at, const uint8_t *end) {
    while (at < end) {
        int id = *at & 15, wide = *at >> 4;
        at++;
        if (id > 3 || wide > 1 || end - at < BLOCK * (1 + wide)) return TFPIPE_DAMAGED;
        for (int i = 0; i < BLOCK; i++)
            header->scratch->quant[id][NATURAL[i]] = wide ? (uint16_t)read_u16(at + 2 * i) : at[i];
        header->quants[id] = 1;
        at += BLOCK * (1 + wide);
    }
    return 0;
}

/* Returns the kept table of these bytes, or puts them into the slot that was not used for longest: at most 8 of the 16
 * are this file's. */
static struct huffman *find_table(struct header *header, int dc, const uint8_t *counts, int total) {
    struct huffman *tables = header->scratch->tables, *oldest = NULL;
    for (int i = 0; i < TABLES; i++) {
        struct huffman *table = tables + i;
        if (table->total == total && table->dc == dc && !memcmp(table->counts, counts, 16) &&
            !memcmp(table->symbols, counts + 16, (size_t)total)) {
            table->used = header->scratch->calls;
            return table;
        }
        int held = 0;
        for (int j = 0; j < 8; j++) held |= header->tables[j >> 2][j & 3] == table;
        /* Unsigned age: right even when the counter wraps around. */
        if (!held && (!oldest || header->scratch->calls - table->used > header->scratch->calls - oldest->used))
            oldest = table;
    }
    memcpy(oldest->counts, counts, 16);
    memset(oldest->symbols, 0, sizeof oldest->symbols);
    memcpy(oldest->symbols, counts + 16, (size_t)total);
    oldest->total = total;
    oldest->dc = dc;
    oldest->built = 0;
    oldest->used = header->scratch->calls;
    return oldest;
}

/* DHT: B.2.4.2. */
static int read_huffman(struct header *header, const uint8_t *at, const uint8_t *end) {
    while (at < end) {
        if (end - at < 17) return TFPIPE_DAMAGED;
        int class = *at >> 4, id = *at & 15, total = 0;
        for (int i = 0; i < 16; i++) total += at[1 + i];
        if (class > 1 || id > 3 || total < 1 || total > 256 || end - at < 17 + total) return TFPIPE_DAMAGED;
        header->tables[class][id] = find_table(header, !class, at + 1, total);
        at += 17 + total;
    }
    return 0;
}

/* SOF0 to SOF2: B.2.2. The sizes of components are those of A.1.1. */
int read_frame(struct frame *frame, const uint8_t *at, const uint8_t *end) {
    if (frame->components || end - at < 6 || at[0] != 8) return TFPIPE_REFUSED;
    frame->height = read_u16(at + 1);
    frame->width = read_u16(at + 3);
    frame->components = at[5];
    if (frame->height < 1 || frame->width < 1 || frame->height > MAX_SIDE || frame->width > MAX_SIDE ||
        (at[5] != 1 && at[5] != 3 && at[5] != 4) || end - at != 6 + 3 * at[5])
        return TFPIPE_REFUSED;
    for (int i = 0; i < frame->components; i++) {
        struct component *component = frame->component + i;
        const uint8_t *entry = at + 6 + 3 * i;
        component->id = entry[0];
        component->h = entry[1] >> 4;
        component->v = entry[1] & 15;
        component->quant = entry[2];
        memset(component->low, UNKNOWN, sizeof component->low);
        if (component->h < 1 || component->v < 1 || component->h > 4 || component->v > 4 || component->quant > 3)
            return TFPIPE_REFUSED;
        for (int j = 0; j < i; j++)
            if (frame->component[j].id == component->id) return TFPIPE_REFUSED;
    }
    /* A scan of one component has one block per MCU, whatever its factors. */
    if (frame->components == 1) frame->component[0].h = frame->component[0].v = 1;
    frame->hmax = frame->component[0].h;
    frame->vmax = frame->component[0].v;
    if (frame->hmax > 2 || frame->vmax > 2) return TFPIPE_REFUSED;
    int blocks = 0;
    for (int i = 0; i < frame->components; i++) {
        struct component *component = frame->component + i;
        const struct component *chroma = frame->component + 1;
        /* Both of chroma have the same factors, black those of luma or chroma. */
        if (i && (component->h != chroma->h || component->v != chroma->v) &&
            (i < 3 || component->h != frame->hmax || component->v != frame->vmax))
            return TFPIPE_REFUSED;
        if (component->h > frame->hmax || component->v > frame->vmax) return TFPIPE_REFUSED;
        component->width = (frame->width * component->h + frame->hmax - 1) / frame->hmax;
        component->height = (frame->height * component->v + frame->vmax - 1) / frame->vmax;
        blocks += component->h * component->v;
    }
    return blocks > MCU_BLOCKS ? TFPIPE_REFUSED : 0;
}

/* Sets which colours several components are, by libjpeg's rules (default_decompress_parms). Returns 0 where it warns. */
static int set_colours(struct header *header) {
    struct frame *frame = header->frame;
    const struct component *c = frame->component;
    if (frame->components == 4) {
        frame->rgb = header->adobe != 2;
        return header->adobe != 1 && header->adobe <= 2;
    }
    frame->rgb = 0;
    if (frame->components == 1 || header->jfif) return 1;
    frame->rgb = header->adobe >= 0 ? header->adobe == 0 : c[0].id == 'R' && c[1].id == 'G' && c[2].id == 'B';
    return header->adobe <= 1;
}

/* Takes a table for the scan. Returns 0 or TFPIPE_*. */
static int take_table(const struct header *header, int class, int id, const struct huffman **table) {
    if (id > 3) return TFPIPE_DAMAGED;
    struct huffman *found = header->tables[class][id];
    if (!found) return TFPIPE_REFUSED; /* libjpeg has tables of its own for these */
    *table = found;
    return huffman_build(found) ? 0 : TFPIPE_DAMAGED;
}

/* Returns whether the scan's places and bits come next: libjpeg warns of others. A repeated one is refused, too, so there
 * are at most as many scans as coefficients have bits, for each component. */
static int check_band(struct frame *frame) {
    const struct band *band = &frame->band;
    if (!frame->progressive && (band->first != 0 || band->last != 63 || band->high || band->low)) return 0;
    if (frame->progressive && (band->first ? band->count > 1 : band->last)) return 0;
    if (band->last < band->first || band->last > 63 || band->low > MOST_LOW) return 0;
    if (band->high && band->low != band->high - 1) return 0;
    for (int i = 0; i < band->count; i++) {
        int8_t *low = frame->component[band->component[i]].low;
        if (band->first && low[0] == UNKNOWN) return 0;
        for (int place = band->first; place <= band->last; place++) {
            if (low[place] != (band->high ? band->high : UNKNOWN)) return 0;
            low[place] = (int8_t)band->low;
        }
    }
    return 1;
}

/* SOS: B.2.3. */
static int read_scan(struct header *header, const uint8_t *at, const uint8_t *end) {
    struct frame *frame = header->frame;
    struct band *band = &frame->band;
    int n = at < end ? at[0] : 0;
    if (n < 1 || n > frame->components || end - at != 4 + 2 * n) return TFPIPE_REFUSED;
    const uint8_t *limits = at + 1 + 2 * n;
    *band = (struct band){n, {0}, limits[0], limits[1], limits[2] >> 4, limits[2] & 15};
    if (!header->scans++) frame->several = frame->progressive || n < frame->components;
    for (int i = 0, number = 0; i < n; i++, number++) {
        while (number < frame->components && frame->component[number].id != at[1 + 2 * i]) number++;
        if (number == frame->components) return TFPIPE_REFUSED;
        struct component *component = frame->component + number;
        if (!header->quants[component->quant]) return TFPIPE_DAMAGED;
        band->component[i] = number;
        component->factors = header->scratch->quant[component->quant];
        int dc = !frame->progressive || (!band->first && !band->high), ac = !frame->progressive || band->first, status;
        if (dc && (status = take_table(header, 0, at[2 + 2 * i] >> 4, &component->dc_table))) return status;
        if (ac && (status = take_table(header, 1, at[2 + 2 * i] & 15, &component->ac_table))) return status;
    }
    frame->scan = end; /* the byte before it is below 0xff, since MOST_LOW is */
    if (header->scans == 1 && !set_colours(header)) return TFPIPE_REFUSED; /* what comes later does not count */
    return check_band(frame) ? 0 : TFPIPE_REFUSED;
}

/* Reads a segment, from the end of its length to its own. */
static int read_segment(struct header *header, int marker, const uint8_t *at, const uint8_t *end) {
    switch (marker) {
    case 0xc0:
    case 0xc1:
    case 0xc2: header->frame->progressive = marker == 0xc2; return read_frame(header->frame, at, end);
    case 0xc4: return read_huffman(header, at, end);
    case 0xda: return read_scan(header, at, end);
    case 0xdb: return header->scans ? TFPIPE_REFUSED : read_quant(header, at, end); /* others for later components */
    case 0xdd:
        if (end - at != 2) return TFPIPE_DAMAGED;
        header->frame->interval = read_u16(at);
        return 0;
    case 0xe0:
        if (end - at >= 14 && !memcmp(at, "JFIF", 5)) { /* libjpeg takes no shorter one for JFIF */
            if (at[5] != 1) return TFPIPE_REFUSED;      /* libjpeg warns of other versions */
            header->jfif = 1;
        }
        return 0;
    case 0xe1:
        note_orientation(&header->turns, at, end - at);
        header->orientation = orientation_of(&header->turns);
        return 0;
    case 0xee:
        if (end - at >= 12 && !memcmp(at, "Adobe", 5)) header->adobe = at[11];
        return 0;
    default: /* other applications' segments, comments */
        return (marker > 0xe0 && marker <= 0xef) || marker == 0xfe ? 0 : TFPIPE_REFUSED;
    }
}

int read_segments(struct header *header) {
    const uint8_t *at = header->at, *end = header->end;
    header->frame->scan = NULL;
    while (!header->frame->scan) {
        if (end - at < 2 || at[0] != 0xff) return TFPIPE_DAMAGED;
        int marker = at[1];
        if (marker == 0xff) { /* a fill byte */
            at++;
            continue;
        }
        if (marker == 0xd9 && header->scans) return 0;
        if (marker < 0xc0 || (marker >= 0xd0 && marker <= 0xd9) || marker > 0xfe) return TFPIPE_REFUSED;
        if (end - at < 4) return TFPIPE_DAMAGED;
        int size = read_u16(at + 2);
        if (size < 2 || end - at - 2 < size) return TFPIPE_DAMAGED;
        int status = read_segment(header, marker, at + 4, at + 2 + size);
        if (status) return status;
        at += 2 + size;
    }
    return 0;
}

int read_header(struct header *header, struct tfpipe_scratch *scratch, const uint8_t *jpeg, size_t length,
                struct frame *frame) {
    *header = (struct header){.scratch = scratch, .frame = frame, .adobe = -1};
    memset(frame, 0, sizeof *frame);
    scratch->calls++;
    if (length < 4 || jpeg[0] != 0xff || jpeg[1] != 0xd8) return TFPIPE_REFUSED;
    header->at = jpeg + 2;
    header->end = jpeg + length;
    return read_segments(header);
}

int frame_numbers(const uint8_t *frame, struct tfpipe_header *header) {
    header->height = read_u16(frame + 1), header->width = read_u16(frame + 3), header->components = frame[5];
    return frame[0] == 8 && header->height && header->width && (frame[5] == 1 || frame[5] == 3 || frame[5] == 4);
}

int jpeg_numbers(const uint8_t *jpeg, size_t length, struct tfpipe_header *header) {
    if (length < 4 || jpeg[0] != 0xff || jpeg[1] != 0xd8) return 0;
    const uint8_t *at = jpeg + 2, *end = jpeg + length;
    struct turns turns = {0};
    while (end - at >= 4 && at[0] == 0xff) {
        const int marker = at[1], segment = read_u16(at + 2);
        if (marker >= 0xc0 && marker <= 0xc2) {
            header->orientation = orientation_of(&turns) ? orientation_of(&turns) : 1;
            return segment >= 8 && end - at >= 10 && frame_numbers(at + 4, header);
        }
        const int application = marker >= 0xe0 && marker <= 0xef;
        if (!application && marker != 0xc4 && marker != 0xdb && marker != 0xdd && marker != 0xfe) return 0;
        if (segment < 2 || end - at - 2 < segment) return 0;
        if (marker == 0xe1) note_orientation(&turns, at + 4, segment - 2);
        at += 2 + segment;
    }
    return 0;
}
