"""The section `data.source`: data that no filelist names."""

import json
from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from tfpipe.config.section import Args, ConfigPath, Form, Section, Seed, Url

# Sources that come with tfpipe, besides filelists.
KINDS = ("folders", "table", "coco", "archive", "webdataset", "packed", "tfrecord")
TABLES = ("table", "coco")
# Kinds whose data may lie behind URLs.
REMOTE = ("packed", "webdataset", "tfrecord", "folders", *TABLES)
# Kinds that each key is for, besides kinds of the user's own; `path` is for all.
KEYS = {
    "test_path": ("folders", *TABLES, "archive", "webdataset", "tfrecord"),
    "test_share": ("folders",),
    "test_seed": ("folders",),
    "images": TABLES,
    "test_images": TABLES,
    "columns": ("table", "webdataset"),
}


# Names of labels, which no further column may have.
RESERVED = frozenset(("label", "labels", "number", "boxes", "mask"))


def _named(columns: Any) -> Any:
    """Returns a list of columns as a dictionary, in which each has its own name."""
    if isinstance(columns, list) and all(isinstance(name, str) for name in columns):
        return {name: name for name in columns}
    return columns


class Columns(Section):
    """The columns of a table, "image.path" names a field of one; and the keys in the .json files of tar shards."""

    path: str = "path"
    """Path of the image's file, absolute, a URL, or relative to `images`."""
    path_format: Annotated[str, Field(pattern=r"^[^{}]*\{\}[^{}]*$")] | None = None
    """Path that a value of `path` makes in the place of {}: "train/{}.jpg" for the ids of Open Images and Kaggle. null:
    the values are paths. Only for tables."""
    bytes: str = "image"
    """Contents of the image's file: bytes, a list of uint8, or {bytes, path} as Hugging Face's datasets writes it. A
    column of texts has paths."""
    label: str = "label"
    """Name or number of the image's class; with one row a box, of the box's."""
    boxes: str = "boxes"
    """List of the image's boxes, each of four numbers. Without it, columns xmin, ymin, xmax and ymax make a table with
    one row a box."""
    weight: str | None = None
    """Number of at least 0: how often the image comes in training, relative to the others. With one row a box, that of
    the image's first row. null: all alike. Only for tables."""
    box_labels: str = "box_labels"
    """List of names or numbers of the boxes' classes, for data.label_source "object"."""
    mask: str = "mask"
    """Path of the image's mask, a PNG, for data.targets "mask"; as with `path`, relative to `images`. Of tar shards the
    ending of its name before .png: the mask of 7.jpg is 7.mask.png."""
    extra: Annotated[dict[str, str], Form('a list of columns, or {"name": "column"}'), BeforeValidator(_named)] = {}
    """Further columns that come with each crop: a list, or a dictionary of the names that they have there, {"age":
    "metadata.age"}. The labels are then a dictionary of these and of "label", "labels", "number", "boxes" or "mask".
    Numbers, lists of numbers of one length, and texts. Of tar shards they are keys in the .json files."""
    box_format: Literal["xyxy", "xywh", "yxyx"] = "xyxy"
    """Order of a box's numbers: xmin, ymin, xmax, ymax; xmin, ymin, width, height; or ymin, xmin, ymax, xmax."""
    box_unit: Literal["auto", "relative", "pixels"] = "auto"
    """Unit of a box's numbers: "relative" to the image's size, in [0, 1], or "pixels". The size is that of the columns
    width and height or, without these, the image's own. "auto": relative if no number of the table, or of an image's
    .json, is above 1.01, else pixels; boxes in both units are refused."""


class SourceConfig(Section):
    """Data that is not named by filelists."""

    kind: str
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
    """With "folders" and data in memory: share of each class's images that becomes test data and is left out of
    training; always the same images for the same names and `test_seed`."""
    test_seed: Seed = 0
    """Seed of `test_share`; data.seed does not change it."""
    images: ConfigPath | Url | None = None
    """Folder or URL that relative paths in a table are relative to; null: the table's own folder."""
    test_images: ConfigPath | Url | None = None
    """The same of the test data; null: `images`."""
    columns: Columns = Columns()
    """Names of a table's columns."""
    args: Args = {}
    """Settings of a kind of your own, which it finds in config.source.args."""

    def _conflicts(self) -> Iterator[str]:
        for name in RESERVED & self.columns.extra.keys():
            yield f'columns.extra: "{name}" is the name of the labels themselves: give the column another name'
        if ":" in self.kind:
            return
        if self.kind not in KINDS:
            accepted = ", ".join(f'"{kind}"' for kind in KINDS)
            yield f'kind: received "{self.kind}"; accepted: {accepted} or "package.module:Class"'
        if self.path is None:
            yield f"path: is missing: the folder of the {self.kind} data"
        for key in ("path", "test_path"):
            if isinstance(url := getattr(self, key), str) and self.kind not in REMOTE:
                these = " and ".join(f'"{kind}"' for kind in REMOTE)
                yield f'{key}: received "{url}"; accepted: a path of a file system; URLs are for the kinds {these}'
        for key, kinds in KEYS.items():
            if self.kind not in kinds and getattr(self, key) != type(self).model_fields[key].default:
                these = " and ".join(f'"{kind}"' for kind in kinds)
                yield f'{key}: is for {these}, and the kind is "{self.kind}": leave it out'
        for key in ("weight", "path_format"):
            if self.kind == "webdataset" and getattr(self.columns, key) is not None:
                yield f'columns.{key}: received "{getattr(self.columns, key)}", and is only for tables: leave it out'
        if self.args:
            yield (
                f'args: received {json.dumps(self.args)}, which are for kinds of your own, "package.module:Class"; the '
                f'kind is "{self.kind}": leave them out'
            )
        if self.test_path is not None and self.test_share is not None:
            yield "test_share: takes test data from `path`, and test_path names it: leave one of them out"

    def beside(self, data: Any) -> Iterator[str]:
        """Yields a message for each key of filelists, in the section `data`, that it would make ineffective."""
        text = json.dumps({"kind": self.kind} | ({} if self.path is None else {"path": str(self.path)}))
        for name in ("train_filelist", "test_filelist"):
            value = getattr(data, name)
            if value is not None:
                listed = [str(entry.path) for entry in value] if isinstance(value, list) else str(value)
                yield (
                    f"source {text} and {name} {json.dumps(listed)} both name the data: leave one of them out, or null"
                )
        own = self.kind in ("folders", "archive") or ":" in self.kind
        labels = () if own else ("train_label_file", "test_label_file")
        boxes = () if self.kind == "archive" or ":" in self.kind else ("train_box_file", "test_box_file")
        for name in (*labels, *boxes):
            value = getattr(data, name)
            if value is not None:
                yield (
                    f'{name} "{value}" is for images of filelists, and source {text} says itself what its images hold: '
                    f"leave {name} out, or null"
                )


def class_level_conflicts(data: Any) -> Iterator[str]:
    """Yields messages if the key class_level of the section `data` is no level, or has no effect."""
    level, source = data.class_level, data.source
    if level == 0:
        yield "class_level 0 is no folder; accepted: 1, 2 ... below the data's folder, -1, -2 ... from an image's own"
    if level and (data.label_source == "object" or (source and source.kind not in ("folders", "archive"))):
        yield (
            f"class_level {level} has no effect: it is for labels that are the names of folders, of filelists, and "
            'with the source "folders" or "archive"'
        )
