"""Whole images in graph: those that EXIF turns, in every kind of crop; and what a process without Python decodes."""

import random
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from tests.support.core import window_of
from tests.support.decoding import TURNING, decode_image, decoder_of, memory, size_in
from tests.support.images import encoded, of_jfif_2, picture, turned
from tfpipe.config import DataConfig
from tfpipe.data.images.crops import Windows
from tfpipe.data.images.decode import EncodedImages
from tfpipe.data.images.whole import Decoding
from tfpipe.data.images.windows import target_of
from tfpipe.native import native

SIZE = (90, 121)
CROPS = {
    "stretched": {"crop": "random_resized"},
    "letterbox": {"crop": "full", "fit": "letterbox"},
    "center": {"crop": "center"},
}


@pytest.mark.parametrize("crop", CROPS)
@pytest.mark.parametrize(("decoder", "channels"), [("native", 3), ("native", 1), ("graph", 3)])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_crops_are_those_of_the_turned_pixels(orientation: int, decoder: str, channels: int, crop: str) -> None:
    """Mirrored or not, of the crop's size or resized; of a JPEG that C decodes, and of one that it refuses."""
    plain = turned(picture(*SIZE, 2), orientation)
    files = [plain, of_jfif_2(plain)]
    whole = decode_image(plain, channels, TURNING)
    height, width = whole.shape[:2]
    assert (height, width) == (SIZE[::-1] if orientation > 4 else SIZE)
    assert [size_in(file, TURNING) for file in files] == [[height, width]] * 2
    chosen = decoder_of(decoder, channels, exif="apply", **CROPS[crop])
    target = target_of(DataConfig(train_filelist=Path("x"), crop_image_size=(40, 56), **CROPS[crop]), "train")
    draw = random.Random(orientation)
    windows = [list(window_of(draw, (height, width))) for _ in range(4)] + [[7, 5, 40, 56]]
    flips = np.array([False, True, True, False, True])
    images = np.repeat([0, 1], 5)
    asked = Windows(
        tf.constant(images, tf.int64), tf.zeros(10, tf.int64), tf.constant(windows * 2), tf.zeros(10, tf.int32)
    )
    sizes = tf.constant([[height, width]] * 2)
    crops = chosen.decode(EncodedImages(tf.constant(files)), sizes, asked, tf.constant([*flips, *flips])).numpy()
    (high, wide), cover = target.size, target.cover
    how = {"level": target.level, "cover_height": cover[0], "cover_width": cover[1], "kernel": 0}
    written = native().resize(whole, windows, flips, range(5), memory(5, high, wide, channels), **how)
    expected = written.numpy().astype(int)
    assert np.abs(crops[:5] - expected).max() <= 1
    assert (crops[5:] == expected).all()
    if crop == "stretched":
        assert (crops[4] == whole[7:47, 5:61][:, ::-1]).all()


def test_a_process_without_python_decodes_what_tensorflow_does_and_names_the_rest() -> None:
    how = Decoding(turn=False, by_pillow=None)
    for kind in ("JPEG", "PNG", "WEBP"):
        contents = encoded(picture(*SIZE), format=kind)
        assert size_in(contents, how) == list(SIZE)
        assert (decode_image(contents, 3, how) == decode_image(contents)).all()
    for kind in ("GIF", "TIFF", "BMP"):
        with pytest.raises(tf.errors.InvalidArgumentError, match="this is none: convert it, or"):
            decode_image(encoded(picture(*SIZE), format=kind), 3, how)
