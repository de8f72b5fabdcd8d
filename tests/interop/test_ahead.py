"""Traits that the Loaders of all frameworks share: the same batches, and good ones before a failure."""

import gc
import hashlib
import importlib
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tfpipe
from tests.support.sample import SampleData
from tfpipe import Config, ConfigError, TfpipeError, load_config
from tfpipe.interop.ahead import world_of
from tfpipe.util.resources import CpuSet

ahead = pytest.mark.parametrize("framework", ["torch", "jax"])


@pytest.fixture
def config(sample: SampleData, index: str, tmp_path: Path) -> Config:
    return load_config(sample.config(tmp_path / "c.json", data={"index": index, "batch_size": 8}))


def loader_of(framework: str, *args: Any, **options: Any) -> tfpipe.Loader:
    package = {"tensorflow": tfpipe, "torch": tfpipe.torch, "jax": tfpipe.jax}[framework]
    return package.Loader(*args, **options)


def hashes(loader: tfpipe.Loader, count: int | None) -> Iterator[str]:
    """Yields a hash of each batch: its images, channels last, labels as int64, and positions."""
    for number, (images, labels, positions) in enumerate(loader):
        if number == count:
            return
        pixels = np.asarray(images)
        pixels = pixels.transpose(0, 2, 3, 1) if pixels.shape[1] == 3 else pixels
        arrays = (pixels, np.asarray(labels).astype(np.int64), np.asarray(positions))
        yield hashlib.sha256(b"".join(np.ascontiguousarray(array).tobytes() for array in arrays)).hexdigest()


@pytest.mark.parametrize("split", ["train", "test"])
def test_every_framework_gets_the_same_bytes(config: Config, split: str) -> None:
    seen = []
    for framework in ("tensorflow", "torch", "jax"):
        with loader_of(framework, config, split, positions=True) as loader:
            seen.append(list(hashes(loader, 5 if split == "train" else None)))
    assert len(seen[0]) >= 5 and seen[0] == seen[1] == seen[2]


@ahead
def test_the_batches_before_a_failure_come_first(
    framework: str, sample: SampleData, tree: Path, tmp_path: Path
) -> None:
    data = {"test_filelist": "val.txt", "batch_size": 8, "crop": "full"}
    config = load_config(sample.config(tmp_path / "c.json", data=data))
    image = Path(tfpipe.Loader(config, "test").catalog.paths[36])  # beyond the first 32, which are decoded together
    image.write_bytes(image.read_bytes()[:400])
    with loader_of(framework, config, "test") as loader:
        assert [len(next(loader)[1]) for _ in range(4)] == [8] * 4
        assert loader.state_dict()["crops"] == 32
        with pytest.raises(TfpipeError, match=f"rank 0: cannot use {image} of the test data"):
            next(loader)


@ahead
@pytest.mark.parametrize("argument", ["ready", "named", "marks"])
def test_arguments_about_tensorflows_batches_are_refused(framework: str, argument: str, config: Config) -> None:
    with pytest.raises(ConfigError, match=f"{argument}: only tfpipe.Loader takes it"):
        loader_of(framework, config, **{argument: True})


@ahead
def test_without_the_framework_it_says_what_to_install(framework: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (f"tfpipe.{framework}", f"tfpipe.interop.{framework}"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setitem(sys.modules, framework, None)
    with pytest.raises(ImportError, match=rf"pip install 'tfpipe\[{framework}\]'"):
        importlib.import_module(f"tfpipe.{framework}")


@ahead
def test_a_loader_that_is_dropped_ends_its_thread(framework: str, config: Config) -> None:
    before = {thread for thread in threading.enumerate() if thread.name == "batches"}
    loader = loader_of(framework, config)
    next(loader)
    (mine,) = {thread for thread in threading.enumerate() if thread.name == "batches"} - before
    del loader
    gc.collect()
    mine.join(60)
    assert not mine.is_alive()


def test_ranks_are_counted_on_their_host_however_they_are_dealt_to_hosts() -> None:
    sets = [CpuSet(host, (0, 1, 2, 3)) for host in ("a", "b", "a", "b", "b")]
    worlds = [world_of(rank, 5, lambda _: sets) for rank in range(5)]
    assert [(world.rank, world.size) for world in worlds] == [(rank, 5) for rank in range(5)]
    assert [world.local_rank for world in worlds] == [0, 0, 1, 1, 2]
    assert [world.local_size for world in worlds] == [2, 3, 2, 3, 3]
    assert [world.threads for world in worlds] == [2, 1, 2, 1, 1]


@pytest.mark.parametrize(("started", "growing", "warned"), [(False, False, 0), (True, False, 1), (True, True, 0)])
def test_tensorflow_leaves_the_gpus_or_says_that_it_has_them(
    started: bool, growing: bool, warned: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    visible = ["GPU:0", "GPU:1"]

    def hide(devices: list[str], kind: str) -> None:
        if started:
            raise RuntimeError("Visible devices cannot be modified after being initialized")
        assert (devices, kind) == ([], "GPU")
        visible.clear()

    monkeypatch.setattr(tf.config, "set_visible_devices", hide)
    monkeypatch.setattr(tf.config, "get_visible_devices", lambda _: visible)
    monkeypatch.setattr(tf.config.experimental, "get_memory_growth", lambda _: growing)
    tfpipe.torch.iterable(tf.data.Dataset.from_tensors((tf.zeros([2, 8, 8, 3], tf.uint8), [0, 1])))
    assert len(visible) == (2 if started else 0) and len(caplog.records) == warned
    assert all("with 2 GPUs, whose memory it takes" in record.getMessage() for record in caplog.records)
