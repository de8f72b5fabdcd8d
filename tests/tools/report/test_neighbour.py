"""The noisy neighbour: which runs are told that their pipeline takes the CPUs of their model."""

from pathlib import Path
from typing import Any

import pytest

from tfpipe.config import DataConfig
from tfpipe.tools.report.runs import Run
from tfpipe.tools.report.verdict import diagnose


def run_of(
    wait: float = 0.01, busy: float = 0.97, queued: float = 0.6, taken: float = 1.2, reading: float = 30.0
) -> Run:
    """A run of 10 s on 2 CPUs, whose pipeline kept so many threads busy."""
    interval: dict[str, Any] = {
        **{"steps": 100, "seconds": 10.0, "cores": 2, "input_wait_fraction": wait, "ranks": [{"rank": 0}]},
        **{"cpu_fraction": busy, "queued_fraction": queued, "straggler": None},
        "stages": [
            {"stage": "read", "elements": 3200, "busy_ms": 1e4 * reading / 3200, "parallelism": 64},
            {"stage": "crop", "elements": 100, "busy_ms": 1e4 * taken / 100, "parallelism": 2},
        ],
    }
    return Run(Path("runs/x"), DataConfig(train_filelist=Path("/train.txt")), None, (interval,), {})


@pytest.mark.parametrize(
    ("run", "kind"),
    [
        (run_of(), "neighbour"),
        (run_of(wait=0.2), "input"),  # It waits: a faster pipeline comes first.
        (run_of(busy=0.5, queued=2.0), "compute"),  # Other processes have the CPUs.
        (run_of(queued=0.1), "compute"),  # There is room for all threads.
        (run_of(taken=0.1), "compute"),  # The model queues for itself; the pipeline takes little.
    ],
)
def test_a_neighbour_is_noisy_if_the_step_does_not_wait_and_both_want_the_cpus(run: Run, kind: str) -> None:
    assert diagnose(run).kind == kind


def test_the_evidence_is_in_cpus_and_the_advice_is_a_sweep() -> None:
    found = diagnose(run_of())
    assert "waits 1.0 % of its time" in found.headline
    assert "97 % of 2 CPUs are busy, 1.2 more threads could have run" in found.because
    assert "threads keep 1.2 CPUs" in found.because  # without those that read
    assert "--sweep data.cpu_fraction=0.25,0.5,0.75,1" in found.advice and "(now 1)" in found.advice
