/* Luma and hue of RGB pixels. */
#include "edit.h"
#include "planes.h"

/* Luma, as of Pillow's convert("L"): weights of 1 << 16. */
enum { RED = 19595, GREEN = 38470, BLUE = 7471 };
_Static_assert(RED + GREEN + BLUE == 1 << 16, "the luma of gray is another gray");

void luma_plain(uint8_t *out, const uint8_t *in, int n) {
    for (int i = 0; i < n; i++, out += 3, in += 3)
        out[0] = out[1] = out[2] = (uint8_t)((RED * in[0] + GREEN * in[1] + BLUE * in[2] + 0x8000) >> 16);
}

static float smaller(float a, float b) { return a < b ? a : b; }
static float larger(float a, float b) { return a > b ? a : b; }
static float unit(float x) { return smaller(larger(x, 0), 1); }

/* torchvision's adjust_hue (functional/_color.py), in the same steps of float32: RGB to HSV, the turn, and back. */
static void turn_pixel(uint8_t *pixel, float shift) {
    float r = (float)pixel[0] * (1 / 255.0f), g = (float)pixel[1] * (1 / 255.0f), b = (float)pixel[2] * (1 / 255.0f);
    float most = larger(larger(r, g), b), least = smaller(smaller(r, g), b), spread = most - least;
    float saturation = spread / (spread > 0 ? most : 1), divisor = spread > 0 ? spread : 1;
    float to_r = (most - r) / divisor, to_g = (most - g) / divisor, to_b = (most - b) / divisor;
    float hue = most == r ? to_b - to_g : most == g ? to_r + 2 - to_b : to_g + 4 - to_r;
    hue = hue * (1 / 6.0f) + 1;
    hue = hue - (float)(int)hue + shift;
    hue += hue < 0 ? 1.0f : 0.0f;
    hue -= hue >= 1 ? 1.0f : 0.0f;
    hue *= 6;
    int sextant = (int)hue;
    float part = hue - (float)sextant, product = saturation * part, rest = 1 - saturation;
    float q = unit((1 - product) * most), t = unit((product + rest) * most), p = unit(rest * most);
    const float levels[6][3] = {{most, t, p}, {q, most, p}, {p, most, t}, {p, q, most}, {t, p, most}, {most, p, q}};
    for (int c = 0; c < 3; c++) pixel[c] = (uint8_t)(int)(levels[sextant][c] * 255.999f);
}

void hue_plain(uint8_t *pixels, int n, float shift) {
    for (int i = 0; i < n; i++) turn_pixel(pixels + 3 * i, shift);
}

#if HAVE_AVX2 || HAVE_NEON
/* Vectors of floats, which compilers have the operators of; a mask's lanes are 0 or -1. Levels are loaded as [0, 1]. */
#if HAVE_AVX2
#define VECTOR AVX2 INLINE
typedef __m256 floats;
typedef int32_t mask __attribute__((vector_size(32)));
typedef uint8_t level;
VECTOR floats larger_of(floats a, floats b) { return _mm256_max_ps(a, b); }
VECTOR floats smaller_of(floats a, floats b) { return _mm256_min_ps(a, b); }
VECTOR floats whole(floats x) { return _mm256_floor_ps(x); }
VECTOR floats pick(floats no, floats yes, mask chosen) { return _mm256_blendv_ps(no, yes, (floats)chosen); }

VECTOR floats load_levels(const level *at) {
    __m256i levels = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)at));
    return _mm256_cvtepi32_ps(levels) * (1 / 255.0f);
}

VECTOR void store_levels(level *at, floats values) {
    __m256i levels = _mm256_cvttps_epi32(values * 255.999f);
    __m128i words = _mm_packs_epi32(_mm256_castsi256_si128(levels), _mm256_extracti128_si256(levels, 1));
    _mm_storel_epi64((__m128i *)(void *)at, _mm_packus_epi16(words, words));
}
#else
#define VECTOR INLINE
typedef float32x4_t floats;
typedef int32_t mask __attribute__((vector_size(16)));
typedef uint16_t level;
VECTOR floats larger_of(floats a, floats b) { return vmaxq_f32(a, b); }
VECTOR floats smaller_of(floats a, floats b) { return vminq_f32(a, b); }
VECTOR floats whole(floats x) { return vcvtq_f32_s32(vcvtq_s32_f32(x)); } /* of what is not negative */
VECTOR floats pick(floats no, floats yes, mask chosen) { return vbslq_f32((uint32x4_t)chosen, yes, no); }
VECTOR floats load_levels(const level *at) { return vcvtq_f32_u32(vmovl_u16(vld1_u16(at))) * (1 / 255.0f); }
VECTOR void store_levels(level *at, floats values) { vst1_u16(at, vmovn_u32(vcvtq_u32_f32(values * 255.999f))); }
#endif

VECTOR floats unit_of(floats x) { return smaller_of(larger_of(x, (floats){0}), (floats){0} + 1); }

/* Returns the hue, in sextants of [0, 6), turned by a shift; see turn_pixel. */
VECTOR floats turned(floats r, floats g, floats b, floats most, floats divisor, float shift) {
    const floats zero = {0}, one = zero + 1;
    floats to_r = (most - r) / divisor, to_g = (most - g) / divisor, to_b = (most - b) / divisor;
    floats hue = to_g + 4 - to_r;
    hue = pick(hue, to_r + 2 - to_b, most == g);
    hue = pick(hue, to_b - to_g, most == r);
    hue = hue * (1 / 6.0f) + 1;
    hue = hue - whole(hue) + shift;
    hue += pick(zero, one, hue < zero);
    hue -= pick(zero, one, hue >= one);
    return hue * 6;
}

/* Turns a vector of pixels of three planes. */
VECTOR void turn(level *red, level *green, level *blue, float shift) {
    const floats zero = {0}, one = zero + 1, r = load_levels(red), g = load_levels(green), b = load_levels(blue);
    floats most = larger_of(larger_of(r, g), b);
    floats spread = most - smaller_of(smaller_of(r, g), b);
    mask colour = spread > zero;
    floats saturation = spread / pick(one, most, colour);
    floats hue = turned(r, g, b, most, pick(one, spread, colour), shift), sextant = whole(hue);
    floats product = saturation * (hue - sextant), rest = one - saturation;
    floats q = unit_of((one - product) * most), t = unit_of((product + rest) * most), p = unit_of(rest * most);
    mask is0 = sextant == zero, is1 = sextant == zero + 1, is2 = sextant == zero + 2;
    mask is3 = sextant == zero + 3, is4 = sextant == zero + 4, is5 = sextant == zero + 5;
    store_levels(red, pick(pick(pick(p, q, is1), t, is4), most, is0 | is5));
    store_levels(green, pick(pick(pick(p, q, is3), t, is0), most, is1 | is2));
    store_levels(blue, pick(pick(pick(p, q, is5), t, is2), most, is3 | is4));
}
#endif

#if HAVE_AVX2
/* Luma of 8 pixels: bytes red, green and green, blue in turn. Half of green's weight is in each product. */
AVX2 INLINE __m256i luma8(__m256i red_green, __m256i green_blue) {
    const __m256i first = _mm256_set1_epi32(RED | GREEN / 2 << 16), second = _mm256_set1_epi32(GREEN / 2 | BLUE << 16);
    __m256i sum = _mm256_add_epi32(_mm256_madd_epi16(red_green, first), _mm256_madd_epi16(green_blue, second));
    return _mm256_srli_epi32(_mm256_add_epi32(sum, _mm256_set1_epi32(0x8000)), 16);
}

AVX2 void luma_avx2(uint8_t *out, const uint8_t *in, int n) {
    const __m256i zero = _mm256_setzero_si256();
    for (; n >= 32; n -= 32, in += 96, out += 96) {
        struct planes planes = load_planes(in);
        __m256i luma[2];
        for (int half = 0; half < 2; half++) {
            __m256i red_green =
                half ? _mm256_unpackhi_epi8(planes.red, planes.green) : _mm256_unpacklo_epi8(planes.red, planes.green);
            __m256i green_blue = half ? _mm256_unpackhi_epi8(planes.green, planes.blue)
                                      : _mm256_unpacklo_epi8(planes.green, planes.blue);
            luma[half] = _mm256_packs_epi32(
                luma8(_mm256_unpacklo_epi8(red_green, zero), _mm256_unpacklo_epi8(green_blue, zero)),
                luma8(_mm256_unpackhi_epi8(red_green, zero), _mm256_unpackhi_epi8(green_blue, zero)));
        }
        __m256i gray = _mm256_packus_epi16(luma[0], luma[1]);
        store_planes(out, (struct planes){gray, gray, gray});
    }
    luma_plain(out, in, n);
}

AVX2 void hue_avx2(uint8_t *pixels, int n, float shift) {
    for (; n >= 32; n -= 32, pixels += 96) {
        union {
            struct planes planes;
            level bytes[3][32];
        } block = {load_planes(pixels)};
        for (int i = 0; i < 32; i += 8) turn(block.bytes[0] + i, block.bytes[1] + i, block.bytes[2] + i, shift);
        store_planes(pixels, block.planes);
    }
    hue_plain(pixels, n, shift);
}
#elif HAVE_NEON
void hue_neon(uint8_t *pixels, int n, float shift) {
    for (; n >= 8; n -= 8, pixels += 24) {
        level planes[3][8];
        uint8x8x3_t rgb = vld3_u8(pixels);
        for (int c = 0; c < 3; c++) vst1q_u16(planes[c], vmovl_u8(rgb.val[c]));
        for (int i = 0; i < 8; i += 4) turn(planes[0] + i, planes[1] + i, planes[2] + i, shift);
        for (int c = 0; c < 3; c++) rgb.val[c] = vmovn_u16(vld1q_u16(planes[c]));
        vst3_u8(pixels, rgb);
    }
    hue_plain(pixels, n, shift);
}
#endif
