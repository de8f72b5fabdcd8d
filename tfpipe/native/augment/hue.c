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

AVX2 INLINE __m256 pick(__m256 no, __m256 yes, __m256 mask) { return _mm256_blendv_ps(no, yes, mask); }

AVX2 INLINE __m256 unit8(__m256 x) { return _mm256_min_ps(_mm256_max_ps(x, _mm256_setzero_ps()), _mm256_set1_ps(1)); }

AVX2 INLINE __m256 floats(const uint8_t *at) { /* 8 levels, of [0, 1] */
    __m256i levels = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)at));
    return _mm256_mul_ps(_mm256_cvtepi32_ps(levels), _mm256_set1_ps(1 / 255.0f));
}

AVX2 INLINE void store_levels(uint8_t *at, __m256 values) {
    __m256i levels = _mm256_cvttps_epi32(_mm256_mul_ps(values, _mm256_set1_ps(255.999f)));
    __m128i words = _mm_packs_epi32(_mm256_castsi256_si128(levels), _mm256_extracti128_si256(levels, 1));
    _mm_storel_epi64((__m128i *)(void *)at, _mm_packus_epi16(words, words));
}

/* Returns the hue, in sextants of [0, 6), turned by a shift; see turn_pixel. */
AVX2 INLINE __m256 turned(__m256 r, __m256 g, __m256 b, __m256 most, __m256 divisor, __m256 shift) {
    const __m256 zero = _mm256_setzero_ps(), one = _mm256_set1_ps(1), two = _mm256_set1_ps(2);
    __m256 to_r = _mm256_div_ps(_mm256_sub_ps(most, r), divisor);
    __m256 to_g = _mm256_div_ps(_mm256_sub_ps(most, g), divisor);
    __m256 to_b = _mm256_div_ps(_mm256_sub_ps(most, b), divisor);
    __m256 hue = _mm256_sub_ps(_mm256_add_ps(to_g, _mm256_set1_ps(4)), to_r);
    hue = pick(hue, _mm256_sub_ps(_mm256_add_ps(to_r, two), to_b), _mm256_cmp_ps(most, g, _CMP_EQ_OQ));
    hue = pick(hue, _mm256_sub_ps(to_b, to_g), _mm256_cmp_ps(most, r, _CMP_EQ_OQ));
    hue = _mm256_add_ps(_mm256_mul_ps(hue, _mm256_set1_ps(1 / 6.0f)), one);
    hue = _mm256_add_ps(_mm256_sub_ps(hue, _mm256_floor_ps(hue)), shift);
    hue = _mm256_add_ps(hue, _mm256_and_ps(_mm256_cmp_ps(hue, zero, _CMP_LT_OQ), one));
    hue = _mm256_sub_ps(hue, _mm256_and_ps(_mm256_cmp_ps(hue, one, _CMP_GE_OQ), one));
    return _mm256_mul_ps(hue, _mm256_set1_ps(6));
}

/* Turns 8 pixels of three planes. */
AVX2 INLINE void turn8(uint8_t *red, uint8_t *green, uint8_t *blue, __m256 shift) {
    const __m256 one = _mm256_set1_ps(1);
    __m256 r = floats(red), g = floats(green), b = floats(blue);
    __m256 most = _mm256_max_ps(_mm256_max_ps(r, g), b), least = _mm256_min_ps(_mm256_min_ps(r, g), b);
    __m256 spread = _mm256_sub_ps(most, least), colour = _mm256_cmp_ps(spread, _mm256_setzero_ps(), _CMP_GT_OQ);
    __m256 saturation = _mm256_div_ps(spread, pick(one, most, colour));
    __m256 hue = turned(r, g, b, most, pick(one, spread, colour), shift), sextant = _mm256_floor_ps(hue);
    __m256 product = _mm256_mul_ps(saturation, _mm256_sub_ps(hue, sextant)), rest = _mm256_sub_ps(one, saturation);
    __m256 q = unit8(_mm256_mul_ps(_mm256_sub_ps(one, product), most));
    __m256 t = unit8(_mm256_mul_ps(_mm256_add_ps(product, rest), most));
    __m256 p = unit8(_mm256_mul_ps(rest, most));
#define IS(k) _mm256_cmp_ps(sextant, _mm256_set1_ps(k), _CMP_EQ_OQ)
    __m256 is0 = IS(0), is1 = IS(1), is2 = IS(2), is3 = IS(3), is4 = IS(4), is5 = IS(5);
#undef IS
    store_levels(red, pick(pick(pick(p, q, is1), t, is4), most, _mm256_or_ps(is0, is5)));
    store_levels(green, pick(pick(pick(p, q, is3), t, is0), most, _mm256_or_ps(is1, is2)));
    store_levels(blue, pick(pick(pick(p, q, is5), t, is2), most, _mm256_or_ps(is3, is4)));
}

AVX2 void hue_avx2(uint8_t *pixels, int n, float shift) {
    for (; n >= 32; n -= 32, pixels += 96) {
        union {
            struct planes planes;
            uint8_t bytes[3][32];
        } block = {load_planes(pixels)};
        for (int i = 0; i < 32; i += 8)
            turn8(block.bytes[0] + i, block.bytes[1] + i, block.bytes[2] + i, _mm256_set1_ps(shift));
        store_planes(pixels, block.planes);
    }
    hue_plain(pixels, n, shift);
}
#elif HAVE_NEON
/* Four pixels, of [0, 1]. */
struct colours {
    float32x4_t red, green, blue;
};

INLINE float32x4_t whole(float32x4_t x) { return vcvtq_f32_s32(vcvtq_s32_f32(x)); } /* of what is not negative */

INLINE float32x4_t one_if(uint32x4_t mask) {
    return vreinterpretq_f32_u32(vandq_u32(mask, vreinterpretq_u32_f32(vdupq_n_f32(1))));
}

INLINE float32x4_t unit4(float32x4_t x) { return vminq_f32(vmaxq_f32(x, vdupq_n_f32(0)), vdupq_n_f32(1)); }

/* Returns the hue, in sextants of [0, 6), turned by a shift; see turn_pixel. */
INLINE float32x4_t turned(struct colours in, float32x4_t most, float32x4_t divisor, float shift) {
    float32x4_t to_r = vdivq_f32(vsubq_f32(most, in.red), divisor);
    float32x4_t to_g = vdivq_f32(vsubq_f32(most, in.green), divisor);
    float32x4_t to_b = vdivq_f32(vsubq_f32(most, in.blue), divisor);
    float32x4_t hue = vsubq_f32(vaddq_f32(to_g, vdupq_n_f32(4)), to_r);
    hue = vbslq_f32(vceqq_f32(most, in.green), vsubq_f32(vaddq_f32(to_r, vdupq_n_f32(2)), to_b), hue);
    hue = vbslq_f32(vceqq_f32(most, in.red), vsubq_f32(to_b, to_g), hue);
    hue = vaddq_f32(vmulq_n_f32(hue, 1 / 6.0f), vdupq_n_f32(1));
    hue = vaddq_f32(vsubq_f32(hue, whole(hue)), vdupq_n_f32(shift));
    hue = vaddq_f32(hue, one_if(vcltq_f32(hue, vdupq_n_f32(0))));
    hue = vsubq_f32(hue, one_if(vcgeq_f32(hue, vdupq_n_f32(1))));
    return vmulq_n_f32(hue, 6);
}

INLINE struct colours turn4(struct colours in, float shift) {
    const float32x4_t one = vdupq_n_f32(1);
    float32x4_t most = vmaxq_f32(vmaxq_f32(in.red, in.green), in.blue);
    float32x4_t spread = vsubq_f32(most, vminq_f32(vminq_f32(in.red, in.green), in.blue));
    uint32x4_t colour = vcgtq_f32(spread, vdupq_n_f32(0));
    float32x4_t saturation = vdivq_f32(spread, vbslq_f32(colour, most, one));
    float32x4_t hue = turned(in, most, vbslq_f32(colour, spread, one), shift), sextant = whole(hue);
    float32x4_t product = vmulq_f32(saturation, vsubq_f32(hue, sextant)), rest = vsubq_f32(one, saturation);
    float32x4_t q = unit4(vmulq_f32(vsubq_f32(one, product), most));
    float32x4_t t = unit4(vmulq_f32(vaddq_f32(product, rest), most)), p = unit4(vmulq_f32(rest, most));
#define IS(k) vceqq_f32(sextant, vdupq_n_f32(k))
    uint32x4_t is0 = IS(0), is1 = IS(1), is2 = IS(2), is3 = IS(3), is4 = IS(4), is5 = IS(5);
#undef IS
#define PICK(of_q, of_t, a, b) vbslq_f32(vorrq_u32(a, b), most, vbslq_f32(of_t, t, vbslq_f32(of_q, q, p)))
    return (struct colours){PICK(is1, is4, is0, is5), PICK(is3, is0, is1, is2), PICK(is5, is2, is3, is4)};
#undef PICK
}

INLINE float32x4_t floats(const uint16_t *at) { /* 4 levels, of [0, 1] */
    return vmulq_n_f32(vcvtq_f32_u32(vmovl_u16(vld1_u16(at))), 1 / 255.0f);
}

INLINE void store_levels(uint16_t *at, float32x4_t values) {
    vst1_u16(at, vmovn_u32(vcvtq_u32_f32(vmulq_n_f32(values, 255.999f))));
}

void hue_neon(uint8_t *pixels, int n, float shift) {
    for (; n >= 8; n -= 8, pixels += 24) {
        uint16_t planes[3][8];
        uint8x8x3_t rgb = vld3_u8(pixels);
        for (int c = 0; c < 3; c++) vst1q_u16(planes[c], vmovl_u8(rgb.val[c]));
        for (int i = 0; i < 8; i += 4) {
            struct colours in = {floats(planes[0] + i), floats(planes[1] + i), floats(planes[2] + i)};
            struct colours out = turn4(in, shift);
            store_levels(planes[0] + i, out.red);
            store_levels(planes[1] + i, out.green);
            store_levels(planes[2] + i, out.blue);
        }
        for (int c = 0; c < 3; c++) rgb.val[c] = vmovn_u16(vld1q_u16(planes[c]));
        vst3_u8(pixels, rgb);
    }
    hue_plain(pixels, n, shift);
}
#endif
