"""Errors of storage that may pass: the very next crop comes, after some pauses, or the error itself."""

import errno
import os
import resource
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from tests.support.sample import SampleData
from tfpipe import Stream, World, build_dataset, load_config
from tfpipe.training.recovery import MAY_PASS, TRIES, Recovery, may_pass


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


def taken(failures: dict[int, list[Exception]], count: int, pauses: list[float]) -> list[int]:
    """The first numbers that a recovery takes, each an image with one crop."""

    def build(stream: Stream) -> Flaky:
        frontier = stream.frontiers[1]
        return Flaky(frontier.position // 2 + (frontier.crop > 0), failures)

    recovery = Recovery(build, Stream.start(2), World(1, 2), pauses.append)
    first, reached, got = Flaky(0, failures), None, []
    for _ in range(count):
        number = recovery.take(first, next, reached)
        reached = tf.constant([[2 * number + 1, 0]])
        got.append(number)
    return got


@pytest.mark.parametrize("number", list(MAY_PASS))
def test_an_error_that_may_pass_is_known_by_what_the_system_says(number: int) -> None:
    assert may_pass(of(number)) == MAY_PASS[number]


@pytest.mark.parametrize("number", [errno.ENOENT, errno.EACCES, errno.EISDIR, errno.ENOSPC])
def test_others_are_not(number: int) -> None:
    assert may_pass(of(number)) is None
    with pytest.raises(tf.errors.UnknownError):
        taken({0: [of(number)]}, 1, [])


def test_pauses_grow_and_begin_anew_after_a_batch() -> None:
    pauses: list[float] = []
    failures = {0: [of(errno.EIO)] * 3, 2: [of(errno.ESTALE)]}
    recovery = Recovery(lambda stream: Flaky(0, failures), Stream.start(1), World(), pauses.append)
    first = Flaky(0, failures)
    assert recovery.take(first, next, None) == 0
    assert pauses == [1, 2, 4]
    assert [recovery.take(first, next, None) for _ in range(2)] == [1, 0]
    assert pauses == [1, 2, 4, 1]


def test_what_comes_next_is_the_very_next() -> None:
    failures = {2: [of(errno.EIO)] * 2, 3: [of(errno.EIO)]}
    assert taken(failures, 6, []) == [0, 1, 2, 3, 4, 5]


def test_one_that_does_not_pass_is_raised_in_the_end() -> None:
    pauses: list[float] = []
    with pytest.raises(tf.errors.UnknownError, match="Input/output error"):
        taken({1: [of(errno.EIO)] * (TRIES + 1)}, 2, pauses)
    assert pauses == [1, 2, 4, 8, 16]


def test_a_real_pipeline_goes_on_with_the_very_next_crop(sample: SampleData, tmp_path: Path) -> None:
    """Short of file handles for a while."""
    serial = {"batch_size": 16, "num_parallel_readers": 1, "prefetch_buffer_size": 0}
    config = load_config(sample.config(tmp_path / "c.json", data=serial))
    expected = [each[2].numpy() for each in build_dataset(config, with_positions=True).take(8)]
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    pauses: list[float] = []

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)

    def build(stream: Stream) -> tf.data.Dataset:
        return build_dataset(config, with_positions=True, resume=stream)

    recovery = Recovery(build, Stream.start(1), World(), sleep)
    first, reached, got = iter(build(Stream.start(1))), None, []
    try:
        for number in range(8):
            if number == 2:
                resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))  # those that are open stay so
            *_, reached = recovery.take(first, next, reached)
            got.append(reached.numpy())
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert pauses
    np.testing.assert_array_equal(got, expected)
