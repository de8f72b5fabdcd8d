"""The contract of the data: the values that a continuation must share with what it continues, by name."""

import hashlib
import os
from collections.abc import Callable
from typing import Any

import numpy as np

from tfpipe.collectives.agreement import check_equal
from tfpipe.config.data import WHERE
from tfpipe.config.model import shared_settings
from tfpipe.data.annotations.cleaning import Boxes
from tfpipe.data.catalog.types import Catalog
from tfpipe.data.order.weighted import WeightedOrder, widths
from tfpipe.data.split import SPEED, Split
from tfpipe.util.json_text import differences

# Keys of `data` that may differ between a run and its continuation: keys of speed and testing, and keys of files,
# whose content is compared instead.
FREE = SPEED | {
    "train_filelist", "test_filelist", "train_label_file", "test_label_file", "classes", "layout", "test_crop",
    "shuffle_buffer", "exif", "annotations", "index", "train_box_file", "test_box_file", "source", "remote", "service",
    "class_weights", "sample_weights", "test_crop_image_size",
}  # fmt: skip
# Values that are not always known, the decisive one first: a contract without them, or with null, is not compared.
OPTIONAL_KEYS = ("boxes", "layout")
VERSION = "the tables' version"
# Compared only if both know it: a continuation may read a copy of the tables, or what was packed of their rows.
IF_BOTH = (VERSION, WHERE)


def data_contract(split: Split) -> dict[str, Any]:
    """Returns the contract of a split; files count by their content."""
    catalog, order = split.catalog, split.order
    return {
        # The base names of the images, in order, stand for their paths: a continuation may read the same samples from
        # another folder, or from another kind of source.
        "file names": hashlib.sha256(catalog.paths.text.data).hexdigest(),
        "mixed": [[len(entry.images), entry.weight] for entry in catalog.lists],
        "weights": _digest(widths(order.weights).astype("<i8")) if isinstance(order, WeightedOrder) else None,
        # Only crops re-encoded as JPEGs differ from the loose files; raw pixels and original files do not.
        "crops as JPEG": catalog.jpeg,
        "images": len(catalog),
        "images with an XML": int(catalog.annotated.sum()),
        "samples": order.count,
        "classes": hashlib.sha256("\n".join(catalog.classes).encode()).hexdigest(),
        "labels": hashlib.sha256(np.ascontiguousarray(catalog.labels).data).hexdigest(),
        "boxes": None if catalog.boxes is None else _boxes_digest(catalog.boxes),
        "layout": _layout(catalog),
        **({VERSION: catalog.version} if catalog.version else {}),
        **({"further columns": _values_digest(catalog)} if catalog.values else {}),
        "data.shuffle_buffer > 1": order.shuffle,
        **{f"data.{name}": value for name, value in split.config.model_dump(mode="json", exclude=FREE).items()},
        "data.resize": split.config.stored_resize,
        **split.config.stored_exif,
        **split.config.stored_where(catalog.split),
        **({"data.test_crop": split.config.crop_for("test")} if catalog.split == "test" else {}),
    }


def check_ranks(split: Split, gather: Callable[[Any], list[Any]]) -> None:
    """Checks that the ranks that `gather` reaches have the same settings and data; all of them must call.

    Folders of the data may differ, and so may the versions of tables, which a node's copy does not have. Raises
    ConfigError, which names what differs.
    """
    values = {
        f"the {split.catalog.split} data's {name}": value
        for name, value in data_contract(split).items()
        if not name.startswith("data.") and name != VERSION
    }
    check_equal({**shared_settings(split.config), **values}, gather)


def contract_differences(then: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Returns a message for each value in which two contracts differ."""
    decisive = [name for name in OPTIONAL_KEYS if then.get(name) and now.get(name)][:1]
    skipped = {*OPTIONAL_KEYS} - {*decisive}
    skipped |= {name for name in IF_BOTH if not (then.get(name) and now.get(name))}
    names = [name for name in {**then, **now} if name not in skipped]
    return differences(then, now, "then", "now", names)


def _boxes_digest(boxes: Boxes) -> str:
    kinds = ("<i4", "<f4", "<i4")
    return _digest(*(np.ascontiguousarray(array, kind) for array, kind in zip(boxes, kinds, strict=True)))


def _values_digest(catalog: Catalog) -> str:
    names = sorted(catalog.values)
    columns = [value if isinstance(value, tuple) else (value,) for value in map(catalog.values.__getitem__, names)]
    texts = np.frombuffer("\n".join(names).encode(), np.uint8)
    return _digest(texts, *(np.ascontiguousarray(array) for column in columns for array in column))


def _digest(*arrays: np.ndarray) -> str:
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(array.data)  # no copy of an array that is mapped
    return digest.hexdigest()


def _layout(catalog: Catalog) -> str | None:
    """Returns where the XMLs are, relative to their images, which may have moved together; None if none is read."""
    folder = catalog.annotation_folders[0]
    return os.path.relpath(folder, catalog.paths.folders[0]) if folder else None
