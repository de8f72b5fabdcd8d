"""Packed data and tar shards behind URLs: the batches of local ones, and clear words on what is missing."""

from itertools import count
from pathlib import Path

import fsspec
import pytest

from tests.support.batches import crops, known_crops
from tests.support.packs import config_of, packed
from tests.support.routes import SMALL, samples, write_tars, write_tfrecords
from tests.support.sample import SampleData
from tests.support.server import Server, serving
from tfpipe import Config, Loader, World, make_config
from tfpipe.cli import main
from tfpipe.data.sources.data_files import expand_pattern
from tfpipe.data.sources.registry import load_split, open_source
from tfpipe.data.sources.remote import fetcher
from tfpipe.errors import ConfigError, TfpipeError
from tfpipe.prepare.stage import stage

KINDS = ("original", "crops", "raw")
NUMBERS = count()


@pytest.fixture(scope="module")
def folders(sample: SampleData, index: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("packed")
    for kind in KINDS:
        packed(config_of(sample, base, index=index), base / kind, kind)
    return base


@pytest.fixture
def server(folders: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(fetcher, "PAUSE_S", 0.01)
    with serving(folders) as made:
        made.ranges = True
        yield made


def config_at(sample: SampleData, tmp_path: Path, url: str, **remote: object) -> Config:
    return config_of(sample, tmp_path, "packed", url, remote={"concurrency": 16, **remote})


def in_memory(folder: Path) -> str:
    """Copies a folder to fsspec's memory; returns its URL."""
    name = f"/test{next(NUMBERS)}"
    for file in filter(Path.is_file, folder.rglob("*")):
        fsspec.filesystem("memory").pipe_file(f"{name}/{file.relative_to(folder)}", file.read_bytes())
    return f"memory:/{name}"


@pytest.mark.parametrize("kind", KINDS)
def test_batches_are_those_of_local_data_while_requests_fail(
    sample: SampleData, folders: Path, tmp_path: Path, server: Server, kind: str
) -> None:
    here = config_of(sample, tmp_path, "packed", folders / kind)
    server.fail_some(0.1)
    remote = {"cache": str(tmp_path / "cache")} if kind == "crops" else {}
    there = config_at(sample, tmp_path, f"{server.url}/{kind}", **remote)
    world = World(1, 2)
    assert crops(there, "train", world, 12) == known_crops(here, "train", world)[: 12 * 16]
    assert crops(there, "test", world) == known_crops(here, "test", world)
    Loader(there).load_state_dict(Loader(here).state_dict())


def test_any_scheme_of_fsspec_serves_packed_data_and_tar_shards(
    sample: SampleData, folders: Path, tmp_path: Path
) -> None:
    here = config_of(sample, tmp_path, "packed", folders / "crops")
    there = config_at(sample, tmp_path, in_memory(folders / "crops"))
    assert crops(there, "train", steps=3) == known_crops(here)[: 3 * 16]
    tars = write_tars(tmp_path / "tars", samples(12))
    data = {**SMALL, "index": str(tmp_path / "index")}
    local, far = (
        make_config({"data": {**data, "source": {"kind": "webdataset", "path": path}}})
        for path in (str(tars), in_memory(tars))
    )
    assert crops(far, "train", steps=4) == crops(local, "train", steps=4)
    Loader(far).load_state_dict(Loader(local).state_dict())


def test_tar_shards_on_a_web_server_are_named_by_a_pattern(tmp_path: Path) -> None:
    tars = write_tars(tmp_path / "tars", samples(12))
    with serving(tars) as server:
        server.ranges = True
        source = {"kind": "webdataset", "path": f"{server.url}/train-{{0000..0002}}.tar"}
        config = make_config({"data": {**SMALL, "source": source, "index": str(tmp_path)}})
        split = load_split(config.data, "train", World())
        assert [split.image(item) for item in range(12)] == [each.file for each in samples(12)]
        assert not open_source(config.data).has_test()
        missing = make_config({"data": {**SMALL, "source": source}})
        with pytest.raises(ConfigError, match=r"data\.index must name a local folder"):
            load_split(missing.data, "train", World())


def test_tfrecords_behind_urls_are_those_of_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a bucket by their folder, on a web server by a pattern, while requests fail; any kind is recognised."""
    monkeypatch.setattr(fetcher, "PAUSE_S", 0.01)
    records = write_tfrecords(tmp_path / "records", samples(12))
    (records / "train-00000-of-00001").rename(records / "train-00000-of-00002")
    write_tfrecords(records, samples(24)[12:])
    (records / "train-00000-of-00001").rename(records / "train-00001-of-00002")
    source = {"kind": "tfrecord", "path": str(records)}
    here = make_config({"data": {**SMALL, "source": source}})
    expected = crops(here, "train", steps=8)
    with serving(records) as server:
        server.ranges = True
        server.fail_some(0.1)
        pattern = f"{server.url}/train-{{00000..00001}}-of-00002"
        for number, url in enumerate((pattern, in_memory(records))):
            data = {**SMALL, "source": {**source, "path": url}, "index": str(tmp_path / f"index{number}")}
            config = make_config({"data": data})
            assert crops(config, "train", steps=8) == expected
            assert not open_source(config.data).has_test()
            Loader(config).load_state_dict(Loader(here).state_dict())
        assert len(Loader(pattern, index=tmp_path / "index0", **SMALL).data.catalog) == 24
        data["source"]["path"] = f"{server.url}/train-{{00000..00000}}-of-00002"
        with pytest.raises(ConfigError, match=r"1 of 2 shards train-\*-of-00002 are there"):
            load_split(make_config({"data": data}).data, "train", World())


@pytest.mark.parametrize(("at", "problem"), [(900, "from byte 0 on.*corrupted record"), (3, "from byte 0 on")])
def test_a_damaged_tfrecord_behind_a_url_is_named(tmp_path: Path, at: int, problem: str) -> None:
    shard = write_tfrecords(tmp_path / "records", samples(3)) / "train-00000-of-00001"
    contents = shard.read_bytes()
    shard.write_bytes(contents[:at] + bytes([contents[at] ^ 1]) + contents[at + 1 :])
    source = {"kind": "tfrecord", "path": in_memory(shard.parent)}
    config = make_config({"data": {**SMALL, "source": source, "index": str(tmp_path / "index")}})
    with pytest.raises(ConfigError, match=rf"memory://.*/{shard.name}: record 0: .*{problem}"):
        load_split(config.data, "train", World())
    shard.write_bytes(contents[:-5])
    source["path"] = in_memory(shard.parent)
    config = make_config({"data": {**SMALL, "source": source, "index": str(tmp_path / "index")}})
    with pytest.raises(ConfigError, match=rf"memory://.*/{shard.name}: record 2: .* within it, .*: truncated record"):
        load_split(config.data, "train", World())


@pytest.mark.parametrize("header", ["ETag", "Last-Modified"])
def test_a_shard_on_a_server_that_changed_is_scanned_and_cached_again(tmp_path: Path, header: str) -> None:
    """Though it has the same size, and nothing but the server's header tells."""
    (sample,) = samples(1)
    shard = write_tars(tmp_path / "tars", [sample], shards=1) / "train-0000.tar"
    dark = bytes(len(sample.file))
    with serving(tmp_path / "tars") as server:
        server.ranges = True
        source = {"kind": "webdataset", "path": f"{server.url}/{shard.name}"}
        keys = {"index": str(tmp_path), "remote": {"cache": str(tmp_path / "cache")}, "annotations": "none"}
        config = make_config({"data": {**SMALL, "source": source, **keys}})
        for version, label, image in (("a", "bird", sample.file), ("b", "dodo", dark)):
            server.headers = {header: version}
            shard.write_bytes(shard.read_bytes().replace(b'"bird"', f'"{label}"'.encode()).replace(sample.file, image))
            for _ in range(2):
                split = load_split(config.data, "train", World())
                assert (split.catalog.classes, split.image(0)) == ((label,), image)


def test_stage_copies_packed_data_from_a_server(
    sample: SampleData, folders: Path, tmp_path: Path, server: Server
) -> None:
    config = config_at(sample, tmp_path, f"{server.url}/crops")
    staged = stage(config.data, ["train", "test"], tmp_path / "out", World())
    assert staged.overrides == [f"data.source.path={tmp_path / 'out'}"]
    files = {file.name: file.read_bytes() for file in (tmp_path / "out").iterdir() if file.name[0] != "."}
    assert files == {file.name: file.read_bytes() for file in (folders / "crops").iterdir() if file.name[0] != "."}


def test_what_is_missing_or_damaged_is_named(sample: SampleData, folders: Path, tmp_path: Path, server: Server) -> None:
    with pytest.raises(ConfigError, match=f"there is no {server.url}/nothing/train.json"):
        open_source(config_at(sample, tmp_path, f"{server.url}/nothing").data).check()
    server.fail = lambda path: 503
    with pytest.raises(ConfigError, match=r"HTTP status 503 .*; see to the server, or to data\.remote\.options"):
        open_source(config_at(sample, tmp_path, f"{server.url}/crops", retries=1).data).check()
    config = config_at(sample, tmp_path, f"{server.url}/crops", retries=0)
    shard = sorted(path.name for path in (folders / "crops").glob("train-*"))[0]
    server.fail = lambda path: 503 if path.endswith(shard) else None
    with pytest.raises(ConfigError, match=f"cannot read {server.url}/crops/{shard}, named in the manifest"):
        load_split(config.data, "train", World())
    server.fail = lambda path: None
    split = load_split(config.data, "train", World())
    server.fail = lambda path: 404
    with pytest.raises(ValueError, match=f"cannot fetch {server.url}/crops/train-"):
        split.image(0)
    with pytest.raises(TfpipeError, match=r"record \d+ of http.*cannot fetch"), Loader(config, data=split) as loader:
        next(loader)


@pytest.mark.parametrize("url", ["s3://bucket/folder", "az://container/folder", "hf://datasets/x/y"])
def test_no_url_becomes_a_local_path(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ConfigError, match=f'data.source.path "{url}" and .*: URLs are for .*: give a path'):
        make_config({"data": {"source": {"kind": "archive", "path": url}}})
    assert make_config({"data": {"source": {"kind": "packed", "path": f"{url}/"}}}).data.source.path == url
    for command in (["stage", "-c", "c.json", "--out", url], ["pack", "--verify", url]):
        with pytest.raises(SystemExit):
            main(command)
        assert "is a URL: give a path of a file system" in capsys.readouterr().err
    with pytest.raises(ConfigError, match="a user or a password"):
        make_config({"data": {"source": {"kind": "packed", "path": "https://me:secret@host/packed"}}})


def test_a_server_that_cannot_be_reached_is_no_missing_file(
    sample: SampleData, folders: Path, tmp_path: Path, server: Server
) -> None:
    """At the first request, and at each of those that follow it."""
    packed = config_at(sample, tmp_path, f"{server.url}/crops", retries=1)
    tars = {"kind": "webdataset", "path": f"{server.url}/train-{{0..1}}.tar"}
    remote = {"retries": 1}
    shards = make_config({"data": {"source": tars, "index": str(tmp_path / "i"), "remote": remote}})
    server.stop()
    says = r"the server cannot be reached: .*; tried 2 times .*; see to the server, or to data\.remote\.options$"
    with pytest.raises(ConfigError, match=says):
        open_source(packed.data).check()
    for config in (packed, shards):
        with pytest.raises(ConfigError, match=rf"cannot read {server.url}/.*: {says}"):
            load_split(config.data, "train", World())
    server.start()
    server.fail = lambda path: 0 if path.startswith("crops/train-") else None
    with pytest.raises(ConfigError, match=r"named in the manifest: .*; tried 2 times .*; see to the server"):
        load_split(packed.data, "train", World())


def test_the_numbers_of_a_pattern_go_up() -> None:
    assert expand_pattern("https://host/{08..10}.tar") == [
        f"https://host/{number}.tar" for number in ("08", "09", "10")
    ]
    with pytest.raises(ConfigError, match=r"https://host/\{3\.\.1\}\.tar: received \{3\.\.1\}, which names no file"):
        expand_pattern("https://host/{3..1}.tar")
