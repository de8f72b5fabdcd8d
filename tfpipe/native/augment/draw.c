/* Draws what an augmentation does: torchvision.transforms.v2's distributions, from hashes in place of a generator's
 * state, so that a crop's operations depend on its key and the step's number alone. */
#include "draw.h"
#include "../hash.h"

#include <math.h>
#include <string.h>

#define PI 3.14159265358979323846

/* exp and log by functions that have not changed since glibc 2.2.5: those of glibc 2.29 would keep the library from
 * older systems. The error is below 1e-15 of the larger of 1 and the value. */
static double exponential(double x) { return expm1(x) + 1; }
static double logarithm(double x) { return log1p(x - 1); }

/* What the operations of a step share. */
struct step {
    const double *row, *arguments;
    int height, width;
    struct tfpipe_operation *next; /* operation to write */
    uint64_t key, count;           /* random numbers are the hashes of key + 1 * GAMMA, key + 2 * GAMMA, ... */
};

uint64_t tfpipe_crop_key(uint64_t seed, int64_t position, int64_t crop) {
    uint64_t key = hash(hash(seed + GAMMA) + GAMMA * (uint64_t)position);
    return hash(key + GAMMA * ((uint64_t)crop + 1));
}

/* Returns the next number, uniform in [0, 1). */
static double uniform(struct step *step) { return uniform_at(step->key, ++step->count); }

static double between(struct step *step, double low, double high) { return low + (high - low) * uniform(step); }

/* Returns the next number, an integer in [0, count). */
static int below(struct step *step, int count) { return (int)(uniform(step) * count); }

static double normal(struct step *step) { /* Box and Muller 1958 */
    double radius = sqrt(-2 * log1p(-uniform(step)));
    return radius * cos(2 * PI * uniform(step));
}

/* Returns the logarithm of a number of the gamma distribution of shape alpha (Marsaglia and Tsang 2000); as a logarithm,
 * since that of a small alpha is often below the smallest double. */
static double log_gamma(struct step *step, double alpha) {
    double more = alpha < 1 ? log1p(-uniform(step)) / alpha : 0;
    double d = (alpha < 1 ? alpha + 1 : alpha) - 1.0 / 3, c = 1 / sqrt(9 * d);
    for (;;) {
        double x = normal(step), v = 1 + c * x;
        if (v <= 0) continue;
        v = v * v * v;
        if (log1p(-uniform(step)) < 0.5 * x * x + d - d * v + d * logarithm(v)) return logarithm(d * v) + more;
    }
}

/* Sets `count` weights that sum to 1, of the symmetric Dirichlet distribution of alpha. */
static void dirichlet(struct step *step, double alpha, double *weights, int count) {
    double largest = -INFINITY, sum = 0;
    for (int i = 0; i < count; i++) {
        weights[i] = log_gamma(step, alpha);
        if (weights[i] > largest) largest = weights[i];
    }
    for (int i = 0; i < count; i++) sum += weights[i] = exponential(weights[i] - largest);
    for (int i = 0; i < count; i++) weights[i] /= sum;
}

static struct tfpipe_operation *add(struct step *step, int kind) {
    struct tfpipe_operation *operation = step->next++;
    memset(operation, 0, sizeof *operation);
    operation->kind = kind;
    for (int c = 0; c < 3; c++) operation->fill[c] = (uint8_t)step->row[TFPIPE_STEP_FILL + c];
    return operation;
}

static void add_value(struct step *step, int kind, double value) { add(step, kind)->values[0] = value; }

/* Adds a warp whose inverse map takes the point `to` to `from`; linear: its coefficients of x and y. */
static void add_warp(struct step *step, const double linear[4], const double from[2], const double to[2]) {
    struct tfpipe_operation *operation = add(step, TFPIPE_WARP);
    operation->interpolation = (int)step->row[TFPIPE_STEP_INTERPOLATION];
    for (int i = 0; i < 2; i++) {
        double *out = operation->values + 3 * i;
        out[0] = linear[2 * i], out[1] = linear[2 * i + 1];
        out[2] = from[i] - out[0] * to[0] - out[1] * to[1];
    }
}

struct motion {
    double degrees, x, y, scale, shear_x, shear_y; /* shifts in pixels, angles in degrees */
    double center[2];
};

/* Adds a warp by the inverse of: shear, rotate clockwise and scale about the center, then move
 * (_get_inverse_affine_matrix of torchvision). */
static void add_affine(struct step *step, const struct motion *m) {
    double angle = m->degrees * PI / 180, shear_x = m->shear_x * PI / 180, shear_y = m->shear_y * PI / 180;
    double a = cos(angle - shear_y) / cos(shear_y), b = -(a * tan(shear_x) + sin(angle));
    double c = sin(angle - shear_y) / cos(shear_y), d = cos(angle) - c * tan(shear_x);
    const double linear[4] = {d / m->scale, -b / m->scale, -c / m->scale, a / m->scale};
    add_warp(step, linear, m->center, (const double[]){m->center[0] + m->x, m->center[1] + m->y});
}

/* Returns a sine or cosine rounded to 15 digits, as Pillow's Image.rotate has it: a right angle is one exactly. */
static double round15(double x) { return rint(x * 1e15) / 1e15; }

/* Adds a rotation counterclockwise, as Pillow's Image.rotate. */
static void add_rotation(struct step *step, double degrees, double x, double y) {
    double angle = fmod(degrees, 360);
    angle = -(angle < 0 ? angle + 360 : angle) * PI / 180;
    const double linear[4] = {round15(cos(angle)), round15(sin(angle)), round15(-sin(angle)), round15(cos(angle))};
    add_warp(step, linear, (const double[]){x, y}, (const double[]){x, y});
}

/* Operations that policies choose from: the identity and those of either sign, then those without a sign. */
enum { IDENTITY, SHEAR_X, SHEAR_Y, TRANSLATE_X, TRANSLATE_Y, ROTATE, BRIGHTNESS, COLOR, CONTRAST, SHARPNESS };
enum { POSTERIZE = SHARPNESS + 1, SOLARIZE, AUTOCONTRAST, EQUALIZE, INVERT };

/* Largest magnitudes of a policy; those of choices without one are 0. */
struct space {
    double shear, rotate, blend;
    double move, move_share; /* pixels, or a share of the side */
    int bits, fewer;         /* bits kept by a posterization of magnitude 0, and how many fewer by the largest */
};

static const struct space RAND = {
    .shear = 0.3, .rotate = 30, .blend = 0.9, .move_share = 150.0 / 331, .bits = 8, .fewer = 4};
static const struct space WIDE = {.shear = 0.99, .rotate = 135, .blend = 0.99, .move = 32, .bits = 8, .fewer = 6};
static const struct space AUGMIX = {
    .shear = 0.3, .rotate = 30, .blend = 0.9, .move_share = 1.0 / 3, .bits = 4, .fewer = 4};

static int is_signed(int choice) { return choice >= SHEAR_X && choice <= SHARPNESS; }

/* Returns number `bin` of `bins` magnitudes from `first` to `last`: torch.linspace's float, which is counted from the
 * nearer end and rounded once. */
static double magnitude(double first, double last, int bin, int bins) {
    const float from = (float)first, to = (float)last, step = (to - from) / (float)(bins - 1);
    return (float)(bin < bins / 2 ? from + (double)step * bin : to - (double)step * (bins - 1 - bin));
}

/* Adds an operation with the magnitude number `bin` of `bins`, of either sign if it has one. */
static void add_choice(struct step *step, const struct space *space, int choice, int bin, int bins) {
    const double sign = is_signed(choice) && uniform(step) <= 0.5 ? -1 : 1;
    const double across = space->move + space->move_share * step->width,
                 down = space->move + space->move_share * step->height;
    const double shear = sign * magnitude(0, space->shear, bin, bins);
    const double factor = 1 + sign * magnitude(0, space->blend, bin, bins);
    struct motion motion = {.scale = 1};
    int moved = choice == TRANSLATE_X || choice == TRANSLATE_Y;
    if (moved) motion.center[0] = step->width * 0.5, motion.center[1] = step->height * 0.5;
    switch (choice) {
    case SHEAR_X: motion.shear_x = atan(shear) * 180 / PI; break;
    case SHEAR_Y: motion.shear_y = atan(shear) * 180 / PI; break;
    case TRANSLATE_X: motion.x = trunc(sign * magnitude(0, across, bin, bins)); break;
    case TRANSLATE_Y: motion.y = trunc(sign * magnitude(0, down, bin, bins)); break;
    case ROTATE:
        add_rotation(step, sign * magnitude(0, space->rotate, bin, bins), step->width / 2.0, step->height / 2.0);
        return;
    case BRIGHTNESS: add_value(step, TFPIPE_BRIGHTNESS, factor); return;
    case COLOR: add_value(step, TFPIPE_SATURATION, factor); return;
    case CONTRAST: add_value(step, TFPIPE_CONTRAST, factor); return;
    case SHARPNESS: add_value(step, TFPIPE_SHARPNESS, factor); return;
    case POSTERIZE:
        add_value(step, TFPIPE_POSTERIZE,
                  rintf((float)space->bits - (float)bin / (float)((bins - 1) / (double)space->fewer)));
        return;
    case SOLARIZE: add_value(step, TFPIPE_SOLARIZE, 255 * magnitude(1, 0, bin, bins)); return;
    case AUTOCONTRAST: add(step, TFPIPE_AUTOCONTRAST); return;
    case EQUALIZE: add(step, TFPIPE_EQUALIZE); return;
    case INVERT: add(step, TFPIPE_INVERT); return;
    default: return;
    }
    add_affine(step, &motion);
}

static void draw_one(struct step *step) { add_value(step, (int)step->arguments[0], step->arguments[1]); }

static void draw_rand(struct step *step) {
    for (int i = 0; i < (int)step->arguments[0]; i++)
        add_choice(step, &RAND, below(step, INVERT), (int)step->arguments[2], (int)step->arguments[1]);
}

static void draw_trivial(struct step *step) {
    int choice = below(step, INVERT), bins = (int)step->arguments[0];
    add_choice(step, &WIDE, choice, below(step, bins), bins);
}

/* AutoAugment's policy learned on ImageNet (Cubuk et al. 2019, Table 9): pairs of an operation, how often in ten it is
 * applied, and the number of its magnitude, of ten. */
static const struct {
    int8_t choice, tenths, bin;
} IMAGENET[25][2] = {
    {{POSTERIZE, 4, 8}, {ROTATE, 6, 9}},  {{SOLARIZE, 6, 5}, {AUTOCONTRAST, 6, 0}},
    {{EQUALIZE, 8, 0}, {EQUALIZE, 6, 0}}, {{POSTERIZE, 6, 7}, {POSTERIZE, 6, 6}},
    {{EQUALIZE, 4, 0}, {SOLARIZE, 2, 4}}, {{EQUALIZE, 4, 0}, {ROTATE, 8, 8}},
    {{SOLARIZE, 6, 3}, {EQUALIZE, 6, 0}}, {{POSTERIZE, 8, 5}, {EQUALIZE, 10, 0}},
    {{ROTATE, 2, 3}, {SOLARIZE, 6, 8}},   {{EQUALIZE, 6, 0}, {POSTERIZE, 4, 6}},
    {{ROTATE, 8, 8}, {COLOR, 4, 0}},      {{ROTATE, 4, 9}, {EQUALIZE, 6, 0}},
    {{EQUALIZE, 0, 0}, {EQUALIZE, 8, 0}}, {{INVERT, 6, 0}, {EQUALIZE, 10, 0}},
    {{COLOR, 6, 4}, {CONTRAST, 10, 8}},   {{ROTATE, 8, 8}, {COLOR, 10, 2}},
    {{COLOR, 8, 8}, {SOLARIZE, 8, 7}},    {{SHARPNESS, 4, 7}, {INVERT, 6, 0}},
    {{SHEAR_X, 6, 5}, {EQUALIZE, 10, 0}}, {{COLOR, 4, 0}, {EQUALIZE, 6, 0}},
    {{EQUALIZE, 4, 0}, {SOLARIZE, 2, 4}}, {{SOLARIZE, 6, 5}, {AUTOCONTRAST, 6, 0}},
    {{INVERT, 6, 0}, {EQUALIZE, 10, 0}},  {{COLOR, 6, 4}, {CONTRAST, 10, 8}},
    {{EQUALIZE, 8, 0}, {EQUALIZE, 6, 0}},
};

static void draw_auto(struct step *step) {
    int pair = below(step, 25);
    for (int i = 0; i < 2; i++)
        if (uniform(step) < IMAGENET[pair][i].tenths / 10.0)
            add_choice(step, &RAND, IMAGENET[pair][i].choice, IMAGENET[pair][i].bin, 10);
}

enum { MOST_CHAINS = 8, MOST_DEPTH = 8, MOST_RAND = 16 };
_Static_assert(2 + MOST_CHAINS * (MOST_DEPTH + 1) <= (int)TFPIPE_MOST && (int)MOST_RAND <= (int)TFPIPE_MOST,
               "a step may overflow");

static void draw_mix(struct step *step) {
    static const int8_t ALL[] = {SHEAR_X,      SHEAR_Y,  TRANSLATE_X, TRANSLATE_Y, ROTATE,   POSTERIZE, SOLARIZE,
                                 AUTOCONTRAST, EQUALIZE, BRIGHTNESS,  COLOR,       CONTRAST, SHARPNESS};
    const int severity = (int)step->arguments[0], chains = (int)step->arguments[1], depth = (int)step->arguments[2];
    const int choices = step->arguments[4] != 0 ? (int)sizeof ALL : 9;
    double kept[2], weights[MOST_CHAINS];
    dirichlet(step, step->arguments[3], kept, 2);
    dirichlet(step, step->arguments[3], weights, chains);
    add_value(step, TFPIPE_SAVE, kept[0]);
    for (int chain = 0; chain < chains; chain++) {
        int operations = depth > 0 ? depth : 1 + below(step, 3);
        for (int i = 0; i < operations; i++) {
            int choice = ALL[below(step, choices)];
            add_choice(step, &AUGMIX, choice, below(step, severity), 10);
        }
        add_value(step, TFPIPE_ADD, kept[1] * weights[chain]);
    }
    add(step, TFPIPE_LOAD);
}

static void draw_jitter(struct step *step) {
    static const int KINDS[4] = {TFPIPE_BRIGHTNESS, TFPIPE_CONTRAST, TFPIPE_SATURATION, TFPIPE_HUE};
    int order[4] = {0, 1, 2, 3};
    for (int i = 3; i > 0; i--) { /* Fisher and Yates */
        int other = below(step, i + 1), own = order[i];
        order[i] = order[other];
        order[other] = own;
    }
    double factors[4];
    for (int i = 0; i < 4; i++) factors[i] = between(step, step->arguments[2 * i], step->arguments[2 * i + 1]);
    for (int i = 0; i < 4; i++) {
        const double *range = step->arguments + 2 * order[i], unchanged = order[i] == 3 ? 0 : 1;
        if (range[0] != unchanged || range[1] != unchanged) add_value(step, KINDS[order[i]], factors[order[i]]);
    }
}

static void draw_blur(struct step *step) {
    struct tfpipe_operation *operation = add(step, TFPIPE_BLUR);
    for (int i = 0; i < 2; i++) operation->values[i] = step->arguments[i];
    operation->values[2] = operation->values[3] = between(step, step->arguments[2], step->arguments[3]);
}

static void draw_rotation(struct step *step) {
    double degrees = between(step, step->arguments[0], step->arguments[1]);
    int given = step->arguments[2] != 0;
    add_rotation(step, degrees, given ? step->arguments[3] : step->width / 2.0,
                 given ? step->arguments[4] : step->height / 2.0);
}

static void draw_affine(struct step *step) {
    const double *a = step->arguments;
    struct motion motion = {.degrees = between(step, a[0], a[1])};
    motion.x = rint(between(step, -a[2] * step->width, a[2] * step->width));
    motion.y = rint(between(step, -a[3] * step->height, a[3] * step->height));
    motion.scale = between(step, a[4], a[5]);
    motion.shear_x = between(step, a[6], a[7]);
    motion.shear_y = between(step, a[8], a[9]);
    motion.center[0] = a[10] != 0 ? a[11] : step->width * 0.5;
    motion.center[1] = a[10] != 0 ? a[12] : step->height * 0.5;
    add_affine(step, &motion);
}

static void draw_erase(struct step *step) {
    const double *a = step->arguments, area = (double)step->height * step->width;
    for (int attempt = 0; attempt < 10; attempt++) {
        double erased = area * between(step, a[0], a[1]),
               ratio = exponential(between(step, logarithm(a[2]), logarithm(a[3])));
        double height = rint(sqrt(erased * ratio)), width = rint(sqrt(erased / ratio));
        if (height >= step->height || width >= step->width) continue;
        struct tfpipe_operation *operation = add(step, a[4] != 0 ? TFPIPE_ERASE_NOISE : TFPIPE_ERASE);
        operation->values[0] = below(step, step->height - (int)height + 1);
        operation->values[1] = below(step, step->width - (int)width + 1);
        operation->values[2] = height;
        operation->values[3] = width;
        operation->seed = hash(step->key + GAMMA * ++step->count);
        return;
    }
}

/* Limits of a step's numbers, the same as in tfpipe/config/augment.py. */
static const double LEAST = 1e-6, MOST = 1e6, MOST_SHEAR = 89;

/* Returns whether `count` numbers are within limits. */
static int within(const double *numbers, int count, double least, double most) {
    for (int i = 0; i < count; i++)
        if (!(numbers[i] >= least && numbers[i] <= most)) return 0; /* nor NaN */
    return 1;
}

/* Returns whether `count` pairs, smallest and largest, are within limits. */
static int are_spans(const double *pairs, int count, double least, double most) {
    for (int i = 0; i < count; i++)
        if (pairs[2 * i] > pairs[2 * i + 1]) return 0;
    return within(pairs, 2 * count, least, most);
}

static int is_single(const double *a) {
#define ROW(kind, apply, values, most) most,
    static const double MOST_OF[] = {TFPIPE_OPERATIONS(ROW)};
#undef ROW
    return a[0] >= 0 && a[0] < TFPIPE_KINDS && within(a + 1, 1, 0, MOST_OF[(int)a[0]]);
}

/* Returns whether a step's numbers are those that a config may have. */
static int is_valid(const double *row) {
    const double *a = row + TFPIPE_STEP_ARGUMENTS;
    if (!within(row, TFPIPE_COLUMNS, -MOST, MOST + 1) || !within(row + TFPIPE_STEP_P, 1, 0, 1) ||
        !within(row + TFPIPE_STEP_FILL, 3, 0, 255))
        return 0;
    switch ((int)row[0]) {
    case TFPIPE_STEP_ONE: return is_single(a);
    case TFPIPE_STEP_RAND: return within(a, 1, 0, MOST_RAND) && within(a + 1, 1, 2, 1000) && a[2] >= 0 && a[2] < a[1];
    case TFPIPE_STEP_TRIVIAL: return within(a, 1, 2, 1000);
    case TFPIPE_STEP_MIX:
        return within(a, 1, 1, 10) && within(a + 1, 1, 1, MOST_CHAINS) && within(a + 2, 1, -1, MOST_DEPTH) &&
               within(a + 3, 1, LEAST, MOST);
    case TFPIPE_STEP_JITTER: /* a brightness of 1e6 is a factor of up to one more */
        return are_spans(a, 3, 0, MOST + 1) && are_spans(a + 6, 1, -0.5, 0.5);
    case TFPIPE_STEP_BLUR: return are_spans(a + 2, 1, LEAST, MOST);
    case TFPIPE_STEP_ROTATION: return are_spans(a, 1, -MOST, MOST);
    case TFPIPE_STEP_AFFINE:
        return are_spans(a, 1, -MOST, MOST) && within(a + 2, 2, 0, 1) && are_spans(a + 4, 1, LEAST, MOST) &&
               are_spans(a + 6, 2, -MOST_SHEAR, MOST_SHEAR);
    case TFPIPE_STEP_ERASE: return are_spans(a, 1, 0, 1) && are_spans(a + 2, 1, LEAST, MOST);
    default: return row[0] >= 0 && row[0] < TFPIPE_STEP_KINDS;
    }
}

static void (*const DRAW[])(struct step *) = {
#define ROW(name, kind, draw) draw,
    TFPIPE_STEPS(ROW)};

int tfpipe_draw(const double *row, uint64_t key, int number, int height, int width,
                struct tfpipe_operation operations[TFPIPE_MOST]) {
    if (!is_valid(row)) return -1;
    struct step step = {
        row, row + TFPIPE_STEP_ARGUMENTS, height, width, operations, hash(key + GAMMA * ((uint64_t)number + 1)), 0};
    if (uniform(&step) >= row[TFPIPE_STEP_P]) return 0;
    DRAW[(int)row[0]](&step);
    return (int)(step.next - operations);
}

int tfpipe_augment(tfpipe_scratch *scratch, uint8_t *pixels, int height, int width, int channels, const double *rows,
                   int steps, uint64_t key) {
    struct tfpipe_operation operations[TFPIPE_MOST];
    for (int i = 0; i < steps; i++) {
        int count = tfpipe_draw(rows + i * TFPIPE_COLUMNS, key, i, height, width, operations);
        if (count < 0) return TFPIPE_ARGUMENT;
        int status = count ? tfpipe_operate(scratch, pixels, height, width, channels, operations, count) : 0;
        if (status) return status;
    }
    return 0;
}
