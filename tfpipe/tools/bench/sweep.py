"""Sweeps keys of the config: the pipeline's rate, or that of a training step, at each value, in turns; and the knee.

`tune` sweeps a few keys that change neither pixels nor order, one after the other, and keeps the values that gain. Each
sweep begins with the value at hand, so that only a faster one takes its place. The end is compared with the start in
turns: if it is not faster, nothing is changed.
"""

import dataclasses
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, NamedTuple

from tfpipe.config import Config, DataConfig
from tfpipe.data.runtime.parallelism import READS, thread_budget
from tfpipe.data.split import Split
from tfpipe.distributed import World
from tfpipe.errors import ConfigError, counted
from tfpipe.tools.bench.axes import Axis, Load, Setting, settings_of
from tfpipe.tools.bench.bench import BenchPlan
from tfpipe.tools.bench.headspace import from_memory, headspace, training_step
from tfpipe.tools.measure import Pipelines, Segment, Spread, in_turns, ratio_of, spread_of
from tfpipe.util.console import extent, line

# A rate this much below the best one is as good: turns differ more.
AS_GOOD = 0.03
# Divides the CPUs between pipeline and model: only a training step shows what it does.
SHARED_KEY = "data.threads"
# A step takes batches of these, and more would need another model.
OF_BATCHES = ("crop_image_size", "num_channels", "dtype", "batch_size")
# Stands in place of a setting for the step that is fed from memory.
MEMORY = ()
TURNS = 3
SHARES = (None, 0.75, 0.5, 0.25)
# Sweeps, and values of each, that the time is divided among, and the share of it in which segments are measured.
SWEEPS, VALUES, MEASURED_SHARE = 5, 4, 0.5


@dataclass(frozen=True)
class Sweep:
    """The segments of each setting."""

    keys: tuple[str, ...]
    threads: dict[Setting, int]
    """Threads of the pipeline by setting, which is the values of the keys, in the order given."""
    segments: dict[Setting, list[Segment]]
    """Segments by setting, and of a training step from memory by MEMORY; the n-th ones are of the same turn."""
    batch_size: int

    @property
    def has_training(self) -> bool:
        """True if a training step was measured, not the pipeline alone."""
        return MEMORY in self.segments

    def rate(self, setting: Setting) -> Spread:
        """Returns a setting's steps/s if a training step was measured, else crops/s."""
        batch_size = self.batch_size if self.has_training else 1
        return Spread(*(rate / batch_size for rate in spread_of(self.segments[setting], "crops_per_second")))

    def ratio(self, setting: Setting, to: Setting) -> Spread:
        """Returns a setting's rate divided by another's, turn by turn."""
        return ratio_of(self.segments[setting], self.segments[to], "crops_per_second")

    @property
    def best(self) -> Setting:
        """The setting with the highest median rate."""
        return max(self.threads, key=lambda setting: self.rate(setting).median)

    @property
    def knee(self) -> Setting:
        """The first setting that is as good as the best; of two keys, the one with the fewest steps along both."""
        good = [setting for setting in self.threads if self.ratio(setting, self.best).median >= 1 - AS_GOOD]
        axes = [list(dict.fromkeys(values)) for values in zip(*self.threads, strict=True)]
        places = {s: [axis.index(value) for axis, value in zip(axes, s, strict=True)] for s in good}
        return min(good, key=lambda setting: (sum(places[setting]), places[setting]))


def run(axes: Sequence[Axis], settings: Mapping[Setting, Config], world: World, plan: BenchPlan) -> Sweep:
    """Measures the training pipeline at every setting; with a training step if a key divides the CPUs, or if asked for.

    Raises ConfigError if the plan, a filelist or a label cannot be used, or the settings need different models; a
    TfpipeError if a file cannot be used.
    """
    plan.check(world)
    if world.size > 1:
        raise ConfigError("--sweep is of one rank: leave out the launcher")
    with_step = plan.headspace or any(axis.key == SHARED_KEY for axis in axes)
    first, pipelines = next(iter(settings.values())), Pipelines(world, plan.warm_up_s)
    measured: dict[Setting, Callable[[float], Segment]] = {}
    with pipelines.failures_named(first):
        step = settle_s = None
        if with_step:
            if len({tuple(getattr(c.data, name) for name in OF_BATCHES) for c in settings.values()}) > 1:
                keys = ", ".join(f"data.{name}" for name in OF_BATCHES)
                raise ConfigError(
                    f"a training step is swept with batches of one shape: leave out {keys}, or --headspace"
                )
            step = training_step(first, pipelines)
            measured[MEMORY], settle_s = from_memory(first, pipelines, step)
        measured |= {setting: pipelines.new(config, step, settle_s).measure for setting, config in settings.items()}
        segments = in_turns(measured, plan.repeats, plan.segment_s, world.rank == 0)
    threads = {setting: thread_budget(config.data, world) for setting, config in settings.items()}
    return Sweep(tuple(axis.key for axis in axes), threads, segments, first.data.batch_size)


def render(sweep: Sweep) -> str:
    """Returns a table with a line for each setting, the knee, and whether the pipeline slows the training step."""
    names = {setting: name_of(sweep, setting) for setting in sweep.threads}
    widths = (max(24, *map(len, names.values())) + 2, 10, 18, 9, 9, 8, 11)
    unit, *trained = ("steps/s", "wait", "of memory") if sweep.has_training else ("crops/s",)
    lines = [line(widths, "", unit, "min to max", "of best", "threads", *trained)]
    for setting, threads in sweep.threads.items():
        cells = [*extent(sweep.rate(setting), 2 if sweep.has_training else 0)]
        cells += [f"{sweep.ratio(setting, sweep.best).median:.2f}", str(threads)]
        if sweep.has_training:
            wait = spread_of(sweep.segments[setting], "wait_share").median
            cells += [f"{100 * wait:.0f} %", f"{sweep.ratio(setting, MEMORY).median:.2f}"]
        knee = "   <- knee" if setting == sweep.knee else ""
        lines.append(f"{line(widths, names[setting], *cells)}{knee}")
    turns = len(sweep.segments[sweep.best])
    lines.append(f"Medians of {counted(turns, 'turn')}, in which all settings alternate; ratios turn by turn.")
    return "\n\n".join(["\n".join(lines), *_conclusions(sweep)])


def _conclusions(sweep: Sweep) -> list[str]:
    """Returns the lines below the table: the knee, and whether the pipeline slows the training step."""
    best, knee, share = sweep.best, sweep.knee, f"{100 * AS_GOOD:.0f} %"
    flags = " ".join(f"--set {key}={value}" for key, value in zip(sweep.keys, knee, strict=True))
    told = f"no setting before it comes within {share} of it"
    if knee != best:
        ratio = sweep.ratio(knee, best).median
        told = f"{ratio:.2f} of the best, {name_of(sweep, best)}; less than {share} is won beyond it"
    lines = [f"knee      {flags}: {told}"]
    fullest = max(sweep.threads, key=lambda setting: (sweep.threads[setting], setting))
    if sweep.has_training:
        room = headspace(sweep.segments[fullest], sweep.segments[MEMORY], sweep.batch_size)
        if room.is_noisy:
            gain = sweep.ratio(best, fullest)
            lines.append(
                f"NOISY NEIGHBOUR: at {name_of(sweep, fullest)} a step waits {100 * room.wait.median:.0f} % of its "
                f"time, and is still {100 * room.share.median:.0f} % slower than from memory:\n"
                f"the pipeline takes the model's CPUs. {name_of(sweep, best)} gives x {gain.median:.2f} "
                f"({gain.low:.2f} to {gain.high:.2f}) of its steps/s"
            )
    return lines


def as_json(sweep: Sweep) -> dict[str, Any]:
    """Returns all raw and derived numbers; rates in the sweep's unit."""

    def raw(setting: Setting) -> list[dict[str, Any]]:
        return [dataclasses.asdict(segment) for segment in sweep.segments[setting]]

    return {
        "keys": sweep.keys,
        "unit": "steps/s" if sweep.has_training else "crops/s",
        "best": sweep.best,
        "knee": sweep.knee,
        "settings": [
            {
                "values": setting,
                "rate": sweep.rate(setting)._asdict(),
                "of_best": sweep.ratio(setting, sweep.best)._asdict(),
                "threads": threads,
                "segments": raw(setting),
            }
            for setting, threads in sweep.threads.items()
        ],
        "memory": raw(MEMORY) if sweep.has_training else None,
    }


def name_of(sweep: Sweep, setting: Setting) -> str:
    """Returns a setting as a reader writes it: KEY=VALUE of each key."""
    return " ".join(f"{key}={_plain(value)}" for key, value in zip(sweep.keys, setting, strict=True))


def _plain(value: str) -> str:
    try:
        loaded = json.loads(value)
    except ValueError:
        return value
    return loaded if isinstance(loaded, str) else value


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


def tune(load: Load, world: World, minutes: float, with_step: bool) -> Tuning:
    """Sweeps the keys for about so many minutes; without `with_step`, those that a training step does not decide.

    Raises ConfigError if the config cannot be used, TfpipeError if a file cannot.
    """
    split = Pipelines(world, 0.0).split(load([]))
    plan = BenchPlan(seconds=60 * minutes * MEASURED_SHARE / SWEEPS / VALUES, repeats=TURNS)
    start: dict[str, str] = {}
    changes: dict[str, str] = {}
    sweeps = []
    for key in tuned_keys(split, with_step):
        config = load(_overrides(changes))
        axis = tuned_axis(key, config.data, world)
        if axis is None:
            continue
        settings = settings_of([axis], lambda chosen: load([*_overrides(changes), *chosen]))
        swept = run([axis], settings, world, plan)
        sweeps.append(swept)
        (value,) = swept.knee
        if value != axis.values[0]:
            start[key], changes[key] = axis.values[0], value
    if not changes:
        return Tuning(sweeps, {}, None)
    ends = {tuple(start.values()): load([]), tuple(changes.values()): load(_overrides(changes))}
    axes = [Axis(key, (start[key], changes[key])) for key in changes]
    tuning = Tuning(sweeps, changes, run(axes, ends, world, plan))
    return tuning if tuning.gain and tuning.gain.median > 1 + AS_GOOD else tuning._replace(changes={})


def tuned_keys(split: Split, with_step: bool) -> Iterator[str]:
    """Yields the keys to sweep, those that usually gain most first; none changes a pixel, a label or the order."""
    yield "data.num_parallel_readers"
    if split.config.service is None and split.stores == "images":
        yield "data.remote.concurrency" if split.catalog.paths.remote else "data.parallel.read"
    yield "data.prefetch_buffer_size"
    if with_step:
        yield SHARED_KEY


def tuned_axis(key: str, data: DataConfig, world: World) -> Axis | None:
    """Returns a key's values, the one at hand first, without those that are the same; None if there is no other."""
    at_hand = attrgetter(key.removeprefix("data."))(data)
    others: Mapping[str, tuple[Any, ...]] = {
        "data.num_parallel_readers": ("auto",),
        "data.remote.concurrency": (16, 64, 256),
        "data.parallel.read": (READS // 4, READS, 2 * READS, 4 * READS),
        "data.prefetch_buffer_size": ("auto", 8),
        SHARED_KEY: SHARES,
    }
    values = list(dict.fromkeys([at_hand, *others[key]]))
    if key == SHARED_KEY:
        threads = [thread_budget(data.model_copy(update={"threads": share}), world) for share in values]
        values = [share for place, share in enumerate(values) if threads.index(threads[place]) == place]
    texts = [each if isinstance(each, str) else json.dumps(each) for each in values]
    return Axis(key, tuple(texts)) if len(texts) > 1 else None


def _overrides(changes: Mapping[str, str]) -> list[str]:
    return [f"{key}={value}" for key, value in changes.items()]


def render_tuning(tuning: Tuning) -> str:
    """Returns a table for each key, what all changes gain together, and, as the last line, the arguments to use."""
    parts = [render(swept) for swept in tuning.sweeps]
    if tuning.gain is None:
        parts.append("no value is faster than the one at hand")
    else:
        gain, low, high = tuning.gain
        refused = "" if tuning.changes else ": not faster than at the start, so nothing is changed"
        parts.append(f"together  x {gain:.2f} ({low:.2f} to {high:.2f}), in {TURNS} turns{refused}")
    return "\n\n".join([*parts, " ".join(f"--set {each}" for each in _overrides(tuning.changes)) or "change nothing"])


def tuning_as_json(tuning: Tuning) -> dict[str, Any]:
    """Returns all raw and derived numbers."""
    return {
        "changes": tuning.changes,
        "gain": tuning.gain and tuning.gain._asdict(),
        "sweeps": [as_json(swept) for swept in tuning.sweeps],
        "together": tuning.together and as_json(tuning.together),
    }
