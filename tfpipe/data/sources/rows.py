"""Labels and boxes as tables and tar shards state them, by name, and their conversion to class numbers and targets."""

from pathlib import Path
from typing import NamedTuple

import numpy as np

from tfpipe.config import DataConfig
from tfpipe.data.annotations.cleaning import BY_OBJECT, Annotated, Boxes, targets
from tfpipe.data.catalog.labels import class_table
from tfpipe.data.catalog.paths import FileList
from tfpipe.errors import ConfigError


class Rows(NamedTuple):
    """The images of a table, with everything that it says about them."""

    names: list[str]  # [n]: path of each image, or its name if the table holds its bytes
    labels: list[str | None]  # [n]: name or number of each image's class; None if it has none, or several
    box_images: np.ndarray  # int64 [k]: number of each box's image
    boxes: np.ndarray  # float32 [k, 4]: ymin, xmin, ymax, xmax
    box_labels: list[str | None]  # [k]: name or number of each box's class; None for its image's
    sizes: np.ndarray | None  # float32 [n, 2]: heights and widths if boxes are in pixels; None if in [0, 1]
    classes: list[str] | None = None  # names in the order of their numbers, if the table has them
    weights: np.ndarray | None = None  # float64 [n]: how often each image comes, relative to the others

    @property
    def annotated(self) -> np.ndarray:
        """bool [n]: the images that have boxes."""
        return np.bincount(self.box_images, minlength=len(self.names)) > 0


def as_edges(boxes: np.ndarray, form: str) -> np.ndarray:
    """Returns boxes of a format as ymin, xmin, ymax, xmax, float32 [k, 4]."""
    if form == "yxyx":
        return boxes
    ends = boxes[:, 2:] + boxes[:, :2] if form == "xywh" else boxes[:, 2:]
    return np.concatenate([boxes[:, 1::-1], ends[:, ::-1]], axis=1)


def in_unit(rows: Rows, place: Path) -> Rows:
    """Decides whether boxes are in pixels; raises ConfigError if they are, but the images' sizes are not known."""
    if rows.boxes.max(initial=0) <= 1:
        return rows._replace(sizes=None)
    if rows.sizes is None:
        raise ConfigError(
            f"{place}: boxes beyond 1 are in pixels, which needs the columns width and height; without them boxes "
            "must be relative to the image's size, in [0, 1]"
        )
    return rows


def classes_of(config: DataConfig, rows: Rows, place: str) -> tuple[str, ...]:
    if config.classes is not None:
        return class_table(config, FileList.of([]))
    if rows.classes is not None:
        return tuple(rows.classes)
    texts = set(rows.box_labels if config.label_source == "object" else rows.labels)
    names = sorted(text for text in texts if text is not None)
    if names and all(name.isdecimal() and str(int(name)) == name for name in names):
        names = [str(number) for number in range(max(map(int, names)) + 1)]
    if not names:
        raise ConfigError(
            f'{place} has no labels: set data.source.columns.label, or with data.label_source "object" '
            "data.source.columns.box_labels"
        )
    return tuple(names)


def targets_of(config: DataConfig, rows: Rows, classes: tuple[str, ...], place: str) -> tuple[np.ndarray, Boxes]:
    """Returns the images' labels, int32 [n], and the boxes to crop."""
    numbers = {str(number): number for number in range(len(classes))}
    numbers |= {name: number for number, name in enumerate(classes)}
    if config.label_source == "object":
        labels = np.full(len(rows.names), BY_OBJECT, np.int32)
    else:
        labels = np.array([numbers.get(label or "", -1) for label in rows.labels], np.int32)
        _check_labels(rows, labels, classes, place)
    own = np.array([numbers.get(label or "", -1) for label in rows.box_labels], np.int32)
    unnamed = np.array([label is None for label in rows.box_labels], bool)
    own[unnamed] = labels[rows.box_images[unnamed]]
    sizes = np.ones((len(rows.names), 2), np.float32) if rows.sizes is None else np.maximum(rows.sizes, 1)
    return labels, targets(Annotated(rows.box_images, rows.boxes, own), labels, sizes)


def _check_labels(rows: Rows, labels: np.ndarray, classes: tuple[str, ...], place: str) -> None:
    wrong = np.flatnonzero(labels < 0)
    if not wrong.size:
        return
    first = int(wrong[0])
    label = rows.labels[first]
    about = 'no label, or several by its boxes: set data.label_source to "object"'
    if label is not None:
        about = f'the label "{label}", which is none of {len(classes)} classes ({", ".join(classes[:3])} ...)'
    raise ConfigError(
        f"{place}: {wrong.size} of {len(labels)} images have no class, e.g. {rows.names[first]} has {about}"
    )
