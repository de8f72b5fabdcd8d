"""Parquet behind URLs, read by row groups: the same samples as from local files, and each row group fetched once."""

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.parquet as pq
import pytest

from tests.support.batches import assert_same, batches
from tests.support.bucket import KEYS, s3
from tests.support.routes import SMALL, samples, write_csv, write_files, write_parquet
from tests.support.server import Server, versioned
from tfpipe import Config, Loader, World
from tfpipe.config import make_config
from tfpipe.data.contract import contract_differences, data_contract
from tfpipe.data.sources.registry import load_split
from tfpipe.data.sources.remote.url_path import UrlPath
from tfpipe.data.sources.tables import row_groups as module
from tfpipe.data.split import Split
from tfpipe.errors import ConfigError, TfpipeError
from tfpipe.util.files import Stamp

SAMPLES = samples(36)
FILES = [sample.file for sample in SAMPLES]
# Paths in a Parquet file of the images' bytes.
LEAVES = ("image", "image.bytes", "image.list.element")


@pytest.fixture(autouse=True)
def spans(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int, int]]:
    """Makes these tables count as large; returns all spans that are fetched."""
    for place in ("ranges", "copies"):
        monkeypatch.setattr(f"tfpipe.data.sources.remote.{place}.REQUEST_BYTES", 2000)
    monkeypatch.setattr(module, "TAIL", 512)
    fetched: list[tuple[str, int, int]] = []
    read = UrlPath.spans

    def noted(self: UrlPath, asked: list[tuple[int, int]], stamp: Stamp | None = None) -> list[bytes]:
        fetched.extend((self.name, *span) for span in asked)
        return read(self, asked, stamp)

    monkeypatch.setattr(UrlPath, "spans", noted)
    return fetched


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "served"
    folder.mkdir()
    write_parquet(folder / "train-0.parquet", SAMPLES[:25])
    write_parquet(folder / "train-1.parquet", SAMPLES[25:])
    return folder


@pytest.fixture
def server(root: Path) -> Iterator[Server]:
    with versioned(root) as made:
        yield made


def config_of(root: Path, path: str, where: dict[str, Any] | None = None, **remote: Any) -> Config:
    """Data that is cached in a folder next to `root`, if it is behind a URL."""
    if "://" in path:
        remote = {"cache": str(root.parent / "cache"), **remote}
    source = {"kind": "table", "path": path, "where": where or {}}
    return make_config({"data": {**SMALL, "index": str(root.parent / "index"), "source": source, "remote": remote}})


def test_rows_that_are_used_have_their_own_images(root: Path, server: Server) -> None:
    """Of two files, of which one has an image more or less in front of each that is used."""
    rows = [number for number in range(len(SAMPLES)) if number % 3]
    for number, (start, end) in enumerate([(0, 25), (25, 36)]):
        table = pq.read_table(root / f"train-{number}.parquet")
        used = pa.array([row % 3 > 0 for row in range(start, end)])
        pq.write_table(table.append_column("used", used), root / f"train-{number}.parquet", row_group_size=4)
    config = config_of(root, f"{server.url}/train-{{0..1}}.parquet", where={"used": True})
    split = split_of(config)
    assert images(split) == [FILES[row] for row in rows]
    assert split.name(len(rows) - 1).startswith(f"record {rows[-1] - 25} of {server.url}/train-1.parquet")


def split_of(config: Config) -> Split:
    return load_split(config.data, "train", World())


def images(split: Split) -> list[bytes]:
    return [split.image(item) for item in range(len(split.catalog))]


def chunks(path: Path) -> set[tuple[str, int]]:
    """The starts of the images' chunks in a table."""
    metadata = pq.read_metadata(path)
    groups = map(metadata.row_group, range(metadata.num_row_groups))
    columns = [group.column(number) for group in groups for number in range(group.num_columns)]
    return {(path.name, module._chunk_span(column)[0]) for column in columns if column.path_in_schema in LEAVES}


def test_samples_are_those_of_local_files_and_a_row_group_is_fetched_once(
    root: Path, server: Server, spans: list[tuple[str, int, int]]
) -> None:
    server.fail_some(0.2)
    there = config_of(root, f"{server.url}/train-{{0..1}}.parquet")
    local = config_of(root, str(root))
    assert not contract_differences(data_contract(split_of(local)), data_contract(split_of(there)))
    of_images = {start for path in root.iterdir() for start in chunks(path)}
    assert len(of_images) == 5
    assert not of_images & {(name, start) for name, start, _ in spans}, "the start reads no image"
    assert_same(batches(there, count=30), batches(local, count=30))
    assert sorted((name, start) for name, start, _ in spans if (name, start) in of_images) == sorted(of_images)
    count = len(spans)
    assert images(split_of(there)) == images(split_of(local)) == FILES
    assert len(spans) == count, "a later start reads the copies and the cache"
    for copy in (root.parent / "index").rglob("copy-*/*.parquet"):
        held = sum(file[-64:] in copy.read_bytes() for file in FILES[:20])
        assert held <= 4, "the smallest and the largest of each row group, which the footer has"


def test_tables_in_a_bucket(root: Path) -> None:
    with s3("groups") as (endpoint, client):
        for path in root.iterdir():
            client.put_object(Bucket="groups", Key=f"birds/{path.name}", Body=path.read_bytes())
        there = config_of(root, "s3://groups/birds", options={"endpoint_url": endpoint, **KEYS})
        assert_same(batches(there, count=12), batches(config_of(root, str(root)), count=12))


@pytest.mark.parametrize("kind", ["struct", "large_binary", "lists", "empty groups", "dictionary"])
def test_all_forms_of_a_column_of_bytes(root: Path, server: Server, kind: str) -> None:
    values = pa.array(FILES, pa.large_binary() if kind == "large_binary" else pa.binary())
    if kind == "lists":
        values = pa.array([np.frombuffer(file, np.uint8) for file in FILES], pa.list_(pa.uint8()))
    if kind == "struct":
        values = pa.StructArray.from_arrays([values, pa.array(["x"] * len(FILES))], ["bytes", "path"])
    labels = pa.array([sample.label for sample in SAMPLES]).cast(pa.binary() if kind == "lists" else pa.string())
    table = pa.table({"image": values, "label": labels})
    with pq.ParquetWriter(root / "t.parquet", table.schema, use_dictionary=kind == "dictionary") as writer:
        for start in range(0, len(FILES), 9):
            writer.write_table(table.slice(start, 9))
            if kind == "empty groups":
                writer.write_table(table.slice(0, 0))
    assert len(chunks(root / "t.parquet")) >= 4
    split = split_of(config_of(root, f"{server.url}/t.parquet"))
    assert images(split) == FILES
    assert [split.catalog.classes[label] for label in split.catalog.labels] == [sample.label for sample in SAMPLES]


def test_a_table_of_paths_is_read_as_before(root: Path, server: Server) -> None:
    files = write_files(root, SAMPLES)
    write_csv(root / "t.csv", SAMPLES, files)
    table = csv.read_csv(root / "t.csv")
    table = table.set_column(0, "path", pa.array([path.replace(str(root), ".") for path in table["path"].to_pylist()]))
    pq.write_table(table, root / "t.parquet", row_group_size=9)
    assert images(split_of(config_of(root, f"{server.url}/t.parquet"))) == FILES


def test_an_evicted_row_group_is_fetched_again(root: Path, server: Server) -> None:
    split = split_of(config_of(root, f"{server.url}/train-0.parquet"))
    for _ in range(2):
        assert images(split) == FILES[:25]
        for path in (root.parent / "cache").glob("*/*"):
            path.unlink()


def test_ranks_of_a_host_share_the_fetching(root: Path, server: Server, spans: list[tuple[str, int, int]]) -> None:
    """Each opens the cache itself, as a process does."""
    splits = [split_of(config_of(root, f"{server.url}/train-0.parquet")) for _ in range(3)]
    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(images, splits)) == [FILES[:25]] * 3
    of_images = chunks(root / "train-0.parquet")
    assert sorted((name, start) for name, start, _ in spans if (name, start) in of_images) == sorted(of_images)


def test_images_that_do_not_fit_are_refused_at_the_start(root: Path, server: Server) -> None:
    with pytest.raises(ConfigError, match=r"data.remote.cache_gb: received 1e-06, and the images of .* need .* GB"):
        split_of(config_of(root, f"{server.url}/train-0.parquet", cache_gb=1e-6))
    assert images(split_of(config_of(root, f"{server.url}/train-0.parquet", cache=None))) == FILES[:25]


def test_a_full_disk_is_named(root: Path, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tfpipe.data.sources.remote.cache.Cache.keep", lambda *_, **__: False)
    config = config_of(root, f"{server.url}/train-0.parquet")
    with pytest.raises(TfpipeError, match=r"record \d+ of http.*0\.parquet, of .*data.remote.cache has no room"):
        list(Loader(config).epoch(0))


def test_a_table_that_changes_during_a_run_ends_it(root: Path, server: Server) -> None:
    config = config_of(root, f"{server.url}/train-0.parquet")
    with Loader(config) as loader:
        server.headers = {"ETag": '"2"'}
        with pytest.raises(
            TfpipeError, match=rf"{re.escape(server.url)}/train-0\.parquet.* has changed since the start"
        ):
            list(loader.epoch(0))
    write_parquet(root / "train-0.parquet", SAMPLES[::-1])
    assert images(split_of(config)) == FILES[::-1]


def test_a_row_without_bytes_is_refused_at_the_start(root: Path, server: Server) -> None:
    values = pa.array([*FILES[:20], None, *FILES[21:]])
    pq.write_table(pa.table({"image": values, "label": ["a"] * len(FILES)}), root / "t.parquet", row_group_size=9)
    with pytest.raises(ConfigError, match=rf"{server.url}/t\.parquet: 1 of 9 rows of row group 2 have no bytes"):
        split_of(config_of(root, f"{server.url}/t.parquet"))


@pytest.mark.parametrize("damage", ["cut", "zeroed"])
def test_damage_is_named_by_url(root: Path, server: Server, damage: str) -> None:
    path = root / "train-0.parquet"
    whole, url = path.read_bytes(), f"{server.url}/train-0.parquet"
    if damage == "cut":
        path.write_bytes(whole[:-9])
        with pytest.raises(ConfigError, match=f"cannot read {url}: "):
            split_of(config_of(root, url))
        return
    _, start = min(chunks(path))
    path.write_bytes(whole[:start] + bytes(64) + whole[start + 64 :])
    with pytest.raises(TfpipeError, match=rf"record \d+ of {re.escape(url)}, of .*: cannot read its row group 0"):
        list(Loader(config_of(root, url)).epoch(0))


def test_a_server_that_is_away_is_named(root: Path, server: Server) -> None:
    config = config_of(root, f"{server.url}/train-0.parquet", retries=1)
    with Loader(config) as loader:
        server.fail = lambda path: 503
        with pytest.raises(TfpipeError, match=r"train-0\.parquet.* 503 "):
            list(loader.epoch(0))


def test_test_data_has_the_classes_of_training_data(root: Path, server: Server) -> None:
    write_parquet(root / "val.parquet", SAMPLES[-5:])
    source = {"kind": "table", "path": f"{server.url}/train-0.parquet", "test_path": f"{server.url}/val.parquet"}
    remote = {"cache": str(root.parent / "cache")}
    data = {**SMALL, "index": str(root.parent / "index"), "source": source, "remote": remote}
    split = load_split(make_config({"data": data}).data, "test", World())
    assert images(split) == FILES[-5:] and np.array_equal(split.catalog.labels, [2] * 5)
