"""WebDataset's tar shards: scans them once, then reads any image at once by its shard, offset and length.

tar.py says which members of a shard are a sample.
"""

import json
import re
import tarfile
from collections.abc import Sequence
from typing import Any

import numpy as np

from tfpipe.config import Columns
from tfpipe.data.annotations.cleaning import is_stated
from tfpipe.data.annotations.voc import find_objects
from tfpipe.data.catalog.class_folders import SUFFIXES
from tfpipe.data.catalog.paths import UNUSABLE, FileList
from tfpipe.data.images.headers import header_of
from tfpipe.data.sources.known import NEITHER, Known, check_files, files_of, names_of, not_used
from tfpipe.data.sources.packed.scan import LeftOut, Scanned, ScannedRows, ScannedSource
from tfpipe.data.sources.packed.shards import Shards
from tfpipe.data.sources.packed.tar import check_end, opened_tar, samples
from tfpipe.data.sources.remote.url_path import AnyPath, UrlPath, open_file
from tfpipe.data.sources.rows import Rows, as_edges, boxes_of, classes_of, in_pixels, targets_of
from tfpipe.distributed import World
from tfpipe.errors import ConfigError

TAR = (".tar",)
# Keys of data.source.columns that a scan depends on.
COLUMNS = ("label", "boxes", "box_labels", "box_format", "box_unit")


class WebDataset(ScannedSource):
    """Images in tar shards, with their labels and boxes next to them."""

    kind = "tar shards"
    stored_as = "tar"

    def checked(self, split: str) -> Sequence[AnyPath]:
        shards = self.shards_of(split)
        check_files(shards, self.about, split, "shard", "*.tar")
        return shards

    @property
    def settings(self) -> dict[str, Any]:
        return {f"data.source.columns.{name}": getattr(self.about.columns, name) for name in COLUMNS}

    def scan(self, path: AnyPath, size: int, left_out: LeftOut) -> list[Scanned]:
        return scan_tar(path, size, self.about.columns, left_out)

    def load(self, split: str, world: World) -> tuple[Known, Shards]:
        """Loads what is known of a split from a scan of its shards.

        Raises ConfigError if a shard is missing or damaged, or an image has no class.
        """
        config = self.config
        self.checked("train")
        images = self.scanned(split, world)
        rows = train = self._rows(images)
        if split == "test" and config.classes is None:
            train = self._rows(self.scanned("train", world))
        classes = classes_of(config, train, self.display_name)
        labels, boxes = targets_of(config, rows, classes, self.display_name)
        left_out = [*images.left_out.texts, *not_used(self.shards_of(NEITHER) if split == "train" else [])]
        known = Known(FileList.of(rows.names), labels, classes, boxes, rows.annotated, left_out=left_out)
        return known, images.as_shards(labels, self.opened(images.shards))

    def shards_of(self, split: str) -> Sequence[AnyPath]:
        path = self.about.test_path if split == "test" and self.about.test_path is not None else self.about.path
        if not isinstance(path, str):
            return files_of(self.about, split, TAR)
        if path.endswith(TAR):
            used = split == "train" or (split == "test" and self.about.test_path is not None)
            return [UrlPath(url, self.config.remote) for url in expanded(path)] if used else []
        folder = UrlPath(path, self.config.remote)
        return [folder / name for name in names_of(filter(is_tar, folder.names()), self.about, split)]

    def _rows(self, images: ScannedRows) -> Rows:
        if not images.rows.names:
            raise ConfigError(
                f"the tar shards in {images.shards[0][0].parent} hold no image with a name that ends in "
                f"{', '.join(SUFFIXES)}, but {', '.join(images.left_out.texts) or 'nothing'}"
            )
        return images.rows._replace(column="box_labels" if self.config.label_source == "object" else "label")


def is_tar(name: str) -> bool:
    """Returns whether a file's name is one of a tar shard."""
    return name.lower().endswith(TAR)


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


def scan_tar(path: AnyPath, size: int, columns: Columns, left_out: LeftOut) -> list[Scanned]:
    """Returns the images of a tar file, in its order; counts in `left_out` what is not used.

    Raises OSError, or ValueError if it is no tar file, a member or a header is
    damaged, or the file was cut off.
    """
    rows: list[Scanned] = []
    try:
        with open_file(path) as file, opened_tar(file, size) as tar:
            for image, notes in samples(tar, left_out):
                rows.append(_scanned_image(tar, image, notes, columns))
            check_end(file, tar.offset)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    return rows


def _scanned_image(
    tar: tarfile.TarFile, image: tarfile.TarInfo, notes: dict[str, tarfile.TarInfo], columns: Columns
) -> Scanned:
    """Returns an image with what the members next to it say; raises ValueError if that cannot be used."""
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
                annotation = json.loads(contents(member))
                own_label = annotation.get(columns.label)
                label = label if own_label is None else str(own_label).strip()
                edges = as_edges(boxes_of(annotation.get(columns.boxes)), columns.box_format)
                labels = [str(text) for text in annotation.get(columns.box_labels) or []] or [None] * len(edges)
                "".join(map(str, (label, *labels))).encode()  # raises if JSON's escapes make it no UTF-8
                if in_pixels(edges, columns.box_unit, lambda _: image.name):
                    height, width = (float(annotation.get(side) or 0) for side in ("height", "width"))
            except (ValueError, TypeError, AttributeError) as error:
                raise ValueError(f"{member.name}: {error}") from error
        elif ending == "xml":
            objects = find_objects(contents(member), member.name)
            edges, labels, (height, width) = objects.boxes, list(objects.names), objects.size
    if len(labels) != len(edges):
        raise ValueError(f"{image.name} has {len(labels)} labels for {len(edges)} boxes")
    if len(edges) and not is_stated(np.array([[height, width]]))[0]:
        height, width = header_of(contents(image), image.name)[:2]
    size, texts = (max(height, 1), max(width, 1)), [text or None for text in labels]
    return Scanned(image.name, label or None, 0, size, edges.tolist(), texts, image.offset_data, image.size)
