"""Errors of storage that may pass: the very next crop comes, after some pauses, or the error itself."""

import errno
import os
import resource
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

from tests.support.sample import SampleData
from tfpipe import Stream, World, build_dataset, load_config
from tfpipe.data.batch import Batch
from tfpipe.data.failures.batches import Batches
from tfpipe.data.pipeline import build_batches
from tfpipe.data.sources.registry import load_split
from tfpipe.errors import TfpipeError


class Flaky(Iterator[int]):
    """Counts up from a number; fails at some, as often as they say."""

    def __init__(self, first: int, failures: dict[int, list[Exception]]) -> None:
        self.number, self.failures = first, failures

    def __next__(self) -> int:
        if self.failures.get(self.number):
            raise self.failures[self.number].pop()
        self.number += 1
        return self.number - 1

    def __iter__(self) -> "Flaky":
        return self


def of(number: int) -> tf.errors.OpError:
    return tf.errors.UnknownError(None, None, f"/data/a.JPEG; {os.strerror(number)}")


class Opened(Batches):
    """Batches whose pipeline is a Python iterator."""

    def _iterate(self, dataset: Iterator[Batch]) -> Iterator[Batch]:
        return dataset


def batches_of(failures: dict[int, list[Exception]], pauses: list[float]) -> Batches:
    """The batches of rank 1 of 2, each of one image with one crop; the data are the image's number."""

    def build(stream: Stream, _: int) -> Iterator[Batch]:
        cursor = stream.cursors[1]
        numbers = Flaky(cursor.position // 2 + (cursor.crop > 0), failures)
        return (Batch(number, tf.constant([[2 * number + 1, 0]])) for number in numbers)

    split = SimpleNamespace(world=World(1, 2), cause=lambda _: None, stores="crops", training=True)
    return Opened(build, split, Stream.start(2), pauses.append)


def taken(failures: dict[int, list[Exception]], count: int, pauses: list[float]) -> list[int]:
    return [batch.data for batch in islice(batches_of(failures, pauses), count)]


@pytest.mark.parametrize("number", [errno.ENOENT, errno.EACCES, errno.EISDIR, errno.ENOSPC])
def test_an_error_that_does_not_pass_is_raised_at_once_by_name(number: int) -> None:
    pauses: list[float] = []
    with pytest.raises(TfpipeError, match=f"rank 1: stopped: /data/a.JPEG; {os.strerror(number)}"):
        taken({0: [of(number)]}, 1, pauses)
    assert not pauses


def test_pauses_grow_and_begin_anew_after_a_batch() -> None:
    pauses: list[float] = []
    assert taken({0: [of(errno.EIO)] * 3, 2: [of(errno.ESTALE)]}, 4, pauses) == [0, 1, 2, 3]
    assert pauses == [1, 2, 4, 1]


def test_an_error_that_lasts_is_raised_in_the_end() -> None:
    pauses: list[float] = []
    with pytest.raises(TfpipeError, match=r"rank 1: stopped: /data/a\.JPEG; Input/output error"):
        taken({1: [of(errno.EIO)] * 6}, 2, pauses)
    assert pauses == [1, 2, 4, 8, 16]


@pytest.mark.parametrize("split", ["train", "test"])
def test_a_real_pipeline_goes_on_with_the_very_next_crop(sample: SampleData, tmp_path: Path, split: str) -> None:
    """Short of file handles for a while."""
    serial = {"batch_size": 16, "num_parallel_readers": 1, "prefetch_buffer_size": 0}
    serial |= {"test_filelist": str(sample.train), "test_label_file": None}
    config = load_config(sample.config(tmp_path / "c.json", data=serial))
    count = 8 if split == "train" else -1
    expected = [each[2].numpy() for each in build_dataset(config, split, with_positions=True).take(count)]
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    pauses: list[float] = []

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)

    def build(stream: Stream, _: int) -> tf.data.Dataset:
        return build_batches(config, split, resume=stream)

    loaded = load_split(config.data, split, World())
    batches, got = Batches(build, loaded, Stream.start(1), sleep), []
    try:
        for number in range(len(expected)):
            if number == 2:
                resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))  # those that are open stay so
            got.append(next(batches).positions.numpy())
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert pauses and len(got) > 3
    for one, other in zip(got, expected, strict=True):
        np.testing.assert_array_equal(one, other)
