"""The native core: libjpeg-turbo's pixels, bilinear interpolation within one level, and a refusal of the rest."""

import io
import itertools
import math
import os
import random
import struct
import subprocess
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.fuzz.sanitized import build_harness, write_corpus
from tests.support.core import (
    ARGUMENT,
    DAMAGED,
    KERNELS,
    REFUSED,
    Core,
    check_damage,
    check_pixels,
    generated_jpeg,
    reference,
    window_of,
)
from tests.support.decoding import decode_image
from tests.support.examples import examples
from tests.support.images import bilinear, encoded, inks_of, of_jfif_2, picture, sampled

SIZE = (200, 120)


def test_pixels_are_those_of_libjpeg_turbo(core: Core) -> None:
    draw = random.Random(1)
    for _ in range(examples(1000)):
        check_pixels(core, *generated_jpeg(draw, draw.choice((120,) * 24 + (900,))), draw)


def test_inks_become_the_colours_that_tensorflow_makes_of_them(library: Path) -> None:
    """Also mirrored, and of a window; as gray they are refused, and have no entry points and stored coefficients."""
    draw, core = random.Random(6), Core(library)
    for _ in range(examples(200)):
        size = draw.randint(1, 90), draw.randint(1, 90)
        jpeg = inks_of(draw, size)
        core.library.tfpipe_use_simd(draw.randrange(2))
        expected = decode_image(jpeg, 3)
        assert np.array_equal(core.whole(jpeg, size), expected)
        window = top, left, height, width = window_of(draw, size)
        crops = core.crops(jpeg, size, [window] * 2, (height, width), 3, [False, True])
        expected = expected[top : top + height, left : left + width]
        assert np.array_equal(crops, [expected, expected[:, ::-1]])
        assert core.whole(jpeg, size, 1) == REFUSED and not core.entries(jpeg, 8) and not core.store(jpeg)


def test_crops_are_interpolated_within_one_level(core: Core) -> None:
    draw = random.Random(3)
    for _ in range(examples(500)):
        jpeg, size = generated_jpeg(draw)
        channels = draw.choice((3, 3, 1))
        windows = [window_of(draw, size) for _ in range(draw.randint(1, 4))]
        target = draw.randint(1, 90), draw.randint(1, 90)
        flips = [draw.random() < 0.5 for _ in windows]
        crops = core.crops(jpeg, size, windows, target, channels, flips)
        pixels = reference(jpeg, channels)
        for crop, flip, (top, left, height, width) in zip(crops, flips, windows, strict=True):
            window = pixels[top : top + height, left : left + width]
            expected = np.rint(bilinear(window.astype(float), target)).reshape(crop.shape)
            mirrored = expected[:, ::-1] if flip else expected
            assert abs(crop.astype(int) - mirrored).max() <= 1


def test_crops_of_several_sizes_are_those_of_calls_of_one_size(library: Path) -> None:
    """Also in letterboxes, whose rest is flat, and in both kinds of instructions."""
    draw, core = random.Random(5), Core(library)
    for _ in range(examples(200)):
        jpeg, size = generated_jpeg(draw)
        core.kernel, channels = draw.choice(KERNELS), draw.choice((1, 3, 3))
        core.library.tfpipe_use_simd(draw.randrange(2))
        windows = [window_of(draw, size) for _ in range(draw.randint(2, 6))]
        windows[0] = (0, 0, *size)
        targets = [(draw.randint(1, 90), draw.randint(1, 90), draw.choice((-1, -1, 0, 114))) for _ in windows]
        targets[-1] = (*windows[-1][2:], -1)  # copied
        flips = [draw.random() < 0.5 for _ in windows]
        together = core.views(jpeg, size, windows, targets, channels, flips)
        for crop, window, (height, width, level), flip in zip(together, windows, targets, flips, strict=True):
            inner, inside = (height, width), crop
            if level >= 0:
                scale = min(Fraction(height, window[2]), Fraction(width, window[3]))
                inner = tuple(max(1, math.floor(side * scale + Fraction(1, 2))) for side in window[2:])
                top, left = (height - inner[0]) // 2, (width - inner[1]) // 2
                left = width - left - inner[1] if flip else left
                rest = crop.copy()
                inside = crop[top : top + inner[0], left : left + inner[1]]
                rest[top : top + inner[0], left : left + inner[1]] = level
                assert (rest == level).all()
            assert (inside == core.crops(jpeg, size, [window], inner, channels, [flip])[0]).all()


def factors(image: Image.Image, *changes: int) -> bytes:
    """Returns a JPEG whose frame states other sampling factors, one byte for each component."""
    jpeg = bytearray(encoded(image, subsampling=0))
    at = jpeg.index(b"\xff\xc0")
    for i, change in enumerate(changes):
        jpeg[at + 11 + 3 * i] = change
    return bytes(jpeg)


def with_frame(marker: int) -> bytes:
    jpeg = encoded(picture(*SIZE))
    return jpeg.replace(b"\xff\xc0", bytes([0xFF, marker]), 1)


def with_scan(where: int, value: int) -> bytes:
    """Returns a JPEG whose scan's header has another byte: 10 is its first coefficient, 11 its last."""
    jpeg = bytearray(encoded(picture(*SIZE)))
    jpeg[jpeg.index(b"\xff\xda") + where] = value
    return bytes(jpeg)


@pytest.mark.parametrize(
    "contents",
    [
        of_jfif_2(encoded(picture(*SIZE))),
        encoded(picture(*SIZE), format="PNG"),
        sampled(SIZE, 0x41, 0x11, 0x11),
        *(
            factors(picture(*SIZE), 0x31),
            factors(picture(*SIZE), 0x11, 0x21),
            factors(picture(*SIZE), 0x22, 0x22, 0x22),
        ),
        *(with_frame(0xC3), with_frame(0xC9), with_frame(0xCA)),
        *(with_scan(11, 1), with_scan(12, 62), with_scan(13, 1)),
        *(b"", b"\xff\xd8", b"\xff\xd8\xff\xd9", bytes(5000), b"\xff" * 5000),
        encoded(picture(*SIZE)).replace(struct.pack(">HH", *SIZE), struct.pack(">HH", SIZE[0], 0), 1),
    ],
    ids=[
        *("JFIF 2", "PNG", "4:1:1", "3:1:1", "uneven", "too many blocks"),
        *("lossless", "arithmetic", "arithmetic progressive", "from 1", "up to 62", "approximation"),
        *("empty", "start", "start and end", "zeros", "fill bytes", "no width"),
    ],
)
def test_the_rest_is_refused(core: Core, contents: bytes) -> None:
    assert core.whole(contents, SIZE) in (REFUSED, DAMAGED)


def test_a_size_that_is_not_the_callers_is_refused(core: Core) -> None:
    jpeg = encoded(picture(*SIZE))
    assert core.crops(jpeg, (SIZE[0] - 1, SIZE[1]), [(0, 0, 9, 9)], (9, 9)) == REFUSED
    assert core.crops(jpeg, SIZE[::-1], [(0, 0, 9, 9)], (9, 9)) == REFUSED


@pytest.mark.parametrize("window", [(-1, 0, 5, 5), (0, 0, 0, 5), (0, 0, 5, 0), (196, 0, 5, 5), (0, 116, 5, 5)])
def test_windows_beyond_the_image_are_an_error(core: Core, window: tuple[int, int, int, int]) -> None:
    jpeg = encoded(picture(*SIZE))
    assert core.crops(jpeg, SIZE, [(0, 0, 5, 5), window], (5, 5)) == ARGUMENT
    assert core.crops(jpeg, SIZE, [(2**31 - 1,) * 4], (5, 5)) == ARGUMENT
    assert core.crops(jpeg, SIZE, [(0, 0, 5, 5)], (5, 5), 2) == ARGUMENT
    assert core.crops(jpeg, SIZE, [], (5, 5)).shape == (0, 5, 5, 3)


@pytest.mark.parametrize("rest", [b"", bytes(500)], ids=["cut off", "zeros"])
@pytest.mark.parametrize("options", [{}, {"restart_marker_rows": 1}, {"restart_marker_blocks": 3}], ids=str)
def test_a_file_that_is_cut_off_is_noticed_wherever_the_window_is(core: Core, options: dict, rest: bytes) -> None:
    jpeg = encoded(picture(*SIZE), **options)
    start = jpeg.index(b"\xff\xda") + 14
    window = [(0, 0, 20, 20)]
    assert not isinstance(core.crops(jpeg + rest, SIZE, window, (9, 9)), int)
    for end in (*range(start, len(jpeg) - 1, 97), len(jpeg) - 2, len(jpeg) - 1):
        assert core.crops(jpeg[:end] + rest, SIZE, window, (9, 9)) == DAMAGED


@pytest.mark.parametrize("options", [{}, {"restart_marker_rows": 1}, {"restart_marker_blocks": 3}], ids=str)
def test_damage_is_noticed_if_libjpeg_turbo_does(core: Core, options: dict) -> None:
    check_damage(core, encoded(picture(60, 80), **options), (60, 80), random.Random(5))


@pytest.mark.parametrize("options", [{"restart_marker_rows": 1}, {"restart_marker_blocks": 11}], ids=str)
def test_a_window_that_ends_within_a_restart_interval_never_runs_into_the_next(core: Core, options: dict) -> None:
    jpeg = encoded(picture(*SIZE), **options)
    expected = reference(jpeg)[16:24, 0:72]
    second = jpeg.index(b"\xff\xd0") + 2
    end, found = jpeg.index(b"\xff\xd1"), []
    for at in range(second + 1, end):
        if jpeg[at - 1] != 0xFF:  # not between a byte and its stuffing
            found.append(core.crops(jpeg[:at] + jpeg[end:], SIZE, [(16, 0, 8, 72)], (8, 72)))
    intact = [crop for crop in found if not isinstance(crop, int)]
    assert all((crop[0] == expected).all() for crop in intact)
    assert 0 < len(intact) < len(found) and {status for status in found if isinstance(status, int)} == {DAMAGED}


def test_a_fill_byte_before_a_stuffed_one_is_refused(core: Core) -> None:
    """A fill byte may precede a marker alone: libjpeg's ways to read bits differ on it."""
    jpeg = encoded(picture(*SIZE), restart_marker_rows=1)
    start = jpeg.index(b"\xff\xda") + 14
    stuffed, marker = jpeg.index(b"\xff\0", start), jpeg.index(b"\xff\xd1", start)
    assert core.whole(jpeg[:stuffed] + b"\xff" + jpeg[stuffed:], SIZE) == DAMAGED
    assert (core.whole(jpeg[:marker] + b"\xff" + jpeg[marker:], SIZE) == reference(jpeg)).all()


def test_colours_are_those_that_libjpeg_turbo_finds(core: Core) -> None:
    """JFIF's segment in several lengths, Adobe's with several transforms, and components with several names."""
    plain = bytearray(encoded(picture(40, 30), subsampling=0))
    frame, scan, after = plain.index(b"\xff\xc0"), plain.index(b"\xff\xda"), 4 + int.from_bytes(plain[4:6], "big")
    names = (b"\1\2\3", b"RGB", b"\0\1\2", b"rgb", b"\3\2\1")
    for jfif, transform, ids in itertools.product((0, 11, 12, 13, 14, 17), (None, 0, 1, 2, 255), names):
        for number, name in enumerate(ids):
            plain[frame + 10 + 3 * number] = plain[scan + 5 + 2 * number] = name
        start = b"\xff\xd8"
        if jfif:
            start += struct.pack(">HH", 0xFFE0, 2 + jfif) + b"JFIF\0\1\1\0\0\1\0\1\0\0\0\0\0"[:jfif]
        if transform is not None:
            start += struct.pack(">HH", 0xFFEE, 14) + b"Adobe\0\x64\0\0\0\0" + bytes([transform])
        jpeg = start + bytes(plain[after:])
        case = jfif, transform, ids
        for channels in (3, 1):
            pixels = core.whole(jpeg, (40, 30), channels)
            if jfif < 14 and transform in (2, 255):  # libjpeg warns
                assert isinstance(pixels, int) and pixels == REFUSED, case
            else:
                assert (pixels == reference(jpeg, channels)).all(), case


@pytest.mark.parametrize("progressive", [False, True])
@pytest.mark.parametrize("channels", [3, 1])
def test_windows_of_rgb(core: Core, channels: int, progressive: bool) -> None:
    """As they are, mirrored, and resized: those of the same pixels that another decoder has made."""
    jpeg, draw = encoded(picture(*SIZE), keep_rgb=True, progressive=progressive), random.Random(8)
    pixels = reference(jpeg, channels)
    assert (core.whole(jpeg, SIZE, channels) == pixels).all()
    for core.kernel in ("bilinear", "antialias"):
        windows, flips = [window_of(draw, SIZE) for _ in range(3)], [True, False, True]
        for target in ((31, 29), windows[0][2:]):
            crops = core.crops(jpeg, SIZE, windows, target, channels, flips)
            assert (crops == core.resize(pixels, windows, target, flips)).all()


def test_restart_intervals_that_no_window_needs_are_passed_over(core: Core) -> None:
    jpeg = bytearray(encoded(picture(*SIZE), restart_marker_rows=1))
    expected = reference(bytes(jpeg))
    start = jpeg.index(b"\xff\xda") + 14
    jpeg[start + 5 : start + 15] = bytes(10)
    assert core.whole(bytes(jpeg), SIZE) == DAMAGED
    crop = core.crops(bytes(jpeg), SIZE, [(100, 8, 60, 70)], (60, 70))
    assert (crop[0] == expected[100:160, 8:78]).all()


def test_tables_are_kept_by_their_bytes(core: Core) -> None:
    """Files with more tables than are kept, in turn, so that each of these is replaced."""
    draw, files = random.Random(6), []
    for quality in range(20, 100, 8):
        file = io.BytesIO()
        picture(90, 70, quality).save(file, "JPEG", quality=quality, optimize=True)
        files.append((file.getvalue(), reference(file.getvalue())))
    for _ in range(40):
        jpeg, expected = draw.choice(files)
        assert (core.whole(jpeg, (90, 70)) == expected).all()


def test_the_corpus_passes_under_sanitizers(tmp_path: Path) -> None:
    """Both sanitizers, every allocation of exact size; each file as it is, then changed for two seconds."""
    program, corpus = build_harness(tmp_path), tmp_path / "corpus"
    corpus.mkdir()
    files = write_corpus(corpus)
    environment = {**os.environ, "ASAN_OPTIONS": "detect_leaks=1:allocator_may_return_null=1"}
    run = subprocess.run([program, "2", "1", *files], env=environment, capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr
    assert run.stdout.startswith(f"{len(files)} files, ")
