"""The picture of a test batch: its pixels, and the events of a real run."""

from pathlib import Path

import numpy as np
import tensorflow as tf

from tests.support.runs import read_metrics
from tests.support.sample import SampleData
from tfpipe import Loader, World, load_config
from tfpipe.training.loop import train
from tfpipe.training.monitor.pictures import FRAME_PX, RIGHT, WRONG, TestPicture, grid


def test_a_frame_says_whether_the_prediction_is_right() -> None:
    images = np.arange(5 * 4 * 6, dtype=np.uint8).reshape(5, 4, 6, 1)
    pixels = grid(images, np.array([True, False, True, False, True]))
    height, width = 4 + 2 * FRAME_PX, 6 + 2 * FRAME_PX
    assert pixels.shape == (2 * height, 3 * width, 3)
    for number in range(5):
        cell = pixels[number // 3 * height :, number % 3 * width :][:height, :width]
        assert tuple(cell[0, 0]) == tuple(cell[-1, -1]) == (WRONG if number % 2 else RIGHT)
        np.testing.assert_array_equal(cell[FRAME_PX:-FRAME_PX, FRAME_PX:-FRAME_PX], images[number].repeat(3, axis=2))
    assert not pixels[height:, 2 * width :].any()


def test_floats_fill_the_range_and_large_images_are_thinned_out() -> None:
    images = np.linspace(-2, 2, 200 * 100, dtype=np.float32).reshape(1, 200, 100, 1)
    inside = grid(images, np.array([True]))[FRAME_PX:-FRAME_PX, FRAME_PX:-FRAME_PX]
    assert inside.shape == (67, 34, 3) and inside.min() == 0 and inside.max() == 255


def test_each_test_pass_of_a_run_leaves_the_picture_of_its_first_batch(sample: SampleData, tmp_path: Path) -> None:
    training = {"epochs": 2, "steps_per_epoch": 2}
    config = load_config(sample.config(tmp_path / "c.json", training=training))
    (run_dir := tmp_path / "run").mkdir()
    train(config, World(), run_dir)
    (events,) = (run_dir / "test").glob("events*")
    values = [
        (event.step, value)
        for event in tf.compat.v1.train.summary_iterator(str(events))
        for value in event.summary.value
        if value.tag == "batch"
    ]
    assert [step for step, _ in values] == [line["step"] for line in read_metrics(run_dir)] == [2, 4]
    drawn = tf.io.decode_png(values[-1][1].tensor.string_val[2]).numpy()
    with Loader(config, "test") as loader:
        images, _ = next(loader)
    side = 32 + 2 * FRAME_PX
    assert drawn.shape == (4 * side, 4 * side, 3)
    np.testing.assert_array_equal(drawn[FRAME_PX : side - FRAME_PX, FRAME_PX : side - FRAME_PX], images[0].numpy())


def test_a_pass_is_drawn_once() -> None:
    picture = TestPicture()
    labels = np.array([1, 2])
    for level in (10, 20):
        picture.add(tf.fill([2, 8, 8, 3], tf.constant(level, tf.uint8)), labels, labels)
    first = picture.take()
    assert first is not None and first[FRAME_PX, FRAME_PX, 0] == 10 and picture.take() is None
