/* Converts levels to floats by a table, which holds the division by 255 and the normalisation: any float type, and the
 * values that Python has computed. */
#include "../base.h"

enum { LEVELS = 256 };

INLINE void look_up(uint8_t *out, const uint8_t *in, size_t pixels, int channels, const uint8_t *table, size_t size) {
    for (size_t i = 0; i < pixels; i++)
        for (int c = 0; c < channels; c++, in++, out += size) memcpy(out, table + (LEVELS * c + *in) * size, size);
}

int tfpipe_floats(void *out, const uint8_t *in, size_t pixels, int channels, const void *table, int size) {
    if ((channels != 1 && channels != 3) || (size != 2 && size != 4)) return TFPIPE_ARGUMENT;
    switch (channels * size) {
    case 3 * 4: look_up(out, in, pixels, 3, table, 4); break;
    case 3 * 2: look_up(out, in, pixels, 3, table, 2); break;
    case 1 * 4: look_up(out, in, pixels, 1, table, 4); break;
    case 1 * 2: look_up(out, in, pixels, 1, table, 2); break;
    }
    return 0;
}
