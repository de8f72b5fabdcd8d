"""WebDataset's tar shards: scans them once, then reads any image at once by its shard, offset and length.

tar.py says which members of a shard are a sample.
"""

import json
import re
import tarfile
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from tfpipe.config import Columns, DataConfig
from tfpipe.data.annotations.cleaning import is_stated
from tfpipe.data.annotations.voc import find_objects
from tfpipe.data.catalog.class_folders import SUFFIXES
from tfpipe.data.catalog.paths import UNUSABLE, FileList
from tfpipe.data.images.headers import header_of
from tfpipe.data.sources.known import NEITHER, Known, check_files, files_of, names_of, not_used
from tfpipe.data.sources.packed.scan import LeftOut, Scan, Scanned, scanned
from tfpipe.data.sources.packed.shards import Records, Shards
from tfpipe.data.sources.packed.stored import Stored
from tfpipe.data.sources.packed.tar import check_end, opened_tar, samples
from tfpipe.data.sources.remote.url_path import AnyPath, UrlPath, open_file
from tfpipe.data.sources.rows import Rows, as_edges, boxes_of, classes_of, in_pixels, targets_of
from tfpipe.distributed import World
from tfpipe.errors import ConfigError

SCAN = pa.schema(
    {
        "name": pa.string(),
        "label": pa.string(),
        "height": pa.float32(),
        "width": pa.float32(),
        "boxes": pa.list_(pa.list_(pa.float32(), 4)),
        "box_labels": pa.list_(pa.string()),
        "offset": pa.int64(),
        "length": pa.int64(),
        "shard": pa.int32(),
    }
)
FORMAT = 2
TAR = (".tar",)
# Keys of data.source.columns that a scan depends on.
COLUMNS = ("label", "boxes", "box_labels", "box_format", "box_unit")


class WebDataset(Stored):
    """Images in tar shards, with their labels and boxes beside them."""

    def has_test(self) -> bool:
        return bool(self._shards("test"))

    def check(self, test: bool = False) -> None:
        assert self.config.source is not None
        for split in ("train", "test") if test and self.config.source.test_path is not None else ("train",):
            self._check_split(split)

    def _check_split(self, split: str) -> None:
        assert self.config.source is not None
        check_files(self._shards(split), self.config.source, split, "shard", "*.tar")

    def load(self, split: str, world: World) -> tuple[Known, Shards]:
        """Loads what is known of a split from a scan of its shards.

        Raises ConfigError if a shard is missing or damaged, or an image has no class.
        """
        config = self.config
        self._check_split("train")
        self._check_split(split)
        scan = self._scanned(split, world)
        table = scan.table
        rows = train = _rows(table, self._shards(split), config)
        if split == "test" and config.classes is None:
            train = _rows(self._scanned("train", world).table, self._shards("train"), config)
        classes = classes_of(config, train, self.display_name)
        labels, boxes = targets_of(config, rows, classes, self.display_name)
        places = {name: table[name].to_numpy() for name in ("shard", "offset", "length")}
        records = Records(np.arange(len(table), dtype=np.int32), labels, **places)
        files, remote = [str(path) for path, _ in scan.shards], self.opened(scan.shards)
        left_out = [*scan.left_out.texts, *not_used(self._shards(NEITHER) if split == "train" else [])]
        known = Known(FileList.of(rows.names), labels, classes, boxes, rows.annotated, left_out=left_out)
        return known, Shards("original", files, records, remote=remote)

    def _shards(self, split: str) -> Sequence[AnyPath]:
        about = self.config.source
        assert about is not None
        path = about.test_path if split == "test" and about.test_path is not None else about.path
        if not isinstance(path, str):
            return files_of(about, split, TAR)
        if path.endswith(TAR):
            chosen = split == "train" or (split == "test" and about.test_path is not None)
            return [UrlPath(url, self.config.remote) for url in expanded(path)] if chosen else []
        folder = UrlPath(path, self.config.remote)
        return [folder / name for name in names_of(filter(is_tar, folder.names()), about, split)]

    def _scanned(self, split: str, world: World) -> Scanned:
        assert self.config.source is not None
        columns = self.config.source.columns
        folder = world.from_rank0(lambda: self._shards(split)[0].parent)
        settings = {f"data.source.columns.{name}": getattr(columns, name) for name in COLUMNS}

        def read(path: AnyPath, size: int, left_out: LeftOut) -> list[tuple[Any, ...]]:
            return scan_tar(path, size, columns, left_out)

        scan = Scan("tar shards", "tar-index", FORMAT, SCAN, read, settings)
        result = scanned(scan, lambda: self._shards(split), split, self.config, folder, world)
        if not len(result.table):
            raise ConfigError(
                f"the tar shards in {folder} hold no image with a name that ends in {', '.join(SUFFIXES)}, but "
                f"{', '.join(result.left_out.texts) or 'nothing'}"
            )
        return result


def is_tar(name: str) -> bool:
    """Returns whether a file's name is one of a tar shard."""
    return name.lower().endswith(TAR)


def _rows(table: pa.Table, shards: Sequence[AnyPath], config: DataConfig) -> Rows:
    lists = table["boxes"].combine_chunks()
    images = np.repeat(np.arange(len(table)), np.diff(lists.offsets.to_numpy()))
    edges = lists.flatten().flatten().to_numpy().reshape(-1, 4)
    sizes = np.stack([table[side].to_numpy() for side in ("height", "width")], axis=1)
    texts = [text or None for text in table["box_labels"].combine_chunks().flatten().to_pylist()]
    labels = [label or None for label in table["label"].to_pylist()]
    column: Literal["label", "box_labels"] = "box_labels" if config.label_source == "object" else "label"
    files, file = list(map(str, shards)), table["shard"].to_numpy()
    return Rows(table["name"].to_pylist(), labels, images, edges, texts, sizes, files, file, column=column)


def expanded(url: str) -> list[str]:
    """Returns the URLs of a pattern such as https://host/train-{0000..0099}.tar; of any other URL itself."""
    numbers = re.search(r"\{(\d+)\.\.(\d+)\}", url)
    if numbers is None:
        return [url]
    first, last = numbers[1], numbers[2]
    return [
        f"{url[: numbers.start()]}{number:0{len(first)}}{url[numbers.end() :]}"
        for number in range(int(first), int(last) + 1)
    ]


def scan_tar(path: AnyPath, size: int, columns: Columns, left_out: LeftOut) -> list[tuple[Any, ...]]:
    """Returns the values of SCAN without the shard for each image of a tar file, in its order.

    Counts the members that are not used. Raises OSError, or ValueError if it is no tar file, a member or a header is
    damaged, or the file was cut off.
    """
    rows: list[tuple[Any, ...]] = []
    try:
        with open_file(path) as file, opened_tar(file, size) as tar:
            for image, notes in samples(tar, left_out):
                rows.append((image.name, *_about(tar, image, notes, columns), image.offset_data, image.size))
            check_end(file, tar.offset)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    return rows


def _about(
    tar: tarfile.TarFile, image: tarfile.TarInfo, notes: dict[str, tarfile.TarInfo], columns: Columns
) -> tuple[str | None, float, float, list[list[float]], list[str | None]]:
    """Returns the label, the height and width that boxes are divided by, the boxes and their labels."""
    label: str | None = None
    edges, labels = np.zeros((0, 4), np.float32), list[str | None]()
    height = width = 1.0
    if UNUSABLE.search(image.name):
        raise ValueError(f"the name {image.name!a} holds a line end or is not UTF-8: rename it")

    def contents(member: tarfile.TarInfo) -> bytes:
        file = tar.extractfile(member)
        assert file is not None, "it is a file"
        return file.read()

    for ending, member in notes.items():
        if ending == "cls":
            try:
                label = contents(member).decode().strip()
            except UnicodeDecodeError as error:
                raise ValueError(f"{member.name}: {error}") from error
        elif ending == "json":
            try:
                found = json.loads(contents(member))
                own = found.get(columns.label)
                label = label if own is None else str(own).strip()
                edges = as_edges(boxes_of(found.get(columns.boxes)), columns.box_format)
                labels = [str(text) for text in found.get(columns.box_labels) or []] or [None] * len(edges)
                "".join(map(str, (label, *labels))).encode()  # raises if JSON's escapes make it no UTF-8
                if in_pixels(edges, columns.box_unit, lambda _: image.name):
                    height, width = (float(found.get(side) or 0) for side in ("height", "width"))
            except (ValueError, TypeError, AttributeError) as error:
                raise ValueError(f"{member.name}: {error}") from error
        elif ending == "xml":
            objects = find_objects(contents(member), member.name)
            edges, labels, (height, width) = objects.boxes, list(objects.names), objects.size
    if len(labels) != len(edges):
        raise ValueError(f"{image.name} has {len(labels)} labels for {len(edges)} boxes")
    if len(edges) and not is_stated(np.array([[height, width]]))[0]:
        height, width = header_of(contents(image), image.name)[:2]
    return label, max(height, 1), max(width, 1), edges.tolist(), labels
