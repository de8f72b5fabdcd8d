"""Images with the labels and boxes that a source's files state, classes still as texts; formats and units of boxes."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from tfpipe.data.annotations.cleaning import sizes_of
from tfpipe.data.annotations.objects import MAX_EDGE_PX, TOLERANCE
from tfpipe.data.catalog.paths import FileList
from tfpipe.data.catalog.table import StoredTable, paths_table, table_paths
from tfpipe.data.catalog.types import TextColumn
from tfpipe.errors import ConfigError, TfpipeError
from tfpipe.util.ledger import Ledger
from tfpipe.util.progress import progress

# Images whose sizes are read by one call, and the calls at once: they wait for storage.
SIZES_TOGETHER, SIZE_CALLS = 64, 16
# Labels that are whole numbers, as labels.label_text writes them.
NUMBER = re.compile(r"0|[1-9]\d{0,99}", re.ASCII)


class Texts(NamedTuple):
    """Texts of which many are equal, such as labels."""

    numbers: np.ndarray  # int32 [n]: index in `names`; -1 for no text
    names: list[str]  # the distinct texts

    @classmethod
    def of(cls, texts: Iterable[str | None]) -> "Texts":
        """Makes it of n texts; None stands for none."""
        names: dict[str, int] = {}
        numbers = [-1 if text is None else names.setdefault(text, len(names)) for text in texts]
        return cls(np.array(numbers, np.int32), list(names))

    @classmethod
    def concat(cls, parts: "Sequence[Texts]") -> "Texts":
        """Concatenates texts."""
        names = list(dict.fromkeys(chain.from_iterable(part.names for part in parts)))
        numbers = {name: number for number, name in enumerate(names)}
        return cls(np.concatenate([part.values(numbers) for part in parts]), names)

    def text(self, item: int) -> str | None:
        """Returns a text by its place."""
        number = int(self.numbers[item])
        return None if number < 0 else self.names[number]

    def at(self, items: np.ndarray) -> "Texts":
        """Returns the texts at some places."""
        return Texts(self.numbers[items], self.names)

    def values(self, numbers: Mapping[str, int]) -> np.ndarray:
        """Returns int32 [n]: the number of each text; -1 for none and for those without a number."""
        return np.array([*(numbers.get(name, -1) for name in self.names), -1], np.int32)[self.numbers]

    def distinct(self, which: np.ndarray | slice = slice(None)) -> list[str]:
        """Returns the texts that occur, or occur at some places, sorted."""
        return sorted(self.names[number] for number in np.unique(self.numbers[which]).tolist() if number >= 0)


class Rows(NamedTuple):
    """The images of a table, with everything that it says about them."""

    names: Sequence[str]  # [n]: path of each image, or its name if the table holds its bytes
    labels: Texts  # [n]: name or number of each image's class; none if it has none, or several
    box_images: np.ndarray  # int64 [k]: number of each box's image
    boxes: np.ndarray  # float32 [k, 4]: ymin, xmin, ymax, xmax
    box_labels: Texts  # [k]: name or number of each box's class; none for its image's
    sizes: np.ndarray | None  # float32 [n, 2]: heights and widths, NaN if not stated; None if boxes are in [0, 1]
    files: list[str]  # the table's files
    file: np.ndarray  # int32 [n]: number of each image's file
    row: np.ndarray | None = None  # int64 [n]: its row there, from 0; None if images have no rows
    classes: list[str] | None = None  # names in the order of their numbers, if the table has them
    weights: np.ndarray | None = None  # float64 [n]: how often each image comes, relative to the others
    column: Literal["label", "box_labels"] = "label"  # key in data.source.columns of the labels that count
    # More columns [n, ...], by name, e.g. where each image's bytes are. Texts are object [n], once stored a TextColumn.
    more: Mapping[str, Any] = {}
    left_out: Mapping[str, tuple[int, str]] = {}  # counts of a Ledger

    @property
    def ledger(self) -> Ledger:
        """The counts of `left_out`."""
        return Ledger(self.left_out)

    @property
    def annotated(self) -> np.ndarray:
        """bool [n]: the images that have boxes."""
        return np.bincount(self.box_images, minlength=len(self.names)) > 0

    def with_sizes(self, real: Callable[[list[int]], Sequence[Sequence[float]]]) -> "Rows":
        """Returns the images with a size for each that has boxes in pixels but no size: by its header, from `real`."""
        if self.sizes is None:
            return self
        return self._replace(sizes=sizes_of(self.sizes, lambda items: real(items.tolist()), self.annotated))

    def read_sizes(
        self, items: Sequence[int], real: Callable[[list[int]], Sequence[Sequence[float]]], *, show: bool
    ) -> list[Sequence[float]]:
        """Returns heights and widths of images as `real` reads them, some at a time in several threads.

        Raises ConfigError if one cannot be read; the message names its row.
        """

        def read(part: list[int]) -> Sequence[Sequence[float]]:
            try:
                return real(part)
            except (OSError, ValueError, TfpipeError) as error:
                if len(part) > 1:
                    return [size for item in part for size in read([item])]
                raise ConfigError(
                    f"{self.origin(part[0])} has boxes in pixels but no width and height, and its size cannot be read "
                    f"from the image: {error}"
                ) from error

        parts = [[*items[start : start + SIZES_TOGETHER]] for start in range(0, len(items), SIZES_TOGETHER)]
        with ThreadPoolExecutor(SIZE_CALLS) as pool:
            return [*chain.from_iterable(progress(pool.map(read, parts), len(parts), "reading sizes", "part", show))]

    def with_owners(self, owners: np.ndarray) -> "Rows":
        """Returns the images with each box as one of another image (int64 [k]), sorted by it; without boxes of -1."""
        order = np.argsort(owners, kind="stable")[np.count_nonzero(owners < 0) :]
        return self._replace(box_images=owners[order], boxes=self.boxes[order], box_labels=self.box_labels.at(order))

    def select(self, items: np.ndarray) -> "Rows":
        """Returns the images `items` (int64 [k], each at most once), in this order."""
        number = np.full(len(self.names), -1)
        number[items] = np.arange(len(items))
        names = list(self.names)
        return self.with_owners(number[self.box_images])._replace(
            names=FileList.of(names[item] for item in items.tolist()),
            labels=self.labels.at(items),
            sizes=None if self.sizes is None else self.sizes[items],
            file=self.file[items],
            row=None if self.row is None else self.row[items],
            weights=None if self.weights is None else self.weights[items],
            more={name: column[items] for name, column in self.more.items()},
        )

    def rows_in(self, file: Path) -> np.ndarray:
        """Returns the rows of a file that are images, int64 [k], in their order."""
        number = self.files.index(str(file)) if str(file) in self.files else -1
        return np.zeros(0, np.int64) if self.row is None else self.row[self.file == number]

    def origin(self, item: int) -> str:
        """Returns the place and the name of an image, for a message."""
        row = "" if self.row is None else f"row {self.row[item]} of "
        return f"{row}{self.files[self.file[item]]}, {self.names[item]}"

    @classmethod
    def concat(cls, parts: "Sequence[Rows]") -> "Rows":
        """Concatenates the rows of several files; sizes, rows and weights must be in all of them or in none."""
        starts, ledger = np.cumsum([0, *(len(part.names) for part in parts)]), Ledger()
        for part in parts:
            ledger.update(part.ledger)
        files = np.cumsum([0, *(len(part.files) for part in parts)])

        def all_of(name: str) -> Any:
            columns = [getattr(part, name) for part in parts]
            return None if any(column is None for column in columns) else np.concatenate(columns)

        return cls(
            names=FileList.of(chain.from_iterable(part.names for part in parts)),
            labels=Texts.concat([part.labels for part in parts]),
            box_images=np.concatenate([part.box_images + start for part, start in zip(parts, starts, strict=False)]),
            boxes=all_of("boxes"),
            box_labels=Texts.concat([part.box_labels for part in parts]),
            sizes=all_of("sizes"),
            files=[file for part in parts for file in part.files],
            file=np.concatenate([part.file + start for part, start in zip(parts, files, strict=False)]),
            row=all_of("row"),
            classes=None if any(part.classes is None for part in parts) else parts[0].classes,
            weights=all_of("weights"),
            column=parts[0].column,
            more={name: np.concatenate([part.more[name] for part in parts]) for name in parts[0].more},
            left_out=ledger.counts,
        )

    def table(self) -> StoredTable:
        """Returns a table to be stored: names, labels, boxes, sizes and numbers of files of the images, and `more`."""
        assert self.sizes is not None, "a scan has sizes"
        paths = paths_table(FileList.of(self.names))
        columns = {"box_images": self.box_images, "boxes": self.boxes, "sizes": self.sizes, "file": self.file}
        columns |= {"labels": self.labels.numbers, "box_labels": self.box_labels.numbers}
        texts = {name for name, column in self.more.items() if column.dtype == object}
        for name, column in self.more.items():
            parts = TextColumn.of(column.tolist())._asdict() if name in texts else {}
            columns |= {f"{name}.{part}": array for part, array in parts.items()} or {name: column}
        values = {"labels": self.labels.names, "box_labels": self.box_labels.names, "texts": sorted(texts)}
        values |= {"more": [name for name in self.more if name not in texts]}
        return StoredTable({**paths.values, **values}, {**paths.columns, **columns})

    @classmethod
    def of_table(cls, table: StoredTable, files: list[str]) -> "Rows":
        """Returns the rows of a stored table, which were read from `files`."""
        images, boxes, sizes, file = (table.columns[name] for name in ("box_images", "boxes", "sizes", "file"))
        labels, box_labels = (Texts(table.columns[name], table.values[name]) for name in ("labels", "box_labels"))
        more: dict[str, Any] = {name: table.columns[name] for name in table.values["more"]}
        for name in table.values["texts"]:
            more[name] = TextColumn(*(table.columns[f"{name}.{part}"] for part in TextColumn._fields))
        return cls(table_paths(table), labels, images, boxes, box_labels, sizes, files, file, more=more)


def as_edges(boxes: np.ndarray, form: str) -> np.ndarray:
    """Returns boxes of a format as ymin, xmin, ymax, xmax, float32 [k, 4]."""
    if form == "yxyx":
        return boxes
    ends = boxes[:, 2:] + boxes[:, :2] if form == "xywh" else boxes[:, 2:]
    return np.concatenate([boxes[:, 1::-1], ends[:, ::-1]], axis=1)


def boxes_of(value: Any) -> np.ndarray:
    """Returns boxes as JSON states them, float32 [k, 4]: a list of lists of 4 numbers, or 4 numbers for a single box.

    None stands for no box. Raises ValueError if it is anything else.
    """
    boxes = [] if value is None else [value] if is_box(value) else value
    if not isinstance(boxes, list) or not all(map(is_box, boxes)):
        raise ValueError(f"received {str(value)[:80]} as boxes; accepted: a list of boxes of 4 numbers each")
    return np.array(boxes, np.float32).reshape(-1, 4)


def is_box(value: Any) -> bool:
    """Returns whether a value of JSON is a list of 4 finite numbers."""
    is_list = isinstance(value, list) and len(value) == 4
    return is_list and all(type(edge) in (int, float) and abs(edge) < MAX_EDGE_PX for edge in value)


def in_pixels(boxes: np.ndarray, unit: Literal["auto", "relative", "pixels"], name: Callable[[int], str]) -> bool:
    """Returns whether boxes (float32 [k, 4]) are in pixels, not relative to the image's size.

    `unit` decides unless it is "auto": then boxes are relative if none reaches beyond 1. A box within the first pixel
    whose edges are whole numbers may be in either unit. Raises ValueError if some boxes are surely in pixels and some
    surely relative; `name` gives the name of a box's image.
    """
    if unit != "auto":
        return unit == "pixels"
    beyond = boxes.max(axis=1, initial=0) > 1 + TOLERANCE
    if not beyond.any():
        return False
    has_area = (boxes[:, :2] != boxes[:, 2:]).all(axis=1)
    relative = ~beyond & has_area & (boxes != np.round(boxes)).any(axis=1)
    if relative.any():
        one, other = int(np.argmax(relative)), int(np.argmax(beyond))
        raise ValueError(
            f"boxes are relative to the image's size, e.g. {boxes[one].tolist()} of {name(one)}, and in pixels, e.g. "
            f"{boxes[other].tolist()} of {name(other)} (ymin, xmin, ymax, xmax): correct them, or set "
            'data.source.columns.box_unit to "relative" or "pixels"'
        )
    return True
