"""Lookup: in graph the same paths and labels as the catalog's own."""

from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from tfpipe.config import DataConfig
from tfpipe.data.catalog.layout import LAYOUTS, annotation_folders
from tfpipe.data.catalog.locate import Lookup
from tfpipe.data.catalog.paths import FileList
from tfpipe.data.catalog.types import Catalog
from tfpipe.data.sources.files import Files

NAMES = [
    "a.jpg",
    "b",
    "c.d.e.JPEG",
    ".f",
    "g.",
    "..h",
    "日本.jpg",
    "é.ü.jpeg",
    "with space.JPG",
    "a\\1.jpg",
    "100%.jpg",
]
PLACES = ["/JPEGImages/", "/d/VOC 2012/JPEGImages/", "/d.e/JPEGImages/v1.2/", "/ö/JPEGImages/x//"]


def catalog_of(paths: list[str]) -> Catalog:
    files = FileList.of(paths)
    count = np.arange(len(paths))
    folders = annotation_folders(files, LAYOUTS["voc"])
    return Catalog(
        "train",
        Files(DataConfig(train_filelist=Path("train.txt"))),
        files,
        folders,
        count % 3 > 0,
        (count % 5).astype(np.int32),
        tuple("abcde"),
    )


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    return catalog_of([place + name for name in NAMES for place in PLACES])


def test_every_path_and_label_is_the_catalogs(catalog):
    lookup = Lookup(catalog)
    found = tf.data.Dataset.range(len(catalog)).map(
        lambda item: (lookup.path(item), lookup.annotation(item), lookup.label(item))
    )
    paths, xmls, labels = zip(*found.as_numpy_iterator(), strict=True)
    assert [path.decode() for path in paths] == list(catalog.paths)
    assert [xml.decode() for xml in xmls] == [catalog.annotation(item) for item in range(len(catalog))]
    assert list(labels) == catalog.labels.tolist()


def test_a_graph_holds_no_path():
    """TensorFlow copies tensors of up to 128 elements into a graph, one long string among them."""
    lookup = Lookup(catalog_of([f"/{number}/JPEGImages/name{number}.jpg" for number in range(200)]))
    graph = tf.function(lookup.path).get_concrete_function(tf.TensorSpec([], tf.int64)).graph.as_graph_def()
    serialized = graph.SerializeToString()
    assert b"JPEGImages" not in serialized and b"name17.jpg" not in serialized
