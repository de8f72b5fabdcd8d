"""WebDataset's tar shards: scans them once, then reads any image at once by its shard, offset and length.

tar.py says which members of a shard are a sample.
"""

import json
import tarfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tfpipe.config import Columns
from tfpipe.data.annotations.cleaning import WHOLE_IMAGE, is_stated
from tfpipe.data.annotations.voc import find_objects
from tfpipe.data.catalog.class_folders import SUFFIXES
from tfpipe.data.catalog.labels import label_text
from tfpipe.data.catalog.ledger import Ledger
from tfpipe.data.catalog.paths import UNUSABLE, FileList, fault
from tfpipe.data.catalog.types import ROUNDED, first_rounded
from tfpipe.data.images.headers import header_of
from tfpipe.data.sources.known import NEITHER, Known, check_files, data_files, not_used
from tfpipe.data.sources.packed.scan import Scanned, ScannedRows, ScannedSource, rows_of
from tfpipe.data.sources.packed.shards import Shards
from tfpipe.data.sources.packed.tar import NOTES, check_end, opened_tar, samples, split_name
from tfpipe.data.sources.remote.url_path import AnyPath, open_file
from tfpipe.data.sources.rows import Rows, as_edges, boxes_of, classes_of, in_pixels, targets_of
from tfpipe.distributed import World
from tfpipe.errors import ConfigError

TAR = (".tar",)
# Keys of data.source.columns that a scan depends on.
COLUMNS = ("label", "boxes", "box_labels", "box_format", "box_unit", "mask", "extra")
# Columns of a scan: where masks are, 0 for none.
MASKS = ("mask_offset", "mask_length")
# Version of a scan's labels.
LABELS = 2
# Whole numbers beyond are none of int64; no float32 is as large as MOST.
MOST_WHOLE, MOST = 2**63 - 1, 2**128


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
        columns = {f"data.source.columns.{name}": getattr(self.about.columns, name) for name in COLUMNS}
        return {**columns, "the form of labels": LABELS}

    @property
    def further(self) -> list[str]:
        # The names of a user's columns may be none that a file can have.
        return [*MASKS, *(f"extra{number}" for number in range(len(self.about.columns.extra)))]

    def typed(self, rows: Rows) -> Rows:
        more = {name: rows.more[name].astype(np.int64) for name in MASKS}
        for name, key in zip(self.further[len(MASKS) :], self.about.columns.extra.values(), strict=True):
            more[name] = json_column(rows.more[name].tolist(), key, rows.origin)
        return rows._replace(more={**rows.more, **more})

    def scan(self, path: AnyPath, size: int, ledger: Ledger) -> Rows:
        return rows_of(scan_tar(path, size, self.about.columns, ledger), path, self.further)

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
        ledger = not_used(self.shards_of(NEITHER) if split == "train" else [], images.ledger)
        labels, boxes = targets_of(config, rows, classes, self.display_name, ledger)
        shards, masks = images.as_shards(labels, self.opened(images.shards)), None
        if config.targets.kind == "mask":
            shards = replace(shards, masks=images.checked(_masks(rows, shards)))
            masks = self._mask_names(rows)
        extra = zip(self.about.columns.extra, self.further[len(MASKS) :], strict=True)
        values = {name: rows.texts[column] if column in rows.texts else rows.more[column] for name, column in extra}
        known = Known(
            *(FileList.of(rows.names), labels, classes.names, boxes, rows.annotated),
            ledger=ledger,
            masks=masks,
            values=values,
            stated=rows.sizes,
        )
        return known, shards

    def _mask_names(self, rows: Rows) -> FileList:
        """Returns the name of each image's mask; raises ConfigError if one has none."""
        ending = mask_ending(self.about.columns)
        bare = np.flatnonzero(rows.more["mask_length"] == 0)
        if bare.size:
            raise ConfigError(
                f"{bare.size} of {len(rows.names)} images have no mask, e.g. {rows.origin(int(bare[0]))}: expected a "
                f"PNG of its name with the ending .{ending}; data.source.columns.mask is the ending without .png"
            )
        return FileList.of(f"{split_name(name)[0]}.{ending}" for name in rows.names)

    def shards_of(self, split: str) -> Sequence[AnyPath]:
        return data_files(self.about, split, TAR, self.config.remote)

    def _rows(self, images: ScannedRows) -> Rows:
        if not images.rows.names:
            raise ConfigError(
                f"the tar shards in {images.shards[0][0].parent} hold no image with a name that ends in "
                f"{', '.join(SUFFIXES)}, but {', '.join(images.ledger.texts) or 'nothing'}"
            )
        return images.rows._replace(column="box_labels" if self.config.label_source == "object" else "label")


def scan_tar(path: AnyPath, size: int, columns: Columns, ledger: Ledger) -> list[Scanned]:
    """Returns the images of a tar file, in its order; counts in `ledger` what is not used.

    Raises OSError, or ValueError if it is no tar file, a member or a header is
    damaged, or the file was cut off.
    """
    rows: list[Scanned] = []
    try:
        with open_file(path) as file, opened_tar(file, size) as tar:
            for image, notes in samples(tar, (*NOTES, mask_ending(columns)), ledger):
                rows.append(_scanned_image(tar, image, notes, columns))
            check_end(file, tar.offset)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    return rows


def _scanned_image(
    tar: tarfile.TarFile, image: tarfile.TarInfo, notes: dict[str, tarfile.TarInfo], columns: Columns
) -> Scanned:
    """Returns an image with what the members next to it say; raises ValueError if that cannot be used."""
    stated: dict[str, str | None] = {}
    edges, labels = np.zeros((0, 4), np.float32), list[str | None]()
    height = width = 1.0
    mask, more = notes.get(mask_ending(columns)), list[Any]([None] * len(columns.extra))
    if UNUSABLE.search(image.name):
        raise ValueError(f"the name {image.name!a} {fault(image.name)}: rename it")

    def contents(member: tarfile.TarInfo) -> bytes:
        file = tar.extractfile(member)
        assert file is not None, "it is a file"
        return file.read()

    for ending, member in notes.items():
        if ending == "cls":
            try:
                stated[ending] = label_text(contents(member))
            except ValueError as error:
                raise ValueError(f"{member.name}: {error}") from error
        elif ending == "json":
            try:
                annotation = json.loads(contents(member))
                own_label = annotation.get(columns.label)
                more = [_at(annotation, key) for key in columns.extra.values()]
                tags = list(map(label_text, own_label)) if isinstance(own_label, list) else None
                if tags is not None and None in tags:
                    raise ValueError(f"received {json.dumps(own_label)[:80]}; accepted: a list of labels, none empty")
                stated[ending] = label_text(own_label) if tags is None else None
                edges = as_edges(boxes_of(annotation.get(columns.boxes)), columns.box_format)
                labels = list(map(label_text, annotation.get(columns.box_labels) or [])) or [None] * len(edges)
                if in_pixels(edges, columns.box_unit, lambda _: image.name):
                    height, width = (float(annotation.get(side) or 0) for side in ("height", "width"))
                if tags is not None and not len(edges):
                    edges, labels = np.repeat(WHOLE_IMAGE, len(tags), axis=0), [*tags]
                "".join(
                    map(str, (stated[ending], *labels, *more))
                ).encode()  # raises if JSON's escapes make it no UTF-8
            except (ValueError, TypeError, AttributeError) as error:
                raise ValueError(f"{member.name}: {error}") from error
        elif ending == "xml":
            objects = find_objects(contents(member), member.name)
            edges, labels, (height, width) = objects.boxes, list(map(label_text, objects.names)), objects.size
    if len(labels) != len(edges):
        raise ValueError(f"{image.name} has {len(labels)} labels for {len(edges)} boxes")
    if len(edges) and not is_stated(np.array([[height, width]]))[0]:
        height, width = header_of(contents(image), image.name)[:2]
    texts = set(filter(None, stated.values()))
    if len(texts) > 1:
        raise ValueError(
            f'{image.name} has the label "{stated["cls"]}" in its .cls and "{stated["json"]}" in its .json: make them '
            "the same, or set data.source.columns.label to a key that no .json has"
        )
    size = max(height, 1), max(width, 1)
    place = (0, 0) if mask is None else (mask.offset_data, mask.size)
    found = Scanned(image.name, next(iter(texts), None), 0, size, edges.tolist(), labels, image.offset_data, image.size)
    return found._replace(more=(*place, *more))


def mask_ending(columns: Columns) -> str:
    """Returns the ending of the names of masks."""
    return f"{columns.mask.lower()}.png"


def _masks(rows: Rows, shards: Shards) -> Shards:
    """Returns the masks of images, as records of the same shards."""
    records = shards.records._replace(**{name.removeprefix("mask_"): rows.more[name] for name in MASKS})
    return replace(shards, records=records)


def _at(annotation: dict[str, Any], key: str) -> Any:
    """Returns the value of a key, of "camera.iso" the value within another one; None if there is none."""
    if key in annotation or "." not in key:
        return annotation.get(key)
    first, _, rest = key.partition(".")
    inner = annotation.get(first)
    return _at(inner, rest) if isinstance(inner, dict) else None


def json_column(values: Sequence[Any], key: str, origin: Callable[[int], str]) -> np.ndarray:
    """Returns the column of the values of `key`: whole numbers as int64, others float32, texts as objects, [n].

    Lists of numbers, all of one length, are [n, length]. None, of an image without the key, is NaN or an empty text.
    Raises ConfigError if no image has the key, or one has a value unlike the first one's; `origin` names an image.
    """
    kinds = [_kind(value) for value in values]
    first = next((item for item, kind in enumerate(kinds) if kind), None)
    if first is None:
        raise ConfigError(
            f'data.source.columns.extra: no image has the key "{key}" in its .json, e.g. {origin(0)}'
            if values
            else f'data.source.columns.extra: there is no image with the key "{key}"'
        )
    kind = kinds[first]
    wrong = next((item for item, other in enumerate(kinds) if other not in ("", kind)), None)
    if wrong is not None or kind == "neither":
        item = first if wrong is None or kind == "neither" else wrong
        accepted = "a number, a list of numbers or a text" if kind == "neither" else f"{kind}, as in {origin(first)}"
        raise ConfigError(
            f'{origin(item)}: its .json has {json.dumps(values[item])[:80]} as "{key}", a column of '
            f"data.source.columns.extra; accepted: {accepted}"
        )
    if kind == "a text":
        column = np.empty(len(values), object)
        column[:] = [value or "" for value in values]
        return column
    length = len(values[first]) if isinstance(values[first], list) else 0
    nothing: Any = [np.nan] * length if length else np.nan
    numbers = [nothing if value is None else value for value in values]
    flat = [number for value in values for number in (value if isinstance(value, list) else [value])]
    whole = all(isinstance(number, int) and abs(number) <= MOST_WHOLE for number in flat)
    rounded = None if whole else first_rounded(np.array(numbers, np.float64).reshape(-1))
    if rounded is not None:
        item = rounded // max(1, length)
        raise ConfigError(f'{origin(item)}: its .json has {values[item]} as "{key}"; accepted: {ROUNDED}')
    return np.array(numbers, np.int64 if whole else np.float32)


def _kind(value: Any) -> str:
    """Returns what a value is, "" for None."""
    if value is None:
        return ""
    if isinstance(value, str):
        return "a text"
    if _is_number(value):
        return "a number"
    if isinstance(value, list) and value and all(map(_is_number, value)):
        return f"a list of {len(value)} numbers"
    return "neither"


def _is_number(value: Any) -> bool:
    return isinstance(value, float) or (isinstance(value, int) and abs(value) < MOST)
