"""Stored coefficients: the JPEG's pixels and coefficients, and nothing but numbers from damaged ones."""

import random
import struct

import numpy as np
from PIL import Image

from tests.support.core import DAMAGED, REFUSED, Core, generated_jpeg, reference, window_of
from tests.support.examples import examples
from tests.support.images import encoded, picture

SIZE = (70, 90)
OFFSETS, DATA = 536, 536 + 4 * (5 * 2 + 5 * 2)  # of a picture of SIZE with halved chroma: bytes, as stored.c has them


def test_crops_are_those_of_the_jpeg(core: Core) -> None:
    draw = random.Random(1)
    for _ in range(examples(300)):
        jpeg, size = generated_jpeg(draw, draw.choice((20, 120, 300)))
        windows, channels = [window_of(draw, size) for _ in range(draw.randint(1, 3))], draw.choice((3, 1))
        flips = [draw.random() < 0.5 for _ in windows]
        asked = size, windows, (draw.randint(1, 40), draw.randint(1, 40)), channels, flips
        assert (core.crops(core.store(jpeg), *asked) == core.crops(jpeg, *asked)).all()


def test_a_jpeg_of_them_has_the_same_coefficients(core: Core) -> None:
    """To libjpeg-turbo, and stored again."""
    draw = random.Random(2)
    for _ in range(examples(200)):
        jpeg, size = generated_jpeg(draw)
        stored = core.store(jpeg)
        again = core.unstore(stored)
        assert (reference(again) == reference(jpeg)).all()
        assert core.store(again)[OFFSETS:] == stored[OFFSETS:]
        assert (core.whole(stored, size) == reference(jpeg)).all()


def test_values_of_every_width_are_kept(core: Core) -> None:
    """Of 4, 8 and 16 bits: an image of two levels at quality 100 has coefficients of up to 1,016."""
    pixels = np.random.default_rng(1).integers(0, 2, (64, 64), np.uint8) * 255
    jpeg = encoded(Image.fromarray(pixels), quality=100)
    stored = core.store(jpeg)
    assert (core.whole(stored, (64, 64), 1) == reference(jpeg, 1)).all()
    flat = core.store(encoded(Image.new("L", (64, 64), 99)))
    assert len(flat) == 536 + 4 * 8 + 64 * 3 + 256, "a block without AC takes three bytes"


def test_files_that_are_refused_have_none(core: Core) -> None:
    image = picture(*SIZE)
    rgb = encoded(image, keep_rgb=True)
    for file in (encoded(image)[:-300], encoded(image, format="PNG"), b"", core.store(encoded(image)), rgb):
        assert core.store(file) == b""


def test_values_that_overflow_are_not_stored(core: Core) -> None:
    """Four times a DC must fit in 16 bits: beyond that, a block's pixels depend on how its zeros are coded."""
    jpeg = bytearray(encoded(Image.new("L", (8, 8), 255), quality=100))
    at = jpeg.index(b"\xff\xdb") + 5
    assert jpeg[at] == 1  # the factor of a DC of 1,016
    for factor, fits in ((8, True), (9, False), (255, False)):
        jpeg[at] = factor
        assert bool(core.store(bytes(jpeg))) == fits
        assert not isinstance(core.whole(bytes(jpeg), (8, 8), 1), int)


def test_progressive_files_are_stored_too(core: Core) -> None:
    draw = random.Random(3)
    for _ in range(examples(60)):
        size = draw.randint(1, 90), draw.randint(1, 90)
        image = picture(*size, draw.randrange(100))
        jpeg = encoded(image, progressive=True, quality=draw.randint(5, 100), subsampling=draw.randrange(3))
        stored = core.store(jpeg)
        assert (core.whole(stored, size) == reference(jpeg)).all()
        assert (reference(core.unstore(stored)) == reference(jpeg)).all()


def test_the_size_that_is_asked_for_must_be_theirs(core: Core) -> None:
    stored = core.store(encoded(picture(*SIZE)))
    assert core.whole(stored, (SIZE[0], SIZE[1] + 1)) == REFUSED


def test_damage_is_an_error_or_other_numbers(core: Core) -> None:
    """Offsets and lengths that lead out of the data are an error; so are a form and a frame that there are not."""
    stored = core.store(encoded(picture(*SIZE)))
    assert not isinstance(core.whole(stored, SIZE), int)

    def changed(at: int, value: bytes) -> np.ndarray | int:
        return core.whole(stored[:at] + value + stored[at + len(value) :], SIZE)

    assert changed(0, b"\1") == REFUSED and changed(4, b"\2") == REFUSED
    assert changed(13, b"\xff") == DAMAGED, "of 255 components"
    assert changed(OFFSETS, struct.pack("<I", len(stored))) == DAMAGED
    last = struct.unpack("<I", stored[DATA - 4 : DATA])[0]
    assert changed(DATA - 4, struct.pack("<I", len(stored) - DATA - 256)) == DAMAGED, f"{last} is its row's place"
    assert core.unstore(stored[: len(stored) // 2]) == b""
    assert core.whole(stored[:700], SIZE) == REFUSED
