"""The output of `tfpipe pack` for a split: shards, two tables and a manifest that describes them.

    train-00000-of-00010          images or crops as TFRecords, or, with the extension .npy, pixels
    train.images.parquet          one row per image, in the list's order: IMAGES
    train.records.parquet         one row per record, in the order of the images: RECORDS
    train.json                    the manifest; written last, so if it exists, the pack is complete

Files of the test split begin with "validation". The files do not depend on time, host or number of ranks.
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
    """Description of a packed split."""

    about: dict[str, Any]
    """Everything that the content depends on except the images themselves; see about_of."""
    shards: list[dict[str, Any]]
    """Name, number of records, size in bytes and sha256 of each shard."""
    tables: list[dict[str, Any]]
    """The same of the two tables, images first."""

    def text(self) -> str:
        """Returns the manifest as JSON, the content of its file."""
        return json.dumps({**self.about, "shards": self.shards, "tables": self.tables}, indent=1) + "\n"

    @classmethod
    def read(cls, path: Path) -> "Manifest":
        """Reads the manifest at `path`.

        Raises:
            ConfigError: the file cannot be read, is not a manifest, or has another format version.
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
        """Raises ConfigError if a file is missing or its size differs from the manifest's."""
        for file in [*self.shards, *self.tables]:
            path = folder / file["name"]
            try:
                size = path.stat().st_size
            except OSError as error:
                raise ConfigError(f"cannot read {path}, which {folder} had: {error.strerror}; {ADVICE}") from error
            if size != file["bytes"]:
                raise ConfigError(f"{path} has {size} bytes, its manifest says {file['bytes']}; {ADVICE}")

    def check_sums(self, folder: Path) -> Iterator[str]:
        """Compares the sha256 of every file; yields an error message for each, "" if it matches."""
        for file in [*self.shards, *self.tables]:
            path = folder / file["name"]
            try:
                same = sha256(path) == file["sha256"]
            except OSError as error:
                yield f"cannot read {path}: {error.strerror}"
            else:
                yield "" if same else f"{path} is not what was packed: its sha256 differs"


def sha256(path: Path) -> str:
    """Returns the sha256 of the file at `path`, in hex."""
    digest = hashlib.sha256()
    with path.open("rb", buffering=0) as file:
        while block := file.read(2**20):
            digest.update(block)
    return digest.hexdigest()


def verify(folder: Path) -> str:
    """Compares all packed files in `folder` with their checksums; returns a message for the user.

    Raises:
        ConfigError: the folder holds no pack, or files have changed; the message names all of them.
    """
    manifests = [Manifest.read(path) for path in (manifest_path(folder, split) for split in PREFIX) if path.exists()]
    if not manifests:
        raise ConfigError(f"nothing is packed in {folder}: there is no {manifest_path(folder, 'train')}")
    files = sum(len(manifest.shards) + len(manifest.tables) for manifest in manifests)
    results = (problem for manifest in manifests for problem in manifest.check_sums(folder))
    problems = list(filter(None, progress(results, files, "comparing checksums")))
    if problems:
        raise ConfigError("\n  ".join([f"{len(problems)} of {files} files are not as packed:", *problems, ADVICE]))
    return f"{folder}: all {files} files are as they were packed"


def pixel_keys(config: DataConfig, split: str) -> dict[str, Any]:
    """Returns the settings that the pixels of a split's crops depend on, by config key."""
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
        # The number of halvings depends on which of an image's crops are cut together.
        keys["data.unit"] = config.unit if split == "train" else "image"
    return keys


def load_source(config: DataConfig, split: str, world: World) -> Catalog:
    """Loads the catalog of `split`, "train" or "test", from the packed data or TFRecords at `data.source`.

    Raises:
        ConfigError: the data is missing, damaged, or does not match this config.
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
        # Imported here, since it needs TensorFlow, and this module does not.
        from tfpipe.data.tfrecords import load_tfrecords

        return load_tfrecords(config, split, world)
    return load_packed(config, split, world)


def load_packed(config: DataConfig, split: str, world: World) -> Catalog:
    """Loads the catalog of a split that `tfpipe pack` wrote; see load_source."""
    folder = source_of(config).path
    manifest = world.from_rank0(lambda: _checked(folder, split))
    _check_config(manifest.about, config, split, folder)
    images, records = (pq.read_table(folder / table["name"]) for table in manifest.tables)
    paths = replace(FileList.of(images["path"].to_pylist()), digest=manifest.about["list"])
    locations = Records(*(records[name].to_numpy() for name in RECORDS.names))
    packed = Packed(
        manifest.about["kind"],
        [str(folder / shard["name"]) for shard in manifest.shards],
        locations,
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
    """Makes the catalog of packed data.

    Args:
        config: the config of the run that reads it.
        split: "train" or "test".
        world: the ranks that share it.
        paths: original paths of the images.
        classes: class names.
        labels: int32 [len(paths)], class numbers or BY_OBJECT.
        index: the boxes and which images were annotated (index.Index); read if crops need boxes.
        packed: location of the records.

    Raises:
        ConfigError: there are more classes than `data.num_classes`, or fewer samples than ranks in the scope "shard".
    """
    folder = source_of(config).path
    if config.num_classes is not None and len(classes) > config.num_classes:
        raise ConfigError(f"data.num_classes is {config.num_classes}, but there are {len(classes)} classes in {folder}")
    annotated, boxes = np.zeros(len(paths), bool), None
    needs_boxes = config.crop_for(split) in ("boxes", "random_resized")
    if needs_boxes and config.annotations == "none":
        full = np.repeat(WHOLE_IMAGE, len(paths), axis=0)
        boxes = Boxes(np.arange(len(paths), dtype=np.int32), full, labels)
    elif needs_boxes:
        annotated, boxes = index
    by_box = split == "train" and config.unit == "box" and needs_boxes
    catalog = Catalog(
        split, paths, [""] * len(paths.folders), annotated, labels, classes, boxes, by_box=by_box, packed=packed
    )
    if split == "train" and config.scope == "shard" and catalog.samples < world.size:
        raise ConfigError(
            f'{folder}: {catalog.samples} samples are too few for {world.size} ranks with data.scope "shard"'
        )
    return catalog


def _checked(folder: Path, split: str) -> Manifest:
    manifest = Manifest.read(manifest_path(folder, split))
    manifest.check_sizes(folder)
    return manifest


def _check_config(about: dict[str, Any], config: DataConfig, split: str, folder: Path) -> None:
    """Raises ConfigError if the data was packed with settings that differ from `config`; names keys and values."""
    packed: dict[str, Any] = {"data.label_source": about["label_source"]}
    wanted: dict[str, Any] = {"data.label_source": config.label_source}
    if config.classes is not None:
        packed["data.classes"], wanted["data.classes"] = about["classes"], list(class_table(config, FileList.of([])))
    if about["kind"] != "original":
        packed |= about
        wanted |= pixel_keys(config, split)
    problems = differences(packed, wanted, "packed", "in the config")
    if problems:
        raise ConfigError(
            f"{folder} cannot serve this config's {split} data: {'; '.join(problems)}; change the config, or pack for "
            "it, into another folder"
        )


def differences(old: dict[str, Any], new: dict[str, Any], before: str, after: str) -> list[str]:
    """Compares the names that both have; returns a message with both values for each that differs."""
    names = [name for name in old if name in new and old[name] != new[name]]
    return [f"{name}: {_short(old[name])} {before}, {_short(new[name])} {after}" for name in names]


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:40]} ... ({len(value)})"


def write_tables(folder: Path, catalog: Catalog, records: Records) -> list[dict[str, Any]]:
    """Writes both tables; returns their entries for the manifest."""
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
    entries = []
    for name, table in (
        ("images", pa.table(images, IMAGES)),
        ("records", pa.table(records._asdict(), RECORDS)),
    ):
        path = folder / f"{prefix}.{name}.parquet"
        with whole_file(path) as unfinished:
            pq.write_table(table, unfinished, compression="zstd")
        entries.append({"name": path.name, "records": len(table), "bytes": path.stat().st_size, "sha256": sha256(path)})
    return entries


def about_of(catalog: Catalog, config: DataConfig, kind: str, jpeg: dict[str, Any] | None) -> dict[str, Any]:
    """Returns the head of a manifest: everything that the content depends on except the image files."""
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
