"""WebDataset's tar shards: scans them once, then reads any image at once by its shard, offset and length.

tar.py says which members of a shard are a sample.
"""

import json
import re
import tarfile
from collections.abc import Sequence

import numpy as np

from tfpipe.config import Columns
from tfpipe.data.annotations.cleaning import is_stated
from tfpipe.data.annotations.voc import find_objects
from tfpipe.data.catalog.class_folders import SUFFIXES
from tfpipe.data.catalog.paths import UNUSABLE, FileList
from tfpipe.data.images.headers import header_of
from tfpipe.data.sources.known import NEITHER, Known, check_files, files_of, names_of, not_used
from tfpipe.data.sources.packed.scan import LeftOut, Scan, Scanned, Shard, Stamped, scanned
from tfpipe.data.sources.packed.shards import Shards
from tfpipe.data.sources.packed.stored import Stored
from tfpipe.data.sources.packed.tar import check_end, opened_tar, samples
from tfpipe.data.sources.remote.url_path import AnyPath, UrlPath, open_file
from tfpipe.data.sources.rows import as_edges, boxes_of, classes_of, in_pixels, targets_of
from tfpipe.distributed import World
from tfpipe.errors import ConfigError

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
        images, shards = self._scanned(split, world)
        train = images.rows if split == "train" or config.classes is not None else self._scanned("train", world)[0].rows
        classes = classes_of(config, train, self.display_name)
        labels, boxes = targets_of(config, images.rows, classes, self.display_name)
        left_out = [*images.left_out.texts, *not_used(self._shards(NEITHER) if split == "train" else [])]
        names, annotated = FileList.of(images.rows.names), images.rows.annotated
        known = Known(names, labels, classes, boxes, annotated, left_out=left_out)
        return known, images.shards(labels, self.opened(shards))

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

    def _scanned(self, split: str, world: World) -> tuple[Shard, Stamped]:
        assert self.config.source is not None
        columns = self.config.source.columns
        folder = world.from_rank0(lambda: self._shards(split)[0].parent)
        settings = {f"data.source.columns.{name}": getattr(columns, name) for name in COLUMNS}

        def read(path: AnyPath, size: int, left_out: LeftOut) -> list[Scanned]:
            return scan_tar(path, size, columns, left_out)

        scan = Scan("tar shards", "tar", read, settings)
        images, shards = scanned(scan, lambda: self._shards(split), split, self.config, folder, world)
        if not images.rows.names:
            raise ConfigError(
                f"the tar shards in {folder} hold no image with a name that ends in {', '.join(SUFFIXES)}, but "
                f"{', '.join(images.left_out.texts) or 'nothing'}"
            )
        rows = images.rows._replace(column="box_labels" if self.config.label_source == "object" else "label")
        return images._replace(rows=rows), shards


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
    """Returns an image with what the members beside it say; raises ValueError if that cannot be used."""
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
    size, texts = (max(height, 1), max(width, 1)), [text or None for text in labels]
    return Scanned(image.name, label or None, 0, size, edges.tolist(), texts, image.offset_data, image.size)
