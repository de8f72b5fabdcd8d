"""Measures settings in turns, tries moves on them, and confirms the end against the start."""

import hashlib
import logging
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any

import tensorflow as tf

from tfpipe.config import Config
from tfpipe.data.catalog.types import Catalog
from tfpipe.data.order.sampling import evenly_spaced
from tfpipe.data.pipeline import build_batches
from tfpipe.distributed import World
from tfpipe.errors import ConfigError, TfpipeError
from tfpipe.prepare.index import build_index
from tfpipe.tools.bench.chains import Pipeline, failures_named
from tfpipe.tools.bench.headspace import Work, from_memory, training_step
from tfpipe.tools.bench.segments import Spread, spread, wait_until_idle
from tfpipe.tools.bench.sweep import Catalogs
from tfpipe.tools.tune.moves import DEFAULTS, Setting, fractions, moves
from tfpipe.tools.tune.search import LAST_TURNS, TURNS, Search, Trial, wins

logger = logging.getLogger(__name__)

WARM_UP_S, SEGMENT_S = 0.7, 1.0
# Slower training steps, of which a warm-up takes this long, would take more turns than there is time for.
SLOWEST_WARM_UP_S = 6.0
# Fewer steps/s than this share of the start's count as slower.
NOT_SLOWER = 0.97
# Images of the list that an index and a cache are tried on.
SUBSET = 1024
COMPARED_BATCHES = 3

Load = Callable[[list[str]], Config]
"""(overrides) -> the config with them."""


@dataclass
class Tuning:
    """The result of the search."""

    setting: Setting
    """Overrides to use; () if nothing is better than the start."""
    rejected: bool
    """True if the search had kept a setting that the confirmation has refused."""
    start: list[float]
    """crops/s at the start's setting in the confirmation, by turn."""
    end: list[float]
    """crops/s at the end's, by turn."""
    steps: list[float] | None
    """Ratios of training steps/s, end to start, by turn; None if no training step was measured."""
    trials: list[tuple[str, list[Trial]]]
    in_time: bool
    besides: dict[str, list[float]] = field(default_factory=dict)
    """Ratios by turn of what costs a file or memory: "index", "cache"."""

    @property
    def gain(self) -> Spread:
        """Ratio of the end's rate to the start's, turn by turn."""
        return spread([b / a for a, b in zip(self.start, self.end, strict=True)])

    @property
    def start_rate(self) -> float:
        """Median crops/s at the start's setting."""
        return median(self.start)

    @property
    def step_gain(self) -> float:
        """Median ratio of training steps/s."""
        return median(self.steps or [1.0])

    def median_of(self, name: str) -> float:
        """Returns the median ratio of one of `besides`."""
        return median(self.besides[name])

    def pays(self, name: str) -> bool:
        """Returns whether one of `besides` gains."""
        return wins(self.besides[name])


class Measure:
    """Measures settings: crops/s of the pipeline alone, or of a training step fed by it."""

    def __init__(self, load: Load, world: World, step: Work | None = None, warm_up_s: float = WARM_UP_S) -> None:
        self._load, self._world, self._step, self._warm_up_s = load, world, step, warm_up_s
        self._catalogs, self._pipelines = Catalogs(world), dict[Setting, Pipeline]()
        self._spent_s, self._measured = 0.0, 0

    def turn(self, settings: Sequence[Setting]) -> list[float]:
        """Measures each setting once: a `Race`."""
        return [self._rate(setting) for setting in settings]

    def seconds_of(self, measurements: int) -> float:
        """Returns how long so many measurements take, as far as is known."""
        first_s = self._warm_up_s + 2 * SEGMENT_S
        return measurements * (self._spent_s / self._measured if self._measured else first_s)

    def catalog(self, config: Config) -> Catalog:
        """Returns the catalog of a config's training data."""
        return self._catalogs.of(config)

    def _rate(self, setting: Setting) -> float:
        if setting not in self._pipelines:
            config = self._load(_texts(setting))
            # Each starts elsewhere in the epoch, so that files read by another are not in the page cache.
            share = 0.618 * len(self._pipelines) % 1
            catalog = self.catalog(config)
            self._pipelines[setting] = Pipeline(config, self._world, catalog, self._warm_up_s, share, self._step)
        begin_s = time.monotonic()
        wait_until_idle()
        segment = self._pipelines[setting].measure(SEGMENT_S)
        self._spent_s += time.monotonic() - begin_s
        self._measured += 1
        return segment.crops_per_second


def run(load: Load, world: World, minutes: float, with_step: bool) -> Tuning:
    """Searches for about so many minutes.

    Raises:
        ConfigError: the config cannot be used, or there are several ranks.
        TfpipeError: a file cannot be used.
    """
    if world.size > 1:
        raise ConfigError("tfpipe tune measures one rank: leave out the launcher")
    end_s, config, measure = time.monotonic() + 60 * minutes, load([]), Measure(load, world)
    catalog = measure.catalog(config)
    with failures_named(config, world, catalog):
        # The batches in memory come sooner by the defaults.
        training = _training(load(_texts(tuple(DEFAULTS.items()))), world, catalog, load) if with_step else None
        last_s = measure.seconds_of(2 * LAST_TURNS) + (training.seconds_of(2 * TURNS) if training else 0.0)

        def has_time(measurements: int) -> bool:
            return time.monotonic() + measure.seconds_of(measurements) < end_s - last_s

        search = Search(measure.turn, has_time)
        won = search.climb(moves(config.data, catalog, world))
        if training is not None:
            search.race = training.turn
            search.climb([fractions(load(_texts(search.setting)).data, world)])
            search.race = measure.turn
        besides = _besides(load, search.setting, config, catalog, world, has_time)
        while won and search.in_time:
            won = search.climb(moves(config.data, catalog, world))
        return _confirmed(search, measure, training, load, world, besides)


def _confirmed(
    search: Search,
    measure: Measure,
    training: Measure | None,
    load: Load,
    world: World,
    besides: dict[str, list[float]],
) -> Tuning:
    """Compares the end with the start once more, in turns, and their batches; the start stays if it is as fast."""
    _check_same_batches(load, search.setting, world)
    turns = [measure.turn([(), search.setting]) for _ in range(LAST_TURNS)] if search.setting else [[1.0, 1.0]]
    start, end = (list(rates) for rates in zip(*turns, strict=True))
    steps = None
    if training is not None and search.setting:
        pairs = [training.turn([(), search.setting]) for _ in range(TURNS)]
        steps = [b / a for a, b in pairs]
    faster_alone = median(b / a for a, b in zip(start, end, strict=True)) > 1
    faster_step = steps is not None and wins(steps)
    confirmed = (faster_alone or faster_step) and (steps is None or median(steps) >= NOT_SLOWER)
    setting = search.setting if confirmed else ()
    rejected = bool(search.setting) and not confirmed
    return Tuning(setting, rejected, start, end, steps, search.trials, search.in_time, besides)


def _training(config: Config, world: World, catalog: Catalog, load: Load) -> Measure | None:
    """Returns the measurement of the config's training step; None if the step is too slow for turns."""
    step = training_step(config, world, catalog)
    _, settle_s = from_memory(config, world, catalog, 0.0, step)
    if settle_s > SLOWEST_WARM_UP_S:
        logger.warning("a training step takes too long for turns: data.cpu_fraction is not tried")
        return None
    return Measure(load, world, step, max(WARM_UP_S, settle_s))


def _check_same_batches(load: Load, setting: Setting, world: World) -> None:
    """Raises TfpipeError if a setting changes pixels, labels or order; no move does."""

    def digest(overrides: Setting) -> str:
        config = load(_texts(overrides))
        parts: Any = hashlib.sha256()
        for batch in islice(build_batches(config, "train", world), COMPARED_BATCHES):
            for tensor in tf.nest.flatten(batch):
                parts.update(tensor.numpy().tobytes())
        return parts.hexdigest()

    if setting and digest(setting) != digest(()):
        raise TfpipeError(f"{setting} changes the batches, which tune must not do: use none of it, and report this")


def _besides(
    load: Load, setting: Setting, config: Config, catalog: Catalog, world: World, has_time: Callable[[int], bool]
) -> dict[str, list[float]]:
    """Tries an index and a cache on a part of the list, in a temporary folder; they cost a file and memory."""
    data, found = config.data, dict[str, list[float]]()
    if data.source is not None or data.service is not None or catalog.paths.remote or data.train_box_file is not None:
        return found
    with tempfile.TemporaryDirectory(prefix="tfpipe-tune-") as folder:
        chosen = evenly_spaced(len(catalog), min(SUBSET, len(catalog)))
        listed = Path(folder) / "part.txt"
        listed.write_bytes(b"".join(os.fsencode(catalog.paths[item]) + b"\n" for item in chosen))
        base = (*setting, ("data.train_filelist", str(listed)), ("data.index", folder))
        annotated = bool(catalog.annotated.any()) and data.unit == "image"
        tried: dict[str, tuple[Setting, Setting]] = {}
        if annotated and catalog.boxes is None:
            tried["index"] = ((("data.annotations", "xml"),), (("data.annotations", "index"),))
        if data.cache is None:
            tried["cache"] = ((), (("data.cache", f"{folder}/cache"),))
        for name, (without, with_it) in tried.items():
            if not has_time(2 * TURNS + 2):
                break
            try:
                if annotated:
                    build_index(load(_texts(base)).data, "train", world, 1)
                if name == "cache":
                    _fill(load(_texts((*base, *with_it))), world, len(chosen))
                measure = Measure(load, world)
                turns = [measure.turn([(*base, *without), (*base, *with_it)]) for _ in range(TURNS)]
            except TfpipeError as error:  # e.g. a damaged XML, or no room in the temporary folder
                logger.warning("the %s is not tried: %s", name, error)
            else:
                found[name] = [b / a for a, b in turns]
    return found


def _texts(setting: Setting) -> list[str]:
    return [f"{key}={value}" for key, value in setting]


def _fill(config: Config, world: World, images: int) -> None:
    """Reads an epoch, so that all its files are cached."""
    for batch in build_batches(config, "train", world):
        if int(batch.positions[-1, 0]) >= images:
            return
