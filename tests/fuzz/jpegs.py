"""JPEGs through the native core: to the bytes of libjpeg-turbo, or, if they were changed, to these or a refusal."""

import random
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from tests.support.core import DAMAGED, REFUSED, Core, build_core, generated_jpeg, reference, window_of
from tests.support.scans import random_jpeg
from tfpipe.data.images.headers import header_of
from tfpipe.native import KERNELS

# Generated files that are changed; sides in pixels at most.
FILES, SIDE = 200, 80
# Share of pictures whose coefficients overflow, at most: it is 3 of 10,000, and 30 of files of several scans.
OVERFLOWS, SEVERAL_OVERFLOWS = 0.002, 0.004
START_OF_SCAN, PROGRESSIVE = b"\xff\xda", b"\xff\xc2"
Window = tuple[int, int, int, int]


def fuzz_generated(count: int, seed: int) -> Counter[str]:
    """Counts generated JPEGs by kind of decode; all of them must be libjpeg-turbo's, to the bit.

    Raises:
        AssertionError: the core refuses a JPEG, or a pixel differs.
    """
    outcomes: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        core = Core(build_core(Path(folder)))
        for number in range(count):
            draw = random.Random(f"{seed} {number}")
            side = draw.choice((20, 120, 120, 600))
            jpeg, size = random_jpeg(draw, min(side, SIDE)) if number % 4 == 3 else generated_jpeg(draw, side)
            channels = draw.choice((3, 3, 3, 1))
            level = core.library.tfpipe_use_simd(draw.choice((0, 1, 1)))
            pixels = core.whole(jpeg, size, channels)
            assert not isinstance(pixels, int), f"file {number} of seed {seed} is refused: {pixels}"
            expected = reference(jpeg, channels)
            assert (pixels == expected).all(), f"file {number} of seed {seed} differs"
            window = window_of(draw, size)
            crop = core.crops(jpeg, size, [window], window[2:], channels, [bool(number & 1)])
            assert not isinstance(crop, int), f"window {window} of file {number} of seed {seed} is refused: {crop}"
            top, left, height, width = window
            expected = expected[top : top + height, left : left + width]
            mirrored = expected[:, ::-1] if number & 1 else expected
            assert (crop[0] == mirrored).all(), f"window {window} of file {number} of seed {seed} differs"
            outcomes[f"{'avx2' if level else 'plain'}, {channels} channels"] += 1
    return outcomes


def fuzz_jpegs(count: int, seed: int) -> Counter[str]:
    """Counts changed JPEGs by outcome: a picture, refused or damaged.

    Changes can make coefficients that overflow 16 bits, where libjpeg-turbo's implementations differ, too: these files
    are counted as "another picture".

    Raises:
        AssertionError: more pictures than a few differ from libjpeg-turbo's, or what another scratch makes of a file
            does.
        ValueError: libjpeg-turbo has a complaint about a file that the core has decoded.
    """
    outcomes: Counter[str] = Counter()
    seen: Counter[str] = Counter()
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
            several = jpeg.count(START_OF_SCAN) > 1 or PROGRESSIVE in jpeg
            seen["several"] += several
            equal = (pixels == reference(jpeg, channels)).all()
            outcomes["a picture" if equal else "another picture"] += 1
            seen["several, differs" if several else "differs"] += not equal
    single = outcomes["a picture"] + outcomes["another picture"] - seen["several"]
    assert seen["differs"] <= 1 + OVERFLOWS * single, outcomes
    assert seen["several, differs"] <= 1 + SEVERAL_OVERFLOWS * seen["several"], outcomes
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


def write_corpus(folder: Path, seed: int = 0, count: int = 60) -> list[Path]:
    """Writes inputs of the harness in jpegs.c: what is asked in 8 bytes, and a JPEG, small enough for many runs."""
    draw, paths = random.Random(seed), []
    for number in range(count):
        asked = bytes(draw.randrange(256) for _ in range(8))
        path = folder / f"{number:03}"
        side = draw.choice((8, 24, 60))
        path.write_bytes(asked + (random_jpeg(draw, side) if number % 3 == 2 else generated_jpeg(draw, side))[0])
        paths.append(path)
    return paths
