"""The bytes of images in tables: where they are, copied only if they are encoded, and copied again if they change."""

import logging
import os
import threading
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.flaky import fail_once
from tests.support.gathers import Gather, ThreadRank, on_all
from tests.support.routes import samples, write_arrow, write_parquet
from tfpipe import World
from tfpipe.config import DataConfig, make_config
from tfpipe.data.sources.packed.shards import Shards
from tfpipe.data.sources.registry import load_split
from tfpipe.data.sources.tables import contents as module
from tfpipe.data.sources.tables.contents import locate
from tfpipe.data.sources.tables.formats import holds_bytes
from tfpipe.errors import ConfigError

SAMPLES = samples(24)
FILES = [sample.file for sample in SAMPLES]


def data_of(**data: object) -> DataConfig:
    return make_config({"data": {"source": {"kind": "table", "path": "x"}, **data}}).data


def contents(files: list[Path], config: DataConfig) -> list[bytes]:
    shards = locate(files, "image", config, World())
    return [shards.contents(record) for record in range(len(shards.records.image))]


@pytest.mark.parametrize("how", [{}, {"stream": True}], ids=str)
def test_arrow_is_read_where_it_is(tmp_path: Path, how: dict) -> None:
    path = write_arrow(tmp_path / "a.arrow", SAMPLES, **how)
    assert contents([path], data_of()) == FILES
    assert list(tmp_path.iterdir()) == [path]


def test_what_is_encoded_is_copied_once(tmp_path: Path) -> None:
    tables = [
        write_parquet(tmp_path / "a.parquet", SAMPLES[:13]),
        write_arrow(tmp_path / "b.arrow", SAMPLES[13:], compression="lz4"),
    ]
    assert contents(tables, data_of()) == FILES
    copies = sorted(tmp_path.glob("*.catalog/images-*"))
    assert [copy.parent.name for copy in copies] == ["a.catalog", "b.catalog"]
    before = [copy.stat().st_ino for copy in copies]
    assert contents(tables, data_of()) == FILES
    assert [copy.stat().st_ino for copy in copies] == before
    write_parquet(tables[0], SAMPLES[::-1])
    assert contents(tables[:1], data_of()) == FILES[::-1]
    assert len(list(tmp_path.glob("a.catalog/images-*"))) == 1, "copies of earlier tables are removed"


@pytest.mark.parametrize("shared", [True, False])
def test_hosts_copy_to_disks_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shared: bool) -> None:
    """Each host has a copy of each table, that some of its ranks make; one that all hosts see is made once."""
    tables = [
        write_parquet(tmp_path / f"{number}.parquet", SAMPLES[8 * number : 8 * number + 8]) for number in range(3)
    ]
    gather, here = Gather(4), threading.local()
    disks = [tmp_path / f"disk{0 if shared else host}" for host in range(2)]
    exists = lambda path: str(here.disk) in path and os.path.isfile(path)  # noqa: E731
    monkeypatch.setattr(module, "os", SimpleNamespace(path=SimpleNamespace(exists=exists)))

    def one(rank: int) -> Shards:
        here.disk = disks[rank // 2]
        world = ThreadRank(rank, 4, "mpi", rank % 2, 2, of_all=gather.of(rank))
        return locate(tables, "image", data_of(index=str(here.disk)), world)

    for rank, shards in enumerate(on_all(one, range(4))):
        assert all(str(disks[rank // 2]) in path for path in shards.paths)
        assert [shards.contents(record) for record in range(24)] == FILES
    assert [len(list(disk.rglob("images-*"))) for disk in {*disks}] == [3] * len({*disks})


@pytest.mark.parametrize("name", ["bytes_of", "open_arrow"])
def test_an_error_that_may_pass_costs_a_pause(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """While images are copied, and while they are located."""
    parquet = name == "bytes_of"
    table = (write_parquet if parquet else write_arrow)(tmp_path / f"a.{'parquet' if parquet else 'arrow'}", SAMPLES)
    pauses = fail_once(monkeypatch, module, name)
    assert contents([table], data_of()) == FILES
    assert pauses == [1]


def test_nor_does_it_make_a_copy_out_of_date(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = write_parquet(tmp_path / "a.parquet", SAMPLES)
    contents([table], data_of())
    (copy,) = tmp_path.glob("*.catalog/images-*")
    before = copy.stat().st_ino
    pauses = fail_once(monkeypatch, np, "load")
    assert contents([table], data_of()) == FILES
    assert (pauses, copy.stat().st_ino) == ([1], before)


def test_a_copy_of_another_column_or_version_is_made_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """With one line in the log, that names the change."""
    caplog.set_level(logging.WARNING)
    table = pa.table({"image": pa.array(FILES[:2]), "other": pa.array(FILES[2:4])})
    pq.write_table(table, tmp_path / "a.parquet")
    for column, files in (("image", FILES[:2]), ("other", FILES[2:4])):
        shards = locate([tmp_path / "a.parquet"], column, data_of(), World())
        assert [shards.contents(record) for record in range(2)] == files
    (line,) = caplog.messages
    assert 'out of date: data.source.columns.bytes: "image" then, "other" now; it is made again' in line
    pq.write_table(table.set_column(1, "other", pa.array(FILES[3:1:-1])), tmp_path / "a.parquet")
    shards = locate([tmp_path / "a.parquet"], "other", data_of(), World())
    assert [shards.contents(record) for record in range(2)] == FILES[3:1:-1]
    assert "out of date: a.parquet " in caplog.messages[1]
    for copy in tmp_path.glob("a.catalog/images-*"):
        (copy / "starts.npy").write_bytes(b"no array")
    shards = locate([tmp_path / "a.parquet"], "other", data_of(), World())
    assert shards.contents(0) == FILES[3] and "it is damaged" in caplog.messages[2]


def test_copies_may_be_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    table = write_parquet(tmp_path / "data/a.parquet", SAMPLES)
    assert contents([table], data_of(index=str(tmp_path / "index"))) == FILES
    assert os.listdir(tmp_path / "data") == ["a.parquet"]
    assert len(os.listdir(tmp_path / "index")) == 1


def test_what_a_killed_copy_left_is_removed(tmp_path: Path) -> None:
    """One of another host, a day later."""
    table = write_parquet(tmp_path / "a.parquet", SAMPLES)
    half = tmp_path / "a.catalog" / ".images-1.elsewhere-1.partial"
    half.mkdir(parents=True)
    (half / "contents.npy").write_bytes(b"half a copy")
    os.utime(half, (0, 0))
    assert contents([table], data_of()) == FILES
    assert sorted(path.name.partition("-")[0] for path in (tmp_path / "a.catalog").iterdir()) == [".lock", "images"]


def test_a_damaged_copy_is_made_again_which_the_log_says(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    table = write_parquet(tmp_path / "a.parquet", SAMPLES)
    assert contents([table], data_of()) == FILES
    (copy,) = tmp_path.glob("a.catalog/images-*")
    for name, damaged in (("contents.npy", (copy / "contents.npy").read_bytes()[:-50]), ("about.json", b"")):
        (copy / name).write_bytes(damaged)
        caplog.clear()
        assert contents([table], data_of()) == FILES
        why = "it is damaged" if name == "contents.npy" else "another version of tfpipe made it"
        assert f"{copy} is out of date: {why}; it is made again" in caplog.text


@pytest.mark.parametrize("plain", [True, False], ids=["arrow", "parquet"])
def test_a_row_without_bytes_is_named(tmp_path: Path, plain: bool) -> None:
    rows = pa.table({"image": [*FILES[:5], None]})
    path = tmp_path / "a.table"
    if plain:
        path = path.with_suffix(".arrow")
        with pa.ipc.new_file(str(path), rows.schema) as writer:
            writer.write_table(rows, max_chunksize=2)
    else:
        path = path.with_suffix(".parquet")
        pq.write_table(rows, path, row_group_size=2)
    with pytest.raises(
        ConfigError, match=rf'{path}: row 5 has no bytes in the column "image": .* make two tables of it'
    ):
        contents([path], data_of())
    assert not list(tmp_path.glob("*.catalog/images-*"))


def test_a_copy_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    table = write_parquet(tmp_path / "a.parquet", SAMPLES)
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"a\.parquet: cannot write .*; set data\.index to a folder that can be"):
        contents([table], data_of(index=str(tmp_path / "file")))


LISTS = (pa.list_(pa.uint8()), pa.large_list(pa.uint8()))


@pytest.mark.parametrize("kind", [pa.binary_view(), *LISTS, pa.list_(pa.uint8(), 4)], ids=str)
@pytest.mark.parametrize("ending", ["parquet", "arrow", "lz4"])
@pytest.mark.parametrize("struct", [False, True], ids=["plain", "struct"])
def test_images_are_views_as_polars_writes_them_or_lists(
    tmp_path: Path, kind: pa.DataType, ending: str, struct: bool
) -> None:
    """Uncompressed lists of an Arrow file are read where they lie, as bytes are."""
    files = [b"abcd", b"efgh", b"long", b"last"] if kind == pa.list_(pa.uint8(), 4) else [b"", *FILES[:3]]
    values = pa.array(files).cast(kind) if kind == pa.binary_view() else pa.array([[*file] for file in files], kind)
    values = pa.StructArray.from_arrays([values, pa.array(["x"] * 4)], ["bytes", "path"]) if struct else values
    table, path = pa.table({"image": values, "label": [1, 0, 1, 1]}), tmp_path / f"t.{ending.replace('lz4', 'arrow')}"
    if ending == "parquet":
        pq.write_table(table, path, row_group_size=4 if struct else 3)  # Arrow slices no views in structs
    else:
        how = pa.ipc.IpcWriteOptions(compression="lz4" if ending == "lz4" else None)
        with pa.ipc.new_file(str(path), table.schema, options=how) as writer:
            writer.write_table(table.slice(1), 2)
            writer.write_table(table.slice(0, 1))
        files = [*files[1:], files[0]]
    assert holds_bytes(path, "image")
    assert contents([path], data_of()) == files
    assert any(tmp_path.glob("*.catalog/images-*")) == (ending != "arrow" or kind == pa.binary_view())
    catalog = load_split(make_config({"data": {"source": {"kind": "table", "path": str(path)}}}).data, "train", World())
    assert len(catalog.catalog) == 4 and catalog.image(2) == files[2]


def test_a_list_of_bytes_with_a_hole_is_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table({"image": pa.array([[1], [2, None]], LISTS[0])}), tmp_path / "t.parquet")
    with pytest.raises(ConfigError, match=r't\.parquet: the lists of bytes in the column "image" have empty elements'):
        contents([tmp_path / "t.parquet"], data_of())
