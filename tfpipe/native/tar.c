/* Lists the members of a tar file as far as their headers are ordinary: regular files, with a name in the header itself
 * and a size in octal digits. Whatever else there is, and damage, the caller reads and judges. */
#define _GNU_SOURCE /* pread and strnlen, in C11 too */
#include <unistd.h>

#include "base.h"

enum { HEADER = 512, NAME = 100, SIZE = 124, SUM = 148, TYPE = 156, MAGIC = 257, PREFIX = 345, PREFIX_BYTES = 155 };
enum { SIZE_DIGITS = 11, SUM_DIGITS = 6, MOST_NAME = NAME + 1 + PREFIX_BYTES };

/* Returns a number of `digits` octal digits that a space or zero byte ends; -1: it is written otherwise. */
static int64_t read_octal(const uint8_t *field, int digits) {
    int64_t value = 0;
    for (int i = 0; i < digits; i++) {
        if (field[i] < '0' || field[i] > '7') return -1;
        value = value << 3 | (field[i] - '0');
    }
    return field[digits] == 0 || field[digits] == ' ' ? value : -1;
}

/* Whether the header states the sum of its bytes, its own field taken for spaces. */
static int is_sound(const uint8_t *header) {
    uint32_t sum = 8 * ' ';
    for (int i = 0; i < HEADER; i++) sum += header[i];
    for (int i = SUM; i < SUM + 8; i++) sum -= header[i];
    return read_octal(header + SUM, SUM_DIGITS) == (int64_t)sum;
}

/* Writes a header's name. Returns its bytes; 0: a folder, or no name. */
static size_t read_name(const uint8_t *header, char *name) {
    size_t size = 0, prefix = strnlen((const char *)header + PREFIX, PREFIX_BYTES);
    if (prefix && !memcmp(header + MAGIC, "ustar", 6)) {
        memcpy(name, header + PREFIX, prefix);
        name[prefix] = '/';
        size = prefix + 1;
    }
    const size_t own = strnlen((const char *)header, NAME);
    memcpy(name + size, header, own);
    size += own;
    return size && name[size - 1] != '/' ? size : 0;
}

/* Lists members from byte *at of `file` on, up to byte `end`: the first byte and the length of each, `most` at most, and
 * their names, each with a zero byte after it, in `room` bytes. Leaves *at at the first header that is not listed, and
 * *written at the names' bytes. Returns how many are listed. */
EXPORT int64_t tfpipe_native_tar(int file, int64_t *at, int64_t end, int64_t *extents, int64_t most, char *names,
                                 int64_t room, int64_t *written) {
    uint8_t header[HEADER];
    int64_t count = 0;
    *written = 0;
    while (count < most && room - *written > MOST_NAME && end - *at >= HEADER) {
        if (pread(file, header, HEADER, (off_t)*at) != HEADER) break;
        const int64_t length = read_octal(header + SIZE, SIZE_DIGITS), first = *at + HEADER;
        if ((header[TYPE] != '0' && header[TYPE] != 0) || length < 0 || length > end - first || !is_sound(header))
            break;
        const size_t size = read_name(header, names + *written);
        if (!size) break;
        *written += (int64_t)size;
        names[(*written)++] = 0;
        extents[2 * count] = first;
        extents[2 * count++ + 1] = length;
        *at = first + (length + HEADER - 1) / HEADER * HEADER;
    }
    return count;
}
