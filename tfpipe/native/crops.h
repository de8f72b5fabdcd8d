/* Crops of a JPEG, each resized, without a library: only the blocks that the crops need are transformed.
 *
 * Before the resize, pixels are those of libjpeg-turbo's defaults (accurate integer DCT, fancy upsampling). Out of the
 * ordinary files (progressive, arithmetic, 12 bit, CMYK, RGB, other subsamplings, damage) are refused: the caller has
 * another decoder, which has the last word on them. Thread-safe, as long as each thread has its own scratch. */
#ifndef TFPIPE_CROPS_H
#define TFPIPE_CROPS_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum {
    TFPIPE_REFUSED = 1,  /* an unsupported kind of JPEG, or none; or its size is not the caller's */
    TFPIPE_DAMAGED = 2,  /* cut off, or with a code that no table has; libjpeg-turbo may be more lenient */
    TFPIPE_MEMORY = 3,   /* no memory */
    TFPIPE_ARGUMENT = 4, /* a window outside of the image, a size below 1, another number of channels than 1 or 3 */
};

/* One thread's memory, reused between calls; Huffman tables are kept in it by their bytes. NULL: no memory. */
typedef struct tfpipe_scratch tfpipe_scratch;
tfpipe_scratch *tfpipe_scratch_new(void);
void tfpipe_scratch_free(tfpipe_scratch *scratch);

/* Nanoseconds of the parts of a call: up to the coded data; entropy decoding and inverse DCT; colours, resize and
 * mirroring, which are one pass over the rows. */
enum { TFPIPE_HEADER, TFPIPE_DECODE, TFPIPE_RESIZE, TFPIPE_PARTS };

/* Lets later calls with this scratch add the nanoseconds of their parts to parts_ns [TFPIPE_PARTS]; NULL: no longer. */
void tfpipe_measure(tfpipe_scratch *scratch, int64_t *parts_ns);

/* Returns the nanoseconds since 1970. */
int64_t tfpipe_now_ns(void);

/* Decodes the windows of a JPEG, resizes each bilinearly to height x width, and mirrors those with flips[i] != 0.
 *
 * image_height, image_width: the size that the caller's header parse found.
 * windows: int32 [count][4] of top, left, height, width, within the image. A window of the target's size is copied.
 * flips: uint8 [count], or NULL for none.
 * channels: 3 for RGB (a one-component file's value three times), 1 for the luma alone.
 * out: uint8 [count][height][width][channels]; completely written if 0 is returned, else undefined.
 *
 * Returns 0 or one of TFPIPE_*. */
int tfpipe_crops(tfpipe_scratch *scratch, const uint8_t *jpeg, size_t length, int image_height, int image_width,
                 const int32_t *windows, const uint8_t *flips, int count, int height, int width, int channels,
                 uint8_t *out);

/* Returns the name of the instructions in use: "avx2" or "plain". */
const char *tfpipe_simd(void);

/* For tests: limits the instructions to a level (0: plain, 1: AVX2 if the processor has it); returns the level in use.
 * No other thread may be decoding. */
int tfpipe_use_simd(int level);

#ifdef __cplusplus
}
#endif
#endif
