/* What C files share: the processor's instructions, limits of images, and memory; crops.h is the interface. */
#pragma once

#include <string.h>

#include "crops.h"

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "bytes are read in words, the lowest first"
#endif
#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>
#define HAVE_AVX2 1
#define AVX2 __attribute__((target("avx2,bmi,bmi2")))
#else
#define HAVE_AVX2 0
#endif
#if defined(__aarch64__) && defined(__GNUC__) /* every such processor has NEON */
#include <arm_neon.h>
#define HAVE_NEON 1
#else
#define HAVE_NEON 0
#endif

#define EXPORT __attribute__((visibility("default")))
#define INLINE static inline __attribute__((always_inline))
#define UNLIKELY(x) __builtin_expect(!!(x), 0)

enum {
    PAD = 64,             /* bytes that vector code may read or write beyond (planes: also before) a row */
    MAX_SIDE = 65500,     /* pixels, as libjpeg's JPEG_MAX_DIMENSION */
    MAX_BYTES = 1 << 29,  /* of a decoded image, as in TensorFlow; headers.TOO_LARGE */
    KEPT_BYTES = 4 << 20, /* of a buffer, after a call; the file of an ordinary photograph is smaller */
};

struct buffer {
    void *memory; /* 64-byte aligned */
    size_t size;
};

/* memory.c: returns at least `size` bytes of the buffer, with undefined contents, or NULL. */
void *buffer_reserve(struct buffer *buffer, size_t size);

/* kernels.c: returns the number of the instructions in use: 1 for AVX2 or NEON, else 0. */
int simd_level(void);
