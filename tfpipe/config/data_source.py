"""The section `data.source`: data that no filelist names."""

import json
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from tfpipe.config.section import Args, ConfigPath, Form, Section, Seed, Url
from tfpipe.config.targets import KINDS as TARGETS

# Sources that come with tfpipe, besides filelists.
KINDS = ("folders", "table", "coco", "archive", "webdataset", "packed", "tfrecord")
TABLES = ("table", "coco")
# Kinds whose data may lie behind URLs.
REMOTE = ("packed", "webdataset", "tfrecord", "folders", *TABLES)
# Kinds that each key is for, besides kinds of the user's own; `path` is for all.
KEYS = {
    "test_path": ("folders", *TABLES, "archive", "webdataset", "tfrecord"),
    "test_share": ("folders", *TABLES),
    "test_seed": ("folders", *TABLES),
    "images": TABLES,
    "test_images": TABLES,
    "columns": ("table", "webdataset"),
    "where": ("table",),
}


# A text, number or truth value of a column, or several.
Value = bool | int | float | str
Values = Value | Annotated[list[Value], Field(min_length=1)]
# Names of labels, which no further column may have.
RESERVED = frozenset(TARGETS)


def _name_columns(columns: Any) -> Any:
    """Returns a list of columns as a dictionary, in which each has its own name."""
    if isinstance(columns, list) and all(isinstance(name, str) for name in columns):
        return {name: name for name in columns}
    return columns


def _check_names(columns: dict[str, str]) -> dict[str, str]:
    for name in RESERVED & columns.keys():
        raise ValueError(f'received "{name}", the name of the labels themselves: give the column another name')
    return columns


def _check_where(where: dict[str, Any]) -> dict[str, Any]:
    train, test = ([select_values(values, split) for values in where.values()] for split in ("train", "test"))
    if train == test and divides(where):
        text = json.dumps(where)
        raise ValueError(f"received {text}, the same for training and test data; accepted: values without splits")
    return where


def select_values(values: Any, split: str) -> Any:
    """Returns the values that `where` names of a column for a split, "train" or "test"."""
    return values[split] if isinstance(values, dict) else values


def divides(where: dict[str, Any]) -> bool:
    """Returns whether `where` names other values for training data than for test data."""
    return any(isinstance(values, dict) for values in where.values())


def _check_kind(kind: str) -> str:
    if ":" not in kind and kind not in KINDS:
        accepted = ", ".join(f'"{kind}"' for kind in KINDS)
        raise ValueError(f'received "{kind}"; accepted: {accepted} or "package.module:Class"')
    return kind


class Columns(Section):
    """The columns of a table, "image.path" names a field of one; and the keys in the .json files of tar shards."""

    path: str = "path"
    """Path of the image's file, absolute, a URL, or relative to `images`."""
    path_format: Annotated[str, Field(pattern=r"^[^{}]*\{\}[^{}]*$")] | None = None
    """Path that a value of `path` makes in the place of {}: "train/{}.jpg" for the ids of Open Images and Kaggle. null:
    the values are paths. Only for tables."""
    bytes: str = "image"
    """Contents of the image's file: bytes, a list of uint8, or {bytes, path} as Hugging Face's datasets writes it. A
    column of texts has paths. Of tar shards the ending of its name, "png" or "left.jpg"; "image": that of any image."""
    label: str = "label"
    """Name or number of the image's class; with one row a box, of the box's."""
    boxes: str = "boxes"
    """List of the image's boxes, each of four numbers. Without it, columns xmin, ymin, xmax and ymax make a table with
    one row a box."""
    weight: str | None = None
    """Number of at least 0: how often the image comes in training, relative to the others. With one row a box, all
    rows of an image have the same. null: all alike. Only for tables."""
    box_labels: str = "box_labels"
    """List of names or numbers of the boxes' classes, for data.label_source "object"."""
    mask: str = "mask"
    """Path of the image's mask, a PNG, for data.targets "mask"; as with `path`, relative to `images`. Of tar shards the
    ending of its name before .png: the mask of 7.jpg is 7.mask.png."""
    extra: Annotated[
        dict[str, str],
        Form('a list of columns, or {"name": "column"}'),
        BeforeValidator(_name_columns),
        AfterValidator(_check_names),
    ] = {}
    """Further columns that come with each crop: a list, or a dictionary of the names that they have there, {"age":
    "metadata.age"}. The labels are then a dictionary of these and of "label", "labels", "number", "boxes" or "mask".
    Numbers, lists of numbers of one length, and texts. Of tar shards they are keys in the .json files."""
    box_format: Literal["xyxy", "xywh", "yxyx"] = "xyxy"
    """Order of a box's numbers: xmin, ymin, xmax, ymax; xmin, ymin, width, height; or ymin, xmin, ymax, xmax."""
    box_unit: Literal["auto", "relative", "pixels"] = "auto"
    """Unit of a box's numbers: "relative" to the image's size, in [0, 1], or "pixels". The size is that of the columns
    width and height or, without these, the image's own. "auto": relative if no number of the table, or of an image's
    .json, is above 1.01, else pixels; boxes in both units are refused."""

    @property
    def of_paths(self) -> tuple[str, ...]:
        """The columns that may have the paths of images; the first one of texts has them."""
        return self.path, f"{self.bytes}.path", self.bytes


class SourceConfig(Section):
    """Data that is not named by filelists."""

    kind: Annotated[str, AfterValidator(_check_kind)]
    """"folders": a folder of class folders, CLASS/*.jpg. "table": CSV, JSON lines, Parquet or Arrow, with one row an
    image or one a box. "coco": COCO's instances JSON. "archive": tar or zip files of class folders, or a tar file of
    tar files, as they were downloaded. "webdataset": tar shards. "packed": the output of `tfpipe pack`. "tfrecord":
    ImageNet's TFRecords as written by the scripts of TensorFlow's models and of TPUs, train-00000-of-01024 and
    validation-00000-of-00128. "package.module:Class": a kind of your own, a subclass of tfpipe.Source, from sys.path or
    the current directory."""
    path: ConfigPath | Url | None = None
    """Folder of the data, a URL too but with "archive" (s3://, gs://, https://, hf:// and all schemes that fsspec has;
    with "folders" those of object stores, which list folders); with "coco" a file, with "table", "archive" and
    "webdataset" a file or a folder of them, with "tfrecord" a folder, or behind URLs a file; a kind of your own may do
    without. The files of a folder are split by the words in their names, in any case: those with train or training are
    the training data, or if there are none, those with the name of no split."""
    test_path: ConfigPath | Url | None = None
    """The test data if it is elsewhere; null: the files of `path`, or with "folders" and "archive" the folders in it,
    with the word val, valid or validation in their names, else those with test or testing, if there are any."""
    test_share: Annotated[float, Field(gt=0, lt=1)] | None = None
    """With "folders", tables and data in memory: share of each class's images that becomes test data and is left out of
    training; always the same images for the same names and `test_seed`."""
    test_seed: Seed = 0
    """Seed of `test_share`; data.seed does not change it."""
    images: ConfigPath | Url | None = None
    """Folder or URL that relative paths in a table are relative to; null: the table's own folder."""
    test_images: ConfigPath | Url | None = None
    """The same of the test data; null: `images`."""
    columns: Columns = Columns()
    """Names of a table's columns."""
    where: Annotated[
        dict[str, Values | Annotated[dict[Literal["train", "test"], Values], Field(min_length=2)]],
        Form('a list of values, not empty, or {"train": VALUES, "test": VALUES}'),
        AfterValidator(_check_where),
    ] = {}
    """Rows of a table that are used: those whose column has the value, or one of the values, {"quality": [1, 2]}. A
    column that tells the splits has values for each, {"split": {"train": "train", "test": ["val", "test"]}}: without
    test data of another file, `path` has both. Rows of neither split are counted as not used. {}: all rows."""
    args: Args = {}
    """Settings of a kind of your own, which it finds in config.source.args."""

    def where_for(self, split: str) -> dict[str, Any]:
        """Returns the values that `where` names for a split, "train" or "test", by column."""
        return {name: select_values(values, split) for name, values in self.where.items()}

    @property
    def divides_rows(self) -> bool:
        """Whether training and test data are told apart by their rows, where no file is test data."""
        return self.test_share is not None or divides(self.where)
