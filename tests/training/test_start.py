"""What a run that goes on takes out of its records."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.conftest import read_lines
from tfpipe import Stream
from tfpipe.training.checkpoints import Batch, State
from tfpipe.training.start import forget_after

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
    state = State(epoch, total_steps % 10, total_steps, Batch(1, 4), Stream.start(1), {})
    forget_after(tmp_path, replace(state, untested=untested))
    assert read_lines(tmp_path) == LINES[:kept]
