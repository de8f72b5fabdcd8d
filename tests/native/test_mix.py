"""Mixing crops and looking floats up, in C: equal to NumPy for any sizes, and nothing next to them is written."""

import ctypes

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.core import ARGUMENT, Core
from tests.support.examples import examples
from tfpipe.native import native

GUARD = 64
WHOLE = 2**15


def mix_by_numpy(crops: np.ndarray, box: tuple[int, ...], weight: int) -> np.ndarray:
    """Returns crops mixed as crops.h defines it."""
    top, left, height, width = box
    inside = np.s_[:, top : top + height, left : left + width]
    own, partners = (each[inside].astype(np.float64) for each in (crops, np.roll(crops, 1, 0)))
    mixed = crops.copy()
    mixed[inside] = np.floor((own * weight + partners * (WHOLE - weight)) / WHOLE + 0.5)
    return mixed


def mix(core: Core, crops: np.ndarray, box: tuple[int, ...], weight: int) -> np.ndarray | int:
    """Returns crops mixed by the core, or its code; memory before and after them is checked to be as it was."""
    memory = np.full(crops.size + 2 * GUARD, 0xA5, np.uint8)
    memory[GUARD:-GUARD] = crops.reshape(-1)
    place = np.array(box, np.int32)
    count, *shape = crops.shape
    function = core.library.tfpipe_mix
    function.argtypes = [ctypes.c_void_p, ctypes.c_int64, *[ctypes.c_int] * 3, ctypes.c_void_p, ctypes.c_int]
    status = function(memory.ctypes.data + GUARD, count, *shape, place.ctypes.data, weight)
    assert (memory[:GUARD] == 0xA5).all() and (memory[-GUARD:] == 0xA5).all()
    return status or memory[GUARD:-GUARD].reshape(crops.shape)


@st.composite
def cases(draw: st.DrawFn) -> tuple[np.ndarray, tuple[int, ...], int]:
    count, height, width = draw(st.integers(1, 5)), draw(st.integers(1, 90)), draw(st.integers(1, 90))
    shape = count, height, width, draw(st.sampled_from([1, 3]))
    crops = np.random.default_rng(draw(st.integers(0, 2**32))).integers(0, 256, shape, np.uint8)
    top, left = draw(st.integers(0, height)), draw(st.integers(0, width))
    box = top, left, draw(st.integers(0, height - top)), draw(st.integers(0, width - left))
    whole = (0, 0, height, width)
    return crops, draw(st.sampled_from([box, whole])), draw(st.sampled_from([0, 1, WHOLE // 2, WHOLE - 1, WHOLE]))


@given(case=cases(), weight=st.none() | st.integers(0, WHOLE))
@settings(max_examples=examples(400), deadline=None)
@pytest.mark.parametrize("level", [0, 1], ids=["plain", "avx2"])
def test_crops_are_mixed_with_those_before_them(
    library: str, level: int, case: tuple[np.ndarray, tuple[int, ...], int], weight: int | None
) -> None:
    core = Core(library)
    core.library.tfpipe_use_simd(level)
    crops, box, own = case
    weight = own if weight is None else weight
    assert (mix(core, crops, box, weight) == mix_by_numpy(crops, box, weight)).all()


def test_all_pairs_of_levels_are_rounded_to_nearest(core: Core) -> None:
    own, partner = np.meshgrid(np.arange(256, dtype=np.uint8), np.arange(256, dtype=np.uint8))
    crops = np.stack([partner, own])[..., None]
    for weight in (0, 1, 127, 128, 129, 8191, 16384, 29999, WHOLE - 1, WHOLE):
        assert (mix(core, crops, (0, 0, 256, 256), weight) == mix_by_numpy(crops, (0, 0, 256, 256), weight)).all()


def test_wide_boxes_of_large_crops_are_mixed_piece_by_piece(core: Core) -> None:
    crops = np.random.default_rng(0).integers(0, 256, (3, 7, 9000, 3), np.uint8)
    for box in ((1, 5, 5, 8990), (0, 0, 7, 9000), (2, 3, 3, 2)):
        for weight in (0, 9999):
            assert (mix(core, crops, box, weight) == mix_by_numpy(crops, box, weight)).all()


@pytest.mark.parametrize("box", [(-1, 0, 2, 2), (0, 0, 9, 2), (0, 0, 2, 9), (7, 0, 2, 2), (0, 7, 2, 2), (0, 0, -1, 2)])
def test_boxes_beyond_the_crop_are_an_error(core: Core, box: tuple[int, ...]) -> None:
    crops = np.zeros((2, 8, 8, 3), np.uint8)
    assert mix(core, crops, box, 0) == ARGUMENT
    assert mix(core, crops, (2**31 - 1,) * 4, 0) == ARGUMENT
    assert mix(core, crops, (0, 0, 2, 2), -1) == mix(core, crops, (0, 0, 2, 2), WHOLE + 1) == ARGUMENT


def test_the_op_leaves_a_tensor_alone_that_is_used_elsewhere() -> None:
    crops = np.random.default_rng(0).integers(0, 256, (4, 9, 9, 3), np.uint8)
    tensor, box = tf.constant(crops), (2, 3, 5, 4)
    mixed = native().mix(tensor, tf.constant(box), tf.constant(0))
    assert (mixed.numpy() == mix_by_numpy(crops, box, 0)).all()
    assert (tensor.numpy() == crops).all()
    assert native().mix(tensor[:0], tf.constant(box), tf.constant(0)).shape == (0, 9, 9, 3)


@pytest.mark.parametrize(
    ("shape", "box", "weight"),
    [((4, 9, 9), [0, 0, 1, 1], 0), ((4, 9, 9, 3), [0, 0, 1], 0), ((4, 9, 9, 3), [0, 0, 10, 1], 0)],
    ids=str,
)
def test_the_op_refuses_other_shapes(shape: tuple[int, ...], box: list[int], weight: int) -> None:
    with pytest.raises(tf.errors.InvalidArgumentError, match="TfpipeMix"):
        native().mix(tf.zeros(shape, tf.uint8), tf.constant(box), tf.constant(weight))


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("shape", [(1, 1, 1, 3), (2, 37, 53, 3), (3, 41, 17, 1), (0, 4, 4, 3)], ids=str)
def test_floats_are_those_of_the_table(shape: tuple[int, ...], dtype: str) -> None:
    draw = np.random.default_rng(0)
    crops = draw.integers(0, 256, shape, np.uint8)
    table = draw.normal(size=(shape[-1], 256)).astype(tf.as_dtype(dtype).as_numpy_dtype)
    floats = native().floats(crops, table)
    expected = table[np.arange(shape[-1]), crops]
    assert floats.dtype == dtype and floats.shape == shape and floats.numpy().tobytes() == expected.tobytes()


@pytest.mark.parametrize("table", [(2, 256), (3, 255), (768,)], ids=str)
def test_a_table_of_another_shape_is_refused(table: tuple[int, ...]) -> None:
    with pytest.raises(
        tf.errors.InvalidArgumentError, match=r"TfpipeFloats: the (rank of|table is not \[channels, 256\])"
    ):
        native().floats(tf.zeros((2, 4, 4, 3), tf.uint8), tf.zeros(table))
