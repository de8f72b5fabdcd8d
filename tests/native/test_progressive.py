"""JPEGs of several scans in the native core: libjpeg-turbo's pixels, or a refusal of what it smooths or warns of."""

import random
import struct
from dataclasses import replace

import pytest

from tests.support.core import (
    DAMAGED,
    REFUSED,
    Core,
    check_damage,
    check_pixels,
    progressive_jpeg,
    reference,
    window_of,
)
from tests.support.examples import examples
from tests.support.images import encoded, picture
from tests.support.scans import FACTORS, Picture, Scan, jpeg_of, random_jpeg, random_scans

SIZE = (60, 80)
WHOLE = [Scan((0, 1, 2), low=1), Scan((0, 1, 2), high=1)]
WHOLE += [scan for number in range(3) for scan in (Scan((number,), 1, 63, 0, 1), Scan((number,), 1, 63, 1, 0))]


def test_pixels_of_pillows_progressive_files_are_those_of_libjpeg_turbo(core: Core) -> None:
    draw = random.Random(1)
    for _ in range(examples(500)):
        check_pixels(core, *progressive_jpeg(draw, 120), draw)


def test_pixels_are_those_of_libjpeg_turbo_in_any_order_of_scans(core: Core) -> None:
    """Bands and bits of coefficients in random scans, and sequential components apart."""
    draw = random.Random(2)
    for _ in range(examples(300)):
        check_pixels(core, *random_jpeg(draw), draw)


@pytest.mark.parametrize("sampling", FACTORS)
def test_each_side_of_up_to_33_pixels(core: Core, sampling: str) -> None:
    """Blocks that only fill up MCUs are in the scans of several components, and in no other."""
    draw = random.Random(3)
    for side in range(1, 34):
        for size in ((side, 34 - side), (side, side)):
            coefficients = Picture.random(draw, size, sampling)
            jpeg = jpeg_of(coefficients, random_scans(draw, len(coefficients.factors), 3))
            assert (core.whole(jpeg, size) == reference(jpeg)).all(), size


def test_several_windows_are_those_of_the_sequential_file(core: Core) -> None:
    """Pillow writes the same coefficients in both kinds of files."""
    draw = random.Random(4)
    for _ in range(examples(60)):
        size = draw.randint(20, 150), draw.randint(20, 150)
        image, target = picture(*size, draw.randrange(99)), (draw.randint(1, 60), draw.randint(1, 60))
        windows = [window_of(draw, size) for _ in range(3)]
        how = {"subsampling": draw.randrange(3), "quality": draw.randint(5, 99)}
        jpegs = [encoded(image, **how, progressive=progressive) for progressive in (False, True)]
        for kernel in ("bilinear", "antialias"):
            core.kernel = kernel
            crops = [core.crops(jpeg, size, windows, target, 3, [True, False, True]) for jpeg in jpegs]
            assert (crops[0] == crops[1]).all()
        assert core.entries(jpegs[0], 4) and not core.entries(jpegs[1], 4)


def random_picture(seed: int = 5, sampling: str = "420") -> Picture:
    return Picture.random(random.Random(seed), SIZE, sampling)


@pytest.mark.parametrize("last", [8, 9, 62], ids="up to {}".format)
def test_coefficients_that_no_scan_has_are_zero_unless_libjpeg_turbo_smooths(core: Core, last: int) -> None:
    """It does if any of the first nine of AC is missing."""
    jpeg = jpeg_of(random_picture(), [Scan((0, 1, 2)), *(Scan((number,), 1, last) for number in range(3))])
    pixels = core.whole(jpeg, SIZE)
    if last < 9:
        assert pixels == REFUSED
    else:
        assert (pixels == reference(jpeg)).all()


@pytest.mark.parametrize(
    "scans",
    [
        *(WHOLE[:-1], WHOLE[:1] + WHOLE[2:], WHOLE[1:], [*WHOLE, WHOLE[-1]], [WHOLE[2], *WHOLE[:2], *WHOLE[3:]]),
        *(WHOLE[:3] + WHOLE[4:], [*WHOLE[:3], WHOLE[4], WHOLE[3], *WHOLE[4:]][:-1], [*WHOLE, replace(WHOLE[2], low=0)]),
        [*WHOLE[:2], *(Scan((number,), 1, 40) for number in range(3)), *(Scan((n,), 40, 63) for n in range(3))],
        [*WHOLE[:2], *(Scan((number,), 1, 63, 0, 6) for number in range(3))],
        [Scan((0, 1)), *(Scan((number,), 1, 63) for number in range(2))],
        [Scan((1, 0, 2)), *(Scan((number,), 1, 63) for number in range(3))],
    ],
    ids=[
        *("a bit of AC missing", "a bit of DC missing", "no first DC", "a refinement twice", "AC before DC"),
        *("a refinement missing", "another component's", "a first scan again", "bands that overlap"),
        *("bits that may overflow", "a component missing", "components in another order"),
    ],
)
def test_scans_that_do_not_make_up_an_image_are_refused(core: Core, scans: list[Scan]) -> None:
    assert (core.whole(jpeg_of(random_picture(), WHOLE), SIZE) == reference(jpeg_of(random_picture(), WHOLE))).all()
    assert core.whole(jpeg_of(random_picture(), scans), SIZE) in (REFUSED, DAMAGED)


@pytest.mark.parametrize("groups", [[(0,), (1,)], [(0,), (0,), (1,), (2,)], [(0, 1), (1, 2)]], ids=str)
def test_a_sequential_component_comes_once(core: Core, groups: list[tuple[int, ...]]) -> None:
    whole = jpeg_of(random_picture(), [Scan((0,)), Scan((2,)), Scan((1,))], sequential=True)
    assert (core.whole(whole, SIZE) == reference(whole)).all()
    assert core.whole(jpeg_of(random_picture(), [*map(Scan, groups)], sequential=True), SIZE) == REFUSED


def test_a_second_scan_of_all_components_is_refused(core: Core) -> None:
    jpeg = encoded(picture(*SIZE))
    scan = jpeg[jpeg.index(b"\xff\xda") : -2]
    assert core.whole(jpeg[:-2] + scan + b"\xff\xd9", SIZE) == DAMAGED


@pytest.mark.parametrize("marker", [0xDB, 0xC2, 0xD8, 0x01, 0xE0, 0xFE], ids="{:02x}".format)
def test_segments_between_scans(core: Core, marker: int) -> None:
    """Tables of quantisation would be for the components that no scan has had; a comment changes nothing."""
    jpeg = encoded(picture(*SIZE), progressive=True)
    second = jpeg.index(b"\xff\xc4", jpeg.index(b"\xff\xda"))
    start = jpeg.index(bytes([0xFF, marker])) if bytes([0xFF, marker]) in jpeg[:second] else 0
    length = int.from_bytes(jpeg[start + 2 : start + 4], "big") if start else 0
    piece = jpeg[start : start + 2 + length] if length else bytes([0xFF, marker]) + struct.pack(">H", 6) + b"abcd"
    pixels = core.whole(jpeg[:second] + piece + jpeg[second:], SIZE)
    if marker in (0xE0, 0xFE):
        assert (pixels == reference(jpeg)).all()
    else:
        assert pixels in (REFUSED, DAMAGED)


def test_scans_beyond_the_limit_are_refused(core: Core) -> None:
    jpeg = encoded(picture(*SIZE), progressive=True)
    count = jpeg.count(b"\xff\xda\0")
    for most, refused in ((count, False), (count - 1, True), (1, True), (0, False)):
        core.library.tfpipe_limit_scans(core.scratch, most)
        assert isinstance(core.whole(jpeg, SIZE), int) == refused
    core.library.tfpipe_limit_scans(core.scratch, 1)
    assert not isinstance(core.whole(encoded(picture(*SIZE)), SIZE), int)
    core.library.tfpipe_limit_scans(core.scratch, 0)


def test_a_size_that_the_file_cannot_have_takes_no_memory(core: Core) -> None:
    """Each block has a bit at least."""
    jpeg = bytearray(encoded(picture(*SIZE), progressive=True))
    at = jpeg.index(b"\xff\xc2")
    jpeg[at + 5 : at + 9] = struct.pack(">HH", 12_000, 12_000)
    assert core.crops(bytes(jpeg), (12_000, 12_000), [(0, 0, 9, 9)], (9, 9)) == DAMAGED


@pytest.mark.parametrize("options", [{}, {"restart_marker_rows": 1}], ids=str)
def test_a_file_that_is_cut_off_is_noticed_wherever_the_window_is(core: Core, options: dict) -> None:
    jpeg = encoded(picture(*SIZE), progressive=True, **options)
    window = [(0, 0, 8, 8)]
    assert not isinstance(core.crops(jpeg, SIZE, window, (8, 8)), int)
    for end in (*range(jpeg.index(b"\xff\xda"), len(jpeg), 61), len(jpeg) - 1):
        assert core.crops(jpeg[:end], SIZE, window, (8, 8)) == DAMAGED


@pytest.mark.parametrize("source", ["pillow", "restarts", "any order"])
def test_damage_is_noticed_if_libjpeg_turbo_does(core: Core, source: str) -> None:
    draw = random.Random(6)
    if source == "any order":
        jpeg = jpeg_of(random_picture(8), random_scans(draw, 3))
    else:
        jpeg = encoded(picture(*SIZE), progressive=True, **({"restart_marker_rows": 1} if source == "restarts" else {}))
    check_damage(core, jpeg, SIZE, draw)
