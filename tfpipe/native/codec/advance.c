/* Moves through a scan's MCUs: decodes those that are needed, and passes over the others. */
#include "scan.h"

/* Transforms up to the MCU `target`, if `keep`. */
static void advance_decoded(struct scan *scan, size_t target, int keep) {
    int count = (int)(target - scan->position);
    if (keep) transform_decoded(scan, count);
    scan->column += count;
    scan->position = target;
}

int advance_to(struct scan *scan, decode_run *decode, size_t target, int keep) {
    size_t interval = (size_t)scan->frame->interval, total = (size_t)scan->mcus * (size_t)scan->mcu_rows;
    if (scan->idct) return advance_decoded(scan, target, keep), 0;
    if (!keep && scan->entries.records && jump_to(scan, target)) return TFPIPE_DAMAGED;
    while (scan->position < target) {
        size_t stop = target, known = scan->entries.records ? entry_before(scan, target) : 0;
        if (known > scan->position) stop = known;
        if (interval) {
            size_t segment = scan->position / interval;
            if (!keep && target / interval > segment) {
                scan->position = target / interval * interval;
                continue;
            }
            if (scan->position % interval == 0) open_segment(scan, segment);
            if (stop > (segment + 1) * interval) stop = (segment + 1) * interval;
        }
        int count = (int)(stop - scan->position); /* at most an image's MCUs: below 2^27 */
        if (decode(scan, count, keep)) return TFPIPE_DAMAGED;
        scan->column += count;
        scan->position = stop;
        int status = check_interval(scan, stop == total || (interval && stop % interval == 0), stop == total);
        if (status) return status;
        if (stop == known && !is_entry(scan)) return TFPIPE_DAMAGED; /* the file has changed since they were found */
    }
    return 0;
}
