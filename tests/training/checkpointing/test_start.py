"""A run goes on from its last checkpoint; lines beyond it leave the run's records."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.runs import read_lines
from tests.support.sample import SampleData
from tfpipe import Config, Loader, Stream, World, load_config
from tfpipe.data.sources.registry import load_split
from tfpipe.training.checkpointing.checkpoints import Checkpoint, GlobalBatch, State, contract_of, settings_of, write
from tfpipe.training.checkpointing.start import find_start, forget_after

# Two epochs of 10 steps, and half of a third; a line of each kind.
LINES = [
    *({"epoch": 1, "step": step, "interval": {}} for step in (5, 10)),
    {"epoch": 1, "step": 10, "loss": 1.0},
    {"epoch": 2, "step": 13, "stall": {"seconds": 30.0, "in": "input", "rank": 0}},
    *({"epoch": 2, "step": step, "interval": {}} for step in (15, 20)),
    {"epoch": 2, "step": 20, "loss": 0.5},
    {"epoch": 3, "step": 25, "interval": {}},
]


@pytest.mark.parametrize(
    ("epoch", "total_steps", "untested", "kept"),
    [
        (0, 0, None, 0),
        (0, 7, None, 1),
        (1, 10, None, 3),
        (1, 12, None, 3),
        (1, 13, None, 4),
        (1, 19, None, 5),
        (2, 20, None, 7),
        # The epoch's own line is written once its test pass has been made up for.
        (2, 20, {"loss": 0.5}, 6),
        (2, 25, None, 8),
    ],
)
def test_lines_beyond_the_checkpoint_go(
    tmp_path: Path, epoch: int, total_steps: int, untested: dict[str, float] | None, kept: int
) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in LINES) + '{"epoch": 3, "step"')
    state = State(epoch, total_steps % 10, total_steps, GlobalBatch(1, 4), Stream.start(1), {})
    forget_after(tmp_path, replace(state, untested=untested))
    assert (read_lines(tmp_path) if kept else []) == LINES[:kept] and path.exists() == bool(kept)


@pytest.mark.parametrize(
    "damaged",
    [
        '{"epoch": 1, "step": 5, "inter',
        '{"epoch": 1, "st{"epoch": 1, "step": 10}',
        "\0\0\0",
        "[1]",
        "{}",
        '{"epoch": 1, "step": "x"}',
    ],
)
def test_a_damaged_line_is_named_and_left_out_and_ends_no_resume(
    tmp_path: Path, damaged: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A kill in a write, or a crash of the machine, cuts a line off; the next run of the directory appended to it."""
    path = tmp_path / "metrics.jsonl"
    lines = [json.dumps(line) for line in LINES]
    path.write_text("\n".join([*lines[:2], damaged, *lines[2:]]) + "\n")
    (tmp_path / "positions-0.csv").write_bytes(b"step,position,crop\n1,0,0\n\xff,1,0\n2,2,0\n")
    forget_after(tmp_path, State(2, 0, 20, GlobalBatch(1, 4), Stream.start(1)))
    assert read_lines(tmp_path) == LINES[:7]
    assert f"{path}: line 3 is damaged, and left out: {ascii(damaged)[:20]}" in caplog.text
    assert (tmp_path / "positions-0.csv").read_text() == "step,position,crop\n1,0,0\n2,2,0\n"


def test_each_setting_that_differs_from_the_checkpoints_is_named_when_the_run_resumes(
    sample: SampleData, index: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def configured(**sections: Any) -> Config:
        return load_config(sample.config(tmp_path / "c.json", data={"index": index}, **sections))

    old = {"optimizer": {"name": "SGD", "args": {"learning_rate": 0.1}}, "loss": {"args": {"label_smoothing": 0.1}}}
    config = configured(**old)
    split = load_split(config.data, "train", World())
    contract = contract_of(config, split)
    state = State(0, 3, 3, GlobalBatch(1, 16), Stream.start(1), contract, epoch_steps=6, settings=settings_of(config))
    write(tmp_path, Checkpoint(state, [], []), keep=1)
    find_start(Loader(config), tmp_path, 6, resume=True)
    assert "another setting" not in caplog.text
    find_start(Loader(configured(**old, lr_schedule={"scale_by_ranks": True})), tmp_path, 6, resume=True)
    assert "lr_schedule.scale_by_ranks, the factor: null then, 1 now" in caplog.text
    caplog.clear()
    other = configured(
        optimizer={"name": "SGD", "args": {"learning_rate": 0.01, "momentum": 0.9}},
        lr_schedule={"name": "CosineDecay"},
        model={"name": "tests.support.models:tiny", "args": {"norm": "group"}},
        training={"precision": "mixed_bfloat16", "status": 3, "checkpoint": {"keep": 5}},
    )
    start = find_start(Loader(other), tmp_path, 6, resume=True)
    said = {message.partition("had: ")[2] for message in caplog.messages if "another setting" in message}
    assert said == {
        "optimizer.args.learning_rate: 0.1 then, 0.01 now",
        "optimizer.args.momentum: null then, 0.9 now",
        'lr_schedule.name: null then, "CosineDecay" now',
        "loss.args.label_smoothing: 0.1 then, null now",
        "loss.args: null then, {} now",
        "model.args: {} then, null now",
        'model.args.norm: null then, "group" now',
        'training.precision: "float32" then, "mixed_bfloat16" now',
    }
    assert start.state.settings == settings_of(other), "the next checkpoint is compared with these"


def test_a_new_run_takes_nothing_over_from_one_that_left_no_checkpoint(sample: SampleData, tmp_path: Path) -> None:
    """Killed in its first steps, or at a full disk, which may leave an empty file."""
    config = load_config(sample.config(tmp_path / "c.json"))
    (tmp_path / "positions-0.csv").write_text("step,position,crop\n1,0,0\n")
    (tmp_path / "positions-1.csv").write_text("")
    start = find_start(Loader(config), tmp_path, 10)
    assert start.state.total_steps == 0
    assert (tmp_path / "positions-0.csv").read_text() == "step,position,crop\n"
    assert not (tmp_path / "positions-1.csv").exists()


@pytest.mark.parametrize(("fixed", "step", "scale"), [(None, 2, 0.5), (6, 3, 1.0), (12, 6, 2.0)])
def test_a_run_with_twice_the_crops_goes_on_from_the_same_share_of_an_epoch(
    sample: SampleData, index: str, tmp_path: Path, fixed: int | None, step: int, scale: float
) -> None:
    """Half of an epoch of 6 steps: 1.5 steps of 3, rounded, or as many of a fixed number whatever their crops."""
    data = {"index": index, "batch_size": 32}
    config = load_config(sample.config(tmp_path / "c.json", data=data, training={"steps_per_epoch": fixed}))
    split = load_split(config.data, "train", World())
    state = State(2, 3, 15, GlobalBatch(1, 16), Stream.start(1), contract_of(config, split), epoch_steps=6)
    write(tmp_path, Checkpoint(state, [], []), keep=1)
    start = find_start(Loader(config), tmp_path, fixed or 3, resume=True, anyway=True)
    assert (start.state.epoch, start.state.step, start.scale) == (2, step, scale)
    assert (start.state.total_steps, start.state.epoch_steps) == (15, fixed or 3)
