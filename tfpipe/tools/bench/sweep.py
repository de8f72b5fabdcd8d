"""Sweeps keys of the config: the pipeline's rate, or that of a training step, at each value, in turns; and the knee."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, NamedTuple

from tfpipe.config import Config, DataConfig
from tfpipe.data.catalog.types import Catalog
from tfpipe.data.runtime.parallelism import thread_budget
from tfpipe.data.sources.registry import load_catalog
from tfpipe.distributed import World
from tfpipe.errors import ConfigError
from tfpipe.tools.bench.bench import BenchPlan
from tfpipe.tools.bench.chains import Pipeline, failures_named
from tfpipe.tools.bench.headspace import REPLAY, Headspace, from_memory, headspace, training_step
from tfpipe.tools.bench.segments import Segment, Spread, in_turns, spread

# A rate this much below the best one is as good: turns differ more.
AS_GOOD = 0.03
# Keys that divide the CPUs between pipeline and model: only a training step shows what they do.
DIVIDING = ("data.cpu_fraction", "data.threads")
# Keys of the data section that neither a catalog nor a batch depends on.
RUNTIME = {"num_parallel_readers", "parallel", "prefetch_buffer_size", "threads", "cpu_fraction", "memory_budget"}
# A step takes batches of these, and more would need another model.
OF_BATCHES = ("crop_image_size", "num_channels", "dtype")


class Axis(NamedTuple):
    """A key and its values, as --set takes them."""

    key: str
    values: tuple[str, ...]

    @classmethod
    def parse(cls, text: str) -> "Axis":
        """Parses KEY=V1,V2,...; raises ConfigError."""
        key, _, values = text.partition("=")
        try:
            texts = [json.dumps(value) for value in json.loads(f"[{values}]")]
        except ValueError:
            texts = values.split(",")
        if not key.startswith("data.") or not all(texts) or len(set(texts)) < 2:
            raise ConfigError(
                "--sweep wants a key of the data section and two or more values, e.g. data.parallel.read=16,64,128; "
                f'received "{text}"'
            )
        return cls(key, tuple(texts))


class Setting(NamedTuple):
    """A point of a sweep: a value of each key, and the config with them."""

    values: tuple[str, ...]
    config: Config


@dataclass(frozen=True)
class Sweep:
    """The segments of each setting."""

    keys: tuple[str, ...]
    settings: tuple[tuple[str, ...], ...]
    """Values of the keys, by setting, in the order given."""
    threads: tuple[int, ...]
    """Threads of the pipeline, by setting."""
    segments: dict[tuple[str, ...], list[Segment]]
    """Segments by setting; the n-th ones are of the same turn."""
    memory: list[Segment] | None
    """Segments of a training step from memory; None if the pipeline alone was measured."""
    batch_size: int

    @property
    def unit(self) -> str:
        """Unit of the rates."""
        return "crops/s" if self.memory is None else "steps/s"

    def rates(self, setting: tuple[str, ...]) -> list[float]:
        """Returns a setting's rate by turn."""
        return [self._rate(segment) for segment in self.segments[setting]]

    def of_memory(self, setting: tuple[str, ...]) -> Spread | None:
        """Returns a setting's rate divided by that from memory, turn by turn; None if that was not measured."""
        if self.memory is None:
            return None
        pairs = zip(self.rates(setting), self.memory, strict=True)
        return spread([rate / self._rate(segment) for rate, segment in pairs])

    def ratio(self, setting: tuple[str, ...], to: tuple[str, ...]) -> Spread:
        """Returns a setting's rate divided by another's, turn by turn."""
        return spread([a / b for a, b in zip(self.rates(setting), self.rates(to), strict=True)])

    @property
    def best(self) -> tuple[str, ...]:
        """The setting with the highest median rate."""
        return max(self.settings, key=lambda setting: spread(self.rates(setting)).median)

    @property
    def knee(self) -> tuple[str, ...]:
        """The first setting that is as good as the best; of two keys, the one with the fewest steps along both."""
        good = [setting for setting in self.settings if self.ratio(setting, self.best).median >= 1 - AS_GOOD]
        axes = [list(dict.fromkeys(values)) for values in zip(*self.settings, strict=True)]
        places = {s: [axis.index(value) for axis, value in zip(axes, s, strict=True)] for s in good}
        return min(good, key=lambda setting: (sum(places[setting]), places[setting]))

    def headspace(self, setting: tuple[str, ...]) -> Headspace | None:
        """Returns the headspace of a training step; None if none was measured."""
        return None if self.memory is None else headspace(self.segments[setting], self.memory, self.batch_size)

    def _rate(self, segment: Segment) -> float:
        return segment.crops_per_second / (1 if self.memory is None else self.batch_size)


def settings_of(axes: Sequence[Axis], load: Callable[[list[str]], Config]) -> list[Setting]:
    """Returns every combination of the values; `load` returns the config with overrides. Raises ConfigError."""
    if len(axes) > 2:
        raise ConfigError(f"--sweep takes one key or two at once, received {len(axes)}")
    keys = [axis.key for axis in axes]
    return [
        Setting(values, load([f"{key}={value}" for key, value in zip(keys, values, strict=True)]))
        for values in product(*(axis.values for axis in axes))
    ]


def run(axes: Sequence[Axis], settings: Sequence[Setting], world: World, plan: BenchPlan) -> Sweep:
    """Measures the training pipeline at every setting; with a training step if a key divides the CPUs, or if asked for.

    Raises:
        ConfigError: the plan, a filelist or a label cannot be used, or the settings need different models.
        TfpipeError: a file cannot be used.
    """
    plan.check(world)
    if plan.ranks is not None or world.size > 1:
        raise ConfigError("--sweep is of one rank: leave out --ranks, or the launcher")
    with_step = plan.headspace or any(axis.key in DIVIDING for axis in axes)
    catalogs = Catalogs(world)
    first = settings[0].config
    with failures_named(first, world, catalogs.of(first)):
        measured, step, settle_s = {}, None, plan.warm_up_s
        if with_step:
            _check_same_batches(settings)
            step = training_step(first, world, catalogs.of(first))
            replay, settle_s = from_memory(first, world, catalogs.of(first), plan.warm_up_s, step)
            measured[REPLAY] = replay
        for number, (values, config) in enumerate(settings):
            # Each starts elsewhere in the epoch, so that files read by the one before are not in the page cache.
            at = Pipeline(config, world, catalogs.of(config), settle_s, number / len(settings), step)
            measured[json.dumps(values)] = at.measure
        segments = in_turns(measured, plan.repeats, plan.segment_s, world.rank == 0)
    return Sweep(
        keys=tuple(axis.key for axis in axes),
        settings=tuple(setting.values for setting in settings),
        threads=tuple(thread_budget(setting.config.data, world) for setting in settings),
        segments={setting.values: segments[json.dumps(setting.values)] for setting in settings},
        memory=segments.get(REPLAY),
        batch_size=first.data.batch_size,
    )


class Catalogs:
    """Catalogs of the training data by config; configs that differ only in RUNTIME keys share one."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._loaded: dict[str, Catalog] = {}

    def of(self, config: Config) -> Catalog:
        """Returns the catalog of a config. Raises ConfigError as load_catalog does."""
        key = _without_runtime(config.data)
        if key not in self._loaded:
            self._loaded[key] = load_catalog(config.data, "train", self._world)
        return self._loaded[key]


def _without_runtime(data: DataConfig) -> str:
    return json.dumps(data.model_dump(mode="json", exclude=RUNTIME))


def _check_same_batches(settings: Sequence[Setting]) -> None:
    def about(config: Config) -> list[Any]:
        return [getattr(config.data, name) for name in (*OF_BATCHES, "batch_size")]

    if any(about(setting.config) != about(settings[0].config) for setting in settings):
        keys = ", ".join(f"data.{name}" for name in (*OF_BATCHES, "batch_size"))
        raise ConfigError(f"a training step is swept with batches of one shape: leave out {keys}, or --headspace")
