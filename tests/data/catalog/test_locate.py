"""Lookup: in graph the same paths and labels as the catalog's own."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from tfpipe.data.catalog.layout import LAYOUTS, annotation_folders
from tfpipe.data.catalog.locate import Lookup
from tfpipe.data.catalog.paths import FileList
from tfpipe.data.catalog.table import StoredTable, map_table, write_table
from tfpipe.data.catalog.types import Catalog
from tfpipe.data.order.stream import SampleRef
from tfpipe.util.made_from import MadeFrom
from tfpipe.util.resources import private_memory

NAMES = [*"a.jpg b c.d.e.JPEG .f g. ..h 日本.jpg é.ü.jpeg".split(), "with space.JPG", "a\\1.jpg", "100%.jpg"]
PLACES = ["/JPEGImages/", "/d/VOC 2012/JPEGImages/", "/d.e/JPEGImages/v1.2/", "/ö/JPEGImages/x//"]


def catalog_of(paths: list[str]) -> Catalog:
    files = FileList.of(paths)
    count = np.arange(len(paths))
    folders = annotation_folders(files, LAYOUTS["voc"])
    return Catalog("train", files, folders, count % 3 > 0, (count % 5).astype(np.int32), tuple("abcde"))


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    return catalog_of([place + name for name in NAMES for place in PLACES])


@pytest.mark.parametrize("sent", [False, True])
def test_every_path_and_label_is_the_catalogs(catalog: Catalog, sent: bool) -> None:
    lookup = Lookup(catalog, sent=sent)
    found = tf.data.Dataset.range(len(catalog)).map(
        lambda item: (lookup.path(item), lookup.annotation(item), lookup._labels.at(item))
    )
    paths, xmls, labels = zip(*found.as_numpy_iterator(), strict=True)
    assert [path.decode() for path in paths] == list(catalog.paths)
    assert [xml.decode() for xml in xmls] == [catalog.annotation(item) for item in range(len(catalog))]
    assert list(labels) == catalog.labels.tolist()


def test_a_graph_holds_no_path():
    """TensorFlow copies tensors of up to 128 elements into a graph, one long string among them."""
    lookup = Lookup(catalog_of([f"/{number}/JPEGImages/name{number}.jpg" for number in range(200)]), sent=True)
    graph = tf.function(lookup.path).get_concrete_function(tf.TensorSpec([], tf.int64)).graph.as_graph_def()
    serialized = graph.SerializeToString()
    assert b"JPEGImages" not in serialized and b"name17.jpg" not in serialized


def test_a_mapped_catalog_takes_hardly_any_private_memory(tmp_path: Path) -> None:
    count = 1_000_000
    text = np.tile(np.frombuffer(b"n01440764_1234.JPEG\n", np.uint8), count)
    arrays = {
        "names": text,
        "offsets": np.arange(0, len(text) + 1, 20),
        "folder": np.zeros(count, np.int32),
        "labels": np.zeros(count, np.int32),
        "annotated": np.ones(count, bool),
    }
    small = catalog_of(["/JPEGImages/a.jpg"])
    Lookup(small).path(tf.constant([0], tf.int64))  # TensorFlow starts
    write_table(tmp_path / "table", StoredTable({}, arrays), MadeFrom(1, [], {}))
    del arrays, text
    before = private_memory()
    found = map_table(tmp_path / "table").columns
    paths = FileList(["/JPEGImages/"], found["folder"], found["names"], found["offsets"], "")
    lookup = Lookup(replace(small, paths=paths, labels=found["labels"], annotated=found["annotated"]))
    assert lookup.path(tf.range(0, count, 7919, tf.int64))[-1] == b"/JPEGImages/n01440764_1234.JPEG"
    visits = SampleRef(*3 * [tf.constant([0, count - 1], tf.int64)])
    paths = tf.data.Dataset.from_tensors(visits).map(lookup.sample_paths)
    assert [*next(iter(paths)).path.numpy()] == 2 * [b"/JPEGImages/n01440764_1234.JPEG"]
    assert private_memory() - before < 5 * count, "names alone would take 24 bytes each as strings"
    # tf.data allocates zeros of what a graph captures; with oneDNN, TensorFlow keeps them.
    assert len(paths._as_serialized_graph().numpy()) < 50_000
