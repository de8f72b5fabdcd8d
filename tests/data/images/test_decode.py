"""Decoders: libraries and TensorFlow's ops give the same crops, of any image and any number of windows."""

import io

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from tests.support.decoding import decode, traced
from tests.support.images import bilinear, encoded, picture
from tfpipe.data.images.crops import Windows
from tfpipe.data.images.decode import NATIVE_IMAGES, choose_decoder, mirror_in_place

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
def test_both_give_the_same_crops_within_a_level(channels: int) -> None:
    kinds = [kind for kind in KINDS if kind != "cmyk"]  # its inks are multiplied, which cuts off more
    jpegs = [encoded(KINDS[kind][0], **KINDS[kind][1]) for kind in kinds]
    # One, several, or no window an image.
    windows = [
        some_windows(*KINDS[kind][0].size[::-1], count, count)
        for kind, count in zip(kinds, (1, 5, 0, 2, 3, 1), strict=False)
    ]
    native, graph = (decode(each, jpegs, windows, channels) for each in ("native", "graph"))
    assert native.dtype == graph.dtype == np.uint8
    assert native.shape == graph.shape == (sum(map(len, windows)), 40, 56, channels)
    difference = np.abs(native.astype(int) - graph)
    assert difference.max() <= LEVELS and difference.mean() <= MEAN


@pytest.mark.parametrize("colour", [(30, 100, 200, 40), (0, 0, 0, 0), (250, 10, 120, 0), (60, 60, 60, 200)])
def test_cmyk_becomes_the_colour_that_pillow_has(colour: tuple[int, int, int, int]) -> None:
    jpeg = encoded(Image.new("CMYK", (72, 64), colour))
    expected = np.asarray(Image.open(io.BytesIO(jpeg)).convert("RGB"), int)[0, 0]
    for decoder in ("native", "graph"):
        assert np.abs(decode(decoder, [jpeg], [[[0, 0, 64, 72]]])[0] - expected).max() <= 3, decoder


def test_a_native_crop_is_the_box_that_pillow_cuts_resized() -> None:
    jpeg = encoded(picture(211, 317))
    pixels = np.asarray(Image.open(io.BytesIO(jpeg)), np.float64)
    windows = some_windows(211, 317, 40, 7)
    for crop, (top, left, height, width) in zip(decode("native", [jpeg], [windows]), windows, strict=True):
        difference = np.abs(np.rint(bilinear(pixels[top : top + height, left : left + width], (40, 56))) - crop)
        assert difference.max() <= LEVELS and difference.mean() <= MEAN


def test_more_images_than_one_call_takes_come_in_their_order() -> None:
    colours = np.random.default_rng(0).integers(0, 256, (2 * NATIVE_IMAGES + 3, 3))
    jpegs = [encoded(Image.new("RGB", (16, 16), tuple(map(int, colour))), quality=100) for colour in colours]
    crops = decode("native", jpegs, [[[0, 0, 16, 16]]] * len(jpegs))
    assert np.abs(crops.mean(axis=(1, 2)) - colours).max() < 3


@pytest.mark.parametrize("channels", [3, 1])
@pytest.mark.parametrize("decoder", ["native", "graph"])
def test_crops_are_mirrored_that_are_to_be(decoder: str, channels: int) -> None:
    jpeg, windows = encoded(picture(90, 120)), some_windows(90, 120, 6, 0)
    flips = np.array([True, False, False, True, True, False])
    plain = decode(decoder, [jpeg], [windows], channels)
    expected = np.where(flips[:, None, None, None], plain[:, :, ::-1], plain)
    config, _, _ = traced(decoder, channels, False)
    chosen, numbers, sizes = choose_decoder(config), tf.zeros(6, tf.int64), tf.constant([[90, 120]])
    some = Windows(numbers, numbers, tf.constant(windows), tf.zeros(6, tf.int32), tf.zeros(6, tf.int32))

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
    for decoder in ("native", "graph"):
        assert decode(decoder, jpegs, [[], []]).shape == (0, 40, 56, 3)


def test_a_damaged_image_is_refused_as_tensorflow_says_it() -> None:
    whole = encoded(picture(90, 120))
    with pytest.raises(tf.errors.OpError, match="Invalid JPEG data"):
        decode("native", [whole, whole[: len(whole) // 2]], [[[0, 0, 90, 120]]] * 2)


LARGE = {
    "plain": (picture(400, 500), {}),
    "4:4:4": (picture(171, 239, 1), {"subsampling": 0}),
    "progressive": (picture(333, 461, 2), {"progressive": True}),
    "gray": (picture(180, 290, 3).convert("L"), {}),
    "cmyk": (picture(164, 272, 4).convert("CMYK"), {}),
    "png": (picture(150, 260, 5), {"format": "PNG"}),
}
LARGE_WINDOWS = [
    [[11, 7, 389, 493], [3, 2, 161, 226]],  # 1/4
    [[0, 0, 171, 239]],  # 1/4
    [[2, 3, 321, 449]],  # 1/8
    [[33, 17, 99, 119], [0, 0, 180, 290]],  # 1/2
    [[0, 0, 164, 272]],
    [[0, 0, 150, 260]],
]


@pytest.mark.parametrize("channels", [3, 1])
def test_scaled_both_give_the_same_crops_within_a_level(channels: int) -> None:
    kinds = [kind for kind in LARGE if kind != "cmyk" or channels == 3]
    jpegs = [encoded(LARGE[kind][0], **LARGE[kind][1]) for kind in kinds]
    windows = [LARGE_WINDOWS[list(LARGE).index(kind)] for kind in kinds]
    native, graph = (decode(each, jpegs, windows, channels, scaled=True) for each in ("native", "graph"))
    difference = np.abs(native.astype(int) - graph)
    assert difference.max() <= LEVELS and difference.mean() <= MEAN
    # Which images share a call does not count.
    alone = [decode("native", [jpeg], [of], channels, scaled=True) for jpeg, of in zip(jpegs, windows, strict=True)]
    assert (np.concatenate(alone) == native).all()


@pytest.mark.parametrize("decoder", ["native", "graph"])
@pytest.mark.parametrize(
    ("scale", "window", "inside"),
    [
        (2, [10, 20, 80, 112], [5, 10, 40, 56]),
        (4, [8, 6, 161, 226], [2, 2, 40, 56]),
        (8, [0, 0, 400, 500], [0, 0, 50, 63]),
        (1, [10, 20, 79, 300], [10, 20, 79, 300]),
    ],
)
def test_a_scaled_crop_is_cut_out_of_what_pillow_decodes_at_that_scale(
    decoder: str, scale: int, window: list[int], inside: list[int]
) -> None:
    jpeg = encoded(picture(400, 500))
    image = Image.open(io.BytesIO(jpeg))
    if scale > 1:
        image.draft("RGB", (500 // scale, 400 // scale))
    pixels = np.asarray(image, np.float64)
    assert pixels.shape[:2] == (-(-400 // scale), -(-500 // scale))
    top, left, height, width = inside
    expected = np.rint(bilinear(pixels[top : top + height, left : left + width], (40, 56)))
    difference = np.abs(decode(decoder, [jpeg], [[window]], scaled=True)[0] - expected)
    assert difference.max() <= LEVELS and difference.mean() <= MEAN


@pytest.mark.parametrize("decoder", ["native", "graph"])
def test_scaled_is_nearer_to_antialiased(decoder: str) -> None:
    image = picture(400, 500)
    expected = np.asarray(Image.open(io.BytesIO(encoded(image))).resize((56, 40), Image.Resampling.BILINEAR), float)
    whole, scaled = (
        np.abs(decode(decoder, [encoded(image)], [[[0, 0, 400, 500]]], scaled=each)[0] - expected).mean()
        for each in (False, True)
    )
    assert scaled < 0.75 * whole


@pytest.mark.parametrize("decoder", ["native", "graph"])
def test_what_is_no_jpeg_is_never_scaled(decoder: str) -> None:
    png = encoded(picture(150, 260, 5), format="PNG")
    windows = [[[10, 20, 120, 200]]]
    assert (decode(decoder, [png], windows, scaled=True) == decode(decoder, [png], windows)).all()
