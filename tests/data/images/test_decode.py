"""Decoders: libraries and TensorFlow's ops give the same crops, of any image and any number of windows."""

import io

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from tests.support.decoding import decode, decoder_of
from tests.support.images import bilinear, encoded, picture
from tfpipe.config import Service
from tfpipe.data.images.crops import Windows
from tfpipe.data.images.decode import NATIVE_IMAGES, mirror_in_place

# Of 255: OpenCV cuts off where TensorFlow rounds.
LEVELS, MEAN = 1, 0.3


def some_windows(height: int, width: int, count: int, seed: int) -> list[list[int]]:
    random = np.random.default_rng(seed)
    corners = [(random.integers(height - 1), random.integers(width - 1)) for _ in range(count)]
    return [
        [int(top), int(left), int(random.integers(1, height - top + 1)), int(random.integers(1, width - left + 1))]
        for top, left in corners
    ]


KINDS = {
    "plain": (picture(90, 120), {}),
    "4:4:4": (picture(70, 75, 1), {"subsampling": 0}),
    "progressive": (picture(133, 61, 2), {"progressive": True}),
    "gray": (picture(80, 90, 3).convert("L"), {}),
    "cmyk": (picture(64, 72, 4).convert("CMYK"), {}),
    "png": (picture(50, 60, 5), {"format": "PNG"}),
}


@pytest.mark.parametrize("channels", [3, 1])
def test_all_give_the_same_crops_within_a_level(channels: int) -> None:
    kinds = [kind for kind in KINDS if kind != "cmyk"]  # its inks are multiplied, which cuts off more
    jpegs = [encoded(KINDS[kind][0], **KINDS[kind][1]) for kind in kinds]
    # One, several, or no window an image.
    windows = [
        some_windows(*KINDS[kind][0].size[::-1], count, count)
        for kind, count in zip(kinds, (1, 5, 0, 2, 3, 1), strict=False)
    ]
    libraries = decode("libraries", jpegs, windows, channels)
    for other in ("native", "libraries", "graph"):
        crops = decode(other, jpegs, windows, channels)
        assert libraries.dtype == crops.dtype == np.uint8
        assert libraries.shape == crops.shape == (sum(map(len, windows)), 40, 56, channels)
        difference = np.abs(libraries.astype(int) - crops)
        assert difference.max() <= LEVELS and difference.mean() <= MEAN, other


@pytest.mark.parametrize("colour", [(30, 100, 200, 40), (0, 0, 0, 0), (250, 10, 120, 0), (60, 60, 60, 200)])
def test_cmyk_becomes_the_colour_that_pillow_has(colour: tuple[int, int, int, int]) -> None:
    jpeg = encoded(Image.new("CMYK", (72, 64), colour))
    expected = np.asarray(Image.open(io.BytesIO(jpeg)).convert("RGB"), int)[0, 0]
    for decoder in ("native", "libraries", "graph"):
        assert np.abs(decode(decoder, [jpeg], [[[0, 0, 64, 72]]])[0] - expected).max() <= 3, decoder


@pytest.mark.parametrize("decoder", ["native", "libraries"])
def test_a_crop_is_the_box_that_pillow_cuts_resized(decoder: str) -> None:
    jpeg = encoded(picture(211, 317))
    pixels = np.asarray(Image.open(io.BytesIO(jpeg)), np.float64)
    windows = some_windows(211, 317, 40, 7)
    for crop, (top, left, height, width) in zip(decode(decoder, [jpeg], [windows]), windows, strict=True):
        difference = np.abs(np.rint(bilinear(pixels[top : top + height, left : left + width], (40, 56))) - crop)
        assert difference.max() <= LEVELS and difference.mean() <= MEAN


def test_more_images_than_one_call_takes_come_in_their_order() -> None:
    colours = np.random.default_rng(0).integers(0, 256, (2 * NATIVE_IMAGES + 3, 3))
    jpegs = [encoded(Image.new("RGB", (16, 16), tuple(map(int, colour))), quality=100) for colour in colours]
    crops = decode("native", jpegs, [[[0, 0, 16, 16]]] * len(jpegs))
    assert np.abs(crops.mean(axis=(1, 2)) - colours).max() < 3


@pytest.mark.parametrize("channels", [3, 1])
@pytest.mark.parametrize("decoder", ["native", "libraries", "graph"])
def test_crops_are_mirrored_that_are_to_be(decoder: str, channels: int) -> None:
    jpeg, windows = encoded(picture(90, 120)), some_windows(90, 120, 6, 0)
    flips = np.array([True, False, False, True, True, False])
    plain = decode(decoder, [jpeg], [windows], channels)
    expected = np.where(flips[:, None, None, None], plain[:, :, ::-1], plain)
    chosen, numbers, sizes = decoder_of(decoder, channels), tf.zeros(6, tf.int64), tf.constant([[90, 120]])
    some = Windows(numbers, numbers, tf.constant(windows), tf.zeros(6, tf.int32))

    @tf.function(autograph=False)
    def at_once() -> tf.Tensor:
        return chosen.decode(tf.constant([jpeg]), sizes, some, tf.constant(flips))

    assert (at_once().numpy() == expected).all()
    assert (tf.function(chosen.mirror, autograph=False)(plain, flips).numpy() == expected).all()


@pytest.mark.parametrize("channels", [3, 1])
@pytest.mark.parametrize("width", [1, 2, 7, 31, 224])
def test_mirroring_in_place_is_exact(width: int, channels: int) -> None:
    crops = np.random.default_rng(0).integers(0, 256, (3, 5, width, channels), np.uint8)
    before = crops.copy()
    mirror_in_place(crops, np.array([False, True, True]))
    assert (crops[0] == before[0]).all() and (crops[1:] == before[1:, :, ::-1]).all()
    mirror_in_place(crops, np.zeros(0, bool))
    assert (crops[1:] == before[1:, :, ::-1]).all()


def test_no_window_gives_no_crop() -> None:
    jpegs = [encoded(picture(20, 30))] * 2
    for decoder in ("native", "libraries", "graph"):
        assert decode(decoder, jpegs, [[], []]).shape == (0, 40, 56, 3)


def test_images_that_the_decoder_in_c_refuses_keep_their_places_and_mirrored_crops() -> None:
    """Refused and accepted images of one call, several crops each, some of them mirrored."""
    jpegs = [encoded(picture(90, 120, seed), progressive=seed % 2 == 1) for seed in range(4)]
    windows = some_windows(90, 120, 6, 3)
    images, flips = tf.constant([0, 1, 1, 2, 3, 3], tf.int64), np.array([True, True, False, False, False, True])
    chosen = Windows(images, tf.zeros_like(images), tf.constant(windows), tf.zeros(6, tf.int32))

    def crops(decoder: str, progressive: bool) -> np.ndarray:
        files = jpegs if progressive else [encoded(picture(90, 120, seed)) for seed in range(4)]
        sizes = tf.constant([[90, 120]] * 4)
        decode = tf.function(decoder_of(decoder, 3).decode, autograph=False)
        return decode(tf.constant(files), sizes, chosen, tf.constant(flips)).numpy().astype(int)

    expected = crops("libraries", True)
    assert np.abs(crops("native", True) - expected).max() <= LEVELS
    assert np.abs(crops("native", False) - expected).max() <= LEVELS


def cut_off(jpeg: bytes, share: float) -> bytes:
    start = jpeg.index(b"\xff\xda") + 14
    return jpeg[: start + int(share * (len(jpeg) - start))]


@pytest.mark.parametrize("decoder", ["native", "libraries"])
@pytest.mark.parametrize("options", [{}, {"restart_marker_rows": 1}, {"progressive": True}], ids=str)
def test_a_jpeg_that_is_cut_off_is_an_error_wherever_that_is(decoder: str, options: dict) -> None:
    """Also below all windows, in TensorFlow's words."""
    whole = encoded(picture(200, 120), **options)
    for share in (0.1, 0.5, 0.9):
        with pytest.raises(tf.errors.OpError, match="Invalid JPEG data"):
            decode(decoder, [whole, cut_off(whole, share)], [[[0, 0, 60, 120]]] * 2)


def test_what_the_decoder_in_c_refuses_is_decoded_in_graph_for_workers() -> None:
    """Without Python, which they do not run."""
    files = [
        encoded(picture(90, 120, 1), progressive=True),
        encoded(picture(90, 120)),
        encoded(picture(90, 120, 2), format="PNG"),
    ]
    windows = Windows(
        tf.constant([0, 0, 1, 2], tf.int64),
        tf.zeros(4, tf.int64),
        tf.constant(some_windows(90, 120, 4, 5)),
        tf.zeros(4, tf.int32),
    )
    inputs = tf.constant(files), tf.constant([[90, 120]] * 3), windows, tf.constant([True, False, True, True])
    services = (None, Service(workers=2))
    here, there = (
        tf.function(decoder_of("native", 3, service=service).decode, autograph=False) for service in services
    )
    graph = there.get_concrete_function(*inputs).graph.as_graph_def()
    ops = {node.op for nodes in (graph.node, *(f.node_def for f in graph.library.function)) for node in nodes}
    assert "TfpipeCrops" in ops and not ops & {"PyFunc", "PyFuncStateless", "EagerPyFunc"}
    difference = np.abs(here(*inputs).numpy().astype(int) - there(*inputs).numpy())
    assert difference.max() <= LEVELS and (difference[2] == 0).all()
    with pytest.raises(tf.errors.OpError, match="Invalid JPEG data"):
        there(tf.constant([*files[:2], cut_off(files[1], 0.9)]), *inputs[1:])
