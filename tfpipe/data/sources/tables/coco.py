"""COCO's instances JSON as a table: the boxes and categories of images in a folder."""

import json
from pathlib import Path
from typing import ClassVar

import numpy as np

from tfpipe.data.sources.rows import Rows, as_edges
from tfpipe.data.sources.tables.table import Table
from tfpipe.errors import ConfigError
from tfpipe.util.files import read_text


class Coco(Table):
    """Images and objects of instances_train2017.json; crowds, whose box holds many objects, are left out."""

    suffixes: ClassVar[tuple[str, ...]] = (".json",)

    def stored(self, tables: list[Path]) -> bool:
        return False

    def rows(self, split: str, stored: bool) -> Rows:
        (path, *_) = self.tables(split)
        return self.located(read_coco(path), split, path, stored)


def read_coco(path: Path) -> Rows:
    """Reads the images of COCO's JSON in its order; raises ConfigError if it cannot be read, or is of another kind."""
    try:
        content = json.loads(read_text(path))
        images = {image["id"]: number for number, image in enumerate(content["images"])}
        names = {category["id"]: category["name"] for category in content["categories"]}
        objects = [entry for entry in content["annotations"] if not entry.get("iscrowd")]
        owners = np.array([images[entry["image_id"]] for entry in objects], np.int64)
        edges = np.array([entry["bbox"] for entry in objects], np.float32).reshape(-1, 4)
        texts = [names[entry["category_id"]] for entry in objects]
        sizes = np.array([[image["height"], image["width"]] for image in content["images"]], np.float32).reshape(-1, 2)
        paths = [image["file_name"] for image in content["images"]]
        if not paths:
            raise ConfigError(f"data.source: {path} has no image")
    except OSError as error:
        raise ConfigError(f"data.source: cannot read {path}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"data.source: {path} is no instances JSON of COCO, with images, annotations and categories: {error!r}"
        ) from error
    order = np.argsort(owners, kind="stable")
    texts = [texts[place] for place in order.tolist()]
    of_image: list[set[str]] = [set() for _ in paths]
    for owner, text in zip(owners[order].tolist(), texts, strict=True):
        of_image[owner].add(text)
    labels = [next(iter(labels)) if len(labels) == 1 else None for labels in of_image]
    classes = [names[number] for number in sorted(names)]
    return Rows(paths, labels, owners[order], as_edges(edges, "xywh")[order], list(texts), sizes, classes)
