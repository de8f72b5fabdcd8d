"""The section `data.source`: data that no filelist names."""

import json
from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from tfpipe.config.section import Args, ConfigPath, Section, Seed, Url

# Sources that come with tfpipe, besides filelists.
KINDS = ("folders", "table", "coco", "webdataset", "packed", "tfrecord")
TABLES = ("table", "coco")
# Kinds whose data may lie behind URLs.
REMOTE = ("packed", "webdataset")
# Kinds that each key is for, besides kinds of the user's own; `path` is for all.
KEYS = {
    "test_path": ("folders", *TABLES, "webdataset", "tfrecord"),
    "test_share": ("folders",),
    "test_seed": ("folders",),
    "images": TABLES,
    "test_images": TABLES,
    "columns": ("table", "webdataset"),
}


class Columns(Section):
    """The columns of a table, "image.path" names a field of one; and the keys in the .json files of tar shards."""

    path: str = "path"
    """Path of the image's file, absolute, a URL, or relative to `images`."""
    bytes: str = "image"
    """Contents of the image's file: bytes, or {bytes, path} as Hugging Face's datasets writes it. A column of texts has
    paths."""
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
    box_format: Literal["xyxy", "xywh", "yxyx"] = "xyxy"
    """Order of a box's numbers: xmin, ymin, xmax, ymax; xmin, ymin, width, height; or ymin, xmin, ymax, xmax."""
    box_unit: Literal["auto", "relative", "pixels"] = "auto"
    """Unit of a box's numbers: "relative" to the image's size, in [0, 1], or "pixels", which needs the columns width
    and height. "auto": relative if no number of the table, or of an image's .json, is above 1.01, else pixels; boxes in
    both units are refused."""


class SourceConfig(Section):
    """Data that is not named by filelists."""

    kind: str
    """"folders": a folder of class folders, CLASS/*.jpg. "table": CSV, JSON lines, Parquet or Arrow, with one row an
    image or one a box. "coco": COCO's instances JSON. "webdataset": tar shards. "packed": the output of `tfpipe pack`.
    "tfrecord": ImageNet's TFRecords as written by the scripts of TensorFlow's models and of TPUs,
    train-00000-of-01024 and validation-00000-of-00128. "package.module:Class": a kind of your own, a subclass of
    tfpipe.Source, from sys.path or the current directory."""
    path: ConfigPath | Url | None = None
    """Folder of the data, a URL too with "packed" and "webdataset" (s3://, gs://, https:// and all schemes that fsspec
    has); with "coco" a file, with "table" and "webdataset" a file or a folder of them; a kind of your own may do
    without. The files of a folder are split by the words in their names, in any case: those with train or training are
    the training data, or if there are none, those with the name of no split."""
    test_path: ConfigPath | Url | None = None
    """The test data if it is elsewhere; null: the files of `path`, or with "folders" its subfolders, with the word val,
    valid or validation in their names, else those with test or testing, if there are any."""
    test_share: Annotated[float, Field(gt=0, lt=1)] | None = None
    """With "folders": share of each class's images that becomes test data and is left out of training; always the same
    images for the same files and `test_seed`."""
    test_seed: Seed = 0
    """Seed of `test_share`; data.seed does not change it."""
    images: ConfigPath | None = None
    """Folder that relative paths in a table are relative to; null: the table's own folder."""
    test_images: ConfigPath | None = None
    """The same of the test data; null: `images`."""
    columns: Columns = Columns()
    """Names of a table's columns."""
    args: Args = {}
    """Settings of a kind of your own, which it finds in config.source.args."""

    def _conflicts(self) -> Iterator[str]:
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
        if self.args:
            yield (
                f'args: received {json.dumps(self.args)}, which are for kinds of your own, "package.module:Class"; the '
                f'kind is "{self.kind}": leave them out'
            )
        if self.test_path is not None and self.test_share is not None:
            yield "test_share: takes test data from `path`, and test_path names it: leave one of them out"
