/* Operations that change levels where they are: tables, as of Pillow's ImageOps, and blends, as of its ImageEnhance. */
#include "edit.h"
#include "planes.h"

void map_plain(uint8_t *values, size_t pixels, int channels, const uint8_t (*tables)[256]) {
    for (size_t i = 0; i < pixels; i++)
        for (int c = 0; c < channels; c++, values++) *values = tables[c][*values];
}

void blend_levels_plain(uint8_t *values, const uint8_t *from, size_t n, float factor) {
    for (size_t i = 0; i < n; i++) {
        float start = from[i], level = start + factor * ((float)values[i] - start);
        level = level > 0 ? level : 0;
        values[i] = (uint8_t)(int)(level < 255 ? level : 255);
    }
}

enum { RANGE = 96 }; /* values at a time: three vectors, and a multiple of both numbers of channels */
/* The compiler makes vector code of this, for each kind of instructions. */
INLINE void range_any(const uint8_t *values, size_t n, int channels, uint8_t *lowest, uint8_t *highest) {
    uint8_t low[RANGE], high[RANGE];
    memset(low, 255, sizeof low);
    memset(high, 0, sizeof high);
    size_t done = n / RANGE * RANGE;
    for (const uint8_t *end = values + done; values < end; values += RANGE)
        for (int i = 0; i < RANGE; i++) {
            low[i] = values[i] < low[i] ? values[i] : low[i];
            high[i] = values[i] > high[i] ? values[i] : high[i];
        }
    for (size_t i = 0; i < RANGE + (n - done); i++) {
        uint8_t least = i < RANGE ? low[i] : values[i - RANGE], most = i < RANGE ? high[i] : values[i - RANGE];
        size_t c = i % (size_t)channels;
        if (least < lowest[c]) lowest[c] = least;
        if (most > highest[c]) highest[c] = most;
    }
}

void range_plain(const uint8_t *values, size_t n, int channels, uint8_t *lowest, uint8_t *highest) {
    range_any(values, n, channels, lowest, highest);
}

uint32_t sum_luma_plain(const uint8_t *values, int n) {
    uint32_t sum = 0;
    for (int i = 0; i < n; i++) sum += values[i];
    return sum;
}

#if HAVE_AVX2
AVX2 INLINE __m256 floats(const uint8_t *at) { /* 8 levels */
    return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)at)));
}

AVX2 INLINE __m256i blend8(const uint8_t *values, const uint8_t *from, __m256 factor) { /* not clipped at 0 */
    __m256 start = floats(from), level = start + factor * (floats(values) - start);
    return _mm256_cvttps_epi32(_mm256_min_ps(level, _mm256_set1_ps(255)));
}

AVX2 void blend_levels_avx2(uint8_t *values, const uint8_t *from, size_t n, float factor) {
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    const __m256 factors = _mm256_set1_ps(factor);
    for (; n >= 32; n -= 32, values += 32, from += 32) {
        __m256i low = _mm256_packs_epi32(blend8(values, from, factors), blend8(values + 8, from + 8, factors));
        __m256i high =
            _mm256_packs_epi32(blend8(values + 16, from + 16, factors), blend8(values + 24, from + 24, factors));
        __m256i levels = _mm256_permutevar8x32_epi32(_mm256_packus_epi16(low, high), order);
        _mm256_storeu_si256((__m256i *)(void *)values, levels);
    }
    blend_levels_plain(values, from, n, factor);
}

AVX2 void range_avx2(const uint8_t *values, size_t n, int channels, uint8_t *lowest, uint8_t *highest) {
    range_any(values, n, channels, lowest, highest);
}

AVX2 uint32_t sum_luma_avx2(const uint8_t *values, int n) {
    __m256i sums = _mm256_setzero_si256();
    for (; n >= 32; n -= 32, values += 32) {
        __m256i levels = _mm256_loadu_si256((const __m256i *)(const void *)values);
        sums = _mm256_add_epi64(sums, _mm256_sad_epu8(levels, _mm256_setzero_si256()));
    }
    __m128i two = _mm_add_epi64(_mm256_castsi256_si128(sums), _mm256_extracti128_si256(sums, 1));
    uint64_t sum = (uint64_t)_mm_cvtsi128_si64(two) + (uint64_t)_mm_extract_epi64(two, 1);
    return (uint32_t)sum + sum_luma_plain(values, n);
}

/* Sixteen entries of a table in each lane; of all but the first of each half, what distinguishes them from those before:
 * x - 16 k selects in table k if it is not negative, and entries of tables that are passed over cancel out. */
struct parts {
    __m256i part[16];
};

AVX2 INLINE void set_parts(struct parts *parts, const uint8_t table[256]) {
    __m128i before = _mm_setzero_si128();
    for (int k = 0; k < 16; k++) {
        __m128i entries = _mm_loadu_si128((const __m128i *)(const void *)(table + 16 * k));
        parts->part[k] = _mm256_broadcastsi128_si256(k % 8 ? _mm_xor_si128(entries, before) : entries);
        before = entries;
    }
}

AVX2 INLINE __m256i look_up(__m256i x, const struct parts *parts) {
    const __m256i step = _mm256_set1_epi8(16);
    __m256i low = x, high = _mm256_xor_si256(x, _mm256_set1_epi8(-128)), found = _mm256_setzero_si256();
    for (int k = 0; k < 8; k++) {
        found = _mm256_xor_si256(found, _mm256_shuffle_epi8(parts->part[k], low));
        found = _mm256_xor_si256(found, _mm256_shuffle_epi8(parts->part[8 + k], high));
        low = _mm256_subs_epi8(low, step);
        high = _mm256_subs_epi8(high, step);
    }
    return found;
}

AVX2 void map_avx2(uint8_t *values, size_t pixels, int channels, const uint8_t (*tables)[256]) {
    struct parts parts[3];
    for (int c = 0; c < channels; c++) set_parts(parts + c, tables[c]);
    const size_t step = 32 * (size_t)channels;
    for (; pixels >= 32; pixels -= 32, values += step) {
        if (channels == 1) {
            __m256i *at = (__m256i *)(void *)values;
            _mm256_storeu_si256(at, look_up(_mm256_loadu_si256(at), parts));
            continue;
        }
        struct planes planes = load_planes(values);
        planes.red = look_up(planes.red, parts);
        planes.green = look_up(planes.green, parts + 1);
        planes.blue = look_up(planes.blue, parts + 2);
        store_planes(values, planes);
    }
    map_plain(values, pixels, channels, tables);
}
#elif HAVE_NEON
INLINE uint32x4_t blend4(int16x4_t start, int16x4_t more, float factor) { /* clipped at 0 */
    return vcvtq_u32_f32(vcvtq_f32_s32(vmovl_s16(start)) + vcvtq_f32_s32(vmovl_s16(more)) * factor);
}

INLINE uint8x8_t blend8(uint8x8_t values, uint8x8_t from, float factor) {
    int16x8_t start = vreinterpretq_s16_u16(vmovl_u8(from)), more = vreinterpretq_s16_u16(vsubl_u8(values, from));
    uint16x4_t low = vqmovn_u32(blend4(vget_low_s16(start), vget_low_s16(more), factor));
    uint16x4_t high = vqmovn_u32(blend4(vget_high_s16(start), vget_high_s16(more), factor));
    return vqmovn_u16(vcombine_u16(low, high));
}

void blend_levels_neon(uint8_t *values, const uint8_t *from, size_t n, float factor) {
    for (; n >= 16; n -= 16, values += 16, from += 16) {
        uint8x16_t a = vld1q_u8(values), b = vld1q_u8(from);
        uint8x8_t low = blend8(vget_low_u8(a), vget_low_u8(b), factor);
        vst1q_u8(values, vcombine_u8(low, blend8(vget_high_u8(a), vget_high_u8(b), factor)));
    }
    blend_levels_plain(values, from, n, factor);
}

/* Looks 32 levels up, in quarters of the table: an instruction leaves levels as they are that are not in its quarter. */
INLINE void look_up(uint8x16_t x[2], const uint8_t table[256]) {
    const uint8x16x4_t first = vld1q_u8_x4(table), second = vld1q_u8_x4(table + 64);
    const uint8x16x4_t third = vld1q_u8_x4(table + 128), fourth = vld1q_u8_x4(table + 192);
    for (int i = 0; i < 2; i++) {
        uint8x16_t found = vqtbl4q_u8(first, x[i]);
        found = vqtbx4q_u8(found, second, vsubq_u8(x[i], vdupq_n_u8(64)));
        found = vqtbx4q_u8(found, third, vsubq_u8(x[i], vdupq_n_u8(128)));
        x[i] = vqtbx4q_u8(found, fourth, vsubq_u8(x[i], vdupq_n_u8(192)));
    }
}

void map_neon(uint8_t *values, size_t pixels, int channels, const uint8_t (*tables)[256]) {
    for (; channels == 1 && pixels >= 32; pixels -= 32, values += 32) {
        uint8x16_t x[2] = {vld1q_u8(values), vld1q_u8(values + 16)};
        look_up(x, tables[0]);
        vst1q_u8(values, x[0]);
        vst1q_u8(values + 16, x[1]);
    }
    for (; channels == 3 && pixels >= 32; pixels -= 32, values += 96) {
        uint8x16x3_t low = vld3q_u8(values), high = vld3q_u8(values + 48);
        for (int c = 0; c < 3; c++) {
            uint8x16_t x[2] = {low.val[c], high.val[c]};
            look_up(x, tables[c]);
            low.val[c] = x[0], high.val[c] = x[1];
        }
        vst3q_u8(values, low);
        vst3q_u8(values + 48, high);
    }
    map_plain(values, pixels, channels, tables);
}
#endif

static int map_all(const struct edit *edit, const uint8_t table[256]) {
    edit->kernels->map(edit->pixels, edit->size, 1, (const uint8_t (*)[256])table);
    return 0;
}

static int map_channels(const struct edit *edit, const uint8_t (*tables)[256]) {
    edit->kernels->map(edit->pixels, edit->size / (size_t)edit->channels, edit->channels, tables);
    return 0;
}

int apply_invert(const struct edit *edit) {
    uint8_t table[256];
    for (int i = 0; i < 256; i++) table[i] = (uint8_t)(255 - i);
    return map_all(edit, table);
}

int apply_posterize(const struct edit *edit) {
    uint8_t table[256];
    int mask = 0xff00 >> (int)edit->operation->values[0];
    for (int i = 0; i < 256; i++) table[i] = (uint8_t)(i & mask);
    return map_all(edit, table);
}

int apply_solarize(const struct edit *edit) {
    uint8_t table[256];
    for (int i = 0; i < 256; i++) table[i] = (uint8_t)(i < edit->operation->values[0] ? i : 255 - i);
    return map_all(edit, table);
}

int apply_autocontrast(const struct edit *edit) {
    uint8_t tables[3][256], lowest[3] = {255, 255, 255}, highest[3] = {0};
    edit->kernels->range(edit->pixels, edit->size, edit->channels, lowest, highest);
    for (int c = 0; c < edit->channels; c++) {
        int keep = highest[c] <= lowest[c];
        double scale = keep ? 1 : 255.0 / (highest[c] - lowest[c]), offset = keep ? 0 : -lowest[c] * scale;
        for (int i = 0; i < 256; i++) {
            double level = i * scale + offset;
            tables[c][i] = (uint8_t)(int)(level < 0 ? 0 : level > 255 ? 255 : level);
        }
    }
    return map_channels(edit, tables);
}

/* Sets a channel's table from its histogram. */
static void set_equalized(uint8_t *table, const uint32_t *histogram) {
    uint64_t total = 0, last = 0;
    for (int i = 0; i < 256; i++) {
        total += histogram[i];
        if (histogram[i]) last = histogram[i];
    }
    uint64_t step = (total - last) / 255, sum = step / 2;
    for (int i = 0; i < 256; sum += histogram[i++]) {
        uint64_t level = step ? sum / step : (uint64_t)i;
        table[i] = (uint8_t)(level < 255 ? level : 255);
    }
}

enum { COUNTERS = 4 }; /* of a level: a pixel often has that of the pixel before, whose count is not stored yet */

INLINE void count_any(uint32_t (*counts)[3][256], const uint8_t *values, size_t pixels, size_t channels) {
    for (; pixels >= COUNTERS; pixels -= COUNTERS, values += COUNTERS * channels)
        for (size_t i = 0; i < COUNTERS; i++)
            for (size_t c = 0; c < channels; c++) counts[i][c][values[i * channels + c]]++;
    for (size_t i = 0; i < pixels * channels; i++) counts[0][i % channels][values[i]]++;
}

int apply_equalize(const struct edit *edit) {
    uint32_t counts[COUNTERS][3][256] = {0};
    uint8_t tables[3][256];
    if (edit->channels == 3)
        count_any(counts, edit->pixels, edit->size / 3, 3);
    else
        count_any(counts, edit->pixels, edit->size, 1);
    for (int c = 0; c < edit->channels; c++) {
        for (int i = 0; i < 256; i++)
            for (int k = 1; k < COUNTERS; k++) counts[0][c][i] += counts[k][c][i];
        set_equalized(tables[c], counts[0][c]);
    }
    return map_channels(edit, tables);
}

/* Moves all levels away from `start`, or towards it, by the operation's factor. */
static int blend_all(const struct edit *edit, int start) {
    uint8_t table[256], from[256];
    memset(from, start, sizeof from);
    for (int i = 0; i < 256; i++) table[i] = (uint8_t)i;
    edit->kernels->blend(table, from, 256, (float)edit->operation->values[0]);
    return map_all(edit, table);
}

int apply_brightness(const struct edit *edit) { return blend_all(edit, 0); }

enum { CHUNK = 512 }; /* pixels whose luma is worked out at a time */

/* Returns the sum of the values, of RGB pixels: of the luma three times. */
static uint64_t sum_luma(const struct edit *edit) {
    uint8_t luma[3 * CHUNK];
    uint64_t sum = 0;
    for (size_t at = 0; at < edit->size; at += sizeof luma) {
        int n = (int)(edit->size - at < sizeof luma ? edit->size - at : sizeof luma);
        if (edit->channels == 3) edit->kernels->gray(luma, edit->pixels + at, n / 3);
        sum += edit->kernels->sum(edit->channels == 3 ? luma : edit->pixels + at, n);
    }
    return sum;
}

int apply_contrast(const struct edit *edit) {
    return blend_all(edit, (int)((double)sum_luma(edit) / (double)edit->size + 0.5));
}

int apply_saturation(const struct edit *edit) {
    uint8_t gray[3 * CHUNK];
    for (size_t at = 0; edit->channels == 3 && at < edit->size; at += sizeof gray) {
        size_t n = edit->size - at < sizeof gray ? edit->size - at : sizeof gray;
        edit->kernels->gray(gray, edit->pixels + at, (int)n / 3);
        edit->kernels->blend(edit->pixels + at, gray, n, (float)edit->operation->values[0]);
    }
    return 0;
}

int apply_hue(const struct edit *edit) {
    if (edit->channels == 3) edit->kernels->hue(edit->pixels, (int)edit->size / 3, (float)edit->operation->values[0]);
    return 0;
}

int apply_grayscale(const struct edit *edit) {
    if (edit->channels == 3) edit->kernels->gray(edit->pixels, edit->pixels, (int)edit->size / 3);
    return 0;
}
