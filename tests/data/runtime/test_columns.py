"""Columns: rows of arrays, looked up in graph where the arrays are, and arrays that TensorFlow takes without a copy."""

import gc
import weakref
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.examples import examples
from tfpipe import native
from tfpipe.data.catalog.table import StoredTable, map_table, write_table
from tfpipe.data.runtime.buffer_pool import allocate_aligned
from tfpipe.data.runtime.columns import Lines, adopt, columns, handle
from tfpipe.util.made_from import MadeFrom

ARRAYS = {
    "bytes": np.arange(300, dtype=np.uint8),
    "flags": np.arange(300) % 3 == 0,
    "numbers": np.arange(300, dtype=np.int32) * -7,
    "long": np.arange(300) << 40,
    "edges": np.arange(1200, dtype=np.float32).reshape(300, 4) / 7,
    "every third": np.arange(900)[::3],
    "unaligned": np.arange(301)[1:],
    "single": np.array([5]),
    "none": np.zeros((0, 4), np.float32),
}
# Anything but a line end.
TEXT = st.text(st.characters(exclude_characters="\n", exclude_categories=["Cs"]), max_size=40)


@pytest.mark.parametrize("sent", [False, True])
@pytest.mark.parametrize("name", ARRAYS)
@pytest.mark.parametrize("shape", [(), (0,), (9,), (2, 3)])
def test_rows_are_those_of_the_array(name: str, sent: bool, shape: tuple[int, ...]) -> None:
    array = ARRAYS[name]
    if not len(array) and 0 not in shape:
        return
    items = np.random.default_rng(0).integers(0, max(1, len(array)), shape)
    (column,) = columns(array, sent=sent)
    in_graph = tf.function(column.at).get_concrete_function(tf.TensorSpec([None] * len(shape), tf.int64))
    for found in (column.at(tf.constant(items, tf.int64)), in_graph(tf.constant(items, tf.int64))):
        assert found.dtype == array.dtype and found.shape == array[items].shape
        assert np.array_equal(found, array[items])
    assert in_graph.output_shapes.as_list() == [None] * len(shape) + list(array.shape[1:])


@settings(max_examples=examples(30))
@given(lines=st.lists(TEXT, min_size=1, max_size=20), sent=st.booleans(), data=st.data())
def test_lines_are_found_whatever_they_hold(lines: list[str], sent: bool, data: st.DataObject) -> None:
    encoded = [f"{line}\n".encode() for line in lines]
    text = np.frombuffer(b"".join(encoded), np.uint8)
    found = Lines(*columns(text, np.cumsum([0, *map(len, encoded)]), sent=sent))
    items = data.draw(st.lists(st.integers(0, len(lines) - 1), max_size=9))
    assert [line.decode() for line in found.at(tf.constant(items, tf.int64)).numpy()] == [lines[item] for item in items]
    assert found.at(tf.constant(len(lines) - 1, tf.int64)).numpy().decode() == lines[-1]


@pytest.mark.parametrize("item", [-1, 3, 2**40, -(2**63)])
def test_an_item_that_is_not_there_is_an_error(item: int) -> None:
    text, starts = columns(np.frombuffer(b"a\nbc\nd\n", np.uint8), np.array([0, 2, 5, 7]), sent=False)
    for look_up in (Lines(text, starts).at, columns(np.arange(3), sent=False)[0].at):
        with pytest.raises(tf.errors.InvalidArgumentError, match="not in the catalog"):
            look_up(tf.constant([0, item], tf.int64))


def test_starts_beyond_the_text_are_an_error() -> None:
    """A damaged file must not be read beyond its end."""
    for starts in ([0, 2, 9], [0, -3, 7], [2, 2, 7], [2**62, 2**62 + 4, 7]):
        lines = Lines(*columns(np.frombuffer(b"a\nbc\nd\n", np.uint8), np.array(starts), sent=False))
        with pytest.raises(tf.errors.InvalidArgumentError, match="ascend"):
            lines.at(tf.constant([0, 1], tf.int64))


def test_another_type_than_the_arrays_is_an_error() -> None:
    (column,) = columns(np.arange(3), sent=False)
    with pytest.raises(tf.errors.InvalidArgumentError, match="another type"):
        native.native().rows(column.tensor, [0], T=tf.int32)
    with pytest.raises(tf.errors.InvalidArgumentError, match="shape"):
        native.native().rows(column.tensor[:4], [0], T=tf.int64)


def test_a_handle_of_another_process_is_an_error() -> None:
    library = native.native()
    stranger = tf.constant(handle(np.arange(3), library.origin + 1))
    for call in (lambda: library.rows(stranger, [0], T=tf.int64), lambda: library.lines(stranger, stranger, [0])):
        with pytest.raises(tf.errors.FailedPreconditionError, match=r"another process than this: use data\.service"):
            call()


def test_an_array_lives_as_long_as_an_iterator_that_looks_it_up() -> None:
    array = np.arange(100_000) * 3
    gone = weakref.ref(array)
    dataset = tf.data.Dataset.range(100).map(columns(array, sent=False)[0].at)
    iterator = iter(dataset.repeat().prefetch(1))
    del array, dataset
    gc.collect()
    assert gone() is not None
    assert [next(iterator).numpy() for _ in range(150)] == [3 * (number % 100) for number in range(150)]
    del iterator
    gc.collect()
    (tf.constant(0) + 1).numpy()  # TensorFlow gives arrays back when Python next calls it
    assert gone() is None


def mapped(folder: Path, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    write_table(folder / "table", StoredTable({}, arrays), MadeFrom(1, [], {}))
    return map_table(folder / "table").columns


def test_a_graph_holds_no_array_unless_it_is_sent(tmp_path: Path) -> None:
    """tf.data allocates zeros of the arrays that a graph captures, when it rewrites the graph."""
    numbers = mapped(tmp_path, {"numbers": np.arange(1_000_000)})["numbers"]
    for sent in (False, True):
        dataset = tf.data.Dataset.range(9).map(columns(numbers, sent=sent)[0].at)
        assert list(dataset.as_numpy_iterator()) == list(range(9))
        size = len(dataset._as_serialized_graph().numpy())
        assert size > numbers.nbytes if sent else size < 20_000


def address(tensor: tf.Tensor) -> int:
    return np.asarray(memoryview(tensor)).ctypes.data


def test_mapped_arrays_are_not_copied(tmp_path: Path) -> None:
    arrays = {"a": np.arange(3000), "b": np.ones((5, 4), np.float32), "c": np.array([True, False])}
    held = mapped(tmp_path, arrays)
    tensors = adopt(*held.values())
    for tensor, array in zip(tensors, held.values(), strict=True):
        assert np.array_equal(tensor, array) and tensor.dtype == array.dtype and tensor.shape == array.shape
        assert address(tensor) == array.ctypes.data
        assert "CPU" in tensor.device
    del held
    total = tf.data.Dataset.range(3000).map(lambda place: tf.gather(tensors[0], place)).reduce(np.int64(0), tf.add)
    assert total == sum(range(3000))


def test_other_arrays_have_the_same_values() -> None:
    arrays = [np.arange(100)[1:], np.arange(100)[::3], np.zeros((0, 4), np.float32), np.zeros(0, np.int32)]
    for tensor, array in zip(adopt(*arrays), arrays, strict=True):
        assert np.array_equal(tensor, array) and tensor.dtype == array.dtype and tensor.shape == array.shape


def test_many_calls_give_no_warning(caplog: pytest.LogCaptureFixture) -> None:
    """TensorFlow warns of functions that are traced again and again."""
    for size in range(20):
        adopt(np.arange(size))
    assert not caplog.records


def test_a_graph_holds_a_reference() -> None:
    (values,) = adopt(np.arange(1000))
    graph = tf.function(lambda place: tf.gather(values, place)).get_concrete_function(tf.TensorSpec([], tf.int64))
    assert len(graph.graph.as_graph_def().SerializeToString()) < 4000


def test_the_memory_is_given_back_with_the_tensor() -> None:
    array = allocate_aligned((4096,))
    gone = weakref.ref(array)
    (tensor,) = adopt(array)
    assert address(tensor) == array.ctypes.data
    del array, tensor
    gc.collect()
    (tf.constant(0) + 1).numpy()  # TensorFlow gives arrays back when Python next calls it
    assert gone() is None
