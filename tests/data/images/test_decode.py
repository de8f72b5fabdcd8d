"""Decoders: the one in C and TensorFlow's ops give the same crops, of any image and any number of windows."""

import io
import itertools
import random
from functools import partial

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from tests.support.decoding import decode, decode_image, decoder_of, memory
from tests.support.images import bilinear, encoded, of_jfif_2, picture
from tfpipe.config import Kernel
from tfpipe.data.images.crops import ALL, Windows
from tfpipe.data.images.decode import NATIVE_IMAGES, Cuts, Decoder, EncodedImages
from tfpipe.native import core, native

# Of 255: the decoder in C interpolates with integers.
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


@pytest.mark.parametrize(
    ("kernel", "channels"), [("bilinear", 3), ("bilinear", 1), ("antialias", 3), ("bicubic", 1), ("area", 3)]
)
def test_both_give_the_same_crops_to_the_bit(kernel: Kernel, channels: int) -> None:
    jpegs = [encoded(image, **how) for image, how in KINDS.values()]
    # One, several, or no window an image.
    windows = [
        some_windows(*image.size[::-1], count, count)
        for (image, _), count in zip(KINDS.values(), (1, 5, 0, 2, 4, 3), strict=True)
    ]
    native, graph = (decode(decoder, jpegs, windows, channels, kernel) for decoder in ("native", "graph"))
    assert native.dtype == graph.dtype == np.uint8
    assert native.shape == graph.shape == (sum(map(len, windows)), 40, 56, channels)
    assert (native == graph).all()


@pytest.mark.parametrize("kind", [{}, {"subsampling": 0}, {"progressive": True}, {"quality": 30}], ids=str)
@pytest.mark.parametrize("mode", ["RGB", "L"])
@pytest.mark.parametrize("decoder", ["native", "graph"])
def test_a_crop_is_the_box_that_pillow_cuts_resized(decoder: str, mode: str, kind: dict) -> None:
    jpeg = encoded(picture(211, 317).convert(mode), **kind)
    pixels = np.asarray(Image.open(io.BytesIO(jpeg)).convert("RGB"), np.float64)
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
@pytest.mark.parametrize("decoder", ["native", "graph"])
def test_crops_are_mirrored_that_are_to_be(decoder: str, channels: int) -> None:
    jpeg, windows = encoded(picture(90, 120)), some_windows(90, 120, 6, 0)
    flips = np.array([True, False, False, True, True, False])
    plain = decode(decoder, [jpeg], [windows], channels)
    expected = np.where(flips[:, None, None, None], plain[:, :, ::-1], plain)
    chosen, numbers, sizes = decoder_of(decoder, channels), tf.zeros(6, tf.int64), tf.constant([[90, 120]])
    some = Windows(numbers, numbers, tf.constant(windows), tf.zeros(6, tf.int32))

    @tf.function(autograph=False)
    def at_once() -> tf.Tensor:
        return chosen.decode(EncodedImages(tf.constant([jpeg])), sizes, some, tf.constant(flips))

    assert (at_once().numpy() == expected).all()


def test_no_window_gives_no_crop() -> None:
    jpegs = [encoded(picture(20, 30))] * 2
    for decoder in ("native", "graph"):
        assert decode(decoder, jpegs, [[], []]).shape == (0, 40, 56, 3)


@pytest.mark.parametrize(("channels", "kernel"), [(3, "bilinear"), (1, "bilinear"), (3, "bicubic"), (1, "antialias")])
def test_images_that_the_decoder_in_c_refuses_are_cut_and_resized_by_it(channels: int, kernel: Kernel) -> None:
    """Refused and accepted images of one call, several crops each, some of them mirrored."""
    number = native().kernels[kernel]
    files = [encoded(picture(90, 120, seed), format="PNG" if seed == 3 else "JPEG") for seed in range(4)]
    files[1] = of_jfif_2(files[1])
    windows = some_windows(90, 120, 6, 3)
    images, flips = [0, 1, 1, 2, 3, 3], [True, True, False, False, False, True]
    zeros = tf.zeros(6, tf.int64)
    chosen = Windows(tf.constant(images, tf.int64), zeros, tf.constant(windows), tf.cast(zeros, tf.int32))
    inputs = EncodedImages(tf.constant(files)), tf.constant([[90, 120]] * 4), chosen, tf.constant(flips)
    decoder = decoder_of("native", channels, kernel=kernel, service=1)
    decode = tf.function(partial(Decoder.decode, decoder), autograph=False).get_concrete_function(*inputs)
    graph = decode.graph.as_graph_def()
    ops = {node.op for nodes in (graph.node, *(f.node_def for f in graph.library.function)) for node in nodes}
    assert "TfpipeCrops" in ops and not ops & {"PyFunc", "PyFuncStateless", "EagerPyFunc"}  # workers run no Python
    pixels = [decode_image(file, channels) for file in files]
    expected = [
        native().resize(pixels[image], [window], [flip], [0], memory(1, 40, 56, channels), kernel=number)[0]
        for image, window, flip in zip(images, windows, flips, strict=True)
    ]
    assert (decode(*inputs).numpy() == np.array(expected)).all()


@pytest.mark.parametrize("channels", [3, 1])
@pytest.mark.parametrize("kernel", core().kernels.values())
def test_decoded_pixels_are_resized_as_a_jpegs_are(kernel: int, channels: int) -> None:
    """And those of a window of the crop's size are copied."""
    windows = tf.constant([*some_windows(90, 120, 7, 1), [50, 64, 40, 56]])
    flips, jpeg = np.arange(8) % 2 == 0, encoded(picture(90, 120))
    how = {"targets": [40, 56, -1, 0, 0], "channels": channels, "kernel": kernel}
    inputs = [jpeg], [], [[90, 120]], [0] * 8, windows, flips, ALL, [memory(8, 40, 56, channels)]
    (crops,), refused = native().crops(*inputs, **how)
    pixels = decode_image(jpeg, channels)
    resized = native().resize(pixels, windows, flips, range(8), memory(8, 40, 56, channels), kernel=kernel)
    assert not refused.numpy().any() and (resized.numpy() == crops.numpy()).all()
    assert (resized[-1].numpy() == pixels[50:, 64:]).all()


@pytest.mark.parametrize(
    ("image", "windows", "flips", "said"),
    [
        ((9, 9, 3), [[0, 0, 10, 9]], [], "a window is not within the image"),
        ((9, 9, 3), [[-1, 0, 9, 9]], [], "a window is not within the image"),
        ((9, 9, 3), [[0, 0, 0, 9]], [], "a window is not within the image"),
        ((9, 9, 2), [[0, 0, 9, 9]], [], "the image is not"),
        ((9, 9), [[0, 0, 9, 9]], [], 'the rank of "image: uint8" is not 3'),
        ((9, 9, 3), [[0, 0, 9]], [], "windows are not"),
        ((9, 9, 3), [[0, 0, 9, 9]], [True, False], "flips are neither"),
        ((9, 9, 3), [[0, 0, 9, 9]] * 2, [], "rows are not within the crops"),
    ],
    ids=str,
)
def test_inputs_that_do_not_fit_together_are_an_error(image: tuple, windows: list, flips: list, said: str) -> None:
    inputs = tf.zeros(image, tf.uint8), windows, tf.constant(flips, tf.bool), range(len(windows))
    with pytest.raises(tf.errors.InvalidArgumentError, match=f"TfpipeResize: {said}"):
        native().resize(*inputs, memory(1, 4, 4, image[-1]), kernel=0)


@given(st.sets(st.integers(1, 8)), st.sampled_from(["bilinear", "area"]), st.booleans(), st.randoms())
@settings(max_examples=25)
def test_spans_of_a_batch_written_in_any_order_are_the_batch(
    ends: set[int], kernel: Kernel, mirrored: bool, draw: random.Random
) -> None:
    """And a span writes its own crops only: others of a batch are written at the same time. One PNG is refused by C."""
    files = [encoded(picture(40, 60, seed), format="PNG" if seed == 4 else "JPEG") for seed in range(9)]
    numbers, windows = tf.range(9, dtype=tf.int64), tf.constant(some_windows(40, 60, 9, len(ends)))
    flips = tf.constant([draw.random() < 0.5 for _ in range(9 * mirrored)], tf.bool)
    asked = Windows(numbers, numbers, windows, tf.cast(numbers, tf.int32))
    cuts = Cuts(EncodedImages(tf.constant(files)), tf.constant([[40, 60]] * 9), asked, flips)
    decoder = decoder_of("native", 3, kernel=kernel)
    spans = list(itertools.pairwise([0, *sorted(ends), 9]))
    draw.shuffle(spans)
    crops, expected = tf.fill([9, 40, 56, 3], tf.constant(7, tf.uint8)), np.full([9, 40, 56, 3], 7, np.uint8)
    whole = decoder.decode(*cuts).numpy()
    for first, end in spans:
        crops = decoder.write(crops, tf.constant([first, end], tf.int64), cuts)
        expected[first:end] = whole[first:end]
        assert (crops.numpy() == expected).all()


@pytest.mark.parametrize("span", [[1], [2, 1], [-1, 1], [0, 3], [0, 1, 2]], ids=str)
def test_a_span_beyond_the_crops_is_an_error(span: list[int]) -> None:
    jpegs = [encoded(picture(9, 9))] * 2, [], [[9, 9]] * 2, [0, 1], [[0, 0, 9, 9]] * 2, tf.zeros(0, tf.bool)
    how = {"targets": [9, 9, -1, 0, 0], "channels": 3, "kernel": 0}
    with pytest.raises(tf.errors.InvalidArgumentError, match="TfpipeCrops: the span is neither"):
        native().crops(*jpegs, span, [memory(2, 9, 9)], **how)
    with pytest.raises(tf.errors.InvalidArgumentError, match="TfpipeAugment: the span is neither"):
        native().augment(memory(2, 9, 9), [[0, 0]] * 2, 0, np.zeros((0, core().columns)), span)


@pytest.mark.parametrize("shape", [(1, 9, 9, 3), (2, 8, 9, 3), (2, 9, 8, 3), (2, 9, 9, 1)])
def test_memory_of_another_size_than_the_crops_is_an_error(shape: tuple[int, ...]) -> None:
    jpegs = [encoded(picture(9, 9))] * 2, [], [[9, 9]] * 2, [0, 1], [[0, 0, 9, 9]] * 2, tf.zeros(0, tf.bool)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"the crops are not \[k, height, width, channels\]"):
        native().crops(*jpegs, ALL, [memory(*shape)], targets=[9, 9, -1, 0, 0], channels=3, kernel=0)


def cut_off(jpeg: bytes, share: float) -> bytes:
    start = jpeg.index(b"\xff\xda") + 14
    return jpeg[: start + int(share * (len(jpeg) - start))]


@pytest.mark.parametrize("options", [{}, {"restart_marker_rows": 1}, {"progressive": True}], ids=str)
def test_a_jpeg_that_is_cut_off_is_an_error_wherever_that_is(options: dict) -> None:
    """Also below all windows, in TensorFlow's words."""
    whole = encoded(picture(200, 120), **options)
    for share in (0.1, 0.5, 0.9):
        with pytest.raises(tf.errors.OpError, match="Invalid JPEG data"):
            decode("native", [whole, cut_off(whole, share)], [[[0, 0, 60, 120]]] * 2)
