"""Settings that contradict each other: a row for each, and one function that walks the rows."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from pydantic_core import PydanticCustomError

from tfpipe.config.by_epoch import by_epoch
from tfpipe.config.data_source import KEYS, KINDS, REMOTE, TABLES, divides
from tfpipe.config.messages import CONFLICT, quote
from tfpipe.config.section import Section
from tfpipe.config.targets import IN_PLACE, OF_OBJECTS, PLACED
from tfpipe.config.targets import KINDS as TARGETS

SET: Any = object()
"""Any value but the default."""


class Conflict(NamedTuple):
    """Two settings that cannot be used together: keys, e.g. views[].crop, and what is refused of their values.

    That is a value, a tuple of values, SET, or a function that returns true for it. `where`, a third key and its
    values, limits the row.
    """

    key: str
    refused: Any
    other: str
    other_refused: Any
    reason: str
    remedy: str
    where: tuple[str, Any] | None = None


class Setting(NamedTuple):
    """A key that a config has, and its value."""

    name: str
    value: Any
    is_set: bool
    """Whether the value is not the default."""

    def __str__(self) -> str:
        return f"{self.name} {quote(_plain(self.value))}"


def check(messages: Iterable[str]) -> None:
    """Raises the error that stands for the messages in a validation, unless there is none."""
    if text := "\n".join(messages):
        raise PydanticCustomError(CONFLICT, "{text}", {"text": text})


def conflicts(section: Any, rows: Iterable[Conflict], name: str = "") -> Iterator[str]:
    """Yields a message for each row that a section fulfils; `name` is before its keys, e.g. "data."."""

    def find(key: str, refused: Any) -> Setting | None:
        return next((one for one in settings(section, key, name) if _holds(one, refused)), None)

    for row in rows:
        one, other = find(row.key, row.refused), find(row.other, row.other_refused)
        if one and other and (row.where is None or find(*row.where)):
            yield f"{one} and {other}: {row.reason}: {row.remedy}"


def settings(node: Any, path: str, name: str = "") -> Iterator[Setting]:
    """Yields the settings at `path` below a section or a dictionary; "[]" after a key stands for a list's elements."""
    key, _, rest = path.partition(".")
    key, many = key.removesuffix("[]"), key.endswith("[]")
    if node is None or (isinstance(node, Mapping) and key not in node):
        return
    value = node[key] if isinstance(node, Mapping) else getattr(node, key)
    is_set = isinstance(node, Mapping) or value != type(node).model_fields[key].default
    parts = [(f"{name}{key}[{number}]", part) for number, part in enumerate(value)] if many else [(name + key, value)]
    for full, part in parts:
        if rest:
            yield from settings(part, rest, f"{full}.")
        else:
            yield Setting(full, part, is_set)


def _holds(setting: Setting, refused: Any) -> bool:
    if refused is SET:
        return setting.is_set
    if callable(refused):
        return bool(refused(setting.value))
    return setting.value in (refused if isinstance(refused, tuple) else (refused,))


def _plain(value: Any) -> Any:
    """Returns a value as a config file has it, without defaults."""
    if isinstance(value, Section):
        return value.model_dump(mode="json", exclude_defaults=True)
    return [_plain(part) for part in value] if isinstance(value, list) else getattr(value, "by_epoch", value)


def _but(*kinds: str) -> tuple[str, ...]:
    """Returns the other kinds of sources."""
    return tuple(kind for kind in KINDS if kind not in kinds)


def _too_large(channels: int) -> Any:
    return lambda size: size is not None and any(h * w * channels >= 2**29 for _, (h, w) in by_epoch(size))


def _not_for_each(channels: int) -> Any:
    return lambda values: len(values) != channels


_TREES = ("folders", "archive")
_BOXES = tuple(kind for kind in TARGETS if kind not in OF_OBJECTS)
_PLACES = f"use `crop` and `flip`, and steps that leave pixels in their places: {', '.join(sorted(IN_PLACE))}"
_DEVICE = (
    'set dtype to "float32", "float16" or "bfloat16", or normalise on the device, which copies a quarter of the bytes'
)
_LEVEL = 'it is for labels that are the names of folders, of filelists and of the sources "folders" and "archive"'
_LISTED = "it is for images of filelists, and the source says itself what its images hold"
_INDEXED = "`tfpipe index` reads the box file instead of the XMLs, and training needs that index"
_CLASSES = "one crop of an image has objects of several classes"
_WORKERS = "the processes of the service have neither Python nor the memory of this one"
_VIEW = 'give the view "crop": "random_resized", "center" or "full", or set data.crop to one of these'

# Rows of the section `data`, and those of the whole config.
# fmt: off
DATA: tuple[Conflict, ...] = (
    # The source.
    *(Conflict("source", SET, key, SET, "both name the data", "leave one of them out, or null")
      for key in ("train_filelist", "test_filelist")),
    *(Conflict(key, SET, "source.kind", _but(*_TREES), _LISTED, f"leave {key} out, or null")
      for key in ("train_label_file", "test_label_file")),
    *(Conflict(key, SET, "source.kind", _but("archive"), _LISTED, f"leave {key} out, or null")
      for key in ("train_box_file", "test_box_file")),
    *(Conflict(key, SET, "annotations", ("xml", "none"), _INDEXED, f'use "auto" or "index", or leave {key} out')
      for key in ("train_box_file", "test_box_file")),
    Conflict("source.kind", KINDS, "source.path", None, "the path is where the data are", "give it"),
    *(Conflict(key, lambda path: isinstance(path, str), "source.kind", _but(*REMOTE),
               f"URLs are for {', '.join(REMOTE)}", "give a path") for key in ("source.path", "source.test_path")),
    *(Conflict(f"source.{key}", SET, "source.kind", _but(*kinds), f"it is for {', '.join(kinds)}", f"leave {key} out")
      for key, kinds in {**KEYS, "columns.weight": TABLES, "columns.path_format": TABLES}.items()),
    Conflict("source.args", SET, "source.kind", KINDS, 'it is for kinds of your own, "package.module:Class"',
             "leave args out"),
    Conflict("source.test_share", SET, "source.test_path", SET, "the share is of `path`, not of other test data",
             "leave one of them out"),
    Conflict("source.test_share", SET, "source.where", divides, "each says which rows are test data",
             "leave one of them out"),
    # Labels and targets.
    Conflict("class_level", SET, "source.kind", lambda kind: kind not in _TREES, _LEVEL, "leave it out"),
    Conflict("class_level", SET, "label_source", "object", _LEVEL, "leave it out"),
    Conflict("label_source", "object", "annotations", "none", "the labels are in the annotations", "use others"),
    Conflict("label_source", "object", "classes", None, "all ranks and runs must number the classes alike",
             "set classes to a list or a file", ("source", None)),
    *(Conflict("label_source", "object", key, ("center", "full"), _CLASSES, f"use {use}", ("targets.kind", kinds))
      for key, kinds, use in (("crop", _BOXES, '"boxes" or "random_resized"'), ("test_crop", _BOXES, '"boxes"'),
                              ("views[].crop", "label", '"random_resized"'))),
    *(Conflict(f"targets.{key}", SET, "targets.kind", lambda kind: kind != "boxes", 'it is for "boxes"', f"omit {key}")
      for key in ("box_unit", "min_visible", "max_boxes")),
    Conflict("targets.masks", SET, "targets.kind", lambda kind: kind != "mask", 'it is for "mask"', "leave masks out"),
    *(Conflict("targets.kind", OF_OBJECTS, key, "boxes", "an image's boxes stay together, and a crop is of one box",
               'use "full", "center" or "random_resized"') for key in ("crop", "test_crop")),
    Conflict("targets.kind", OF_OBJECTS, "unit", "box", "an image's boxes stay together", 'set unit to "image"'),
    Conflict("targets.kind", OF_OBJECTS, "annotations", "none", "the boxes are in the annotations", "use others"),
    Conflict("targets.kind", PLACED, "augment[].name", lambda name: name not in IN_PLACE,
             "the step moves pixels, and no targets with them", _PLACES),
    Conflict("targets.kind", PLACED, "views", SET, "the targets are of one crop of an image", "set views to []"),
    Conflict("targets.kind", (*PLACED, "none"), "mix", SET, "mix mixes labels, which these lack", "set mix to null"),
    Conflict("targets.kind", "mask", "service", SET, _WORKERS, "set service to null"),
    # Crops.
    Conflict("views[].crop", None, "crop", "boxes", "a view has one window of an image, not one for each box", _VIEW),
    Conflict("views", SET, "mix", SET, "mix mixes single crops", "set mix to null, or views to []"),
    Conflict("views", SET, "crop_image_size", lambda size: len(by_epoch(size)) > 1, "views do not grow",
             "use one size, or set views to []"),
    *(Conflict(key, _too_large(count), "num_channels", count, "a crop has less than 2^29 bytes", "use a smaller size")
      for key in ("crop_image_size", "test_crop_image_size", "views[].size") for count in (1, 3)),
    # Batches.
    Conflict("mix.mixup", None, "mix.cutmix", None, "neither is set",
             'give an alpha, e.g. {"mixup": 0.2, "cutmix": 1}, or set mix to null'),
    *(Conflict("mix.switch_prob", SET, key, None, "it switches between two", "set both, or leave switch_prob out")
      for key in ("mix.mixup", "mix.cutmix")),
    Conflict("mix", SET, "batch_size", lambda size: any(count == 1 for _, count in by_epoch(size)),
             "a crop is mixed with another one of its batch", "use 2 or more, or set mix to null"),
    Conflict("mix", SET, "num_classes", 1, "mix makes shares of classes", "use 2 or more, or set mix to null"),
    Conflict("normalize", SET, "dtype", "uint8", "normalize makes floats", _DEVICE),
    *(Conflict(key, _not_for_each(channels), "num_channels", channels, "each channel has a value", "give one for each")
      for key in ("normalize.mean", "normalize.std") for channels in (1, 3)),
    # Threads and processes.
    *(Conflict("num_parallel_readers", 1, key, "autotune", "1 makes the pipeline serial, without AUTOTUNE",
               f'use "auto", or leave {key} out') for key in ("parallel.read", "parallel.decode")),
    *(Conflict("service", SET, key, refused, _WORKERS, f"{remedy}, or set service to null")
      for key, refused, remedy in (("cache", SET, "set cache to null"),
                                   ("on_error", "skip", 'use "raise"'), ("source", SET, "use filelists"),
                                   ("exif", "apply", 'use "ignore"'))),
)

OTHERS: tuple[Conflict, ...] = (
    Conflict("model.weights", SET, "model.args.weights", SET, "both are what the network starts from", "leave one out"),
    Conflict("lr_schedule.args", SET, "lr_schedule.name", None, "the args are of no schedule",
             'name it, e.g. "CosineDecay", or leave its args out'),
)
# fmt: on
