"""Batches for PyTorch: the same as in tf.data, in the same memory, and nothing left behind."""

import importlib.util
import itertools
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
import torch
from torch.utils.data import DataLoader

import tfpipe
from tests.support.commands import ROOT, WARM, ensure_server, finish, start
from tests.support.runs import LATE
from tests.support.sample import SampleData
from tfpipe import Config, build_dataset, load_config
from tfpipe.errors import ConfigError


@pytest.fixture(scope="module")
def config(sample: SampleData, tmp_path_factory: pytest.TempPathFactory) -> Config:
    path = tmp_path_factory.mktemp("torch") / "config.json"
    return load_config(sample.config(path), ["data.annotations=none"])


@pytest.fixture(scope="module")
def training(config: Config) -> tf.data.Dataset:
    """The training pipeline, which begins again with every iteration."""
    return build_dataset(config, with_positions=True)


@pytest.fixture(scope="module")
def batch(training: tf.data.Dataset) -> tuple[tf.Tensor, ...]:
    """The first batch: images, labels, positions."""
    return next(iter(training))


def loader(dataset: tf.data.Dataset, **how: bool) -> DataLoader:
    return DataLoader(tfpipe.torch.iterable(dataset, **how), batch_size=None, num_workers=0)


def address(tensor: tf.Tensor) -> int:
    return np.asarray(memoryview(tensor)).ctypes.data


def check_batches(seen: list[list[torch.Tensor]], expected: list[tuple[np.ndarray, ...]]) -> None:
    assert len(seen) == len(expected) > 2
    for (images, labels, positions), (want_images, want_labels, want_positions) in zip(seen, expected, strict=True):
        assert (images.dtype, labels.dtype, positions.dtype) == (torch.uint8, torch.int64, torch.int64)
        assert images.shape == (len(want_images), 3, 32, 32)
        assert images.is_contiguous(memory_format=torch.channels_last)
        assert np.array_equal(images.numpy(), want_images.transpose(0, 3, 1, 2))
        assert labels.tolist() == want_labels.tolist()
        assert positions.tolist() == want_positions.tolist()


def test_batches_are_those_of_the_dataset_and_every_iteration_begins_anew(config: Config) -> None:
    dataset = build_dataset(config, "test", with_positions=True)
    batches, expected = loader(dataset), list(dataset.as_numpy_iterator())
    for _ in range(2):
        check_batches(list(batches), expected)
    assert sum(len(labels) for _, labels, _ in expected) >= 37


def test_kept_tensors_outlive_their_batch_and_the_pipeline(training: tf.data.Dataset) -> None:
    """Ten batches reach into the second epoch."""
    kept = list(itertools.islice(loader(training), 10))
    copies = [[each.clone() for each in batch] for batch in kept]
    # More batches, into whatever memory has become free.
    for _ in itertools.islice(loader(training), 10):
        pass
    for batch, copied in zip(kept, copies, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(batch, copied, strict=True))
    check_batches(kept, list(training.take(10).as_numpy_iterator()))


def test_tensors_may_be_written_to(training: tf.data.Dataset) -> None:
    untouched = [images.clone() for images, *_ in itertools.islice(loader(training), 6)]
    seen = []
    for images, *_ in itertools.islice(loader(training), 6):
        seen.append(images.clone())
        images.zero_()
    assert all(torch.equal(a, b) for a, b in zip(untouched, seen, strict=True))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_floats_arrive_as_they_are(batch: tuple[tf.Tensor, ...], dtype: str) -> None:
    want = tf.cast(batch[0], dtype) / 255
    images, _ = next(iter(loader(tf.data.Dataset.from_tensors((want, batch[1])))))
    assert images.dtype == getattr(torch, dtype)
    assert np.array_equal(images.permute(0, 2, 3, 1).float().numpy(), tf.cast(want, tf.float32).numpy())


@pytest.mark.parametrize("channels_first", [True, False])
def test_images_and_positions_are_not_copied(batch: tuple[tf.Tensor, ...], channels_first: bool) -> None:
    # The same tensors each time, so that their addresses can be compared.
    dataset = tf.data.Dataset.from_tensors(batch)
    images, labels, positions = next(iter(loader(dataset, channels_first=channels_first)))
    assert (images.data_ptr(), positions.data_ptr()) == (address(batch[0]), address(batch[2]))
    assert labels.data_ptr() != address(batch[1])  # int32 in the dataset
    # Channels may stay last, as they are in the dataset.
    last = images.permute(0, 2, 3, 1) if channels_first else images
    assert images.shape == ((16, 3, 32, 32) if channels_first else (16, 32, 32, 3))
    assert last.is_contiguous() and np.array_equal(last.numpy(), batch[0])


def test_labels_that_are_shares_of_classes_stay_floats(batch: tuple[tf.Tensor, ...]) -> None:
    _, labels = next(iter(loader(tf.data.Dataset.from_tensors((batch[0], tf.one_hot(batch[1], 8))))))
    assert labels.dtype == torch.float32 and labels.shape == (16, 8)


def test_images_alone_need_no_labels() -> None:
    (images,) = next(iter(tfpipe.torch.iterable(tf.data.Dataset.from_tensors((tf.zeros([2, 8, 6, 3]),)))))
    assert images.shape == (2, 3, 8, 6)


def test_labels_that_are_yes_or_no_stay_so(batch: tuple[tf.Tensor, ...]) -> None:
    images, labels, _ = batch
    tags = tf.stack([labels > 1, labels > 3], axis=1)
    _, found = next(iter(tfpipe.torch.iterable(tf.data.Dataset.from_tensors((images, tags)))))
    assert found.dtype == torch.bool and found.tolist() == tags.numpy().tolist()


@pytest.mark.parametrize("how", [{"num_workers": 1}, {"num_workers": 1, "multiprocessing_context": "spawn"}])
def test_worker_processes_are_refused(training: tf.data.Dataset, how: dict) -> None:
    batches = DataLoader(tfpipe.torch.iterable(training), batch_size=None, timeout=240, **how)
    with pytest.raises(ConfigError, match=r"cannot be taken into the processes of a DataLoader: use .* num_workers=0"):
        next(iter(batches))


@pytest.mark.parametrize(
    "dataset",
    [
        tf.data.Dataset.range(3),
        tf.data.Dataset.from_tensors((tf.zeros([8, 8, 3]), 1)),
        tf.data.Dataset.from_tensors((tf.zeros([2, 8, 8, 3]), ["a", "b"])),
        tf.data.Dataset.from_tensors({"images": tf.zeros([2, 8, 8, 3]), "labels": [1, 2]}),
    ],
)
def test_other_datasets_are_refused(dataset: tf.data.Dataset) -> None:
    with pytest.raises(ConfigError, match=r"wants tuples of images \[batch, height, width, channels\], labels"):
        tfpipe.torch.iterable(dataset)


def test_a_loader_gives_tensors_and_is_taken_by_a_dataloader(config: Config) -> None:
    expected = list(build_dataset(config, "test", with_positions=True).as_numpy_iterator())
    with tfpipe.torch.Loader(config, "test", positions=True) as batches:
        check_batches(list(DataLoader(batches, batch_size=None)), expected)
    with tfpipe.torch.Loader(config, channels_first=False) as batches:
        images, labels = next(batches)
        assert images.shape == (16, 32, 32, 3) and labels.dtype == torch.int64
        assert batches.step == 1 and batches.state_dict()["crops"] == 16
    with pytest.raises(ConfigError, match=r"use .* num_workers=0"):
        next(iter(DataLoader(batches, batch_size=None, num_workers=1, timeout=240)))
    for each in (batches, tfpipe.torch.iterable(build_dataset(config, "test"))):
        with pytest.raises(ConfigError, match=r"hands out batches, .* use DataLoader\(\.\.\., batch_size=None\)"):
            next(iter(DataLoader(each)))


def test_ranks_that_are_not_connected_are_refused(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match=r"WORLD_SIZE is 2, .*: call torch.distributed.init_process_group\(\) before"):
        tfpipe.torch.Loader(config)
    assert tfpipe.torch.Loader(config, world=tfpipe.World(1, 2)).world.rank == 1
    monkeypatch.setenv("WORLD_SIZE", "two")
    with pytest.raises(ConfigError, match='WORLD_SIZE is "two", and a launcher sets it to a whole number'):
        tfpipe.torch.Loader(config)
    monkeypatch.setenv("WORLD_SIZE", "")
    assert tfpipe.torch.Loader(config).world.size == 1


def test_batches_are_on_the_device_before_they_are_used(config: Config) -> None:
    """On a GPU if there is one: its copies run during the computation."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    expected = list(build_dataset(config, with_positions=True).take(20).as_numpy_iterator())
    with tfpipe.torch.Loader(config, device=device, positions=True) as batches:
        seen = []
        for want in expected:
            images, labels, positions = next(batches)
            assert {images.device.type, labels.device.type} == {device.type} and positions.device.type == "cpu"
            total = images.sum(dtype=torch.int64)  # at once, on the stream of the user
            assert int(total) == want[0].sum(dtype=int)
            seen.append([images.cpu(), labels.cpu(), positions])
        check_batches(seen, expected)


LEAVING = """
import gc, os, sys, time
import torch
from torch.utils.data import DataLoader
import tfpipe

torch.set_num_threads(1)
config = tfpipe.load_config(sys.argv[1], ["data.threads=3", "data.annotations=none"])
batches = DataLoader(tfpipe.torch.iterable(tfpipe.build_dataset(config)), batch_size=None)


def threads():
    return len(os.listdir("/proc/self/task"))


def children():
    return [child for each in os.listdir("/proc/self/task") for child in open(f"/proc/self/task/{each}/children")]


def leave(how):
    for number, (images, labels) in enumerate(batches):
        assert len(labels) == 16
        if number == 2 and how == "raise":
            raise KeyError("early")
        if number == 2:
            during.append(threads())
            break


# The first time, TensorFlow starts the threads that all pipelines share and that stay.
during, after = [], []
for how in ("break", "break", "raise", "break"):
    try:
        leave(how)
    except KeyError:
        pass
    gc.collect()
    deadline = time.monotonic() + 60
    while after and threads() > after[0] and time.monotonic() < deadline:
        time.sleep(0.02)
    after.append(threads())
assert min(during) > max(after) == after[0], (during, after)
assert not children(), children()
# One that is under way when the interpreter ends.
last = iter(batches)
next(last)
print("leaving", flush=True)
"""


def test_nothing_is_left_behind(sample: SampleData, tmp_path: Path) -> None:
    ensure_server()
    done = finish(start(*WARM, "-c", LEAVING, sample.config(tmp_path / "c.json"), **LATE))
    assert (done.code, done.out) == (0, "leaving\n"), done.err


def test_the_example_learns(sample: SampleData, tmp_path: Path) -> None:
    config = load_config(sample.config(tmp_path / "config.json"), ["training.status=20"])
    spec = importlib.util.spec_from_file_location("torch_resnet18", ROOT / "docs/examples/torch_resnet18.py")
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # two that wait for each other are slow on a busy machine
    try:
        losses, accuracy = example.train(config, steps=60, width=8)
    finally:
        torch.set_num_threads(threads)
    assert len(losses) == 60
    assert np.mean(losses[-5:]) < 0.7 * np.mean(losses[:5])
    assert accuracy > 0.25  # of 8 classes
