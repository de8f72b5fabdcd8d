"""Targets of images in code: objects, a catalog without files, and the boxes found for them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from tests.support.xmls import STATED, annotation
from tfpipe.config import DataConfig
from tfpipe.data.annotations.cleaning import BY_OBJECT
from tfpipe.data.annotations.targets import target_parser
from tfpipe.data.catalog.paths import FileList
from tfpipe.data.catalog.types import Catalog
from tfpipe.data.images.crops import Targets

CLASSES = ("n01", "n02", "n03")
WHOLE = [[0.0, 0.0, 1.0, 1.0]]
LABEL = 1  # n02
REAL = (300, 600)
BOX = (25, 50, 75, 150)  # of STATED
RELATIVE = [0.25, 0.25, 0.75, 0.75]
OTHER_BOX = (0, 100, 50, 200)


def data_config(**keys: Any) -> DataConfig:
    """A config without files; with CLASSES where objects have the labels."""
    if keys.get("label_source") == "object":
        keys = {"classes": list(CLASSES)} | keys
    return DataConfig(train_filelist=Path("train.txt"), **keys)


def catalog_of(labels: Sequence[int], annotations: Sequence[str] | None = None, split: str = "train") -> Catalog:
    """A catalog of images /x/0.JPEG, /x/1.JPEG ..., whose XMLs (FOLDER/0.xml ..., "" for none) are `annotations`."""
    paths = FileList.of(f"/x/{number}.JPEG" for number in range(len(labels)))
    annotations = annotations or [""] * len(labels)
    folders = {f"{Path(path).parent}/" for path in annotations if path} or {""}
    annotated = np.array([bool(path) for path in annotations])
    return Catalog(
        split, paths, list(folders), annotated, np.array(labels, np.int32), CLASSES, display_name="train.txt"
    )


def write_xmls(folder: Path, texts: Sequence[str | None]) -> list[str]:
    """Writes XMLs 0.xml, 1.xml ...; returns their paths, "" for an image without."""
    for number, text in enumerate(texts):
        if text is not None:
            (folder / f"{number}.xml").write_text(text)
    return ["" if text is None else str(folder / f"{number}.xml") for number, text in enumerate(texts)]


XMLS = [
    None,
    annotation(("n02", BOX), ("n02", OTHER_BOX)),
    annotation(),
    annotation(("n01", BOX), ("n02", OTHER_BOX), ("cow", BOX)),
    annotation(("n01", BOX)),
    annotation(("n02", (75, 150, 25, 50)), ("n03", (5, 5, 5, 9)), ("n02", (0, 900, 9, 950))),
    None,
    annotation(("n02", BOX), ("cow", BOX), size=(600, 300)),
]
DIRECTORY, OBJECT = catalog_of([LABEL]), catalog_of([BY_OBJECT])


def _traced(texts: tf.Tensor, paths: tf.Tensor, labels: tf.Tensor, sizes: tf.Tensor) -> Targets:
    return target_parser(CLASSES)(texts, paths, labels, sizes, tf.fill(tf.shape(texts), ""))


_FIND = tf.function(
    _traced,
    input_signature=[
        *[tf.TensorSpec([None], tf.string)] * 2,
        tf.TensorSpec([None], tf.int32),
        tf.TensorSpec([None, 2], tf.int32),
    ],
)


def xml_of(objects: Sequence[tuple[str, Sequence[float]]], stated: Sequence[float]) -> str:
    return annotation(*objects, size=stated)


def targets_of(
    objects: Sequence[tuple[str, Sequence[float]]],
    by_object: bool = False,
    stated: tuple[float, float] = STATED,
    real: tuple[int, int] = REAL,
) -> tuple[list[list[float]], list[int]]:
    """Boxes and labels of one image with these objects (name, box)."""
    label = BY_OBJECT if by_object else LABEL
    # Next to two others, which must not count.
    (found,) = targets_of_many([[("n03", BOX)], objects, []], [label] * 3, [stated] * 3, [real] * 3)[1:2]
    return found


def targets_of_many(
    objects: Sequence[Sequence[tuple[str, Sequence[float]]]],
    labels: Sequence[int],
    stated: Sequence[tuple[float, float]],
    real: Sequence[tuple[int, int]],
) -> list[tuple[list[list[float]], list[int]]]:
    """Boxes and labels of each of several images."""
    xmls = [xml_of(*each) for each in zip(objects, stated, strict=True)]
    return targets_of_xmls(xmls, labels, real)


def targets_of_xmls(
    xmls: Sequence[str | bytes | None], labels: Sequence[int], real: Sequence[tuple[int, int]]
) -> list[tuple[list[list[float]], list[int]]]:
    """Boxes and labels of each of several images, None for one without an XML, parsed in one call of the pipeline's."""
    paths = tf.constant(["" if text is None else "a.xml" for text in xmls])
    found = _FIND(tf.constant([text or "" for text in xmls], tf.string), paths, tf.constant(labels), tf.constant(real))
    assert (found.images.dtype, found.boxes.dtype, found.labels.dtype) == (tf.int64, tf.float32, tf.int32)
    assert (np.diff(found.images) >= 0).all()
    of = [found.images.numpy() == image for image in range(len(xmls))]
    return [(found.boxes.numpy()[mine].tolist(), found.labels.numpy()[mine].tolist()) for mine in of]
