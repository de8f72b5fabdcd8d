/* Copies records into a batch past the cache: a batch does not fit into it, and a store that need not read memory
 * first takes two thirds of the time. */
#include "copy.h"

#include <string.h>

/* A record is copied in so many places at once: the CPU fetches ahead within a page of 4 kB only, so that one place
 * would wait where each page begins. Four take 0.7 to 0.8 of the time of one (profiles/pixel_copies.py). */
#ifndef PLACES
#define PLACES 4
#endif
enum { PIECE = 256, LINE = 64 }; /* bytes: copied at a place before the next place's turn; of a cache line */

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>

__attribute__((target("avx2"))) static inline void lines(uint8_t *out, const uint8_t *in, size_t size) {
    for (size_t at = 0; at < size; at += LINE) {
        __m256i low = _mm256_loadu_si256((const __m256i *)(const void *)(in + at));
        __m256i high = _mm256_loadu_si256((const __m256i *)(const void *)(in + at + 32));
        _mm256_stream_si256((__m256i *)(void *)(out + at), low);
        _mm256_stream_si256((__m256i *)(void *)(out + at + 32), high);
    }
}

__attribute__((target("avx2"))) static void stream(uint8_t *out, const uint8_t *in, size_t size) {
    size_t head = -(uintptr_t)out & (LINE - 1); /* up to the first aligned place */
    if (head > size) head = size;
    memcpy(out, in, head);
    out += head, in += head, size -= head;
    size_t part = PIECE * (size / PLACES / PIECE);
    for (size_t at = 0; at < part; at += PIECE)
        for (size_t place = at; place < PLACES * part; place += part) lines(out + place, in + place, PIECE);
    out += PLACES * part, in += PLACES * part, size -= PLACES * part;
    size_t whole = size / LINE * LINE;
    lines(out, in, whole);
    memcpy(out + whole, in + whole, size - whole);
}

void tfpipe_stream(uint8_t *out, const uint8_t *in, size_t size) {
    if (__builtin_cpu_supports("avx2"))
        stream(out, in, size);
    else
        memcpy(out, in, size);
}

void tfpipe_fence(void) { _mm_sfence(); }
#else
void tfpipe_stream(uint8_t *out, const uint8_t *in, size_t size) { memcpy(out, in, size); }

void tfpipe_fence(void) {}
#endif

void tfpipe_fetch(uint8_t *out, const uint8_t *in, size_t size) {
    size_t part = PIECE * (size / PLACES / PIECE);
    for (size_t at = 0; at < part; at += PIECE)
        for (size_t place = at; place < PLACES * part; place += part) memcpy(out + place, in + place, PIECE);
    memcpy(out + PLACES * part, in + PLACES * part, size - PLACES * part);
}
