"""Batches for JAX: the same as in tf.data, on their devices before use, and whole over devices and processes."""

from pathlib import Path

import jax
import numpy as np
import pytest
import tensorflow as tf

import tfpipe
from tests.support.commands import WARM, finish, run, start_ranks
from tests.support.sample import SampleData
from tfpipe import Config, ConfigError, World, load_config
from tfpipe.data.batch import Batch
from tfpipe.interop.jax import _prepare


@pytest.fixture(scope="module")
def config(sample: SampleData, index: str, tmp_path_factory: pytest.TempPathFactory) -> Config:
    path = tmp_path_factory.mktemp("jax") / "config.json"
    return load_config(sample.config(path, data={"index": index}))


def test_arrays_share_memory_and_may_be_donated(config: Config) -> None:
    """JAX gives the memory of an array that it did not allocate to no other one."""
    prepare = tfpipe.jax.Loader(config)._opener.prepare(None, None)
    batch = Batch((tf.zeros([8, 32, 32, 3], tf.uint8), tf.range(8)), tf.zeros([8, 2], tf.int64))
    images, labels = next(prepare(iter([batch]))).data
    assert isinstance(images, jax.Array) and (images.dtype, labels.dtype) == (np.uint8, np.int32)
    assert images.unsafe_buffer_pointer() == np.asarray(batch.data[0]).ctypes.data
    brighter = jax.jit(lambda values: values + 1, donate_argnums=0)(images)
    assert images.is_deleted() and (brighter == 1).all() and not np.asarray(batch.data[0]).any()


def test_what_is_ahead_on_the_device_does_not_count(config: Config) -> None:
    with tfpipe.Loader(config, positions=True) as whole:
        expected = [next(whole)[2].numpy().tolist() for _ in range(6)]
    with tfpipe.jax.Loader(config, positions=True) as loader:
        assert [next(loader)[2].tolist() for _ in range(3)] == expected[:3]
        batches = loader._delivery.taker.batches
        while batches.reached.numpy().tolist() != expected[4]:
            pass  # two batches are taken while no batch is asked for
        state = loader.state_dict()
        assert (loader.step, state["crops"]) == (3, 48)
    with tfpipe.jax.Loader(config, positions=True) as resumed:
        resumed.load_state_dict(state)
        assert [next(resumed)[2].tolist() for _ in range(3)] == expected[3:]


GLOBAL = """
import sys, jax, numpy as np, tfpipe.jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
if sys.argv[2:]:
    jax.distributed.initialize(cluster_detection_method="mpi4py")
config = tfpipe.load_config(sys.argv[1])
sharding = NamedSharding(Mesh(jax.devices(), ("data",)), PartitionSpec("data"))
with tfpipe.jax.Loader(config, sharding=sharding) as loader:
    images, labels = next(loader)
    assert len(images) == 16 * jax.process_count() and len(images.sharding.device_set) == 2
    total = jax.jit(lambda images: images.astype("int32").sum())(images)
    state = loader.state_dict()
    assert state["crops"] == len(labels)
with tfpipe.jax.Loader(config, "test", sharding=sharding) as loader:
    right = [jax.jit(lambda labels: (labels >= 0).sum())(labels) for _, labels in loader]
    assert len(right) == len(loader)
if jax.process_index() == 0:
    print(int(total), len(right), int(sum(right)))
"""


def test_a_batch_is_one_array_over_devices(config: Config, sample: SampleData, index: str, tmp_path: Path) -> None:
    """The last test batch, which is smaller, is filled up with labels of -1."""
    path = sample.config(tmp_path / "c.json", data={"index": index})
    two = {"XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
    done = run(*WARM, "-c", GLOBAL, path, **two)
    assert done.code == 0, done.err
    with tfpipe.Loader(config) as loader, tfpipe.Loader(config, "test") as test:
        labels = [labels for _, labels in test]
        total = int(np.sum(next(loader)[0], dtype=int))
        assert len(labels[-1]) < 16
        assert done.out.split() == [str(total), str(len(labels)), str(sum(map(len, labels)))]


def test_a_sharded_pass_that_is_resumed_has_the_batches_that_are_left(config: Config) -> None:
    sharding = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    with tfpipe.jax.Loader(config, "test", sharding=sharding) as loader:
        for _ in range(2):
            next(loader)
        state = loader.state_dict()
    with tfpipe.jax.Loader(config, "test", sharding=sharding) as resumed:
        resumed.load_state_dict(state)
        assert len(list(resumed)) == len(resumed) - 2 > 0
    with tfpipe.jax.Loader(config, "test", sharding=sharding) as closed:
        closed.commit()
        next(closed), next(closed)
        closed.commit(1)
        closed.close()
        assert len([next(closed) for _ in range(len(closed) - 1)]) > 0
        with pytest.raises(StopIteration):
            next(closed)


@pytest.mark.parametrize(("kind", "filler"), [(np.int32, -1), (np.float32, -1), (np.uint8, 255)])
def test_what_fills_a_batch_up_is_no_label(kind: type, filler: int) -> None:
    """Of classes, of numbers or several classes, and of masks."""
    batch = Batch((tf.ones([2, 4, 4, 3], tf.uint8), tf.ones([2, 4], kind), tf.ones([2])), tf.zeros([2, 2], tf.int64))
    images, labels, weights = map(np.asarray, _prepare(jax.devices()[0], 3, batch).data)
    assert images.any(axis=(1, 2, 3)).tolist() == [True, True, False] and weights.tolist() == [1, 1, 0]
    assert labels.tolist() == [[1] * 4, [1] * 4, [filler] * 4]


@pytest.mark.full("two processes; the loop in JAX has them too")
def test_a_batch_is_one_array_over_processes(config: Config, sample: SampleData, index: str, tmp_path: Path) -> None:
    path = sample.config(tmp_path / "c.json", data={"index": index})
    done = finish(start_ranks(2, *WARM, "-c", GLOBAL, path, "processes"))
    assert done.code == 0, done.err
    total, crops = 0, 0
    for rank in range(2):
        with tfpipe.Loader(config, world=World(rank, 2)) as loader:
            total += int(np.sum(next(loader)[0], dtype=int))
        with tfpipe.Loader(config, "test", World(rank, 2)) as test:
            crops += sum(len(labels) for _, labels in test)
    assert done.out.split()[-3:][::2] == [str(total), str(crops)]


def test_a_sharded_test_pass_needs_to_know_its_batches(sample: SampleData, tmp_path: Path) -> None:
    config = load_config(sample.config(tmp_path / "c.json"))
    sharding = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    with pytest.raises(ConfigError, match=r"only the XMLs tell how many crops each has: build an index"):
        tfpipe.jax.Loader(config, "test", sharding=sharding)
