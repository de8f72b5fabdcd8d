"""Arrays that TensorFlow takes without a copy."""

from pathlib import Path

import numpy as np
import tensorflow as tf

from tfpipe.data.runtime.adopt import adopt
from tfpipe.util.mapped import Part, map_part, write_part


def address(tensor: tf.Tensor) -> int:
    return np.asarray(memoryview(tensor)).ctypes.data


def test_mapped_arrays_are_not_copied(tmp_path: Path) -> None:
    arrays = {"a": np.arange(3000), "b": np.ones((5, 4), np.float32), "c": np.array([True, False])}
    write_part(tmp_path / "part", Part({}, arrays))
    mapped = map_part(tmp_path / "part").arrays
    tensors = adopt(*mapped.values())
    for tensor, array in zip(tensors, mapped.values(), strict=True):
        assert np.array_equal(tensor, array) and tensor.dtype == array.dtype and tensor.shape == array.shape
        assert address(tensor) == array.ctypes.data
        assert "CPU" in tensor.device
    del mapped
    total = tf.data.Dataset.range(3000).map(lambda place: tf.gather(tensors[0], place)).reduce(np.int64(0), tf.add)
    assert total == sum(range(3000))


def test_other_arrays_have_the_same_values() -> None:
    arrays = [np.arange(100)[1:], np.arange(100)[::3], np.zeros((0, 4), np.float32), np.zeros(0, np.int32)]
    for tensor, array in zip(adopt(*arrays), arrays, strict=True):
        assert np.array_equal(tensor, array) and tensor.dtype == array.dtype and tensor.shape == array.shape


def test_a_graph_holds_a_reference() -> None:
    (values,) = adopt(np.arange(1000))
    graph = tf.function(lambda place: tf.gather(values, place)).get_concrete_function(tf.TensorSpec([], tf.int64))
    assert len(graph.graph.as_graph_def().SerializeToString()) < 4000
