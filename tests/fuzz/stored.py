"""Damaged and forged data that tfpipe has stored: packs, tables of a catalog, and states of a Loader.

Damage is bytes that were changed, cut off or put in; a forgery is values that were changed, with the checksums of what
they are in. Damage gives what there was, or is named, or is made again. A forged pack or state gives what it says,
within its files, or is named. A forged catalog, which no damage makes, may end in any error, but reads nothing beyond
its files.
"""

import json
import random
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tests.support.packs import described, recorded_pack, rewrite_tables
from tests.support.routes import Sample, samples
from tests.support.sources import write_source
from tfpipe import World
from tfpipe.config import DataConfig, make_config
from tfpipe.data.catalog import table
from tfpipe.data.catalog.table import ABOUT, StoredTable, TableStore, map_table, write_table
from tfpipe.data.images.headers import header_of
from tfpipe.data.order.state import LoaderState
from tfpipe.data.order.stream import Stream
from tfpipe.data.sources.packed import pixels
from tfpipe.data.sources.packed.pixels import loader
from tfpipe.data.sources.packed.source import PackedSplit
from tfpipe.data.sources.registry import load_split
from tfpipe.errors import ConfigError, TfpipeError
from tfpipe.util.made_from import MadeFrom

SHAPE = (16, 16, 3)
PACKS = ("original", "coefficients", "crops", "raw")
NUMBERS = (-1, 0, 1, 2, 3, 7, 128, 768, 2**31 - 1, -(2**31), 2**32, 2**40, 2**62, 2**63 - 1, -(2**63))
ODD = (None, True, "", "..", "x", "\0", "a/b", "/etc/passwd", [], {}, [[]], {"a": 1}, 0.5, -1, 2**70, 1e300)
Draw = random.Random


def damaged(contents: bytes, draw: Draw) -> bytes:
    """Returns contents with some bytes changed, put in, taken out, or cut off."""
    changed = bytearray(contents)
    for _ in range(draw.choice((1, 1, 2, 8))):
        at, kind = draw.randrange(len(changed) or 1), draw.randrange(5)
        if kind == 0:
            changed[at : at + 1] = bytes([draw.randrange(256)])
        elif kind == 1:
            changed[at : at + 1] = bytes([(changed[at] if changed else 0) ^ 1 << draw.randrange(8)])
        elif kind == 2:
            changed[at:at] = draw.randbytes(draw.choice((1, 8)))
        elif kind == 3:
            del changed[at : at + draw.choice((1, 8, 100))]
        elif draw.random() < 0.3:
            del changed[at:]
    return bytes(changed)


def forged(value: Any, draw: Draw) -> Any:
    """Returns a value of JSON in which one part was replaced, taken out or repeated."""
    if isinstance(value, dict) and value and draw.random() < 0.95:
        key = draw.choice(sorted(value))
        if draw.random() < 0.1:
            return {name: part for name, part in value.items() if name != key}
        return {**value, key: forged(value[key], draw)}
    if isinstance(value, list) and value and draw.random() < 0.9:
        at, part = draw.randrange(len(value)), [forged(value[0], draw)]
        if draw.random() < 0.2:
            return value[:at] + value[at + 1 :] + draw.choice(([], value))
        return [*value[:at], *(part if at == 0 else [forged(value[at], draw)]), *value[at + 1 :]]
    if isinstance(value, int) and draw.random() < 0.6:
        return draw.choice((value + draw.choice((-1, 1)), value * 2, draw.choice(NUMBERS)))
    return draw.choice((*ODD, draw.choice(NUMBERS)))


def forged_column(column: np.ndarray, draw: Draw) -> np.ndarray:
    """Returns a column in which some numbers were replaced, or of another length or type."""
    changed = column.copy()
    if draw.random() < 0.15:
        return draw.choice((changed[:-1], np.concatenate([changed, changed]), changed.astype(np.float64), changed[:0]))
    for _ in range(draw.choice((1, 1, 3)) if changed.size else 0):
        row = draw.randrange(len(changed))
        number = draw.choice((int(np.nan_to_num(changed.ravel()[0])) + draw.choice((-1, 1, 3)), draw.choice(NUMBERS)))
        with np.errstate(all="ignore"):
            # An int of Python may be larger than NumPy's.
            numpy = np.array(number % 2**64, np.uint64) if isinstance(number, int) and abs(number) >= 2**63 else number
            changed[row] = np.array(numpy).astype(changed.dtype)
    return changed


# ---- packs -------------------------------------------------------------------------------------------------------


def fuzz_packs(count: int, seed: int) -> Counter[str]:
    """Counts changed packs by kind, change and outcome: the same pixels, others by a forgery, or an error.

    Raises:
        AssertionError: damage gives other pixels, or a pack ends in another error than one of tfpipe.
    """
    outcomes: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as temporary:
        packs = {kind: _recorded(Path(temporary), kind) for kind in PACKS}
        whole = {kind: _pixels(config, Draw(0)) for kind, config in packs.items()}
        for number in range(count):
            draw, kind = Draw(f"{seed} {number}"), PACKS[number % len(PACKS)]
            config = packs[kind]
            original = Path(config.source.path)
            folder = Path(shutil.copytree(original, original.with_name("changed")))
            about = {"source": {"kind": "packed", "path": str(folder)}, **_SHAPED}
            change = draw.choice((_damage_table, _forge_manifest, _forge_places, _forge_places))
            change(folder, draw)
            try:
                found = _pixels(make_config({"data": about}).data, draw)
                same = found == whole[kind]
                assert same or change is not _damage_table, f"pack {number} of seed {seed}: {kind} has other pixels"
                outcome = "the same" if same else "others"
            except (TfpipeError, ValueError, OSError) as error:
                assert str(error), error
                outcome = "an error"
            except Exception as error:
                raise AssertionError(f"pack {number} of seed {seed}, {kind} by {change.__name__}") from error
            outcomes[f"{change.__name__.strip('_').replace('_', ' ')}: {outcome}"] += 1
            shutil.rmtree(folder)
    return outcomes


_SHAPED: dict[str, Any] = {"crop_image_size": list(SHAPE[:2]), "batch_size": 2}


def _recorded(folder: Path, kind: str) -> DataConfig:
    """Returns the config of a copy of a recorded pack."""
    target = recorded_pack(folder / kind / "packed", kind)
    return make_config({"data": {"source": {"kind": "packed", "path": str(target)}, **_SHAPED}}).data


def _pixels(config: DataConfig, draw: Draw) -> list[bytes]:
    """Returns the pixels, or the images, of all records, by one of the ways to read them."""
    split = load_split(config, "train", World())
    assert isinstance(split, PackedSplit)
    records, way = np.arange(len(split.shards.records.image)), draw.randrange(2)
    if split.stores == "images":
        if way:
            return [split.image(item) for item in records.tolist()]
        contents, *_ = split.loader()(records)
        sizes = [header_of(file, "it")[:2] for file in contents.tolist()]
        assert np.all(sizes), "an image without pixels"
        return [split.image(item) for item in records.tolist()] if len(contents) else []
    before = pixels.free_memory
    try:
        pixels.free_memory = (lambda: 0) if way else before  # none to map the shards: they are read
        return [crop.tobytes() for crop in loader(split.shards, split.catalog.paths, SHAPE)(records, np.zeros(0, bool))]
    finally:
        pixels.free_memory = before


def _damage_table(folder: Path, draw: Draw) -> None:
    """Changes bytes of a table and, so that the size is right, the manifest's number of them."""
    path = folder / f"train.{draw.choice(('images', 'records'))}.parquet"
    path.write_bytes(damaged(path.read_bytes(), draw))
    rewrite_tables(folder, lambda file: file | {"bytes": (folder / file["name"]).stat().st_size})


def _forge_manifest(folder: Path, draw: Draw) -> None:
    path = folder / "train.json"
    about = json.loads(path.read_text())
    for _ in range(draw.choice((1, 1, 2))):
        about = forged(about, draw)
    path.write_text(json.dumps(about))


def _forge_places(folder: Path, draw: Draw) -> None:
    """Changes numbers of the table of records, or columns of the table of images, with the manifest."""
    name = draw.choice(("records", "records", "records", "images"))
    path = folder / f"train.{name}.parquet"
    columns = dict(zip((stored := pq.read_table(path)).column_names, stored.columns, strict=True))
    chosen = draw.choice([name for name in columns if name not in ("path", "boxes", "box_labels")])
    changed = forged_column(np.asarray(columns[chosen]), draw)
    columns = {name: column[: len(changed)] for name, column in columns.items()}
    columns[chosen] = pa.array(changed[: len(stored)])
    same = len({len(column) for column in columns.values()}) == 1
    pq.write_table(pa.table(columns) if same else stored.slice(1), path)
    rewrite_tables(folder, lambda file: described(folder / file["name"], file))


# ---- tables of a catalog -----------------------------------------------------------------------------------------


def fuzz_catalogs(count: int, seed: int) -> Counter[str]:
    """Counts changed catalogs of a list, tar shards, a table of images and a pack by outcome.

    Raises:
        AssertionError: a damaged catalog is not made again, or gives other images.
    """
    outcomes: Counter[str] = Counter()
    small, table.SMALL_BYTES = table.SMALL_BYTES, 0
    try:
        with tempfile.TemporaryDirectory() as temporary:
            sources = [(*source, _images(source[1])) for source in _catalogs(Path(temporary))]
            for number in range(count):
                draw = Draw(f"{seed} {number}")
                name, config, stored, whole = sources[number % len(sources)]
                before = Path(shutil.copytree(stored, stored.with_name("before")))
                forges = draw.random() < 0.4
                (_forge_catalog if forges else _damage_catalog)(stored, draw)
                try:
                    same = _images(config) == whole
                    assert same or forges, "it has other images"
                    outcome = "the same" if same else "others"
                except Exception as error:
                    if not forges:
                        raise AssertionError(f"catalog {number} of seed {seed}, {name}: {error}") from error
                    outcome = "an error"
                outcomes[f"{'forged' if forges else 'damaged'}: {outcome}"] += 1
                shutil.rmtree(stored)
                before.rename(stored)
    finally:
        table.SMALL_BYTES = small
    return outcomes


def _catalogs(folder: Path) -> Iterator[tuple[str, DataConfig, Path]]:
    """Yields sources with their configs and the folders of their stored tables, which are made."""
    chosen: list[Sample] = samples(6)
    for kind in ("filelist", "tar", "nameless parquet", "original"):
        if kind == "original":
            config = _recorded(folder, kind)
        else:
            config = make_config({"data": write_source(kind, folder / kind, chosen) | _SHAPED}).data
        _images(config)
        yield kind, config, max((folder / kind).rglob("*.catalog"))


def _images(config: DataConfig) -> list[tuple[str, bytes, int]]:
    """Returns the name, the file and the label of all images."""
    split = load_split(config, "train", World())
    catalog = split.catalog
    return [(catalog.paths[item], split.image(item), int(catalog.labels[item])) for item in range(len(catalog))]


def _damage_catalog(stored: Path, draw: Draw) -> None:
    path = draw.choice(sorted(path for path in stored.rglob("*") if path.is_file()))
    if path.name == ABOUT and draw.random() < 0.5:
        path.unlink()
    else:
        path.write_bytes(damaged(path.read_bytes(), draw))


def _forge_catalog(stored: Path, draw: Draw) -> None:
    """Changes numbers of a column, with the table's checksums."""
    folder = draw.choice(sorted(stored.rglob(ABOUT))).parent
    found, about = map_table(folder), json.loads((folder / ABOUT).read_text())
    assert found is not None, "it is as it was stored"
    columns = {name: np.array(column) for name, column in found.columns.items()}
    streams = columns.keys() - about["checksums"].keys()
    name = draw.choice(sorted(columns.keys() - {"contents"}))
    columns[name] = forged_column(columns[name], draw)
    shutil.rmtree(folder)
    parts = {name: [columns.pop(name)] for name in streams}
    write_table(folder, StoredTable(found.values, columns, parts), MadeFrom(*about["made from"]))


def fuzz_tables(count: int, seed: int) -> Counter[str]:
    """Counts damaged stored tables that are as they were, and those that are found to be damaged and made again.

    Raises:
        AssertionError: a table is read as something else.
    """
    outcomes: Counter[str] = Counter()
    stored = StoredTable({"folders": ["/a/", "ö"]}, {"names": np.arange(40, dtype=np.uint8), "starts": np.arange(5)})
    with tempfile.TemporaryDirectory() as temporary:
        store = TableStore([Path(temporary)], [], World(), must_store=True)
        for number in range(count):
            draw = Draw(f"{seed} {number}")
            assert store.table("kind", {}, lambda _: stored) is not None
            (folder,) = Path(temporary).glob("kind-*")
            path = folder / draw.choice((ABOUT, "names.npy", "starts.npy"))
            path.write_bytes(damaged(path.read_bytes(), draw))
            found = map_table(folder)
            outcomes["made again" if found is None else "the same"] += 1
            for mapped in (found, store.table("kind", {}, lambda _: stored)):
                same = mapped is None or (
                    mapped.values == stored.values
                    and all(np.array_equal(mapped.columns[name], stored.columns[name]) for name in stored.columns)
                )
                assert same, f"table {number} of seed {seed} is another one by {path.name}"
    return outcomes


# ---- states ------------------------------------------------------------------------------------------------------


def fuzz_states(count: int, seed: int) -> Counter[str]:
    """Counts forged states of Loaders that are refused, and that are read as what they say.

    Raises:
        AssertionError: a state is read as another one, or ends in another error than ConfigError.
    """
    outcomes: Counter[str] = Counter()
    for number in range(count):
        draw = Draw(f"{seed} {number}")
        size = draw.choice((1, 2, 3))
        stream = Stream.start(size) if draw.random() < 0.5 else Stream.start(4).over(size)
        state = LoaderState("train", stream, ((0, 4),), (3,) * size, 12 * size, False, {"seed": 1})
        values = forged(json.loads(json.dumps(state.to_dict())), draw)
        try:
            read = LoaderState.from_dict(values)
            for ranks in (1, 3):
                read.stream.over(ranks)
            again = json.loads(json.dumps(read.to_dict()))
            said = {name: values[name] for name in again}
            said |= {"split": str(said["split"]), "ended": bool(said["ended"])}
            assert again == said, f"state {number} of seed {seed} is another one"
            outcomes["read"] += 1
        except ConfigError as error:
            assert str(error), error
            outcomes["refused"] += 1
        except Exception as error:
            raise AssertionError(f"state {number} of seed {seed}: {values}") from error
    return outcomes
