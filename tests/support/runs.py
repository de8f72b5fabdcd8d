"""Runs of train.py: their start, their metrics, and the samples that they have trained."""

import json
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tests.support.commands import ROOT, Finished, Processes, finish, start, start_ranks
from tfpipe import World, load_config
from tfpipe.data.catalog.boxes import with_boxes
from tfpipe.data.runtime.clock import DELAY_MS
from tfpipe.data.sources.registry import load_split

# 50 images a second of each rank, by these settings and this environment, whatever the machine: a test can meet a run
# at a step of its choice.
SLOW = {"parallel": {"read": 1}, "prefetch_buffer_size": 2}
LATE = {DELAY_MS: "20"}
SLOWLY = [word for key, value in SLOW.items() for word in ("--set", f"data.{key}={json.dumps(value)}")]


def read_metrics(run_dir: Path) -> list[dict[str, Any]]:
    return [line for line in read_lines(run_dir) if not {"interval", "stall"} & line.keys()]


def read_intervals(run_dir: Path) -> list[dict[str, Any]]:
    return [line for line in read_lines(run_dir) if "interval" in line]


def read_lines(run_dir: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]


def train(size: int, *args: str | Path, **environ: str) -> subprocess.Popen[str]:
    """Starts train.py ARGS on `size` ranks."""
    command = (sys.executable, ROOT / "train.py", *args)
    return start(*command, **environ) if size == 1 else start_ranks(size, *command, **environ)


def wait_for(done: Callable[[], object], process: subprocess.Popen[str] | None = None) -> None:
    """Waits until `done()`; fails if the process ends before. Only pytest's limit of a test bounds the wait."""
    while not done():
        if process is not None and process.poll() is not None:
            # What the process did last may be what is waited for.
            assert done(), process.communicate()
            return
        time.sleep(0.05)


def trained(run_dir: Path) -> list[tuple[int, int, int]]:
    """(step, position, crop) of every crop that the run's logs hold, over all ranks."""
    lines = [line for path in sorted(run_dir.glob("positions-*.csv")) for line in path.read_text().splitlines()[1:]]
    return [tuple(map(int, line.split(","))) for line in lines if line.count(",") == 2]


def steps(run_dir: Path) -> int:
    """Steps that the logs of a run's positions have reached."""
    return max((step for step, *_ in trained(run_dir)), default=0)


def epoch_of(config: Path, overrides: Sequence[str] = (), epochs: int = 1, size: int = 1) -> Counter[tuple[int, int]]:
    """(position, crop) of everything in the first epochs; only the scope "shard" depends on the number of ranks."""
    data = load_config(config, overrides).data
    split = load_split(data, "train", World())
    order, catalog = split.order, split.catalog
    boxes = catalog.boxes if catalog.boxes is not None else with_boxes(catalog, split.storage, World()).boxes
    of_images = (
        np.bincount(boxes.images, minlength=len(catalog)) if data.crop == "boxes" else np.ones(len(catalog), int)
    )
    crops = of_images if data.unit == "image" else np.ones(order.count, int)
    places: Counter[tuple[int, int]] = Counter()
    for rank in range(size):
        positions = np.arange(rank, epochs * order.count, size)
        for position, item in zip(positions.tolist(), order.items(positions, World(rank, size)), strict=True):
            places.update((position, crop) for crop in range(crops[item]))
    return places


def interrupted(
    size: int,
    config: Path,
    run_dir: Path,
    after: int,
    number: signal.Signals,
    *args: str,
    slowly: Sequence[str] = SLOWLY,
) -> Finished:
    """A slow run that gets a signal once it has trained `after` steps.

    SIGKILL goes to every rank, SIGTERM to the last, and SIGUSR1 to mpirun, which passes it on.
    """
    ranks = Processes(config.parent / "pids")
    process = train(size, "-c", config, "-l", run_dir, *slowly, *args, **LATE, **ranks.environ)
    wait_for(lambda: steps(run_dir) >= after, process)
    if number == signal.SIGUSR1:
        process.send_signal(number)
    else:
        ranks.signal(number, *([] if number == signal.SIGKILL else [size - 1]))
    return finish(process)


def check_tests(run_dir: Path, config: Path) -> None:
    """Each test image and crop was counted once in both epochs."""
    split = load_split(load_config(config).data, "test", World())
    crops = len(with_boxes(split.catalog, split.storage, World()).boxes.images)
    assert [(line["test_images"], line["test_crops"]) for line in read_metrics(run_dir)] == [(37, crops)] * 2


def check_epoch(run_dir: Path, config: Path, overrides: Sequence[str] = ()) -> None:
    """Each sample of the first epoch exactly once, and none of the second twice."""
    seen = Counter((position, crop) for _, position, crop in trained(run_dir))
    wanted = epoch_of(config, overrides)
    assert {place: count for place, count in seen.items() if place in wanted} == wanted
    assert max(seen.values()) == 1
