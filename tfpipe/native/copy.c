/* Copies records into a batch past the cache: a batch does not fit into it, and a store that need not read memory
 * first takes two thirds of the time. */
#include "copy.h"

#include <string.h>

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>

__attribute__((target("avx2"))) static void stream(uint8_t *out, const uint8_t *in, size_t size) {
    size_t head = -(uintptr_t)out & 31; /* up to the first aligned place */
    if (head > size) head = size;
    memcpy(out, in, head);
    out += head, in += head, size -= head;
    for (; size >= 64; out += 64, in += 64, size -= 64) {
        __m256i low = _mm256_loadu_si256((const __m256i *)(const void *)in);
        __m256i high = _mm256_loadu_si256((const __m256i *)(const void *)(in + 32));
        _mm256_stream_si256((__m256i *)(void *)out, low);
        _mm256_stream_si256((__m256i *)(void *)(out + 32), high);
    }
    memcpy(out, in, size);
}

void tfpipe_copy(const uint8_t *const *records, size_t count, size_t size, uint8_t *out) {
    int wide = __builtin_cpu_supports("avx2");
    for (size_t i = 0; i < count; i++, out += size) {
        if (wide)
            stream(out, records[i], size);
        else
            memcpy(out, records[i], size);
    }
    if (wide) _mm_sfence(); /* another thread that is told of the batch sees all of it */
}
#else
void tfpipe_copy(const uint8_t *const *records, size_t count, size_t size, uint8_t *out) {
    for (size_t i = 0; i < count; i++, out += size) memcpy(out, records[i], size);
}
#endif
