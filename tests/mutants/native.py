"""Faults in the C: off by one, a wrong rounding, a clamp that is not there, a wrong sign."""

from tests.mutants.mutant import Mutant

MUTANTS: tuple[Mutant, ...] = (
    # Decoding.
    Mutant(
        "native/codec/huffman.c",
        "length <= 16 && prefix >= table->limit[length]",
        "length <= 16 && prefix > table->limit[length]",
        "native/test_core.py",
    ),
    Mutant("native/codec/idct.c", "(scaled + 16) >> 5", "(scaled + 15) >> 5", "native/test_core.py"),
    Mutant("native/codec/idct.c", "left->end > 10 || right->end > 10", "left->end > 10", "native/test_core.py"),
    Mutant("native/pixels/colour.c", "3 * here + after + 7", "3 * here + after + 8", "native/test_core.py"),
    Mutant("native/codec/progressive.c", "n > 56 - CODE", "n > 56", "native/test_progressive.py"),
    Mutant(
        "native/codec/entries.c", "column = target % (size_t)scan->mcus;", "column = target;", "native/test_entries.py"
    ),
    Mutant("native/codec/stored.c", "value > ESCAPE && value", "value >= ESCAPE && value", "native/test_stored.py"),
    Mutant("native/codec/header.c", "value <= 8 ?", "value <= 7 ?", "data/images/test_by_pillow.py"),
    Mutant(
        "native/pixels/turn.c",
        "orientation == 3 || orientation >= 7",
        "orientation == 3 || orientation >= 6",
        "data/images/test_whole.py",
    ),
    Mutant(
        "native/memory.c",
        "memset(&scratch->settings, 0, sizeof scratch->settings);",
        "scratch->settings.most_scans = scratch->settings.turn = 0;",
        "native/test_binding.py",
    ),
    # Windows and their resize.
    Mutant("native/crops.c", "* job->mcu_height - (job->frame.vmax > 1)", "* job->mcu_height", "native/test_core.py"),
    Mutant(
        "native/pixels/taps.c",
        "double at = ((double)(axis->first + i) + 0.5) * scale - 0.5;",
        "double at = (double)(axis->first + i) * scale;",
        "native/test_core.py",
    ),
    Mutant("native/pixels/place.c", "sides[0] * high / wide;", "sides[0] * high / wide + 1;", "native/test_resize.py"),
    Mutant("native/pixels/resize.c", "= clip(sum >> shift);", "= (uint8_t)(sum >> shift);", "native/test_resize.py"),
    Mutant(
        "native/pixels/sample.c",
        "(height - drawn->height + 1)",
        "(height - drawn->height)",
        "data/images/test_windows.py",
    ),
    Mutant(
        "native/pixels/sample.c", "floor((height - high) / 2)", "floor(height - high)", "data/images/test_windows.py"
    ),
    # Augmentation and mixing.
    Mutant(
        "native/augment/draw.c",
        "choice >= SHEAR_X && choice <= SHARPNESS",
        "choice >= SHEAR_X && choice < SHARPNESS",
        "data/images/test_augment.py",
    ),
    Mutant(
        "native/augment/draw.c",
        "below(step, step->height - (int)height + 1)",
        "below(step, step->height - (int)height)",
        "data/images/test_augment.py",
    ),
    Mutant("native/augment/levels.c", "(double)edit->size + 0.5)", "(double)edit->size)", "native/test_augment.py"),
    Mutant("native/augment/warp.c", "floor(value * 65536.0 + 0.5)", "floor(value * 65536.0)", "native/test_augment.py"),
    Mutant("native/augment/augment.c", "start + size <= side;", "start + size <= side + 1;", "native/test_augment.py"),
    Mutant("native/pixels/mix.c", "* weight + TFPIPE_WHOLE / 2) >>", "* weight) >>", "native/test_mix.py"),
    # Files.
    Mutant(
        "native/tar.c",
        "(length + HEADER - 1) / HEADER * HEADER",
        "(length / HEADER + 1) * HEADER",
        "native/test_tar.py",
    ),
    Mutant("native/ops/read.c", "if (kept == length) return 1;", "return 1;", "native/test_read.py"),
)
