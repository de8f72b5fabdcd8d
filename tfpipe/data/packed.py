"""What `tfpipe pack` makes of a split: shards, two tables and a manifest that says what is in them.

    train-00000-of-00010          images or crops: TFRecords, or with .npy at the end, pixels
    train.images.parquet          one row an image, in the list's order: IMAGES
    train.records.parquet         one row a record, in the order of the images: RECORDS
    train.json                    the manifest; written last, so that what it is of is whole

Test data goes by the name of validation. Nothing in there says when, where or on how many ranks it was made.
"""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tfpipe.config import DataConfig
from tfpipe.data.catalog import WHOLE_IMAGE, Boxes, Catalog
from tfpipe.data.filelist import FileList
from tfpipe.data.index import SCHEMA, index_of
from tfpipe.data.labels import BY_OBJECT, class_table
from tfpipe.data.shards import Packed, Records
from tfpipe.data.sources import PREFIX, manifest_path, source_of
from tfpipe.data.whole import whole_file
from tfpipe.distributed import World
from tfpipe.errors import ConfigError
from tfpipe.progress import progress

FORMAT = 1
IMAGES = pa.schema([SCHEMA.field(name) for name in ("path", "label", "annotated", "boxes", "box_labels")])
RECORDS = pa.schema(
    {"image": pa.int32(), "label": pa.int32(), "shard": pa.int32(), "offset": pa.int64(), "length": pa.int64()}
)
ADVICE = "pack it anew: remove the folder, then tfpipe pack"


@dataclass(frozen=True)
class Manifest:
    """What is packed of a split, and of what."""

    about: dict[str, Any]
    """All that the content depends on but the images themselves."""
    shards: list[dict[str, Any]]
    """Of each its name, records, bytes and sha256."""
    tables: list[dict[str, Any]]
    """The same of the tables, images first."""

    def text(self) -> str:
        """As it is written."""
        return json.dumps({**self.about, "shards": self.shards, "tables": self.tables}, indent=1) + "\n"

    @classmethod
    def read(cls, path: Path) -> "Manifest":
        """The one at `path`.

        Raises:
            ConfigError: it cannot be read, or is of another format.
        """
        try:
            about = json.loads(path.read_text())
            manifest = cls(about, about.pop("shards"), about.pop("tables"))
        except OSError as error:
            raise ConfigError(f"cannot read {path}: {error.strerror}; make it with: tfpipe pack") from error
        except (ValueError, KeyError, AttributeError) as error:
            raise ConfigError(f"{path} is no manifest of tfpipe pack; {ADVICE}") from error
        if about.get("format") != FORMAT:
            raise ConfigError(f"{path} is of format {about.get('format')}, this is of {FORMAT}; {ADVICE}")
        return manifest

    def check_sizes(self, folder: Path) -> None:
        """Raises: ConfigError: a file is not there, or not as long as it was."""
        for file in [*self.shards, *self.tables]:
            path = folder / file["name"]
            try:
                size = path.stat().st_size
            except OSError as error:
                raise ConfigError(f"cannot read {path}, which {folder} had: {error.strerror}; {ADVICE}") from error
            if size != file["bytes"]:
                raise ConfigError(f"{path} has {size} bytes, its manifest says {file['bytes']}; {ADVICE}")

    def check_sums(self, folder: Path) -> Iterator[str]:
        """Reads every file whole; for each gives what is wrong with it, "" if nothing."""
        for file in [*self.shards, *self.tables]:
            path = folder / file["name"]
            try:
                same = sha256(path) == file["sha256"]
            except OSError as error:
                yield f"cannot read {path}: {error.strerror}"
            else:
                yield "" if same else f"{path} is not what was packed: its sha256 differs"


def sha256(path: Path) -> str:
    """Of the file at `path`, in hex."""
    digest = hashlib.sha256()
    with path.open("rb", buffering=0) as file:
        while block := file.read(2**20):
            digest.update(block)
    return digest.hexdigest()


def verify(folder: Path) -> str:
    """Compares all that is packed in `folder` with its checksums; says what was compared.

    Raises:
        ConfigError: nothing is packed there, or something has changed; names all of it.
    """
    manifests = [Manifest.read(path) for path in (manifest_path(folder, split) for split in PREFIX) if path.exists()]
    if not manifests:
        raise ConfigError(f"nothing is packed in {folder}: there is no {manifest_path(folder, 'train')}")
    files = sum(len(each.shards) + len(each.tables) for each in manifests)
    said = (problem for each in manifests for problem in each.check_sums(folder))
    problems = list(filter(None, progress(said, files, "comparing checksums")))
    if problems:
        raise ConfigError("\n  ".join([f"{len(problems)} of {files} files are not as packed:", *problems, ADVICE]))
    return f"{folder}: all {files} files are as they were packed"


def pixel_keys(config: DataConfig, split: str) -> dict[str, Any]:
    """What crops depend on, by the config's keys."""
    kind = config.crop_for(split)
    name = "data.crop" if split == "train" or config.test_crop is None else "data.test_crop"
    keys: dict[str, Any] = {
        name: kind,
        "data.crop_image_size": list(config.crop_image_size),
        "data.num_channels": config.num_channels,
        "data.resize": config.resize,
        "data.decoder": "native" if config.native else "graph",
        "data.scaled_decode": config.scaled_decode,
    }
    if kind == "center":
        keys["data.center_fraction"] = config.center_fraction
    if kind == "boxes":
        keys["data.annotations"] = "none" if config.annotations == "none" else "any"
    if config.scaled_decode:
        # How often an image's sides are halved depends on which of its crops are cut together.
        keys["data.unit"] = config.unit if split == "train" else "image"
    return keys


def load_source(config: DataConfig, split: str, world: World) -> Catalog:
    """The catalog of `split`, "train" or "test", of `data.source`.

    Raises:
        ConfigError: it is not there, damaged, or cannot serve this config.
    """
    for name, plain in (("cache", None), ("storage_delay_ms", 0.0)):
        if getattr(config, name) != plain:
            raise ConfigError(
                f"data.{name} is of loose files, and data.source is packed: leave it out; where storage is slow, copy "
                "the packed folder to a local disk"
            )
    if split not in PREFIX:
        raise ConfigError(f'no data for split "{split}": it must be "train" or "test"')
    if source_of(config).kind == "tfrecord":
        # Parses by TensorFlow, which nothing else here needs.
        from tfpipe.data.tfrecords import load_tfrecords

        return load_tfrecords(config, split, world)
    return load_packed(config, split, world)


def load_packed(config: DataConfig, split: str, world: World) -> Catalog:
    """The same of what `tfpipe pack` made."""
    folder = source_of(config).path
    manifest = world.from_rank0(lambda: _checked(folder, split))
    _check_config(manifest.about, config, split, folder)
    images, records = (pq.read_table(folder / each["name"]) for each in manifest.tables)
    paths = replace(FileList.of(images["path"].to_pylist()), digest=manifest.about["list"])
    found = Records(*(records[name].to_numpy() for name in RECORDS.names))
    packed = Packed(
        manifest.about["kind"],
        [str(folder / each["name"]) for each in manifest.shards],
        found,
        manifest.about["jpeg"],
    )
    index = index_of(images)
    labels = images["label"].to_numpy()
    return as_catalog(config, split, world, paths, tuple(manifest.about["classes"]), labels, index, packed)


def as_catalog(
    config: DataConfig,
    split: str,
    world: World,
    paths: FileList,
    classes: tuple[str, ...],
    labels: np.ndarray,
    index: Any,
    packed: Packed,
) -> Catalog:
    """A catalog of what is packed, as one of loose files would be.

    Args:
        config: how it is to be used.
        split: "train" or "test".
        world: the ranks.
        paths: of the images that were packed.
        classes: names.
        labels: int32 [len(paths)].
        index: the boxes, and which images were annotated (index.Index).
        packed: where the records are.

    Raises:
        ConfigError: there are too few classes or samples.
    """
    where = source_of(config).path
    if config.num_classes is not None and len(classes) > config.num_classes:
        raise ConfigError(f"data.num_classes is {config.num_classes}, but there are {len(classes)} classes in {where}")
    annotated, boxes = np.zeros(len(paths), bool), None
    needs_boxes = config.crop_for(split) in ("boxes", "random_resized")
    if needs_boxes and config.annotations == "none":
        whole = np.repeat(WHOLE_IMAGE, len(paths), axis=0)
        boxes = Boxes(np.arange(len(paths), dtype=np.int32), whole, labels)
    elif needs_boxes:
        annotated, boxes = index
    by_box = split == "train" and config.unit == "box" and needs_boxes
    catalog = Catalog(
        split, paths, [""] * len(paths.folders), annotated, labels, classes, boxes, by_box=by_box, packed=packed
    )
    if split == "train" and config.scope == "shard" and catalog.samples < world.size:
        raise ConfigError(
            f'{where}: {catalog.samples} samples are too few for {world.size} ranks with data.scope "shard"'
        )
    return catalog


def _checked(folder: Path, split: str) -> Manifest:
    manifest = Manifest.read(manifest_path(folder, split))
    manifest.check_sizes(folder)
    return manifest


def _check_config(about: dict[str, Any], config: DataConfig, split: str, folder: Path) -> None:
    """Raises: ConfigError: what is packed is not what `config` asks for; names the keys and both values."""
    then: dict[str, Any] = {"data.label_source": about["label_source"]}
    now: dict[str, Any] = {"data.label_source": config.label_source}
    if config.classes is not None:
        then["data.classes"], now["data.classes"] = about["classes"], list(class_table(config, FileList.of([])))
    if about["kind"] != "original":
        then |= about
        now |= pixel_keys(config, split)
    problems = differences(then, now, "packed", "in the config")
    if problems:
        raise ConfigError(
            f"{folder} cannot serve this config's {split} data: {'; '.join(problems)}; change the config, or pack for "
            "it, into another folder"
        )


def differences(then: dict[str, Any], now: dict[str, Any], before: str, after: str) -> list[str]:
    """What differs between two, of what both have, by name, each with both values."""
    names = [name for name in then if name in now and then[name] != now[name]]
    return [f"{name}: {_short(then[name])} {before}, {_short(now[name])} {after}" for name in names]


def _short(value: Any) -> str:
    said = json.dumps(value)
    return said if len(said) <= 60 else f"{said[:40]} ... ({len(value)})"


def write_tables(folder: Path, catalog: Catalog, records: Records) -> list[dict[str, Any]]:
    """Writes both tables, and gives their entries in the manifest."""
    prefix = PREFIX[catalog.split]
    boxes = catalog.boxes or Boxes(np.zeros(0, np.int32), np.zeros((0, 4), np.float32), np.zeros(0, np.int32))
    offsets = pa.array(boxes.offsets(len(catalog)), pa.int32())
    edges = pa.FixedSizeListArray.from_arrays(pa.array(boxes.boxes.astype(np.float32).ravel()), 4)
    images = {
        "path": pa.array(list(catalog.paths), pa.string()),
        "label": pa.array(catalog.labels, pa.int32()),
        "annotated": pa.array(catalog.annotated),
        "boxes": pa.ListArray.from_arrays(offsets, edges),
        "box_labels": pa.ListArray.from_arrays(offsets, pa.array(boxes.labels, pa.int32())),
    }
    made = []
    for name, table in (
        ("images", pa.table(images, IMAGES)),
        ("records", pa.table(records._asdict(), RECORDS)),
    ):
        path = folder / f"{prefix}.{name}.parquet"
        with whole_file(path) as unfinished:
            pq.write_table(table, unfinished, compression="zstd")
        made.append({"name": path.name, "records": len(table), "bytes": path.stat().st_size, "sha256": sha256(path)})
    return made


def about_of(catalog: Catalog, config: DataConfig, kind: str, jpeg: dict[str, Any] | None) -> dict[str, Any]:
    """The head of a manifest: all that the content depends on but the files' contents."""
    pixels = {} if kind == "original" else pixel_keys(config, catalog.split)
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
        **pixels,
    }
