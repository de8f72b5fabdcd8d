/* Random numbers without a state: SplitMix64 (Steele, Lea and Flood 2014), as mix() of tfpipe/data/order/permutation.py. */
#pragma once

#include <stdint.h>

#define GAMMA 0x9E3779B97F4A7C15u

static inline uint64_t hash(uint64_t x) {
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
}

/* Returns number `count` of a key's sequence, uniform in [0, 1): 53 bits. */
static inline double uniform_at(uint64_t key, uint64_t count) {
    return (double)(hash(key + GAMMA * count) >> 11) * 0x1p-53;
}
