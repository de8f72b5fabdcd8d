"""Stores of contents by number: what is kept is found, and nothing that was cut, or is of another source."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from tfpipe.data.runtime.store import Store, file_in, in_memory, kept_in, on_disk

KIND, COUNT = ".jpg", 2500


def found(store: Store, number: int, source: str) -> bytes:
    @tf.function(input_signature=[tf.TensorSpec([], tf.int64), tf.TensorSpec([], tf.string)])
    def find(number: tf.Tensor, source: tf.Tensor) -> tf.Tensor:
        return store.find(number, source)

    return find(tf.constant(number, tf.int64), tf.constant(source)).numpy()


def keep(store: Store, number: int, source: str, contents: bytes) -> None:
    @tf.function(input_signature=[tf.TensorSpec([], tf.int64), *[tf.TensorSpec([], tf.string)] * 2])
    def keep(number: tf.Tensor, source: tf.Tensor, contents: tf.Tensor) -> tf.Tensor:
        return store.keep(number, source, contents)

    assert keep(tf.constant(number, tf.int64), tf.constant(source), tf.constant(contents)) == contents


def opened(folder: Path) -> Store:
    return on_disk(folder, KIND, kept_in(folder, (KIND,), COUNT)[:, 0])


@pytest.mark.parametrize("make", [lambda _: in_memory(), opened], ids=["memory", "disk"])
def test_what_is_kept_is_found_and_nothing_else(tmp_path: Path, make: Callable[[Path], Store]) -> None:
    store = make(tmp_path)
    contents = {0: b"\0\xff\n", 999: b"a", 1000: b"b" * 5000, 2499: b"c"}
    for number, bytes_of in contents.items():
        assert found(store, number, f"/{number}") == b""
        keep(store, number, f"/{number}", bytes_of)
    assert {number: found(store, number, f"/{number}") for number in contents} == contents
    assert found(store, 1, "/1") == b""


def test_a_later_run_finds_the_files(tmp_path: Path) -> None:
    keep(opened(tmp_path), 1234, "/a", b"image")
    assert file_in(tmp_path, 1234, KIND) == tmp_path / "1/1234.jpg"
    assert [path.relative_to(tmp_path) for path in tmp_path.glob("*/*")] == [Path("1/1234.jpg")]
    assert found(opened(tmp_path), 1234, "/a") == b"image"
    assert found(opened(tmp_path), 1234, "/another source") == b""


@pytest.mark.parametrize("left", [0, 3, 24])
def test_a_file_cut_short_is_not_used_and_kept_anew(tmp_path: Path, left: int) -> None:
    keep(opened(tmp_path), 7, "/a", b"image")
    file = file_in(tmp_path, 7, KIND)
    whole = file.read_bytes()
    assert left < len(whole)
    file.write_bytes(whole[:left])
    store = opened(tmp_path)
    assert found(store, 7, "/a") == b""
    keep(store, 7, "/a", b"image")
    assert found(store, 7, "/a") == b"image" and file.read_bytes() == whole


def test_the_files_of_a_folder_are_told_by_number_and_kind(tmp_path: Path) -> None:
    for name in ("0/3.jpg", "0/3.xml", "1/1001.xml", "0/12.txt", "0/note.jpg", "5/5000.jpg"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"x")
    (tmp_path / "writable").write_text("")
    kept = kept_in(tmp_path, (".jpg", ".xml"), COUNT)
    assert kept.shape == (COUNT, 2)
    assert np.argwhere(kept).tolist() == [[3, 0], [3, 1], [1001, 1]]
