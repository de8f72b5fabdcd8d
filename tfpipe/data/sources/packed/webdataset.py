"""WebDataset's tar shards: scans them once, then reads any image at once by its shard, offset and length.

A sample is the members that follow each other and share a name up to its first dot: n01/7.jpg with n01/7.cls, 7.json or
7.xml. The rest of the name is the member's ending: 7.seg.png ends in "seg.png", and is no image of the sample.
"""

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import IO, Any, NamedTuple

import numpy as np

from tfpipe.config import Columns
from tfpipe.data.annotations.cleaning import WHOLE_IMAGE
from tfpipe.data.annotations.formats import parse_annotation
from tfpipe.data.catalog.class_folders import SUFFIXES
from tfpipe.data.catalog.labels import label_text
from tfpipe.data.catalog.paths import UNUSABLE, FileList, fault
from tfpipe.data.catalog.types import ROUNDED, Catalog, first_rounded
from tfpipe.data.sources.catalogs import catalog_of, classes_of
from tfpipe.data.sources.packed.members import Member, read_member, size_of, tar_members
from tfpipe.data.sources.packed.scan import ScannedRows, ScannedSource, rows_of
from tfpipe.data.sources.packed.shards import Shards
from tfpipe.data.sources.remote.url_path import AnyPath, open_file
from tfpipe.data.sources.rows import Rows, as_edges, boxes_of, in_pixels
from tfpipe.distributed import World
from tfpipe.errors import ConfigError, counted
from tfpipe.util.ledger import Ledger, only

# Keys of data.source.columns that a scan depends on.
COLUMNS = ("bytes", "label", "boxes", "box_labels", "box_format", "box_unit", "mask", "extra")
# Columns of a scan: where masks are, 0 for none.
MASKS = ("mask_offset", "mask_length")
NO_MASK = Member("", 0, 0)
# Endings of images, and of labels and boxes. That of a mask is in the config.
IMAGES = tuple(suffix.removeprefix(".") for suffix in SUFFIXES)
NOTES = ("cls", "json", "xml")
# Whole numbers beyond are none of int64; no float32 is as large as MAX_FLOAT.
MAX_WHOLE, MAX_FLOAT = 2**63 - 1, 2**128


class Notes(NamedTuple):
    """The label and the boxes that the members next to an image state."""

    label: str | None = None
    boxes: np.ndarray = np.zeros((0, 4), np.float32)  # ymin, xmin, ymax, xmax
    box_labels: Sequence[str | None] = ()
    size: Sequence[float] = (1.0, 1.0)  # height and width that the boxes are divided by; 0: the image's own
    extra: Sequence[Any] = ()  # values of data.source.columns.extra


class WebDataset(ScannedSource):
    """Images in tar shards, with their labels and boxes next to them."""

    kind = "tar shards"
    stored_as = "tar"
    noun, suffixes = "shard", (".tar",)

    @property
    def settings(self) -> dict[str, Any]:
        columns = {f"data.source.columns.{name}": getattr(self.about.columns, name) for name in COLUMNS}
        return {**super().settings, **columns}

    def with_types(self, rows: Rows) -> Rows:
        columns = self.about.columns
        named = zip(_extra(columns), columns.extra.values(), strict=True)
        more = {name: json_column(rows.more[name].tolist(), key, rows.origin) for name, key in named}
        return rows._replace(more={**rows.more, **more})

    def scan(self, path: AnyPath, size: int, ledger: Ledger) -> Rows:
        return scan_tar(path, size, self.about.columns, ledger, self.config.turn)

    def load(self, split: str, world: World) -> tuple[Catalog, Shards]:
        """Loads a split from a scan of its shards.

        Raises ConfigError if a shard is missing or damaged, or an image has no class.
        """
        config = self.config
        self.require_files("train")
        images = self.scan_split(split, world)
        rows = train = self._rows(images)
        if split == "test" and config.classes is None:
            train = self._rows(self.scan_split("train", world))
        classes = classes_of(config, train, self.display_name)
        catalog = catalog_of(config, split, rows, classes, self.name_of(split))
        shards, masks = images.as_shards(catalog.labels, self.open_shards(images.shards)), None
        if config.targets.kind == "mask":
            places = {name.removeprefix("mask_"): rows.more[name] for name in MASKS}
            masks_of_images = replace(shards, records=shards.records._replace(**places))
            shards = replace(shards, masks=images.check_extents(masks_of_images))
            masks = self._mask_names(rows)
        extra = zip(self.about.columns.extra, _extra(self.about.columns), strict=True)
        return replace(catalog, masks=masks, values={name: rows.more[column] for name, column in extra}), shards

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

    def _rows(self, images: ScannedRows) -> Rows:
        if not images.rows.names:
            raise ConfigError(
                f"the tar shards in {images.shards[0][0].parent} hold no image with a name that ends in "
                f"{', '.join(SUFFIXES)}, but {', '.join(images.rows.ledger.texts) or 'nothing'}"
            )
        return images.rows._replace(column="box_labels" if self.config.label_source == "object" else "label")


def scan_tar(path: AnyPath, size: int, columns: Columns, ledger: Ledger, turn: bool = False) -> Rows:
    """Returns the images of a tar file, in its order; counts in `ledger` what is not used. `turn` is as of size_of.

    Raises OSError, or ValueError if it is no tar file, a member or a header is damaged, or the file was cut off.
    """
    images, stated, masks = list[Member](), list[Notes](), list[Member]()
    with open_file(path) as file:
        endings, members = (*NOTES, mask_ending(columns)), tar_members(file, 0, size, ledger)
        for image, notes in samples(members, endings, ledger, image_endings(columns)):
            images.append(image)
            stated.append(read_notes(file, image, notes, columns))
            masks.append(notes.get(endings[-1], NO_MASK))
        labels, boxes, box_labels, sizes, extra = zip(*stated, strict=True) if stated else [()] * len(Notes._fields)
        more = dict(zip(MASKS, np.array([mask[1:3] for mask in masks], np.int64).reshape(-1, 2).T, strict=True))
        for number, name in enumerate(_extra(columns)):
            more[name] = np.empty(len(images), object)
            more[name][:] = [values[number] for values in extra]
        objects = list(zip(range(len(images)), boxes, box_labels, strict=True))
        rows = rows_of(path, images, labels, objects, np.array(sizes, np.float32).reshape(-1, 2), more)
        return rows.with_sizes(lambda items: [size_of(file, images[item], turn) for item in items])


def samples(
    members: Iterable[Member], endings: Collection[str], ledger: Ledger, images: Collection[str] = IMAGES
) -> Iterator[tuple[Member, dict[str, Member]]]:
    """Yields the image of each sample that has one, and its members with one of the `endings`, by these.

    An image has one of the endings `images`. Counts in `ledger` all other members. Raises ValueError if samples that
    follow each other have one name and other members, a sample has several images, or its members lie apart.
    """
    parts = dict[bool, set[str]]({False: set(), True: set()})  # names of samples with an image alone, and without one
    shown = (member for member in members if not _is_hidden(member, ledger))
    for key, members_of_key in groupby(shown, lambda member: split_name(member.name)[0]):
        for sample in _of_one_name(key, list(members_of_key)):
            image = _image_of(key, sample, images)
            if image is None:
                ledger.add("samples without an image", key)
            # Only members that are read make a sample of a name.
            if (image is None) is bool(sample.keys() & {*endings}):
                parts[image is None].add(key)
            for ending, member in sample.items():
                if ending not in endings and member is not image:
                    ledger.add(f".{ending}" if ending else "names without an ending", member.name)
            if image is not None:
                yield image, {ending: member for ending, member in sample.items() if ending in endings}
    for key in sorted(parts[False] & parts[True]):
        raise ValueError(
            f"the members of the sample {key} lie apart from each other, and a reader takes them for two samples: "
            "write it again with the members of a sample one after the other, e.g. with tar --sort=name"
        )


def _image_of(key: str, sample: Mapping[str, Member], images: Collection[str]) -> Member | None:
    endings = [ending for ending in sample if ending in images]
    if len(endings) > 1:
        raise ValueError(
            f"the sample {key} has several images, {' and '.join(f'.{ending}' for ending in endings)}: set "
            f'data.source.columns.bytes to the ending of the one to use, e.g. "{endings[0]}"'
        )
    return next((sample[ending] for ending in endings), None)


def _is_hidden(member: Member, ledger: Ledger) -> bool:
    hidden = member.name.rpartition("/")[2].startswith(".")
    if hidden:
        ledger.add("names that begin with a dot", member.name)
    return hidden


def split_name(name: str) -> tuple[str, str]:
    """Returns a member's name up to the first dot of its base name, and the rest, in lower case."""
    folder, slash, base = name.rpartition("/")
    stem, _, ending = base.partition(".")
    return f"{folder}{slash}{stem}", ending.lower()


def _of_one_name(key: str, members: list[Member]) -> Iterator[dict[str, Member]]:
    """Yields the members of each sample by ending; several samples of one name have the same endings in one order."""
    endings = [split_name(member.name)[1] for member in members]
    length = next((number for number, ending in enumerate(endings) if ending in endings[:number]), len(endings))
    if endings != endings[:length] * (len(endings) // length):
        raise ValueError(
            f"several samples in a row are named {key}, and it is not clear which of the members "
            f"{', '.join(f'.{ending}' for ending in endings[:6])} belong together: give each sample a name of its own"
        )
    for start in range(0, len(members), length):
        yield dict(zip(endings[:length], members[start : start + length], strict=True))


def read_notes(file: IO[bytes], image: Member, notes: Mapping[str, Member], columns: Columns) -> Notes:
    """Reads the members next to an image; raises ValueError if they cannot be used, or two of them have boxes."""
    if UNUSABLE.search(image.name):
        raise ValueError(f"the name {image.name!a} {fault(image.name)}: rename it")
    stated = dict[str, Notes]()
    for ending, member in notes.items():
        if ending == "xml":
            objects = parse_annotation(read_member(file, member), member.name)
            stated[ending] = Notes(None, objects.boxes, list(map(label_text, objects.names)), objects.size)
        elif ending in ("cls", "json"):
            try:
                if ending == "cls":
                    stated[ending] = Notes(label_text(read_member(file, member)))
                else:
                    stated[ending] = _of_json(read_member(file, member), columns, image.name)
            except (ValueError, TypeError, AttributeError) as error:
                raise ValueError(f"{member.name}: {error}") from error
    with_boxes = [ending for ending, part in stated.items() if len(part.boxes)]
    remedy = "take one of them out, or set data.source.columns.boxes to a key that no .json has"
    boxed = stated.get(only(with_boxes, "boxes", remedy) or "", Notes())
    count = len(boxed.boxes)
    if len(boxed.box_labels) != count:
        raise ValueError(f"{image.name} has {counted(len(boxed.box_labels), 'label')} for {counted(count, 'box')}")
    texts = {part.label for part in stated.values() if part.label}
    if len(texts) > 1:
        raise ValueError(
            f'{image.name} has the label "{stated["cls"].label}" in its .cls and "{stated["json"].label}" in its '
            ".json: make them the same, or set data.source.columns.label to a key that no .json has"
        )
    extra = stated["json"].extra if "json" in stated else [None] * len(columns.extra)
    return boxed._replace(label=only(texts, "the label"), extra=extra)


def _of_json(contents: bytes, columns: Columns, image: str) -> Notes:
    """Returns what a .json states about an image; raises ValueError, TypeError or AttributeError."""
    annotation = json.loads(contents)
    label, size = _at(annotation, columns.label), [1.0, 1.0]
    extra = [_at(annotation, key) for key in columns.extra.values()]
    tags = list(map(label_text, label)) if isinstance(label, list) else None
    if tags is not None and None in tags:
        raise ValueError(f"received {json.dumps(label)[:80]}; accepted: a list of labels, none empty")
    text = label_text(label) if tags is None else None
    boxes = as_edges(boxes_of(_at(annotation, columns.boxes)), columns.box_format)
    labels = list(map(label_text, _at(annotation, columns.box_labels) or [])) or [None] * len(boxes)
    if in_pixels(boxes, columns.box_unit, lambda _: image):
        size = [float(annotation.get(side) or 0) for side in ("height", "width")]
    if tags is not None and not len(boxes):
        boxes, labels = np.repeat(WHOLE_IMAGE, len(tags), axis=0), tags
    "".join(map(str, (text, *labels, *extra))).encode()  # raises if JSON's escapes make it no UTF-8
    return Notes(text, boxes, labels, size, extra)


def _extra(columns: Columns) -> list[str]:
    """Returns the names of the extra columns in a scan: a user's own may be none that a file can have."""
    return [f"extra{number}" for number in range(len(columns.extra))]


def image_endings(columns: Columns) -> Collection[str]:
    """Returns the endings that the names of images may have."""
    is_default = columns.bytes == Columns.model_fields["bytes"].default
    return IMAGES if is_default else (columns.bytes.lower(),)


def mask_ending(columns: Columns) -> str:
    """Returns the ending of the names of masks."""
    return f"{columns.mask.lower()}.png"


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
    wrong = next((item for item, other in enumerate(kinds) if other not in ("", kind) or other == "neither"), None)
    if wrong is not None:
        accepted = "a number, a list of numbers or a text" if kind == "neither" else f"{kind}, as in {origin(first)}"
        raise ConfigError(
            f'{origin(wrong)}: its .json has {json.dumps(values[wrong])[:80]} as "{key}", a column of '
            f"data.source.columns.extra; accepted: {accepted}"
        )
    if kind == "a text":
        return np.array([value or "" for value in values], object)
    length = len(values[first]) if isinstance(values[first], list) else 0
    nothing: Any = [np.nan] * length if length else np.nan
    numbers = [nothing if value is None else value for value in values]
    flat = [number for value in values for number in (value if isinstance(value, list) else [value])]
    whole = all(isinstance(number, int) and abs(number) <= MAX_WHOLE for number in flat)
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
        return f"a list of {counted(len(value), 'number')}"
    return "neither"


def _is_number(value: Any) -> bool:
    return isinstance(value, float) or (isinstance(value, int) and abs(value) < MAX_FLOAT)
