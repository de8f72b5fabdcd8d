"""JPEGs through the native core: to the bytes of libjpeg-turbo, or, if they were changed, to these or a refusal."""

import random
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import tensorflow as tf
from PIL import Image

from tests.support.core import (
    DAMAGED,
    REFUSED,
    Core,
    build_core,
    generated_jpeg,
    generated_pixels,
    plain_reference,
    progressive_jpeg,
    reference,
    window_of,
)
from tests.support.images import decoded, encoded, inks_of, of_jfif_2, sampled
from tests.support.scans import random_jpeg
from tfpipe.data.images.headers import header_of
from tfpipe.data.images.windows import decode_image
from tfpipe.native import KERNELS

# Generated files that are changed; sides in pixels at most.
FILES, SIDE = 200, 80
# Sampling factors that the core refuses: chroma thrice or four times as coarse, finer than the luma, or of two kinds.
FACTORS = (
    (0x41, 0x11, 0x11),
    (0x14, 0x11, 0x11),
    (0x42, 0x11, 0x11),
    (0x31, 0x11, 0x11),
    (0x11, 0x21, 0x21),
    (0x22, 0x21, 0x12),
    (0x22, 0x11, 0x21),
)
# Levels by which TensorFlow's inks may differ from Pillow's: it cuts off where Pillow rounds.
INK_LEVELS = 1
Window = tuple[int, int, int, int]


def fuzz_generated(count: int, seed: int) -> Counter[str]:
    """Counts generated JPEGs by kind of decode; all of them must be libjpeg-turbo's, to the bit.

    Those of kinds that the core refuses are decoded by TensorFlow, which has to give Pillow's pixels. A window of
    the others is also decoded by entry points and from coefficients.

    Raises:
        AssertionError: the core refuses another JPEG, or a pixel differs.
    """
    outcomes: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        core = Core(build_core(Path(folder)))
        for number in range(count):
            draw, where = random.Random(f"{seed} {number}"), f"file {number} of seed {seed}"
            decode = {5: _decode_refused, 6: _decode_inks}.get(number % 8, _decode_generated)
            outcomes.update(decode(core, draw, number, where))
    return outcomes


def _decode_generated(core: Core, draw: random.Random, number: int, where: str) -> list[str]:
    """Compares a JPEG, and a window of it in each form; returns what it is."""
    side = draw.choice((20, 120, 120, 600))
    if number % 4 == 3:
        jpeg, size = random_jpeg(draw, min(side, SIDE))
    else:
        jpeg, size = progressive_jpeg(draw, side) if number % 8 == 1 else generated_jpeg(draw, side)
    channels, mirror = draw.choice((3, 3, 3, 1)), draw.random() < 0.5
    level = core.library.tfpipe_use_simd(draw.choice((0, 1, 1)))
    pixels = core.whole(jpeg, size, channels)
    assert not isinstance(pixels, int), f"{where} is refused: {pixels}"
    expected = reference(jpeg, channels)
    assert (pixels == expected).all(), f"{where} differs"
    window = top, left, height, width = window_of(draw, size)
    expected = expected[top : top + height, left : left + width]
    expected = expected[:, ::-1] if mirror else expected
    forms = {"alone": (jpeg, None)}
    if entries := core.entries(jpeg, draw.randint(1, 12)):
        forms["by entry points"] = jpeg, entries
    if stored := core.store(jpeg):
        forms["from coefficients"] = stored, None
    for form, (source, entries) in forms.items():
        crop = core.crops(source, size, [window], window[2:], channels, [mirror], entries)
        assert not isinstance(crop, int), f"window {window} of {where} is refused {form}: {crop}"
        assert (crop[0] == expected).all(), f"window {window} of {where} differs {form}"
    several = jpeg.count(b"\xff\xda") > 1 or b"\xff\xc2" in jpeg
    name = f"{'simd' if level else 'plain'}, {channels} channels, {'several scans' if several else 'one scan'}"
    return [name, *(form for form in forms if form != "alone")]


def _decode_refused(core: Core, draw: random.Random, _: int, where: str) -> list[str]:
    """Compares a JPEG of other sampling factors or another version of JFIF, which the core has to refuse."""
    size, kind = (draw.randint(1, SIDE), draw.randint(1, SIDE)), draw.choice(("factors", "version"))
    if kind == "factors":
        jpeg = sampled(size, *draw.choice(FACTORS), seed=draw.getrandbits(30))
    else:
        options = {"quality": draw.randint(1, 100), "progressive": draw.random() < 0.3}
        jpeg = of_jfif_2(encoded(Image.fromarray(generated_pixels(draw, *size)), **options))
    assert core.whole(jpeg, size) == REFUSED, f"{where}, of {kind}, is decoded"
    assert (decode_image(tf.constant(jpeg), 3).numpy() == decoded(jpeg)).all(), f"{where}, of {kind}, differs"
    return [f"{kind}: refused, equal by the fallback"]


def _decode_inks(core: Core, draw: random.Random, _: int, where: str) -> list[str]:
    """Compares a CMYK or YCCK JPEG with TensorFlow's pixels, and these with Pillow's."""
    size = draw.randint(1, SIDE), draw.randint(1, SIDE)
    jpeg = inks_of(draw, size)
    core.library.tfpipe_use_simd(draw.choice((0, 1, 1)))
    expected = decode_image(tf.constant(jpeg), 3).numpy()
    assert np.array_equal(core.whole(jpeg, size), expected), f"{where}, of inks, differs"
    assert abs(expected.astype(int) - decoded(jpeg)).max() <= INK_LEVELS, f"{where}, of inks, differs from Pillow's"
    return ["inks"]


def fuzz_jpegs(count: int, seed: int) -> Counter[str]:
    """Counts changed JPEGs by outcome: a picture, refused or damaged.

    Changes can make coefficients that overflow 16 bits, where libjpeg-turbo's implementations differ, too: these files
    are counted as "overflows".

    Raises:
        AssertionError: a picture differs from libjpeg-turbo's though its implementations agree, or depends on what the
            scratch has decoded before.
        ValueError: libjpeg-turbo has a complaint about a file that the core has decoded.
    """
    outcomes: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        library = build_core(Path(folder))
        core, other = Core(library), Core(library)
        for number, (jpeg, size) in enumerate(changed_jpegs(count, seed)):
            draw = random.Random(f"{seed} {number}")
            channels = 1 if number % 8 == 0 else 3
            core.kernel = other.kernel = draw.choice(KERNELS)
            core.library.tfpipe_use_simd(number % 4 > 0)
            where = f"file {number} of seed {seed}"
            windows = [window_of(draw, size) for _ in range(draw.randint(1, 3))]
            target = draw.choice((windows[0][2:], (draw.randint(1, 40), draw.randint(1, 40))))
            crops = core.crops(jpeg, size, windows, target, channels)
            again = other.crops(jpeg, size, windows, target, channels)
            assert np.array_equal(crops, again), f"{where} depends on what was decoded before"
            pixels = core.whole(jpeg, size, channels)
            if isinstance(pixels, int):
                assert pixels in (REFUSED, DAMAGED), f"{where}: {pixels}"
                # The windows may be intact when something below them is not.
                outcomes["refused" if pixels == REFUSED else "damaged"] += 1
                continue
            assert not isinstance(crops, int), f"{where}: a window is refused, but not the whole"
            expected = reference(jpeg, channels)
            if (pixels == expected).all():
                outcomes["a picture"] += 1
                continue
            assert (plain_reference(jpeg, channels) != expected).any(), f"{where} differs"
            outcomes["overflows"] += 1
    return outcomes


def changed_jpegs(count: int, seed: int) -> Iterator[tuple[bytes, tuple[int, int]]]:
    """Yields generated JPEGs with something changed, taken out, put in or cut off, and the size that they state."""
    draw = random.Random(seed)
    files = [random_jpeg(draw, SIDE) if i % 4 == 3 else generated_jpeg(draw, SIDE) for i in range(FILES)]
    for _ in range(count):
        jpeg, size = draw.choice(files)
        contents = bytearray(jpeg)
        for _ in range(draw.choice((1, 1, 1, 2, 8))):
            at = draw.randrange(min(len(contents), draw.choice((200, 700, len(contents)))) or 1)
            kind = draw.randrange(7)
            if kind == 0:
                contents[at : at + 1] = bytes([draw.randrange(256)])
            elif kind in (1, 2):
                contents[at : at + 1] = bytes([(contents[at] if at < len(contents) else 0) ^ (1 << draw.randrange(8))])
            elif kind == 3:
                contents[at : at + 2] = bytes([0xFF, draw.randrange(0xC0, 0x100)])
            elif kind == 4:
                contents[at:at] = bytes(draw.randrange(256) for _ in range(draw.choice((1, 2, 20))))
            elif kind == 5:
                del contents[at : at + draw.choice((1, 2, 16, 200))]
            elif draw.random() < 0.3:
                del contents[at:]
        yield bytes(contents), size


def compare_folder(folder: Path, count: int) -> Counter[str]:
    """Counts the JPEGs below `folder`, at most `count`, that are libjpeg-turbo's to the bit, and those refused.

    Each is decoded as a whole, by both kinds of instructions, and its middle is decoded alone.

    Raises:
        AssertionError: a pixel differs.
    """
    outcomes: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as built:
        core = Core(build_core(Path(built)))
        files = sorted(path for path in folder.rglob("*") if path.suffix.lower() in (".jpeg", ".jpg"))
        for path in files[:count]:
            jpeg = path.read_bytes()
            height, width, *_ = header_of(jpeg, str(path))
            expected, kinds = reference(jpeg), []
            window = top, left, high, wide = height // 4, width // 4, max(1, height // 2), max(1, width // 2)
            for level in (0, 1):
                kinds.append("avx2" if core.library.tfpipe_use_simd(level) else "plain")
                pixels = core.whole(jpeg, (height, width))
                if isinstance(pixels, int):
                    kinds = ["refused" if pixels == REFUSED else "damaged"]
                    break
                assert (pixels == expected).all(), f"{path} differs ({kinds[-1]})"
                crop = core.crops(jpeg, (height, width), [window], (high, wide))
                same = not isinstance(crop, int) and (crop[0] == expected[top : top + high, left : left + wide]).all()
                assert same, f"the middle of {path} differs ({kinds[-1]})"
            outcomes["equal, " + " and ".join(sorted(set(kinds))) if len(kinds) == 2 else kinds[0]] += 1
    return outcomes
