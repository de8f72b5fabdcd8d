"""Masks: what is read, and that they are cut and resized as Pillow does."""

import io
import re
import zlib

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from tfpipe.data.annotations.masks import cut_mask, cut_masks, read_mask


def png(array: np.ndarray, mode: str | None = None) -> bytes:
    picture = Image.fromarray(array, mode)
    if mode == "P":
        picture.putpalette([255, 0, 0] * 256)  # colours that tell nothing
    file = io.BytesIO()
    picture.save(file, "PNG")
    return file.getvalue()


def test_ten_thousand_windows_are_pillows() -> None:
    """Resized as a whole, and cut off beyond the crop."""
    random_ = np.random.default_rng(0)
    for _ in range(10_000):
        sides = random_.integers(1, 120, 2)
        mask = random_.integers(0, 256, sides, np.uint8)
        top, left = (int(random_.integers(0, side)) for side in sides)
        height, width = (
            int(random_.integers(1, side - start + 1)) for side, start in zip(sides, (top, left), strict=True)
        )
        rows, columns = (int(side) for side in random_.integers(1, 90, 2))
        above, before = (int(random_.integers(0, side)) for side in (rows, columns))
        place, target = np.array([-above, -before, rows, columns]), (rows - above, columns - before)
        cut = cut_mask(mask, np.array([top, left, height, width]), place, target, 255)
        window = Image.fromarray(mask).crop((left, top, left + width, top + height))
        right = np.asarray(window.resize((columns, rows), Image.Resampling.NEAREST))
        assert np.array_equal(cut, right[above:, before:])


def test_the_rest_of_a_crop_is_filled() -> None:
    cut = cut_mask(np.ones((4, 8), np.uint8), np.array([0, 0, 4, 8]), np.array([2, 0, 4, 8]), (8, 8), 7)
    assert (cut[2:6] == 1).all() and (cut[[0, 1, 6, 7]] == 7).all()


def test_the_rest_of_a_mask_is_255_for_losses_to_ignore() -> None:
    whole, place = tf.constant([[0, 0, 4, 8]]), tf.constant([[2, 0, 4, 8]])
    files = tf.constant([png(np.zeros((4, 8), np.uint8))]), tf.constant(["a.png"])
    (mask,) = cut_masks(files, tf.constant([[4, 8]]), tf.constant([0], tf.int64), (whole, place), (8, 8)).numpy()
    assert (mask[2:6] == 0).all() and (mask[[0, 1, 6, 7]] == 255).all()


@pytest.mark.parametrize("mode", ["L", "P"])
def test_indices_of_a_palette_and_levels_are_classes(mode: str) -> None:
    mask = np.arange(12, dtype=np.uint8).reshape(3, 4)
    assert np.array_equal(read_mask(png(mask, mode), (3, 4)), mask)


def test_bits_are_two_classes() -> None:
    mask = np.array([[True, False], [False, True]])
    assert read_mask(png(mask), (2, 2)).tolist() == [[1, 0], [0, 1]]


@pytest.mark.parametrize(
    ("contents", "problem"),
    [
        (png(np.zeros((3, 4, 3), np.uint8)), "received a PNG of mode RGB; accepted: one number of up to 8 bits"),
        (png(np.zeros((3, 4), np.uint16)), "received a PNG of mode I;16; accepted: one number of up to 8 bits"),
        (png(np.zeros((3, 5), np.uint8)), "it has 3 x 5 pixels, and its image 3 x 4"),
        (png(np.random.default_rng(0).integers(0, 9, (3, 4), np.uint8))[:50], "it is damaged: "),
        (b"\xff\xd8\xff", "it is no PNG"),
        (b"", "it is no PNG"),
    ],
)
def test_what_is_no_mask_is_refused(contents: bytes, problem: str) -> None:
    with pytest.raises(ValueError, match=re.escape(problem)):
        read_mask(contents, (3, 4))


@pytest.mark.parametrize("bits", [1, 2, 4, 8])
def test_gray_levels_of_any_depth_are_the_classes(bits: int) -> None:
    classes = (np.arange(16).reshape(2, 8) % 2**bits).astype(np.uint8)
    rows = np.unpackbits(classes[..., None], axis=-1)[..., -bits:].reshape(2, -1)
    lines = b"".join(b"\0" + np.packbits(row).tobytes() for row in rows)

    def chunk(kind: bytes, data: bytes) -> bytes:
        return len(data).to_bytes(4, "big") + kind + data + zlib.crc32(kind + data).to_bytes(4, "big")

    header = (8).to_bytes(4, "big") + (2).to_bytes(4, "big") + bytes([bits, 0, 0, 0, 0])
    parts = (chunk(b"IHDR", header), chunk(b"IDAT", zlib.compress(lines)), chunk(b"IEND", b""))
    assert (read_mask(b"\x89PNG\r\n\x1a\n" + b"".join(parts), (2, 8)) == classes).all()
