"""JPEGs through the native core: changed ones, and those of a folder: libjpeg-turbo's bytes, or a refusal."""

import random
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from tests.support.core import (
    DAMAGED,
    KERNELS,
    REFUSED,
    Core,
    build_core,
    generated_jpeg,
    plain_reference,
    reference,
    window_of,
)
from tests.support.scans import random_jpeg
from tfpipe.data.images.headers import header_of

# Generated files that are changed; sides in pixels at most.
FILES, SIDE = 200, 80


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
