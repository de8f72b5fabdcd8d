"""Lookup: in graph the same paths and labels as the catalog's own."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from tfpipe.config import DataConfig
from tfpipe.data.catalog.layout import LAYOUTS, annotation_folders
from tfpipe.data.catalog.locate import Lookup, names_in
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


@pytest.fixture(scope="module", params=["held", "mapped"])
def catalog(request: pytest.FixtureRequest) -> Catalog:
    catalog = catalog_of([place + name for name in NAMES for place in PLACES])
    return catalog if request.param == "held" else mapped(catalog)


def mapped(catalog: Catalog) -> Catalog:
    """The same catalog, with names as bytes of an array."""
    return replace(catalog, paths=replace(catalog.paths, names=catalog.paths.text))


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


# Anything but a line end, which no list can hold.
TEXT = st.text(st.characters(exclude_characters="\n/", exclude_categories=["Cs"]), max_size=30)


@given(names=st.lists(TEXT, min_size=1, max_size=20), data=st.data())
def test_mapped_names_are_found_whatever_they_hold(names: list[str], data: st.DataObject) -> None:
    paths = mapped(catalog_of([f"/JPEGImages/{name}" for name in names])).paths
    find = names_in(paths.names, paths.offsets)
    items = data.draw(st.lists(st.integers(0, len(names) - 1), max_size=9))
    assert [name.decode() for name in find(tf.constant(items, tf.int64)).numpy()] == [names[item] for item in items]
    assert find(tf.constant(len(names) - 1, tf.int64)).numpy().decode() == names[-1]
