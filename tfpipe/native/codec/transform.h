/* Transforms decoded blocks into the planes of pixels. */
#ifndef TFPIPE_TRANSFORM_H
#define TFPIPE_TRANSFORM_H

#include "../core.h"

/* Transforms blocks of one component, pairs of them: of an MCU if it has two in a row, else of two MCUs. `blocks`: the
 * first of `count` MCUs; `column`: theirs. */
INLINE void transform(const struct scan *scan, const struct component *component, const struct block *blocks,
                      int column, int count, idct_pair *idct) {
    uint8_t *ring = component->plane + component->pitch * (size_t)(8 * component->v * (scan->row & 1));
    for (int v = 0; v < component->v; v++, ring += 8 * component->pitch) {
        const struct block *left = blocks + v * component->h;
        uint8_t *out = ring + 8 * component->h * column;
        for (int i = 0; i < count; i += component->h == 2 ? 1 : 2, out += 16) {
            const struct block *right = component->h == 2 ? left + 1 : i + 1 < count ? left + scan->mcu_blocks : left;
            idct(left, right, component->factors, out, component->pitch);
            left += component->h == 2 ? scan->mcu_blocks : 2 * scan->mcu_blocks;
        }
    }
}

/* A quarter of a block, which any compiler clears at once: a short memset may become slow string instructions. */
typedef uint64_t quarter __attribute__((vector_size(32), may_alias));

INLINE void clear_block(struct block *block) {
    for (int i = 0; i < 4; i++) ((quarter *)(void *)block->coefficients)[i] = (quarter){0};
}

#endif
