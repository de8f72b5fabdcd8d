"""Tables behind URLs: the same samples as from local files, copied once for each version."""

import hashlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.support.bucket import KEYS, s3
from tests.support.commands import finish, start_ranks
from tests.support.hub import hub
from tests.support.routes import CLASSES, SMALL, samples, write_coco, write_csv, write_files, write_parquet
from tests.support.server import Server, versioned
from tfpipe import World, load
from tfpipe.config import make_config
from tfpipe.data.contract import contract_differences, data_contract
from tfpipe.data.sources.registry import load_split, open_source
from tfpipe.data.sources.remote import copies as module
from tfpipe.data.split import Split
from tfpipe.errors import ConfigError

SAMPLES = samples(12)

# Prints a digest of all images, as a rank of mpirun.
PROGRAM = """
import hashlib, json, sys
from tfpipe import World
from tfpipe.config import make_config
from tfpipe.data.sources.registry import load_split

world = World.mpi()
split = load_split(make_config(json.loads(sys.argv[1])).data, "train", world)
images = b"".join(split.image(item) for item in range(len(split.catalog)))
digests = world.gather(hashlib.sha256(images).hexdigest())
if world.rank == 0:
    print(*digests)
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A folder of tables and images."""
    folder = tmp_path / "served"
    folder.mkdir()
    images = write_files(folder, SAMPLES)
    write_parquet(folder / "train.parquet", SAMPLES)
    write_parquet(folder / "val.parquet", SAMPLES[::4])
    write_coco(folder / "instances_train.json", SAMPLES)
    write_csv(folder / "birds.csv", SAMPLES, images)
    (folder / "birds.csv").write_text((folder / "birds.csv").read_text().replace(f"{images}/", "images/"))
    return folder


@pytest.fixture
def server(root: Path) -> Iterator[Server]:
    with versioned(root) as made:
        yield made


def split_of(index: Path, source: dict, split: str = "train", **remote: object) -> Split:
    data = {**SMALL, "index": str(index), "source": {"kind": "table", **source}, "remote": remote}
    data |= {"label_source": "object"} if source.get("kind") == "coco" else {}
    return load_split(make_config({"data": data}).data, split, World())


def assert_equal(split: Split, expected: Split) -> None:
    assert not contract_differences(data_contract(expected), data_contract(split))
    own, other = split.catalog, expected.catalog
    assert np.array_equal(own.labels, other.labels) and own.classes == other.classes
    assert all(map(np.array_equal, own.boxes, other.boxes)) and len(own.boxes.boxes) > 3
    assert [split.image(item) for item in range(len(own))] == [expected.image(item) for item in range(len(own))]


@pytest.mark.parametrize("name", ["train.parquet", "birds.csv", "instances_train.json"])
def test_a_table_on_a_web_server_is_copied_once_and_read_as_a_file(root: Path, server: Server, name: str) -> None:
    """Its relative paths are next to it on the server."""
    index, here, there = root.parent / "index", {"path": str(root / name)}, {"path": f"{server.url}/{name}"}
    if name.endswith("json"):
        here |= {"kind": "coco", "images": str(root / "images")}
        there |= {"kind": "coco", "images": f"{server.url}/images"}
    local, asked = split_of(index, here), []
    for _ in range(2):
        before = server.asked[name]
        assert_equal(split_of(index, there), local)
        asked.append(server.asked[name] - before)
    assert asked == [3, 1], "size and version, content, whether it has changed meanwhile; at the second start the first"


def test_a_url_of_a_table_is_recognised(root: Path, server: Server) -> None:
    with load(f"{server.url}/birds.csv", image_size=16, batch_size=4, index=str(root.parent / "index")) as loader:
        assert loader.class_names == list(CLASSES)
        images, labels = next(iter(loader))[:2]
        assert images.shape == (4, 16, 16, 3) and len(labels) == 4


def test_a_table_that_changes_is_copied_again_and_no_run_continues_with_it(root: Path, server: Server) -> None:
    index, source = root.parent / "index", {"path": f"{server.url}/train.parquet"}
    before = split_of(index, source)
    changed = [one._replace(file=other.file) for one, other in zip(SAMPLES, SAMPLES[::-1], strict=True)]
    write_parquet(root / "train.parquet", changed)
    server.headers = {"ETag": '"2"'}
    after = split_of(index, source)
    assert [after.image(item) for item in range(12)] == [one.file for one in changed]
    (breach,) = contract_differences(data_contract(before), data_contract(after))
    assert breach.startswith("the tables' version: ")
    local = split_of(index, {"path": str(root / "train.parquet")})
    assert not contract_differences(data_contract(before), data_contract(local)), "a copy states no version"


def test_without_a_version_each_start_copies(root: Path, server: Server) -> None:
    server.headers = {}
    for chosen in (SAMPLES, SAMPLES[::-1]):
        write_parquet(root / "train.parquet", chosen)
        split = split_of(root.parent / "index", {"path": f"{server.url}/train.parquet"})
        assert [split.image(item) for item in range(12)] == [one.file for one in chosen]
        assert split.catalog.version == ""


def test_a_table_of_many_parts_comes_by_ranges(root: Path, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tfpipe.data.sources.remote.ranges.REQUEST_BYTES", 2000)
    monkeypatch.setattr(module, "REQUEST_BYTES", 2000)
    server.fail_some(0.3)
    split = split_of(root.parent / "index", {"path": f"{server.url}/train.parquet"})
    assert_equal(split, split_of(root.parent / "index", {"path": str(root / "train.parquet")}))
    (copy,) = (root.parent / "index").rglob("copy-*/train.parquet")
    assert copy.read_bytes() == (root / "train.parquet").read_bytes()


def test_what_cannot_be_read_is_named_by_its_url(root: Path, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    index, url = root.parent / "index", f"{server.url}/train.parquet"
    with pytest.raises(ConfigError, match=rf"cannot read {server.url}/none\.csv: there is no such file"):
        split_of(index, {"path": f"{server.url}/none.csv"})
    with pytest.raises(ConfigError, match=rf'{url} has no column "x"'):
        split_of(index, {"path": url, "columns": {"label": "x"}})
    whole = (root / "train.parquet").read_bytes()
    (root / "train.parquet").write_bytes(whole[:-9])
    server.headers = {"ETag": '"cut"'}
    with pytest.raises(ConfigError, match=f"cannot read {url}: "):
        split_of(index, {"path": url})

    def change(*_: object) -> bytes:
        server.headers = {"ETag": '"later"'}
        return whole[:-9]

    server.headers = {"ETag": '"again"'}
    monkeypatch.setattr(module, "_parts", lambda url, size: iter([change()]))
    with pytest.raises(ConfigError, match=f"{url} has changed while it was copied"):
        split_of(index, {"path": url})
    assert not [path for path in index.rglob("copy-*/*") if "again" in path.read_text(errors="replace")]


def test_one_rank_of_a_host_copies(root: Path, server: Server) -> None:
    """Two ranks of mpirun have the same images; all requests are those of one rank."""
    source = {"kind": "table", "path": f"{server.url}/train.parquet"}
    data = {**SMALL, "index": str(root.parent / "index"), "source": source}
    ranks = finish(start_ranks(2, sys.executable, "-c", PROGRAM, json.dumps({"data": data})))
    assert ranks.code == 0, ranks.err
    assert ranks.out.split() == [hashlib.sha256(b"".join(one.file for one in SAMPLES)).hexdigest()] * 2
    assert server.asked == {"train.parquet": 3}


def test_tables_in_a_bucket_are_split_by_their_names(root: Path) -> None:
    with s3("tables") as (endpoint, client):
        for name in ("train.parquet", "val.parquet"):
            client.put_object(Bucket="tables", Key=f"birds/{name}", Body=(root / name).read_bytes())
        options, index = {"endpoint_url": endpoint, **KEYS}, root.parent / "index"
        (root / "birds.csv").unlink()
        for split in ("train", "test"):
            there = split_of(index, {"path": "s3://tables/birds"}, split, options=options)
            assert_equal(there, split_of(index, {"path": str(root)}, split))


def test_tables_on_the_hub(root: Path) -> None:
    index = root.parent / "index"
    with hub(root.parent, "owner/birds") as endpoint:
        options, there = (
            {"endpoint": endpoint, "token": False},
            {"path": "hf://datasets/owner/birds/served/train.parquet"},
        )
        split = split_of(index, there, options=options)
        assert_equal(split, split_of(index, {"path": str(root / "train.parquet")}))
        folder = {"kind": "table", "path": "hf://datasets/owner/birds/served"}
        data = {**SMALL, "index": str(index), "source": folder, "remote": {"options": options}}
        assert open_source(make_config({"data": data}).data).has_test()
        with pytest.raises(ConfigError, match=r"owner/bird/t\.csv: there is no such file"):
            split_of(index, {"path": "hf://datasets/owner/bird/t.csv"}, options=options)
        oid = hashlib.sha1((root / "train.parquet").read_bytes()).hexdigest()
        size = (root / "train.parquet").stat().st_size
        expected = hashlib.sha256(repr([("train.parquet", size, oid)]).encode()).hexdigest()
        assert split.catalog.version == expected
