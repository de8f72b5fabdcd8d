"""The record of a trace: what is written is read, and the decoder's events are those of its calls."""

from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from tests.support.decoding import memory
from tests.support.images import encoded, picture
from tfpipe.data.images.crops import ALL
from tfpipe.data.runtime.recording import Recording, TracedBatch, read_recording, write_recording
from tfpipe.native import EventKind, core, native
from tfpipe.tools.report.samples import decoded_images, sample_times

SIZE = (90, 120)


@tf.function(autograph=False)
def decode(jpegs: tf.Tensor, positions: tf.Tensor, images: tf.Tensor) -> tf.Tensor:
    """Crops the whole of JPEGs of SIZE, with the mark before it."""
    images = native().mark(positions, images, kind=int(EventKind.DECODE))
    sizes, windows = (tf.tile([row], [tf.size(jpegs), 1]) for row in (list(SIZE), [0, 0, *SIZE]))
    how = {"targets": [60, 70, -1, 0, 0], "channels": 3, "kernel": 0}
    inputs = jpegs, [], sizes, images, windows, tf.zeros(0, tf.bool), ALL, [memory(3, 60, 70)]
    (crops,), _ = native().crops(*inputs, **how)
    return crops


@pytest.fixture
def jpegs() -> tf.Tensor:
    return tf.constant([encoded(picture(*SIZE, seed)) for seed in range(3)])


def test_a_recording_is_read_as_it_was_written(tmp_path: Path) -> None:
    batches = [
        TracedBatch(7, 1.5, 1.25, 1.75, 2.5, np.float32(0.25), np.array([[3, 0], [3, 1], [5, 0]])),
        TracedBatch(8, 2.5, 2.25, 2.75, 3.5, 0.5, np.array([[9, 0]])),
    ]
    events = np.array([(1, 2, 3, 4, 5, 6, 7, 5, 0)], core().event)
    write_recording(tmp_path, Recording(2, "n1", batches, {3: "/a b/c.JPEG", 9: "/d.JPEG"}, events))
    found = read_recording(tmp_path)
    assert found is not None and found[:2] == (2, "n1") and found.files == {3: "/a b/c.JPEG", 9: "/d.JPEG"}
    assert [batch[:6] for batch in found.batches] == [(7, 1.5, 1.25, 1.75, 2.5, 0.25), (8, 2.5, 2.25, 2.75, 3.5, 0.5)]
    assert [batch.positions.tolist() for batch in found.batches] == [[[3, 0], [3, 1], [5, 0]], [[9, 0]]]
    assert (found.events == events).all() and (found.batches[0].wait_s, found.batches[0].delay_s) == (0.25, 0.5)
    assert read_recording(tmp_path / "none") is None


def test_a_run_that_recorded_no_batch_is_read(tmp_path: Path) -> None:
    write_recording(tmp_path, Recording(0, "n1", [], {}, np.zeros(0, core().event)))
    found = read_recording(tmp_path)
    assert found is not None and not found.batches and not found.files and not len(found.events)


def test_images_are_recorded_with_their_positions(jpegs: tf.Tensor) -> None:
    positions, images = tf.constant([40, 41, 42], tf.int64), tf.range(3, dtype=tf.int64)
    expected = decode(jpegs, positions, images).numpy()
    native().record(100)
    assert (decode(jpegs, positions, images).numpy() == expected).all()
    events = native().end_recording()
    assert [EventKind(kind).name for kind in events["kind"]] == ["DECODE"] * 3 + ["IMAGE"] * 3
    found = list(decoded_images(events))
    assert [image.position for image in found] == [40, 41, 42] and all(min(image.parts_ns) > 0 for image in found)
    assert {time.stage for times in sample_times(Recording(0, "", [], {}, events)).values() for time in times} == {
        "decode"
    }
    ends = [image.start_ns + image.ns for image in found]
    assert all(end <= later.start_ns for end, later in zip(ends, found[1:], strict=False))


def test_the_newest_events_are_kept_and_none_without_recording(jpegs: tf.Tensor) -> None:
    positions, images = tf.constant([40, 41, 42], tf.int64), tf.range(3, dtype=tf.int64)
    native().record(2)
    decode(jpegs, positions, images)
    assert native().end_recording()["kind"].tolist() == [EventKind.IMAGE] * 2
    decode(jpegs, positions, images)
    assert not len(native().end_recording())


def test_a_call_without_crops_leaves_its_samples_to_no_other(jpegs: tf.Tensor) -> None:
    """A call's address may be used again."""
    events = np.array(
        [
            (10, 1, 99, 0, 0, 0, 0, EventKind.DECODE, 0),  # no image of this call is cropped
            (20, 2, 99, 0, 0, 0, 0, EventKind.DECODE, 0),
            (20, 3, 99, 0, 0, 0, 0, EventKind.DECODE, 0),
            (30, 1, 99, 0, 1, 1, 1, EventKind.IMAGE, 0),
            (40, 0, 98, 0, 1, 1, 1, EventKind.IMAGE, 0),  # without a mark
            (50, 0, 99, 0, 1, 1, 1, EventKind.IMAGE, 1),  # refused
        ],
        core().event,
    )
    assert [image.position for image in decoded_images(events)] == [3, None]
