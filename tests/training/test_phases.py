"""Training with sizes by epoch: epochs of their steps, a resume bit for bit, and models that take several sizes."""

import json
import logging
import signal
from pathlib import Path

import keras
import numpy as np
import pytest

from tests.support.commands import run_train
from tests.support.runs import interrupted, read_metrics, steps, trained
from tests.support.sample import TINY, SampleData
from tfpipe import Config, ConfigError, World, load_config, make_config
from tfpipe.data.order.schedule import Schedule
from tfpipe.errors import Stopped
from tfpipe.training.compile import build_optimizer
from tfpipe.training.loop import load_run
from tfpipe.training.models import build_model

SIZES = {"crop_image_size": [[0, 16], [1, 24]], "test_crop_image_size": [32, 32], "batch_size": [[0, 8], [1, 4]]}


def test_an_interrupted_run_ends_with_the_same_weights_bit_for_bit(sample: SampleData, tmp_path: Path) -> None:
    """Epochs of 12 and 24 steps; the run is told to stop before and after the change of sizes."""
    config = sample.config(
        tmp_path / "c.json",
        data={"crop": "random_resized", **SIZES},
        model={**TINY, "args": {"dropout": 0.5}},
        lr_schedule={"name": "CosineDecay"},
        training={"epochs": 2, "deterministic": True, "log_positions": True},
    )
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    done = run_train("-c", config, "-l", whole)
    assert done.code == 0, done.err
    assert "from epoch 1 on: 12 steps of 8 crops of 16x16" in done.err
    assert "from epoch 2 on: 24 steps of 4 crops of 24x24" in done.err
    for after in (4, 16):
        stopped = interrupted(1, config, parts, after, signal.SIGTERM, "--resume", "auto")
        assert stopped.code == Stopped.exit_code, stopped.err
        assert after <= steps(parts) < 36
    ended = run_train("-c", config, "-l", parts, "--resume")
    assert ended.code == 0, ended.err
    models = [keras.models.load_model(run_dir / "model.keras") for run_dir in (whole, parts)]
    assert models[0].input_shape == (None, None, None, 3)
    for expected, got in zip(*(model.get_weights() for model in models), strict=True):
        np.testing.assert_array_equal(got, expected)
    assert trained(parts) == trained(whole)
    assert sorted(position for _, position, _ in trained(whole)) == list(range(2 * 96))
    first, last = read_metrics(whole)
    assert (first["step"], last["step"], last["test_images"]) == (12, 36, 37)
    assert "epoch 2/2  step 20/24" in done.out
    other = run_train("-c", config, "-l", parts, "--resume", "--set", "data.batch_size=[[0, 8], [1, 6]]")
    assert other.code == 2 and "data.batch_size: 1 rank x 4 then, 1 rank x 6 now" in other.err


def test_sizes_that_no_epoch_has_are_named(
    sample: SampleData, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = load_config(sample.config(tmp_path / "c.json", data={"crop": "random_resized", **SIZES}))
    with caplog.at_level(logging.INFO):
        load_run(config, World())
    lines = [record.getMessage() for record in caplog.records if record.getMessage().startswith("from epoch")]
    assert [line.endswith(", which training.epochs does not reach") for line in lines] == [False, True]


def config_of(name: str, **data: object) -> Config:
    raw = {"data": {"train_filelist": "unused.txt", **data}, "model": {"name": name}}
    return make_config(raw)


@pytest.mark.parametrize("name", ["resnet18", "MobileNetV2", "tests.support.models:tiny"])
def test_a_model_takes_all_sizes_of_crops(name: str) -> None:
    sizes = {"crop_image_size": [[0, [32, 48]], [2, [64, 48]]], "test_crop_image_size": [96, 48]}
    model = build_model(config_of(name, **sizes), 4)
    assert model.input_shape == (None, None, 48, 3)
    fixed = build_model(config_of(name, crop_image_size=[64, 48]), 4)
    assert fixed.input_shape == (None, 64, 48, 3)
    fixed.set_weights(model.get_weights())
    pixels = np.random.default_rng(0).integers(0, 255, (2, 64, 48, 3), np.uint8)
    np.testing.assert_allclose(fixed(pixels), model(pixels), atol=1e-5)
    assert model(pixels[:, :32]).shape == (2, 4)


@pytest.mark.parametrize("name", ["VGG16", "tests.support.models:of_one_size"])
def test_a_model_of_one_size_is_refused(name: str) -> None:
    sizes = {"crop_image_size": [[0, 32], [2, 64]]}
    with pytest.raises(
        ConfigError, match=rf"crops have several sizes, .*: model\.name {name.split(':')[0]}.* must take"
    ):
        build_model(config_of(name, **sizes), 4)


def test_the_learning_rate_falls_over_the_steps_of_all_epochs() -> None:
    config = make_config(
        {
            "data": {"train_filelist": "unused.txt", **SIZES},
            "lr_schedule": {"name": "CosineDecay"},
            "training": {"epochs": 3},
            "optimizer": {"name": "SGD", "learning_rate": 0.5},
        }
    )
    schedule = Schedule.of(config.data, 96, 1)
    assert [schedule.first_step(epoch) for epoch in range(4)] == [0, 12, 36, 60]
    rate = build_optimizer(config, 1, schedule.phase(0).steps, schedule.first_step(3))._learning_rate
    assert float(rate(30)) == pytest.approx(0.25) and float(rate(60)) == pytest.approx(0)
    assert json.loads(config.model_dump_json())["data"]["batch_size"] == SIZES["batch_size"]
