"""Training data from a web server and from an object store: the same batches as from files."""

import os
import re
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from subprocess import PIPE

import numpy as np
import pytest
import tensorflow as tf

from tests.support.batches import batches, crops, crops_in, known_crops
from tests.support.bucket import KEYS, s3
from tests.support.commands import ROOT, WARM, ensure_server, finish
from tests.support.configs import config_here, config_of
from tests.support.sample import SampleData
from tests.support.server import Server, serving
from tests.support.targets import catalog_of, data_config
from tfpipe import Stream, World, build_dataset
from tfpipe.config import Remote
from tfpipe.data.catalog.layout import LAYOUTS, LocalFiles, existing
from tfpipe.data.catalog.paths import FileList
from tfpipe.data.crop_counts import count_crops
from tfpipe.data.failures.diagnose import find_failure, to_named_error
from tfpipe.data.sources.registry import load_split
from tfpipe.data.sources.remote import fetcher as remote
from tfpipe.data.sources.remote.cache import Cache
from tfpipe.data.sources.remote.source import UrlSplit
from tfpipe.errors import ConfigError
from tfpipe.prepare.index import build_index

BUCKET = "imagenet"
# Ends, when told to, while requests are under way.
PROGRAM = """
import sys
from tfpipe import build_dataset, load_config

batches = iter(build_dataset(load_config(sys.argv[1])))
next(batches)
print("begun", flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def server(sample: SampleData):
    with serving(sample.root) as made:
        yield made


@pytest.fixture(scope="module")
def store(sample: SampleData) -> Iterator[str]:
    """The address of an S3 that holds the sample."""
    with s3(BUCKET) as (endpoint, client):
        for file in (path for path in sample.root.rglob("train/*/*") if path.is_file()):
            client.put_object(Bucket=BUCKET, Key=str(file.relative_to(sample.root)), Body=file.read_bytes())
        yield endpoint


@pytest.mark.parametrize(
    ("split", "data"),
    [("train", {"crop": "random_resized", "unit": "box"}), ("test", {"annotations": "xml"})],
)
def test_batches_from_a_web_server_are_those_from_files(
    sample: SampleData, index: str, tmp_path: Path, server: Server, split: str, data: dict
) -> None:
    there = config_of(sample, tmp_path, server.url, **data)
    here = config_here(sample, tmp_path, index=index, **data | {"annotations": "index"})
    world = World(1, 2)
    before = [thread.name for thread in threading.enumerate()].count("tfpipe-fetch")
    steps = 12 if split == "train" else -1
    assert crops(there, split, world, steps) == known_crops(here, split, world)[: 12 * 16]
    assert [thread.name for thread in threading.enumerate()].count("tfpipe-fetch") <= before + 1, "for all pipelines"


def test_crops_are_counted_by_urls(sample: SampleData, index: str, tmp_path: Path, server: Server) -> None:
    there, here = config_of(sample, tmp_path, server.url), config_here(sample, tmp_path, index=index)
    ours, theirs = (load_split(config.data, "train", World()) for config in (there, here))
    assert ours.catalog.boxes is None and theirs.catalog.boxes is not None
    assert count_crops(ours) == count_crops(theirs)


def test_batches_from_an_object_store_are_those_from_files(
    sample: SampleData, index: str, tmp_path: Path, store: str
) -> None:
    options = {"endpoint_url": store, "client_kwargs": {"region_name": "us-east-1"}, **KEYS}
    there = config_of(sample, tmp_path, f"s3://{BUCKET}", {"options": options})
    here = config_here(sample, tmp_path, index=index)
    assert crops(there, "train", steps=8) == known_crops(here)[: 8 * 16]
    ours, theirs = (load_split(config.data, "train", World()).catalog for config in (there, here))
    assert np.array_equal(ours.annotated, theirs.annotated) and not ours.annotated.all(), "as its folders say"
    # What is not in the store, is refused by it, or lies in no bucket of it.
    missing = remote.Fetcher(there.data.remote, ["s3://"])
    found = missing.fetch([f"s3://{BUCKET}/a.JPEG", "s3://other/a.JPEG"])
    assert [each.missing for each in found] == [True, True]
    assert re.search(r"HTTP status 404 \(Not Found\).*; tried once", str(found[0]))


def test_a_url_that_cannot_be_fetched_stops_the_pipeline_and_is_named(
    sample: SampleData, tmp_path: Path, server: Server
) -> None:
    config = config_of(sample, tmp_path, server.url, crop="center")
    split = load_split(config.data, "train", World())
    bad = split.catalog.paths[50]
    server.fail = lambda path: 403 if bad.endswith(path) else None
    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        batches(config, "train", 20)
    said = str(to_named_error(caught.value, split, Stream.start(1), None))
    assert said.startswith(f"rank 0: cannot use {bad} of the train data: HTTP status 403 (Forbidden); tried once; ")
    assert find_failure(split, Stream.start(1)).path == bad


@pytest.mark.parametrize("kind", ["image", "annotation"])
def test_a_file_that_cannot_be_used_is_named_by_its_url(sample: SampleData, tmp_path: Path, kind: str) -> None:
    shutil.copytree(sample.root, tmp_path / "tree")
    with serving(tmp_path / "tree") as server:
        cache = tmp_path / "cache"
        keys = {"crop": "center"} if kind == "image" else {}
        config = config_of(sample, tmp_path, server.url, {"cache": str(cache)}, **keys)
        split = load_split(config.data, "train", World())
        here = load_split(config_here(sample, tmp_path).data, "train", World()).catalog
        item = int(np.flatnonzero(here.annotated)[40])
        bad = split.catalog.paths[item] if kind == "image" else split.catalog.annotation(item)
        file = tmp_path / "tree" / bad.removeprefix(server.url + "/")
        whole = file.read_bytes()
        file.write_bytes(whole[: len(whole) // 2])
        with pytest.raises(tf.errors.OpError) as caught:
            batches(config, "train", 20)
        said = str(to_named_error(caught.value, split, Stream.start(1), None))
        assert said.startswith(f"rank 0: cannot use {bad} of the train data: "), said
        file.write_bytes(whole)
        kept = Cache(config.data.remote)
        assert any(map(kept.find, split.catalog.paths)) and kept.find(bad) in (None, whole), (
            "the broken one is not kept"
        )


def test_an_image_is_forgotten_with_its_xml_and_no_other(tmp_path: Path) -> None:
    names = [f"http://host/x/{number}" for number in range(2)]
    listed = catalog_of([0, 0], ["/a/0.xml", "/a/1.xml"])
    folders = {"paths": FileList.of(f"{name}.JPEG" for name in names), "annotation_folders": ["http://host/x/"]}
    remote = Remote(cache=tmp_path / "cache")
    cache = Cache(remote)
    cache.keep({f"{name}{ending}": b"contents" for name in names for ending in (".JPEG", ".xml")})
    UrlSplit(data_config(remote=remote), replace(listed, **folders), World()).evict(1)
    assert [cache.find(f"{names[0]}{ending}") for ending in (".JPEG", ".xml")] == [b"contents"] * 2
    assert [cache.find(f"{names[1]}{ending}") for ending in (".JPEG", ".xml")] == [None] * 2


def test_the_second_epoch_comes_from_the_cache(sample: SampleData, index: str, tmp_path: Path, server: Server) -> None:
    config = config_of(sample, tmp_path, server.url, {"cache": str(tmp_path / "cache")})
    dataset = build_dataset(config, "test", with_positions=True)
    expected = known_crops(config_here(sample, tmp_path, index=index), "test")
    assert crops_in(dataset) == expected
    asked = server.asked.total()
    assert asked >= 37
    assert crops_in(dataset) == expected
    assert server.asked.total() == asked, "not even for XMLs that are not there"


def test_an_index_is_built_from_urls(sample: SampleData, index: str, tmp_path: Path, server: Server) -> None:
    there, here = config_of(sample, tmp_path, server.url), config_here(sample, tmp_path, index=index)
    made = build_index(there.data, "train", World(), 1)
    assert made[1:] == build_index(here.data, "train", World(), 1)[1:]
    catalog = load_split(there.data, "train", World()).catalog
    assert catalog.boxes is not None and catalog.annotated.sum() == made.annotated < len(catalog)
    server.asked.clear()
    assert crops(there, "train", steps=12) == known_crops(here)[: 12 * 16]
    assert not [path for path in server.asked if path.endswith(".xml")]


def test_a_cache_of_files_is_refused(sample: SampleData, tmp_path: Path, server: Server) -> None:
    with pytest.raises(ConfigError, match=r"set data\.remote\.cache instead, to a folder"):
        build_dataset(config_of(sample, tmp_path, server.url, cache="memory"))


def test_where_http_may_have_an_xml_nothing_is_asked(server: Server) -> None:
    paths = FileList.of([f"{server.url}/Data/CLS-LOC/train/n01/{number}.JPEG" for number in range(3)])
    assert existing(paths, LAYOUTS["ilsvrc"], LocalFiles(), show=False).all()
    assert not server.asked


def test_a_program_ends_while_a_server_does_not_answer(sample: SampleData, tmp_path: Path, server: Server) -> None:
    # Two calls of 32 images and their XMLs are under way at once, and the pipeline works ahead.
    server.answers = 200
    config_of(sample, tmp_path, server.url, {"concurrency": 4})
    # By its standard input, which `start` does not give, it is told to end.
    ensure_server()
    command, env = [*WARM, "-c", PROGRAM, tmp_path / "remote.json"], {**os.environ, "PYTHONPATH": str(ROOT)}
    program = subprocess.Popen(command, stdin=PIPE, stdout=PIPE, stderr=PIPE, text=True, env=env)
    try:
        assert program.stdout.readline() == "begun\n"
        deadline = time.monotonic() + 60
        while server.asked.total() < 204 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert server.asked.total() >= 204, "four are under way"
        # Those would be given up after 30 s, and repeated eight times.
        program.stdin.write("\n")
        done = finish(program)
    finally:
        program.kill()
    assert done.code == 0, done.err
    assert "Exception" not in done.err and "Traceback" not in done.err, done.err
