"""Sweeps a few keys that change neither pixels nor order, one after the other, and keeps the values that gain.

Each sweep begins with the value at hand, so that only a faster one takes its place. The end is compared with the start
in turns: if it is not faster, nothing is changed.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from operator import attrgetter
from typing import Any, NamedTuple

from tfpipe.config import Config, DataConfig
from tfpipe.data.runtime.parallelism import READS, thread_budget
from tfpipe.data.split import Split
from tfpipe.distributed import World
from tfpipe.tools.bench import sweep
from tfpipe.tools.bench.bench import BenchPlan
from tfpipe.tools.bench.sweep import Axis, Sweep
from tfpipe.tools.measure import Pipelines, Spread

TURNS = 3
FRACTIONS = (1.0, 0.75, 0.5, 0.25)
# Sweeps, and values of each, that the time is divided among, and the share of it in which segments are measured.
SWEEPS, VALUES, MEASURED = 5, 4, 0.5

Load = Callable[[list[str]], Config]
"""(overrides) -> the config with them."""


class Tuning(NamedTuple):
    """The sweeps made, and what their best values gain together."""

    sweeps: list[Sweep]
    changes: dict[str, str]  # values to set by key; {} if none is faster
    together: Sweep | None  # of the start and the end; None if no sweep has found a faster value

    @property
    def gain(self) -> Spread | None:
        """Rate of the end divided by that of the start, turn by turn."""
        if self.together is None:
            return None
        start, end = self.together.threads
        return self.together.ratio(end, start)


def run(load: Load, world: World, minutes: float, with_step: bool) -> Tuning:
    """Sweeps the keys for about so many minutes; without `with_step`, those that a training step does not decide.

    Raises ConfigError if the config cannot be used, TfpipeError if a file cannot.
    """
    split = Pipelines(world, 0.0).split(load([]))
    plan = BenchPlan(seconds=60 * minutes * MEASURED / SWEEPS / VALUES, repeats=TURNS)
    start: dict[str, str] = {}
    changes: dict[str, str] = {}
    sweeps = []
    for key in keys(split, with_step):
        config = load(_overrides(changes))
        axis = axis_of(key, config.data, world)
        if axis is None:
            continue
        settings = sweep.settings_of([axis], lambda chosen: load([*_overrides(changes), *chosen]))
        swept = sweep.run([axis], settings, world, plan)
        sweeps.append(swept)
        (value,) = swept.knee
        if value != axis.values[0]:
            start[key], changes[key] = axis.values[0], value
    if not changes:
        return Tuning(sweeps, {}, None)
    ends = {tuple(start.values()): load([]), tuple(changes.values()): load(_overrides(changes))}
    axes = [Axis(key, (start[key], changes[key])) for key in changes]
    tuning = Tuning(sweeps, changes, sweep.run(axes, ends, world, plan))
    return tuning if tuning.gain and tuning.gain.median > 1 + sweep.AS_GOOD else tuning._replace(changes={})


def keys(split: Split, with_step: bool) -> Iterator[str]:
    """Yields the keys to sweep, those that usually gain most first; none changes a pixel, a label or the order."""
    yield "data.num_parallel_readers"
    if split.config.service is None and split.stores == "images":
        yield "data.remote.concurrency" if split.catalog.paths.remote else "data.parallel.read"
    yield "data.prefetch_buffer_size"
    if with_step:
        yield from ("data.threads", "data.cpu_fraction")  # the first overrides the second


def axis_of(key: str, data: DataConfig, world: World) -> Axis | None:
    """Returns a key's values, the one at hand first, without those that are the same; None if there is no other."""
    at_hand = attrgetter(key.removeprefix("data."))(data)
    others: Mapping[str, tuple[Any, ...]] = {
        "data.num_parallel_readers": ("auto",),
        "data.remote.concurrency": (16, 64, 256),
        "data.parallel.read": (READS // 4, READS, 2 * READS, 4 * READS),
        "data.prefetch_buffer_size": ("auto", 8),
        "data.threads": (None,),
        "data.cpu_fraction": FRACTIONS if data.threads is None else (),
    }
    values = list(dict.fromkeys([at_hand, *others[key]]))
    if key == "data.cpu_fraction":
        threads = [thread_budget(data.model_copy(update={"cpu_fraction": share}), world) for share in values]
        values = [share for place, share in enumerate(values) if threads.index(threads[place]) == place]
    texts = [each if isinstance(each, str) else json.dumps(each) for each in values]
    return Axis(key, tuple(texts)) if len(texts) > 1 else None


def _overrides(changes: Mapping[str, str]) -> list[str]:
    return [f"{key}={value}" for key, value in changes.items()]


def render(tuning: Tuning) -> str:
    """Returns a table for each key, what all changes gain together, and, as the last line, the arguments to use."""
    parts = [sweep.render(swept) for swept in tuning.sweeps]
    if tuning.gain is None:
        parts.append("no value is faster than the one at hand")
    else:
        gain, low, high = tuning.gain
        refused = "" if tuning.changes else ": not faster than at the start, so nothing is changed"
        parts.append(f"together  x {gain:.2f} ({low:.2f} to {high:.2f}), in {TURNS} turns{refused}")
    return "\n\n".join([*parts, " ".join(f"--set {each}" for each in _overrides(tuning.changes)) or "change nothing"])


def as_json(tuning: Tuning) -> dict[str, Any]:
    """Returns all raw and derived numbers."""
    return {
        "changes": tuning.changes,
        "gain": tuning.gain and tuning.gain._asdict(),
        "sweeps": [sweep.as_json(swept) for swept in tuning.sweeps],
        "together": tuning.together and sweep.as_json(tuning.together),
    }
