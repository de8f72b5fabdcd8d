"""Damage: what is said of a file without TensorFlow, and what TensorFlow then decides."""

import struct
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from tests.support.decoding import decode, decode_image
from tests.support.images import decoded, encoded, gigapixel, picture, sampled, scans
from tfpipe.config import DataConfig
from tfpipe.data.images.crops import Windows
from tfpipe.data.images.damage import describe, excess, find_damage
from tfpipe.data.images.decode import EncodedImages, choose_decoder
from tfpipe.prepare.index_rows import Images
from tfpipe.tools.check.reading import Chunk, Doubt, look, try_in_tensorflow

SIZE = (64, 70)
# Begins the header of a scan, whose length is below 256.
SCAN = b"\xff\xda\0"
# By the first component's factors, and the others'.
RARE = {
    "4:4:1": (0x14, 0x11, 0x11),
    "4:1:1": (0x41, 0x11, 0x11),
    "3x1": (0x31, 0x11, 0x11),
    "1x3": (0x13, 0x11, 0x11),
    "4x2": (0x42, 0x11, 0x11),
    "1x1 with 2x2": (0x11, 0x22, 0x22),
    "2x2, 2x2, 1x1": (0x22, 0x22, 0x11),
    "uneven chroma": (0x21, 0x11, 0x21),
}


def states(jpeg: bytes, height: int, width: int) -> bytes:
    """The JPEG with another size in its header."""
    at = jpeg.index(b"\xff\xc0")
    return jpeg[: at + 5] + struct.pack(">HH", height, width) + jpeg[at + 9 :]


@pytest.mark.parametrize("kind", RARE)
def test_a_rare_sampling_is_no_damage_and_a_cut_one_is_truncated(kind: str, tmp_path: Path) -> None:
    jpeg = sampled(SIZE, *RARE[kind])
    half = jpeg[: jpeg.index(b"\xff\xda") + 30]
    paths = [tmp_path / name for name in ("whole.jpg", "half.jpg")]
    for path, contents in zip(paths, (jpeg, half), strict=True):
        path.write_bytes(contents)
    for channels in (1, 3):
        assert find_damage(jpeg) is None
        assert np.ptp(decode_image(jpeg, channels)) > 20
        assert find_damage(half)
        assert "remature end" in describe(half, "") or "truncated" in describe(half, "")
        config = DataConfig(train_filelist=tmp_path, num_channels=channels)
        assert try_in_tensorflow([Doubt(paths[1].read_bytes, "")], config, show=False)[0][0] == "truncated"
    seen = look(Chunk(Images([*map(str, paths)], ["", ""], np.zeros(2, np.int32))), {"a": 0}, 10**9)
    assert [bool(each.damage) for each in seen] == [False, True]


def test_rare_samplings_are_decoded_alike() -> None:
    jpegs = [sampled(SIZE, *factors) for factors in RARE.values()]
    windows = [[[3, 5, 40, 56]]] * len(jpegs)
    assert (decode("native", jpegs, windows) == decode("graph", jpegs, windows)).all()


def test_the_size_is_refused_that_tensorflow_refuses() -> None:
    """It counts the file's components, not those that it decodes to."""
    gray, colour = encoded(picture(16, 16).convert("L")), encoded(picture(16, 16))
    assert find_damage(states(gray, 20_000, 20_000)) is None  # 400 million pixels, which Pillow does not decode
    assert "23171 x 23171 pixels are more than" in find_damage(states(gray, 23_171, 23_171))
    large = states(colour, 13_400, 13_400)
    assert "13400 x 13400 pixels are more than" in find_damage(large)
    for channels in (1, 3):
        with pytest.raises(tf.errors.InvalidArgumentError):
            decode_image(large, channels)
    assert "more than TensorFlow decodes" in find_damage(gigapixel())


@pytest.mark.parametrize("contents", [b"\xff\xd8", encoded(picture(9, 9))[:90], b"\xff\xd8\xff\xff\xff"], ids=range(3))
def test_a_jpeg_without_a_header_is_named_so(contents: bytes) -> None:
    assert find_damage(contents) == "a JPEG without a whole header"


@pytest.mark.parametrize("progressive", [False, True])
def test_missing_bytes_are_noticed_unless_the_codes_happen_to_fit(progressive: bool) -> None:
    jpeg = encoded(picture(*SIZE), progressive=progressive)
    assert find_damage(jpeg) is None
    places = np.linspace(jpeg.index(SCAN) + 14, len(jpeg) - 40, 40).astype(int)
    found = [find_damage(jpeg[:at] + jpeg[at + 30 :]) for at in places]
    corrupt = "Corrupt JPEG data: bytes are missing or left over, or a code has no meaning"
    assert found.count(corrupt) > 15 and found.count(None) < 20


@pytest.mark.parametrize("decoder", ["native", "graph"])
def test_a_progressive_file_is_decoded_up_to_the_limit_of_scans(decoder: str, monkeypatch) -> None:
    contents, number = encoded(picture(29, 31), progressive=True), tf.constant([0], tf.int64)
    windows, count = Windows(number, number, tf.constant([[0, 0, 9, 9]]), tf.constant([0])), contents.count(SCAN)
    inputs = EncodedImages(tf.constant([contents])), tf.constant([[29, 31]]), windows, tf.zeros(0, tf.bool)

    def crops(most: int) -> np.ndarray:
        monkeypatch.setattr("tfpipe.data.images.decode.MOST_SCANS", most)
        config = DataConfig(train_filelist=Path("x"), decoder=decoder, crop_image_size=(9, 9))
        return choose_decoder(config).decode(*inputs).numpy()

    assert (crops(count)[0] == decoded(contents)[:9, :9]).all()
    for most in (count - 1, 1):
        message = rf"{count} scans are more than the most that are decoded, {most}"
        with pytest.raises(tf.errors.InvalidArgumentError, match=message):
            crops(most)


@pytest.mark.parametrize("decoder", ["native", "graph"])
def test_files_beyond_the_limits_are_refused_before_they_are_decoded(decoder: str, monkeypatch) -> None:
    for module in ("decode", "damage"):
        monkeypatch.setattr(f"tfpipe.data.images.{module}.MOST_SCANS", 20)
    config = DataConfig(train_filelist=Path("x"), max_pixels=899, decoder=decoder, crop_image_size=(9, 9))
    chosen = choose_decoder(config)
    number = tf.constant([0], tf.int64)
    windows = Windows(number, number, tf.constant([[0, 0, 9, 9]]), tf.constant([0]))
    # A later part, like a phone's film, is not of the image.
    for contents in (scans(picture(29, 31), 20), encoded(picture(29, 31)) + scans(picture(9, 9), 5)):
        sizes = chosen.sizes(tf.constant([contents]), tf.zeros([1, 2], tf.int32))
        assert chosen.decode(EncodedImages(tf.constant([contents])), sizes, windows, tf.zeros(0, tf.bool)).shape == (
            1,
            9,
            9,
            3,
        )
        assert excess(contents, 899, 899) == ""
    many, large = scans(picture(29, 31), 21), encoded(picture(30, 30))
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"21 scans are more than .*, 20: write the file with"):
        chosen.decode(EncodedImages(tf.constant([many])), tf.constant([[29, 31]]), windows, tf.zeros(0, tf.bool))
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"900 pixels are more than data\.max_pixels, 899: raise"):
        chosen.sizes(tf.constant([contents, large]), tf.zeros([2, 2], tf.int32))
    assert "21 scans are more" in excess(many, 899, 899) and "900 pixels are more" in excess(large, 900, 899)
    assert excess(encoded(picture(29, 31), format="PNG") + 30 * SCAN, 899, 899) == ""
