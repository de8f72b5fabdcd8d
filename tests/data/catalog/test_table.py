"""Stored tables: equal when mapped, whole or not there, made once, mapped by all, never stale; none of small data."""

import json
import logging
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from collections import namedtuple
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.batches import assert_same
from tests.support.gathers import Gather, ThreadRank, on_all
from tfpipe import Config, World
from tfpipe.data.catalog import filelist, table
from tfpipe.data.catalog import load as load_module
from tfpipe.data.catalog.table import ABOUT, FORMAT, StoredTable, TableStore, map_table, write_table
from tfpipe.data.contract import data_contract
from tfpipe.data.order.stream import Stream
from tfpipe.data.pipeline import visit
from tfpipe.data.sources.registry import load_split
from tfpipe.data.split import Split
from tfpipe.errors import ConfigError
from tfpipe.prepare.index import build_index
from tfpipe.util.atomic_write import partial_path
from tfpipe.util.files import NO_STAMP
from tfpipe.util.made_from import MadeFrom

# ---- the catalog -----------------------------------------------------------------------------------------------


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every list is large enough to be shared."""
    monkeypatch.setattr(table, "SMALL_BYTES", 0)


def load(config: Config, split: str = "train") -> Split:
    return load_split(config.data, split, World())


def assert_equal(found: Split, expected: Split) -> None:
    """Asserts that the first is of mapped files, and that they are the same."""
    mapped, held = found.catalog, expected.catalog
    assert isinstance(mapped.paths.names, np.ndarray) and isinstance(held.paths.names, bytes)
    assert mapped.paths == held.paths and mapped.paths.digest == held.paths.digest
    assert list(mapped.paths) == list(held.paths) and mapped.classes == held.classes and mapped.lists == held.lists
    assert all(mapped.annotation(item) == held.annotation(item) for item in range(len(held)))
    arrays = (mapped.labels, mapped.annotated, *(mapped.boxes or ()))
    for array, other in zip(arrays, (held.labels, held.annotated, *(held.boxes or ())), strict=True):
        assert array.dtype == other.dtype and np.array_equal(array, other)
    if held.boxes is not None:
        assert np.array_equal(mapped.boxes.offsets(len(held)), held.boxes.offsets(len(held)))
    assert data_contract(found) == data_contract(expected)


def mixed(config: Config, folder: Path) -> Config:
    """The same images as three lists with weights."""
    lines = Path(config.data.train_filelist).read_text().splitlines(True)
    lists = []
    for number in range(3):
        path = folder / f"part{number}.txt"
        path.write_text("".join(lines[number::3]))
        lists.append({"path": path, "weight": 1 + number})
    data = type(config.data).model_validate(config.data.model_dump() | {"train_filelist": lists})
    return config.model_copy(update={"data": data})


@pytest.mark.parametrize("keys", [{}, {"label_source": "object", "unit": "box"}, {"crop": "center"}, {"mixed": True}])
@pytest.mark.parametrize("indexed", [True, False])
def test_a_mapped_catalog_is_the_one_that_is_read(
    make: Callable[..., Config], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keys: dict[str, Any], indexed: bool
) -> None:
    config = make(**{key: value for key, value in keys.items() if key != "mixed"})
    config = mixed(config, tmp_path) if "mixed" in keys else config
    if indexed:
        build_index(config.data, "train", World(), processes=1)
    held = load(config)
    monkeypatch.setattr(table, "SMALL_BYTES", 0)
    assert_equal(load(config), held)
    monkeypatch.setattr(filelist, "read_lists", None)
    monkeypatch.setattr(load_module, "image_labels", None)
    monkeypatch.setattr("tfpipe.data.catalog.index.load_index", None)
    assert_equal(load(config), held)


@pytest.mark.parametrize("keys", [{}, {"scope": "shard"}, {"mixed": True}, {"unit": "box", "shuffle_buffer": 0}])
def test_the_order_is_the_same_item_for_item(
    make: Callable[..., Config], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keys: dict[str, Any]
) -> None:
    config = make(**{key: value for key, value in keys.items() if key != "mixed"})
    config = mixed(config, tmp_path) if "mixed" in keys else config
    build_index(config.data, "train", World(), processes=1)

    def visits(world: World) -> list[tuple]:
        samples = visit(replace(load(config), world=world), Stream.start(world.size)).batch(150).take(1)
        return [(*each.visit, *each[1:]) for each in samples.as_numpy_iterator()]

    worlds = [World(), World(1, 3)]
    held = [visits(world) for world in worlds]
    monkeypatch.setattr(table, "SMALL_BYTES", 0)
    for world, expected in zip(worlds, held, strict=True):
        assert_same(visits(world), expected)


def test_test_data_and_its_label_file_are_shared_too(
    make: Callable[..., Config], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = make(classes=None)
    held = load(config, "test")
    monkeypatch.setattr(table, "SMALL_BYTES", 0)
    assert_equal(load(config, "test"), held)
    catalogs = sorted(path.name.partition("-")[0] for path in config.data.index.glob("*.catalog"))
    assert catalogs == ["train", "val"]


# ---- when a part is made again -----------------------------------------------------------------------------------


@pytest.mark.parametrize("change", ["list", "label file", "classes", "index", "no index", "damage"])
def test_what_has_changed_is_read_again(
    make: Callable[..., Config], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    own = make().data
    lines = Path(own.train_filelist).read_text().splitlines(True)
    (tmp_path / "train.txt").write_text("".join(lines))
    (tmp_path / "labels.csv").write_text("".join(f"{Path(line).stem} {Path(line).parent.name}\n" for line in lines))
    config = make(train_filelist=str(tmp_path / "train.txt"), train_label_file=str(tmp_path / "labels.csv"))
    index = build_index(config.data, "train", World(), processes=1).path
    monkeypatch.setattr(table, "SMALL_BYTES", 0)
    assert load(config).catalog.boxes is not None
    if change == "list":
        (tmp_path / "train.txt").write_text("".join(reversed(lines)))
    elif change == "label file":
        text = (tmp_path / "labels.csv").read_text()
        first, last = (Path(lines[place]).parent.name for place in (0, -1))
        (tmp_path / "labels.csv").write_text(text.replace(f" {first}\n", f" {last}\n"))
    elif change == "classes":
        config = make(**config.data.model_dump(include={"train_filelist", "train_label_file"}, mode="json"),
                      classes=own.classes[::-1])  # fmt: skip
    elif change == "index":
        build_index(config.data, "train", World(), processes=1)
        os.utime(index, ns=(0, 0))
    elif change == "no index":
        index.unlink()
    else:
        for file in config.data.index.rglob("*.npy"):
            file.write_bytes(file.read_bytes()[:-1])
    found = load(config)
    monkeypatch.undo()
    assert_equal(found, load(config))
    if change == "list":
        assert found.catalog.paths[0] == lines[-1].strip()


def test_a_list_that_changes_while_it_is_read_is_not_used(
    large: None, make: Callable[..., Config], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "train.txt"
    path.write_text(Path(make().data.train_filelist).read_text())
    config, read = make(train_filelist=str(path)), filelist.read_lists

    def read_slowly(*args: Any, **keys: Any) -> Any:
        with path.open("a") as file:
            file.write("/another/n01/image.JPEG\n")
        return read(*args, **keys)

    monkeypatch.setattr(filelist, "read_lists", read_slowly)
    with pytest.raises(ConfigError, match=r"train\.txt changed while it was read: start again"):
        load(config)


@pytest.mark.parametrize("before", ["another list", "format 1", "damage", "first"])
def test_one_line_says_why_a_table_is_made_again(
    large: None, make: Callable[..., Config], caplog: pytest.LogCaptureFixture, before: str
) -> None:
    config = make()
    load(config)
    (stored,) = config.data.index.glob("*.catalog/list-*")
    if before == "another list":
        about = json.loads((stored / ABOUT).read_text())
        about["made from"][1][0][1][0] += 1
        (stored / ABOUT).write_text(json.dumps(about))
    elif before == "format 1":
        (stored / ABOUT).write_text(json.dumps({"arrays": ["names"], "values": {}}))
    elif before == "damage":
        (stored / "names.npy").write_bytes(b"")
    if before != "damage":
        stored.rename(stored.with_name("list-0123456789abcdef" if before != "first" else ".gone"))
    caplog.clear()
    load(config)
    why = {"another list": "had .* bytes then, has", "format 1": "another version of tfpipe", "damage": "it is damaged"}
    lines = [line.getMessage() for line in caplog.records if line.levelno == logging.WARNING]
    assert len(lines) == (before in why)
    if lines:
        assert re.search(rf"/list-[0-9a-f]+ is out of date: .*{why[before]}.*; it is made again", lines[0])


# ---- where the parts are -----------------------------------------------------------------------------------------


def test_a_small_list_leaves_no_file(make: Callable[..., Config]) -> None:
    config = make()
    build_index(config.data, "train", World(), processes=1)
    load(config)
    assert not list(config.data.index.glob("*.catalog"))


def test_an_index_of_a_large_list_leaves_its_parts(large: None, make: Callable[..., Config]) -> None:
    config = make(annotations="index")
    build_index(config.data, "train", World(), processes=1)
    (folder,) = config.data.index.glob("*.catalog")
    assert sorted(path.name.split("-")[0] for path in folder.iterdir()) == [".lock", "boxes", "labels", "list"]
    before = sorted(folder.iterdir())
    load(config)
    assert sorted(folder.iterdir()) == before


def test_where_the_list_is_read_only_the_temporary_folder_is_used_or_none(
    large: None, make: Callable[..., Config], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    (tmp_path / "train.txt").write_text(Path(make().data.train_filelist).read_text())
    (tmp_path / "train.catalog").write_text("a file, in which nothing can be written")
    config = make(train_filelist=str(tmp_path / "train.txt"), index=None)
    paths = load(config).catalog.paths
    own = tmp_path / f"temporary/tfpipe-{os.getuid()}"
    (folder,) = own.iterdir()
    assert folder.name.startswith("train-") and folder.suffix == ".catalog" and own.stat().st_mode & 0o777 == 0o700
    assert any(map_table(path) for path in folder.glob("list-*"))
    # Others may write there: nothing in it is believed.
    own.chmod(0o777)
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        assert load(config).catalog.paths == paths
    assert "every rank holds 0 MB of its own" in caplog.text and "set data.index" in caplog.text


KINDS = ({}, {"targets": "none"}, {"annotations": "xml"}, {"annotations": "none"}, {"targets": "labels"})


@pytest.mark.parametrize("order", [*permutations(range(4), 2), (4, 1, 0)], ids=str)
def test_what_is_stored_for_one_config_is_not_anothers(
    large: None, make: Callable[..., Config], order: tuple[int, ...]
) -> None:
    """Labels, boxes and which images have some, in whatever order runs of other targets and annotations come."""
    classes = list(load(make()).catalog.classes)
    build_index(make(classes=classes).data, "train", World(), processes=1)
    for number in order:
        config = make(classes=classes, crop="random_resized", **KINDS[number])
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(table, "SMALL_BYTES", 2**40)
            expected = load(config).catalog
        catalog = load(config).catalog
        assert catalog.labels.tolist() == expected.labels.tolist(), KINDS[number]
        assert catalog.annotated.tolist() == expected.annotated.tolist()
        assert (catalog.boxes is None) == (expected.boxes is None)


# ---- ranks -------------------------------------------------------------------------------------------------------


def on_ranks(places: Sequence[Sequence[Path]], make: Callable[[int], StoredTable | None]) -> list[Any]:
    """The part, or the error, that each rank gets: rank r shares in places[r] and makes it by make(r)."""
    gather = Gather(len(places))

    def one(rank: int) -> Any:
        world = ThreadRank(rank, len(places), "mpi", rank % 2, 2, of_all=gather.of(rank))  # of two on each host
        try:
            return TableStore(places[rank], [("list", NO_STAMP)], world).table("kind", {}, lambda _: make(rank))
        except ConfigError as error:
            return str(error)

    return on_all(one, range(len(places)))


@pytest.mark.parametrize(
    ("hosts", "makers"),
    [("one folder that all see", [0]), ("a folder a host", [0, 2]), ("a folder on rank 0's host alone", [0, 2, 3])],
)
def test_ranks_share_what_as_few_as_possible_make(tmp_path: Path, hosts: str, makers: list[int]) -> None:
    (tmp_path / "no folder").write_text("")
    second = {"see": "host0", "host": "host1", "alone": "no folder/x"}[hosts.split()[-1]]
    made = []

    def make(rank: int) -> StoredTable:
        made.append(rank)
        return StoredTable({"by": rank}, {"values": np.arange(9)})

    for _ in range(2):
        found = on_ranks([[tmp_path / name] for name in ("host0", "host0", second, second)], make)
        assert all(np.array_equal(part.columns["values"], np.arange(9)) for part in found)
    # What could not be stored is made again by the second start.
    assert sorted(made) == sorted(makers + [rank for rank in makers if hosts.endswith("alone") and rank])


@pytest.mark.parametrize("indexed", [True, False])
def test_ranks_load_the_same_catalog(large: None, make: Callable[..., Config], indexed: bool) -> None:
    config = make()
    if indexed:
        build_index(config.data, "train", World(), processes=1)
        shutil.rmtree(next(config.data.index.glob("*.catalog")))
    gather = Gather(3)
    worlds = [ThreadRank(rank, 3, "mpi", rank, 3, of_all=gather.of(rank)) for rank in range(3)]
    splits = on_all(lambda world: load_split(config.data, "train", world), worlds)
    alone = load(config)
    for split in splits:
        catalog = split.catalog
        assert isinstance(catalog.paths.names, np.ndarray) and catalog.paths == alone.catalog.paths
        assert np.array_equal(catalog.annotated, alone.catalog.annotated)
        assert data_contract(split) == data_contract(alone)


def test_an_error_of_one_rank_is_raised_on_all_and_nothing_is_nothing_on_all(tmp_path: Path) -> None:
    def fail(rank: int) -> StoredTable:
        raise ConfigError(f"no list, says rank {rank}")

    assert on_ranks([[tmp_path / "a"]] * 4, fail) == ["rank 0: no list, says rank 0"] * 4
    assert on_ranks([[tmp_path / "a"]] * 4, lambda rank: None) == [None] * 4
    assert [path.name for path in (tmp_path / "a").iterdir()] == [".lock"]


def test_of_processes_that_are_not_connected_one_makes_a_part(tmp_path: Path) -> None:
    made = []
    begun = threading.Barrier(4, timeout=60)

    def one(rank: int) -> StoredTable | None:
        def make() -> StoredTable:
            made.append(rank)
            return StoredTable({"by": rank}, {"values": np.arange(9)})

        begun.wait()
        return TableStore([tmp_path / "a"], [], World(rank, 4)).table("kind", {}, lambda _: make())

    found = on_all(one, range(4))
    assert len(made) == 1 and [part.values for part in found] == [{"by": made[0]}] * 4


# ---- the files -------------------------------------------------------------------------------------------------

MADE_FROM = MadeFrom(FORMAT, [("list", NO_STAMP)], {})
TABLE = StoredTable(
    {"folders": ["/a/", "/ö/", "\udcff"], "ends": [3]},
    {
        "names": np.arange(5000, dtype=np.uint8),
        "boxes": np.zeros((0, 4), np.float32),
        "annotated": np.array([True, False, True]),
        "starts": np.arange(7)[::2],
    },
)


def write(folder: Path, stored: StoredTable) -> None:
    write_table(folder, stored, MADE_FROM)


def equal(one: StoredTable, other: StoredTable) -> bool:
    return one.columns.keys() == other.columns.keys() and all(
        np.array_equal(array, other.columns[name]) for name, array in one.columns.items()
    )


def test_a_table_is_the_same_when_it_is_mapped(tmp_path: Path) -> None:
    write(tmp_path / "table", TABLE)
    mapped = map_table(tmp_path / "table")
    assert mapped.values == TABLE.values and mapped.columns.keys() == TABLE.columns.keys()
    for name, array in TABLE.columns.items():
        found = mapped.columns[name]
        assert found.dtype == array.dtype and np.array_equal(found, array)
        assert not found.flags.writeable
        assert found.ctypes.data % 64 == 0, "TensorFlow would copy it"
    assert [path.name for path in tmp_path.iterdir()] == ["table"]


@pytest.mark.parametrize("made_from", [[], None, ["1"], ["1", 7, []], ["1", [["a"]], []], ["1", [["a", [1] * 9]], []]])
def test_a_table_that_says_nothing_of_its_files_is_made_again(tmp_path: Path, made_from: object) -> None:
    store, stored = (
        TableStore([tmp_path], [], World(), must_store=True),
        StoredTable({"number": 1}, {"a": np.arange(3)}),
    )
    store.table("kind", {}, lambda _: stored)
    (about,) = tmp_path.glob(f"kind-*/{ABOUT}")
    about.write_text(json.dumps(json.loads(about.read_text()) | {"made from": made_from, "checksums": {}}))
    made = store.table("kind", {}, lambda _: stored)
    assert made.values == {"number": 1} and map_table(about.parent).values == {"number": 1}


@pytest.mark.parametrize("damaged", [True, False])
def test_a_damaged_part_is_replaced_and_a_complete_one_is_not(tmp_path: Path, damaged: bool) -> None:
    write(tmp_path / "table", StoredTable({"number": 0}, {"array0": np.arange(9)}))
    if damaged:
        (tmp_path / "table" / "array0.npy").write_bytes(b"")
    write(tmp_path / "table", StoredTable({"number": 1}, {"array1": np.arange(9)}))
    assert map_table(tmp_path / "table").values == {"number": int(damaged)}
    assert sorted(path.name for path in (tmp_path / "table").iterdir()) == [ABOUT, f"array{int(damaged)}.npy"]
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("cut", [0, 10, 127, 200, 4000])
@pytest.mark.parametrize("name", ["names.npy", ABOUT])
def test_a_table_that_is_cut_off_is_none(tmp_path: Path, name: str, cut: int) -> None:
    write(tmp_path / "table", TABLE)
    file = tmp_path / "table" / name
    file.write_bytes(file.read_bytes()[: min(cut, file.stat().st_size - 1)])
    assert map_table(tmp_path / "table") is None


def test_a_table_without_one_of_its_files_is_none(tmp_path: Path) -> None:
    assert map_table(tmp_path / "table") is None
    write(tmp_path / "table", TABLE)
    (tmp_path / "table" / "starts.npy").unlink()
    assert map_table(tmp_path / "table") is None


def test_a_table_that_cannot_be_written_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "table", TABLE)
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10**6, 10**6 - TABLE.nbytes, TABLE.nbytes))
    with pytest.raises(OSError, match=r"0 MB are needed, 0 MB are free"):
        write(tmp_path / "table", TABLE)
    monkeypatch.undo()
    monkeypatch.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(OSError("full")))
    with pytest.raises(OSError, match="full"):
        write(tmp_path / "table", TABLE)
    assert [path.name for path in tmp_path.iterdir()] == ["table"] and map_table(tmp_path / "table") is not None


def test_a_column_may_come_in_parts(tmp_path: Path) -> None:
    """The number of its rows is not known when the first are written; those of no part are none."""
    streams = {"names": iter([np.arange(3), np.arange(0), np.arange(5)]), "boxes": iter([np.zeros((0, 4), np.float32)])}
    write(tmp_path / "table", StoredTable({}, {"after": np.arange(2)}, streams))
    columns = map_table(tmp_path / "table").columns
    assert columns["names"].tolist() == [0, 1, 2, 0, 1, 2, 3, 4]
    assert columns["boxes"].shape == (0, 4) and columns["after"].tolist() == [0, 1]


KILLED = """
import os, signal, sys
from pathlib import Path
import numpy as np
from tfpipe import World
from tfpipe.data.catalog.table import StoredTable, TableStore

def parts():
    yield np.arange(3)
    os.kill(os.getpid(), signal.SIGKILL)

table = StoredTable({}, {}, {"numbers": parts()})
TableStore([Path(sys.argv[1])], [], World()).table("kind", {}, lambda _: table)
"""


@pytest.mark.parametrize("locks", [True, False])
def test_what_a_killed_writer_left_is_removed_and_nothing_of_a_living_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, locks: bool
) -> None:
    subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], check=False)
    assert sorted(path.suffix for path in tmp_path.iterdir()) == ["", ".partial"]
    writing = partial_path(tmp_path / "entries-1")
    writing.mkdir()

    def no_locks(*_: object) -> None:
        raise OSError(38, "Function not implemented")

    if not locks:
        monkeypatch.setattr("fcntl.flock", no_locks)
    store = TableStore([tmp_path], [], World())
    made = store.table("kind", {}, lambda _: StoredTable({}, {"numbers": np.arange(9)}))
    assert made.columns["numbers"].tolist() == list(range(9))
    assert list(tmp_path.glob(".*.partial")) == [writing]


def test_a_table_that_is_replaced_stays_until_the_new_one_is_whole(tmp_path: Path) -> None:
    write(tmp_path / "table", TABLE)
    before = map_table(tmp_path / "table")

    def parts() -> Iterator[np.ndarray]:
        store = TableStore([tmp_path], [], World())
        store.table("kind", {"failing": failing}, lambda _: StoredTable({}, {"numbers": np.arange(9)}))
        assert equal(map_table(tmp_path / "table"), TABLE), "another start tidies, and leaves both"
        yield np.arange(3)
        if failing:
            raise OSError("full")

    for failing in (True, False):
        new = StoredTable({}, {}, {"numbers": parts()})
        with pytest.raises(OSError, match="full") if failing else nullcontext():
            write_table(tmp_path / "table", new, MadeFrom(1, [], {}), replace=True)
        assert list(map_table(tmp_path / "table").columns) == (list(TABLE.columns) if failing else ["numbers"])
    assert equal(before, TABLE) and not list(tmp_path.glob(".*.partial"))
