"""Stores of contents by number: what is kept is taken, and nothing that was cut, or whose source is another now."""

import os
from collections.abc import Callable
from pathlib import Path

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
    return on_disk(folder, KIND, kept_in(folder, (KIND,), COUNT)[:, 0])


@pytest.mark.parametrize("make", [lambda _: in_memory(), opened], ids=["memory", "disk"])
def test_what_is_kept_is_taken_and_nothing_else(tmp_path: Path, make: Callable[[Path], Store]) -> None:
    store = make(tmp_path)
    contents = {0: b"\0\xff\n", 999: b"a", 1000: b"b" * 5000, 2499: b"c"}
    for wanted in (True, False):
        for number, bytes_of in contents.items():
            assert taken(store, number, f"/{number}", bytes_of) == (bytes_of, wanted)
    assert taken(store, 1, "/1", b"d") == (b"d", True)


def test_a_later_run_takes_the_files_also_without_their_sources(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(b"image")
    taken(opened(tmp_path), 1234, source, b"image")
    source.unlink()
    assert file_in(tmp_path, 1234, KIND) == tmp_path / "1/1234.jpg"
    assert [path.relative_to(tmp_path) for path in tmp_path.glob("*/*")] == [Path("1/1234.jpg")]
    assert taken(opened(tmp_path), 1234, source, b"") == (b"image", False)
    assert taken(opened(tmp_path), 1234, "/another source", b"other") == (b"other", True)


@pytest.mark.parametrize("left", [0, 3, 24, 62])
def test_a_file_cut_short_is_not_used_and_kept_anew(tmp_path: Path, left: int) -> None:
    taken(opened(tmp_path), 7, "/a", b"image")
    file = file_in(tmp_path, 7, KIND)
    whole = file.read_bytes()
    assert left < len(whole)
    file.write_bytes(whole[:left])
    store = opened(tmp_path)
    assert taken(store, 7, "/a", b"image") == (b"image", True) and file.read_bytes() == whole
    assert taken(store, 7, "/a", b"image") == (b"image", False)


EDIT = st.sampled_from([b"first", b"other", b"longer text", b""])


@settings(max_examples=20)
@given(st.lists(st.tuples(EDIT, st.integers(0, 2)), min_size=1, max_size=4))
def test_a_later_run_reads_what_was_edited_since_and_nothing_else(
    tmp_path_factory: pytest.TempPathFactory, edits: list[tuple[bytes, int]]
) -> None:
    """Edited in place, to another size or time or to neither."""
    folder = tmp_path_factory.mktemp("cache")
    source, before = folder / "source", None
    for contents, time_ns in edits:
        source.write_bytes(contents)
        os.utime(source, ns=(time_ns, time_ns))
        now = len(contents), time_ns
        kept = before is not None and before[0] == now and before[1] != b""
        expected = before[1] if kept else contents
        assert taken(opened(folder), 7, source, contents) == (expected, not kept)
        before = now, expected


def test_a_run_asks_for_a_source_s_stamp_once(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(b"first")
    taken(opened(tmp_path), 7, source, b"first")
    store = opened(tmp_path)
    assert taken(store, 7, source, b"") == (b"first", False)
    source.write_bytes(b"longer text")
    assert taken(store, 7, source, b"longer text") == (b"first", False)
    assert taken(opened(tmp_path), 7, source, b"longer text") == (b"longer text", True)


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
    kept = kept_in(tmp_path, (".jpg", ".xml"), COUNT)
    assert kept.shape == (COUNT, 2)
    assert np.argwhere(kept).tolist() == [[3, 0], [3, 1], [1001, 1]]
