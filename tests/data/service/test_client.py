"""Served data: the batches of this process, bit for bit, whatever happens to the servers."""

import itertools
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.support.batches import KNOWN_STEPS, assert_same, batches, crops, elements, known_crops
from tests.support.commands import ROOT, WARM, ensure_server, start
from tests.support.images import cmyk, encoded, picture, ycck
from tests.support.sample import SampleData
from tests.support.trees import write_below
from tfpipe import Config, Cursor, Stream, World, build_dataset, load_config, make_config
from tfpipe.data.catalog.paths import FileList
from tfpipe.data.catalog.types import Catalog
from tfpipe.data.failures.diagnose import to_named_error
from tfpipe.data.service import client as service
from tfpipe.data.service import workers as serving
from tfpipe.data.service.workers import LocalWorkers, Workers
from tfpipe.data.sources.registry import load_split
from tfpipe.errors import ConfigError, TfpipeError

WORKERS = 2


def start_warm() -> subprocess.Popen[str]:
    """Starts a server as tfpipe does, but by the warm server; it ends when the process that stands for it does."""
    ensure_server()
    command = [*WARM, "-m", "tfpipe", "serve", "worker", "--port", "0", "--host", "localhost"]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": "", "TF_CPP_MIN_LOG_LEVEL": "2"}
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, env=env)


@pytest.fixture(scope="module")
def servers() -> Iterator[LocalWorkers]:
    """The servers of every config with WORKERS. How tfpipe starts them is tested with real trainings."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(serving, "_start", start_warm)
        found = LocalWorkers(2)
        patch.setattr(serving, "local_workers", lambda count: found)
        yield found
        found.close()


def pids(servers: LocalWorkers) -> list[int]:
    return [process.pid for process in servers._processes]


@pytest.fixture
def addresses(servers: LocalWorkers) -> list[str]:
    return [servers.find(number) for number in range(2)]


def configured(sample: SampleData, tmp_path: Path, how: Any, **data: object) -> Config:
    data = {"decoder": "graph", "service": how, **data}
    return load_config(sample.config(tmp_path / "c.json", data=data))


def listening_with(port: int) -> set[int]:
    """The ports of the process that listens on this one."""
    rows = [row.split() for table in ("tcp", "tcp6") for row in Path(f"/proc/net/{table}").read_text().splitlines()[1:]]
    ports = {f"socket:[{row[9]}]": int(row[1].rpartition(":")[2], 16) for row in rows if row[3] == "0A"}
    for folder in Path("/proc").glob("[0-9]*/fd"):
        with suppress(OSError):  # it has just ended
            found = {ports[link] for link in map(os.readlink, folder.iterdir()) if link in ports}
            if port in found:
                return found
    return set()


def test_other_hosts_cannot_connect(addresses: list[str], outward_address: str) -> None:
    """Neither to the port that takes requests nor to the one that sends batches."""
    ports = listening_with(int(addresses[0].rpartition(":")[2]))
    assert len(ports) == 2
    for port in ports:
        socket.create_connection(("localhost", port)).close()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((outward_address, port))


# Into the second epoch, which no number of blocks ends with.
@pytest.mark.parametrize(
    ("world", "split", "data"),
    [
        (World(0, 2), "train", {"crop": "random_resized", "unit": "box", "decoder": "native"}),
        (World(1, 2), "train", {"scope": "shard"}),
        (World(1, 3), "test", {"decoder": "native"}),
        (World(1, 2), "train", {"scope": "shard", "crop": "center"}),
    ],
)
def test_batches_are_those_of_this_process(
    servers: LocalWorkers, sample: SampleData, index: str, tmp_path: Path, world: World, split: str, data: dict
) -> None:
    own = known_crops(configured(sample, tmp_path, None, index=index, **data), split, world)
    steps = KNOWN_STEPS if split == "train" else -1
    assert crops(configured(sample, tmp_path, WORKERS, **data), split, world, steps) == own


def test_a_resumed_stream_is_that_of_this_process(
    addresses: list[str], sample: SampleData, index: str, tmp_path: Path
) -> None:
    """Three ranks become two, of which one begins in an image's middle; the servers run already, one is named twice."""
    stream = Stream.start(3).at([Cursor(9), Cursor(34, 1), Cursor(5)]).over(2)
    three = [*addresses, addresses[0]]
    own = crops(configured(sample, tmp_path, None, index=index), "train", World(1, 2), 6, resume=stream)
    served = crops(configured(sample, tmp_path, three), "train", World(1, 2), 6, resume=stream)
    assert own == served


def test_a_killed_worker_is_replaced_and_nothing_lost_or_repeated(
    servers: LocalWorkers, sample: SampleData, index: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    before = pids(servers)

    def kill() -> None:
        os.kill(before[1], signal.SIGKILL)

    own = configured(sample, tmp_path, None, index=index)
    check_interrupted(configured(sample, tmp_path, WORKERS), own, kill, lambda: pids(servers)[1] != before[1])
    assert pids(servers)[0] == before[0]
    assert "worker 2 of 2" in caplog.text and "no image is lost or comes twice" in caplog.text


def check_interrupted(served: Config, own: Config, by: Callable[[], None], replaced: Callable[[], bool]) -> None:
    """Asserts that `served` gives the batches of `own`; `by` is called after two.

    Blocks that were received before are still batched, however many these are: until `replaced`, and on from there.
    """
    pairs = zip(*(elements(build_dataset(config, with_positions=True)) for config in (served, own)), strict=True)
    assert_same(*zip(*itertools.islice(pairs, 2), strict=True))
    by()
    while not replaced():
        assert_same(*zip(next(pairs), strict=True))
    assert_same(*zip(*itertools.islice(pairs, KNOWN_STEPS), strict=True))


def test_others_take_over_from_a_server_elsewhere(
    addresses: list[str], sample: SampleData, index: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch
) -> None:
    """`tfpipe serve worker`, killed in the middle; and when none is left, a clear error in bounded time."""
    process = start(sys.executable, "-m", "tfpipe", "serve", "worker", "--port", "0", "--host", "localhost")
    try:
        line = process.stdout.readline()
        assert line.startswith("serving at localhost:"), process.communicate()
        alone = line.split()[-1]
        both = configured(sample, tmp_path, [addresses[0], alone])

        def kill() -> None:
            process.kill()
            process.wait()

        own = configured(sample, tmp_path, None, index=index)
        check_interrupted(both, own, kill, lambda: f"worker 2 of 2, at {alone}, " in caplog.text)
        assert f"continues at {addresses[0]}" in caplog.text

        monkeypatch.setattr(serving, "PATIENCE_S", 1.0)
        gone = configured(sample, tmp_path, alone)
        split = load_split(gone.data, "train", World())
        with pytest.raises(tf.errors.InvalidArgumentError) as caught:
            batches(gone, count=1, data=split)
        message = str(to_named_error(caught.value, split, Stream.start(1), None))
        assert message.startswith(f"rank 0: data.service: none of {alone} has answered for 1 second; start them")
    finally:
        process.kill()
        process.communicate()


def test_a_file_that_cannot_be_decoded_is_named(
    servers: LocalWorkers, sample: SampleData, tree: Path, tmp_path: Path
) -> None:
    bad = Path((tmp_path / "train.txt").read_text().splitlines()[70])
    bad.write_bytes(bad.read_bytes()[:300])
    data = {"train_filelist": str(tmp_path / "train.txt"), "shuffle_buffer": 0}
    config = configured(sample, tmp_path, WORKERS, **data)
    split = load_split(config.data, "train", World())
    reached = None
    with pytest.raises(tf.errors.OpError) as caught:
        for *_, positions in build_dataset(config, with_positions=True, data=split):
            reached = positions
    assert 0 < reached[-1, 0] < 70
    message = str(to_named_error(caught.value, split, Stream.start(1), reached))
    assert message.startswith(f"rank 0: cannot use {bad} of the train data: ")


@pytest.mark.parametrize("op", ["TfpipeRead", "TfpipeCrops"])
def test_a_worker_of_another_version_is_told_so(op: str, sample: SampleData, tmp_path: Path) -> None:
    """Whichever of its ops TensorFlow misses first."""
    message = f"Failed to get element: Op type not registered '{op}' in binary running on host."

    def fail(number: int, address: str) -> None:
        raise tf.errors.NotFoundError(None, None, message)

    workers = Workers(["localhost:1"], 0.0)
    workers.find = lambda number: "localhost:1"
    error, _ = next(service._receive(fail, workers, 1.0, ()))
    assert error == "data.service: a worker lacks an op of tfpipe's library in C: install this version of tfpipe there"
    config = configured(sample, tmp_path, WORKERS).data

    def unserved(number: tf.Tensor) -> tf.Tensor:
        with tf.control_dependencies([tf.debugging.Assert(number < 0, [error])]):
            return tf.identity(number)

    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        next(elements(tf.data.Dataset.range(1).map(unserved)))
    split = load_split(config, "train", World())
    assert str(to_named_error(caught.value, split, Stream.start(1), None)) == f"rank 0: {error}"


def test_too_large_a_catalog_is_refused(sample: SampleData, tmp_path: Path, monkeypatch) -> None:
    config = configured(sample, tmp_path, "localhost:1")
    split = load_split(config.data, "train", World())
    size = service.tables_bytes(split.catalog)
    assert size >= sum(len(split.catalog.paths.name(item)) + 9 for item in range(len(split.catalog)))
    monkeypatch.setattr(service, "MOST_BYTES", size)
    service.check(split.catalog)
    monkeypatch.setattr(service, "MOST_BYTES", size - 1)
    with pytest.raises(ConfigError, match=r"the train data has 96 images, whose paths, .* or use a shorter filelist"):
        build_dataset(config, data=split)


def test_a_simulated_delay_is_refused(sample: SampleData, tmp_path: Path, monkeypatch) -> None:
    """Workers cannot run its Python, and the trainer would ask them again without an end."""
    monkeypatch.setenv("TFPIPE_STORAGE_DELAY_MS", "5")
    with pytest.raises(ConfigError, match="TFPIPE_STORAGE_DELAY_MS delays reads in Python, which workers do not run"):
        build_dataset(configured(sample, tmp_path, "localhost:1"))


def test_urls_are_refused() -> None:
    paths = FileList.of(["/a/b/1.jpg", "https://host/c/2.jpg"])
    none = np.zeros(2, np.int32)
    catalog = Catalog("train", paths, ["", ""], none > 0, none, ("b",))
    with pytest.raises(ConfigError, match="https://host/c/ in the train filelist is fetched in Python"):
        service.check(catalog)


@pytest.mark.parametrize("how", ["grpc://a:1", []])
def test_an_address_that_is_none_is_refused(sample: SampleData, tmp_path: Path, how: Any) -> None:
    with pytest.raises(ConfigError, match=r"data\.service"):
        configured(sample, tmp_path, how)


@pytest.mark.parametrize("crop", ["random_resized", "full"])
def test_images_that_the_decoder_in_c_refuses_are_those_of_this_process(
    servers: LocalWorkers, tmp_path: Path, crop: str
) -> None:
    """Progressive, CMYK and other formats, all named .jpg, among others; bit for bit, several in a call.

    data/images/test_whole.py has the refusal of those that take Python.
    """
    kinds = {
        "progressive": encoded(picture(90, 120, 1), progressive=True),
        "cmyk": cmyk(picture(80, 100, 2)),
        "ycck": ycck(picture(80, 100, 3)),
        "png": encoded(picture(70, 90, 4), format="PNG"),
        "webp": encoded(picture(50, 70, 7), format="WEBP"),
        "plain": encoded(picture(90, 120, 8)),
    }
    write_below(tmp_path, {f"train/a/{name}.jpg": contents for name, contents in kinds.items()})
    (tmp_path / "list.txt").write_text("".join(f"{tmp_path}/train/a/{name}.jpg\n" for name in kinds))
    data = {"train_filelist": str(tmp_path / "list.txt"), "crop_image_size": [32, 32], "crop": crop, "flip": True}
    data |= {"annotations": "none", "batch_size": 8}
    one, served = (make_config({"data": {**data, "service": how}}) for how in (None, WORKERS))
    own, theirs = crops(one, "train", steps=4), crops(served, "train", steps=4)
    assert own == theirs and len(own) == 32
    assert len({pixels for *_, pixels in own}) > len(kinds)  # an epoch's flips are others than the next one's


def test_addresses_are_tried_in_turn(monkeypatch) -> None:
    there = {"b:1", "c:1"}
    found = Workers(["a:1", "b:1", "c:1"], patience_s=0)
    monkeypatch.setattr(found, "lives", there.__contains__)
    assert [found.find(number) for number in range(3)] == ["b:1", "b:1", "c:1"]
    found.give_up("b:1")
    assert [found.find(number) for number in range(3)] == ["c:1", "c:1", "c:1"]
    there.remove("c:1")
    assert found.find(2) == "b:1"
    there.clear()
    with pytest.raises(TfpipeError, match="none of a:1, b:1, c:1 has answered"):
        found.find(0)
