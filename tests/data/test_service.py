"""Served data: the batches of this process, bit for bit, whatever happens to the servers."""

import itertools
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from tests.support.batches import assert_same, batches
from tests.support.commands import start
from tests.support.sample import SampleData
from tfpipe import Config, Frontier, Stream, World, build_dataset, load_config
from tfpipe.data import servers as serving
from tfpipe.data import service
from tfpipe.data.catalog import Catalog, load_catalog
from tfpipe.data.failures import named
from tfpipe.data.filelist import FileList
from tfpipe.data.servers import Beside, Elsewhere, beside
from tfpipe.errors import ConfigError, TfpipeError

BESIDE = {"workers": 2}


@pytest.fixture(scope="module")
def servers() -> Iterator[Beside]:
    """Those that every config with BESIDE has."""
    found = beside(2)
    yield found
    found.close()
    beside.cache_clear()


@pytest.fixture
def addresses(servers: Beside) -> list[str]:
    return [servers.find(number) for number in range(2)]


def configured(sample: SampleData, tmp_path: Path, how: dict | None, **data: object) -> Config:
    data = {"decoder": "graph", "service": how, **data}
    return load_config(sample.config(tmp_path / "c.json", data=data))


# Into the second epoch, which no number of blocks ends with.
@pytest.mark.parametrize(
    ("world", "split", "data"),
    [
        (World(), "train", {}),
        (World(0, 2), "train", {"crop": "random_resized", "unit": "box"}),
        (World(1, 2), "train", {"scope": "shard", "crop": "center"}),
        (World(1, 3), "test", {}),
    ],
)
def test_batches_are_those_of_this_process(
    servers: Beside, sample: SampleData, tmp_path: Path, world: World, split: str, data: dict
) -> None:
    steps = 12 if split == "train" else -1
    own = batches(configured(sample, tmp_path, None, **data), split, steps, world)
    assert_same(own, batches(configured(sample, tmp_path, BESIDE, **data), split, steps, world))


def test_a_resumed_stream_is_that_of_this_process(addresses: list[str], sample: SampleData, tmp_path: Path) -> None:
    """Of two ranks that were three, one of them in the middle of an image; from running servers, of which one is the
    same as another."""
    stream = Stream.start(3).at([Frontier(9), Frontier(34, 1), Frontier(5)]).over(2)
    three = {"address": [*addresses, addresses[0]]}
    for rank in range(2):
        own = batches(configured(sample, tmp_path, None), count=6, world=World(rank, 2), resume=stream)
        served = batches(configured(sample, tmp_path, three), count=6, world=World(rank, 2), resume=stream)
        assert_same(own, served)


def test_a_killed_worker_is_replaced_and_nothing_lost_or_repeated(
    servers: Beside, sample: SampleData, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    own = batches(configured(sample, tmp_path, None), count=40)
    served = build_dataset(configured(sample, tmp_path, BESIDE), with_positions=True).take(40).as_numpy_iterator()
    before = servers.pids
    first = list(itertools.islice(served, 2))
    os.kill(before[1], signal.SIGKILL)
    assert_same(own, first + list(served))
    assert servers.pids[0] == before[0] and servers.pids[1] != before[1]
    assert "server 2 of 2" in caplog.text and "no image is lost or comes twice" in caplog.text


def test_others_take_over_from_a_server_elsewhere(
    addresses: list[str], sample: SampleData, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch
) -> None:
    """`tfpipe serve worker`, killed in the middle; and when none is left, a clear error in bounded time."""
    process = start(sys.executable, "-m", "tfpipe", "serve", "worker", "--port", "0", "--host", "localhost")
    try:
        line = process.stdout.readline()
        assert line.startswith("serving at localhost:"), process.communicate()
        alone = line.split()[-1]
        both = configured(sample, tmp_path, {"address": [addresses[0], alone]})
        own = batches(configured(sample, tmp_path, None), count=40)
        served = build_dataset(both, with_positions=True).take(40).as_numpy_iterator()
        first = list(itertools.islice(served, 2))
        process.kill()
        process.wait()
        assert_same(own, first + list(served))
        assert f"server 2 of 2, at {alone}, " in caplog.text and f"goes on at {addresses[0]}" in caplog.text

        monkeypatch.setattr(serving, "PATIENCE_S", 1.0)
        gone = configured(sample, tmp_path, {"address": alone})
        catalog = load_catalog(gone.data, "train", World())
        with pytest.raises(tf.errors.InvalidArgumentError) as caught:
            batches(gone, count=1, catalog=catalog)
        message = str(named(caught.value, catalog, gone.data, World(), Stream.start(1), None))
        assert message.startswith(f"rank 0: data.service: none of {alone} has answered for 1 seconds; start them")
    finally:
        process.kill()
        process.communicate()


def test_a_file_that_cannot_be_decoded_is_named(
    servers: Beside, sample: SampleData, tree: Path, tmp_path: Path
) -> None:
    bad = Path((tmp_path / "train.txt").read_text().splitlines()[70])
    bad.write_bytes(bad.read_bytes()[:300])
    data = {"train_filelist": str(tmp_path / "train.txt"), "shuffle_buffer": 0}
    config = configured(sample, tmp_path, BESIDE, **data)
    catalog = load_catalog(config.data, "train", World())
    reached = None
    with pytest.raises(tf.errors.OpError) as caught:
        for *_, positions in build_dataset(config, with_positions=True, catalog=catalog):
            reached = positions
    assert 0 < reached[-1, 0] < 70
    message = str(named(caught.value, catalog, config.data, World(), Stream.start(1), reached))
    assert message.startswith(f"rank 0: cannot use {bad} of the train data: ")


def test_too_large_a_catalog_is_refused(sample: SampleData, tmp_path: Path, monkeypatch) -> None:
    config = configured(sample, tmp_path, {"address": "localhost:1"})
    catalog = load_catalog(config.data, "train", World())
    size = service.tables_bytes(catalog)
    assert size >= sum(len(catalog.paths.name(item)) + 9 for item in range(len(catalog)))
    monkeypatch.setattr(service, "MOST_BYTES", size)
    service.check(catalog)
    monkeypatch.setattr(service, "MOST_BYTES", size - 1)
    with pytest.raises(ConfigError, match=r"the train data has 96 images, whose paths, .* or use a shorter filelist"):
        build_dataset(config, catalog=catalog)


def test_urls_are_refused() -> None:
    paths = FileList.of(["/a/b/1.jpg", "https://host/c/2.jpg"])
    none = np.zeros(2, np.int32)
    catalog = Catalog("train", paths, ["", ""], none > 0, none, ("b",))
    with pytest.raises(ConfigError, match="https://host/c/ in the train filelist is fetched in Python"):
        service.check(catalog)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ({"decoder": "native"}, 'decoder "native" needs Python'),
        ({"cache": "memory"}, "cache needs Python"),
        ({"annotations": "lxml"}, 'annotations "lxml" needs Python'),
        ({"storage_delay_ms": 1.0}, "storage_delay_ms needs Python"),
        ({"how": {}}, "give either workers"),
        ({"how": {"workers": 1, "address": "a:1"}}, "give either workers"),
        ({"how": {"address": "grpc://a:1"}}, "address"),
        ({"how": {"address": []}}, "address"),
    ],
)
def test_what_servers_cannot_do_is_refused(sample: SampleData, tmp_path: Path, data: dict, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        configured(sample, tmp_path, **{"how": BESIDE, **data})


def test_the_graph_decodes_where_servers_do(sample: SampleData, tmp_path: Path) -> None:
    assert configured(sample, tmp_path, None, decoder="auto").data.native
    assert not configured(sample, tmp_path, BESIDE, decoder="auto").data.native


def test_addresses_are_tried_in_turn(monkeypatch) -> None:
    there = {"b:1", "c:1"}
    found = Elsewhere(["a:1", "b:1", "c:1"], patience_s=0)
    monkeypatch.setattr(found, "lives", there.__contains__)
    assert [found.find(number) for number in range(3)] == ["b:1", "b:1", "c:1"]
    found.give_up("b:1")
    assert [found.find(number) for number in range(3)] == ["c:1", "c:1", "c:1"]
    there.remove("c:1")
    assert found.find(2) == "b:1"
    there.clear()
    began_s = time.monotonic()
    with pytest.raises(TfpipeError, match="none of a:1, b:1, c:1 has answered"):
        found.find(0)
    assert time.monotonic() - began_s < 30
