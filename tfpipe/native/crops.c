/* Decodes, band by band of 8 or 16 rows, what the windows need of a JPEG, and resizes the rows of each at once. Pixels
 * that another decoder has made go through the same resize. */
#include "pixels/copy.h"
#include "pixels/turn.h"
#include "kernels.h"

#include <stdatomic.h>
#include <time.h>

enum { BAND_BYTES = 8192 }; /* of rows that are mirrored before they are copied past the cache */

/* A window on its way to its crop. */
struct crop {
    int top, left, height, width;
    int copied, mirrored;      /* copied: the window has the crop's size */
    size_t pitch;              /* bytes from a row of `out` to the next */
    int next;                  /* crop's row to write next, unless copied */
    struct axis rows, columns; /* unless copied */
    uint8_t *out;
};

struct span { /* columns or MCUs [from, to) */
    int from, to;
};

/* A call's state. */
struct job {
    const struct kernels *kernels;
    struct header header;
    struct frame frame;
    struct scan scan;
    const uint8_t *decoded; /* the image's pixels, made by another decoder; NULL: they are in the frame's planes */
    struct crop *crops;
    int count, channels, kernel;
    int mcu_width, mcu_height;       /* pixels */
    int first, base, base_end;       /* first MCU row needed; leftmost MCU needed, and the end of the rightmost */
    struct span *spans;              /* MCUs needed, by row from 0 */
    int last;                        /* end of the last MCU row needed */
    int ring;                        /* rows kept converted: at least two, and as many as a crop's row is made of */
    uint8_t *rows;                   /* these rows, by their number modulo ring, from column base on */
    size_t pitch;                    /* bytes from a row of the ring to the next */
    int *converted;                  /* which rows these are, or -1 */
    const uint8_t **parts;           /* rows that a crop's next row is made of */
    uint8_t *chroma[COMPONENTS - 1]; /* a row of each component but the first, upsampled */
    int16_t *blended;                /* weighted sum of rows */
    int64_t *parts_ns, lap_ns;       /* [TFPIPE_PARTS], or NULL: not measured; when the last part ended */
};

void tfpipe_measure(tfpipe_scratch *scratch, int64_t *parts_ns) { scratch->settings.parts_ns = parts_ns; }

void tfpipe_limit_scans(tfpipe_scratch *scratch, int most) { scratch->settings.most_scans = most; }

void tfpipe_apply_exif(tfpipe_scratch *scratch, int turn) { scratch->settings.turn = turn; }

static atomic_int unturned;

int tfpipe_unturned(void) { return atomic_exchange_explicit(&unturned, 0, memory_order_relaxed); }

int64_t tfpipe_now_ns(void) {
    struct timespec now;
    timespec_get(&now, TIME_UTC);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* Adds the time since the last lap to a part. */
static void lap(struct job *job, int part) {
    if (!UNLIKELY(job->parts_ns != NULL)) return;
    int64_t now_ns = tfpipe_now_ns();
    job->parts_ns[part] += now_ns - job->lap_ns;
    job->lap_ns = now_ns;
}

static int min(int a, int b) { return a < b ? a : b; }
static int max(int a, int b) { return a > b ? a : b; }

/* Returns the axis of a crop's rows (0) or columns (1), without weights. */
static struct axis axis_along(const struct job *job, const struct tfpipe_crop *wanted, int which) {
    const int size = which ? wanted->width : wanted->height;
    const int64_t whole = wanted->whole[which] ? wanted->whole[which] : size;
    return axis_of(job->kernel, wanted->window[2 + which], whole, wanted->first[which], size);
}

/* Sets the crops and their weights. Windows were checked: they are within the image. */
static int set_crops(struct job *job, tfpipe_scratch *scratch, const struct tfpipe_crop *wanted) {
    size_t count = (size_t)job->count, bytes = 0;
    job->ring = 2;
    int most = 0; /* weights of a pixel */
    for (size_t i = 0; i < count; i++) {
        struct axis rows = axis_along(job, wanted + i, 0), columns = axis_along(job, wanted + i, 1);
        if (bytes > SIZE_MAX / 4) return TFPIPE_MEMORY;
        bytes += rows.bytes + columns.bytes;
        job->ring = max(job->ring, rows.taps);
        most = max(most, max(rows.taps, columns.taps));
    }
    if (count > SIZE_MAX / 4 / sizeof *job->crops) return TFPIPE_MEMORY;
    size_t crops = count * sizeof *job->crops, work = (size_t)most * sizeof(double);
    job->crops = buffer_reserve(&scratch->crops, crops + work + bytes);
    if (!job->crops) return TFPIPE_MEMORY;
    double *weights = (double *)(void *)(job->crops + count);
    uint8_t *memory = (uint8_t *)(weights + most);
    for (size_t i = 0; i < count; i++) {
        struct crop *crop = job->crops + i;
        const int32_t *window = wanted[i].window;
        *crop = (struct crop){.top = window[0], .left = window[1], .height = window[2], .width = window[3]};
        crop->mirrored = wanted[i].mirrored;
        crop->out = wanted[i].out;
        crop->pitch = wanted[i].pitch;
        crop->rows = axis_along(job, wanted + i, 0);
        crop->columns = axis_along(job, wanted + i, 1);
        crop->copied = crop->height == crop->rows.whole && crop->width == crop->columns.whole;
        if (crop->copied) {
            crop->top += (int)wanted[i].first[0], crop->left += (int)wanted[i].first[1];
            crop->height = wanted[i].height, crop->width = wanted[i].width;
            continue;
        }
        axis_set(&crop->rows, memory, weights, 0);
        axis_set(&crop->columns, memory + crop->rows.bytes, weights, crop->mirrored);
        axis_narrow(&crop->rows, &crop->top, &crop->height);
        axis_narrow(&crop->columns, &crop->left, &crop->width);
        memory += crop->rows.bytes + crop->columns.bytes;
    }
    return 0;
}

/* Sets which MCUs are needed: those of the windows, and of the neighbours of subsampled chroma. */
static int set_spans(struct job *job, tfpipe_scratch *scratch) {
    const struct frame *frame = &job->frame;
    job->mcu_width = 8 * frame->hmax;
    job->mcu_height = 8 * frame->vmax;
    job->spans = buffer_reserve(&scratch->spans, (size_t)job->scan.mcu_rows * sizeof *job->spans);
    if (!job->spans) return TFPIPE_MEMORY;
    memset(job->spans, 0, (size_t)job->scan.mcu_rows * sizeof *job->spans);
    job->base = job->scan.mcus;
    job->first = job->scan.mcu_rows;
    int across = frame->hmax > 1 ? 2 : 0, above = frame->vmax > 1 ? 2 : 0;
    for (int i = 0; i < job->count; i++) {
        const struct crop *crop = job->crops + i;
        struct span columns = {max(crop->left - across, 0) / job->mcu_width,
                               min((crop->left + crop->width + across - 1) / job->mcu_width + 1, job->scan.mcus)};
        struct span rows = {max(crop->top - above, 0) / job->mcu_height,
                            min((crop->top + crop->height + above - 1) / job->mcu_height + 1, job->scan.mcu_rows)};
        job->base = min(job->base, columns.from);
        job->base_end = max(job->base_end, columns.to);
        job->first = min(job->first, rows.from);
        job->last = max(job->last, rows.to);
        for (struct span *span = job->spans + rows.from; span < job->spans + rows.to; span++) {
            span->from = span->to ? min(span->from, columns.from) : columns.from;
            span->to = max(span->to, columns.to);
        }
    }
    return 0;
}

/* Allocates rows of `columns` pixels: the ring, those of chroma and black, and a sum. */
static int set_rows(struct job *job, tfpipe_scratch *scratch, size_t columns) {
    size_t ring = (size_t)job->ring, chroma = columns + 2 * PAD, blended = (3 * columns + PAD) * sizeof *job->blended;
    job->pitch = 3 * columns + PAD;
    size_t numbers = ring * (sizeof *job->parts + sizeof *job->converted);
    uint8_t *memory = buffer_reserve(&scratch->rows, numbers + blended + ring * job->pitch + (COMPONENTS - 1) * chroma);
    if (!memory) return TFPIPE_MEMORY;
    job->parts = (const uint8_t **)(void *)memory;
    job->converted = (int *)(void *)(job->parts + ring);
    for (int i = 0; i < job->ring; i++) job->converted[i] = -1;
    job->blended = (int16_t *)(void *)(memory + numbers);
    job->rows = memory + numbers + blended;
    for (int c = 0; c < COMPONENTS - 1; c++, job->rows += chroma) job->chroma[c] = job->rows;
    return 0;
}

/* Allocates planes, of two MCU rows, and rows: bounded by the width of the image, which is at most MAX_SIDE, and
 * by the rows that a crop's row is made of: two, or where an image shrinks, up to four times as many as it shrinks by. */
static int set_memory(struct job *job, tfpipe_scratch *scratch) {
    size_t mcus = (size_t)(job->base_end - job->base), size = 0;
    for (int c = 0; c < job->scan.transformed; c++) {
        struct component *component = job->frame.component + c;
        component->pitch = mcus * 8 * (size_t)component->h + 2 * PAD;
        size += component->pitch * 16 * (size_t)component->v;
    }
    uint8_t *plane = buffer_reserve(&scratch->planes, size);
    if (!plane) return TFPIPE_MEMORY;
    for (int c = 0; c < job->scan.transformed; c++) {
        struct component *component = job->frame.component + c;
        component->plane = plane + PAD;
        plane += component->pitch * 16 * (size_t)component->v;
    }
    return set_rows(job, scratch, mcus * (size_t)job->mcu_width);
}

/* Returns a row of a component's samples, from the image's column `column` of samples on. */
static uint8_t *samples(const struct job *job, const struct component *component, int row, int column) {
    size_t ring = (size_t)row & (size_t)(16 * component->v - 1);
    return component->plane + component->pitch * ring + (column - job->base * 8 * component->h);
}

/* Returns columns [from, ...) of row y of a component of chroma, or of black; upsamples them into job->chroma if need be. */
static const uint8_t *chroma_row(const struct job *job, int index, int y, int from, int to) {
    const struct frame *frame = &job->frame;
    const struct component *component = frame->component + index;
    int wide = component->h < frame->hmax, high = component->v < frame->vmax;
    int row = high ? y / 2 : y, other = row;
    if (high) other = y & 1 ? min(row + 1, component->height - 1) : max(row - 1, 0);
    uint8_t *out = job->chroma[index - 1];
    if (!wide && !high) return samples(job, component, row, from);
    if (!wide) {
        const uint8_t *near = samples(job, component, row, from), *far = samples(job, component, other, from);
        h1v2(out, near, far, to - from, y & 1 ? 2 : 1);
        return out;
    }
    int start = from / 2, end = (to + 1) / 2; /* end is at most component->width */
    uint8_t *near = samples(job, component, row, start), *far = samples(job, component, other, start);
    if (component->width <= 2) { /* too narrow for libjpeg to interpolate */
        for (int i = 0; i < end - start; i++) out[2 * i] = out[2 * i + 1] = near[i];
        return out + (from & 1);
    }
    /* Repeats the outermost samples, in the planes' padding: start is 0 only if base is. */
    if (!start) near[-1] = near[0], far[-1] = far[0];
    if (end == component->width) near[end - start] = near[end - start - 1], far[end - start] = far[end - start - 1];
    if (high)
        job->kernels->h2v2(out, near, far, end - start);
    else
        h2v1(out, near, end - start);
    return out + (from & 1);
}

/* Returns whether the pixels are those of the first component. */
static int is_luma(const struct job *job) { return job->channels == 1 && !job->frame.rgb; }

/* Writes the pixels of columns [from, to) of row y. */
static void convert(const struct job *job, int y, int from, int to, uint8_t *out, int mirrored) {
    int n = to - from, channels = job->channels;
    if (job->decoded || is_luma(job)) {
        const uint8_t *in =
            job->decoded ? job->decoded + ((size_t)y * (size_t)job->frame.width + (size_t)from) * (size_t)channels
                         : samples(job, job->frame.component, y, from);
        if (mirrored)
            job->kernels->mirror(out, in, n, channels);
        else
            memcpy(out, in, (size_t)n * (size_t)channels);
        return;
    }
    const uint8_t *luma = samples(job, job->frame.component, y, from);
    if (job->frame.components == 1) {
        for (int i = 0; i < n; i++, out += 3) out[0] = out[1] = out[2] = luma[mirrored ? n - 1 - i : i];
    } else {
        const uint8_t *cb = chroma_row(job, 1, y, from, to), *cr = chroma_row(job, 2, y, from, to);
        ycc_row *row = !job->frame.rgb ? job->kernels->ycc : channels == 1 ? rgb_to_gray : rgb_row;
        row(out, luma, cb, cr, n, mirrored);
        if (job->frame.components == 4) ink_row(out, chroma_row(job, 3, y, from, to), n, mirrored, !job->frame.rgb);
    }
}

/* Returns row y's pixels from column `left` on, for as many columns as any window needs. */
static const uint8_t *pixels(struct job *job, int y, int left) {
    if (!job->decoded && is_luma(job) && job->ring == 2) return samples(job, job->frame.component, y, left);
    int base = job->base * job->mcu_width, slot = y % job->ring;
    uint8_t *row = job->rows + (size_t)slot * job->pitch;
    if (job->converted[slot] != y) {
        struct span span = {job->frame.width, 0};
        for (const struct crop *crop = job->crops; crop < job->crops + job->count; crop++) {
            if (crop->copied || y < crop->top || y >= crop->top + crop->height) continue;
            span = (struct span){min(span.from, crop->left), max(span.to, crop->left + crop->width)};
        }
        convert(job, y, span.from, span.to, row + job->channels * (span.from - base), 0);
        job->converted[slot] = y;
    }
    return row + job->channels * (left - base);
}

/* Returns the fractional bits of a row that is made of several: a bicubic one goes beyond 255 by up to a quarter. */
static int fraction(const struct job *job) { return job->kernel == TFPIPE_BICUBIC ? 6 : 7; }

/* Makes the next row of a crop out of the rows of its window up to `last`; returns 0 if it needs later ones. */
static int blend_row(struct job *job, const struct crop *crop, int last) {
    const int n = job->channels * crop->width, i = crop->next, taps = crop->rows.taps;
    if (!taps) {
        const struct tap *tap = crop->rows.pairs + i;
        int weight = tap->weight[1];
        if (tap->low + (weight != 0) > last) return 0;
        const uint8_t *upper = pixels(job, crop->top + tap->low, crop->left);
        const uint8_t *lower = weight ? pixels(job, crop->top + tap->low + 1, crop->left) : upper;
        job->kernels->blend(job->blended, upper, lower, n, 2 * weight);
        return 1;
    }
    const int low = crop->rows.low[i], end = crop->height - 1; /* a weight of a row after the last is 0 */
    if (min(low + taps - 1, end) > last) return 0;
    for (int t = 0; t < taps; t++) job->parts[t] = pixels(job, crop->top + min(low + t, end), crop->left);
    const int16_t *weights = crop->rows.weights + (size_t)i * (size_t)taps;
    job->kernels->sum(job->blended, job->parts, weights, taps, n, WEIGHT - fraction(job));
    return 1;
}

/* Writes the rows of a crop whose lowest source row is y, which is the last one decoded and a row of its window. */
static void resize_rows(struct job *job, struct crop *crop, int y) {
    const int n = job->channels * crop->width, shift = WEIGHT + fraction(job), gray = job->channels == 1;
    if (crop->rows.taps) pixels(job, y, crop->left); /* while it is among the decoded rows */
    for (; crop->next < crop->rows.size && blend_row(job, crop, y - crop->top); crop->next++) {
        /* The pixel after the last one is read, with weight 0. */
        memcpy(job->blended + n, job->blended + n - job->channels, (size_t)job->channels * sizeof *job->blended);
        uint8_t *out = crop->out + (size_t)crop->next * crop->pitch;
        if (crop->columns.taps)
            (gray ? job->kernels->gray : job->kernels->filter)(out, job->blended, &crop->columns, shift);
        else
            (gray ? resize_gray : job->kernels->resize)(out, job->blended, crop->columns.pairs, crop->columns.size);
    }
}

/* Writes the parts of crops that rows [from, to) complete. */
static void emit_rows(struct job *job, int from, int to) {
    for (int y = from; y < to; y++) {
        for (struct crop *crop = job->crops; crop < job->crops + job->count; crop++) {
            int row = y - crop->top;
            if (row < 0 || row >= crop->height) continue;
            if (!crop->copied) {
                resize_rows(job, crop, y);
                continue;
            }
            uint8_t *out = crop->out + (size_t)row * crop->pitch;
            convert(job, y, crop->left, crop->left + crop->width, out, crop->mirrored);
        }
    }
}

/* Decodes MCUs of a row into the planes. Returns 0 or TFPIPE_*. */
static int decode_span(struct job *job, int row, struct span span) {
    struct scan *scan = &job->scan;
    scan->row = row;
    if (scan->stored.data) {
        scan->column = span.from - job->base;
        return job->kernels->stored(scan, span.from, span.to);
    }
    size_t start = (size_t)row * (size_t)job->scan.mcus;
    int status = advance_to(scan, job->kernels->decode, start + (size_t)span.from, 0);
    scan->column = span.from - job->base;
    return status ? status : advance_to(scan, job->kernels->decode, start + (size_t)span.to, 1);
}

static int decode_rows(struct job *job) {
    int emitted = 0;
    for (int row = job->first; row < job->last; row++) {
        struct span span = job->spans[row];
        int status = span.to ? decode_span(job, row, span) : 0;
        if (status) return status;
        lap(job, TFPIPE_DECODE);
        /* The lowest row waits for the chroma below it. */
        int ready =
            row == job->scan.mcu_rows - 1 ? job->frame.height : (row + 1) * job->mcu_height - (job->frame.vmax > 1);
        if (span.to) emit_rows(job, emitted, ready);
        emitted = ready;
        lap(job, TFPIPE_RESIZE);
    }
    return 0;
}

static int check_arguments(const struct job *job, const struct tfpipe_crop *crops, int image_height, int image_width) {
    if (job->count < 0 || (job->channels != 1 && job->channels != 3) || job->kernel < TFPIPE_BILINEAR ||
        job->kernel > TFPIPE_AREA)
        return TFPIPE_ARGUMENT;
    for (const struct tfpipe_crop *crop = crops; crop < crops + job->count; crop++) {
        const int32_t *window = crop->window;
        if (crop->height < 1 || crop->width < 1 || crop->height > MAX_SIDE || crop->width > MAX_SIDE ||
            crop->pitch < (size_t)crop->width * (size_t)job->channels)
            return TFPIPE_ARGUMENT;
        for (int i = 0; i < 2; i++)
            if (crop->first[i] < 0 ||
                (crop->whole[i] ? crop->whole[i] - (i ? crop->width : crop->height) : 0) < crop->first[i])
                return TFPIPE_ARGUMENT;
        if (window[0] < 0 || window[1] < 0 || window[2] < 1 || window[3] < 1 || window[2] > image_height ||
            window[3] > image_width || window[0] > image_height - window[2] || window[1] > image_width - window[3])
            return TFPIPE_ARGUMENT;
    }
    return 0;
}

/* Opens the image, whose header was read: at its coded data, or at its coefficients. Returns 0 or TFPIPE_*. */
static int open_image(struct job *job, struct tfpipe_scratch *scratch, const struct tfpipe_entries *entries,
                      const uint8_t *jpeg, size_t length) {
    struct scan *scan = &job->scan;
    if (scan->stored.data) return 0;
    if (job->frame.several) {
        scan->idct = job->kernels->idct;
        return read_scans(&job->header, scan, job->last);
    }
    int status = open_data(scratch, scan, jpeg + length);
    if (!status && entries) open_entries(scan, entries, jpeg, length);
    return status;
}

int tfpipe_read_header(const uint8_t *jpeg, size_t length, struct tfpipe_header *header) {
    header->orientation = 1;
    return is_stored(jpeg, length) ? frame_numbers(stored_frame(jpeg), header) : jpeg_numbers(jpeg, length, header);
}

int tfpipe_crops(tfpipe_scratch *scratch, const uint8_t *jpeg, size_t length, const struct tfpipe_entries *entries,
                 int image_height, int image_width, const struct tfpipe_crop *crops, int count, int channels,
                 int kernel) {
    struct job job = {.kernels = tfpipe_kernels(),
                      .count = count,
                      .channels = channels,
                      .kernel = kernel,
                      .parts_ns = scratch->settings.parts_ns};
    if (job.parts_ns) job.lap_ns = tfpipe_now_ns();
    int status = check_arguments(&job, crops, image_height, image_width);
    if (status || !count) return status;
    if (length >= MAX_BYTES) return TFPIPE_REFUSED; /* offsets have 32 bits */
    struct frame *frame = &job.frame;
    job.scan.frame = frame;
    status = is_stored(jpeg, length) ? open_stored(scratch, &job.scan, jpeg, length)
                                     : read_header(&job.header, scratch, jpeg, length, frame);
    if (status) return status;
    const int orientation = scratch->settings.turn ? job.header.orientation : 0, swapped = is_swapped(orientation);
    const int sides[2] = {image_height, image_width};
    if (frame->height != sides[swapped] || frame->width != sides[!swapped]) return TFPIPE_REFUSED;
    if (job.header.orientation > 1 && !scratch->settings.turn) atomic_store(&unturned, 1);
    if (frame->components == 4 && channels == 1) return TFPIPE_REFUSED;
    if ((int64_t)frame->height * frame->width * channels >= MAX_BYTES) return TFPIPE_REFUSED;
    set_scan(&job.scan, scratch->blocks);
    job.scan.transformed = is_luma(&job) ? 1 : frame->components;
    const struct tfpipe_crop *stored = crops;
    if (orientation > 1) stored = turn_crops(scratch, crops, count, channels, orientation, sides);
    if (!stored) return TFPIPE_MEMORY;
    if ((status = set_crops(&job, scratch, stored)) || (status = set_spans(&job, scratch)) ||
        (status = set_memory(&job, scratch)))
        return status;
    lap(&job, TFPIPE_HEADER);
    status = open_image(&job, scratch, entries, jpeg, length);
    if (!status) status = decode_rows(&job);
    if (!status && orientation > 1) turn_pixels(crops, stored, count, channels, orientation);
    return status;
}

int tfpipe_resize(tfpipe_scratch *scratch, const uint8_t *pixels, int image_height, int image_width,
                  const struct tfpipe_crop *crops, int count, int channels, int kernel) {
    struct job job = {.kernels = tfpipe_kernels(),
                      .decoded = pixels,
                      .count = count,
                      .channels = channels,
                      .kernel = kernel,
                      .mcu_width = 1};
    int status = check_arguments(&job, crops, image_height, image_width);
    job.frame.width = image_width;
    job.count = 1; /* all rows are there, so one crop after the other */
    for (const struct tfpipe_crop *crop = crops; !status && crop < crops + count; crop++) {
        const int32_t *window = crop->window;
        job.base = window[1];
        if ((status = set_crops(&job, scratch, crop)) || (status = set_rows(&job, scratch, (size_t)window[3])))
            return status;
        emit_rows(&job, window[0], window[0] + window[2]);
    }
    return status;
}

int tfpipe_mirror(tfpipe_scratch *scratch, uint8_t *out, const uint8_t *in, int height, int width, int channels) {
    mirror_row *mirror = tfpipe_kernels()->mirror;
    const size_t row = (size_t)width * (size_t)channels, rows = BAND_BYTES / row + 1, size = (size_t)height * row;
    uint8_t *band = buffer_reserve(&scratch->rows, rows * row + PAD);
    uint8_t *copy = buffer_reserve(&scratch->planes, size);
    if (!band || !copy) return TFPIPE_MEMORY;
    tfpipe_fetch(copy, in, size);
    in = copy;
    for (size_t y = 0, count; y < (size_t)height; y += count, out += count * row) {
        count = (size_t)height - y < rows ? (size_t)height - y : rows;
        for (size_t i = 0; i < count; i++, in += row) mirror(band + i * row, in, width, channels);
        tfpipe_stream(out, band, count * row);
    }
    return 0;
}
