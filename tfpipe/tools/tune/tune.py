"""Measures settings in turns, tries moves on them, confirms the end against the start, and tells the result."""

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
from tfpipe.data.order.sampling import evenly_spaced
from tfpipe.data.pipeline import build_batches
from tfpipe.distributed import World
from tfpipe.errors import TfpipeError
from tfpipe.prepare.index import build_index
from tfpipe.tools.bench.headspace import from_memory, training_step
from tfpipe.tools.measure import Pipeline, Pipelines, Spread, Work, in_turns, spread
from tfpipe.tools.tune.search import DEFAULTS, GAIN, LAST_TURNS, TURNS, Search, Setting, Trial, fractions, moves, wins

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

    setting: Setting  # overrides to use; () if nothing is better than the start
    rejected: bool  # true if the search had kept a setting that the confirmation has refused
    start: list[float]  # crops/s at the start's setting in the confirmation, by turn
    end: list[float]  # crops/s at the end's, by turn
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


class Races:
    """Measures settings in turns: crops/s of the pipeline alone, or of a training step fed by it."""

    def __init__(self, load: Load, pipelines: Pipelines, step: Work | None = None, warm_up_s: float = WARM_UP_S):
        self._load, self._pipelines, self._step, self._warm_up_s = load, pipelines, step, warm_up_s
        self._made = dict[Setting, Pipeline]()
        self._spent_s, self._measured = 0.0, 0

    def turn(self, settings: Sequence[Setting]) -> list[float]:
        """Measures each setting once: a `Race`."""
        for setting in settings:
            if setting not in self._made:
                config = self._load(_texts(setting))
                self._made[setting] = self._pipelines.new(config, self._step, self._warm_up_s)
        begin_s = time.monotonic()
        segments = in_turns({setting: self._made[setting].measure for setting in settings}, 1, SEGMENT_S, show=False)
        self._spent_s += time.monotonic() - begin_s
        self._measured += len(settings)
        return [segments[setting][0].crops_per_second for setting in settings]

    def seconds_of(self, measurements: int) -> float:
        """Returns how long so many measurements take, as far as is known."""
        first_s = self._warm_up_s + 2 * SEGMENT_S
        return measurements * (self._spent_s / self._measured if self._measured else first_s)


def run(load: Load, world: World, minutes: float, with_step: bool) -> Tuning:
    """Searches for about so many minutes.

    Raises:
        ConfigError: the config cannot be used.
        TfpipeError: a file cannot be used.
    """
    end_s, config, pipelines = time.monotonic() + 60 * minutes, load([]), Pipelines(world, WARM_UP_S)
    races, split = Races(load, pipelines), pipelines.split(config)
    with pipelines.failures_named(config):
        # The batches in memory come sooner by the defaults.
        training = _training(load(_texts(tuple(DEFAULTS.items()))), load, pipelines) if with_step else None
        last_s = races.seconds_of(2 * LAST_TURNS) + (training.seconds_of(2 * TURNS) if training else 0.0)

        def has_time(measurements: int) -> bool:
            return time.monotonic() + races.seconds_of(measurements) < end_s - last_s

        search = Search(races.turn, has_time)
        images = {"loose": split.stores == "images", "remote": split.catalog.paths.remote}
        won = search.climb(moves(config.data, world, **images))
        if training is not None:
            search.race = training.turn
            search.climb([fractions(load(_texts(search.setting)).data, world)])
            search.race = races.turn
        besides = _besides(load, search.setting, pipelines, has_time)
        while won and search.in_time:
            won = search.climb(moves(config.data, world, **images))
        return _confirmed(search, training, load, world, besides)


def _confirmed(
    search: Search, training: Races | None, load: Load, world: World, besides: dict[str, list[float]]
) -> Tuning:
    """Compares the end with the start again, in turns, and their batches; the start stays if it is as fast."""
    _check_same_batches(load, search.setting, world)
    turns = [search.race([(), search.setting]) for _ in range(LAST_TURNS)] if search.setting else [[1.0, 1.0]]
    start, end = (list(rates) for rates in zip(*turns, strict=True))
    steps = None
    if training is not None and search.setting:
        steps = [b / a for a, b in (training.turn([(), search.setting]) for _ in range(TURNS))]
    faster_alone = median(b / a for a, b in zip(start, end, strict=True)) > 1
    faster_step = steps is not None and wins(steps)
    confirmed = (faster_alone or faster_step) and (steps is None or median(steps) >= NOT_SLOWER)
    setting = search.setting if confirmed else ()
    rejected = bool(search.setting) and not confirmed
    return Tuning(setting, rejected, start, end, steps, search.trials, search.in_time, besides)


def _training(config: Config, load: Load, pipelines: Pipelines) -> Races | None:
    """Returns the races of the config's training step; None if the step is too slow for turns."""
    step = training_step(config, pipelines)
    _, settle_s = from_memory(config, pipelines, step)
    if settle_s > SLOWEST_WARM_UP_S:
        logger.warning("a training step takes too long for turns: data.cpu_fraction is not tried")
        return None
    return Races(load, pipelines, step, settle_s)


def _check_same_batches(load: Load, setting: Setting, world: World) -> None:
    """Raises TfpipeError if a setting changes pixels, labels or order, which no tuned key may."""

    def digest(overrides: Setting) -> str:
        parts: Any = hashlib.sha256()
        for batch in islice(build_batches(load(_texts(overrides)), "train", world), COMPARED_BATCHES):
            for tensor in tf.nest.flatten(batch):
                parts.update(tensor.numpy().tobytes())
        return parts.hexdigest()

    if setting and digest(setting) != digest(()):
        raise TfpipeError(f"{setting} changes the batches, which tune must not do: use none of it, and report this")


def _besides(
    load: Load, setting: Setting, pipelines: Pipelines, has_time: Callable[[int], bool]
) -> dict[str, list[float]]:
    """Tries an index and a cache on a part of the list, in a temporary folder; they cost a file and memory."""
    config, ratios = load([]), dict[str, list[float]]()
    data, catalog = config.data, pipelines.split(config).catalog
    if data.source is not None or data.service is not None or catalog.paths.remote or data.train_box_file is not None:
        return ratios
    with tempfile.TemporaryDirectory(prefix="tfpipe-tune-") as folder:
        sampled = evenly_spaced(len(catalog), min(SUBSET, len(catalog)))
        listed = Path(folder) / "part.txt"
        listed.write_bytes(b"".join(os.fsencode(catalog.paths[item]) + b"\n" for item in sampled))
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
                    build_index(load(_texts(base)).data, "train", pipelines.world, 1)
                if name == "cache":
                    _fill(load(_texts((*base, *with_it))), pipelines.world, len(sampled))
                races = Races(load, pipelines)
                turns = [races.turn([(*base, *without), (*base, *with_it)]) for _ in range(TURNS)]
            except TfpipeError as error:  # e.g. a damaged XML, or no room in the temporary folder
                logger.warning("the %s is not tried: %s", name, error)
            else:
                ratios[name] = [b / a for a, b in turns]
    return ratios


def _fill(config: Config, world: World, images: int) -> None:
    """Reads an epoch, so that all its files are cached."""
    for batch in build_batches(config, "train", world):
        if int(batch.positions[-1, 0]) >= images:
            return


def render(tuning: Tuning, config: Path) -> str:
    """Returns what each change gave, the gain of all together, and, as the last line, the arguments to use."""
    lines = []
    for name, trials in tuning.trials:
        others = ", ".join(
            f"{', '.join(_texts(trial.change)) if len(trial.change) > 1 else trial.change[0][1]} x {trial.ratio:.2f}"
            for trial in trials
            if not trial.kept
        )
        kept = [f"{', '.join(_texts(trial.change))}: x {trial.ratio:.2f}" for trial in trials if trial.kept]
        aside = f" (others: {others})" if others else ""
        lines += [f"kept      {text}{aside}" for text in kept] or [f"no gain   {name}: {others}"]
    if not tuning.in_time:
        lines.append("          the rest was not tried: the time was up (--minutes)")
    lines.append(f"together  {together(tuning)}")
    for name, ratios in tuning.besides.items():
        pays = "" if wins(ratios) else ", no gain"
        lines.append(f"besides   {beside(name, config)}: x {median(ratios):.2f}{pays}")
    return "\n".join([*lines, "", arguments(tuning)])


def arguments(tuning: Tuning) -> str:
    """Returns the arguments to use."""
    return " ".join(f"--set {text}" for text in _texts(tuning.setting)) or "change nothing"


def together(tuning: Tuning) -> str:
    """Returns what all changes together gave, in words."""
    gain, low, high = tuning.gain
    text = (
        f"x {gain:.2f} ({low:.2f} to {high:.2f}), in {len(tuning.start)} turns from {median(tuning.start):.0f} crops/s"
    )
    text += "" if tuning.steps is None else f", training steps x {median(tuning.steps):.2f}"
    if tuning.rejected:
        text += ": not faster than at the start, so nothing is changed"
    elif not tuning.setting:
        text = f"nothing won {100 * GAIN:.0f} %: the setting is as fast as any that was tried"
    return text


def beside(name: str, config: Path) -> str:
    """Returns how to have what costs a file or memory, by its name in `besides`."""
    if name == "index":
        return f"tfpipe index -c {config}, once: no XML is opened or parsed any more"
    return "--set data.cache=memory, or a folder on a local disk: epochs after the first"


def as_json(tuning: Tuning) -> dict[str, Any]:
    """Returns all raw and derived numbers; rates in crops/s."""
    return {
        "setting": dict(tuning.setting),
        "gain": tuning.gain._asdict(),
        "start_crops_per_second": tuning.start,
        "end_crops_per_second": tuning.end,
        "step_ratios": tuning.steps,
        "trials": [
            {"key": name, "change": dict(trial.change), "ratios": trial.ratios, "kept": trial.kept}
            for name, trials in tuning.trials
            for trial in trials
        ],
        "besides": dict(tuning.besides),
        "in_time": tuning.in_time,
    }


def _texts(setting: Setting) -> list[str]:
    return [f"{key}={value}" for key, value in setting]
