"""The output of `tfpipe pack` for a split: shards, two tables and a manifest that describes them.

    train-00000-of-00010          images or crops as TFRecords, or, with the extension .npy, pixels
    train.images.parquet          one row per image, in the list's order: IMAGES
    train.records.parquet         one row per record, in the order of the images: RECORDS
    train.json                    the manifest; written last, so if it exists, the pack is complete

Files of the test split begin with "validation". The files do not depend on time, host or number of ranks.
"""

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tfpipe.config import DataConfig
from tfpipe.data.annotations.cleaning import BY_OBJECT, Boxes
from tfpipe.data.annotations.objects import composed_form
from tfpipe.data.catalog.index import SCHEMA, box_columns, index_of
from tfpipe.data.catalog.paths import UNUSABLE, FileList
from tfpipe.data.catalog.table import StoredTable, boxes_columns, paths_table, store_of
from tfpipe.data.catalog.types import Catalog
from tfpipe.data.sources.packed.shards import WHOLE, Kind, Records
from tfpipe.data.sources.remote.url_path import AnyPath, UrlPath, cannot_read, stamps_of
from tfpipe.data.split import Split
from tfpipe.distributed import World
from tfpipe.errors import ConfigError, counted
from tfpipe.util.atomic_write import atomic_write
from tfpipe.util.files import Stamp, read_text, sha256
from tfpipe.util.progress import progress
from tfpipe.util.retry import retried

# Prefixes of file names by split, as in the scripts of TensorFlow's models.
PREFIX = {"train": "train", "test": "validation"}
FORMAT = 1
IMAGES = pa.schema([SCHEMA.field(name) for name in ("path", "label", "annotated", "boxes", "box_labels")])
RECORDS = pa.schema(
    {"image": pa.int32(), "label": pa.int32(), "shard": pa.int32(), "offset": pa.int64(), "length": pa.int64()}
)
TABLES = {"images": IMAGES, "records": RECORDS}
ADVICE = "pack it again: remove the folder, then tfpipe pack"


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**62


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


# Values of a manifest, and of each file that it names, which every version has written.
ABOUT: dict[str, Callable[[Any], bool]] = {
    "kind": lambda value: _is_text(value) and value in get_args(Kind),
    "split": lambda value: _is_text(value) and value in PREFIX,
    "images": _is_count,
    "list": _is_text,
    "classes": lambda value: isinstance(value, list) and all(map(_is_text, value)),
    "label_source": _is_text,
    "jpeg": lambda value: value is None or isinstance(value, dict),
}
FILE: dict[str, Callable[[Any], bool]] = {
    "name": lambda value: _is_text(value) and value == Path(value).name and UNUSABLE.search(value) is None,
    "records": _is_count,
    "bytes": _is_count,
    "sha256": _is_text,
}


@dataclass(frozen=True)
class Manifest:
    """Description of a packed split."""

    about: dict[str, Any]  # everything that the content depends on except the images themselves; see about_of
    shards: list[dict[str, Any]]  # name, number of records, size in bytes and sha256 of each shard
    tables: list[dict[str, Any]]  # the same of the two tables, images first

    def text(self) -> str:
        """Returns the manifest as JSON, the content of its file."""
        return json.dumps({**self.about, "shards": self.shards, "tables": self.tables}, indent=1) + "\n"

    @classmethod
    def read(cls, path: AnyPath) -> "Manifest":
        """Reads the manifest at `path`.

        Raises ConfigError if the file cannot be read, is not a manifest, or has another format version.
        """
        try:
            header = json.loads(path.read_bytes() if isinstance(path, UrlPath) else read_text(path))
            manifest = cls(header, header.pop("shards"), header.pop("tables"))
            if header.get("format") != FORMAT:
                raise ConfigError(f"{path} has format {header.get('format')}, this tfpipe reads {FORMAT}; {ADVICE}")
            manifest.check_values()
            header["classes"] = list(map(composed_form, header["classes"]))
        except OSError as error:
            raise cannot_read(str(path), error, "make it with: tfpipe pack") from error
        except (ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
            problem = f"it has no {error}" if isinstance(error, KeyError) else str(error)
            raise ConfigError(f"{path} is not a manifest of tfpipe pack: {problem}; {ADVICE}") from error
        return manifest

    def check_values(self) -> None:
        """Raises ValueError or KeyError if a value that every manifest has is missing, or of another kind."""
        for name, accepted in ABOUT.items():
            if not accepted(self.about[name]):
                raise ValueError(f"its {name} is {str(self.about[name])[:80]!r}")
        for file in [*self.shards, *self.tables]:
            for name, accepted in FILE.items():
                if not accepted(file[name]):
                    raise ValueError(f"a file's {name} is {str(file[name])[:80]!r}")
        if len(self.tables) != len(TABLES):
            raise ValueError(f"it names {counted(len(self.tables), 'table')} instead of {len(TABLES)}")

    def check_sizes(self, folder: AnyPath) -> None:
        """Raises ConfigError if a file is missing or its size differs from the manifest's."""
        files = [*self.shards, *self.tables]
        paths = [folder / file["name"] for file in files]
        for path, file, stamp in zip(paths, files, stamps_of(paths), strict=True):
            if isinstance(stamp, OSError):
                raise cannot_read(f"{path}, named in the manifest", stamp, ADVICE)
            if stamp.size != file["bytes"]:
                raise ConfigError(f"{path} has {stamp.size} bytes, its manifest says {file['bytes']}; {ADVICE}")


def manifest_name(split: str) -> str:
    """Returns the name of the manifest that `tfpipe pack` writes for `split`."""
    return f"{PREFIX[split]}.json"


def verify(folder: Path) -> str:
    """Compares all packed files in `folder` with their checksums; returns a message for the user.

    Raises ConfigError if the folder holds no pack, or files have changed; the message names all of them.
    """
    manifests = [Manifest.read(path) for path in (folder / manifest_name(split) for split in PREFIX) if path.exists()]
    if not manifests:
        raise ConfigError(f"nothing is packed in {folder}: there is no {folder / manifest_name('train')}")
    files = [file for manifest in manifests for file in (*manifest.shards, *manifest.tables)]
    results = (_change_of(folder / file["name"], file["sha256"]) for file in files)
    problems = list(filter(None, progress(results, len(files), "comparing checksums")))
    if problems:
        raise ConfigError("\n  ".join([f"{len(problems)} of {len(files)} files are not as packed:", *problems, ADVICE]))
    return f"{folder}: {counted(len(files), 'file')} as packed"


def _change_of(path: Path, digest: str) -> str:
    """Returns an error message about a file whose sha256 is not this one, "" if it is."""
    try:
        same = sha256(path) == digest
    except OSError as error:
        return f"cannot read {path}: {error.strerror}"
    return "" if same else f"{path} is not what was packed: its sha256 differs"


def pixel_keys(config: DataConfig, split: str) -> dict[str, Any]:
    """Returns the settings that the pixels of a split's crops depend on, by config key."""
    kind = config.crop_for(split)
    name = "data.crop" if split == "train" or config.test_crop is None else "data.test_crop"
    keys: dict[str, Any] = {
        name: kind,
        "data.crop_image_size": list(config.crop_image_size),
        "data.num_channels": config.num_channels,
        "data.resize": config.stored_resize,
        "data.decoder": "native" if config.native else "graph",
    }
    if kind == "full":
        level = config.letterbox_for(split)
        keys["data.fit"] = "stretch" if level is None else f"letterbox, level {level}"
    if kind == "center":
        # Versions before cut whole pixels first, and stored the number alone.
        keys["data.center_fraction"] = f"{config.center_fraction}, of the resized image"
    if kind == "boxes":
        keys["data.annotations"] = "none" if config.annotations == "none" else "any"
    return keys


def write_tables(folder: Path, catalog: Catalog, records: Records, weights: np.ndarray | None) -> list[dict[str, Any]]:
    """Writes both tables, with the images' weights if they have any; returns their entries for the manifest."""
    prefix = PREFIX[catalog.split]
    boxes = catalog.boxes or Boxes(np.zeros(0, np.int32), np.zeros((0, 4), np.float32), np.zeros(0, np.int32))
    images = {
        "path": pa.array(list(catalog.paths), pa.string()),
        "label": pa.array(catalog.labels, pa.int32()),
        "annotated": pa.array(catalog.annotated),
        **box_columns(boxes, len(catalog)),
    }
    image_table = pa.table(images, IMAGES)
    if weights is not None:
        image_table = image_table.append_column("weight", pa.array(weights, pa.float64()))
    entries = []
    for name, table in (("images", image_table), ("records", pa.table(records._asdict(), RECORDS))):
        path = folder / f"{prefix}.{name}.parquet"
        with atomic_write(path) as partial:
            pq.write_table(table, partial, compression="zstd")
        entries.append({"name": path.name, "records": len(table), "bytes": path.stat().st_size, "sha256": sha256(path)})
    return entries


def packed_table(manifest: Manifest, folder: AnyPath, config: DataConfig, world: World) -> StoredTable:
    """Returns both tables of a split as one, mapped if they are large; every rank must call.

    Raises ConfigError if a table cannot be read, or is not as it was packed.
    """
    files = [(table["name"], Stamp(table["bytes"], table["sha256"])) for table in manifest.tables]
    store = store_of(config, [folder / PREFIX[manifest.about["split"]]], files, world)

    def read(_: World) -> StoredTable:
        images, records = (
            _read_table(folder / table["name"], table, schema)
            for table, schema in zip(manifest.tables, TABLES.values(), strict=True)
        )
        paths = paths_table(replace(FileList.of(images["path"].to_pylist()), digest=manifest.about["list"]))
        index = index_of(images)
        if len(index.boxes.boxes) != len(index.boxes.labels) or len(images) != manifest.about["images"]:
            raise ConfigError(f"{folder}: the table of images has other boxes or images than its manifest; {ADVICE}")
        columns = {name: images[name].to_numpy() for name in ("label", "weight") if name in images.column_names}
        columns |= {"annotated": index.annotated, **boxes_columns(index.boxes, len(images))}
        columns |= {f"record_{name}": records[name].to_numpy() for name in RECORDS.names}
        return StoredTable(paths.values, {**paths.columns, **columns})

    table = store.table("packed", {"list": manifest.about["list"]}, read)
    assert table is not None, "packed tables are always read"
    return table


@retried
def _read_table(path: AnyPath, entry: dict[str, Any], schema: pa.Schema) -> pa.Table:
    try:
        contents = path.read_bytes()
    except OSError as error:
        raise cannot_read(f"{path}, named in the manifest", error, ADVICE) from error
    if hashlib.sha256(contents).hexdigest() != entry["sha256"]:
        raise ConfigError(f"{path} is not what was packed: its sha256 differs; {ADVICE}")
    try:
        # Not in Arrow's threads: one that frees Python's bytes as the process ends aborts it; costs 50 ns an image.
        table = pq.ParquetFile(pa.BufferReader(contents)).read(use_threads=False)
        for field in schema:
            if table.schema.field(field.name).type != field.type or table[field.name].null_count:
                raise ValueError(f"{field.name} is not {field.type} in every row")
        if len(table) != entry["records"]:
            raise ValueError(f"it has {counted(len(table), 'row')}, its manifest says {entry['records']}")
    except (pa.ArrowException, KeyError, ValueError) as error:
        raise ConfigError(f"{path} is no table of tfpipe pack: {error}; {ADVICE}") from error
    return table


def about_of(split: Split, kind: str, jpeg: dict[str, Any] | None) -> dict[str, Any]:
    """Returns the head of a manifest: everything that the content depends on except the image files."""
    catalog, config = split.catalog, split.config
    pixels = {} if kind in WHOLE else pixel_keys(config, catalog.split)
    content = hashlib.sha256(catalog.labels.astype("<i4").tobytes() + catalog.annotated.tobytes())
    for array in catalog.boxes or ():
        content.update(array.tobytes())
    return {
        "format": FORMAT,
        "kind": kind,
        "split": catalog.split,
        "images": len(catalog),
        "list": catalog.paths.digest,
        "classes": list(catalog.classes),
        "label_source": "object" if (catalog.labels == BY_OBJECT).any() else config.label_source,
        "labels and boxes": content.hexdigest(),
        "jpeg": jpeg,
        **config.stored_exif,
        **config.stored_where(catalog.split),
        **pixels,
    }
