"""Stores of contents by number: what is kept is taken, and nothing that was cut, or whose source is another now."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from tfpipe.data.runtime.store import Store, file_in, in_memory, kept_in, on_disk

KIND, COUNT = ".jpg", 2500


def in_graph(read: Callable[[], bytes]) -> tf.Tensor:
    return tf.ensure_shape(tf.numpy_function(read, [], tf.string), [])


def taken(store: Store, number: int, source: object, contents: bytes) -> tuple[bytes, bool]:
    """What a store gives if the source has these contents, and whether it has read them."""
    read = []

    got = store(
        tf.constant(number, tf.int64),
        tf.constant(str(source)),
        lambda: in_graph(lambda: read.append(contents) or contents),
    )
    return got.numpy(), bool(read)


def opened(folder: Path) -> Store:
    return on_disk(folder, KIND, COUNT)


@pytest.mark.parametrize("make", [lambda _: in_memory(), opened], ids=["memory", "disk"])
def test_what_is_kept_is_taken_and_nothing_else(tmp_path: Path, make: Callable[[Path], Store]) -> None:
    store = make(tmp_path)
    contents = {0: b"\0\xff\n", 999: b"a", 1000: b"b" * 5000, 2499: b"c"}
    for wanted in (True, False):
        for number, bytes_of in contents.items():
            assert taken(store, number, f"/{number}", bytes_of) == (bytes_of, wanted)
    assert taken(store, 1, "/1", b"d") == (b"d", True)


def test_a_file_without_its_source_is_taken_but_for_no_other_source(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(b"image")
    taken(opened(tmp_path), 1234, source, b"image")
    source.unlink()
    assert file_in(tmp_path, 1234, KIND) == tmp_path / "1/1234.jpg"
    assert [path.relative_to(tmp_path) for path in tmp_path.glob("*/*")] == [Path("1/1234.jpg")]
    assert taken(opened(tmp_path), 1234, source, b"") == (b"image", False)
    assert taken(opened(tmp_path), 1234, "/another source", b"other") == (b"other", True)


class Stored(NamedTuple):
    """What a file should hold: the source's contents when it was written, with its size and time."""

    contents: bytes
    stamp: tuple[int, int]


EDIT = st.tuples(st.just("edit"), st.sampled_from([b"first", b"other", b"longer text", b""]), st.integers(0, 2))
CUT = st.tuples(st.just("cut"), st.integers(0, 70), st.none())
REMOVE = st.tuples(st.just("remove"), st.none(), st.none())
OPEN = st.tuples(st.just("open"), st.integers(0, 2), st.none())
READ = st.tuples(st.just("read"), st.integers(0, 2), st.none())


@settings(max_examples=60)
@given(steps=st.lists(st.one_of(READ, READ, EDIT, OPEN, CUT, REMOVE), max_size=12))
def test_ranks_that_share_a_folder_read_a_version_of_a_source_once(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple]
) -> None:
    """Three ranks, each of which may start anew; a file cut short or removed meanwhile; a source edited in place.

    A whole file is taken if it has the source's size and time, or if this process has already compared these.
    """
    folder = tmp_path_factory.mktemp("cache")
    source, file = folder / "source", file_in(folder, 7, KIND)
    source.write_bytes(b"image")
    os.utime(source, ns=(0, 0))
    ranks, has_compared = [opened(folder) for _ in range(3)], [False] * 3
    expected: Stored | None = None
    for kind, value, time_ns in steps:
        if kind == "edit":
            source.write_bytes(value)
            os.utime(source, ns=(time_ns, time_ns))
        elif kind == "open":
            ranks[value], has_compared[value] = opened(folder), False
        elif kind == "remove":
            file.unlink(missing_ok=True)
            expected = None
        elif kind == "cut":
            if file.exists() and value < file.stat().st_size:
                os.truncate(file, value)
                expected = None
        else:
            contents, stamp = source.read_bytes(), (source.stat().st_size, source.stat().st_mtime_ns)
            is_taken = (
                expected is not None and bool(expected.contents) and (has_compared[value] or expected.stamp == stamp)
            )
            if not is_taken:
                expected = Stored(contents, stamp)
            assert taken(ranks[value], 7, source, contents) == (expected.contents, not is_taken)
            has_compared[value] = True


def test_a_file_written_by_two_at_once_is_whole_or_read_again(tmp_path: Path) -> None:
    """Of many sizes, so that a write takes long enough for the others to see a part of it."""
    contents = {number: bytes([number]) * 10 ** (4 + number % 3) for number in range(48)}
    numbers = tf.data.Dataset.range(48, output_type=tf.int64).repeat(4)

    def read(number: tf.Tensor) -> bytes:
        return contents[int(number)]

    def pairs(store: Store) -> tf.data.Dataset:
        def get(number: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            source = tf.strings.join(["/", tf.as_string(number)])
            return number, store(
                number, source, lambda: tf.ensure_shape(tf.numpy_function(read, [number], tf.string), [])
            )

        return numbers.map(get, num_parallel_calls=4)

    both = tf.data.Dataset.zip(pairs(opened(tmp_path)), pairs(opened(tmp_path)))
    for one, other in both:
        for number, got in (one, other):
            assert got.numpy() == contents[int(number)]
    assert taken(opened(tmp_path), 7, "/7", b"") == (contents[7], False)


def test_a_source_that_changes_while_it_is_read_is_read_again(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(b"first")

    def change() -> bytes:
        source.write_bytes(b"longer text")
        return b"first"

    store = opened(tmp_path)
    read = tf.function(lambda: store(tf.constant(7, tf.int64), tf.constant(str(source)), lambda: in_graph(change)))
    assert read().numpy() == b"first"
    assert taken(opened(tmp_path), 7, source, b"longer text") == (b"longer text", True)


def test_the_files_of_a_folder_are_told_by_number_and_kind(tmp_path: Path) -> None:
    for name in ("0/3.jpg", "0/3.xml", "1/1001.xml", "0/12.txt", "0/note.jpg", "5/5000.jpg"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"x")
    (tmp_path / "writable").write_text("")
    assert np.flatnonzero(kept_in(tmp_path, ".jpg", COUNT)).tolist() == [3]
    assert np.flatnonzero(kept_in(tmp_path, ".xml", COUNT)).tolist() == [3, 1001]
